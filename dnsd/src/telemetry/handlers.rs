//! Where operators ask: the addresses of `admin`, of `prometheus` and of `health`. They are served by a thread of its
//! own, so that a serving thread that hangs is told of.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::{admin, task};
use metrics::{Counter, counter, histogram};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::config::Config;
use crate::takeover::{InheritedSockets, SocketName, SocketPurpose};
use crate::telemetry::admin::AdminState;

/// How often it is tried whether `/health` answers, as CoreDNS does.
const LOOK: Duration = Duration::from_secs(1);
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The listeners.
#[derive(Debug)]
pub struct AdminListeners {
    /// As they were asked for.
    open: BTreeMap<SocketAddr, Open>,
    thread: UnboundedSender<Change>,
}

/// A listener of the thread.
#[derive(Debug)]
struct Open {
    /// As it was bound.
    address: SocketAddr,
    /// A descriptor of the same socket, for a successor.
    kept: TcpListener,
}

/// What the thread is told.
#[derive(Debug)]
enum Change {
    Open(SocketAddr, TcpListener),
    Close(SocketAddr),
    /// The address of `health`, if there is one: whether it answers is looked at.
    Health(Option<SocketAddr>),
}

impl AdminListeners {
    /// Listens nowhere yet.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(operators: Arc<AdminState>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (thread, changes) = unbounded_channel();
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(serve(changes, operators));
            })?;
        Ok(Self {
            open: BTreeMap::new(),
            thread,
        })
    }

    /// Listens where a configuration says; what was inherited is not bound again, and new sockets are bound before
    /// others go.
    ///
    /// # Errors
    /// With the address that cannot be bound; then nothing has changed.
    pub fn adopt(&mut self, config: &Config, inheritance: &mut InheritedSockets) -> io::Result<()> {
        let wanted = wanted(config);
        let mut new = Vec::new();
        for address in wanted.iter().filter(|address| !self.open.contains_key(address)) {
            let name = SocketName {
                purpose: SocketPurpose::Http,
                address: *address,
            };
            let listener = match inheritance.socket(name) {
                Some(socket) => admin::inherit(socket)?,
                None => bind(*address)?,
            };
            let open = Open {
                address: listener.local_addr()?,
                kept: listener.try_clone()?,
            };
            new.push((*address, open, listener));
        }
        let gone: Vec<SocketAddr> = self
            .open
            .keys()
            .filter(|it| !wanted.contains(it))
            .copied()
            .collect();
        for address in gone {
            self.open.remove(&address);
            self.tell(Change::Close(address));
        }
        for (address, open, listener) in new {
            self.open.insert(address, open);
            self.tell(Change::Open(address, listener));
        }
        self.tell(Change::Health(
            config.plan.health.first().map(|health| health.address),
        ));
        Ok(())
    }

    /// Where it listens for what was asked for there.
    #[must_use]
    pub fn address(&self, asked: SocketAddr) -> SocketAddr {
        self.open.get(&asked).map_or(asked, |open| open.address)
    }

    /// Descriptors of all sockets, for a successor.
    ///
    /// # Errors
    /// When no more files may be open.
    pub fn sockets(&self) -> io::Result<Vec<(SocketName, OwnedFd)>> {
        let socket = |(address, open): (&SocketAddr, &Open)| {
            let name = SocketName {
                purpose: SocketPurpose::Http,
                address: *address,
            };
            Ok((name, open.kept.try_clone()?.into()))
        };
        self.open.iter().map(socket).collect()
    }

    /// Listens nowhere any more: a successor does.
    pub fn close(&mut self) {
        for (address, _open) in std::mem::take(&mut self.open) {
            self.tell(Change::Close(address));
        }
    }

    fn tell(&self, change: Change) {
        // The thread ends with the program alone.
        drop(self.thread.send(change));
    }
}

/// All addresses. That of `admin` is not needed where a wildcard has its port: the pages are the same everywhere.
fn wanted(config: &Config) -> BTreeSet<SocketAddr> {
    let plan = &config.plan;
    let health = plan.health.iter().map(|health| health.address);
    let mut wanted: BTreeSet<SocketAddr> = plan.prometheus.iter().copied().chain(health).collect();
    wanted.insert(config.fixed.admin);
    wanted.extend(config.fixed.setup_metrics);
    let wildcards: Vec<SocketAddr> = wanted
        .iter()
        .filter(|it| it.ip().is_unspecified())
        .copied()
        .collect();
    let is_covered = |address: &SocketAddr| {
        let has_port = |wildcard: &&SocketAddr| wildcard.port() == address.port() && address.port() != 0;
        wildcards
            .iter()
            .filter(has_port)
            .any(|wildcard| wildcard != address)
    };
    wanted.retain(|address| address.ip().is_unspecified() || !is_covered(address));
    wanted
}

/// A wildcard means both families where the host has both.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let any = |ip: IpAddr| admin::bind(SocketAddr::new(ip, address.port()));
    let bound = if address.ip().is_unspecified() {
        any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => any(Ipv4Addr::UNSPECIFIED.into()),
            Some(_) | None => Err(error),
        })
    } else {
        admin::bind(address)
    };
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

async fn serve(mut changes: UnboundedReceiver<Change>, operators: Arc<AdminState>) {
    let mut open = BTreeMap::<SocketAddr, JoinHandle<()>>::new();
    let mut health = None;
    let failures = counter!("coredns_health_request_failures_total");
    let mut looks = tokio::time::interval(LOOK);
    loop {
        let change = tokio::select! { change = changes.recv() => change, _ = looks.tick() => { if let Some(address) = health { look(address, & failures).await; } continue; } };
        match change {
            None => return,
            Some(Change::Health(address)) => health = address,
            Some(Change::Close(address)) => {
                if let Some(task) = open.remove(&address) {
                    task.abort();
                }
            }
            Some(Change::Open(address, listener)) => match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    let shown: Arc<dyn admin::AdminHandler> = if operators.shows_setup_at(address) {
                        Arc::new(SetupMetrics(Arc::clone(&operators)))
                    } else {
                        Arc::clone(&operators) as _
                    };
                    let serving = admin::serve(listener, shown);
                    open.insert(address, task::spawn("pages", serving));
                }
                Err(error) => tracing::error!(%address, %error, "the pages cannot be served"),
            },
        }
    }
}

/// What node-cache answers at `-metrics-listen-address`: how setting up goes, and the process. Both ports are scraped by
/// many, and what is at both would be counted twice.
#[derive(Debug)]
struct SetupMetrics(Arc<AdminState>);

impl admin::AdminHandler for SetupMetrics {
    fn health(&self) -> Result<(), String> {
        self.0.health()
    }

    fn readiness(&self) -> Result<String, String> {
        self.0.readiness()
    }

    fn metrics(&self) -> String {
        let whole = self.0.metrics();
        let is_shown = |line: &&str| {
            let name = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
            name.starts_with("coredns_nodecache_") || name.starts_with("process_")
        };
        whole
            .lines()
            .filter(is_shown)
            .map(|line| format!("{line}\n"))
            .collect()
    }

    fn page(&self, path: &str) -> Option<String> {
        self.0.page(path)
    }
}

/// Asks for `/health` as a probe would.
async fn look(address: SocketAddr, failures: &Counter) {
    let begun = Instant::now();
    let answered = timeout(PATIENCE, get(address)).await;
    let span = begun.elapsed();
    histogram!("coredns_health_request_duration_seconds").record(span.as_secs_f64());
    if !matches!(answered, Ok(Ok(()))) {
        failures.increment(1);
        tracing::warn!(%address, ?answered, "the own /health did not answer");
    }
}

async fn get(address: SocketAddr) -> io::Result<()> {
    let to = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
        _single => address,
    };
    let mut stream = TcpStream::connect(to).await?;
    stream
        .write_all(b"GET /health HTTP/1.1\r\nHost: dnsd\r\nConnection: close\r\n\r\n")
        .await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    if status.ends_with(b"200") {
        Ok(())
    } else {
        Err(io::Error::other("it is not well"))
    }
}
