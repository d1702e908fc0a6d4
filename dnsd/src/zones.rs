//! The server blocks of a plan, running: which block answers on which socket for which name.
//!
//! ```text
//!  socket ──▶ Port ──▶ Table ──▶ Entry (the longest zone that holds the name) ──▶ Block ──▶ its cache, its chain
//! ```
//!
//! A plan that is put in force makes a new `Serving`; of the one before it takes over each block that is written as
//! it was, and the cache of each whose answers cannot have changed. Queries that are under way keep what they began
//! with.

pub mod answer_source;
pub mod failure;
pub mod certificates;
mod bind;
mod block;
mod stored_answer;
mod chain;
mod binding;
mod nxdomain;
mod external;
mod listener;
mod table;
mod counters;
mod query_log;
mod error_log;
mod log_writer;
mod local_plugins;
mod loop_probe;
mod type_names;
mod transfer;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sha2::{Digest, Sha512};

use crate::config::Config;
use crate::config::model;
use crate::config::model::Scheme;
use crate::telemetry::metrics::Metrics;
use crate::upstream::{Forwarder, TlsError, Unusable, look_up};

pub use answer_source::By;
pub use bind::{BindError, Interfaces, host_interfaces};
pub use binding::{Arrival, Entry, Stays, Terms};
pub use block::{Block, Known};
pub(crate) use counters::Series;
pub use counters::{Counts, OfCache, OfZone};
pub use failure::Failed;
pub use listener::{Port, Table};
pub use local_plugins::InvalidOwn;
pub use log_writer::Outlet;
pub use query_log::Event;
pub use stored_answer::Packed;
pub use table::Zones;
pub use transfer::{Given, Heir, Step as GivenStep};

/// What all blocks use, whichever plan is in force.
#[derive(Clone, Debug)]
pub struct Means {
    /// What dnsd counts.
    pub metrics: Arc<Metrics>,
    /// What CoreDNS counts.
    pub counts: Arc<Counts>,
    /// Where lines about queries go.
    pub outlet: Outlet,
}

/// Who answers at each address, for each scheme.
pub type EncryptedTables = BTreeMap<(Scheme, SocketAddr), Arc<Table>>;

/// A configuration in force.
#[derive(Debug)]
pub struct Serving {
    /// What is in force.
    pub config: Arc<Config>,
    /// Who answers at each address; at a wildcard, also who answers at single addresses on the same port.
    pub tables: BTreeMap<SocketAddr, Arc<Table>>,
    /// The same where queries are encrypted.
    pub encrypted: EncryptedTables,
    /// The blocks, in the order of the plan.
    pub blocks: Vec<Arc<Block>>,
    /// Resolvers that pods choose and the operator trusts, where pods' choices are asked.
    pub trusted: BTreeMap<IpAddr, Forwarder>,
}

/// Why a plan cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// What a block listens on cannot be told.
    #[error("{0}: {1}")]
    Bind(String, BindError),
    /// Whom a block asks cannot be told.
    #[error(transparent)]
    Forward(#[from] Unusable),
    /// What it answers itself cannot be told.
    #[error("{0}: {1}")]
    Own(String, InvalidOwn),
    /// What a block shows to clients cannot be shown.
    #[error("{0}: tls: {1}")]
    Tls(String, TlsError),
    /// Two blocks would show different certificates at the same address.
    #[error(
        "{origin}: at {address} {other} is shown; want the same tls in all blocks of a port and an address"
    )]
    OtherTls {
        /// The second block's.
        origin: String,
        /// The address.
        address: SocketAddr,
        /// The first block's.
        other: String,
    },
    /// Two blocks answer for the same zone at the same address.
    #[error("{origin}: the zone {zone} at {address} is already answered for by {other}")]
    Twice {
        /// The second block.
        origin: String,
        /// The zone.
        zone: String,
        /// The address.
        address: SocketAddr,
        /// The first block.
        other: String,
    },
}

/// Answers that a block may keep: its share of the memory of all caches is as its share of these, so that an operator
/// says where memory goes by what a Corefile has for that, and no cache can take from another.
fn entries(plan: &model::Block) -> u128 {
    let rules = plan.cache.as_ref();
    rules.map_or(0, |rules| {
        rules.success.entries as u128 + rules.denial.entries as u128
    })
}

impl Serving {
    /// A configuration with the addresses of its upstreams in place of their names.
    ///
    /// # Errors
    /// When a name has no address.
    pub async fn look_up(mut config: Config, metrics: &Arc<Metrics>) -> Result<Config, Unfit> {
        for forward in config.plan.blocks.iter_mut().flat_map(|block| &mut block.forward) {
            *forward = look_up(forward, metrics).await?;
        }
        Ok(config)
    }

    /// Puts a configuration in force after `before`, which goes on for what is under way.
    ///
    /// # Errors
    /// Why it cannot be: then `before` stays.
    pub fn new(
        config: Config,
        before: Option<&Self>,
        interfaces: &Interfaces<'_>,
        means: &Means,
    ) -> Result<Self, Unfit> {
        let config = Arc::new(config);
        let all: u128 = config.plan.blocks.iter().map(entries).sum();
        let share = |plan| config.fixed.cache_size as u128 * entries(plan) / all.max(1);
        let octets = |plan| usize::try_from(share(plan)).expect("a share is no more than the whole");
        let blocks: Vec<Arc<Block>> = config
            .plan
            .blocks
            .iter()
            .map(|plan| Block::put_in_force(plan, &config, octets(plan), before, means))
            .collect::<Result<_, _>>()?;
        let mut at = BTreeMap::<Scheme, BTreeMap<SocketAddr, Vec<Arc<Block>>>>::new();
        for block in &blocks {
            let addresses = bind::addresses(block.plan(), interfaces)
                .map_err(|error| Unfit::Bind(block.plan().origin.clone(), error))?;
            let of_scheme = at.entry(block.plan().scheme).or_default();
            for address in addresses {
                of_scheme.entry(address).or_default().push(Arc::clone(block));
            }
        }
        let mut loader = certificates::CertificateLoader::new(before, &means.metrics);
        let mut tables = |scheme| {
            let at = at.remove(&scheme).unwrap_or_default();
            listener::tables(scheme, &config, &blocks, at, &means.counts, &mut loader)
        };
        let mut encrypted = EncryptedTables::new();
        for scheme in Scheme::ENCRYPTED {
            let tables = tables(scheme)?.into_iter();
            encrypted.extend(tables.map(|(address, table)| ((scheme, address), table)));
        }
        let tables = tables(Scheme::Dns)?;
        let trusted = config.trusted_originals.iter().flatten().map(|server| {
            let plan = config.forward_to_trusted(*server);
            Ok((*server, Forwarder::new(&plan, Arc::clone(&means.metrics))?))
        });
        let trusted = trusted.collect::<Result<_, Unusable>>()?;
        Ok(Self {
            config,
            tables,
            encrypted,
            blocks,
            trusted,
        })
    }

    /// The plan as a word that another has only if it says the same.
    #[must_use]
    pub fn version(&self) -> String {
        let digest = Sha512::digest(format!("{:?}", self.config.plan));
        digest.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    /// Looks for loops, once in each block, at the first address where it answers.
    pub fn look_for_loops(&self, bound: impl Fn(SocketAddr) -> SocketAddr) {
        for (address, table) in &self.tables {
            for entry in table.entries() {
                entry.block.look_for_loops(bound(*address));
            }
        }
    }

    /// Who answers, wherever it is.
    pub fn all_tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values().chain(self.encrypted_tables())
    }

    fn encrypted_tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.encrypted.values()
    }

    /// Tells how much the caches keep.
    pub fn count_caches(&self) {
        for table in self.all_tables() {
            for entry in table.entries() {
                entry.caching(|counts| entry.block.count_cache(counts));
            }
        }
    }

    /// Names of which it is known whether something is below them, and how many there may be.
    #[must_use]
    pub fn cut_figures(&self) -> (usize, usize) {
        let figures = self.blocks.iter().filter_map(|block| block.cuts());
        figures.fold((0, 0), |(names, most), cuts| {
            let more = cuts.figures();
            (names + more.0, most + more.1)
        })
    }

    /// Answers and octets in all caches.
    #[must_use]
    pub fn cache_figures(&self) -> (usize, usize) {
        let figures = self.blocks.iter().map(|block| block.cache_figures());
        figures.fold((0, 0), |(answers, octets), more| {
            (answers + more.0, octets + more.1)
        })
    }
}
