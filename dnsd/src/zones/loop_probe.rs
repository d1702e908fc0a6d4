//! Loop detection (`loop`): a query with a random name is sent to the block at start, and must not come back from upstreams.
//!
//! CoreDNS exits in a loop. dnsd goes on: the block's upstreams are not asked, its clients get SERVFAIL with an extended
//! error, its cache and the other blocks answer, and the probe is repeated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egret_shared::rt::task;
use metrics::gauge;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::config::model::Zone;
use crate::dns::message::{Query, QueryParts, WireName, flag, query};

/// The type of the probe: clients hardly ask for it (RFC 8482).
const HINFO: u16 = 13;
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts, one a second, until a probe is answered, as in CoreDNS.
const ATTEMPTS: u32 = 30;
/// The interval of probes during a loop.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The loop detection of a block.
#[derive(Debug)]
pub(super) struct Probe {
    zone: Zone,
    /// The name of the current probe; none where the zone's name is too long for one.
    name: Mutex<Option<WireName>>,
    seen: AtomicU32,
    is_begun: AtomicBool,
    is_looping: AtomicBool,
}

impl Probe {
    pub(super) fn new(zone: Zone) -> Arc<Self> {
        Arc::new(Self {
            name: Mutex::new(name_in(&zone)),
            zone,
            seen: AtomicU32::new(0),
            is_begun: AtomicBool::new(false),
            is_looping: AtomicBool::new(false),
        })
    }

    /// Observes a query. The second one with the probe's name is a loop.
    pub(super) fn observe(&self, query: &Query) {
        if self.is_own(query) && self.seen.fetch_add(1, Ordering::Relaxed) == 1 {
            self.set(true);
        }
    }

    /// Whether a query is the probe.
    pub(super) fn is_own(&self, query: &Query) -> bool {
        query.question.kind == HINFO && *self.name() == Some(query.question.name)
    }

    /// Whether a query may go to upstreams: in a loop only the probe may.
    pub(super) fn lets_pass(&self, query: &Query) -> bool {
        !self.is_looping.load(Ordering::Relaxed) || self.is_own(query)
    }

    /// Starts probing an address of the block, once for each plan.
    pub(super) fn begin(self: &Arc<Self>, address: SocketAddr) {
        if !self.is_begun.swap(true, Ordering::Relaxed) {
            drop(task::spawn(
                "loop",
                watch(Arc::downgrade(self), reachable(address)),
            ));
        }
    }

    fn name(&self) -> std::sync::MutexGuard<'_, Option<WireName>> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, is_looping: bool) {
        let was = self.is_looping.swap(is_looping, Ordering::Relaxed);
        let zone = self.zone.to_string();
        gauge!("egret_dnsd_loop", "zone" => zone.clone()).set(f64::from(u8::from(is_looping)));
        match (was, is_looping) {
            (false, true) => tracing::error!(
                zone,
                "loop: queries to the upstreams come back; the upstreams are not asked, clients get SERVFAIL"
            ),
            (true, false) => tracing::info!(zone, "loop: ended; the upstreams are asked again"),
            (false, false) | (true, true) => {}
        }
    }

    /// Sends a probe. Returns whether the outcome is known.
    async fn probe(&self, address: SocketAddr) -> bool {
        let Some(name) = name_in(&self.zone) else {
            return true;
        };
        self.seen.store(0, Ordering::Relaxed);
        *self.name() = Some(name);
        let answered = timeout(TIMEOUT, ask(&name, address)).await;
        let is_looping = self.seen.load(Ordering::Relaxed) > 1;
        let is_answered = matches!(answered, Ok(Ok(())));
        if is_looping || is_answered {
            self.set(is_looping);
        }
        is_answered || is_looping
    }
}

/// Probes until there is an answer and no loop.
async fn watch(probe: std::sync::Weak<Probe>, address: SocketAddr) {
    let mut left = ATTEMPTS;
    while let Some(probe) = probe.upgrade() {
        let is_known = probe.probe(address).await;
        let is_looping = probe.is_looping.load(Ordering::Relaxed);
        drop(probe);
        left = left.saturating_sub(1);
        match (is_known, is_looping) {
            (_, true) => tokio::time::sleep(RECHECK_INTERVAL).await,
            (false, false) if left > 0 => tokio::time::sleep(Duration::from_secs(1)).await,
            (true, false) => return,
            (false, false) => {
                tracing::warn!("loop: not detected: no probe was answered");
                return;
            }
        }
    }
}

async fn ask(name: &WireName, address: SocketAddr) -> std::io::Result<()> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    let raw_question = [name.as_octets(), &HINFO.to_be_bytes(), &1_u16.to_be_bytes()].concat();
    let octets = query(&QueryParts {
        id: rand::random(),
        flags: flag::RD,
        raw_question: &raw_question,
        edns: None,
        udp_size: 512,
    });
    socket.send(&octets).await?;
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer).await?;
    let rcode = buffer[..length].get(3).map_or(0, |flags| flags & 0xf);
    // A failure does not tell where the probe went.
    if rcode == crate::dns::message::rcode::SERVFAIL {
        return Err(std::io::Error::other("it failed"));
    }
    Ok(())
}

fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        single => single,
    };
    SocketAddr::new(ip, address.port())
}

/// A random name in the zone; none where the zone's name is too long.
fn name_in(zone: &Zone) -> Option<WireName> {
    let [first, second]: [u64; 2] = [rand::random(), rand::random()];
    let below = zone.to_string();
    // The root is written as a dot, which ends the name as it is.
    WireName::parse(&format!("{first}.{second}.{}", below.trim_start_matches('.'))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_probe_has_a_name_of_its_own_below_the_zone() {
        for text in [".", "example.org."] {
            let zone = Zone::new(WireName::parse(text).unwrap());
            let names = [(); 2].map(|()| name_in(&zone).unwrap());
            assert_ne!(names[0], names[1]);
            for name in names {
                assert!(zone.holds(&name) && name.labels().count() >= 2, "{name}");
            }
        }
        let long = format!("{0}.{0}.{0}.{0}", "a".repeat(62));
        assert!(name_in(&Zone::new(WireName::parse(&long).unwrap())).is_none());
    }

    #[test]
    fn the_second_query_with_the_name_is_a_loop_and_others_are_not_counted() {
        let probe = Probe::new(Zone::new(WireName::root()));
        let Some(own) = *probe.name() else {
            panic!("the root leaves room");
        };
        let asking = |name: &WireName| {
            let raw_question = [name.as_octets(), &HINFO.to_be_bytes(), &1_u16.to_be_bytes()].concat();
            let octets = query(&QueryParts {
                id: 1,
                flags: flag::RD,
                raw_question: &raw_question,
                edns: None,
                udp_size: 512,
            });
            Query::read(&octets).unwrap().owned()
        };
        let other = WireName::parse("1.2.example.org").unwrap();
        for _ in 0..3 {
            probe.observe(&asking(&other));
        }
        probe.observe(&asking(&own));
        assert!(probe.lets_pass(&asking(&other)), "once is our own question");
        probe.observe(&asking(&own));
        assert!(!probe.lets_pass(&asking(&other)));
        assert!(probe.lets_pass(&asking(&own)), "what looks again is asked");
    }
}
