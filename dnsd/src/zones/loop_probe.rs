//! Whether what a block asks comes back to itself (`loop`): a question with a name that nobody else knows is asked at
//! start, and must not come a second time.
//!
//! CoreDNS ends then. dnsd stays: the block's upstreams are not asked, its clients are told SERVFAIL with the reason,
//! its cache and the other blocks answer, and every while it is looked again.

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

/// The type of the question: hardly anybody asks for it (RFC 8482 gave it a use that has no such names).
const HINFO: u16 = 13;
/// How long an answer to it is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it is tried until somebody answers, as in CoreDNS.
const TRIES: u32 = 30;
/// How often a loop is looked at again.
const AGAIN: Duration = Duration::from_secs(30);

/// The look-out of a block.
#[derive(Debug)]
pub(super) struct Probe {
    zone: Zone,
    /// The name that is asked for now; none where the zone leaves no room for one.
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

    /// A query came. The second with the name is a loop.
    pub(super) fn note(&self, query: &Query) {
        if self.is_own(query) && self.seen.fetch_add(1, Ordering::Relaxed) == 1 {
            self.set(true);
        }
    }

    /// Whether it is the question that looks for a loop.
    pub(super) fn is_own(&self, query: &Query) -> bool {
        query.question.kind == HINFO && *self.name() == Some(query.question.name)
    }

    /// Whether a query may go to upstreams: of a loop, only what looks whether it still is one.
    pub(super) fn lets_pass(&self, query: &Query) -> bool {
        !self.is_looping.load(Ordering::Relaxed) || self.is_own(query)
    }

    /// Looks, once for each plan, at the address where the block answers.
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
                "loop: what is asked of the upstreams comes back here; they are not asked, clients get SERVFAIL"
            ),
            (true, false) => tracing::info!(zone, "loop: it is gone; the upstreams are asked again"),
            (false, false) | (true, true) => {}
        }
    }

    /// Asks; tells whether somebody answered.
    async fn look(&self, address: SocketAddr) -> bool {
        let Some(name) = name_in(&self.zone) else {
            return true;
        };
        self.seen.store(0, Ordering::Relaxed);
        *self.name() = Some(name);
        let answered = timeout(PATIENCE, ask(&name, address)).await;
        let is_looping = self.seen.load(Ordering::Relaxed) > 1;
        let is_answered = matches!(answered, Ok(Ok(())));
        if is_looping || is_answered {
            self.set(is_looping);
        }
        is_answered || is_looping
    }
}

/// Until somebody answers and there is no loop.
async fn watch(probe: std::sync::Weak<Probe>, address: SocketAddr) {
    let mut left = TRIES;
    while let Some(probe) = probe.upgrade() {
        let is_known = probe.look(address).await;
        let is_looping = probe.is_looping.load(Ordering::Relaxed);
        drop(probe);
        left = left.saturating_sub(1);
        match (is_known, is_looping) {
            (_, true) => tokio::time::sleep(AGAIN).await,
            (false, false) if left > 0 => tokio::time::sleep(Duration::from_secs(1)).await,
            (true, false) => return,
            (false, false) => {
                tracing::warn!("loop: whether upstreams lead back here cannot be told: nobody answers");
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
    // Failures say nothing of where the question went.
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

/// A name that nobody can guess; none where the zone leaves no room for one.
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
            probe.note(&asking(&other));
        }
        probe.note(&asking(&own));
        assert!(probe.lets_pass(&asking(&other)), "once is our own question");
        probe.note(&asking(&own));
        assert!(!probe.lets_pass(&asking(&other)));
        assert!(probe.lets_pass(&asking(&own)), "what looks again is asked");
    }
}
