//! The agent's edge: one stream to each server, connections to where the servers ask for.

mod guard;
mod health;
mod leases;
mod options;
mod servers;
mod session;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::{task, telemetry};

pub use guard::{Guard, NotAllowed};
pub use health::BUCKETS;
pub use options::{InvalidOptions, Options};

use crate::admin;
use crate::tls::TlsError;
use health::Health;
use servers::Servers;

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// An agent that runs.
#[derive(Debug)]
pub struct Agent {
    servers: Arc<Servers>,
}

impl Agent {
    /// Listens for its operators, and connects to servers from now on.
    ///
    /// # Errors
    /// When options, files or addresses cannot be used.
    pub fn start(options: Options, metrics: telemetry::Metrics) -> Result<Self, StartError> {
        let (health, local) = options.listeners()?;
        let counted = options.counted_leases()?;
        let servers = Arc::new(Servers::new(options.settings()?));
        let handler: Arc<dyn AdminHandler> = Arc::new(Health::new(Arc::clone(&servers), metrics));
        admin::serve([health, local], &handler)
            .map_err(|(address, source)| StartError::Listen { address, source })?;
        task::spawn("servers", Arc::clone(&servers).keep_connected());
        if let Some((api_server, place)) = counted {
            let servers = Arc::clone(&servers);
            let tell = move |count| servers.set_count_of_leases(count);
            task::spawn("leases", leases::count(api_server, place, tell));
        }
        Ok(Self { servers })
    }

    /// Asks the servers for no further dials, and returns when no connection is left.
    pub async fn drain(&self) {
        self.servers.drain().await;
    }
}
