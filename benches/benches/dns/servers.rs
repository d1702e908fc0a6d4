//! The servers that are compared, each with its meter, and the sockets to ask them with, all inside a world.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use egret_integration::node::DNS;
use egret_integration::world::DNSD_ADMIN;
use egret_integration::{Daemon, DaemonSpec, Pod, World};
use nix::sched::{CloneFlags, setns};

use crate::generator::{self, ask};
use crate::meter::{self, Meter};
use crate::responders;

const UPSTREAM: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 5300);
const UNBOUND: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 5301);
const ECHO: (Ipv4Addr, u16) = (DNS, 5302);
/// Different ports, as many clients have.
const SOCKETS: usize = 16;

/// Something that answers on one address.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) meter: Meter,
    /// The process, where it is not a thread of ours.
    pub(crate) daemon: Option<Daemon>,
}

/// The floor.
pub(crate) fn echo(world: &World) -> anyhow::Result<Server> {
    Ok(Server {
        name: "echo (floor)",
        address: ECHO.into(),
        meter: responders::echo(bind(world, ECHO.into())?)?,
        daemon: None,
    })
}

/// dnsd, forwarding to an upstream of ours.
pub(crate) fn dnsd(world: &World, arguments: &[&str]) -> anyhow::Result<Server> {
    responders::upstream(bind(world, UPSTREAM.into())?)?;
    let address = SocketAddr::from((DNS, 53));
    let spec = DaemonSpec::dnsd(DNSD_ADMIN)
        .in_folder(release_folder()?)
        .with(["--listen".into(), address.to_string()])
        .with(["--upstream".into(), SocketAddr::from(UPSTREAM).to_string()])
        .with(["--link".into(), world.link().display().to_string()])
        .with(arguments.iter().copied());
    pinned("dnsd", address, world.start(spec)?)
}

/// The enforcer with its netfilter backend, on the same CPU as dnsd.
pub(crate) fn enforcer(world: &World, arguments: &[&str]) -> anyhow::Result<(Daemon, Meter)> {
    let spec = world.enforcer("netfilter").in_folder(release_folder()?);
    let daemon = world.start(spec.with(arguments.iter().copied()))?;
    let meter = Meter::Process(daemon.pid());
    meter.pin(meter::SERVERS)?;
    Ok((daemon, meter))
}

/// Debian's unbound on one thread, forwarding to the same upstream as dnsd; none, and a word about it, where it is not
/// installed.
pub(crate) fn unbound(world: &World) -> anyhow::Result<Option<Server>> {
    let probe = Command::new("unbound").arg("-V").stdout(Stdio::null()).status();
    if probe.is_err() {
        println!("NOT COMPARED: unbound is not installed (apt-get install unbound)");
        return Ok(None);
    }
    let file = world.files().join("unbound.conf");
    fs::write(&file, unbound_configuration())?;
    let spec = DaemonSpec::stock("unbound", UNBOUND.1, "none").with([
        "-d".into(),
        "-c".into(),
        file.display().to_string(),
    ]);
    let server = pinned("unbound", UNBOUND.into(), world.launch(spec)?)?;
    wait_until_it_answers(world, &server)?;
    Ok(Some(server))
}

/// Sockets of the node towards a server.
pub(crate) fn node_sockets(world: &World, to: SocketAddr) -> anyhow::Result<Vec<UdpSocket>> {
    let connected = move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(to)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    (0..SOCKETS).map(|_| within_node(world, connected)).collect()
}

/// Sockets of a pod towards a server.
pub(crate) fn pod_sockets(pod: &Pod, to: SocketAddr) -> anyhow::Result<Vec<UdpSocket>> {
    let sockets = (0..SOCKETS).map(|_| {
        let socket = pod.udp_socket(to)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    sockets.collect()
}

fn pinned(name: &'static str, address: SocketAddr, daemon: Daemon) -> anyhow::Result<Server> {
    let meter = Meter::Process(daemon.pid());
    meter.pin(meter::SERVERS)?;
    Ok(Server {
        name,
        address,
        meter,
        daemon: Some(daemon),
    })
}

fn wait_until_it_answers(world: &World, server: &Server) -> anyhow::Result<()> {
    let sockets = node_sockets(world, server.address)?;
    let question = generator::questions("hit.example.test", 0..1);
    for _ in 0..100 {
        // Until it listens, the answer is "connection refused".
        if ask(&sockets[..1], 1, &question).is_ok_and(|run| run.answered == 1) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = server.daemon.as_ref().map(Daemon::log).unwrap_or_default();
    anyhow::bail!("{} does not answer; it said:\n{log}", server.name)
}

fn bind(world: &World, address: SocketAddr) -> anyhow::Result<UdpSocket> {
    within_node(world, move || UdpSocket::bind(address)).with_context(|| format!("bind {address}"))
}

/// A socket belongs to the namespace in which it was made, not to that of the thread that uses it.
fn within_node(
    world: &World,
    make: impl FnOnce() -> std::io::Result<UdpSocket> + Send,
) -> anyhow::Result<UdpSocket> {
    let node = File::open(format!("/run/netns/{}", world.node().namespace()))?;
    let make = move || {
        setns(node, CloneFlags::CLONE_NEWNET)?;
        make()
    };
    let made = std::thread::scope(|scope| scope.spawn(make).join());
    Ok(made.expect("making a socket does not panic")?)
}

/// Where the daemons of this build are: a bench runs in `<profile>/deps`.
fn release_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("EGRET_BIN_DIR") {
        return Ok(folder.into());
    }
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("a bench runs in a folder")?;
    Ok(folder.to_owned())
}

/// As dnsd: it forwards, keeps what it got, and validates no signatures.
fn unbound_configuration() -> String {
    format!(
        "server:\n  interface: {}\n  port: {}\n  access-control: 0.0.0.0/0 allow\n  num-threads: 1\n  \
         module-config: iterator\n  do-not-query-localhost: no\n  do-daemonize: no\n  use-syslog: no\n  \
         username: \"\"\n  chroot: \"\"\n  directory: \"/\"\n  pidfile: \"\"\n  qname-minimisation: no\n  \
         so-rcvbuf: 4m\n  outgoing-range: 8192\n  num-queries-per-thread: 4096\n  msg-cache-size: 32m\n  \
         rrset-cache-size: 64m\n  local-zone: \"test.\" transparent\n  do-ip6: no\n\
         remote-control:\n  control-enable: no\n\
         forward-zone:\n  name: \".\"\n  forward-addr: {}@{}\n",
        UNBOUND.0, UNBOUND.1, UPSTREAM.0, UPSTREAM.1
    )
}
