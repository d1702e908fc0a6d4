//! What the engine tells, to whom, in what order. Time is an argument; the kernel is made of maps.
//!
//! It is longer than 800 lines because all stories are told by one dnsd and one engine, whose words are here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod engine_world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use egret_enforcer::backend::memory::InMemory;
use egret_enforcer::backend::none::NoVerdicts;
use egret_enforcer::backend::{Backend, BackendError, Pending, SyncStatus, VerdictCounters};
use egret_enforcer::engine::{
    AdminQuery, AdminReply, AdminRequest, Engine, Input, PeerId, Report, Setup, SourceState,
};
use egret_enforcer::state::{BootId, State, StateFile};
use egret_policies::compiler::{NodeScope, Settings};
use egret_policies::rules::{Batch, Member, SetKind};
use egret_shared::link::{ToDnsd, ToEnforcer};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::pod::PodKey;
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use engine_world::{cluster, in_sync};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default, labels: {app: a}}
spec: {nodeName: n}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
";

fn names(pattern: &str) -> String {
    format!(
        "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: names}}
spec:
  tier: Admin
  priority: 5
  subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: a}}}}}}}}
  egress:
  - {{name: x, action: Accept, to: [{{domainNames: [\"{pattern}\"]}}]}}
"
    )
}

fn engine(backend: impl Backend + 'static) -> Engine {
    engine_of(backend, State::default())
}

fn engine_of(backend: impl Backend + 'static, state: State) -> Engine {
    let compiler = Settings::for_scope(NodeScope::One(Arc::from("n")));
    let mut engine = Engine::new(Setup {
        compiler,
        backend: Box::new(backend),
        resync: Duration::ZERO,
        remembered: state.remembered,
        state_writer: state.writer,
        excluded_namespaces: BTreeSet::from(["kube-system".into()]),
        interfaces: Default::default(),
    });
    engine.pass(NOW);
    engine
}

/// A dnsd: what it is told, and what it says.
struct Dnsd {
    id: PeerId,
    told: mpsc::Receiver<Vec<ToDnsd>>,
}

impl Dnsd {
    fn join(engine: &mut Engine, id: u64, room: usize) -> Self {
        let (out, told) = mpsc::channel(room);
        let id = PeerId(id);
        engine.handle(
            Input::PeerJoined {
                peer: id,
                program: "dnsd".to_owned(),
                out: Box::new(out),
            },
            NOW,
        );
        Self { id, told }
    }

    fn observes(&self, sequence: u64, name: &str, address: &str) -> Input {
        let addresses = vec![ObservedAddress {
            address: address.parse().unwrap(),
            expires: NOW.after(Duration::from_secs(60)),
        }];
        let observation = Observation {
            client: "10.0.0.1".parse().unwrap(),
            question: name.parse().unwrap(),
            chain: Vec::new(),
            addresses,
        };
        Input::PeerMessage(
            self.id,
            ToEnforcer::Observed {
                sequence: number(sequence),
                observation,
            },
        )
    }

    /// What it was told but the pods and the cluster's DNS.
    fn heard(&mut self) -> Vec<String> {
        let mut heard = self.heard_all();
        heard.retain(|words| !words.starts_with("pods") && !words.starts_with("dns"));
        heard
    }

    fn heard_all(&mut self) -> Vec<String> {
        let mut heard = Vec::new();
        while let Ok(messages) = self.told.try_recv() {
            heard.extend(messages.iter().map(words));
        }
        heard
    }
}

fn number(number: u64) -> Sequence {
    (0..number).fold(Sequence::ZERO, |sequence, _| sequence.next())
}

fn words(message: &ToDnsd) -> String {
    match message {
        ToDnsd::Hello(_) => "hello".to_owned(),
        ToDnsd::Interest(interest) => {
            let patterns: Vec<String> = interest.patterns.iter().map(ToString::to_string).collect();
            format!("interest {} {}", interest.pod, patterns.join(","))
        }
        ToDnsd::InterestComplete => "complete".to_owned(),
        ToDnsd::ClusterDns(dns) => format!("dns {:?} by {:?}", dns.endpoints, dns.services),
        ToDnsd::Pods(pods) => format!("pods {:?} but {:?}", pods.caught, pods.spared),
        ToDnsd::Realized { through, failed } if failed.is_empty() => format!("realized {through}"),
        ToDnsd::Realized { through, failed } => format!("realized {through} but {failed:?}"),
    }
}

fn records(kernel: &InMemory) -> Vec<Member> {
    let kernel = kernel.kernel();
    let sets: Vec<_> = kernel
        .sets()
        .filter(|set| set.kind == SetKind::Records)
        .map(|set| set.id)
        .collect();
    sets.into_iter()
        .flat_map(|set| kernel.members(set).map(|(member, _)| member).collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_pods_that_may_be_intercepted_are_told_once_and_again_when_they_change() {
    let mut engine = engine(InMemory::default());
    let mut dnsd = Dnsd::join(&mut engine, 1, 16);
    engine.handle(cluster(POD), NOW);
    engine.handle(in_sync(), NOW);
    engine.pass(NOW);
    let nowhere = "dns [] by []";
    assert_eq!(dnsd.heard_all(), ["complete", nowhere, "pods [10.0.0.1] but []"]);
    let spared = POD
        .replace("name: a,", "name: b,")
        .replace("namespace: default", "namespace: kube-system")
        .replace("10.0.0.1", "10.0.0.9");
    engine.pass(NOW);
    assert_eq!(dnsd.heard_all(), [""; 0]);
    engine.handle(cluster(&spared), NOW);
    engine.pass(NOW);
    assert_eq!(dnsd.heard_all(), ["pods [10.0.0.1] but [10.0.0.9]"]);
    let mut late = Dnsd::join(&mut engine, 2, 16);
    engine.pass(NOW);
    assert_eq!(
        late.heard_all(),
        ["complete", nowhere, "pods [10.0.0.1] but [10.0.0.9]"]
    );
    engine.handle(cluster(&names("*.example.test")), NOW);
    engine.pass(NOW);
    engine.handle(dnsd.observes(1, "api.example.test", "203.0.113.7"), NOW);
    engine.pass(NOW);
    for dnsd in [&mut dnsd, &mut late] {
        let heard = dnsd.heard_all();
        assert!(
            heard.iter().all(|words| !words.starts_with("pods")),
            "other rules and answers change no pods: {heard:?}"
        );
    }
}

#[test]
fn unknown_pods_are_not_told_as_none_and_none_are_told_when_that_is_known() {
    let mut engine = engine(InMemory::default());
    let mut dnsd = Dnsd::join(&mut engine, 1, 16);
    for late in 0..3 {
        engine.pass(NOW.after(Duration::from_secs(late)));
        assert_eq!(dnsd.heard_all(), [""; 0], "a dnsd goes on with what it has");
    }
    engine.handle(in_sync(), NOW);
    engine.pass(NOW);
    assert_eq!(dnsd.heard_all(), ["complete", "dns [] by []", "pods [] but []"]);
}

/// A Service and its endpoints, as the API server has them: the port at the endpoints is another one.
const DNS: &str = "
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, \"fd00:96::a\"]
  ports: [{name: dns, protocol: UDP, port: 53, targetPort: 5353}, {name: metrics, port: 9153}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-4, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints:
- {addresses: [10.0.2.2], conditions: {ready: true}}
- {addresses: [10.0.1.1], conditions: {ready: true}}
- {addresses: [10.0.3.3], conditions: {ready: false}}
ports: [{name: dns, protocol: UDP, port: 5353}, {name: metrics, port: 9153}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-6, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv6
endpoints: [{addresses: [\"fd00::1\"]}]
ports: [{name: dns, protocol: UDP, port: 5353}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: other, namespace: default, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [10.0.9.9]}]
ports: [{name: dns, protocol: UDP, port: 5353}]
---
apiVersion: v1
kind: Service
metadata: {name: resolver, namespace: default}
spec: {clusterIP: 10.96.0.53, externalIPs: [192.0.2.53], ports: [{port: 53}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.80, ports: [{port: 80, targetPort: 53}]}
";

#[test]
fn the_ready_endpoints_of_the_clusters_dns_are_told_and_the_services_at_its_port() {
    let mut engine = engine(InMemory::default());
    let mut dnsd = Dnsd::join(&mut engine, 1, 16);
    engine.handle(cluster(DNS), NOW);
    engine.handle(in_sync(), NOW);
    engine.pass(NOW);
    let services = "by [10.96.0.10, 10.96.0.53, 192.0.2.53, fd00:96::a]";
    let told = |dnsd: &mut Dnsd| {
        let mut heard = dnsd.heard_all();
        heard.retain(|words| words.starts_with("dns"));
        heard
    };
    let both = format!("dns [10.0.1.1:5353, 10.0.2.2:5353, [fd00::1]:5353] {services}");
    assert_eq!(told(&mut dnsd), [both]);
    engine.pass(NOW);
    assert_eq!(told(&mut dnsd), [""; 0], "once");
    for (changed, expected) in [
        (
            DNS.replace("10.0.2.2", "10.0.2.7"),
            "dns [10.0.1.1:5353, 10.0.2.7:5353, [fd00::1]:5353] ",
        ),
        (
            DNS.replace(
                "name: dns, protocol: UDP, port: 53,",
                "name: dns, protocol: UDP, port: 54,",
            ),
            "dns [] ",
        ),
    ] {
        engine.handle(cluster(&changed), NOW);
        engine.pass(NOW);
        let heard = told(&mut dnsd);
        assert!(heard.len() == 1 && heard[0].starts_with(expected), "{heard:?}");
    }
}

#[test]
fn nothing_is_told_or_applied_before_the_source_is_in_sync() {
    let kernel = InMemory::default();
    let mut engine = engine(kernel.clone());
    let mut dnsd = Dnsd::join(&mut engine, 1, 16);
    engine.handle(cluster(&(POD.to_owned() + "---" + &names("*.example.test"))), NOW);
    engine.handle(dnsd.observes(1, "api.example.test", "203.0.113.7"), NOW);
    engine.pass(NOW);
    assert_eq!(
        (dnsd.heard(), kernel.kernel().pods().count()),
        (Vec::<String>::new(), 0)
    );
    engine.handle(in_sync(), NOW);
    engine.pass(NOW);
    assert_eq!(
        dnsd.heard(),
        ["interest 10.0.0.1 *.example.test", "complete", "realized 1"]
    );
    assert_eq!(
        records(&kernel),
        [Member::Address("203.0.113.7".parse().unwrap())]
    );
}

#[test]
fn an_interest_comes_when_the_kernel_holds_what_was_told_before_and_ahead_of_what_is_realized_later() {
    let kernel = InMemory::default();
    let mut engine = engine(kernel.clone());
    let mut dnsd = Dnsd::join(&mut engine, 1, 16);
    for input in [
        cluster(POD),
        in_sync(),
        dnsd.observes(1, "api.example.test", "203.0.113.7"),
    ] {
        engine.handle(input, NOW);
    }
    engine.pass(NOW);
    assert_eq!(dnsd.heard(), ["complete", "realized 1"]);
    engine.handle(cluster(&names("api.example.test")), NOW);
    engine.handle(dnsd.observes(2, "api.example.test", "203.0.113.8"), NOW);
    engine.pass(NOW);
    assert_eq!(dnsd.heard(), ["interest 10.0.0.1 api.example.test", "realized 2"]);
    assert_eq!(records(&kernel).len(), 2);
}

#[test]
fn two_dnsds_have_numbers_of_their_own() {
    let mut engine = engine(InMemory::default());
    let (mut one, mut two) = (Dnsd::join(&mut engine, 1, 16), Dnsd::join(&mut engine, 2, 16));
    for input in [
        cluster(POD),
        in_sync(),
        one.observes(7, "x.example.test", "203.0.113.7"),
    ] {
        engine.handle(input, NOW);
    }
    engine.pass(NOW);
    assert_eq!(
        (one.heard(), two.heard()),
        (
            vec!["complete".to_owned(), "realized 7".to_owned()],
            vec!["complete".to_owned()]
        )
    );
    engine.handle(two.observes(1, "y.example.test", "203.0.113.7"), NOW);
    engine.pass(NOW);
    assert_eq!(
        (one.heard(), two.heard()),
        (Vec::new(), vec!["realized 1".to_owned()])
    );
}

#[test]
fn telling_again_is_answered_even_if_there_was_nothing_to_tell() {
    let mut engine = engine(InMemory::default());
    let mut dnsd = Dnsd::join(&mut engine, 1, 16);
    engine.handle(in_sync(), NOW);
    engine.handle(Input::PeerMessage(dnsd.id, ToEnforcer::ResyncStarted), NOW);
    engine.handle(
        Input::PeerMessage(dnsd.id, ToEnforcer::ResyncEnded { through: number(3) }),
        NOW,
    );
    engine.pass(NOW);
    assert_eq!(dnsd.heard(), ["complete", "realized 3"]);
}

#[test]
fn a_dnsd_that_does_not_read_is_dropped_and_the_other_goes_on() {
    let mut engine = engine(InMemory::default());
    let (mut deaf, mut other) = (Dnsd::join(&mut engine, 1, 4), Dnsd::join(&mut engine, 2, 16));
    engine.handle(cluster(POD), NOW);
    engine.handle(in_sync(), NOW);
    for sequence in 1..5 {
        engine.handle(deaf.observes(sequence, "x.example.test", "203.0.113.7"), NOW);
        engine.handle(other.observes(sequence, "x.example.test", "203.0.113.7"), NOW);
        engine.pass(NOW);
    }
    assert_eq!(deaf.heard(), ["complete", "realized 1"]);
    assert!(deaf.told.is_closed());
    assert_eq!(other.heard().last().unwrap(), "realized 4");
}

/// A kernel in which rules of an earlier life are in force.
#[derive(Debug)]
struct InForce(InMemory);

impl Backend for InForce {
    fn name(&self) -> &'static str {
        "in force"
    }

    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError> {
        self.0.adopt(now)
    }

    fn is_in_force(&self) -> bool {
        true
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        self.0.apply(batch, now)
    }

    fn links_changed(&mut self, now: Timestamp) -> SyncStatus {
        self.0.links_changed(now)
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        self.0.reconcile(now)
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        self.0.counters()
    }

    fn dump(&self) -> String {
        self.0.dump()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        self.0.remove_everything()
    }
}

#[test]
fn rules_in_force_are_replaced_when_every_dnsd_has_told_again_or_none_does_in_time() {
    let told = [Member::Address("203.0.113.7".parse().unwrap())];
    let begin = || {
        let kernel = InMemory::default();
        let mut engine = engine(InForce(kernel.clone()));
        engine.handle(cluster(&(POD.to_owned() + "---" + &names("*.example.test"))), NOW);
        engine.handle(in_sync(), NOW);
        engine.pass(NOW);
        assert_eq!(kernel.kernel().pods().count(), 0);
        assert!(!reasons(&mut engine).is_empty());
        (engine, kernel)
    };

    let (mut engine, kernel) = begin();
    let dnsd = Dnsd::join(&mut engine, 1, 16);
    engine.handle(dnsd.observes(1, "api.example.test", "203.0.113.7"), NOW);
    engine.pass(NOW);
    assert_eq!(kernel.kernel().pods().count(), 0, "it has not told everything");
    let through = number(1);
    engine.handle(
        Input::PeerMessage(dnsd.id, ToEnforcer::ResyncEnded { through }),
        NOW,
    );
    engine.pass(NOW);
    assert_eq!(
        (kernel.kernel().pods().count(), records(&kernel)),
        (1, told.to_vec())
    );
    assert_eq!(reasons(&mut engine), Vec::<String>::new());

    let (mut engine, kernel) = begin();
    engine.pass(NOW.after(Duration::from_millis(299)));
    assert_eq!(kernel.kernel().pods().count(), 0, "a dnsd may still come");
    engine.pass(NOW.after(Duration::from_millis(300)));
    assert_eq!(kernel.kernel().pods().count(), 1);
}

#[test]
fn what_was_known_counts_where_the_kernel_holds_nothing_and_else_what_it_holds_stays() {
    let known = || {
        Input::Source(SourceState {
            unreadable: Some("/m: gone".to_owned()),
            known_at: Some("2000-02-29T00:00:00Z".to_owned()),
            ..SourceState::default()
        })
    };
    let later = NOW.after(Duration::from_secs(60));
    let begin = |backend: Box<dyn FnOnce(InMemory) -> Engine>| {
        let kernel = InMemory::default();
        let mut engine = backend(kernel.clone());
        engine.handle(cluster(POD), NOW);
        engine.handle(known(), NOW);
        engine.pass(NOW);
        engine.pass(later);
        (engine, kernel)
    };

    let (mut empty, kernel) = begin(Box::new(engine));
    assert_eq!(kernel.kernel().pods().count(), 1);
    assert_eq!(
        reasons(&mut empty),
        ["running on what was known at 2000-02-29T00:00:00Z: the source cannot be read: /m: gone"]
    );
    empty.handle(in_sync(), later);
    assert_eq!(reasons(&mut empty), Vec::<String>::new());

    let (mut full, kernel) = begin(Box::new(|kernel| engine(InForce(kernel))));
    assert_eq!(kernel.kernel().pods().count(), 0);
    assert_eq!(
        reasons(&mut full),
        [
            "the source is not in sync: /m: gone",
            "rules of an earlier enforcer stay in force until the source can be read"
        ]
    );
    full.handle(in_sync(), later);
    full.pass(later);
    full.pass(later.after(Duration::from_millis(300)));
    assert_eq!(kernel.kernel().pods().count(), 1);
}

/// The state file of a test, and its folder, which goes with it.
struct Kept(std::path::PathBuf);

impl Kept {
    fn make(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("egret-engine-{test}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn open(&self) -> State {
        State::open(&self.0.join("state"), 100)
    }

    fn records(&self) -> usize {
        let file = StateFile::new(&self.0.join("state"), BootId::read().unwrap(), 100);
        let kept = file.read().unwrap();
        kept.remembered.iter().map(|pod| pod.records.len()).sum()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// An engine with the pod and a policy over names, whose first batch is applied.
fn living(kept: &Kept, kernel: &InMemory, pattern: &str) -> Engine {
    let mut engine = engine_of(kernel.clone(), kept.open());
    engine.handle(cluster(&(POD.to_owned() + "---" + &names(pattern))), NOW);
    engine.handle(in_sync(), NOW);
    engine.pass(NOW);
    engine
}

#[test]
fn names_that_changed_while_nobody_was_there_open_what_was_told_before_without_any_dnsd() {
    let kept = Kept::make("names");
    let mut first = living(&kept, &InMemory::default(), "api.example.test");
    let dnsd = Dnsd::join(&mut first, 1, 16);
    first.handle(dnsd.observes(1, "api.example.test", "203.0.113.7"), NOW);
    first.pass(NOW);
    // Killed: nobody asks it for its last.
    drop(first);

    let kernel = InMemory::default();
    let second = living(&kept, &kernel, "*.example.test");
    assert_eq!(
        records(&kernel),
        [Member::Address("203.0.113.7".parse().unwrap())]
    );
    drop(second);
}

#[test]
fn an_engine_that_is_asked_to_stop_keeps_what_it_heard_last() {
    let kept = Kept::make("stop");
    let mut first = living(&kept, &InMemory::default(), "api.example.test");
    let dnsd = Dnsd::join(&mut first, 1, 16);
    first.handle(dnsd.observes(1, "api.example.test", "203.0.113.7"), NOW);
    let (inputs, taken) = mpsc::channel(1);
    inputs.try_send(Input::Stop).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    drop(runtime.block_on(first.run(taken)));
    assert_eq!(kept.records(), 1);
}

/// Who asks for large answers has others wait for a few of them, and not for all that are there.
#[test]
fn answers_are_realized_before_many_large_ones_that_came_later_are_taken_in() {
    let mut engine = engine(InMemory::default());
    let mut dnsd = Dnsd::join(&mut engine, 1, 64);
    engine.handle(
        cluster(&(POD.to_owned() + "---" + &names("api.example.test"))),
        NOW,
    );
    engine.handle(in_sync(), NOW);
    let (inputs, taken) = mpsc::channel(64);
    inputs
        .try_send(dnsd.observes(1, "api.example.test", "203.0.113.7"))
        .unwrap();
    for sequence in 2..=12 {
        let mut large = dnsd.observes(sequence, &format!("n{sequence}.flood.test"), "198.18.0.0");
        if let Input::PeerMessage(_, ToEnforcer::Observed { observation, .. }) = &mut large {
            let expires = observation.addresses[0].expires;
            let address = |number: u16| {
                let [high, low] = number.to_be_bytes();
                ObservedAddress {
                    address: [198, 18, high, low].into(),
                    expires,
                }
            };
            observation.addresses = (0..1_000).map(address).collect();
        }
        inputs.try_send(large).unwrap();
    }
    drop(inputs);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    drop(runtime.block_on(engine.run(taken)));
    let realized: Vec<String> = dnsd
        .heard()
        .into_iter()
        .filter(|words| words.starts_with("realized"))
        .collect();
    // One and five thousand, five thousand more, and the last.
    assert_eq!(realized, ["realized 6", "realized 11", "realized 12"]);
}

#[test]
fn what_a_pod_was_told_that_is_gone_does_not_stay_in_the_file() {
    let kept = Kept::make("gone");
    let mut first = living(&kept, &InMemory::default(), "api.example.test");
    let dnsd = Dnsd::join(&mut first, 1, 16);
    first.handle(dnsd.observes(1, "api.example.test", "203.0.113.7"), NOW);
    first.pass(NOW);
    drop(first);
    assert_eq!(kept.records(), 1);

    let mut second = engine_of(InMemory::default(), kept.open());
    second.handle(in_sync(), NOW);
    second.pass(NOW);
    drop(second);
    assert_eq!(kept.records(), 0);
}

#[test]
fn a_state_file_that_is_damaged_changes_nothing() {
    let kept = Kept::make("damaged");
    std::fs::write(kept.0.join("state"), "not what an enforcer writes").unwrap();
    let kernel = InMemory::default();
    let mut engine = living(&kept, &kernel, "api.example.test");
    assert_eq!(
        (kernel.kernel().pods().count(), records(&kernel)),
        (1, Vec::new())
    );
    assert_eq!(reasons(&mut engine), Vec::<String>::new());
    drop(engine);
    assert_eq!(kept.records(), 0, "it was replaced");
}

/// A kernel that stands so after each change, until it is tried again.
#[derive(Debug)]
struct Refusing(SyncStatus);

impl Backend for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        Ok(())
    }

    fn apply(&mut self, _batch: &Batch, _now: Timestamp) -> SyncStatus {
        self.0.clone()
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        SyncStatus::default()
    }

    fn reconcile(&mut self, _now: Timestamp) -> SyncStatus {
        SyncStatus::default()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(NoVerdicts)
    }

    fn dump(&self) -> String {
        String::new()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

#[test]
fn what_the_kernel_refuses_is_in_the_reasons_until_it_is_tried_again_and_of_a_pod_is_told_as_failed() {
    let of_a_pod = SyncStatus {
        pending: [(
            PodKey::new("default", "a"),
            Pending::Refused("the set is full".to_owned()),
        )]
        .into(),
        ..SyncStatus::default()
    };
    let of_nobody = SyncStatus {
        refused: Some("rules for clients outside are closed".to_owned()),
        ..SyncStatus::default()
    };
    for (standing, told, reason) in [
        (
            of_a_pod,
            "realized 1 but [Sequence(1)]",
            "pod default/a is pending: the set is full",
        ),
        (of_nobody, "realized 1", "rules for clients outside are closed"),
    ] {
        let mut engine = engine(Refusing(standing));
        let mut dnsd = Dnsd::join(&mut engine, 1, 16);
        let observed = dnsd.observes(1, "x.example.test", "203.0.113.7");
        let inputs = [cluster(POD), in_sync(), observed];
        inputs.into_iter().for_each(|input| engine.handle(input, NOW));
        engine.pass(NOW);
        assert_eq!(dnsd.heard(), ["complete", told]);
        assert_eq!(reasons(&mut engine), [reason]);
        engine.pass(NOW.after(Duration::from_millis(100)));
        assert_eq!(reasons(&mut engine), Vec::<String>::new());
    }
}

#[test]
fn nobody_hears_that_all_is_well_before_what_came_earlier_is_in_the_kernel() {
    let kernel = InMemory::default();
    let mut engine = engine(kernel.clone());
    engine.handle(cluster(POD), NOW);
    engine.handle(in_sync(), NOW);
    let first = report(&mut engine);
    assert_eq!((first.reasons, first.pods), (Vec::new(), 1));
    let other = POD.replace("name: a", "name: b").replace("10.0.0.1", "10.0.0.2");
    engine.handle(cluster(&other), NOW);
    assert_eq!(report(&mut engine).pods, 2);
}

/// A kernel that cannot be read at first.
#[test]
fn a_kernel_that_cannot_be_read_is_left_alone_until_it_can() {
    let kernel = InMemory::default();
    let mut engine = engine(UnreadableAtFirst {
        left: 2,
        kernel: kernel.clone(),
    });
    engine.handle(cluster(POD), NOW);
    engine.handle(in_sync(), NOW);
    engine.pass(NOW);
    assert_eq!(kernel.kernel().pods().count(), 0);
    assert_eq!(reasons(&mut engine), ["the kernel cannot be read: list: no"]);
    engine.pass(NOW.after(Duration::from_secs(1)));
    assert_eq!(kernel.kernel().pods().count(), 1);
}

#[derive(Debug)]
struct UnreadableAtFirst {
    left: usize,
    kernel: InMemory,
}

impl Backend for UnreadableAtFirst {
    fn name(&self) -> &'static str {
        "unreadable"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            Err(BackendError::new("list", "no"))
        } else {
            Ok(())
        }
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        self.kernel.apply(batch, now)
    }

    fn links_changed(&mut self, now: Timestamp) -> SyncStatus {
        self.kernel.links_changed(now)
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        self.kernel.reconcile(now)
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(NoVerdicts)
    }

    fn dump(&self) -> String {
        String::new()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn reasons(engine: &mut Engine) -> Vec<String> {
    report(engine).reasons
}

fn report(engine: &mut Engine) -> Report {
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    engine.handle(
        Input::Admin(AdminRequest {
            query: AdminQuery::Report,
            reply: answer,
        }),
        NOW,
    );
    engine.pass(NOW);
    match answered.try_recv().unwrap() {
        AdminReply::Report(report) => *report,
        AdminReply::Page(page) => panic!("{page}"),
    }
}
