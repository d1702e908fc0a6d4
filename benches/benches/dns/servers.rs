//! The servers that are compared, each with its meter and an upstream of its own. All are on the same CPU.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use egret_integration::node::DNS;
use egret_integration::world::DNSD_ADMIN;
use egret_integration::{Daemon, DaemonSpec, Peer, World};
use nix::sys::socket::{setsockopt, sockopt};

use crate::configurations::{self, Configuration, Ports, next_port};
use crate::generator::{Pace, ask};
use crate::meter::{self, Meter};
use crate::node::{BUFFER, Node, within_node};
use crate::questions;
use crate::threads::{self, QueryCount};

/// Beyond what all rounds bring.
pub(crate) const ROOM: &str = "400000";
/// Something that answers on one address of the node.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) meter: Meter,
    /// The process, where it is not a thread of ours.
    pub(crate) daemon: Option<Daemon>,
    /// Queries to its upstream.
    upstream_queries: QueryCount,
}

impl Server {
    pub(crate) fn upstream_queries(&self) -> usize {
        self.upstream_queries.load(Ordering::Relaxed)
    }

    pub(crate) fn is_echo(&self) -> bool {
        self.daemon.is_none()
    }

    /// Of dnsd: waits until it has heard from the enforcer whose answers have to be held.
    pub(crate) fn wait_for_interest(&self) -> anyhow::Result<()> {
        for _ in 0..200 {
            if self.counted("egret_dnsd_interested_clients")? > 0.0 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("dnsd holds nothing: it has not heard of the policy")
    }

    /// A metric of its process.
    pub(crate) fn counted(&self, metric: &str) -> anyhow::Result<f64> {
        let daemon = self.daemon.as_ref().context("it is no process")?;
        Ok(daemon.metrics()?.sum(metric, &[]))
    }

    /// Answers with addresses that dnsd noted as configuration to pods; nothing of other servers.
    pub(crate) fn observed(&self) -> anyhow::Result<Option<f64>> {
        let is_ours = self.name == "dnsd";
        is_ours
            .then(|| self.counted("egret_dnsd_observations_total"))
            .transpose()
    }
}

const DNSD: u16 = 53;
const UNBOUND: u16 = 5_301;
const DNSDIST: u16 = 5_303;
const NODE_CACHE: u16 = 5_304;
/// How a server is started on a node; none, and a word about it, where it cannot be had.
pub(crate) type Start = fn(&Node, Configuration) -> anyhow::Result<Option<Server>>;

/// All, the floor first.
pub(crate) const STARTS: [Start; 5] = [echo, ours, dnsdist, unbound, node_cache];

/// All that can be had, at once.
pub(crate) fn all(node: &Node, configuration: Configuration) -> anyhow::Result<Vec<Server>> {
    let servers = STARTS
        .into_iter()
        .filter_map(|start| start(node, configuration).transpose());
    servers.collect()
}

/// The floor.
fn echo(node: &Node, _: Configuration) -> anyhow::Result<Option<Server>> {
    let address = SocketAddr::from((DNS, next_port()));
    let socket = within_node(&node.world, move || UdpSocket::bind(address)).context("the echo")?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    Ok(Some(Server {
        name: "echo",
        address,
        meter: threads::echo(socket)?,
        daemon: None,
        upstream_queries: QueryCount::default(),
    }))
}

fn ours(node: &Node, configuration: Configuration) -> anyhow::Result<Option<Server>> {
    dnsd(&node.world, configuration).map(Some)
}

/// dnsd as an operator has it who named the host's search domain among the zones of its cuts.
pub(crate) fn ours_with_search_domain(
    node: &Node,
    configuration: Configuration,
) -> anyhow::Result<Option<Server>> {
    let options = ["--nxdomain-cut-zone", "ec2.internal"];
    dnsd_with("dnsd, search domain named", &node.world, configuration, &options).map(Some)
}

/// dnsd where it is not known what the host searches in, or nobody knows who gives names there.
pub(crate) fn ours_without_search_domain(
    node: &Node,
    configuration: Configuration,
) -> anyhow::Result<Option<Server>> {
    let options = ["--nxdomain-cut-search", "none"];
    dnsd_with(
        "dnsd, search domain unknown",
        &node.world,
        configuration,
        &options,
    )
    .map(Some)
}

/// dnsd of this build, metrics and limits on, joined to the enforcer, with the `search` line of the node whose pods ask.
pub(crate) fn dnsd(world: &World, configuration: Configuration) -> anyhow::Result<Server> {
    let file = world.files().join("resolv.conf");
    fs::write(&file, "search ec2.internal\n")?;
    let options = ["--nxdomain-cut-search", &file.display().to_string()];
    dnsd_with("dnsd", world, configuration, &options)
}

/// The same on so many threads; what the host searches in makes no difference here.
pub(crate) fn dnsd_of_threads(world: &World, threads: &str) -> anyhow::Result<Server> {
    dnsd_with("dnsd", world, Configuration::Large, &["--threads", threads])
}

fn dnsd_with(
    name: &'static str,
    world: &World,
    configuration: Configuration,
    options: &[&str],
) -> anyhow::Result<Server> {
    let (file, ports) = (world.files().join("Corefile"), Ports::of(DNSD));
    fs::write(&file, configurations::corefile(configuration, ports))?;
    let mut spec = DaemonSpec::dnsd(DNSD_ADMIN)
        .in_folder(release_folder()?)
        .with(["--corefile".into(), file.display().to_string()])
        .with(["--link".into(), world.link().display().to_string()])
        .with(options.iter().copied());
    if configuration == Configuration::Large {
        spec = spec
            .with(["--records-per-client", ROOM, "--records-total", ROOM])
            .with(["--max-udp-size", "4096", "--cache-size", "256MiB"]);
    }
    let queries = upstream(world, ports.upstream)?;
    started(name, ports, queries, || Ok(world.start(spec)?))
}

fn unbound(node: &Node, _: Configuration) -> anyhow::Result<Option<Server>> {
    let ports = Ports::of(UNBOUND);
    let configuration = configurations::unbound(ports);
    stock(node, "unbound", "-V", ports, &["-d", "-c"], &configuration)
}

fn dnsdist(node: &Node, _: Configuration) -> anyhow::Result<Option<Server>> {
    let arguments = ["--supervised", "--disable-syslog", "-C"];
    let ports = Ports::of(DNSDIST);
    let configuration = configurations::dnsdist(ports);
    stock(node, "dnsdist", "--version", ports, &arguments, &configuration)
}

/// It writes what it serves beside the file that it is given, and sets up neither interface nor rules: they are there.
fn node_cache(node: &Node, configuration: Configuration) -> anyhow::Result<Option<Server>> {
    let Some(binary) = Peer::NODE_CACHE.build()? else {
        return Ok(None);
    };
    let (base, file) = (
        node.world.files().join("Corefile.base"),
        node.world.files().join("Corefile.node-cache"),
    );
    let ports = Ports::of(NODE_CACHE);
    fs::write(&base, configurations::corefile(configuration, ports))?;
    let address = DNS.to_string();
    let flags = [
        "-localip",
        &address,
        "-setupinterface=false",
        "-setupiptables=false",
        "-basecorefile",
    ];
    let mut spec = DaemonSpec::stock("node-cache", ports.own, "none")
        .with(flags)
        .with([base.display().to_string()])
        .with(["-conf".to_owned(), file.display().to_string()]);
    spec.binary = binary;
    let queries = upstream(&node.world, ports.upstream)?;
    let server = started("node-cache", ports, queries, || Ok(node.world.launch(spec)?))?;
    wait_until_it_answers(node, &server)?;
    Ok(Some(server))
}

/// Starts a program of the host with a configuration; none, and a word about it, where it is not installed.
fn stock(
    node: &Node,
    name: &'static str,
    probe: &str,
    ports: Ports,
    arguments: &[&str],
    configuration: &str,
) -> anyhow::Result<Option<Server>> {
    let probe = Command::new(name)
        .arg(probe)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if probe.is_err() {
        println!("NOT COMPARED: {name} is not installed (apt-get install {name})");
        return Ok(None);
    }
    let file = node.world.files().join(format!("{name}.conf"));
    fs::write(&file, configuration)?;
    let spec = DaemonSpec::stock(name, ports.own, "none")
        .with(arguments.iter().copied())
        .with([file.display().to_string()]);
    let queries = upstream(&node.world, ports.upstream)?;
    let server = started(name, ports, queries, || Ok(node.world.launch(spec)?))?;
    wait_until_it_answers(node, &server)?;
    Ok(Some(server))
}

fn started(
    name: &'static str,
    ports: Ports,
    upstream_queries: QueryCount,
    start: impl FnOnce() -> anyhow::Result<Daemon>,
) -> anyhow::Result<Server> {
    let daemon = meter::on_the_servers_cpu(start)?;
    Ok(Server {
        name,
        address: SocketAddr::from((DNS, ports.own)),
        meter: Meter::Process(daemon.pid()),
        daemon: Some(daemon),
        upstream_queries,
    })
}

/// Its buffer is as large as dnsd's: what is lost here would be asked again by some servers and not by others.
fn upstream(world: &World, port: u16) -> anyhow::Result<QueryCount> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let udp = within_node(world, move || UdpSocket::bind(address))?;
    setsockopt(&udp, sockopt::RcvBufForce, &BUFFER)?;
    let tcp = within_node(world, move || TcpListener::bind(address))?;
    threads::upstream(udp, tcp)
}

fn wait_until_it_answers(node: &Node, server: &Server) -> anyhow::Result<()> {
    let sockets = node.sockets(server.address, 1)?;
    let question = questions::of_numbers("hit.example.test", 0..1);
    for _ in 0..100 {
        // Until it listens, the answer is "connection refused".
        if ask(&sockets, Pace::Window(1), &question).is_ok_and(|run| run.answered == 1) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = server.daemon.as_ref().map(Daemon::log).unwrap_or_default();
    anyhow::bail!("{} does not answer; it said:\n{log}", server.name)
}

/// Where the daemons of this build are: a bench runs in `<profile>/deps`.
pub(crate) fn release_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EGRET_BIN_DIR") {
        return Ok(folder.into());
    }
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("a bench runs in a folder")?;
    Ok(folder.to_owned())
}
