//! Programs of others that Egret is compared with, or that it is tested with: each built from the Go module in `integration/peers` that pins it.
//!
//! Where Go is missing, what needs it is left out with a word on the standard error, past what the test harness captures. In
//! CI (`CI=true`) that is a failure: a comparison that nobody makes is worth nothing.

use std::{
    env,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output},
};

/// A program and what to build of its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of its binary.
    pub name: &'static str,
    /// Its folder in `integration/peers`.
    module: &'static str,
    package: &'static str,
    /// How Go builds it.
    command: &'static [&'static str],
    /// What it is told of its own version.
    stamp: &'static str,
}

const PROGRAM: &[&str] = &["build"];
const TESTS: &[&str] = &["test", "-c"];

/// What Kubernetes' programs are told of their version; without it they say v0.0.0.
const KUBERNETES: &str =
    " -X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3";

impl Peer {
    /// CoreDNS 1.15 with the plugins that node-local-dns compiles in: knows every option that dnsd takes.
    pub const COREDNS: Self = Self {
        name: "coredns",
        module: "coredns",
        package: ".",
        command: PROGRAM,
        stamp: "",
    };
    /// node-local-dns itself, with CoreDNS 1.10: the newest that Go's module proxy serves.
    pub const NODE_CACHE: Self = Self {
        name: "node-cache",
        module: "node-cache",
        package: "k8s.io/dns/cmd/node-cache",
        command: PROGRAM,
        stamp: "",
    };
    pub const KUBE_NETWORK_POLICIES: Self = Self {
        name: "kube-network-policies",
        module: "kube-network-policies",
        package: "sigs.k8s.io/kube-network-policies/cmd/kube-network-policies/standard",
        command: PROGRAM,
        stamp: "",
    };
    /// What `--source kube` watches.
    pub const KUBE_APISERVER: Self =
        Self::of_kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver");
    /// Of the same version; Debian's is too old.
    pub const KUBECTL: Self = Self::of_kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl");
    /// What a cluster has besides.
    pub const KUBE_CONTROLLER_MANAGER: Self = Self::of_kubernetes(
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    );
    pub const KUBE_SCHEDULER: Self =
        Self::of_kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler");
    pub const KUBELET: Self = Self::of_kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet");
    pub const KUBE_PROXY: Self = Self::of_kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy");
    /// The API server's network proxy of SIG API Machinery.
    pub const KONNECTIVITY_SERVER: Self = Self {
        name: "konnectivity-server",
        module: "konnectivity",
        package: "sigs.k8s.io/apiserver-network-proxy/cmd/server",
        command: PROGRAM,
        stamp: "",
    };
    pub const KONNECTIVITY_AGENT: Self = Self {
        name: "konnectivity-agent",
        module: "konnectivity",
        package: "sigs.k8s.io/apiserver-network-proxy/cmd/agent",
        command: PROGRAM,
        stamp: "",
    };
    /// Its tests of an agent, `-agent-path`.
    pub const KONNECTIVITY_TESTS: Self = Self {
        name: "konnectivity-tests",
        module: "konnectivity",
        package: "sigs.k8s.io/apiserver-network-proxy/tests",
        command: TESTS,
        stamp: "",
    };
    /// Makes requests as an API server does.
    pub const KONNECTIVITY_CLIENT: Self = Self {
        name: "konnectivity-client",
        module: "konnectivity",
        package: "sigs.k8s.io/apiserver-network-proxy/cmd/test-client",
        command: PROGRAM,
        stamp: "",
    };

    /// Lints and renders deploy/helm/egret.
    pub const HELM: Self = Self {
        name: "helm",
        module: "helm",
        package: "helm.sh/helm/v3/cmd/helm",
        command: PROGRAM,
        // The version of Kubernetes for which it renders without a cluster.
        stamp: " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
    };

    /// One of Kubernetes' programs; all are of one module and version.
    const fn of_kubernetes(name: &'static str, package: &'static str) -> Self {
        Self {
            name,
            module: "kube-apiserver",
            package,
            command: PROGRAM,
            stamp: KUBERNETES,
        }
    }

    /// Its binary, built unless it has been already; `None` where there is no Go for it.
    ///
    /// # Errors
    /// When it cannot be built; in CI also without Go.
    pub fn build(self) -> Result<Option<PathBuf>, PeerError> {
        let module = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("peers")
            .join(self.module);
        if !is_there_go_for(&module) {
            return self.leave_out();
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
        fs::create_dir_all(&folder).map_err(PeerError::file(&folder))?;
        // Go looks by itself whether it is built already; two at once would do all of it twice.
        let lock = folder.join(format!("{}.lock", self.name));
        let held = File::create(&lock).map_err(PeerError::file(&lock))?;
        held.lock().map_err(PeerError::file(&lock))?;
        let binary = folder.join(self.name);
        if !binary.exists() {
            say(&format!("building {}; the first time takes minutes", self.name));
        }
        self.build_into(&binary, &module)?;
        Ok(Some(binary))
    }

    fn build_into(self, binary: &Path, module: &Path) -> Result<(), PeerError> {
        let mut go = go(module);
        go.env("CGO_ENABLED", "0")
            .args(self.command)
            .args(["-p", "2", "-buildvcs=false", "-trimpath", "-ldflags"])
            .args([&format!("-s -w{}", self.stamp), "-o"])
            .arg(binary)
            .arg(self.package);
        let Output { status, stderr, .. } = go.output().map_err(PeerError::file(module))?;
        if status.success() {
            return Ok(());
        }
        Err(PeerError::Build {
            name: self.name,
            status,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }

    fn leave_out(self) -> Result<Option<PathBuf>, PeerError> {
        if env::var("CI").as_deref() == Ok("true") {
            return Err(PeerError::NoGo { name: self.name });
        }
        say(&format!(
            "NOT COMPARED, NOT TESTED WITH: {}",
            PeerError::NoGo { name: self.name }
        ));
        Ok(None)
    }
}

/// Why there is no program to compare with.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("{name} is built with Go 1.26 or newer (https://go.dev/dl), which is not on the PATH")]
    NoGo { name: &'static str },
    #[error("go build of {name}: {status}:\n{stderr}")]
    Build {
        name: &'static str,
        status: ExitStatus,
        stderr: String,
    },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl PeerError {
    fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

/// The folder of a module (`path@version`) in Go's cache, fetched unless it is there; Go checks it against the public sums.
pub(crate) fn go_module(module: &str) -> Result<PathBuf, PeerError> {
    let mut go = go(&env::temp_dir());
    let Output {
        status,
        stdout,
        stderr,
    } = go
        .args(["mod", "download", "-json", module])
        .output()
        .map_err(PeerError::file("go"))?;
    let said = String::from_utf8_lossy(&stdout);
    let folder = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("\"Dir\": \"")?.strip_suffix("\","));
    match folder {
        Some(folder) if status.success() => Ok(PathBuf::from(folder)),
        _ => Err(PeerError::Build {
            name: "a module of Go",
            status,
            stderr: format!("{module}: {said}{}", String::from_utf8_lossy(&stderr)),
        }),
    }
}

/// A Go that is too old for the module, and fetches no newer one, cannot read its go.mod.
fn is_there_go_for(module: &Path) -> bool {
    let read = go(module).args(["list", "-m"]).output();
    read.is_ok_and(|read| read.status.success())
}

fn go(module: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(module);
    go
}

fn say(line: &str) {
    // Who cannot be told anything runs on.
    drop(writeln!(io::stderr(), "{line}"));
}
