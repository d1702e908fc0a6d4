//! The zones of an address that dnsd listens on.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use crate::config::Config;
use crate::config::model::{Timeouts, Zone};
use crate::dns::message::{CLASS_IN, Question};

use super::{
    AnswerSource, AnsweredQuery, CoreDnsCounters, InvalidPlan, ServerBlock, ZoneBinding, ZoneBindings,
    ZoneCounters,
};
use crate::zones::external::{ClusterNetwork, zones_below};

/// Zone transfers, AXFR and IXFR: they are not forwarded (RFC 5936 §2.2, RFC 1995 §2).
const TRANSFERS: [u16; 2] = [251, 252];

/// An address that dnsd listens on. Another plan replaces its zone table while the socket stays.
#[derive(Debug)]
pub struct Listener {
    /// The configured address: port 0 stays 0.
    pub address: SocketAddr,
    table: RwLock<Arc<ZoneTable>>,
}

/// The zones of an address, and the settings of its socket.
#[derive(Debug)]
pub struct ZoneTable {
    /// The address.
    pub address: SocketAddr,
    /// The configuration.
    pub config: Arc<Config>,
    /// The time-outs of connections.
    pub timeouts: Timeouts,
    zones: ZoneBindings,
    /// The zones of single addresses that a wildcard's socket serves, too.
    at: Vec<(IpAddr, ZoneBindings)>,
    /// Whether classes other than IN are answered: where there are upstreams.
    pub takes_other_classes: bool,
    /// Whether a panic ends the program (`debug`), for all blocks of an address, as in CoreDNS.
    pub is_debugged: bool,
    /// The counters of queries that no block answers, with `prometheus`.
    dropped: Option<Arc<ZoneCounters>>,
}

impl Listener {
    /// For this address.
    #[must_use]
    pub const fn new(address: SocketAddr, table: Arc<ZoneTable>) -> Self {
        Self {
            address,
            table: RwLock::new(table),
        }
    }

    /// The zone table in force.
    #[must_use]
    pub fn table(&self) -> Arc<ZoneTable> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another zone table in force.
    pub fn set(&self, table: Arc<ZoneTable>) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }
}

impl ZoneTable {
    /// The zone that answers a question at a destination address. Classes other than IN go to upstreams or nowhere.
    #[must_use]
    pub fn binding(&self, question: &Question, asked: Option<IpAddr>) -> Option<&Arc<ZoneBinding>> {
        if question.class != CLASS_IN && !self.takes_other_classes || TRANSFERS.contains(&question.kind) {
            return None;
        }
        self.zones(asked).find(question)
    }

    /// The destination address of an intercepted query; none for a query to the own address.
    #[must_use]
    pub fn intercepted(&self, asked: Option<IpAddr>) -> Option<IpAddr> {
        let other = asked.filter(|asked| *asked != self.address.ip());
        other.filter(|_| self.config.intercepts_at(self.address))
    }

    /// The label `server`, as CoreDNS writes it.
    #[must_use]
    pub fn server(&self) -> String {
        server_label(self.address)
    }

    /// Counts a query that no block answers.
    pub fn note_dropped(&self, event: &AnsweredQuery<'_>) {
        if let Some(counts) = &self.dropped {
            counts.count(event, AnswerSource::Server);
        }
    }

    /// The plugins of each zone.
    pub fn plugins(&self) -> impl Iterator<Item = (String, &'static str)> {
        let own = self.entries().filter(|binding| binding.may_ask_outside);
        own.flat_map(|binding| {
            let zone = binding.zone.to_string();
            let plugins = binding.block.plan().plugins();
            plugins
                .map(move |plugin| (zone.clone(), plugin))
                .collect::<Vec<_>>()
        })
    }

    /// All zone bindings.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<ZoneBinding>> {
        let single = self.at.iter().flat_map(|(_, zones)| zones.entries());
        self.zones.entries().iter().chain(single)
    }

    /// The zones of a destination address.
    fn zones(&self, asked: Option<IpAddr>) -> &ZoneBindings {
        if self.at.is_empty() {
            return &self.zones;
        }
        let single = asked.and_then(|asked| self.at.iter().find(|(address, _)| *address == asked));
        single.map_or(&self.zones, |(_, zones)| zones)
    }
}

/// A zone table for each socket. A block at a wildcard and one at a single address of the same port share the wildcard's
/// socket: two sockets would need `SO_REUSEPORT`, which lets other programs bind the port, too.
pub(super) fn tables(
    config: &Arc<Config>,
    blocks: &[Arc<ServerBlock>],
    at: BTreeMap<SocketAddr, Vec<Arc<ServerBlock>>>,
    counts: &CoreDnsCounters,
) -> Result<BTreeMap<SocketAddr, Arc<ZoneTable>>, InvalidPlan> {
    let cluster = ClusterNetwork::of_environment();
    // A zone that a block forwards to the outside may be asked for outside.
    let everywhere: Vec<&Zone> = blocks
        .iter()
        .filter(|block| !cluster.has_outside_upstream(block.plan()))
        .flat_map(|block| &block.plan().zones)
        .chain(&config.cluster_domains)
        .collect();
    let mut zones = BTreeMap::new();
    for (address, blocks) in &at {
        zones.insert(
            *address,
            bindings(*address, blocks, &everywhere, &cluster, counts)?,
        );
    }
    let singles: Vec<SocketAddr> = zones
        .keys()
        .filter(|address| !address.ip().is_unspecified() && zones.contains_key(&wildcard(**address)))
        .copied()
        .collect();
    let mut under = BTreeMap::<SocketAddr, Vec<(IpAddr, ZoneBindings)>>::new();
    for single in singles {
        let table = zones.remove(&single).expect("it was found there");
        under
            .entry(wildcard(single))
            .or_default()
            .push((single.ip(), table));
    }
    let table = |(address, zones): (SocketAddr, ZoneBindings)| {
        let of_port = at.iter().filter(|(other, _)| other.port() == address.port());
        let mut blocks = at[&address].iter();
        let table = ZoneTable {
            address,
            config: Arc::clone(config),
            timeouts: blocks.next().expect("an address has a block").plan().timeouts,
            zones,
            at: under.remove(&address).unwrap_or_default(),
            is_debugged: at[&address].iter().any(|block| block.plan().debug),
            dropped: at[&address]
                .iter()
                .any(|block| block.plan().prometheus)
                .then(|| counts.zone(&server_label(address), "dropped")),
            takes_other_classes: of_port
                .flat_map(|(_, blocks)| blocks)
                .any(|block| !block.plan().forward.is_empty()),
        };
        (address, Arc::new(table))
    };
    Ok(zones.into_iter().map(table).collect())
}

fn wildcard(address: SocketAddr) -> SocketAddr {
    let any = match address.ip() {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    SocketAddr::new(any, address.port())
}

fn bindings(
    address: SocketAddr,
    blocks: &[Arc<ServerBlock>],
    everywhere: &[&Zone],
    cluster: &ClusterNetwork,
    counts: &CoreDnsCounters,
) -> Result<ZoneBindings, InvalidPlan> {
    let mut entries = Vec::<ZoneBinding>::new();
    for block in blocks {
        for zone in &block.plan().zones {
            if let Some(other) = entries.iter().find(|binding| binding.zone == *zone) {
                return Err(InvalidPlan::Twice {
                    origin: block.plan().origin.clone(),
                    zone: zone.to_string(),
                    address,
                    other: other.block.plan().origin.clone(),
                });
            }
            entries.push(binding(address, *zone, block, counts));
        }
    }
    let mut inner = Vec::<ZoneBinding>::new();
    for binding in entries
        .iter()
        .filter(|binding| cluster.has_outside_upstream(binding.block.plan()))
    {
        for zone in zones_below(&binding.zone, everywhere.iter().copied()) {
            let is_here = |other: &ZoneBinding| other.zone == *zone;
            // A block between the two answers for that zone.
            let between = entries.iter().any(|other| {
                other.zone != binding.zone
                    && binding.zone.holds(other.zone.apex())
                    && other.zone.holds(zone.apex())
            });
            if !between && !inner.iter().any(is_here) {
                inner.push(ZoneBinding {
                    zone: *zone,
                    block: Arc::clone(&binding.block),
                    may_ask_outside: false,
                    counts: binding.counts.clone(),
                    of_cache: binding.of_cache.clone(),
                });
            }
        }
    }
    entries.extend(inner);
    Ok(ZoneBindings::new(entries))
}

fn binding(
    address: SocketAddr,
    zone: Zone,
    block: &Arc<ServerBlock>,
    counts: &CoreDnsCounters,
) -> ZoneBinding {
    let (plan, server) = (block.plan(), server_label(address));
    let of_cache = plan.cache.as_ref().filter(|_| plan.prometheus).map(|cache| {
        let zones = if cache.zones.is_empty() {
            &plan.zones
        } else {
            &cache.zones
        };
        let zones: Vec<String> = zones.iter().map(ToString::to_string).collect();
        counts.cache(&server, &zones.join(","))
    });
    ZoneBinding {
        counts: plan.prometheus.then(|| counts.zone(&server, &zone.to_string())),
        of_cache,
        zone,
        block: Arc::clone(block),
        may_ask_outside: true,
    }
}

/// An address as CoreDNS writes it.
fn server_label(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        format!("dns://:{}", address.port())
    } else {
        format!("dns://{address}")
    }
}
