//! The fields under `host`: interface, rules, fallback, and the takeover socket.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use egret_kernel::iptables::InterfaceName;
use serde::{Deserialize, Serialize};

use super::{Invalid, MillisDuration, span};
use crate::config::host_setup::{Fallback, HostSetup, RuleSettings};
use crate::config::model::{BindTo, Plan};

/// The fields under `host`.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HostOptions {
    /// The interface that dnsd creates for its listen addresses [default: none]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Rules that bypass conntrack for DNS to these addresses, and accept it behind the enforcer's jumps [default:
    /// false]
    #[arg(long, num_args = 0 ..= 1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub rules: Option<bool>,
    /// How often dnsd checks interface and rules: 1s to 24h [default: 60s]
    #[arg(long, value_name = "SPAN")]
    pub sync_interval: Option<MillisDuration>,
    /// Interface and rules stay at exit [default: false]
    #[arg(long, num_args = 0 ..= 1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub skip_teardown: Option<bool>,
    /// Who answers pods while no dnsd is alive; needs --rules [default: clusterDNS]
    #[arg(long, value_name = "WHAT")]
    pub fallback: Option<FallbackKind>,
    /// Where the fallback sends queries to addresses that are not a Service's: pods of the cluster DNS, not its Service
    /// [default: those that the enforcer names]
    #[arg(long = "fallback-server", value_name = "ADDR:PORT", num_args = 1 ..)]
    pub fallback_servers: Option<Vec<SocketAddr>>,
    /// The Unix socket where a new process requests the sockets [default: none]
    #[arg(long, value_name = "PATH")]
    pub handover: Option<PathBuf>,
    /// Where the enforcer's permits for answers of the kernel are pinned: its --bpf-pins with `-dns` behind; needs --rules
    /// [default: none, the kernel answers nothing]
    #[arg(long, value_name = "DIRECTORY")]
    pub kernel_answers: Option<PathBuf>,
}

/// Who answers pods while no dnsd is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum FallbackKind {
    /// The cluster DNS.
    #[serde(rename = "clusterDNS")]
    #[value(name = "clusterDNS")]
    ClusterDns,
    /// Nobody: names stay enforced.
    #[serde(rename = "none")]
    #[value(name = "none")]
    None,
}

impl HostOptions {
    /// These fields; `below` has the values of unset ones.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        over! {
            self, below:
            interface rules sync_interval skip_teardown fallback fallback_servers handover kernel_answers;
        }
    }

    /// The setup for the addresses of a plan; `None` if nothing is set up.
    ///
    /// # Errors
    /// With the field.
    pub fn setup(&self, plan: &Plan) -> Result<Option<HostSetup>, Invalid> {
        let rules = self.rules.unwrap_or(false);
        let interface = self.interface.as_deref().map(interface).transpose()?;
        if interface.is_none() && !rules {
            return self.is_without_rules().map(|()| None);
        }
        let (local_ips, dns_port) = local(plan)?;
        Ok(Some(HostSetup {
            interface,
            rules,
            settings: RuleSettings {
                local_ips,
                dns_port,
                health_port: health_port(plan),
                fallback: self.fallback()?,
                intercept: None,
            },
            sync_interval: self.sync_interval()?,
            skips_teardown: self.skip_teardown.unwrap_or(false),
        }))
    }

    /// The fallback.
    ///
    /// # Errors
    /// When servers are named and the fallback is none.
    pub fn fallback(&self) -> Result<Fallback, Invalid> {
        let servers = self.fallback_servers.clone().unwrap_or_default();
        match self.fallback.unwrap_or(FallbackKind::ClusterDns) {
            FallbackKind::ClusterDns => Ok(Fallback::ClusterDns { servers }),
            FallbackKind::None if servers.is_empty() => Ok(Fallback::None),
            FallbackKind::None => Err(Invalid::Contradiction(
                "host.fallbackServers are asked with fallback clusterDNS only",
            )),
        }
    }

    fn sync_interval(&self) -> Result<Duration, Invalid> {
        span("host.syncInterval", self.sync_interval, 60_000, 1_000, 86_400_000)
    }

    /// A fallback without rules would be believed to exist.
    fn is_without_rules(&self) -> Result<(), Invalid> {
        if self.fallback == Some(FallbackKind::ClusterDns) || self.fallback_servers.is_some() {
            return Err(Invalid::Contradiction("host.fallback needs host.rules: true"));
        }
        Ok(())
    }
}

fn interface(name: &str) -> Result<String, Invalid> {
    let invalid = |error: egret_kernel::iptables::NameError| Invalid::Range {
        field: "host.interface",
        value: format!("{name:?} ({error})"),
        range: "a name like nodelocaldns".to_owned(),
    };
    InterfaceName::new(name)
        .map_err(invalid)
        .map(|name| name.as_str().to_owned())
}

/// The port of the first `health` page; CoreDNS' default if there is none.
fn health_port(plan: &Plan) -> u16 {
    const DEFAULT: u16 = 8080;
    plan.health
        .first()
        .map_or(DEFAULT, |health| health.address.port())
}

/// The addresses of the blocks, and their port.
fn local(plan: &Plan) -> Result<(Vec<IpAddr>, u16), Invalid> {
    let mut found = (Vec::new(), None);
    for block in &plan.blocks {
        let bound = block.bind.iter().flat_map(|bind| &bind.to);
        for address in bound.filter_map(single) {
            if *found.1.get_or_insert(block.port) != block.port {
                return Err(Invalid::Contradiction(
                    "host: all addresses that are listened on must have the same port",
                ));
            }
            if !found.0.contains(&address) {
                found.0.push(address);
            }
        }
    }
    match found {
        (addresses, Some(port)) => Ok((addresses, port)),
        (_, None) => Err(Invalid::Contradiction(
            "host needs single addresses to listen on, not all of them",
        )),
    }
}

fn single(to: &BindTo) -> Option<IpAddr> {
    match to {
        BindTo::Address(address) if !address.is_unspecified() => Some(*address),
        BindTo::Address(_) | BindTo::Interface(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The health port in the rules, for these fields beside server blocks.
    fn probed(fields: &str) -> u16 {
        let servers = "servers: [{zones: [.], bind: [{to: [169.254.20.10]}]}]";
        let raw = serde_saphyr::from_str::<super::super::RawConfig>(&format!("{servers}\n{fields}")).unwrap();
        let host = HostOptions {
            rules: Some(true),
            ..HostOptions::default()
        };
        let setup = host.setup(&raw.validate().unwrap().plan).unwrap().unwrap();
        setup.settings.health_port
    }

    #[test]
    fn rules_keep_the_port_of_health_out_of_conntrack() {
        assert_eq!(probed(""), 8080);
        assert_eq!(probed("health: [{address: \"169.254.20.10:8181\"}]"), 8181);
    }
}
