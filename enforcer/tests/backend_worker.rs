//! What happens to the engine while rules are being written. The kernel is made of maps, and takes its time when it is told to.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod engine_world;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use egret_enforcer::backend::memory::InMemory;
use egret_enforcer::backend::{
    Backend, BackendError, ConcurrentSetUpdate, ConnectionSearch, EndedConnections, SearchResult, SyncStatus,
    VerdictCounters,
};
use egret_enforcer::engine::{AdminQuery, AdminReply, AdminRequest, Engine, Input, PeerId, Setup};
use egret_policies::compiler::{NodeScope, Settings};
use egret_policies::rules::{Batch, MembersChanged};
use egret_shared::link::{ToDnsd, ToEnforcer};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::{Revision, Sequence};
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use engine_world::{CLUSTER, cluster, in_sync};

/// Other rules for the pod b.
const CHANGE: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: default}
spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Egress]}
";

/// Each change of rules says that it has begun, and goes on when it may.
#[derive(Debug)]
struct Slow {
    kernel: InMemory,
    begun: Sender<()>,
    may_go_on: Receiver<()>,
    refuses: Option<BackendError>,
    flows: Flows,
}

/// What is open to members that go, for which somebody else looks as long as the test likes.
#[derive(Debug)]
struct Flows {
    steps: Sender<Step>,
    may_be_found: Arc<Mutex<Receiver<()>>>,
    is_due: bool,
    /// Whether more is left to be ended than one call ends.
    are_many: Arc<AtomicBool>,
    /// The engine's thread, once it is known.
    engine: Option<ThreadId>,
}

/// What is done about them, as it is done.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    MembersGo,
    Looks,
    HasFound,
    Ends,
    /// On another thread than the engine's.
    EndsAside,
}

impl Flows {
    fn say(&self, step: Step) {
        // The test may be over.
        drop(self.steps.send(step));
    }
}

impl Backend for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError> {
        self.flows.engine = Some(thread::current().id());
        self.kernel.adopt(now)
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        if !batch.rules_replaced.is_empty() {
            self.begun.send(()).unwrap();
            self.may_go_on.recv().unwrap();
        } else if !batch.by_members.is_empty() {
            self.flows.is_due = true;
            self.flows.say(Step::MembersGo);
        }
        self.kernel.apply(batch, now)
    }

    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        if !std::mem::take(&mut self.flows.is_due) {
            return None;
        }
        let (steps, may_be_found) = (self.flows.steps.clone(), Arc::clone(&self.flows.may_be_found));
        Some(Box::new(move || {
            steps.send(Step::Looks).unwrap();
            may_be_found.lock().unwrap().recv().unwrap();
            steps.send(Step::HasFound).unwrap();
            SearchResult::Something
        }))
    }

    fn end_denied_connections(&mut self) -> EndedConnections {
        self.flows
            .say(match self.flows.engine == Some(thread::current().id()) {
                true => Step::Ends,
                false => Step::EndsAside,
            });
        EndedConnections {
            is_unfinished: self.flows.are_many.load(Ordering::SeqCst),
            ..EndedConnections::default()
        }
    }

    fn concurrent_set_update(&self) -> Option<Arc<dyn ConcurrentSetUpdate>> {
        Some(Arc::new(Quick {
            kernel: Mutex::new(self.kernel.clone()),
            refuses: self.refuses.as_ref().map(ToString::to_string),
        }))
    }

    fn links_changed(&mut self, now: Timestamp) -> SyncStatus {
        self.kernel.links_changed(now)
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        self.kernel.reconcile(now)
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        self.kernel.counters()
    }

    fn dump(&self) -> String {
        self.kernel.dump()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        self.kernel.remove_everything()
    }
}

#[derive(Debug)]
struct Quick {
    kernel: Mutex<InMemory>,
    refuses: Option<String>,
}

impl ConcurrentSetUpdate for Quick {
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError> {
        if let Some(reason) = &self.refuses {
            return Err(BackendError::new("cannot add", reason));
        }
        let batch = Batch {
            members_changed: changes.to_vec(),
            ..Batch::empty(Revision::ZERO)
        };
        let standing = self.kernel.lock().unwrap().apply(&batch, now);
        assert_eq!(standing.broken, None);
        Ok(())
    }
}

/// An engine that runs, with a dnsd, after everything was written once.
struct Life {
    inputs: mpsc::Sender<Input>,
    told: mpsc::Receiver<Vec<ToDnsd>>,
    begun: Receiver<()>,
    go_on: Sender<()>,
    steps: Receiver<Step>,
    let_find: Sender<()>,
    are_many: Arc<AtomicBool>,
    thread: thread::JoinHandle<Box<dyn Backend>>,
}

const WITHIN: Duration = Duration::from_secs(20);

impl Life {
    fn begin(refuses: Option<BackendError>) -> Self {
        let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
        let ((said, steps), (let_find, may_be_found)) = (channel(), channel());
        let are_many = Arc::new(AtomicBool::new(false));
        let backend = Slow {
            kernel: InMemory::default(),
            begun,
            may_go_on,
            refuses,
            flows: Flows {
                steps: said,
                may_be_found: Arc::new(Mutex::new(may_be_found)),
                is_due: false,
                are_many: Arc::clone(&are_many),
                engine: None,
            },
        };
        let (inputs, taken) = mpsc::channel(64);
        let (out, told) = mpsc::channel(64);
        let engine = Engine::new(Setup {
            compiler: Settings::for_scope(NodeScope::One(Arc::from("n"))),
            backend: Box::new(backend),
            resync: Duration::ZERO,
            remembered: Vec::new(),
            state_writer: None,
            excluded_namespaces: BTreeSet::new(),
            interfaces: Default::default(),
        });
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            runtime.unwrap().block_on(engine.run(taken))
        });
        let mut life = Self {
            inputs,
            told,
            begun: has_begun,
            go_on,
            steps,
            let_find,
            are_many,
            thread,
        };
        life.say(cluster(CLUSTER));
        life.say(Input::PeerJoined {
            peer: PeerId(1),
            program: "dnsd".to_owned(),
            out: Box::new(out),
        });
        life.say(in_sync());
        life.let_write();
        assert_eq!(life.hear(), "interest 10.0.0.1");
        assert_eq!(life.hear(), "complete");
        life
    }

    fn say(&self, input: Input) {
        self.inputs.blocking_send(input).unwrap();
    }

    fn has_begun(&self) {
        self.begun.recv_timeout(WITHIN).unwrap();
    }

    /// The next step about flows; to end what nobody has found is none.
    fn next_step(&self) -> Step {
        let next = || self.steps.recv_timeout(WITHIN).unwrap();
        std::iter::repeat_with(next)
            .find(|step| !matches!(step, Step::Ends | Step::EndsAside))
            .unwrap()
    }

    /// The next step that is not the engine's to end what nobody has found.
    fn next_aside(&self) -> Step {
        let next = || self.steps.recv_timeout(WITHIN).unwrap();
        std::iter::repeat_with(next)
            .find(|step| *step != Step::Ends)
            .unwrap()
    }

    /// Waits until the engine has taken all that it was told.
    fn is_heard(&self) {
        let begun = clock::now();
        while self.inputs.capacity() < self.inputs.max_capacity() {
            assert!(clock::now().since(begun) < WITHIN, "the engine hears nothing");
            thread::yield_now();
        }
    }

    fn let_write(&self) {
        self.has_begun();
        self.go_on.send(()).unwrap();
    }

    /// The next word.
    fn hear(&mut self) -> String {
        use std::collections::VecDeque;
        thread_local! { static HEARD: std::cell::RefCell<VecDeque<String>> = std::cell::RefCell::default(); }
        if let Some(word) = HEARD.with_borrow_mut(VecDeque::pop_front) {
            return word;
        }
        let clock = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let next = async { tokio::time::timeout(WITHIN, self.told.recv()).await };
        let messages = clock.unwrap().block_on(next);
        let messages = messages.expect("the engine waits for something").unwrap();
        let told = messages
            .iter()
            .map(words)
            .filter(|words| !words.starts_with("pods") && !words.starts_with("dns"));
        HEARD.with_borrow_mut(|heard| heard.extend(told));
        self.hear()
    }

    fn tell(&self, sequence: u64, name: &str) {
        let observation = Observation {
            client: "10.0.0.1".parse().unwrap(),
            question: name.parse().unwrap(),
            chain: Vec::new(),
            addresses: vec![ObservedAddress {
                address: "203.0.113.7".parse().unwrap(),
                expires: clock::now().after(Duration::from_secs(60)),
            }],
        };
        let sequence = (0..sequence).fold(Sequence::ZERO, |sequence, _| sequence.next());
        self.say(Input::PeerMessage(
            PeerId(1),
            ToEnforcer::Observed {
                sequence,
                observation,
            },
        ));
    }

    fn ask(&self) -> Receiver<AdminReply> {
        let (reply, replied) = sync_channel(1);
        let query = AdminQuery::Report;
        self.say(Input::Admin(AdminRequest { query, reply }));
        replied
    }

    fn end(self) {
        self.say(Input::Stop);
        self.thread.join().unwrap();
    }
}

fn words(message: &ToDnsd) -> String {
    match message {
        ToDnsd::Hello(_) => "hello".to_owned(),
        ToDnsd::Interest(interest) => format!("interest {}", interest.pod),
        ToDnsd::InterestComplete => "complete".to_owned(),
        ToDnsd::ClusterDns(_) => "dns".to_owned(),
        ToDnsd::Pods(pods) => format!("pods {:?} but {:?}", pods.caught, pods.spared),
        ToDnsd::Realized { through, failed } if failed.is_empty() => format!("realized {through}"),
        ToDnsd::Realized { through, .. } => format!("failed {through}"),
    }
}

#[test]
fn an_answer_is_realized_during_a_write_of_another_pods_rules() {
    let mut life = Life::begin(None);
    life.say(cluster(CHANGE));
    life.has_begun();
    life.tell(1, "api.example.test");
    assert_eq!(life.hear(), "realized 1");
    life.tell(2, "www.example.test");
    assert_eq!(life.hear(), "realized 2");
    life.go_on.send(()).unwrap();
    life.end();
}

/// The pod a reaches pods with the label `peer`, of which there is one elsewhere for each of these.
fn peers(labels: [&str; 2]) -> Input {
    const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: peers, namespace: default}
spec:
  podSelector: {matchLabels: {app: a}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {is: peer}}}]}]
";
    let elsewhere = |(last, label): (usize, &str)| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: e{last}, namespace: default, labels: {{is: {label}}}}}\n\
             spec: {{nodeName: other}}\nstatus: {{podIP: 10.0.1.{last}, podIPs: [{{ip: 10.0.1.{last}}}]}}\n"
        )
    };
    let pods = labels.into_iter().enumerate().map(elsewhere);
    cluster(&(POLICY.to_owned() + &pods.collect::<String>()))
}

#[test]
fn members_are_removed_during_the_connection_search_for_earlier_ones() {
    let mut life = Life::begin(None);
    life.say(peers(["peer", "peer"]));
    life.let_write();
    life.say(peers(["peer", "other"]));
    assert_eq!(life.next_step(), Step::MembersGo);
    assert_eq!(life.next_step(), Step::Looks);
    // Nobody waits for that: neither who is told something, nor whose members go next.
    life.tell(1, "api.example.test");
    assert_eq!(life.hear(), "realized 1");
    life.say(peers(["other", "other"]));
    assert_eq!(life.next_step(), Step::MembersGo);
    life.let_find.send(()).unwrap();
    assert_eq!(life.next_step(), Step::HasFound);
    assert_eq!(
        life.next_aside(),
        Step::EndsAside,
        "what was found, while the engine goes on"
    );
    assert_eq!(life.next_step(), Step::Looks, "for the others");
    life.let_find.send(()).unwrap();
    life.end();
}

#[test]
fn a_change_waits_for_one_slice_of_the_connections_that_the_change_before_it_denies() {
    let life = Life::begin(None);
    life.are_many.store(true, Ordering::SeqCst);
    life.say(cluster(CHANGE));
    life.let_write();
    // Nobody has to say anything for that.
    for _ in 0..2 {
        assert_eq!(life.next_aside(), Step::EndsAside);
    }
    life.say(cluster(
        &CHANGE.replace("closed", "closed-too").replace("app: b", "app: a"),
    ));
    life.let_write();
    life.are_many.store(false, Ordering::SeqCst);
    life.end();
}

#[test]
fn a_stop_ends_connections_that_removed_members_had_opened() {
    let life = Life::begin(None);
    life.say(peers(["peer", "peer"]));
    life.let_write();
    life.say(peers(["peer", "other"]));
    assert_eq!(life.next_step(), Step::MembersGo);
    assert_eq!(life.next_step(), Step::Looks);
    life.say(Input::Stop);
    life.is_heard();
    life.let_find.send(()).unwrap();
    life.thread.join().unwrap();
    let steps: Vec<Step> = life.steps.try_iter().collect();
    let mut after = steps.iter().skip_while(|step| **step != Step::HasFound);
    assert!(
        after.any(|step| *step == Step::Ends),
        "what was found is not ended: {steps:?}"
    );
}

#[test]
fn a_refused_concurrent_set_update_is_reported_as_failed() {
    let mut life = Life::begin(Some(BackendError::new("cannot add", "there is no memory")));
    life.say(cluster(CHANGE));
    life.has_begun();
    life.tell(1, "api.example.test");
    assert_eq!(life.hear(), "failed 1");
    life.go_on.send(()).unwrap();
    life.end();
}

#[test]
fn changes_during_a_write_become_one_batch_and_interest_is_sent_with_its_rules() {
    let mut life = Life::begin(None);
    life.say(cluster(CHANGE));
    life.has_begun();
    let others = CLUSTER.replace("*.example.test", "*.other.test");
    life.say(cluster(&others));
    life.say(cluster(
        &CHANGE.replace("closed", "closed-too").replace("app: b", "app: a"),
    ));
    life.tell(1, "api.example.test");
    // The rules that are in force are those of before.
    assert_eq!(life.hear(), "realized 1");
    life.go_on.send(()).unwrap();
    life.has_begun();
    life.tell(2, "api.other.test");
    life.go_on.send(()).unwrap();
    assert_eq!(life.hear(), "interest 10.0.0.1");
    life.end();
}

#[test]
fn a_status_request_sees_every_earlier_batch() {
    let life = Life::begin(None);
    life.say(cluster(CHANGE));
    life.has_begun();
    let third = CLUSTER
        .replace("name: b,", "name: c,")
        .replace("10.0.0.2", "10.0.0.3");
    life.say(cluster(&third));
    let answered = life.ask();
    life.go_on.send(()).unwrap();
    life.has_begun();
    assert!(answered.try_recv().is_err());
    life.go_on.send(()).unwrap();
    let AdminReply::Report(report) = answered.recv_timeout(WITHIN).unwrap() else {
        panic!("a report is asked for");
    };
    assert_eq!((report.pods, report.reasons), (3, Vec::new()));
    life.end();
}

#[test]
fn a_stop_waits_for_the_batch_in_flight() {
    let life = Life::begin(None);
    life.say(cluster(CHANGE));
    life.has_begun();
    life.say(Input::Stop);
    life.go_on.send(()).unwrap();
    let backend = life.thread.join().unwrap();
    assert!(
        backend.dump().contains("default_action: Deny"),
        "{}",
        backend.dump()
    );
}
