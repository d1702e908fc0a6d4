//! A table of realized verdicts, and a watch on each row.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use egret_integration::{Pod, RecordType, World};

use crate::{API, API_V6, ATTEMPT, BLOG, ELSEWHERE, KNOCK, NEVER_TOLD, TestResult, at};

pub(crate) struct Verdict {
    pub(crate) pod: &'static str,
    pub(crate) address: &'static str,
    pub(crate) allowed: bool,
    pub(crate) because: &'static str,
}

pub(crate) const fn verdict(
    pod: &'static str,
    address: &'static str,
    allowed: bool,
    because: &'static str,
) -> Verdict {
    Verdict {
        pod,
        address,
        allowed,
        because,
    }
}

pub(crate) const VERDICTS: &[Verdict] = &[
    verdict("client", API, true, "it was told"),
    verdict("client", API_V6, true, "it was told"),
    verdict("other", ELSEWHERE, true, "it was told"),
    verdict("bystander", NEVER_TOLD, true, "no policy is about it"),
    verdict("client", ELSEWHERE, false, "another pod was told"),
    verdict("other", API, false, "another pod was told"),
    verdict("client", BLOG, false, "it was told, no policy allows it"),
    verdict("client", NEVER_TOLD, false, "nobody was told"),
];

/// Looks up the names of the table.
pub(crate) fn realize(world: &World) -> TestResult {
    for (pod, name, record_type) in [
        ("client", "api.example.test", RecordType::A),
        ("client", "api.example.test", RecordType::AAAA),
        ("client", "blog.example.test", RecordType::A),
        ("other", "elsewhere.example.test", RecordType::A),
    ] {
        let reply = world.pod(pod).resolve(name, record_type)?;
        assert!(!reply.addresses().is_empty(), "{name} {record_type}");
    }
    Ok(())
}

/// Watches every row of the table until it is dropped.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) looks: [AtomicUsize; VERDICTS.len()],
    pub(crate) changed: Mutex<Vec<String>>,
    pub(crate) over: AtomicBool,
}

impl Watch {
    pub(crate) fn look_at(&self, pod: &Pod, verdict: &Verdict, row: usize) {
        let begun = Instant::now();
        // A refusal shows by silence: the shorter it is waited for, the more often it is looked at.
        let patience = if verdict.allowed { ATTEMPT } else { KNOCK };
        while !self.over.load(Ordering::SeqCst) {
            let outcome = pod.connect_tcp(at(verdict.address), patience);
            if outcome.is_connected() != verdict.allowed {
                let after = begun.elapsed().as_millis();
                let Verdict {
                    pod,
                    address,
                    because,
                    ..
                } = verdict;
                let line = format!("after {after} ms {pod} to {address} ({because}): {outcome:?}");
                self.changed.lock().unwrap().push(line);
            }
            self.looks[row].fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until every row was checked this many times more.
    pub(crate) fn wait_for_rounds(&self, rounds: usize) {
        let counts = || self.looks.each_ref().map(|looks| looks.load(Ordering::SeqCst));
        let before = counts();
        // One more: the look that was under way may have begun earlier.
        let done =
            |now: [usize; VERDICTS.len()]| now.iter().zip(before).all(|(now, before)| *now > before + rounds);
        while !done(counts()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn changed(&self) -> Vec<String> {
        self.changed.lock().unwrap().clone()
    }

    pub(crate) fn looks(&self) -> usize {
        self.looks.iter().map(|looks| looks.load(Ordering::SeqCst)).sum()
    }
}
