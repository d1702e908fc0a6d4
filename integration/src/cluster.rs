//! A cluster on this machine: etcd, an API server, controllers, a scheduler and three nodes with kubelet, containerd and kube-proxy, each in
//! namespaces of its own, with IPv4, IPv6 or both. The Helm chart is installed with the image of this source, and a policy with a name is shown.

mod backends;
mod control_plane;
mod image;
mod konnectivity;
mod kubectl;
mod machine;
mod network;
mod node;
mod node_local_dns;
mod objects;
mod outages;
mod plot;
mod plugin;
mod preconditions;
mod proxy_server;
mod story;
mod traffic;
mod uninstall;
mod upgrade;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use crate::demo::{Ending, Screen, Stop};

use self::{
    control_plane::ControlPlane, image::Images, kubectl::Kubectl, node::Node, preconditions::Programs,
};

pub use machine::init;
pub use network::Network;

/// Nodes, counted from 1: their number is in their addresses.
const NODES: [u8; 3] = [1, 2, 3];

type Failure = Box<dyn std::error::Error>;

/// The parts of a cluster. Everything of it has ended when it is dropped.
struct Cluster {
    // Nodes end first: their kubelets would see the API server go.
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    network: Network,
    screen: Screen,
    folder: Folder,
}

/// Starts the cluster, installs the chart and plays the story; with `keep`, everything stays until Ctrl-C or SIGTERM.
///
/// # Errors
/// When a part is missing on this machine, or does not become ready: with its name and the end of its log.
pub fn run(network: Network, keep: bool) -> Result<Ending, Failure> {
    let begun = Instant::now();
    let stop = Stop::listen()?;
    let screen = Screen::of_stdout();
    let programs = Programs::find(screen)?;
    let result =
        Cluster::start(&programs, network, screen, &stop).and_then(|cluster| cluster.play(keep, &stop));
    match result {
        Ok(all_as_expected) => {
            let seconds = begun.elapsed().as_secs();
            screen.plain(&format!("\nEverything has ended, after {seconds} s."));
            Ok(if all_as_expected {
                Ending::AsExpected
            } else {
                Ending::Differs
            })
        }
        Err(_) if stop.was_asked() => Ok(Ending::Interrupted),
        Err(error) => Err(error),
    }
}

impl Cluster {
    fn start(programs: &Programs, network: Network, screen: Screen, stop: &Stop) -> Result<Self, Failure> {
        let folder = Folder::new()?;
        screen.heading("The control plane");
        let images = Images::build(programs, &folder.0, screen)?;
        let control_plane = ControlPlane::start(programs, network, &folder.0, stop)?;
        screen.line("etcd, kube-apiserver, proxy-server, kube-controller-manager, kube-scheduler run");
        screen.heading("The nodes");
        let mut cluster = Self {
            nodes: Vec::new(),
            control_plane,
            network,
            screen,
            folder,
        };
        for number in NODES {
            let node = Node::start(
                number,
                programs,
                network,
                &cluster.control_plane,
                &cluster.folder.0,
                &images,
            )?;
            cluster.nodes.push(node);
        }
        cluster.connect_nodes()?;
        let kubectl = cluster.kubectl();
        until(stop, "all nodes are Ready", Duration::from_secs(120), || {
            let ready = kubectl.get(&[
                "nodes",
                "-o",
                "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}",
            ])?;
            Ok(ready
                .split_whitespace()
                .filter(|&status| status == "True")
                .count()
                == NODES.len())
        })
        .map_err(|error| format!("{error}\n{}", cluster.logs()))?;
        screen.output(&kubectl.get(&["nodes", "-o", "wide"])?);
        Ok(cluster)
    }

    fn play(mut self, keep: bool, stop: &Stop) -> Result<bool, Failure> {
        let played = plot::play(&mut self, keep, stop);
        let as_expected = played.map_err(|error| format!("{error}\n{}", self.logs()))?;
        if keep && !stop.was_asked() {
            self.screen.heading("It runs until Ctrl-C");
            self.screen.plain(&self.kubectl().how_to_use());
            stop.wait();
        }
        Ok(as_expected)
    }

    fn kubectl(&self) -> Kubectl {
        self.control_plane.kubectl()
    }

    /// Pods of one node are reached by the addresses of that node.
    fn connect_nodes(&self) -> Result<(), Failure> {
        for node in &self.nodes {
            let addresses = node.addresses();
            let others = self.nodes.iter().filter(|other| other.addresses() != addresses);
            let machines = others.map(Node::machine).chain([self.control_plane.machine()]);
            for machine in machines {
                for (pods, address) in node.pods().iter().zip(&addresses) {
                    machine.ip(&["route", "add", pods, "via", &address.to_string()])?;
                }
            }
        }
        Ok(())
    }

    /// The end of each program's log.
    fn logs(&self) -> String {
        let machines = self.nodes.iter().map(Node::machine);
        machines
            .chain([self.control_plane.machine()])
            .map(machine::Machine::logs)
            .collect()
    }
}

/// Where the cluster keeps its files; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    /// Below `target`; in a container that is often an overlay, which cannot carry another one: then below the folder for temporary files.
    fn new() -> Result<Self, Failure> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cluster");
        let temporary = std::env::temp_dir().join("egret-cluster");
        for parent in [&target, &temporary] {
            fs::create_dir_all(parent)?;
            if statfs(parent)?.filesystem_type() == OVERLAYFS_SUPER_MAGIC {
                continue;
            }
            let path = parent.canonicalize()?.join(std::process::id().to_string());
            fs::create_dir(&path)?;
            return Ok(Self(path));
        }
        Err(format!(
            "{} and {} are on overlayfs, which cannot carry the overlays of the nodes; TMPDIR names another folder",
            target.display(),
            temporary.display()
        )
        .into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// Polls until it is so. An error of one look counts as "not yet", and is part of the message in the end.
fn until(
    stop: &Stop,
    what: &str,
    patience: Duration,
    mut is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let seen = is_so();
        if matches!(seen, Ok(true)) {
            return Ok(());
        }
        if stop.was_asked() {
            return Err("interrupted".into());
        }
        if begun.elapsed() > patience {
            let last = seen.err().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(format!("not within {patience:?}: {what}{last}").into());
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}
