//! The listeners of the operators' pages: the addresses of `admin`, `prometheus` and `health`. They have a thread of
//! their own, so that it can report a serving thread that hangs.

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

/// How often `/health` is probed, as in CoreDNS.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The listeners.
#[derive(Debug)]
pub struct AdminListeners {
    /// By configured address.
    open: BTreeMap<SocketAddr, AdminListener>,
    thread: UnboundedSender<Change>,
}

/// A listener of the thread.
#[derive(Debug)]
struct AdminListener {
    /// The bound address.
    address: SocketAddr,
    /// A descriptor of the same socket, for a new process.
    kept: TcpListener,
}

/// A command to the thread.
#[derive(Debug)]
enum Change {
    Open(SocketAddr, TcpListener),
    Close(SocketAddr),
    /// The address of `health`, if there is one: it is probed.
    Health(Option<SocketAddr>),
}

/// Bound sockets that nothing is accepted from yet.
#[derive(Debug)]
pub struct BoundAdmin(Vec<(SocketAddr, AdminListener, TcpListener)>);

impl BoundAdmin {
    /// Listens at the addresses of a configuration. Inherited sockets are not bound again.
    ///
    /// # Errors
    /// With the address that cannot be bound.
    pub fn bind(config: &Config, inheritance: &mut InheritedSockets) -> io::Result<Self> {
        Self::bind_all(wanted(config), inheritance)
    }

    fn bind_all(
        addresses: impl IntoIterator<Item = SocketAddr>,
        inheritance: &mut InheritedSockets,
    ) -> io::Result<Self> {
        let mut bound = Vec::new();
        for address in addresses {
            let name = SocketName {
                purpose: SocketPurpose::Http,
                address,
            };
            let listener = match inheritance.socket(name) {
                Some(socket) => admin::inherit(socket)?,
                None => bind(address)?,
            };
            let open = AdminListener {
                address: listener.local_addr()?,
                kept: listener.try_clone()?,
            };
            bound.push((address, open, listener));
        }
        Ok(Self(bound))
    }
}

impl AdminListeners {
    /// Serves at the addresses of a configuration, which are bound.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(operators: Arc<AdminState>, config: &Config, bound: BoundAdmin) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (thread, changes) = unbounded_channel();
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(serve(changes, operators));
            })?;
        let mut listeners = Self {
            open: BTreeMap::new(),
            thread,
        };
        listeners.add(config, bound);
        Ok(listeners)
    }

    /// Listens at the addresses of another configuration. New sockets are bound before others are closed.
    ///
    /// # Errors
    /// With the address that cannot be bound; nothing changes then.
    pub fn adopt(&mut self, config: &Config) -> io::Result<()> {
        let wanted = wanted(config);
        let new = wanted.iter().filter(|address| !self.open.contains_key(address));
        let bound = BoundAdmin::bind_all(new.copied(), &mut InheritedSockets::none())?;
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
        self.add(config, bound);
        Ok(())
    }

    fn add(&mut self, config: &Config, bound: BoundAdmin) {
        for (address, open, listener) in bound.0 {
            self.open.insert(address, open);
            self.tell(Change::Open(address, listener));
        }
        self.tell(Change::Health(
            config.plan.health.first().map(|health| health.address),
        ));
    }

    /// The bound address of a configured one.
    #[must_use]
    pub fn address(&self, asked: SocketAddr) -> SocketAddr {
        self.open.get(&asked).map_or(asked, |open| open.address)
    }

    /// Descriptors of all sockets, for a new process.
    ///
    /// # Errors
    /// When no more files may be open.
    pub fn sockets(&self) -> io::Result<Vec<(SocketName, OwnedFd)>> {
        let socket = |(address, open): (&SocketAddr, &AdminListener)| {
            let name = SocketName {
                purpose: SocketPurpose::Http,
                address: *address,
            };
            Ok((name, open.kept.try_clone()?.into()))
        };
        self.open.iter().map(socket).collect()
    }

    /// Closes all listeners: a new process has them.
    pub fn close(&mut self) {
        for (address, _open) in std::mem::take(&mut self.open) {
            self.tell(Change::Close(address));
        }
    }

    fn tell(&self, change: Change) {
        // The thread ends only with the program.
        drop(self.thread.send(change));
    }
}

/// All configured addresses. That of `admin` is left out if a wildcard has its port: the pages are the same at all
/// addresses.
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

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    admin::bind(address)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

async fn serve(mut changes: UnboundedReceiver<Change>, operators: Arc<AdminState>) {
    let mut open = BTreeMap::<SocketAddr, JoinHandle<()>>::new();
    let mut health = None;
    let failures = counter!("coredns_health_request_failures_total");
    let mut looks = tokio::time::interval(PROBE_INTERVAL);
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            _ = looks.tick() => {
                if let Some(address) = health {
                    probe(address, &failures).await;
                }
                continue;
            }
        };
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

/// node-cache's page at `-metrics-listen-address`: setup errors and the process. Both ports are usually scraped, and
/// metrics at both would be counted twice.
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

/// Probes `/health`.
async fn probe(address: SocketAddr, failures: &Counter) {
    let begun = Instant::now();
    let answered = timeout(PROBE_TIMEOUT, get(address)).await;
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
