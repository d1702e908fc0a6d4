//! The agent's flags, named as upstream's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args, Parser};
use ipnet::IpNet;
use tokio_rustls::rustls::ClientConfig;

use super::servers::{CountSource, Settings};
use super::{Guard, StartError};
use crate::api_server::{ApiServer, LeasePlace};
use crate::options::{LeaseFlags, LogFlags, ProfilingFlags, duration, identity, listen_address, path};
use crate::proto::{Identifiers, InvalidIdentifiers};
use crate::tls::{self, Identity, Reloaded, TlsError};

/// The API server's network proxy: makes connections that proxy servers ask for.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy-agent", version, args_override_self = true)]
pub struct Options {
    /// Host of the proxy server, or several with commas between, of which each is tried in turn.
    #[arg(long, default_value = "127.0.0.1", value_delimiter = ',')]
    proxy_server_host: Vec<String>,
    #[arg(long, default_value_t = 8091)]
    proxy_server_port: u16,
    /// Authorities of proxy servers.
    #[arg(long, default_value = "", value_parser = path)]
    ca_cert: PathBuf,
    /// Certificate that is shown to proxy servers.
    #[arg(long, default_value = "", value_parser = path)]
    agent_cert: PathBuf,
    #[arg(long, default_value = "", value_parser = path)]
    agent_key: PathBuf,
    /// Further protocols that are offered beside h2.
    #[arg(long, value_delimiter = ',')]
    alpn_proto: Vec<String>,
    /// File of a token that is shown to proxy servers; it is read at each connection.
    #[arg(long, default_value = "", value_parser = path)]
    service_account_token_path: PathBuf,
    /// Random unless given.
    #[arg(long, env = "PROXY_AGENT_ID", default_value = "")]
    agent_id: String,
    /// Destinations that the agent stands for, as a URL's query of host, ipv4, ipv6, cidr, zone and default-route.
    #[arg(long, default_value = "")]
    agent_identifiers: String,
    /// How long after an attempt that brought no new server the next one comes, at first.
    #[arg(long, default_value = "1s", value_parser = duration)]
    sync_interval: Duration,
    /// The same after many.
    #[arg(long, default_value = "10s", value_parser = duration)]
    sync_interval_cap: Duration,
    /// How often proxy servers are asked whether they are there; upstream's server takes 30 s or more.
    #[arg(long, default_value = "30s", value_parser = duration)]
    keepalive_time: Duration,
    /// Networks of loopback, link-local and other addresses of the agent's own machine that it connects to all the same.
    #[arg(long, value_delimiter = ',')]
    allow_destinations: Vec<IpNet>,
    /// Counts servers by their Leases, in the place of what servers say.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    count_server_leases: bool,
    #[command(flatten)]
    leases: LeaseFlags,
    /// With --count-server-leases: default is the Leases alone, max is whichever number is larger.
    #[arg(long, default_value = "")]
    server_count_source: String,
    /// How the API server is asked for Leases; without, by the service account of the pod.
    #[arg(long, default_value = "", value_parser = path)]
    kubeconfig: PathBuf,
    /// Goes on connecting, every --sync-interval-cap, where there are as many servers as they say.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    sync_forever: bool,
    #[command(flatten)]
    profiling: ProfilingFlags,
    #[command(flatten)]
    ignored: IgnoredFlags,
    #[arg(long, default_value = "")]
    health_server_host: String,
    /// Port of /healthz, /readyz and /metrics.
    #[arg(long, default_value_t = 8093)]
    health_server_port: u16,
    #[arg(long, default_value = "127.0.0.1")]
    admin_bind_address: String,
    /// The same on the machine itself.
    #[arg(long, default_value_t = 8094)]
    admin_server_port: u16,
    #[command(flatten)]
    log: LogFlags,
}

/// Flags of upstream's agent about what is otherwise here: they are taken and have no effect.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
struct IgnoredFlags {
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    probe_interval: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    warn_on_channel_limit: Option<Option<String>>,
    #[arg(long, hide = true)]
    xfr_channel_size: Option<String>,
}

/// Why flags are refused.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    #[error("--agent-identifiers: {0}")]
    Identifiers(#[from] InvalidIdentifiers),
    #[error("{0}")]
    Value(String),
}

impl Options {
    pub(super) fn listeners(&self) -> Result<(SocketAddr, SocketAddr), InvalidOptions> {
        let listen = |flag, host: &str, port| listen_address(flag, host, port).map_err(InvalidOptions::Value);
        let health = listen(
            "--health-server-host",
            &self.health_server_host,
            self.health_server_port,
        )?;
        let admin = listen(
            "--admin-bind-address",
            &self.admin_bind_address,
            self.admin_server_port,
        )?;
        Ok((health, admin))
    }

    /// Where servers are counted by Leases.
    pub(super) fn counted_leases(&self) -> Result<Option<(ApiServer, LeasePlace)>, InvalidOptions> {
        if !self.count_server_leases {
            return Ok(None);
        }
        let place = self.leases.place().map_err(InvalidOptions::Value)?;
        Ok(Some((ApiServer::new(Some(self.kubeconfig.clone())), place)))
    }

    fn count_source(&self) -> Result<CountSource, InvalidOptions> {
        match self.server_count_source.as_str() {
            "" | "default" => Ok(CountSource::Leases),
            "max" => Ok(CountSource::Largest),
            other => {
                let text = format!("--server-count-source: {other:?}; default and max are accepted");
                Err(InvalidOptions::Value(text))
            }
        }
    }

    pub(super) fn settings(self) -> Result<Settings, StartError> {
        let value = |text: &str| InvalidOptions::Value(text.to_owned());
        let is_set = |path: &PathBuf| !path.as_os_str().is_empty();
        match (is_set(&self.agent_cert), is_set(&self.agent_key)) {
            (true, true) | (false, false) => {}
            _ => return Err(value("--agent-cert and --agent-key are given together").into()),
        }
        if !is_set(&self.ca_cert) {
            return Err(value("--ca-cert is missing").into());
        }
        if self.proxy_server_host.iter().any(String::is_empty) {
            return Err(value("--proxy-server-host: a host is empty").into());
        }
        if self.keepalive_time < Duration::from_secs(30) {
            return Err(value("--keepalive-time: less than 30s, which proxy servers refuse").into());
        }
        let agent_id =
            identity(&self.agent_id).map_err(|_octets| value("--agent-id: it is of printable ASCII"))?;
        let identifiers = Identifiers::parse(&self.agent_identifiers).map_err(InvalidOptions::Identifiers)?;
        Ok(Settings {
            count_source: self.count_source()?,
            sync_forever: self.sync_forever,
            tls: Arc::new(ClientFiles::of(&self).reloaded()?),
            agent_id,
            identifiers,
            token: Some(self.service_account_token_path).filter(is_set),
            hosts: self.proxy_server_host,
            port: self.proxy_server_port,
            interval: self.sync_interval,
            interval_cap: self.sync_interval_cap.max(self.sync_interval),
            keep_alive: self.keepalive_time,
            guard: Arc::new(Guard::new(self.allow_destinations)),
        })
    }
}

/// Files of the connections to servers.
struct ClientFiles {
    authorities: PathBuf,
    certificate: Option<(PathBuf, PathBuf)>,
    alpn: Vec<Vec<u8>>,
}

impl ClientFiles {
    fn of(options: &Options) -> Self {
        let further = options.alpn_proto.iter().map(|name| name.as_bytes().to_vec());
        let has_certificate = !options.agent_cert.as_os_str().is_empty();
        Self {
            authorities: options.ca_cert.clone(),
            certificate: has_certificate.then(|| (options.agent_cert.clone(), options.agent_key.clone())),
            alpn: [b"h2".to_vec()].into_iter().chain(further).collect(),
        }
    }

    fn reloaded(self) -> Result<Reloaded<ClientConfig>, TlsError> {
        let mut files = vec![self.authorities.clone()];
        files.extend(
            self.certificate
                .iter()
                .flat_map(|(certificate, key)| [certificate.clone(), key.clone()]),
        );
        Reloaded::new(files, move || {
            let identity = self
                .certificate
                .as_ref()
                .map(|(certificate, key)| Identity { certificate, key });
            let alpn: Vec<&[u8]> = self.alpn.iter().map(Vec::as_slice).collect();
            tls::client(&self.authorities, identity, &alpn)
        })
    }
}
