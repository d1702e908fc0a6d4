//! What the machine must have for a cluster.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Peer, demo::Screen};

use super::Failure;

/// Debian's programs, each with its package.
const PACKAGES: [(&str, &str); 9] = [
    ("etcd", "etcd-server"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("busybox", "busybox-static"),
    ("conntrack", "conntrack"),
    ("strip", "binutils"),
    ("jq", "jq"),
];
pub(super) const CNI_PLUGINS: &str = "/usr/lib/cni";

/// The programs of a cluster that are built from Go modules.
pub(super) struct Programs {
    pub(super) api_server: String,
    pub(super) controller_manager: String,
    pub(super) scheduler: String,
    pub(super) kubelet: String,
    pub(super) kube_proxy: String,
    pub(super) kubectl: String,
    pub(super) helm: String,
    pub(super) coredns: String,
    pub(super) node_cache: String,
}

impl Programs {
    /// Builds what is not built yet.
    ///
    /// # Errors
    /// With everything that is missing.
    pub(super) fn find(screen: Screen) -> Result<Self, Failure> {
        let mut missing = PACKAGES
            .iter()
            .filter(|(program, _)| !is_on_path(program))
            .map(|(program, package)| format!("{program} (apt-get install {package})"))
            .collect::<Vec<_>>();
        if !Path::new(CNI_PLUGINS).join("ptp").exists() {
            missing.push(format!(
                "{CNI_PLUGINS}/ptp (apt-get install containernetworking-plugins)"
            ));
        }
        if !nix::unistd::geteuid().is_root() {
            missing.push("root, for namespaces".to_owned());
        }
        if Command::new("go").arg("version").output().is_err() {
            missing.push("Go 1.26 or newer (https://go.dev/dl)".to_owned());
        }
        if !missing.is_empty() {
            return Err(format!("this machine lacks {}", missing.join(", ")).into());
        }
        screen.line("kube-apiserver, kubelet and others are built from Go modules unless they are there");
        let built = |peer: Peer| -> Result<String, Failure> {
            let path: PathBuf = peer
                .build()?
                .ok_or_else(|| format!("{} cannot be built: its go.mod needs a newer Go", peer.name))?;
            Ok(path.canonicalize()?.display().to_string())
        };
        Ok(Self {
            api_server: built(Peer::KUBE_APISERVER)?,
            controller_manager: built(Peer::KUBE_CONTROLLER_MANAGER)?,
            scheduler: built(Peer::KUBE_SCHEDULER)?,
            kubelet: built(Peer::KUBELET)?,
            kube_proxy: built(Peer::KUBE_PROXY)?,
            kubectl: built(Peer::KUBECTL)?,
            helm: built(Peer::HELM)?,
            coredns: built(Peer::COREDNS)?,
            node_cache: built(Peer::NODE_CACHE)?,
        })
    }
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(program).exists())
}
