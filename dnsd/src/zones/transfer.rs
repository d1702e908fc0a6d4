//! The caches on their way to a new process.
//!
//! | of the old process | the new process |
//! |---|---|
//! | the cache of a block that answers alike, wherever it listens and whatever it logs | takes its answers |
//! | any other cache | drops it |
//! | an answer | keeps it for the rest of its TTLs, if the own cache rules say so |
//! | an answer whose TTLs were raised above the own `min_ttl` | drops it: the original TTLs are lost |
//! | an answer for a name outside of the cache's zones, or too large | drops it |

use std::time::Duration;

use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cache::{Class, Demand, Key, Kind, Provenance, TransferCursor, TransferredEntry, Value};
use crate::config::Config;
use crate::config::model::CacheRules;
use crate::dns::message::Message;

use super::block::answering_part;
use super::{ActiveConfig, AnswerSource, ResolveError, ServerBlock, StoredAnswer};

/// Entries read under one lock of the cache.
const BATCH: usize = 64;

/// A server block, before the answers of its cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// A digest that two blocks share if and only if they answer alike.
    pub digest: [u8; 32],
    /// The cache's minimum TTL of answers and of denials.
    pub min_ttl: [Duration; 2],
}

/// A cached answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// The cache key.
    pub key: Vec<u8>,
    /// The message, with the TTLs that it had when it arrived.
    pub octets: Vec<u8>,
    /// When it arrived.
    pub arrived: Timestamp,
    /// Whether an upstream or dnsd itself made it.
    pub provenance: Provenance,
    /// The part of the chain that made it.
    pub source: AnswerSource,
    /// The failure that it reports, if it reports one.
    pub error: Option<ResolveError>,
    /// How often it was asked for.
    pub demand: Demand,
}

/// A value that no dnsd writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCacheRecord(pub &'static str);

/// An iteration over all caches.
#[derive(Debug)]
pub struct CacheExport<'a> {
    serving: &'a ActiveConfig,
    block: usize,
    /// None until the block's own record was emitted.
    walk: Option<TransferCursor>,
}

/// One step of [`CacheExport`].
#[derive(Debug)]
pub enum ExportStep {
    /// The next block.
    Block(BlockRecord),
    /// Some answers of its cache.
    Answers(Vec<AnswerRecord>),
}

impl<'a> CacheExport<'a> {
    /// Starts with the first block.
    #[must_use]
    pub const fn new(serving: &'a ActiveConfig) -> Self {
        Self {
            serving,
            block: 0,
            walk: None,
        }
    }

    /// The next step; none at the end.
    pub fn next(&mut self, now: Timestamp) -> Option<ExportStep> {
        loop {
            let block = self.serving.blocks.get(self.block)?;
            let (Some(rules), Some(cache)) = (&block.plan().cache, block.cache()) else {
                self.block += 1;
                continue;
            };
            let Some(walk) = &mut self.walk else {
                self.walk = Some(TransferCursor::default());
                return Some(ExportStep::Block(BlockRecord {
                    digest: digest(block, &self.serving.config),
                    min_ttl: min_ttl(rules),
                }));
            };
            let entries = cache.walk(walk, BATCH, now);
            drop(cache);
            match entries {
                Some(entries) => {
                    return Some(ExportStep::Answers(entries.iter().filter_map(record).collect()));
                }
                None => (self.block, self.walk) = (self.block + 1, None),
            }
        }
    }
}

/// The caches of a new process, before it serves.
#[derive(Debug)]
pub struct CacheImport<'a> {
    serving: &'a ActiveConfig,
    digests: Vec<[u8; 32]>,
    /// The block that takes the answers that come now, and the minimum TTLs of the old process's cache.
    taking: Option<(usize, [Duration; 2])>,
    /// The blocks that an old block was assigned to.
    assigned: Vec<usize>,
}

impl<'a> CacheImport<'a> {
    /// For the caches of this configuration.
    #[must_use]
    pub fn new(serving: &'a ActiveConfig) -> Self {
        let digest = |block: &std::sync::Arc<ServerBlock>| digest(block, &serving.config);
        Self {
            digests: serving.blocks.iter().map(digest).collect(),
            serving,
            taking: None,
            assigned: Vec::new(),
        }
    }

    /// Assigns a block of the old process: of two that answer alike, each goes to a block of its own.
    pub fn block(&mut self, block: &BlockRecord) {
        let mut alike = (0..self.digests.len()).filter(|at| self.digests[*at] == block.digest);
        let found = alike.find(|at| !self.assigned.contains(at));
        self.assigned.extend(found);
        self.taking = found.map(|at| (at, block.min_ttl));
    }

    /// Takes an answer of that block.
    ///
    /// # Errors
    /// When no dnsd writes such a record.
    pub fn answer(&self, record: &AnswerRecord, now: Timestamp) -> Result<(), InvalidCacheRecord> {
        match self.taking {
            Some((at, old_min_ttl)) => take(
                &self.serving.blocks[at],
                record,
                old_min_ttl,
                &self.serving.config,
                now,
            ),
            None => Ok(()),
        }
    }

    /// Empties all caches.
    pub fn discard(self) {
        for mut cache in self.serving.blocks.iter().filter_map(|block| block.cache()) {
            cache.clear();
        }
    }
}

/// Covers all that an answer depends on but the cache rules: those are applied to each answer again.
fn digest(block: &ServerBlock, config: &Config) -> [u8; 32] {
    let mut answered = answering_part(block.plan());
    answered.cache = None;
    let asked = (
        config.total_timeout,
        config.max_udp_size,
        config.ttl,
        &config.protected,
    );
    Sha256::digest(format!("{answered:?} {asked:?}")).into()
}

fn min_ttl(rules: &CacheRules) -> [Duration; 2] {
    [rules.success.min_ttl, rules.denial.min_ttl]
}

/// The record of a cache entry; none where the entry's key is not that of the message's question.
fn record(entry: &TransferredEntry<StoredAnswer>) -> Option<AnswerRecord> {
    let packed = &entry.value;
    let message = packed.message();
    let key = packed.key().to_vec();
    Key::of_entry(&key)?
        .is_of(message.question(), entry.kind == Kind::NameError)
        .then(|| AnswerRecord {
            key,
            octets: message.octets().to_vec(),
            arrived: entry.arrived,
            provenance: packed.provenance(),
            source: packed.source(),
            error: packed.error(),
            demand: entry.demand,
        })
}

fn take(
    block: &ServerBlock,
    answer: &AnswerRecord,
    old_min_ttl: [Duration; 2],
    config: &Config,
    now: Timestamp,
) -> Result<(), InvalidCacheRecord> {
    let key = Key::of_entry(&answer.key).ok_or(InvalidCacheRecord("a key that is no question"))?;
    let message = Message::read(&answer.octets)
        .map_err(|_malformed| InvalidCacheRecord("an answer that is no message"))?;
    if !message.is_response() || answer.arrived > now {
        return Err(InvalidCacheRecord("an answer that is none, or of the future"));
    }
    let question = message.question();
    let resolved = block
        .chain
        .inherited(answer, &config.protected)
        .ok_or(InvalidCacheRecord("an answer that is no message"))?;
    let is_of_name = resolved
        .cacheable
        .is_some_and(|kept| kept.kind == Kind::NameError);
    if !key.is_of(question, is_of_name) && !key.is_of(question, !is_of_name) {
        return Err(InvalidCacheRecord("an answer to another question"));
    }
    let (Some(cacheable), Some(rules), Some(mut cache)) =
        (resolved.cacheable, &block.plan().cache, block.cache())
    else {
        return Ok(());
    };
    let class = cacheable.kind.class();
    let has_own_ttls = old_min_ttl[class as usize] <= min_ttl(rules)[class as usize];
    // NXDOMAIN is keyed by name, all else by name and type.
    if has_own_ttls && key.is_of(question, is_of_name) && cache.covers(&question.name) {
        let pack = |place: &Key| StoredAnswer::new(&resolved, place.as_octets());
        cache.import(&key, pack, cacheable, answer.arrived, answer.demand);
    }
    Ok(())
}

const _: () = assert!(Class::Success as usize == 0 && Class::Denial as usize == 1);
