//! The upstream DNS server: its records are set by the test while it runs, it counts and logs what it is asked, and
//! it can misbehave.
//!
//! hickory-proto carries the messages; the loop around it is ours, because hickory-server replies only with record
//! iterators (no raw bytes) from the socket that was asked: it can neither answer from another address or port, nor
//! with another question, and it does not tell the handler a query's exact bytes.

mod records;
mod answer;
mod serve;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hickory_proto::rr::RecordType;
use tokio::sync::Notify;

pub use records::{Records, Spoof};

use crate::{
    WorldError,
    lookup::Transport,
    upstream_network::{Servers, UpstreamNetwork},
};

/// Where the upstream is usually asked. It answers on every address of the upstream network.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53);
pub const PORT: u16 = 53;

/// A query, as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedQuery {
    /// In the letter case of the query, with its final dot.
    pub name: String,
    pub record_type: RecordType,
    pub transport: Transport,
    pub from: SocketAddr,
    /// The address of the upstream that was asked.
    pub server: IpAddr,
    pub id: u16,
    pub at: Instant,
}

/// The test's handle on the server.
#[derive(Clone, Debug)]
pub struct Upstream {
    zone: Arc<Zone>,
}

/// What the server and the test share. The lock is held for a look-up, never across a wait.
#[derive(Debug, Default)]
pub(crate) struct Zone {
    state: Mutex<State>,
    asked: Condvar,
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    records: HashMap<String, Records>,
    log: Vec<ReceivedQuery>,
}

impl Upstream {
    pub(crate) fn start(upstream_network: &UpstreamNetwork, servers: &Servers) -> Result<Self, WorldError> {
        let zone = Arc::new(Zone::default());
        serve::start(&zone, upstream_network, servers)?;
        Ok(Self { zone })
    }

    /// Says what `name` is from now on; `*.` names stand for all names below without records of their own.
    /// All other names do not exist (NXDOMAIN).
    ///
    /// # Panics
    /// When the name is not below `.test` or `.example`.
    pub fn set(&self, name: &str, records: Records) {
        let name = key(name);
        assert!(
            name.ends_with(".test.") || name.ends_with(".example."),
            "{name} may belong to someone (RFC 2606)"
        );
        self.zone.lock().records.insert(name, records);
    }

    /// Lets the held answers of `name` go, and all later ones.
    pub fn release(&self, name: &str) {
        if let Some(records) = self.zone.lock().records.get_mut(&key(name)) {
            records.held = false;
        }
        self.zone.released.notify_waiters();
    }

    pub fn remove(&self, name: &str) {
        self.zone.lock().records.remove(&key(name));
    }

    /// Everything that was asked, oldest first.
    pub fn log(&self) -> Vec<ReceivedQuery> {
        self.zone.lock().log.clone()
    }

    /// How often `name` was asked, in any letter case, for any type.
    pub fn asked(&self, name: &str) -> usize {
        self.zone.lock().count(&key(name))
    }

    pub fn asked_for(&self, name: &str, record_type: RecordType) -> usize {
        let name = key(name);
        let state = self.zone.lock();
        state
            .log
            .iter()
            .filter(|asked| key(&asked.name) == name && asked.record_type == record_type)
            .count()
    }

    /// Waits until `name` was asked `times` times; `false` if that does not happen in time.
    pub fn wait_until_asked(&self, name: &str, times: usize, patience: Duration) -> bool {
        let name = key(name);
        let state = self.zone.lock();
        let waiting = self
            .zone
            .asked
            .wait_timeout_while(state, patience, |state| state.count(&name) < times);
        !waiting.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub fn clear_log(&self) {
        self.zone.lock().log.clear();
    }
}

impl Zone {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the question and wakes who waits for it.
    pub(crate) fn note(&self, asked: ReceivedQuery) {
        self.lock().log.push(asked);
        self.asked.notify_all();
    }

    /// The records of a name, once its answer may go.
    pub(crate) async fn find_when_due(&self, name: &str) -> Option<Records> {
        loop {
            let released = self.released.notified();
            let records = self.find(name)?;
            if !records.held {
                tokio::time::sleep(records.delay).await;
                return Some(records);
            }
            released.await;
        }
    }

    /// The records of a name, or of the nearest `*.` above it; `None` means that it does not exist.
    pub(crate) fn find(&self, name: &str) -> Option<Records> {
        let state = self.lock();
        let name = key(name);
        let own = state.records.get(&name);
        let mut above = name
            .match_indices('.')
            .map(|(dot, _)| format!("*{}", &name[dot..]));
        own.or_else(|| above.find_map(|wildcard| state.records.get(&wildcard)))
            .cloned()
    }
}

impl State {
    fn count(&self, name: &str) -> usize {
        self.log.iter().filter(|asked| key(&asked.name) == name).count()
    }
}

/// One spelling for a name: lower case, with its final dot.
fn key(name: &str) -> String {
    format!("{}.", name.trim_end_matches('.').to_ascii_lowercase())
}
