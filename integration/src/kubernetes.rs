//! A real API server and its etcd in the node, and kubectl to speak to it. There are no controllers, no scheduler and no kubelet: what they
//! would write, as the status of pods, the test writes.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{Daemon, DaemonSpec, Output, Peer, World, WorldError, manifests::Manifests, node, peers};

/// Each request with who made it, on what and with which outcome, once it is answered or its watch has begun.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
";

const ETCD: u16 = 2379;
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 6443);
/// On a machine that is busy with other tests.
const READY_WITHIN: Duration = Duration::from_secs(120);
const TOKEN: &str = "tests";

type Failure = Box<dyn std::error::Error>;

/// An API server that runs in the node of a world.
#[derive(Debug)]
pub struct Kubernetes {
    server: Daemon,
    etcd: Daemon,
    kubectl: PathBuf,
    folder: PathBuf,
}

impl Kubernetes {
    /// Starts both and waits until the API server is ready; none where they cannot be built, which is said.
    ///
    /// # Errors
    /// When one of them cannot be started, or does not become ready.
    pub fn start(world: &World) -> Result<Option<Self>, Failure> {
        Self::start_with(world, |_| Vec::new())
    }

    /// The same with an audit log of all requests ([`Self::audit_log`]).
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_audited(world: &World) -> Result<Option<Self>, Failure> {
        Self::start_with(world, |folder| {
            let file = |name: &str| folder.join(name).display().to_string();
            vec![
                "--audit-policy-file".into(),
                file("audit.yaml"),
                "--audit-log-path".into(),
                file("audit.log"),
            ]
        })
    }

    fn start_with(
        world: &World,
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Result<Option<Self>, Failure> {
        let (Some(binary), Some(kubectl)) = (Peer::KUBE_APISERVER.build()?, Peer::KUBECTL.build()?) else {
            return Ok(None);
        };
        let folder = world.files().join("kubernetes");
        fs::create_dir_all(&folder)?;
        write_keys(&folder)?;
        let etcd = world.start(etcd(&folder))?;
        let server = world.launch(api_server(&folder, binary).with(arguments(&folder)))?;
        let kubernetes = Self {
            server,
            etcd,
            kubectl,
            folder,
        };
        kubernetes.wait_until_ready(world)?;
        Ok(Some(kubernetes))
    }

    /// Ends the API server as a crash does; etcd stays.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.server.kill()?;
        Ok(())
    }

    /// Ends etcd as a crash does; the API server stays.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill_etcd(&mut self) -> Result<(), Failure> {
        self.etcd.kill()?;
        Ok(())
    }

    /// Starts etcd anew and waits until the API server is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn restart_etcd(&mut self, world: &World) -> Result<(), Failure> {
        self.etcd = world.start(self.etcd.spec().clone())?;
        self.wait_until_ready(world)
    }

    /// Starts it anew and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn restart(&mut self, world: &World) -> Result<(), Failure> {
        self.server = world.launch(self.server.spec().clone())?;
        self.wait_until_ready(world)
    }

    /// The enforcer of the node, with this as its source.
    pub fn enforcer(&self, world: &World, backend: &str) -> DaemonSpec {
        self.enforcer_by(world, backend, &self.kubeconfig())
    }

    /// The same, and it asks by this kubeconfig.
    pub fn enforcer_by(&self, world: &World, backend: &str, kubeconfig: &Path) -> DaemonSpec {
        self.by(world.enforcer(backend), kubeconfig)
    }

    /// An enforcer with this API server as its source, which it asks by this kubeconfig.
    pub fn by(&self, mut spec: DaemonSpec, kubeconfig: &Path) -> DaemonSpec {
        for argument in &mut spec.arguments {
            if argument.starts_with("dir:") {
                *argument = "kube".to_owned();
            }
        }
        spec.with(["--kubeconfig".to_owned(), kubeconfig.display().to_string()])
    }

    /// `kubectl proxy` at an address that the world's other node reaches, and the kubeconfig of who asks by it.
    ///
    /// # Errors
    /// When it does not start.
    pub fn proxy_for_other_node(&self, world: &World) -> Result<(Daemon, PathBuf), Failure> {
        let port = 8003;
        let spec = DaemonSpec {
            binary: self.kubectl_binary(),
            ..DaemonSpec::stock("kubectl-proxy-2", port, "/readyz")
        };
        let proxy = world.start(
            spec.with(["proxy", "--address", "0.0.0.0", "--accept-hosts", ".*"])
                .with(["--reject-methods", "^$"])
                .with(["--port".to_owned(), port.to_string()])
                .with(["--kubeconfig".to_owned(), self.kubeconfig().display().to_string()]),
        )?;
        let admin = fs::read_to_string(self.kubeconfig())?;
        let path = self.folder.join("other-node.kubeconfig");
        let server = format!("http://{}:{port}", node::ADDRESS);
        fs::write(&path, admin.replace(&format!("https://{API}"), &server))?;
        Ok((proxy, path))
    }

    pub(crate) fn kubectl_binary(&self) -> PathBuf {
        self.kubectl.clone()
    }

    /// The process of the API server.
    pub fn server_pid(&self) -> u32 {
        self.server.pid()
    }

    /// Ends both as a crash does, and puts a copy of etcd's data aside.
    ///
    /// # Errors
    /// When one cannot be killed, or the data not be copied.
    pub fn back_up(&mut self) -> Result<(), Failure> {
        self.stop()?;
        copy(&self.folder.join("etcd"), &self.folder.join("backup"))
    }

    /// Ends both and puts etcd back to what it was at the backup.
    ///
    /// # Errors
    /// When one cannot be killed, or the data not be copied.
    pub fn restore(&mut self) -> Result<(), Failure> {
        self.stop()?;
        fs::remove_dir_all(self.folder.join("etcd"))?;
        copy(&self.folder.join("backup"), &self.folder.join("etcd"))
    }

    /// The API server first, and etcd in good order, so that its data is whole.
    fn stop(&mut self) -> Result<(), Failure> {
        self.server.kill()?;
        self.etcd.terminate()?;
        Ok(())
    }

    /// Starts both anew and waits until the API server is ready.
    ///
    /// # Errors
    /// When one does not become ready.
    pub fn start_again(&mut self, world: &World) -> Result<(), Failure> {
        self.etcd = world.start(self.etcd.spec().clone())?;
        self.restart(world)
    }

    /// A controller with an administrator's rights, which answers on this port.
    pub fn controller(&self, admin: u16) -> DaemonSpec {
        let mut spec = DaemonSpec::enforcer(admin);
        spec.arguments.insert(0, "controller".to_owned());
        spec.name = "controller".to_owned();
        spec.with(["--kubeconfig".to_owned(), self.kubeconfig().display().to_string()])
    }

    /// What `kubectl get` says.
    ///
    /// # Errors
    /// With what it says where it fails.
    pub fn get(&self, world: &World, arguments: &[&str]) -> Result<String, Failure> {
        self.asked(world, &[&["get"], arguments].concat())
    }

    /// An administrator's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The requests so far, of a server that was started for it: a line of JSON for each stage of each (`audit.k8s.io/v1` Event).
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn audit_log(&self) -> Result<String, Failure> {
        Ok(fs::read_to_string(self.folder.join("audit.log"))?)
    }

    /// Has the API server store what a file says, status included.
    ///
    /// # Errors
    /// When it refuses it.
    pub fn apply(&self, world: &World, manifest: &Path) -> Result<(), Failure> {
        let path = manifest.display().to_string();
        self.kubectl(world, &["apply", "-f", &path])
    }

    /// The same of a text.
    ///
    /// # Errors
    /// When it refuses it.
    pub fn apply_text(&self, world: &World, yaml: &str) -> Result<(), Failure> {
        let path = self.folder.join("applied.yaml");
        fs::write(&path, yaml)?;
        self.apply(world, &path)
    }

    /// Has the API server store the world's node, namespaces and pods.
    ///
    /// # Errors
    /// When it refuses them.
    pub fn apply_world(&self, world: &World) -> Result<(), Failure> {
        let text = fs::read_to_string(world.manifests().folder().join(Manifests::OF_WORLD))?;
        // The API server gives the identifiers.
        let lines = text.lines().filter(|line| !line.starts_with("  uid: "));
        let text = lines.collect::<Vec<_>>().join("\n");
        self.apply_text(world, &text)?;
        let path = self.folder.join("applied.yaml").display().to_string();
        self.kubectl(world, &["replace", "--subresource=status", "-f", &path])
    }

    /// All objects that policy depends on, as a List.
    ///
    /// # Errors
    /// When one of the kinds is not served.
    pub fn stored(&self, world: &World) -> Result<String, Failure> {
        let kinds = "namespaces,pods,nodes,services,endpointslices,networkpolicies,adminnetworkpolicies,\
                     baselineadminnetworkpolicies,clusternetworkpolicies,clusteregressfirewalls,nodeaddressreports,\
                     apiserveraddresses";
        self.asked(world, &["get", kinds, "-A", "-o", "json"])
    }

    /// A kubeconfig with the rights of a service account, by a token that names this node as the token of a pod there does.
    ///
    /// # Errors
    /// When it gets no token.
    pub fn kubeconfig_of(
        &self,
        world: &World,
        namespace: &str,
        account: &str,
        node: &str,
    ) -> Result<PathBuf, Failure> {
        let of_account = ["create", "token", account, "-n", namespace];
        let bound = ["--bound-object-kind", "Node", "--bound-object-name", node];
        let output = self.ask(world, &[&of_account[..], &bound].concat())?;
        if !output.success() {
            return Err(output.stderr.into());
        }
        let admin = fs::read_to_string(self.kubeconfig())?;
        let path = self.folder.join(format!("{account}.kubeconfig"));
        let token = format!("token: {}", output.stdout.trim());
        let context = format!("user: admin, namespace: {namespace}}}");
        let config = admin
            .replace(&format!("token: {TOKEN}"), &token)
            .replace("user: admin}", &context);
        fs::write(&path, config)?;
        Ok(path)
    }

    /// Runs kubectl in the node.
    ///
    /// # Errors
    /// With what it says, unless it succeeds.
    pub fn kubectl(&self, world: &World, arguments: &[&str]) -> Result<(), Failure> {
        let Output {
            status,
            stdout,
            stderr,
            ..
        } = self.ask(world, arguments)?;
        if status == Some(0) {
            return Ok(());
        }
        Err(format!("kubectl {}: {stdout}{stderr}", arguments.join(" ")).into())
    }

    /// What kubectl prints.
    ///
    /// # Errors
    /// With what it says, unless it succeeds.
    pub fn asked(&self, world: &World, arguments: &[&str]) -> Result<String, Failure> {
        let output = self.ask(world, arguments)?;
        if output.success() {
            Ok(output.stdout)
        } else {
            Err(format!("kubectl {}: {}", arguments.join(" "), output.stderr).into())
        }
    }

    /// Runs kubectl in the node, whatever it says.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn ask(&self, world: &World, arguments: &[&str]) -> Result<Output, WorldError> {
        let (kubectl, config) = (
            self.kubectl.display().to_string(),
            self.kubeconfig().display().to_string(),
        );
        let mut argv = vec![kubectl.as_str(), "--kubeconfig", &config];
        argv.extend(arguments);
        world.node().run(&argv)
    }

    fn wait_until_ready(&self, world: &World) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let asked = self.ask(world, &["get", "--raw", "/readyz"])?;
            if asked.success() {
                return Ok(());
            }
            if begun.elapsed() > READY_WITHIN {
                let log = self.server.log();
                return Err(format!("the API server is not ready: {}\n{log}", asked.stderr).into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The definitions of the kinds of `policy.networking.k8s.io`, as SIG Network publishes them.
///
/// # Errors
/// When they cannot be fetched.
pub fn network_policy_api() -> Result<[PathBuf; 3], Failure> {
    let (alpha1, alpha2) = (
        peers::go_module("sigs.k8s.io/network-policy-api@v0.1.7")?,
        peers::go_module("sigs.k8s.io/network-policy-api@v0.2.0")?,
    );
    let file = |module: &Path, plural: &str| {
        module.join(format!(
            "config/crd/experimental/policy.networking.k8s.io_{plural}.yaml"
        ))
    };
    Ok([
        file(&alpha1, "adminnetworkpolicies"),
        file(&alpha1, "baselineadminnetworkpolicies"),
        file(&alpha2, "clusternetworkpolicies"),
    ])
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copied = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &copied)?;
        } else {
            fs::copy(entry.path(), &copied)?;
        }
    }
    Ok(())
}

/// The definition of ServiceMonitor, as the Prometheus operator publishes it.
///
/// # Errors
/// When it cannot be fetched.
pub fn service_monitor() -> Result<PathBuf, Failure> {
    let module = peers::go_module("github.com/prometheus-operator/prometheus-operator@v0.83.0")?;
    Ok(module.join("example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"))
}

fn etcd(folder: &Path) -> DaemonSpec {
    let client = format!("http://127.0.0.1:{ETCD}");
    let peer = "http://127.0.0.1:2380";
    DaemonSpec::stock("etcd", ETCD, "/health")
        .with(["--data-dir".to_owned(), folder.join("etcd").display().to_string()])
        .with([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .with(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .with(["--initial-cluster".to_owned(), format!("default={peer}")])
        .with(["--unsafe-no-fsync"])
}

/// It makes its own certificate, which the kubeconfig trusts.
fn api_server(folder: &Path, binary: PathBuf) -> DaemonSpec {
    let file = |name: &str| folder.join(name).display().to_string();
    let spec = DaemonSpec {
        binary,
        ..DaemonSpec::stock("kube-apiserver", API.port(), "/readyz")
    };
    spec.with(["--etcd-servers".to_owned(), format!("http://127.0.0.1:{ETCD}")])
        .with(["--secure-port".to_owned(), API.port().to_string()])
        .with(["--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"])
        .with(["--cert-dir".to_owned(), file("certificates")])
        .with(["--service-account-key-file".to_owned(), file("tokens.pub")])
        .with([
            "--service-account-signing-key-file".to_owned(),
            file("tokens.key"),
        ])
        .with(["--service-account-issuer", "https://kubernetes.default.svc"])
        .with(["--service-cluster-ip-range", "10.96.0.0/16"])
        .with(["--token-auth-file".to_owned(), file("tokens.csv")])
        .with(["--authorization-mode", "RBAC"])
        // No controller makes the accounts that pods would need, and none has to be admitted.
        .with(["--disable-admission-plugins", "ServiceAccount"])
        .with(["--endpoint-reconciler-type", "none"])
}

fn write_keys(folder: &Path) -> Result<(), Failure> {
    write_token_keys(folder)?;
    fs::write(
        folder.join("tokens.csv"),
        format!("{TOKEN},admin,1,system:masters\n"),
    )?;
    fs::write(folder.join("audit.yaml"), AUDIT)?;
    fs::write(folder.join("kubeconfig"), kubeconfig(API, folder, TOKEN))?;
    Ok(())
}

/// The keys by which an API server signs and reads tokens of service accounts: `tokens.key`, `tokens.pub`.
pub(crate) fn write_token_keys(folder: &Path) -> Result<(), Failure> {
    let key = rcgen::KeyPair::generate()?;
    fs::write(folder.join("tokens.key"), key.serialize_pem())?;
    fs::write(folder.join("tokens.pub"), key.public_key_pem())?;
    Ok(())
}

/// A kubeconfig for who has this token. It trusts the certificate that the API server makes for itself in `folder`.
pub(crate) fn kubeconfig(server: SocketAddr, folder: &Path, token: &str) -> String {
    let authority = folder.join("certificates/apiserver.crt");
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: \"https://{server}\", certificate-authority: {}}}}}]
users: [{{name: admin, user: {{token: {token}}}}}]
contexts: [{{name: here, context: {{cluster: here, user: admin}}}}]
current-context: here
",
        authority.display()
    )
}
