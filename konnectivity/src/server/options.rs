//! The server's flags, named as upstream's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use egret_policies::model::api_server::Selection;

use super::agents::Shared;
use super::policy::{Baseline, PolicySource};
use super::require;
use crate::core::{InvalidStrategy, Strategy};
use crate::options::{LogFlags, duration, identity, listen_address, path};

/// The API server's network proxy: takes connections of a kube-apiserver and has agents make them.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy-server", version)]
pub struct Options {
    /// What clients speak.
    #[arg(long, value_enum, default_value = "grpc")]
    mode: Mode,
    /// Unix socket for clients; needs --server-port=0.
    #[arg(long, default_value = "", value_parser = path)]
    uds_name: PathBuf,
    /// Removes a file that is in the place of the socket.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    delete_existing_uds_file: bool,
    /// Port for clients by TLS; 0 with --uds-name.
    #[arg(long, default_value_t = 8090)]
    server_port: u16,
    #[arg(long, default_value = "")]
    server_bind_address: String,
    /// Certificate for clients by TLS.
    #[arg(long, value_parser = path)]
    server_cert: Option<PathBuf>,
    #[arg(long, value_parser = path)]
    server_key: Option<PathBuf>,
    /// Authorities of clients by TLS.
    #[arg(long, value_parser = path)]
    server_ca_cert: Option<PathBuf>,
    /// Port for agents.
    #[arg(long, default_value_t = 8091)]
    agent_port: u16,
    #[arg(long, default_value = "")]
    agent_bind_address: String,
    /// Certificate for agents.
    #[arg(long, value_parser = path)]
    cluster_cert: Option<PathBuf>,
    #[arg(long, value_parser = path)]
    cluster_key: Option<PathBuf>,
    /// Authorities of agents.
    #[arg(long, value_parser = path)]
    cluster_ca_cert: Option<PathBuf>,
    /// Port of /healthz, /readyz and /metrics.
    #[arg(long, default_value_t = 8092)]
    health_port: u16,
    #[arg(long, default_value = "")]
    health_bind_address: String,
    /// The same on the machine itself.
    #[arg(long, default_value_t = 8095)]
    admin_port: u16,
    #[arg(long, default_value = "127.0.0.1")]
    admin_bind_address: String,
    /// How agents are chosen, the first that finds one: default, destHost, defaultRoute.
    #[arg(long, default_value = "default")]
    proxy_strategies: String,
    /// What agents tell servers apart by; random unless given.
    #[arg(long, env = "PROXY_SERVER_ID", default_value = "")]
    server_id: String,
    /// How many servers there are.
    #[arg(long, default_value_t = 1)]
    server_count: u32,
    /// How often agents are asked whether they are there; they have 20 s to answer.
    #[arg(long, default_value = "10s", value_parser = duration)]
    keepalive_time: Duration,
    /// How long an agent may take to answer a dial; 0 is without limit.
    #[arg(long, default_value = "20s", value_parser = duration)]
    backend_dial_timeout: Duration,
    /// File or folder of APIServerEgressPolicies and of objects of the cluster that they ask for; read again when it changes.
    #[arg(long, value_parser = path)]
    egress_policy: Option<PathBuf>,
    /// For what clients ask, as policies name it: controlplane, cluster or etcd.
    #[arg(long, default_value = "cluster")]
    egress_selection: Selection,
    /// What becomes of connections to link-local addresses, metadata services and loopback that no policy speaks of.
    #[arg(long, value_enum, default_value = "audit")]
    egress_baseline: Baseline,
    /// Where each connection is recorded, as JSON lines; - is the standard output.
    #[arg(long, value_parser = path)]
    audit_log: Option<PathBuf>,
    /// Not served yet: tokens of agents. Anything but nothing is refused.
    #[arg(long, default_value = "")]
    agent_namespace: String,
    #[arg(long, default_value = "")]
    agent_service_account: String,
    #[arg(long, default_value = "")]
    authentication_audience: String,
    #[arg(long, default_value = "", hide = true)]
    kubeconfig: String,
    #[command(flatten)]
    log: LogFlags,
}

/// What clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    Grpc,
    HttpConnect,
}

/// Why flags are refused.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0}")]
    Value(String),
    #[error("--proxy-strategies: {0}")]
    Strategy(#[from] InvalidStrategy),
}

/// What the flags mean.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    pub(super) front: Front,
    pub(super) agents: SocketAddr,
    pub(super) health: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) cluster_cert: PathBuf,
    pub(super) cluster_key: PathBuf,
    pub(super) cluster_ca: PathBuf,
    pub(super) strategies: Vec<Strategy>,
    pub(super) dial_timeout: Option<Duration>,
    pub(super) policies: PolicySource,
    pub(super) selection: Selection,
    pub(super) audit_log: Option<PathBuf>,
    shared: Shared,
}

/// Where clients come from.
#[derive(Clone, Debug)]
pub(super) enum Front {
    Uds {
        path: PathBuf,
        delete_existing: bool,
    },
    Tcp {
        address: SocketAddr,
        cert: PathBuf,
        key: PathBuf,
        ca: PathBuf,
    },
}

impl Settings {
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::new(self.shared.clone())
    }
}

impl Options {
    pub(super) fn settings(self) -> Result<Settings, InvalidOptions> {
        let tokens = [
            &self.agent_namespace,
            &self.agent_service_account,
            &self.authentication_audience,
        ];
        if tokens.iter().any(|it| !it.is_empty()) {
            let text = "--agent-namespace, --agent-service-account, --authentication-audience: tokens of agents are not checked yet; \
                        agents show a certificate of --cluster-ca-cert";
            return Err(InvalidOptions::Value(text.to_owned()));
        }
        let listen = |flag, host: &str, port| listen_address(flag, host, port).map_err(InvalidOptions::Value);
        let agents = listen("--agent-bind-address", &self.agent_bind_address, self.agent_port)?;
        let health = listen(
            "--health-bind-address",
            &self.health_bind_address,
            self.health_port,
        )?;
        let admin = listen("--admin-bind-address", &self.admin_bind_address, self.admin_port)?;
        let strategies = self.proxy_strategies.split(',').map(str::parse);
        let strategies = strategies.collect::<Result<Vec<Strategy>, _>>()?;
        if self.keepalive_time.is_zero() {
            let text = "--keepalive-time: 0s; more is accepted";
            return Err(InvalidOptions::Value(text.to_owned()));
        }
        Ok(Settings {
            shared: self.shared()?,
            mode: self.mode,
            agents,
            health,
            admin,
            strategies,
            policies: PolicySource::new(given(self.egress_policy.clone()), self.egress_baseline),
            selection: self.egress_selection,
            audit_log: given(self.audit_log.clone()),
            dial_timeout: Some(self.backend_dial_timeout).filter(|it| !it.is_zero()),
            cluster_cert: require(self.cluster_cert.clone(), "--cluster-cert")?,
            cluster_key: require(self.cluster_key.clone(), "--cluster-key")?,
            cluster_ca: require(self.cluster_ca_cert.clone(), "--cluster-ca-cert")?,
            front: self.front()?,
        })
    }

    fn front(self) -> Result<Front, InvalidOptions> {
        if !self.uds_name.as_os_str().is_empty() {
            if self.server_port != 0 {
                let text = format!("--uds-name needs --server-port=0, which is {}", self.server_port);
                return Err(InvalidOptions::Value(text));
            }
            return Ok(Front::Uds {
                path: self.uds_name,
                delete_existing: self.delete_existing_uds_file,
            });
        }
        if self.mode == Mode::Grpc {
            let text = "--mode=grpc needs --uds-name: no API server speaks it over TCP";
            return Err(InvalidOptions::Value(text.to_owned()));
        }
        let address = listen_address(
            "--server-bind-address",
            &self.server_bind_address,
            self.server_port,
        )
        .map_err(InvalidOptions::Value)?;
        Ok(Front::Tcp {
            address,
            cert: require(self.server_cert, "--server-cert")?,
            key: require(self.server_key, "--server-key")?,
            ca: require(self.server_ca_cert, "--server-ca-cert")?,
        })
    }

    fn shared(&self) -> Result<Shared, InvalidOptions> {
        let server_id = identity(&self.server_id).map_err(|_octets| {
            InvalidOptions::Value(format!(
                "--server-id: {:?} is not of printable ASCII",
                self.server_id
            ))
        })?;
        Ok(Shared {
            server_id,
            server_count: self.server_count.max(1),
            keep_alive: self.keepalive_time,
        })
    }
}

/// Manifests leave a path empty for none.
fn given(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}
