//! What a socket needs to know: the zones of its address, and how its connections are kept.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use crate::config::Config;
use crate::config::model::{Scheme, Timeouts, Zone};
use crate::dns::message::{CLASS_IN, Question};

use super::certificates::{CertificateLoader, Certificates};
use super::{Block, By, Counts, Entry, Event, OfZone, Unfit, Zones};
use crate::zones::external::{Inside, kept};

/// Transfers of whole zones: answers of many messages, from who has the zone (RFC 5936 §2.2, RFC 1995 §2).
const TRANSFERS: [u16; 2] = [251, 252];

/// A socket's view of what is in force; another plan changes it under the socket.
#[derive(Debug)]
pub struct Port {
    /// The address, as it was asked for: port 0 stays 0.
    pub address: SocketAddr,
    table: RwLock<Arc<Table>>,
}

/// Who answers at an address.
#[derive(Debug)]
pub struct Table {
    /// How it is asked.
    pub scheme: Scheme,
    /// The address.
    pub address: SocketAddr,
    /// What is shown to clients; there where the scheme is encrypted.
    pub certificates: Option<Arc<Certificates>>,
    /// What is in force.
    pub config: Arc<Config>,
    /// How connections are kept.
    pub timeouts: Timeouts,
    zones: Zones,
    /// At single addresses that a wildcard's socket serves, too.
    at: Vec<(IpAddr, Zones)>,
    /// Whether classes other than IN are answered: where somebody may be asked for them.
    pub takes_other_classes: bool,
    /// Whether a fault ends the program (`debug`), as CoreDNS has it for all blocks of an address.
    pub is_debugged: bool,
    /// What is counted of queries that no block answers, where metrics are wanted.
    dropped: Option<Arc<OfZone>>,
}

impl Port {
    /// At this address, by this table.
    #[must_use]
    pub const fn new(address: SocketAddr, table: Arc<Table>) -> Self {
        Self {
            address,
            table: RwLock::new(table),
        }
    }

    /// What is in force.
    #[must_use]
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another table in force, for what comes.
    pub fn set(&self, table: Arc<Table>) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
    }
}

impl Table {
    /// Who answers a question at the address that was asked. Classes other than IN go to upstreams or nowhere.
    #[must_use]
    pub fn entry(&self, question: &Question, asked: Option<IpAddr>) -> Option<&Arc<Entry>> {
        if question.class != CLASS_IN && !self.takes_other_classes || TRANSFERS.contains(&question.kind) {
            return None;
        }
        self.zones(asked).find(question)
    }

    /// The address that was asked instead of this one, where the kernel hands over what is for others.
    #[must_use]
    pub fn caught(&self, asked: Option<IpAddr>) -> Option<IpAddr> {
        let other = asked.filter(|asked| *asked != self.address.ip());
        other.filter(|_| self.config.catches_at(self.address))
    }

    /// The address as CoreDNS writes it.
    #[must_use]
    pub fn server(&self) -> String {
        server_label(self.scheme, self.address)
    }

    /// Counts a query that no block answers.
    pub fn note_dropped(&self, event: &Event<'_>) {
        if let Some(counts) = &self.dropped {
            counts.count(event, By::Server);
        }
    }

    /// The parts of the chains, by zone.
    pub fn plugins(&self) -> impl Iterator<Item = (String, &'static str)> {
        let own = self.entries().filter(|entry| entry.may_ask_outside);
        own.flat_map(|entry| {
            let zone = entry.zone.to_string();
            let plugins = entry.block.plan().plugins();
            plugins
                .map(move |plugin| (zone.clone(), plugin))
                .collect::<Vec<_>>()
        })
    }

    /// All zones.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let single = self.at.iter().flat_map(|(_, zones)| zones.entries());
        self.zones.entries().iter().chain(single)
    }

    /// The zones at the address that was asked.
    fn zones(&self, asked: Option<IpAddr>) -> &Zones {
        if self.at.is_empty() {
            return &self.zones;
        }
        let single = asked.and_then(|asked| self.at.iter().find(|(address, _)| *address == asked));
        single.map_or(&self.zones, |(_, zones)| zones)
    }
}

/// A table for each address at which a socket is needed. A block at a wildcard and one at a single address of the
/// same port share the wildcard's socket: two sockets could not be bound without letting others share them, too.
pub(super) fn tables(
    scheme: Scheme,
    config: &Arc<Config>,
    blocks: &[Arc<Block>],
    at: BTreeMap<SocketAddr, Vec<Arc<Block>>>,
    counts: &Counts,
    loader: &mut CertificateLoader<'_>,
) -> Result<BTreeMap<SocketAddr, Arc<Table>>, Unfit> {
    let inside = Inside::of_environment();
    // What a block asks outside for is no secret of the cluster's.
    let everywhere: Vec<&Zone> = blocks
        .iter()
        .filter(|block| !inside.is_left_by(block.plan()))
        .flat_map(|block| &block.plan().zones)
        .chain(&config.cluster_domains)
        .collect();
    let mut certificates = certificates(&at, loader)?;
    let mut zones = BTreeMap::new();
    for (address, blocks) in &at {
        zones.insert(
            *address,
            of_address(*address, blocks, &everywhere, &inside, counts)?,
        );
    }
    let singles: Vec<SocketAddr> = zones
        .keys()
        .filter(|address| !address.ip().is_unspecified() && zones.contains_key(&wildcard(**address)))
        .copied()
        .collect();
    let mut under = BTreeMap::<SocketAddr, Vec<(IpAddr, Zones)>>::new();
    for single in singles {
        let table = zones.remove(&single).expect("it was found there");
        under
            .entry(wildcard(single))
            .or_default()
            .push((single.ip(), table));
    }
    let table = |(address, zones): (SocketAddr, Zones)| {
        let of_port = at.iter().filter(|(other, _)| other.port() == address.port());
        let mut blocks = at[&address].iter();
        let table = Table {
            scheme,
            address,
            certificates: certificates.remove(&address),
            config: Arc::clone(config),
            timeouts: blocks.next().expect("an address has a block").plan().timeouts,
            zones,
            at: under.remove(&address).unwrap_or_default(),
            is_debugged: at[&address].iter().any(|block| block.plan().debug),
            dropped: at[&address]
                .iter()
                .any(|block| block.plan().prometheus)
                .then(|| counts.zone(&server_label(scheme, address), "dropped")),
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

fn of_address(
    address: SocketAddr,
    blocks: &[Arc<Block>],
    everywhere: &[&Zone],
    inside: &Inside,
    counts: &Counts,
) -> Result<Zones, Unfit> {
    let mut entries = Vec::<Entry>::new();
    for block in blocks {
        for zone in &block.plan().zones {
            if let Some(other) = entries.iter().find(|entry| entry.zone == *zone) {
                return Err(Unfit::Twice {
                    origin: block.plan().origin.clone(),
                    zone: zone.to_string(),
                    address,
                    other: other.block.plan().origin.clone(),
                });
            }
            entries.push(entry(address, *zone, block, counts));
        }
    }
    let mut guarded = Vec::<Entry>::new();
    for entry in entries
        .iter()
        .filter(|entry| inside.is_left_by(entry.block.plan()))
    {
        for zone in kept(&entry.zone, everywhere.iter().copied()) {
            let is_here = |other: &Entry| other.zone == *zone;
            // A block between the two answers for the kept zone in its own way.
            let between = entries.iter().any(|other| {
                other.zone != entry.zone
                    && entry.zone.holds(other.zone.apex())
                    && other.zone.holds(zone.apex())
            });
            if !between && !guarded.iter().any(is_here) {
                guarded.push(Entry {
                    zone: *zone,
                    block: Arc::clone(&entry.block),
                    may_ask_outside: false,
                    counts: entry.counts.clone(),
                    of_cache: entry.of_cache.clone(),
                });
            }
        }
    }
    entries.extend(guarded);
    Ok(Zones::new(entries))
}

fn entry(address: SocketAddr, zone: Zone, block: &Arc<Block>, counts: &Counts) -> Entry {
    let (plan, server) = (block.plan(), server_label(block.plan().scheme, address));
    let of_cache = plan.cache.as_ref().filter(|_| plan.prometheus).map(|cache| {
        let zones = if cache.zones.is_empty() {
            &plan.zones
        } else {
            &cache.zones
        };
        let zones: Vec<String> = zones.iter().map(ToString::to_string).collect();
        counts.cache(&server, &zones.join(","))
    });
    Entry {
        counts: plan.prometheus.then(|| counts.zone(&server, &zone.to_string())),
        of_cache,
        zone,
        block: Arc::clone(block),
        may_ask_outside: true,
    }
}

/// What is shown at each address at which a socket is needed.
fn certificates(
    at: &BTreeMap<SocketAddr, Vec<Arc<Block>>>,
    loader: &mut CertificateLoader<'_>,
) -> Result<BTreeMap<SocketAddr, Arc<Certificates>>, Unfit> {
    let mut shown = BTreeMap::<SocketAddr, (Arc<Certificates>, &str)>::new();
    for (address, blocks) in at {
        let any = wildcard(*address);
        let socket = if at.contains_key(&any) { any } else { *address };
        for plan in blocks.iter().map(|block| block.plan()) {
            let Some(tls) = &plan.tls else {
                continue;
            };
            let own = loader.get(tls, plan.scheme)?;
            let (first, other) = shown
                .entry(socket)
                .or_insert_with(|| (Arc::clone(&own), &tls.origin));
            if !Arc::ptr_eq(first, &own) {
                return Err(Unfit::OtherTls {
                    origin: tls.origin.clone(),
                    address: *address,
                    other: (*other).to_owned(),
                });
            }
        }
    }
    let without_origin = |(address, (certificates, _))| (address, certificates);
    Ok(shown.into_iter().map(without_origin).collect())
}

/// A server's address as CoreDNS writes it.
fn server_label(scheme: Scheme, address: SocketAddr) -> String {
    let scheme = scheme.name();
    if address.ip().is_unspecified() {
        format!("{scheme}://:{}", address.port())
    } else {
        format!("{scheme}://{address}")
    }
}
