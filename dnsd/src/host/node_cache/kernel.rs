//! The kernel's state: the interface with the local addresses, the rules, the heartbeat.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use egret_kernel::Family;
use egret_kernel::ipset::{Error as SetError, IpSets, Kind, Member, SetEntry, SetSpec};
use egret_kernel::iptables::{Error as RulesError, Flavour, IpTables, SetName, Table};
use egret_kernel::links::{InterfaceOrigin, Links};
use egret_kernel::netlink::Error as LinkError;
use egret_kernel::nftables::{TableChange, TableMonitor};
use egret_kernel::routing::Routing;
use egret_shared::net::{IpNet, Ipv4Net, Ipv6Net};

use crate::host::interception::{ForeignMark, InterceptSet, PodSets, foreign};

use super::fallback::{BypassCount, past};
use super::rules::{TABLES, alive_set};
use crate::config::host_setup::{Fallback, Interception, RuleSettings};
use crate::host::node_cache::rule_position::changes;

/// node-cache's types of setup errors (`coredns_nodecache_setup_errors_total`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// A rule cannot be listed or written.
    Iptables,
    /// Another program holds the xtables lock.
    IptablesLock,
    /// The interface cannot be created or given its addresses.
    InterfaceAdd,
    /// The interface cannot be read.
    InterfaceCheck,
    /// The template or a ConfigMap is invalid.
    ConfigMap,
}

labels! {
    ErrorType: Iptables => "iptables", IptablesLock => "iptables_lock", InterfaceAdd => "interface_add",
    InterfaceCheck => "interface_check", ConfigMap => "configmap"
}

/// Why something cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The interface.
    #[error("interface {name}: {source}")]
    Interface {
        /// Its name.
        name: String,
        /// Why.
        source: LinkError,
    },
    /// An address of the interface.
    #[error("interface {name} cannot have {address}: {source}")]
    Address {
        /// Its name.
        name: String,
        /// The address.
        address: IpAddr,
        /// Why.
        source: LinkError,
    },
    /// rtnetlink is not available.
    #[error("the kernel's interfaces cannot be looked at: {0}")]
    Links(#[source] LinkError),
    /// The rules.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The heartbeat ipset.
    #[error("{0}")]
    Set(#[from] SetError),
    /// The intercepting rules.
    #[error(
        "questions to other resolvers cannot be caught: {0}; TPROXY needs a kernel with CONFIG_NETFILTER_XT_TARGET_TPROXY \
         (module xt_TPROXY), CONFIG_NF_TPROXY_IPV4 and CONFIG_NF_TPROXY_IPV6, and the matches addrtype (xt_addrtype) and socket \
         (xt_socket, CONFIG_NF_SOCKET_IPV4 and CONFIG_NF_SOCKET_IPV6)"
    )]
    Catch(#[source] RulesError),
    /// Routing of intercepted packets.
    #[error("what is caught cannot be routed here: {0}")]
    Routing(#[source] LinkError),
    /// Another program uses the mark.
    #[error(
        "questions to other resolvers are not caught: the bits of intercept.mark are also used by \"{0}\"; choose others, and restart"
    )]
    Mark(ForeignMark),
}

impl NetworkError {
    /// The type by which it is counted.
    #[must_use]
    pub const fn kind(&self) -> ErrorType {
        match self {
            Self::Interface { .. } | Self::Address { .. } => ErrorType::InterfaceAdd,
            Self::Links(_) | Self::Routing(_) => ErrorType::InterfaceCheck,
            Self::Rules(RulesError::Locked { .. }) | Self::Catch(RulesError::Locked { .. }) => {
                ErrorType::IptablesLock
            }
            Self::Rules(_) | Self::Catch(_) | Self::Set(_) | Self::Mark(_) => ErrorType::Iptables,
        }
    }
}

/// Creates the interface and its addresses if they are missing; returns whether something was missing.
///
/// # Errors
/// With the interface, or the address.
pub fn ensure_interface(name: &str, addresses: &[IpAddr]) -> Result<bool, NetworkError> {
    let mut links = Links::open().map_err(NetworkError::Links)?;
    let failed = |source| NetworkError::Interface {
        name: name.to_owned(),
        source,
    };
    let (interface, made) = links.ensure_local(name).map_err(failed)?;
    if !interface.is_up {
        links.bring_up(interface.index).map_err(failed)?;
    }
    let mut missed = made == InterfaceOrigin::Now;
    for address in addresses {
        let failed = |source| NetworkError::Address {
            name: name.to_owned(),
            address: *address,
            source,
        };
        missed |= links.ensure_address(interface.index, *address).map_err(failed)?;
    }
    Ok(missed)
}

/// Whether there is an interface of this name.
///
/// # Errors
/// When the kernel refuses.
pub fn has_interface(name: &str) -> Result<bool, NetworkError> {
    let mut links = Links::open().map_err(NetworkError::Links)?;
    let found = links.interface_by_name(name).map_err(NetworkError::Links)?;
    Ok(found.is_some())
}

/// Removes the interface; returns whether it existed.
///
/// # Errors
/// When the kernel refuses.
pub fn remove_interface(name: &str) -> Result<bool, NetworkError> {
    let mut links = Links::open().map_err(NetworkError::Links)?;
    links.remove(name).map_err(|source| NetworkError::Interface {
        name: name.to_owned(),
        source,
    })
}

/// dnsd's rules in the host's tables.
#[derive(Debug)]
pub struct Rules {
    flavour: Flavour,
    settings: RuleSettings,
    /// Receives changes by other programs; `None` if the kernel does not report them (the legacy flavour).
    monitor: Option<TableMonitor>,
    /// Another program that uses the interception mark: then nothing is intercepted.
    foreign: Option<ForeignMark>,
}

impl Rules {
    /// Rules in the flavour of iptables that Kubernetes uses on this host.
    ///
    /// # Errors
    /// When no iptables can be run.
    pub fn new(mut settings: RuleSettings) -> Result<Self, NetworkError> {
        let detected = Flavour::detect(|chain| chain.starts_with("EGRET-"))?;
        tracing::info!(flavour = detected.flavour.name(), evidence =? detected.evidence, "iptables");
        let monitor = match detected.flavour {
            Flavour::Nft => TableMonitor::open()
                .inspect_err(|error| tracing::debug!(%error, "the kernel does not tell what others change"))
                .ok(),
            Flavour::Legacy => None,
        };
        let foreign = match &settings.intercept {
            Some(interception) => foreign(interception).map_err(NetworkError::Routing)?,
            None => None,
        };
        if foreign.is_some() {
            settings.intercept = None;
        }
        Ok(Self {
            flavour: detected.flavour,
            settings,
            monitor,
            foreign,
        })
    }

    /// Whether another program may have changed a chain with rules of dnsd since the last call; always true if the
    /// kernel does not report changes.
    pub fn may_have_changed(&mut self) -> bool {
        let Some(monitor) = &mut self.monitor else {
            return true;
        };
        match monitor.drain(concerns) {
            Ok(news) => !news.is_empty(),
            Err(error) => {
                tracing::debug!(%error, "the kernel does not tell what others change");
                self.monitor = None;
                true
            }
        }
    }

    /// Makes the rules exist, each once and in its position; returns the number of tables that were changed.
    /// `endpoints` are the servers of the fallback; `bypassed` receives the packets that bypassed dnsd.
    ///
    /// # Errors
    /// When a table cannot be listed or changed; the tables before it are correct.
    pub fn ensure(
        &self,
        endpoints: &[SocketAddr],
        mut bypassed: impl FnMut(Family, BypassCount),
    ) -> Result<usize, NetworkError> {
        self.create_sets()?;
        self.route()?;
        let mut changed = 0;
        for family in self.families() {
            let tables = IpTables::new(self.flavour, family);
            let rules_of = |settings: &RuleSettings| (settings.desired(family), settings.obsolete(family));
            let of_most = rules_of(&self.settings);
            for table in TABLES {
                let listing = tables.save(table)?;
                let of_this;
                let (desired, obsolete) = match table {
                    // The servers of the fallback may be known from the table alone.
                    Table::Nat => {
                        of_this = rules_of(&self.settings.asking(family, endpoints, &listing));
                        &of_this
                    }
                    Table::Filter | Table::Raw | Table::Mangle => &of_most,
                };
                if table == Table::Raw
                    && let Some((counts, from_zero)) = past(&listing, desired)
                {
                    restored(table, tables.restore(&from_zero.render()))?;
                    counts.into_iter().for_each(|past| bypassed(family, past));
                }
                if let Some(batch) = changes(&listing, desired, obsolete, table) {
                    restored(table, tables.restore(&batch.render()))?;
                    changed += 1;
                }
            }
        }
        match &self.foreign {
            Some(foreign) => Err(NetworkError::Mark(foreign.clone())),
            None => Ok(changed),
        }
    }

    /// Removes all rules and sets.
    ///
    /// # Errors
    /// The first error; the rest is removed nevertheless.
    pub fn remove(&self) -> Result<(), NetworkError> {
        let mut first = None;
        for family in self.families() {
            // Tracking comes back first, so that queries in between are translated.
            let tables = TABLES.into_iter().rev();
            let mut outcomes: Vec<_> = tables.map(|table| self.remove_from(family, table)).collect();
            outcomes.push(self.destroy_set(family));
            first = first.or_else(|| outcomes.into_iter().find_map(Result::err));
        }
        first = first.or_else(|| self.unroute().err());
        first.map_or(Ok(()), Err)
    }

    /// Routing is set up before the intercepting rule.
    fn route(&self) -> Result<(), NetworkError> {
        let Some(interception) = &self.settings.intercept else {
            return Ok(());
        };
        PodSets::open(interception)?.create()?;
        let mut routing = Routing::open().map_err(NetworkError::Routing)?;
        for family in interception.families() {
            let made = routing.ensure(&interception.delivery(family));
            made.map_err(NetworkError::Routing)?;
        }
        Ok(())
    }

    fn unroute(&self) -> Result<(), NetworkError> {
        let Some(interception) = &self.settings.intercept else {
            return Ok(());
        };
        let mut routing = Routing::open().map_err(NetworkError::Routing)?;
        for family in interception.families() {
            let removed = routing.remove(&interception.delivery(family));
            removed.map_err(NetworkError::Routing)?;
        }
        Ok(PodSets::open(interception)?.destroy()?)
    }

    fn remove_from(&self, family: Family, table: Table) -> Result<(), NetworkError> {
        let tables = IpTables::new(self.flavour, family);
        let mut ours = self.settings.desired(family);
        ours.extend(self.settings.obsolete(family));
        match changes(&tables.save(table)?, &[], &ours, table) {
            Some(batch) => Ok(tables.restore(&batch.render())?),
            None => Ok(()),
        }
    }

    fn create_sets(&self) -> Result<(), NetworkError> {
        let mut sets = IpSets::open()?;
        for family in self.families() {
            let spec = SetSpec {
                timeout: Some(ALIVE_SECONDS.get()),
                hashsize: 64,
                maxelem: 1024,
                ..SetSpec::new(alive_set(family).as_str(), Kind::HashIp, family)
            };
            sets.ensure(&spec)?;
        }
        Ok(())
    }

    fn destroy_set(&self, family: Family) -> Result<(), NetworkError> {
        Ok(IpSets::open()?.remove(alive_set(family).as_str())?)
    }

    fn families(&self) -> impl Iterator<Item = Family> + use<'_> {
        let has = |family: &Family| {
            self.settings
                .local_ips
                .iter()
                .any(|address| Family::of(*address) == *family)
        };
        Family::ALL.into_iter().filter(has)
    }
}

/// Whether a change may concern rules of dnsd, or the chains that they follow.
fn concerns(change: &TableChange) -> bool {
    let is_hook = |chain: &String| ["INPUT", "OUTPUT", "PREROUTING"].contains(&chain.as_str());
    TABLES.iter().any(|table| change.table == table.name()) && change.chain.as_ref().is_none_or(is_hook)
}

fn restored(table: Table, outcome: Result<(), RulesError>) -> Result<(), NetworkError> {
    outcome.map_err(|error| match table {
        Table::Mangle => NetworkError::Catch(error),
        Table::Filter | Table::Nat | Table::Raw => NetworkError::Rules(error),
    })
}

/// The lifetime of a heartbeat: the shortest timeout of an ipset entry.
const ALIVE_SECONDS: NonZeroU32 = NonZeroU32::MIN;

/// Renews the heartbeat. The serving thread owns it, so that a thread that hangs renews nothing.
#[derive(Debug)]
pub struct Heartbeat {
    sets: IpSets,
    members: Vec<(SetName, Member)>,
}

impl Heartbeat {
    /// The heartbeat of these addresses; `None` if no rule depends on it.
    ///
    /// # Errors
    /// When the kernel has no ipset.
    pub fn new(settings: &RuleSettings) -> Result<Option<Self>, NetworkError> {
        let answering = match settings.fallback {
            Fallback::None => &[],
            Fallback::ClusterDns { .. } => &settings.local_ips[..],
        };
        let answering = answering
            .iter()
            .map(|address| (alive_set(Family::of(*address)), Member::Address(*address)));
        let catching = settings.intercept.iter().flat_map(Interception::families);
        let members: Vec<_> = answering
            .chain(catching.map(|family| {
                (
                    InterceptSet::Heartbeat.name(family),
                    Member::Net(everything(family)),
                )
            }))
            .collect();
        if members.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            sets: IpSets::open()?,
            members,
        }))
    }

    /// Renews the heartbeat for a second; takes two microseconds for each address.
    ///
    /// # Errors
    /// When a set does not exist, or the kernel refuses; the other addresses are renewed nevertheless.
    pub fn sign(&mut self) -> Result<(), NetworkError> {
        let mut first = Ok(());
        for (set, member) in &self.members {
            let entry = SetEntry::living(*member, ALIVE_SECONDS);
            let endpoints = self.sets.add(set.as_str(), &[entry]).map_err(NetworkError::Set);
            first = first.and(endpoints);
        }
        first
    }

    /// Removes the heartbeat at once.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn end(&mut self) -> Result<(), NetworkError> {
        for (set, member) in &self.members {
            self.sets.delete(set.as_str(), &[SetEntry::lasting(*member)])?;
        }
        Ok(())
    }
}

fn everything(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(Ipv4Net::default()),
        Family::V6 => IpNet::V6(Ipv6Net::default()),
    }
}
