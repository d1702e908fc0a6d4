//! The server's edge: agents on one side, clients on the other.

mod agents;
mod audit;
mod authority;
mod client_hello;
mod cluster;
mod connect;
mod dialer;
mod first_octets;
mod gate;
mod health;
mod hub;
mod identity;
mod lease;
mod open_tunnels;
mod options;
mod policy;
mod proxy;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::{allocator, task, telemetry};
use nix::sys::stat::{Mode, umask};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::rustls::ServerConfig;

pub use authority::{AuthorityError, AuthorityRewriter, Rewritten};
pub use client_hello::{Hello, NoServerName, read as read_client_hello};
pub use health::BUCKETS;
pub use options::{InvalidOptions, Options};

use crate::admin;
use crate::tls::{self, Identity, Reloaded, TlsError};
use audit::AuditLog;
use dialer::Dialer;
use gate::Gate;
use health::Health;
use hub::Hub;
use options::{Front, FrontSettings, Mode as FrontMode};

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{what}: {source}")]
    Listen { what: String, source: io::Error },
}

/// A server that runs, as long as the runtime does.
#[derive(Debug)]
pub struct Running {
    hub: Arc<Hub>,
    lease: Option<(watch::Sender<bool>, JoinHandle<()>)>,
    shutdown: Duration,
}

impl Running {
    /// Takes the server's Lease back, and gives connections the time that they have to end.
    pub async fn stop(self) {
        if let Some((stop, keeper)) = self.lease {
            stop.send_replace(true);
            if let Err(error) = keeper.await {
                tracing::error!(%error, "the keeper of the lease ended early");
            }
        }
        let ended = async {
            while self.hub.with(|server| server.connections()) > 0 {
                tokio::time::sleep(STOP_POLL).await;
            }
        };
        if tokio::time::timeout(self.shutdown, ended).await.is_err() && !self.shutdown.is_zero() {
            tracing::warn!("connections are cut: they take too long");
        }
    }
}

const STOP_POLL: Duration = Duration::from_millis(50);

/// Listens; returns when everything is bound.
///
/// # Errors
/// When options, files or addresses cannot be used.
pub fn start(options: Options, metrics: telemetry::Metrics) -> Result<Running, StartError> {
    let settings = options.settings()?;
    let hub = Arc::new(Hub::new(settings.strategies.clone(), settings.zone.clone()));
    let agents = settings.agent_tls.clone();
    let agents = Arc::new(agents.reloaded(&[b"h2"])?);
    let health = Health::new(Arc::clone(&hub), &settings.strategies, metrics);
    let health: Arc<dyn AdminHandler> = Arc::new(health);
    admin::serve([settings.health, settings.admin], &health)
        .map_err(|(address, source)| failed(address)(source))?;
    let audit = AuditLog::open(settings.audit_log.as_deref()).map_err(failed("--audit-log"))?;
    let gate = Gate::start(settings.policies.clone(), settings.objects.as_ref());
    let gate = gate.map_err(failed("--egress-source"))?;
    for front in &settings.fronts {
        let dialer = Dialer {
            hub: Arc::clone(&hub),
            gate: Arc::clone(&gate),
            audit: audit.clone(),
            selection: front.selection,
            timeout: settings.dial_timeout,
        };
        start_front(front, Arc::new(dialer))?;
    }
    task::spawn("memory", give_back(Arc::clone(&gate)));
    let listener = bind(settings.agents)?;
    task::spawn(
        "agents",
        agents::serve(listener, agents, Arc::clone(&hub), Arc::new(settings.shared)),
    );
    let lease = settings.lease.map(|keeper| {
        let stop = watch::Sender::new(false);
        let keeper = task::spawn("lease", keeper.run(stop.subscribe()));
        (stop, keeper)
    });
    Ok(Running {
        hub,
        lease,
        shutdown: settings.shutdown,
    })
}

const GIVES_BACK_EVERY: Duration = Duration::from_secs(10);
/// So many connections may leave free memory behind.
const CONNECTIONS_BETWEEN: u64 = 1_000;

/// Gives back to the kernel what connections held. glibc keeps it, and more with each time in which more octets wait than ever before.
async fn give_back(gate: Arc<Gate>) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(GIVES_BACK_EVERY).await;
        let opened = gate.opened();
        if opened - seen >= CONNECTIONS_BETWEEN
            && let Ok(()) = tokio::task::spawn_blocking(allocator::trim).await
        {
            seen = opened;
        }
    }
}

/// Files of a listener by TLS.
#[derive(Clone, Debug)]
struct ServerFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// Without, clients show no certificate.
    client_authorities: Option<PathBuf>,
}

impl ServerFiles {
    fn reloaded(self, alpn: &'static [&'static [u8]]) -> Result<Reloaded<ServerConfig>, TlsError> {
        let mut files = vec![self.certificate.clone(), self.key.clone()];
        files.extend(self.client_authorities.clone());
        Reloaded::new(files, move || {
            let identity = Identity {
                certificate: &self.certificate,
                key: &self.key,
            };
            tls::server(identity, self.client_authorities.as_deref(), alpn)
        })
    }
}

fn start_front(settings: &FrontSettings, dialer: Arc<Dialer>) -> Result<(), StartError> {
    match (&settings.front, settings.mode) {
        (
            Front::Uds {
                path,
                delete_existing,
            },
            mode,
        ) => {
            let listener = bind_uds(path, *delete_existing).map_err(failed(path.display()))?;
            match mode {
                FrontMode::HttpConnect => {
                    task::spawn("front", connect::serve_uds(listener, dialer));
                }
                FrontMode::Grpc => {
                    task::spawn("front", proxy::serve(listener, dialer));
                }
            }
        }
        (
            Front::Tcp {
                address,
                cert,
                key,
                ca,
            },
            _,
        ) => {
            let files = ServerFiles {
                certificate: cert.clone(),
                key: key.clone(),
                client_authorities: Some(ca.clone()),
            };
            let tls = Arc::new(files.reloaded(&[b"http/1.1"])?);
            let listener = bind(*address)?;
            task::spawn("front", connect::serve_tcp(listener, tls, dialer));
        }
    }
    Ok(())
}

fn bind(address: std::net::SocketAddr) -> Result<TcpListener, StartError> {
    let listener = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    listener.map_err(failed(address))
}

/// For the owner and the group alone from its first moment, as upstream's.
fn bind_uds(path: &Path, delete_existing: bool) -> io::Result<UnixListener> {
    if delete_existing {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    let before = umask(Mode::S_IRWXO);
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

fn failed(what: impl ToString) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Listen {
        what: what.to_string(),
        source,
    }
}

/// After an error of `accept`, which is not of the listener but of a connection or of the process' limits.
async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "a connection cannot be accepted");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// What is said in both places.
pub(crate) fn require(path: Option<PathBuf>, flag: &'static str) -> Result<PathBuf, InvalidOptions> {
    path.filter(|path| !path.as_os_str().is_empty())
        .ok_or(InvalidOptions::Missing(flag))
}
