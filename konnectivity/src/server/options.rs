//! The server's flags, named as upstream's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, ValueEnum};

use egret_policies::model::api_server::Selection;

use super::ServerFiles;
use super::agents::Shared;
use super::identity::{Authentication, IdentifierBinding, TokenReview};
use super::lease::LeaseKeeper;
use super::policy::{Baseline, PolicyFiles};
use super::require;
use crate::api_server::ApiServer;
use crate::core::{InvalidStrategy, Strategy};
use crate::options::{LeaseFlags, LogFlags, ProfilingFlags, duration, identity, listen_address, path};

/// The API server's network proxy: takes connections of a kube-apiserver and has agents make them.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy-server", version, args_override_self = true)]
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
    /// How agents are chosen, the first that finds one: default, destHost, destCIDR, defaultRoute, zone, leastLoaded.
    #[arg(long, default_value = "default")]
    proxy_strategies: String,
    /// Zone of this server, for the strategy zone: an agent with this zone among its identifiers is of it.
    #[arg(long, default_value = "")]
    server_zone: String,
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
    /// Where the objects of the cluster come from that policies ask for: files, those of --egress-policy; or kube, watches of the API
    /// server, which may have APIServerEgressPolicies, too. Until it has told everything, every connection is refused.
    #[arg(long, value_enum, default_value = "files")]
    egress_source: EgressSource,
    /// For what clients ask, as policies name it: controlplane, cluster or etcd.
    #[arg(long, default_value = "cluster")]
    egress_selection: Selection,
    /// A further listener for clients, for another selection: selection=controlplane,mode=grpc,uds=/run/c.sock, or
    /// selection=etcd,mode=http-connect,tcp=127.0.0.1:8096 with the certificate of --server-cert.
    #[arg(long, action = ArgAction::Append)]
    frontend: Vec<Frontend>,
    /// What becomes of connections to link-local addresses, metadata services and loopback that no policy speaks of.
    #[arg(long, value_enum, default_value = "audit")]
    egress_baseline: Baseline,
    /// Where each connection is recorded, as JSON lines; - is the standard output.
    #[arg(long, value_parser = path)]
    audit_log: Option<PathBuf>,
    /// Agents show a token of a service account of this namespace, in the place of a certificate.
    #[arg(long, default_value = "")]
    agent_namespace: String,
    /// The service account.
    #[arg(long, default_value = "")]
    agent_service_account: String,
    /// For whom its tokens are.
    #[arg(long, default_value = "")]
    authentication_audience: String,
    /// What becomes of an agent that stands for hosts or addresses which neither its certificate nor its token's node has.
    #[arg(long, value_enum, default_value = "audit")]
    agent_identifier_binding: IdentifierBinding,
    /// How the API server is asked about tokens, nodes and Leases; without, by the service account of the pod.
    #[arg(long, value_parser = path)]
    kubeconfig: Option<PathBuf>,
    /// Keeps a Lease of this server, by which agents count servers, and removes those that nobody renews.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    enable_lease_controller: bool,
    #[command(flatten)]
    leases: LeaseFlags,
    /// How long after the first signal connections may go on; 0 is not at all.
    #[arg(long, default_value = "0", value_parser = duration)]
    graceful_shutdown_timeout: Duration,
    #[command(flatten)]
    profiling: ProfilingFlags,
    #[command(flatten)]
    ignored: IgnoredFlags,
    #[command(flatten)]
    log: LogFlags,
}

/// Flags of upstream's server about what is otherwise here: they are taken and have no effect.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
struct IgnoredFlags {
    #[arg(long, hide = true, value_parser = all_suites)]
    cipher_suites: Option<()>,
    #[arg(long, hide = true)]
    frontend_keepalive_time: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    kubeconfig_burst: Option<String>,
    #[arg(long, hide = true)]
    kubeconfig_qps: Option<String>,
    #[arg(long, hide = true, value_parser = least_tls)]
    tls_min_version: Option<()>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    warn_on_channel_limit: Option<Option<String>>,
    #[arg(long, hide = true)]
    xfr_channel_size: Option<String>,
}

/// The least version that there is anyway.
fn least_tls(text: &str) -> Result<(), &'static str> {
    match text {
        "" | "VersionTLS12" => Ok(()),
        _ => Err("TLS 1.2 is the least version; VersionTLS12 is accepted"),
    }
}

/// A list that chooses none.
fn all_suites(text: &str) -> Result<(), &'static str> {
    match text {
        "" => Ok(()),
        _ => Err("cipher suites cannot be chosen; an empty list is accepted"),
    }
}

/// Where the objects of the cluster come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EgressSource {
    Files,
    Kube,
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
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) fronts: Vec<FrontSettings>,
    pub(super) agents: SocketAddr,
    pub(super) health: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) agent_tls: ServerFiles,
    pub(super) strategies: Vec<Strategy>,
    pub(super) zone: Option<String>,
    pub(super) dial_timeout: Option<Duration>,
    pub(super) policies: PolicyFiles,
    /// Where objects are watched.
    pub(super) objects: Option<ApiServer>,
    pub(super) audit_log: Option<PathBuf>,
    pub(super) shared: Shared,
    pub(super) lease: Option<LeaseKeeper>,
    pub(super) shutdown: Duration,
}

/// A listener for clients, and for what they ask.
#[derive(Clone, Debug)]
pub(super) struct FrontSettings {
    pub(super) selection: Selection,
    pub(super) mode: Mode,
    pub(super) front: Front,
}

/// The same as it is written.
#[derive(Clone, Debug)]
struct Frontend {
    selection: Selection,
    mode: Mode,
    place: FrontPlace,
}

#[derive(Clone, Debug)]
enum FrontPlace {
    Uds(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for Frontend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut selection, mut mode, mut place) = (None, None, None);
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not key=value"))?;
            let before = match key {
                "selection" => selection
                    .replace(value.parse().map_err(|error| format!("{error}"))?)
                    .is_some(),
                "mode" => mode
                    .replace(<Mode as ValueEnum>::from_str(value, false)?)
                    .is_some(),
                "uds" if !value.is_empty() => place.replace(FrontPlace::Uds(value.into())).is_some(),
                "tcp" => {
                    let address = value
                        .parse()
                        .map_err(|_text| format!("tcp={value:?} is not address:port"))?;
                    place.replace(FrontPlace::Tcp(address)).is_some()
                }
                _ => return Err(format!("{part:?}; there are selection, mode, uds and tcp")),
            };
            if before {
                return Err(format!("{key} again; uds and tcp are one place"));
            }
        }
        let (Some(selection), Some(mode), Some(place)) = (selection, mode, place) else {
            return Err("selection, mode, and uds or tcp are given together".to_owned());
        };
        match (mode, &place) {
            (Mode::Grpc, FrontPlace::Tcp(_)) => Err("no API server speaks grpc over tcp".to_owned()),
            (Mode::Grpc | Mode::HttpConnect, _) => Ok(Self {
                selection,
                mode,
                place,
            }),
        }
    }
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

impl Options {
    /// Whether a server could start with them, as far as no file is read.
    ///
    /// # Errors
    /// At the first flag that has no meaning, or contradicts another one.
    pub fn check(self) -> Result<(), InvalidOptions> {
        self.settings().map(drop)
    }

    pub(super) fn settings(self) -> Result<Settings, InvalidOptions> {
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
        if strategies.contains(&Strategy::Zone) == self.server_zone.is_empty() {
            let text = "--server-zone and the strategy zone are given together";
            return Err(InvalidOptions::Value(text.to_owned()));
        }
        if self.keepalive_time.is_zero() {
            let text = "--keepalive-time: 0s; more is accepted";
            return Err(InvalidOptions::Value(text.to_owned()));
        }
        let shared = self.shared()?;
        Ok(Settings {
            lease: self.lease(&shared)?,
            shutdown: self.graceful_shutdown_timeout,
            shared,
            agents,
            health,
            admin,
            strategies,
            zone: Some(self.server_zone.clone()).filter(|zone| !zone.is_empty()),
            policies: PolicyFiles::new(
                given(self.egress_policy.clone()),
                self.egress_baseline,
                self.egress_source == EgressSource::Kube,
            ),
            objects: (self.egress_source == EgressSource::Kube).then(|| self.api_server()),
            audit_log: given(self.audit_log.clone()),
            dial_timeout: Some(self.backend_dial_timeout).filter(|it| !it.is_zero()),
            agent_tls: ServerFiles {
                certificate: require(self.cluster_cert.clone(), "--cluster-cert")?,
                key: require(self.cluster_key.clone(), "--cluster-key")?,
                client_authorities: given(self.cluster_ca_cert.clone()),
            },
            fronts: self.fronts()?,
        })
    }

    /// The first is the one that upstream's flags say.
    fn fronts(self) -> Result<Vec<FrontSettings>, InvalidOptions> {
        let further = self.frontend.iter().map(|frontend| {
            let front = match &frontend.place {
                FrontPlace::Uds(path) => Front::Uds {
                    path: path.clone(),
                    delete_existing: self.delete_existing_uds_file,
                },
                FrontPlace::Tcp(address) => self.clone().front_by_tls(*address)?,
            };
            Ok(FrontSettings {
                selection: frontend.selection,
                mode: frontend.mode,
                front,
            })
        });
        let further: Vec<_> = further.collect::<Result<_, InvalidOptions>>()?;
        let first = FrontSettings {
            selection: self.egress_selection,
            mode: self.mode,
            front: self.front()?,
        };
        Ok([first].into_iter().chain(further).collect())
    }

    fn front_by_tls(self, address: SocketAddr) -> Result<Front, InvalidOptions> {
        Ok(Front::Tcp {
            address,
            cert: require(self.server_cert, "--server-cert")?,
            key: require(self.server_key, "--server-key")?,
            ca: require(self.server_ca_cert, "--server-ca-cert")?,
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
        self.front_by_tls(address)
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
            authentication: self.authentication()?,
            binding: self.agent_identifier_binding,
        })
    }

    fn lease(&self, shared: &Shared) -> Result<Option<LeaseKeeper>, InvalidOptions> {
        if !self.enable_lease_controller {
            return Ok(None);
        }
        let place = self.leases.place().map_err(InvalidOptions::Value)?;
        // It is part of the Lease's name (RFC 1123).
        let is_label = |octet: &u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || *octet == b'-';
        let server_id = shared.server_id.as_bytes();
        let ends = [server_id.first(), server_id.last()];
        if !server_id.iter().all(|octet| is_label(octet) || *octet == b'.') || ends.contains(&Some(&b'-')) {
            let text = format!(
                "--server-id: {:?}; --enable-lease-controller takes lower-case letters, digits, - and .",
                shared.server_id
            );
            return Err(InvalidOptions::Value(text));
        }
        Ok(Some(LeaseKeeper {
            api_server: self.api_server(),
            place,
            server_id: String::from_utf8_lossy(server_id).into_owned(),
        }))
    }

    fn api_server(&self) -> ApiServer {
        ApiServer::new(self.kubeconfig.clone())
    }

    /// As with upstream's server: by a certificate or by a token, never by either.
    fn authentication(&self) -> Result<Authentication, InvalidOptions> {
        let invalid = |text: &str| Err(InvalidOptions::Value(text.to_owned()));
        let words = [
            &self.agent_namespace,
            &self.agent_service_account,
            &self.authentication_audience,
        ];
        let given = words.iter().filter(|it| !it.is_empty()).count();
        let has_authority = given_path(&self.cluster_ca_cert);
        match (given, has_authority) {
            (0, true) => Ok(Authentication::Certificate),
            (0, false) => Err(InvalidOptions::Missing(
                "--cluster-ca-cert, or --agent-namespace, --agent-service-account and --authentication-audience",
            )),
            (3, false) => Ok(Authentication::Token(TokenReview {
                api_server: self.api_server(),
                namespace: self.agent_namespace.clone(),
                account: self.agent_service_account.clone(),
                audience: self.authentication_audience.clone(),
            })),
            (3, true) => {
                invalid("--cluster-ca-cert and --agent-namespace: agents show a certificate or a token")
            }
            _ => invalid(
                "--agent-namespace, --agent-service-account and --authentication-audience are given together",
            ),
        }
    }
}

/// Manifests leave a path empty for none.
fn given(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

fn given_path(path: &Option<PathBuf>) -> bool {
    path.as_ref().is_some_and(|path| !path.as_os_str().is_empty())
}
