//! Observations on the link: when they are sent, and that delayed ones do not delay awaited ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::borrow::Cow;
use std::future::Future as _;
use std::io::Read as _;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use egret_dnsd::enforcement::Metrics;
use egret_dnsd::enforcement::client::{ClientId, ClientLookup};
use egret_dnsd::enforcement::gate::{Gate, GateLimits, Origin, Verdict};
use egret_dnsd::enforcement::gated::{Admission, ResponseGate};
use egret_dnsd::enforcement::link;
use egret_dnsd::enforcement::observation::{AnswerObservation, observe};
use egret_dnsd::enforcement::records::RecordLimits;
use egret_kernel::links::Attachment;
use egret_shared::link::{Frame, FrameDecoder, Interest, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::{DnsdInstance, Sequence};
use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use hickory_proto::rr::RecordType;
use proptest::prelude::*;
use support::{address, matched, response};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::time::timeout;
use whole::{Loopback, PATIENCE};

const POD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const LIMITS: GateLimits = GateLimits {
    deadline: Duration::from_secs(4),
    per_client: 1_000,
    total: 1_000,
    records: RecordLimits {
        per_client: 10_000,
        total: 10_000,
        grace: Duration::from_secs(30),
    },
};
/// How long what nobody waits for is kept back at most.
const TOGETHER: u64 = 10;

fn client_id() -> ClientId {
    ClientId {
        address: POD,
        attachment: Some(Attachment::to(&"a cable")),
    }
}

fn told(name: &str, host: u8) -> AnswerObservation {
    let text = format!("192.0.2.{host}");
    let answer = matched(name, RecordType::A, |query| {
        response(query, vec![address(name, 600, &text)])
    });
    observe(&answer, &[]).0.unwrap()
}

fn interest() -> ToDnsd {
    let patterns = vec!["*.example.test".parse().unwrap()];
    ToDnsd::Interest(Interest { pod: POD, patterns })
}

fn realized(told: &[ToEnforcer]) -> Option<ToDnsd> {
    let numbers = told.iter().filter_map(|message| match message {
        ToEnforcer::Observed { sequence, .. } => Some(*sequence),
        ToEnforcer::Hello(_)
        | ToEnforcer::ResyncStarted
        | ToEnforcer::ResyncEnded { .. }
        | ToEnforcer::Holding { .. } => None,
    });
    let failed = Vec::new();
    numbers
        .max()
        .map(|through: Sequence| ToDnsd::Realized { through, failed })
}

fn gate() -> (Arc<ResponseGate>, Arc<Metrics>) {
    let client_lookup = Arc::new(ClientLookup::new(Box::new(Loopback)));
    let metrics = Arc::new(Metrics::register());
    let gate = ResponseGate::new(LIMITS, clock::now(), client_lookup, Arc::clone(&metrics));
    (Arc::new(gate), metrics)
}

/// The enforcer is at something else, so that at some time there is no room for more.
#[tokio::test]
async fn sent_observations_can_be_read_after_dnsd_ends() {
    let socket = std::env::temp_dir().join(format!("egret-telling-{}.sock", std::process::id()));
    drop(std::fs::remove_file(&socket));
    let listener = UnixListener::bind(&socket).unwrap();
    let (gate, metrics) = gate();
    let keep = link::keep(
        socket.as_path().into(),
        DnsdInstance::from_random(1),
        Arc::clone(&gate),
        metrics,
    );
    let link = task::spawn("link", keep);
    let (mut enforcer, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let mut hello = Vec::new();
    encode(
        DnsdInstance::from_random(2),
        &ToDnsd::InterestComplete,
        &mut hello,
    );
    enforcer.write_all(&hello).await.unwrap();
    while !gate.stats().is_interest_known {
        tokio::task::yield_now().await;
    }
    let mut gone = 0;
    loop {
        let told = told(&format!("n{gone}.other.test"), 1);
        let admission = gate.admit(
            client_id(),
            POD.into(),
            Cow::Owned(told),
            Origin::Upstream,
            clock::now(),
        );
        assert!(matches!(admission, Admission::Now));
        if timeout(Duration::from_millis(300), gate.tell_rest())
            .await
            .is_err()
        {
            break;
        }
        gone += 1;
    }
    link.abort();
    drop(link.await);
    let mut enforcer = enforcer.into_std().unwrap();
    enforcer.set_nonblocking(false).unwrap();
    let (mut octets, mut decoder, mut read) = (Vec::new(), FrameDecoder::default(), 0);
    enforcer.read_to_end(&mut octets).unwrap();
    decoder.push(&octets);
    while let Some(frame) = decoder.next_frame().unwrap() {
        read += usize::from(matches!(frame, Frame::Message(_, ToEnforcer::Observed { .. })));
    }
    assert!(gone > 1, "there is room for some");
    assert!(read >= gone, "{gone} had gone, and {read} are there");
}

/// Some names are waited for (those of `example.test`), others not, in any order; the link takes what is due, and the
/// enforcer has it at once.
#[derive(Clone, Debug)]
enum Step {
    Ask { is_waited_for: bool, name: u8 },
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), 0..40_u8).prop_map(|(is_waited_for, name)| Step::Ask { is_waited_for, name }),
        2 => (0..12_u64).prop_map(Step::Pass),
    ]
}

fn domain(is_waited_for: bool) -> &'static str {
    if is_waited_for {
        "example.test"
    } else {
        "other.test"
    }
}

proptest! {
    /// In simulated time, so that any delay at all is seen.
    #[test]
    fn delayed_observations_do_not_delay_awaited_ones(steps in prop::collection::vec(step(), 1..60)) {
        let mut now = Timestamp::from_millis(10_000);
        let mut hold = Gate::new(LIMITS, now);
        hold.connected(now);
        hold.receive(interest(), now);
        hold.receive(ToDnsd::InterestComplete, now);
        let mut kept_since = None;
        for step in steps {
            match step {
                Step::Pass(millis) => now = now.after(Duration::from_millis(millis)),
                Step::Ask { is_waited_for, name } => {
                    let told = told(&format!("n{name}.{}", domain(is_waited_for)), name);
                    let verdict = hold.answer(told.for_client(POD), client_id().attachment, POD.into(), now);
                    prop_assert!(is_waited_for || verdict == Verdict::Release);
                }
            }
            while hold.poll_outgoing().is_some_and(|due| due <= now) {
                let message = hold.poll_transmit(now, |_| client_id());
                if let Some(realized) = realized(message.as_slice()) {
                    hold.receive(realized, now);
                }
            }
            prop_assert!(!hold.is_holding(), "an answer waits for more than the enforcer");
            kept_since = (hold.queued() > 0).then(|| kept_since.unwrap_or(now));
            let kept = kept_since.map_or(Duration::ZERO, |since| now.since(since));
            prop_assert!(kept < Duration::from_millis(TOGETHER), "kept back for {kept:?}");
        }
    }
}

/// Whether it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The link sleeps until what is kept back is due; nothing but the answer is there to wake it.
#[tokio::test]
async fn an_awaited_observation_wakes_the_link_before_the_delay_ends() {
    let (gate, _) = gate();
    gate.connected();
    gate.receive(interest());
    gate.receive(ToDnsd::InterestComplete);
    drop(gate.outgoing(256));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut link = Context::from_waker(&waker);
    for round in 0..=u8::MAX {
        let admit = |name: &str| {
            let told = told(&format!("n{round}.{name}"), round);
            gate.admit(
                client_id(),
                POD.into(),
                Cow::Owned(told),
                Origin::Upstream,
                clock::now(),
            )
        };
        assert!(matches!(admit("a.other.test"), Admission::Now));
        drop(gate.outgoing(256));
        assert!(matches!(admit("b.other.test"), Admission::Now));
        let mut due = pin!(gate.has_outgoing());
        if due.as_mut().poll(&mut link).is_ready() {
            // Where this machine is slow, it is due already.
            continue;
        }
        assert!(!woken.0.load(Ordering::Relaxed), "it is kept back");
        assert!(matches!(admit("example.test"), Admission::Held(_)));
        assert!(woken.0.load(Ordering::Relaxed), "all of it goes at once");
        assert!(due.as_mut().poll(&mut link).is_ready());
        assert_eq!(gate.outgoing(256).len(), 2);
        return;
    }
    panic!("never was anything kept back");
}
