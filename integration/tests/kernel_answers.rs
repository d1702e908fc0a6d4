//! Answers that the kernel gives in dnsd's place: as dnsd would, to whom dnsd would, and only while dnsd would.

#![allow(
    clippy::disallowed_methods,
    reason = "these stories are about real time: when an answer ends"
)]
#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use egret_integration::{
    Daemon, DaemonSpec, Lookup, PodSpec, RecordType, Records, Reply, World, node, within,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const NAME: &str = "api.example.test";
const PATIENCE: Duration = Duration::from_secs(20);
const QUICK: Duration = Duration::from_millis(150);
/// How old the enforcer's counts are at most.
const COUNTERS_MAX_AGE: Duration = Duration::from_secs(2);
/// How long the kernel answers at most without dnsd.
const LIFETIME: Duration = Duration::from_secs(1);

/// A node with both daemons, and two pods.
struct Setting {
    dnsd: Daemon,
    enforcer: Daemon,
    world: World,
}

impl Setting {
    fn new(enforcer: &[&str], dnsd: &[&str]) -> Option<Self> {
        Self::behind("netfilter", enforcer, dnsd)
    }

    /// With a backend that is a packet filter.
    fn behind(filter: &str, enforcer: &[&str], dnsd: &[&str]) -> Option<Self> {
        let world = World::or_skip()?.with(PodSpec::new("client")).unwrap();
        let world = world.with(PodSpec::new("other")).unwrap();
        world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
        let enforcer = world
            .start(enforcer_of(&world, filter).with(enforcer.iter().copied()))
            .unwrap();
        let dnsd = world.start(dnsd_of(&world).with(dnsd.iter().copied())).unwrap();
        let setting = Self {
            dnsd,
            enforcer,
            world,
        };
        within(PATIENCE, "the daemons are joined", || {
            let page = setting.dnsd.get("/readyz");
            page.is_ok_and(|(_, page)| page.contains("have interest in names"))
        });
        Some(setting)
    }

    fn ask(&self, pod: &str, lookup: &Lookup) -> Option<Reply> {
        self.world.pod(pod).look_up(lookup).ok()
    }

    fn answered(&self) -> f64 {
        let metrics = self.dnsd.metrics().unwrap();
        metrics.sum("egret_dnsd_kernel_answers_total", &[])
    }

    /// Asks until the kernel answers. An answer is learned for a second, in which a busy machine counts once.
    #[track_caller]
    fn answer_of_kernel(&self, pod: &str, lookup: &Lookup) {
        within(PATIENCE, "the kernel answers", || {
            let before = self.answered();
            (0..3).for_each(|_| drop(self.ask(pod, lookup)));
            self.answered() > before
        });
    }

    fn end(mut self) -> TestResult {
        self.dnsd.terminate()?;
        self.enforcer.terminate()?;
        let cleanup = DaemonSpec::enforcer(0).binary.display().to_string();
        let pins = self.world.bpf_pins().display().to_string();
        self.world
            .node()
            .run_well(&[&cleanup, "cleanup", "--bpf-pins", &pins])?;
        assert!(!self.world.dns_permits().exists(), "the permits are removed");
        let Self {
            world,
            dnsd,
            enforcer,
        } = self;
        drop((dnsd, enforcer));
        world.assert_nothing_left();
        Ok(())
    }
}

fn enforcer_of(world: &World, filter: &str) -> DaemonSpec {
    let pins = world.bpf_pins().display().to_string();
    world.enforcer(filter).with(["--bpf-pins", &pins])
}

fn dnsd_of(world: &World) -> DaemonSpec {
    let permits = world.dns_permits().display().to_string();
    world
        .dnsd()
        .with(["--rules", "--fallback", "none", "--kernel-answers", &permits])
}

fn lookup(record_type: RecordType) -> Lookup {
    Lookup::of(NAME, record_type).patience(QUICK)
}

#[test]
fn the_kernel_answers_with_the_octets_of_dnsd() -> TestResult {
    let Some(setting) = Setting::new(&[], &[]) else {
        return Ok(());
    };
    let upstream = setting.world.upstream();
    upstream.set(
        NAME,
        Records::addresses(["203.0.113.7", "203.0.113.8", "2001:db8::7"]),
    );
    for server in [IpAddr::from(node::DNS), node::DNS_V6.into()] {
        for record_type in [RecordType::A, RecordType::AAAA] {
            let plain = lookup(record_type).at(server);
            let shapes = [
                plain.clone(),
                plain.clone().named("aPi.eXample.TEST"),
                plain.clone().with_udp_size(1232),
                plain.with_udp_size(4096),
            ];
            for shape in shapes {
                let own = || setting.ask("client", &shape.clone().over_tcp()).unwrap().bytes;
                let mut compared = 0;
                within(PATIENCE, "octets of one second are compared", || {
                    let (before, answered) = (own(), setting.answered());
                    let reply = setting.ask("client", &shape).unwrap();
                    let is_of_kernel = setting.answered() > answered;
                    if is_of_kernel && before == own() {
                        assert_eq!(reply.bytes, before, "{shape:?}");
                        compared += 1;
                    }
                    compared == 3
                });
            }
        }
    }
    setting.end()
}

#[test]
fn an_answer_of_the_kernel_ages_and_ends_with_its_ttl() -> TestResult {
    let Some(setting) = Setting::new(&[], &[]) else {
        return Ok(());
    };
    let upstream = setting.world.upstream();
    upstream.set(NAME, Records::addresses(["203.0.113.7"]).ttl(3));
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    let mut ttls = Vec::new();
    let asked = upstream.asked(NAME);
    while upstream.asked(NAME) == asked {
        let before = setting.answered();
        let ttl = setting
            .ask("client", &lookup(RecordType::A))
            .unwrap()
            .ttl()
            .unwrap();
        if setting.answered() > before {
            ttls.push(ttl);
        }
    }
    assert!(ttls.is_sorted_by(|one, next| one >= next), "{ttls:?}");
    assert!(ttls.contains(&2) && ttls.contains(&1), "{ttls:?}");
    assert!(!ttls.contains(&0), "{ttls:?}: it has ended then");
    setting.end()
}

#[test]
fn the_kernel_answers_no_other_pod_and_no_foreign_source() -> TestResult {
    let Some(setting) = Setting::new(&[], &[]) else {
        return Ok(());
    };
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    let other = setting.world.pod("other");
    let before = setting.answered();
    assert!(setting.ask("other", &lookup(RecordType::A)).is_some());
    assert!(setting.answered() <= before, "the first query of a pod is dnsd's");
    setting.answer_of_kernel("other", &lookup(RecordType::A));
    let socket = other.udp_socket_at(SocketAddr::new(other.address(), 5353))?;
    socket.set_read_timeout(Some(QUICK))?;
    let before = setting.answered();
    let question = lookup(RecordType::A).to_vec();
    for _ in 0..20 {
        setting.world.pod("client").send_udp_as(
            SocketAddr::new(other.address(), 5353),
            SocketAddr::new(node::DNS.into(), 53),
            &question,
        )?;
    }
    assert!(socket.recv(&mut [0; 512]).is_err(), "nobody is answered");
    assert!(setting.answered() <= before);
    setting.end()
}

#[test]
fn a_policy_that_forbids_dns_ends_the_answers_of_the_kernel() -> TestResult {
    end_by_policy("netfilter")
}

#[test]
fn a_policy_that_forbids_dns_ends_the_answers_of_the_kernel_on_nftables() -> TestResult {
    end_by_policy("nftables")
}

fn end_by_policy(filter: &str) -> TestResult {
    let Some(mut setting) = Setting::behind(filter, &["--pod-to-own-node", "enforce"], &[]) else {
        return Ok(());
    };
    let forbid = |setting: &Setting| {
        setting.world.manifests().write(
            "policy.yaml",
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: one, namespace: default}\nspec:\n  \
             podSelector: {}\n  policyTypes: [Egress]\n",
        )
    };
    let is_forbidden = |setting: &Setting| {
        let tcp = lookup(RecordType::A).over_tcp();
        while setting.ask("client", &tcp).is_some() {
            setting.ask("client", &lookup(RecordType::A));
        }
        // The rules are in force: what was learned is not answered any more, though it has not ended.
        assert!(setting.ask("client", &lookup(RecordType::A)).is_none());
    };
    for _ in 0..3 {
        setting.answer_of_kernel("client", &lookup(RecordType::A));
        forbid(&setting)?;
        is_forbidden(&setting);
        setting.world.manifests().remove("policy.yaml")?;
    }
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    setting.enforcer.kill()?;
    forbid(&setting)?;
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    setting.enforcer.restart()?;
    is_forbidden(&setting);
    setting.end()
}

#[test]
fn the_kernel_answers_as_long_as_dnsd_lives() -> TestResult {
    let Some(mut setting) = Setting::new(&[], &[]) else {
        return Ok(());
    };
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    setting.dnsd.stop()?;
    let stopped = Instant::now();
    while setting.ask("client", &lookup(RecordType::A)).is_some() {}
    let answered_for = stopped.elapsed();
    assert!(answered_for < LIFETIME + QUICK * 2, "{answered_for:?}");
    setting.dnsd.cont()?;
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    setting.dnsd.kill()?;
    assert!(setting.ask("client", &lookup(RecordType::A)).is_none());
    setting.dnsd.restart()?;
    setting.dnsd.wait_until_ready()?;
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    setting.end()
}

#[test]
fn the_kernel_answers_for_the_dnsd_that_takes_over() -> TestResult {
    let socket = std::env::temp_dir().join(format!("eg-answers-{}.sock", std::process::id()));
    let socket = socket.display().to_string();
    let Some(mut setting) = Setting::new(&[], &["--handover", &socket]) else {
        return Ok(());
    };
    let upstream = setting.world.upstream();
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    let spec = dnsd_of(&setting.world).with(["--handover", &socket]);
    let started = |setting: &Setting| {
        let metrics = setting.dnsd.metrics().unwrap();
        metrics.sum("process_start_time_seconds", &[])
    };
    let before = started(&setting);
    let new = setting.world.launch(spec)?;
    // Both may answer at the admin address, and the old one ends meanwhile.
    let queries = || {
        let mut counted = None;
        within(PATIENCE, "the new one is asked", || {
            let Ok(metrics) = setting.dnsd.metrics() else {
                return false;
            };
            let is_new = metrics.sum("process_start_time_seconds", &[]) > before;
            counted = is_new.then(|| metrics.sum("egret_dnsd_queries_total", &[]));
            is_new
        });
        counted
    };
    within(PATIENCE, "the new one answers", || {
        let patient = lookup(RecordType::A).patience(PATIENCE);
        assert!(setting.ask("client", &patient).is_some());
        queries() > Some(0.0)
    });
    // From then on the program of the old one answers nothing: each query is counted by the new one.
    for _ in 0..10 {
        let before = queries();
        // The first ones may be held.
        let patient = lookup(RecordType::A).patience(PATIENCE);
        assert!(setting.ask("client", &patient).is_some());
        assert!(queries() > before);
    }
    drop(std::mem::replace(&mut setting.dnsd, new));
    setting.answer_of_kernel("client", &lookup(RecordType::A));
    assert_eq!(upstream.asked(NAME), 1, "both answer from one cache");
    setting.end()
}

#[test]
fn what_the_kernel_answers_is_counted_as_if_dnsd_had() -> TestResult {
    count_answers("netfilter")
}

#[test]
fn what_the_kernel_answers_is_counted_as_if_dnsd_had_on_nftables() -> TestResult {
    count_answers("nftables")
}

fn count_answers(filter: &str) -> TestResult {
    let Some(setting) = Setting::behind(filter, &[], &[]) else {
        return Ok(());
    };
    let isolated = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: one, namespace: default}\nspec:\n  \
                    podSelector: {matchLabels: {app: other}}\n  policyTypes: [Egress]\n";
    setting.world.manifests().write("policy.yaml", isolated)?;
    for (pod, tier) in [("client", "default"), ("other", "np")] {
        setting.answer_of_kernel(pod, &lookup(RecordType::A));
        let of_dnsd = || {
            let metrics = setting.dnsd.metrics().unwrap();
            [
                metrics.sum(
                    "egret_dnsd_queries_total",
                    &[("transport", "udp"), ("family", "IPv4")],
                ),
                metrics.sum("egret_dnsd_responses_total", &[("rcode", "NOERROR")]),
                metrics.sum("egret_dnsd_cache_hits_total", &[]),
                metrics.sum("egret_dnsd_observations_total", &[]),
            ]
        };
        let of_enforcer = || {
            let labels = [("action", "allow"), ("direction", "egress"), ("tier", tier)];
            let metrics = setting.enforcer.metrics().unwrap();
            metrics.sum("egret_enforcer_verdicts_total", &labels)
        };
        std::thread::sleep(COUNTERS_MAX_AGE);
        let (before, verdicts, by_kernel) = (of_dnsd(), of_enforcer(), setting.answered());
        for _ in 0..100 {
            setting.ask(pod, &lookup(RecordType::A)).unwrap();
        }
        let by_kernel = setting.answered() - by_kernel;
        assert!(
            (90.0..=100.0).contains(&by_kernel),
            "{by_kernel} of 100 by the kernel"
        );
        let after = of_dnsd();
        let more = std::array::from_fn::<f64, 4, _>(|index| after[index] - before[index]);
        assert_eq!(more, [100.0; 4], "{pod}: {before:?} {after:?}");
        std::thread::sleep(COUNTERS_MAX_AGE);
        assert_eq!(of_enforcer() - verdicts, 100.0, "{pod}");
    }
    setting.end()
}
