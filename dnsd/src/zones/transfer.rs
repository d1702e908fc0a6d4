//! What the blocks keep goes to a successor, and what its blocks take of it.
//!
//! | of the predecessor's | is taken |
//! |---|---|
//! | a block that another one is like, whatever is logged and where it listens | by that one |
//! | any other block | not |
//! | an answer | with what is left of its TTLs, judged anew by the rules of the cache that takes it |
//! | one whose TTLs were raised to more than these rules say | not: what they were is not known any more |
//! | one for a name that does not go by this cache, or too large | not |

use std::time::Duration;

use egret_shared::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::cache::{Class, Key, Kind, TransferCursor, TransferredEntry, Value};
use crate::config::Config;
use crate::config::model::CacheRules;
use crate::dns::message::Message;
use crate::takeover::state::{Damaged, KeptAnswer, OfBlock};

use super::block::what_is_answered;
use super::{Block, Packed, Serving};

/// Entries that are looked at while whoever answers waits.
const AT_ONCE: usize = 64;

/// A walk through what all blocks keep.
#[derive(Debug)]
pub struct Given<'a> {
    serving: &'a Serving,
    block: usize,
    /// Nothing before the block itself was told.
    walk: Option<TransferCursor>,
}

/// What comes of a step of it.
#[derive(Debug)]
pub enum Step {
    /// A block begins.
    Block(OfBlock),
    /// It keeps these.
    Answers(Vec<KeptAnswer>),
}

impl<'a> Given<'a> {
    /// From the beginning.
    #[must_use]
    pub const fn by(serving: &'a Serving) -> Self {
        Self {
            serving,
            block: 0,
            walk: None,
        }
    }

    /// The next step; nothing at the end.
    pub fn next(&mut self, now: Timestamp) -> Option<Step> {
        loop {
            let block = self.serving.blocks.get(self.block)?;
            let (Some(rules), Some(cache)) = (&block.plan().cache, block.cache()) else {
                self.block += 1;
                continue;
            };
            let Some(walk) = &mut self.walk else {
                self.walk = Some(TransferCursor::default());
                return Some(Step::Block(OfBlock {
                    likeness: likeness(block, &self.serving.config),
                    raised_to: raised_to(rules),
                }));
            };
            let entries = cache.walk(walk, AT_ONCE, now);
            drop(cache);
            match entries {
                Some(entries) => return Some(Step::Answers(entries.iter().filter_map(kept).collect())),
                None => (self.block, self.walk) = (self.block + 1, None),
            }
        }
    }
}

/// The blocks of a successor, before it serves.
#[derive(Debug)]
pub struct Heir<'a> {
    serving: &'a Serving,
    likenesses: Vec<[u8; 32]>,
    /// Which of the blocks take what comes now, and to what TTLs were raised.
    taking: Option<(usize, [Duration; 2])>,
    /// Those that took something already.
    has_taken: Vec<usize>,
}

impl<'a> Heir<'a> {
    /// They have taken nothing yet.
    #[must_use]
    pub fn of(serving: &'a Serving) -> Self {
        let likeness = |block: &std::sync::Arc<Block>| likeness(block, &serving.config);
        Self {
            likenesses: serving.blocks.iter().map(likeness).collect(),
            serving,
            taking: None,
            has_taken: Vec::new(),
        }
    }

    /// A block of the predecessor: of two that are alike each goes to one.
    pub fn block(&mut self, block: &OfBlock) {
        let mut alike = (0..self.likenesses.len()).filter(|at| self.likenesses[*at] == block.likeness);
        let found = alike.find(|at| !self.has_taken.contains(at));
        self.has_taken.extend(found);
        self.taking = found.map(|at| (at, block.raised_to));
    }

    /// An answer that it kept.
    ///
    /// # Errors
    /// When no dnsd would have kept it so.
    pub fn answer(&self, kept: &KeptAnswer, now: Timestamp) -> Result<(), Damaged> {
        match self.taking {
            Some((at, raised_to)) => take(
                &self.serving.blocks[at],
                kept,
                raised_to,
                &self.serving.config,
                now,
            ),
            None => Ok(()),
        }
    }

    /// They have taken nothing.
    pub fn forget(self) {
        for mut cache in self.serving.blocks.iter().filter_map(|block| block.cache()) {
            cache.clear();
        }
    }
}

/// What an answer depends on, besides the rules of the cache: those judge it anew.
fn likeness(block: &Block, config: &Config) -> [u8; 32] {
    let mut answered = what_is_answered(block.plan());
    answered.cache = None;
    let asked = (
        config.total_timeout,
        config.max_udp_size,
        config.ttl,
        &config.protected,
    );
    Sha256::digest(format!("{answered:?} {asked:?}")).into()
}

fn raised_to(rules: &CacheRules) -> [Duration; 2] {
    [rules.success.min_ttl, rules.denial.min_ttl]
}

/// As it is told; nothing where it is not to be: it was kept under another question than it answers.
fn kept(entry: &TransferredEntry<Packed>) -> Option<KeptAnswer> {
    let packed = &entry.value;
    let message = packed.message();
    let key = packed.key().to_vec();
    Key::of_entry(&key)?
        .is_of(message.question(), entry.kind == Kind::NameError)
        .then(|| KeptAnswer {
            key,
            octets: message.octets().to_vec(),
            arrived: entry.arrived,
            provenance: packed.provenance(),
            by: packed.by(),
            failed: packed.failed(),
            demand: entry.demand,
        })
}

fn take(
    block: &Block,
    answer: &KeptAnswer,
    raised_to: [Duration; 2],
    config: &Config,
    now: Timestamp,
) -> Result<(), Damaged> {
    let key = Key::of_entry(&answer.key).ok_or(Damaged::Wrong("a question that is none"))?;
    let message = Message::read(&answer.octets).map_err(|_malformed| Damaged::Wrong("what is no message"))?;
    if !message.is_response() || answer.arrived > now {
        return Err(Damaged::Wrong("an answer that nobody gave"));
    }
    let question = message.question();
    let known = block
        .chain
        .inherited(answer, &config.protected)
        .ok_or(Damaged::Wrong("what is no message"))?;
    let is_of_name = known.kept.is_some_and(|kept| kept.kind == Kind::NameError);
    if !key.is_of(question, is_of_name) && !key.is_of(question, !is_of_name) {
        return Err(Damaged::Wrong("an answer to another question"));
    }
    let (Some(kept), Some(rules), Some(mut cache)) = (known.kept, &block.plan().cache, block.cache()) else {
        return Ok(());
    };
    let class = kept.kind.class();
    let is_raised_less = raised_to[class as usize] <= self::raised_to(rules)[class as usize];
    // Whatever the type where this one says that there is no such name, and for its type alone where not.
    if is_raised_less && key.is_of(question, is_of_name) && cache.covers(&question.name) {
        let pack = |place: &Key| Packed::new(&known, place.as_octets());
        cache.import(&key, pack, kept, answer.arrived, answer.demand);
    }
    Ok(())
}

const _: () = assert!(Class::Success as usize == 0 && Class::Denial as usize == 1);
