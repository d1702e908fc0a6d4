//! Preallocates places in the kernel's list of sets. The kernel extends the list by 64 places at a time, and
//! waits some ten milliseconds each time until nobody uses the old one (`ip_set_create` of
//! net/netfilter/ipset/ip_set_core.c); it never shrinks. A large node's first sync would wait a second. So
//! empty sets that no rule names are created while the source is still being read, and destroyed when the
//! first batch comes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use egret_kernel::Family;
use egret_kernel::ipset::{Error, IpSets, Kind, Reason, SetSpec};

use crate::backend::netfilter::names;

/// As many as the largest node that was measured uses; more are added by the kernel as usual.
const MOST: usize = 8192;
/// Made in one exchange, which nothing ends before its time: as many as the kernel makes room for at once.
const STEP: usize = 64;

/// The state of the preallocation.
#[derive(Debug)]
pub(in crate::backend::netfilter) enum Preallocation {
    /// Not configured, or the first batch came.
    Off,
    /// It starts once the kernel was read.
    Requested,
    /// Sets are being created.
    Running(Preallocator),
}

/// A thread that creates sets. Dropped, the sets are gone, and their places stay.
#[derive(Debug)]
pub(in crate::backend::netfilter) struct Preallocator {
    is_enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Preallocation {
    /// Starts where requested, in the network namespace of this thread. Sets of an earlier life have their places already.
    pub(in crate::backend::netfilter) fn begin_if(&mut self, is_none_there: bool) {
        if !is_none_there || !matches!(self, Self::Requested) {
            return;
        }
        match Preallocator::begin() {
            Ok(making) => *self = Self::Running(making),
            Err(error) => tracing::warn!(%error, "no room is made for sets"),
        }
    }

    /// Ends it; whoever drops what this returns waits until nothing is left but the places.
    pub(in crate::backend::netfilter) fn end(&mut self) -> Option<Preallocator> {
        match std::mem::replace(self, Self::Off) {
            Self::Running(making) => Some(making),
            Self::Off | Self::Requested => None,
        }
    }
}

impl Preallocator {
    fn begin() -> io::Result<Self> {
        let is_enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_enough);
        let make = move || {
            if let Err(error) = make(&told) {
                tracing::warn!(%error, "room for sets cannot be made as it should; a first sync may take a second longer");
            }
        };
        let thread = std::thread::Builder::new().name("room".to_owned()).spawn(make)?;
        Ok(Self {
            is_enough,
            thread: Some(thread),
        })
    }
}

impl Drop for Preallocator {
    fn drop(&mut self) {
        self.is_enough.store(true, Ordering::Relaxed);
        if let Some(Err(_panic)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("what makes room for sets died");
        }
    }
}

/// Destroys the sets of such names.
pub(in crate::backend::netfilter) fn clear(
    sets: &mut IpSets,
    is_such: fn(&str) -> bool,
) -> Result<(), Error> {
    let mut names = sets.names()?;
    names.retain(|name| is_such(name));
    remove(sets, &names)
}

fn make(is_enough: &AtomicBool) -> Result<(), Error> {
    let mut sets = IpSets::open()?;
    let names: Vec<String> = (0..MOST).map(names::preallocated).collect();
    let mut steps = names.chunks(STEP);
    let made = steps.try_for_each(|some| match is_enough.load(Ordering::Relaxed) {
        true => Ok(()),
        false => create(&mut sets, some),
    });
    let cleared = clear(&mut sets, names::is_preallocated);
    made.and(cleared)
}

fn create(sets: &mut IpSets, names: &[String]) -> Result<(), Error> {
    let empty = |name: &String| SetSpec {
        hashsize: 64,
        maxelem: 1,
        ..SetSpec::new(name.as_str(), Kind::HashIp, Family::V4)
    };
    let specs: Vec<SetSpec> = names.iter().map(empty).collect();
    sets.create_all(&specs).into_iter().collect()
}

fn remove(sets: &mut IpSets, names: &[String]) -> Result<(), Error> {
    let is_left = |error: &Error| error.reason() != Some(Reason::NoSuchSet);
    let outcomes = sets.destroy_all(names);
    outcomes
        .into_iter()
        .filter_map(Result::err)
        .find(is_left)
        .map_or(Ok(()), Err)
}
