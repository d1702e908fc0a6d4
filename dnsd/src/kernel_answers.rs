//! Answers that the kernel gives in dnsd's place: to a query that a pod repeats while dnsd would answer it from the cache without
//! recording anything. A program at the pod's interface (`bpf/answers.bpf.c`) finds it in a map.
//!
//! ```text
//!  pod ──▶ veth ──▶ program ── an answer is there, nothing has changed since, the enforcer permits the pod ──▶ reply
//!                      └────── else ──▶ netfilter ──▶ dnsd
//! ```
//!
//! | what ends an answer | how |
//! |---|---|
//! | its TTL, the records of its addresses, the identity of its pod, which dnsd looks up again after a second | its own end, on the kernel's clock |
//! | a cached answer is replaced, evicted or contradicted; a record or a policy's interest changes; another configuration | a new *generation*: all answers of earlier ones are void |
//! | dnsd hangs | the same: an answer lives for a second at most |
//! | dnsd ends, or is killed | its descriptors are closed, which detaches the program |
//! | the enforcer is about to change the pod's rules | it takes the permit away first |
//!
//! The interface has the program from the first answer that is learned there.

mod layout;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use egret_kernel::bpf::{InterfaceLink, Map, Object, ObjectError, Program, Update};
use egret_kernel::dns_permits::{PROGRAM, Permits};
use egret_shared::time::Timestamp;

use crate::hash::{HashMap, RandomState};

use layout::{ANSWERS, GENERATION, Key, MAX_ANSWERS, SCRATCH, SERIES};

pub use layout::{Answer, MAX_SERIES};

const OBJECT: &[u8] = include_bytes!("../bpf/answers.bpf.o");
/// How often answers that have ended are removed.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(300);
/// An answer is learned when its query comes a second time within this time.
const REPEATED_WITHIN: Duration = Duration::from_secs(2);
/// Queries of which it is known when they came last.
const RECENT: usize = 4096;
/// A link at which nothing was learned for this time is taken away.
const UNUSED: Duration = Duration::from_secs(60);
/// How long nothing is learned after another configuration: queries that began with the one before have ended by then.
const QUIET: Duration = Duration::from_secs(1);

/// The answers; none before they are [opened](Self::open).
#[derive(Debug, Default)]
pub struct KernelAnswers(OnceLock<Opened>);

/// Why the kernel does not answer.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A map cannot be made.
    #[error("a map cannot be made: {0}")]
    Map(#[from] io::Error),
    /// The program cannot be loaded.
    #[error(transparent)]
    Program(#[from] ObjectError),
}

struct Opened {
    answers: Map,
    /// What the program compares with.
    present: Map,
    series: Map,
    program: Program,
    hash: RandomState,
    /// The generation that new answers get.
    generation: AtomicU64,
    inner: Mutex<Inner>,
}

/// Held for a system call or two.
struct Inner {
    /// Nothing is learned before; none: nothing at all.
    learns_from: Option<Timestamp>,
    /// Queries that came to dnsd, by their hash.
    recent: Box<[Recent]>,
    /// The answers in the map, with their ends in milliseconds, in the order in which they came.
    learned: VecDeque<(u64, Box<Key>)>,
    /// By interface, with the last time that something was learned there. None while it is attached.
    links: HashMap<u32, (Option<InterfaceLink>, Timestamp)>,
}

/// A query that came to dnsd.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    hash: u64,
    /// In milliseconds, as the others.
    came: u64,
    /// Its answer is in the map until then, in this generation.
    learned_until: u64,
    generation: u64,
}

/// A query whose answer is worth learning: its place among recent ones.
#[derive(Clone, Copy, Debug)]
pub struct Repeated(usize);

impl KernelAnswers {
    /// Loads the program, and opens the permits that the enforcer writes into this directory.
    ///
    /// # Errors
    /// When the kernel refuses. Nothing is opened then.
    pub fn open(&self, permits: &Path, now: Timestamp) -> Result<(), OpenError> {
        let permits = Permits::create(permits)?;
        let answers = Map::create("dns_answers", ANSWERS)?;
        let present = Map::create("dns_generation", GENERATION)?;
        let series = Map::create("dns_series", SERIES)?;
        let scratch = Map::create("dns_scratch", SCRATCH)?;
        let maps = BTreeMap::from([
            ("answers", &answers),
            ("generation", &present),
            ("series", &series),
            ("scratch", &scratch),
            ("permits", permits.of_pods()),
            ("verdicts", permits.verdicts()),
        ]);
        let program = Object::new(OBJECT).load("classifier", PROGRAM, &maps)?;
        // Nobody else opens it.
        drop(self.0.set(Opened {
            answers,
            present,
            series,
            program,
            hash: RandomState::default(),
            // As in the new map.
            generation: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                learns_from: Some(now),
                recent: vec![Recent::default(); RECENT].into(),
                learned: VecDeque::new(),
                links: HashMap::default(),
            }),
        }));
        Ok(())
    }

    /// The present generation, to be read before the query is looked at; none while nothing is learned.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        Some(self.0.get()?.generation.load(Ordering::Acquire))
    }

    /// Voids all answers: what dnsd would say has changed, or is about to.
    pub fn void(&self) {
        if let Some(opened) = self.0.get() {
            opened.void(&mut opened.lock());
        }
    }

    /// As [`void`](Self::void), after another configuration.
    pub fn void_for_configuration(&self, now: Timestamp) {
        if let Some(opened) = self.0.get() {
            let mut inner = opened.lock();
            opened.void(&mut inner);
            inner.learns_from = inner.learns_from.map(|_| now.after(QUIET));
        }
    }

    /// Ends all answers and takes the program away: another dnsd answers, or none.
    pub fn suspend(&self) {
        if let Some(opened) = self.0.get() {
            let mut inner = opened.lock();
            inner.learns_from = None;
            opened.void(&mut inner);
            inner.links.clear();
        }
    }

    /// Learns again.
    pub fn resume(&self, now: Timestamp) {
        if let Some(opened) = self.0.get() {
            opened.lock().learns_from = Some(now);
        }
    }

    /// Removes answers that have ended, every [`SWEEP_INTERVAL`], and the program where it is not used.
    pub fn sweep(&self, now: Timestamp) {
        if let Some(opened) = self.0.get() {
            let mut inner = opened.lock();
            opened.remove_ended(&mut inner, now);
            inner.links.retain(|_, (_, used)| now < used.after(UNUSED));
        }
    }

    /// Whether a query came before within `REPEATED_WITHIN`: then its answer is worth learning. Not if it is in the map: the kernel
    /// does not give it, because the pod has no permit.
    pub fn is_repeated(&self, answer: &Answer<'_>, now: Timestamp) -> Option<Repeated> {
        let (opened, key) = self.0.get().zip(answer.key())?;
        let mut inner = opened.lock();
        if inner.learns_from.is_none_or(|from| now < from) {
            return None;
        }
        let hash = std::hash::BuildHasher::hash_one(&opened.hash, key.as_slice());
        let index = usize::try_from(hash % RECENT as u64).expect("a few thousand");
        let recent = &mut inner.recent[index];
        let now_millis = now.as_millis();
        if recent.hash != hash {
            *recent = Recent {
                hash,
                came: now_millis,
                ..Recent::default()
            };
            return None;
        }
        let before = Timestamp::from_millis(std::mem::replace(&mut recent.came, now_millis));
        let is_learned = now_millis < recent.learned_until && recent.generation == answer.generation;
        (!is_learned && now < before.after(REPEATED_WITHIN)).then_some(Repeated(index))
    }

    /// Lets the kernel give this answer. What cannot be learned stays dnsd's.
    pub fn learn(self: &Arc<Self>, answer: &Answer<'_>, repeated: Repeated, now: Timestamp) {
        let Some((opened, (key, value))) = self.0.get().zip(answer.encode()) else {
            return;
        };
        let mut inner = opened.lock();
        if inner.learns_from.is_none_or(|from| now < from) || inner.learned.len() >= MAX_ANSWERS {
            return;
        }
        if let Err(error) = opened
            .answers
            .update(key.as_slice(), value.as_slice(), Update::Any)
        {
            tracing::debug!(%error, "an answer cannot be given to the kernel");
            return;
        }
        inner.learned.push_back((answer.expires.as_millis(), key));
        let recent = &mut inner.recent[repeated.0];
        (recent.learned_until, recent.generation) = (answer.expires.as_millis(), answer.generation);
        let interface = answer.interface;
        match inner.links.get_mut(&interface) {
            Some((_, used)) => *used = now,
            None => {
                inner.links.insert(interface, (None, now));
                drop(inner);
                let all = Arc::clone(self);
                // It waits for whoever changes interfaces.
                drop(tokio::task::spawn_blocking(move || all.attach(interface)));
            }
        }
    }

    /// How many queries of a series the kernel has answered.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn answered(&self, series: u32) -> io::Result<u64> {
        let Some(opened) = self.0.get() else {
            return Ok(0);
        };
        let value = opened.series.lookup(&series.to_ne_bytes())?;
        let value = value.and_then(|value| value.first_chunk().copied());
        Ok(value.map_or(0, u64::from_ne_bytes))
    }

    fn attach(&self, interface: u32) {
        let Some(opened) = self.0.get() else {
            return;
        };
        match opened.program.attach(interface) {
            Ok(link) => {
                if let Some((place, _)) = opened.lock().links.get_mut(&interface) {
                    *place = Some(link);
                }
            }
            // It is tried again with the next answer.
            Err(error) => {
                opened.lock().links.remove(&interface);
                tracing::debug!(interface, %error, "an interface takes no program");
            }
        }
    }
}

impl Opened {
    /// `inner` is locked: generations are written in their order. Without the kernel's consent nothing is learned any more, and what
    /// was learned ends within a second.
    fn void(&self, inner: &mut Inner) {
        let next = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        if let Err(error) = self
            .present
            .update(&0_u32.to_ne_bytes(), &next.to_ne_bytes(), Update::Any)
        {
            tracing::error!(%error, "the answers of the kernel cannot be ended at once: it learns no more");
            inner.learns_from = None;
        }
    }

    fn remove_ended(&self, inner: &mut Inner, now: Timestamp) {
        while inner
            .learned
            .front()
            .is_some_and(|(end, _)| *end <= now.as_millis())
        {
            let Some((_, key)) = inner.learned.pop_front() else {
                return;
            };
            let later = self.answers.lookup(key.as_slice()).ok().flatten();
            // It may have been learned again since.
            if later.is_none_or(|value| layout::end_of(&value) <= now)
                && let Err(error) = self.answers.delete(key.as_slice())
            {
                tracing::debug!(%error, "an answer that has ended stays in the kernel's map");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}
