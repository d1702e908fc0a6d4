//! The server blocks at work: which block answers at which address for which name.
//!
//! ```text
//!  socket ──▶ Port ──▶ ZoneTable ──▶ Entry (the longest zone that holds the name) ──▶ Block ──▶ its cache, its chain
//! ```
//!
//! A plan that is put in force makes a new `ActiveConfig`. It reuses each block of the one before that is
//! written alike, and the cache of each block that answers alike. Pending queries keep the configuration that they began
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
mod metrics;
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
use crate::kernel_answers::KernelAnswers;
use crate::upstream::{self, Forwarder, InvalidForward, TlsError, look_up};

pub use self::metrics::{Metrics, PreQueryResult};

pub use answer_source::AnswerSource;
pub use bind::{BindError, Interfaces, host_interfaces};
pub use binding::{Cancellation, PacketInfo, QueryContext, ZoneBinding};
pub use block::{ResolvedAnswer, ServerBlock};
pub(crate) use counters::Series;
pub use counters::{CacheCounters, CoreDnsCounters, ZoneCounters};
pub use failure::ResolveError;
pub use listener::{Listener, ZoneTable};
pub use local_plugins::InvalidLocalPlugin;
pub use log_writer::LogWriter;
pub use query_log::AnsweredQuery;
pub use stored_answer::StoredAnswer;
pub use table::ZoneBindings;
pub use transfer::{AnswerRecord, BlockRecord, CacheExport, CacheImport, ExportStep, InvalidCacheRecord};

/// Counters and logs, which all blocks share.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Of server blocks.
    pub metrics: Arc<Metrics>,
    /// Of upstreams.
    pub upstream: Arc<upstream::Metrics>,
    /// CoreDNS' counters.
    pub counts: Arc<CoreDnsCounters>,
    /// Writes the lines of `log` and `errors`.
    pub log_writer: LogWriter,
    /// Answers of the kernel, which a change of a cache ends.
    pub kernel_answers: Arc<KernelAnswers>,
}

/// Who answers at each address, for each scheme.
pub type EncryptedTables = BTreeMap<(Scheme, SocketAddr), Arc<ZoneTable>>;

/// A configuration in force.
#[derive(Debug)]
pub struct ActiveConfig {
    /// The configuration.
    pub config: Arc<Config>,
    /// The zones of each address; a wildcard's table has those of single addresses on the same port, too.
    pub tables: BTreeMap<SocketAddr, Arc<ZoneTable>>,
    /// The same where queries are encrypted.
    pub encrypted: EncryptedTables,
    /// The blocks, in the order of the plan.
    pub blocks: Vec<Arc<ServerBlock>>,
    /// Trusted resolvers, where intercepted queries go to the resolver that the pod chose.
    pub trusted: BTreeMap<IpAddr, Forwarder>,
}

/// Why a plan cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPlan {
    /// The addresses of a block cannot be resolved.
    #[error("{0}: {1}")]
    Bind(String, BindError),
    /// The upstreams of a block cannot be resolved.
    #[error(transparent)]
    Forward(#[from] InvalidForward),
    /// A local plugin of a block cannot be set up.
    #[error("{0}: {1}")]
    LocalPlugin(String, InvalidLocalPlugin),
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
    /// Two blocks have the same zone at the same address.
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

/// The capacity of a block's cache in answers. Memory is divided among the caches in proportion to it, so that a Corefile's
/// `cache` decides where memory goes, and no cache takes from another.
fn capacity(plan: &model::Block) -> u128 {
    let rules = plan.cache.as_ref();
    rules.map_or(0, |rules| {
        rules.success.entries as u128 + rules.denial.entries as u128
    })
}

impl ActiveConfig {
    /// Replaces the names of upstreams by their addresses.
    ///
    /// # Errors
    /// When a name has no address.
    pub async fn look_up(
        mut config: Config,
        metrics: &Arc<upstream::Metrics>,
    ) -> Result<Config, InvalidPlan> {
        for forward in config.plan.blocks.iter_mut().flat_map(|block| &mut block.forward) {
            *forward = look_up(forward, metrics).await?;
        }
        Ok(config)
    }

    /// Puts a configuration in force after `before`, which pending queries go on using.
    ///
    /// # Errors
    /// When the plan is invalid; then `before` stays.
    pub fn new(
        config: Config,
        before: Option<&Self>,
        interfaces: &Interfaces<'_>,
        telemetry: &Telemetry,
    ) -> Result<Self, InvalidPlan> {
        let config = Arc::new(config);
        let all: u128 = config.plan.blocks.iter().map(capacity).sum();
        let share = |plan| config.fixed.cache_size as u128 * capacity(plan) / all.max(1);
        let octets = |plan| usize::try_from(share(plan)).expect("a share is no more than the whole");
        let blocks: Vec<Arc<ServerBlock>> = config
            .plan
            .blocks
            .iter()
            .map(|plan| ServerBlock::put_in_force(plan, &config, octets(plan), before, telemetry))
            .collect::<Result<_, _>>()?;
        let mut at = BTreeMap::<Scheme, BTreeMap<SocketAddr, Vec<Arc<ServerBlock>>>>::new();
        for block in &blocks {
            let addresses = bind::addresses(block.plan(), interfaces)
                .map_err(|error| InvalidPlan::Bind(block.plan().origin.clone(), error))?;
            let of_scheme = at.entry(block.plan().scheme).or_default();
            for address in addresses {
                of_scheme.entry(address).or_default().push(Arc::clone(block));
            }
        }
        let mut loader = certificates::CertificateLoader::new(before, &telemetry.metrics);
        let mut tables = |scheme| {
            let at = at.remove(&scheme).unwrap_or_default();
            listener::tables(scheme, &config, &blocks, at, &telemetry.counts, &mut loader)
        };
        let mut encrypted = EncryptedTables::new();
        for scheme in Scheme::ENCRYPTED {
            let tables = tables(scheme)?.into_iter();
            encrypted.extend(tables.map(|(address, table)| ((scheme, address), table)));
        }
        let tables = tables(Scheme::Dns)?;
        let trusted = config.trusted_originals.iter().flatten().map(|server| {
            let plan = config.forward_to_trusted(*server);
            Ok((*server, Forwarder::new(&plan, Arc::clone(&telemetry.upstream))?))
        });
        let trusted = trusted.collect::<Result<_, InvalidForward>>()?;
        Ok(Self {
            config,
            tables,
            encrypted,
            blocks,
            trusted,
        })
    }

    /// A digest of the plan.
    #[must_use]
    pub fn version(&self) -> String {
        let digest = Sha512::digest(format!("{:?}", self.config.plan));
        digest.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    /// Starts the loop detection of each block, at its first address.
    pub fn look_for_loops(&self, bound: impl Fn(SocketAddr) -> SocketAddr) {
        for (address, table) in &self.tables {
            for binding in table.entries() {
                binding.block.look_for_loops(bound(*address));
            }
        }
    }

    /// Who answers, wherever it is.
    pub fn all_tables(&self) -> impl Iterator<Item = &Arc<ZoneTable>> {
        self.tables.values().chain(self.encrypted_tables())
    }

    fn encrypted_tables(&self) -> impl Iterator<Item = &Arc<ZoneTable>> {
        self.encrypted.values()
    }

    /// Updates CoreDNS' counters of the caches' sizes.
    pub fn count_caches(&self) {
        for table in self.all_tables() {
            for binding in table.entries() {
                binding.count_cache(|counts| binding.block.count_cache(counts));
            }
        }
    }

    /// Names in the NXDOMAIN cuts, and their limit.
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
