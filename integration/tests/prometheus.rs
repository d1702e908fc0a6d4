//! A real Prometheus scrapes both daemons, and what it says equals what was sent: per tier, action and direction,
//! across a restart of each.

#![allow(
    clippy::disallowed_methods,
    reason = "how long a scrape is waited for is a matter of real time"
)]
#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write as _},
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use egret_integration::{
    Daemon, DaemonSpec, Lookup, Outcome, RecordType, Records, ResponseCode, Service, World,
};
use serde_json::Value;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Values of the labels that were asked for, in their order, and how much the counter has grown.
type Growth = BTreeMap<Vec<String>, u64>;

const PROMETHEUS: u16 = 9090;
const SCRAPED_WITHIN: Duration = Duration::from_secs(15);
/// Shorter than the second after which the kernel repeats a SYN: one attempt is one packet.
const ATTEMPT: Duration = Duration::from_millis(300);

const VERDICTS: &str = "egret_enforcer_verdicts_total";
const VERDICT_LABELS: &[&str] = &["tier", "action", "direction"];

/// All tiers, each in both directions as far as the packets of the table need it.
const POLICIES: &str = r#"
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: named}
spec:
  tier: Admin
  priority: 100
  subject:
    pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: named}}}
  egress:
  - action: Accept
    to: [{networks: [169.254.20.10/32]}]
  - action: Accept
    to: [{domainNames: [api.example.test]}]
  - action: Deny
    to: [{networks: [203.0.113.0/24]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec:
  podSelector: {matchLabels: {app: isolated}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: named}}}]
    ports: [{protocol: TCP, port: 8080}]
  egress:
  - to: [{ipBlock: {cidr: 198.51.100.0/24}}]
    ports: [{protocol: TCP, port: 7}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: baseline}
spec:
  tier: Baseline
  priority: 10
  subject:
    pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: base}}}
  egress:
  - action: Accept
    to: [{networks: [198.51.100.0/24]}]
  - action: Deny
    to: [{networks: [198.18.0.0/15]}]
  ingress:
  - action: Deny
    from: [{namespaces: {}}]
"#;

/// Packets, and which verdicts each of them gets on its way.
struct Probe {
    times: u16,
    from: &'static str,
    to: &'static str,
    connects: bool,
    verdicts: &'static [[&'static str; 3]],
}

const PROBES: &[Probe] = &[
    Probe {
        times: 5,
        from: "named",
        to: "203.0.113.7:7",
        connects: true,
        verdicts: &[["admin", "allow", "egress"]],
    },
    Probe {
        times: 4,
        from: "named",
        to: "203.0.113.50:7",
        connects: false,
        verdicts: &[["admin", "deny", "egress"]],
    },
    Probe {
        times: 3,
        from: "named",
        to: "198.51.100.9:7",
        connects: true,
        verdicts: &[["default", "allow", "egress"]],
    },
    Probe {
        times: 3,
        from: "named",
        to: "isolated:8080",
        connects: true,
        verdicts: &[["default", "allow", "egress"], ["np", "allow", "ingress"]],
    },
    Probe {
        times: 2,
        from: "named",
        to: "isolated:8081",
        connects: false,
        verdicts: &[["default", "allow", "egress"], ["np", "deny", "ingress"]],
    },
    Probe {
        times: 6,
        from: "isolated",
        to: "198.51.100.9:7",
        connects: true,
        verdicts: &[["np", "allow", "egress"]],
    },
    Probe {
        times: 2,
        from: "isolated",
        to: "203.0.113.7:7",
        connects: false,
        verdicts: &[["np", "deny", "egress"]],
    },
    Probe {
        times: 4,
        from: "base",
        to: "198.51.100.9:7",
        connects: true,
        verdicts: &[["baseline", "allow", "egress"]],
    },
    Probe {
        times: 3,
        from: "base",
        to: "198.18.0.1:7",
        connects: false,
        verdicts: &[["baseline", "deny", "egress"]],
    },
    Probe {
        times: 2,
        from: "named",
        to: "base:8080",
        connects: false,
        verdicts: &[["default", "allow", "egress"], ["baseline", "deny", "ingress"]],
    },
];

/// Name, how often it is asked for over UDP and over TCP, the code of the answers.
const LOOKUPS: &[(&str, u16, u16, ResponseCode)] = &[
    ("api.example.test", 4, 1, ResponseCode::NoError),
    ("nobody.example.test", 3, 0, ResponseCode::NXDomain),
];

#[test]
fn prometheus_counts_what_was_sent_across_a_restart_of_each_daemon() -> TestResult {
    let Some(mut scene) = Scene::set()? else {
        return Ok(());
    };
    scene.wait_for_first_scrapes()?;
    let before = scene.growths()?;
    for (done, restart) in [Restart::None, Restart::Enforcer, Restart::Dnsd, Restart::Both]
        .into_iter()
        .enumerate()
    {
        scene.restart(restart)?;
        scene.send_probes()?;
        scene.wait_until_grown(&before, &expected(done + 1), restart)?;
    }
    scene.wait_for_scrapes(2)?;
    scene.wait_until_grown(&before, &expected(4), Restart::None)?;
    scene.ask_as_a_dashboard_would()?;
    say(&format!(
        "prometheus: {} kinds of counts equal what was sent, across restarts",
        expected(4).iter().map(BTreeMap::len).sum::<usize>()
    ));
    Ok(())
}

#[test]
fn promtool_accepts_both_scrapes() -> TestResult {
    let Some(scene) = Scene::set()? else {
        return Ok(());
    };
    scene.send_probes()?;
    for daemon in [&scene.dnsd, &scene.enforcer] {
        let url = format!("http://{}/metrics", daemon.spec().admin);
        let check = format!("curl -sS {url} | promtool check metrics");
        let checked = scene.world.node().run(&["sh", "-c", &check])?;
        assert!(
            checked.success() && checked.stdout.is_empty() && checked.stderr.is_empty(),
            "{}: {checked:?}",
            daemon.spec().name
        );
    }
    Ok(())
}

// === What is expected ===

const DNSD: &[(&str, &[&str])] = &[
    ("egret_dnsd_queries_total", &["transport", "family"]),
    ("egret_dnsd_responses_total", &["rcode"]),
    ("egret_dnsd_observations_total", &[]),
];

/// In the order of [`Scene::growths`], after so many times all probes.
fn expected(times: usize) -> Vec<Growth> {
    let times = u64::try_from(times).unwrap();
    let mut all = vec![Growth::new(); 4];
    let mut add = |metric: usize, labels: &[&str], count: u16| {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        *all[metric].entry(labels).or_default() += u64::from(count) * times;
    };
    for probe in PROBES {
        for verdict in probe.verdicts {
            add(0, verdict, probe.times);
        }
    }
    for (_, udp, tcp, code) in LOOKUPS {
        let asked = udp + tcp;
        // The way to dnsd is judged, too.
        add(0, &["admin", "allow", "egress"], asked);
        add(1, &["udp", "IPv4"], *udp);
        add(1, &["tcp", "IPv4"], *tcp);
        if *code == ResponseCode::NoError {
            add(2, &["NOERROR"], asked);
            add(3, &[], asked);
        } else {
            add(2, &["NXDOMAIN"], asked);
        }
    }
    for growth in &mut all {
        growth.retain(|_, count| *count > 0);
    }
    all
}

// === The scene ===

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    None,
    Enforcer,
    Dnsd,
    Both,
}

struct Scene {
    prometheus: Daemon,
    dnsd: Daemon,
    enforcer: Daemon,
    world: World,
}

impl Scene {
    fn set() -> Result<Option<Self>, Box<dyn std::error::Error>> {
        let Some(world) = World::or_skip().filter(|_| has_prometheus()) else {
            return Ok(None);
        };
        let world = world.with_pod("named")?.with_pod("isolated")?.with_pod("base")?;
        let upstream = world.upstream();
        upstream.set("api.example.test", Records::addresses(["203.0.113.7"]).ttl(3600));
        for pod in ["isolated", "base"] {
            world.pod(pod).serve(8080, Service::TcpEcho)?;
            world.pod(pod).serve(8081, Service::TcpEcho)?;
        }
        world.manifests().write("policies.yaml", POLICIES)?;
        let enforcer = world.start(world.enforcer("netfilter"))?;
        let dnsd = world.start(world.dnsd())?;
        let prometheus = world.start(prometheus(&world)?)?;
        let scene = Self {
            prometheus,
            dnsd,
            enforcer,
            world,
        };
        Ok(Some(scene))
    }

    fn restart(&mut self, restart: Restart) -> TestResult {
        let (dnsd, enforcer) = (&mut self.dnsd, &mut self.enforcer);
        let daemons = match restart {
            Restart::None => vec![],
            Restart::Enforcer => vec![enforcer],
            Restart::Dnsd => vec![dnsd],
            Restart::Both => vec![enforcer, dnsd],
        };
        for daemon in daemons {
            daemon.kill()?;
            daemon.restart()?;
            daemon.wait_until_ready()?;
        }
        // A counter that has grown to its old value before it is scraped again would not look as if it had begun anew.
        self.wait_for_scrapes(2)
    }

    /// Each of them once more; what must not connect gets its verdict all the same.
    fn send_probes(&self) -> TestResult {
        for (name, udp, tcp, code) in LOOKUPS {
            let lookup = Lookup::of(name, RecordType::A);
            let asked = [(lookup.clone(), udp), (lookup.over_tcp(), tcp)];
            for (lookup, times) in asked {
                for _ in 0..*times {
                    assert_eq!(self.world.pod("named").look_up(&lookup)?.code(), *code, "{name}");
                }
            }
        }
        for probe in PROBES {
            for _ in 0..probe.times {
                let outcome = self.send(probe);
                let Probe { from, to, .. } = probe;
                assert_eq!(
                    outcome.is_connected(),
                    probe.connects,
                    "{from} to {to}: {outcome:?}"
                );
            }
        }
        Ok(())
    }

    fn send(&self, probe: &Probe) -> Outcome {
        let to: SocketAddr = match probe.to.split_once(':').unwrap() {
            (pod @ ("isolated" | "base"), port) => {
                SocketAddr::new(self.world.pod(pod).address(), port.parse().unwrap())
            }
            _ => probe.to.parse().unwrap(),
        };
        self.world.pod(probe.from).connect_tcp(to, ATTEMPT)
    }
}

// === Prometheus ===

/// Says loudly that it was not tested, unless `CI` is `true`.
fn has_prometheus() -> bool {
    let is_there = |program| Command::new(program).arg("--version").output().is_ok();
    let both = is_there("prometheus") && is_there("promtool");
    if !both {
        assert!(
            env::var("CI").as_deref() != Ok("true"),
            "prometheus and promtool are not installed (Debian: apt-get install prometheus)"
        );
        say(
            "*** NOT TESTED: prometheus and promtool are not installed (Debian: apt-get install prometheus) ***",
        );
    }
    both
}

fn prometheus(world: &World) -> Result<DaemonSpec, io::Error> {
    let config = world.files().join("prometheus.yml");
    let job = |spec: DaemonSpec| {
        format!(
            "- job_name: {}\n  static_configs: [{{targets: ['{}']}}]\n",
            spec.name, spec.admin
        )
    };
    let jobs = job(world.dnsd()) + &job(world.enforcer("netfilter"));
    fs::write(
        &config,
        format!("global: {{scrape_interval: 1s, scrape_timeout: 900ms}}\nscrape_configs:\n{jobs}"),
    )?;
    Ok(DaemonSpec::stock("prometheus", PROMETHEUS, "/-/ready").with([
        format!("--web.listen-address=127.0.0.1:{PROMETHEUS}"),
        format!("--config.file={}", config.display()),
        format!(
            "--storage.tsdb.path={}",
            world.files().join("prometheus").display()
        ),
    ]))
}

impl Scene {
    /// What a query gives, by the API of HTTP.
    fn query(&self, query: &str) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
        let escaped = query
            .bytes()
            .map(|byte| format!("%{byte:02x}"))
            .collect::<String>();
        let (code, body) = self.prometheus.get(&format!("/api/v1/query?query={escaped}"))?;
        let answer: Value = serde_json::from_str(&body)?;
        match answer["data"]["result"].as_array() {
            Some(result) if code == 200 => Ok(result.clone()),
            Some(_) | None => Err(format!("{query}: {code}: {body}").into()),
        }
    }

    /// How much the counters have grown since they were scraped first, restarts included.
    fn growths(&self) -> Result<Vec<Growth>, Box<dyn std::error::Error>> {
        let metrics = std::iter::once((VERDICTS, VERDICT_LABELS)).chain(DNSD.iter().copied());
        metrics
            .map(|(metric, labels)| self.growth(metric, labels))
            .collect()
    }

    fn growth(&self, metric: &str, labels: &[&str]) -> Result<Growth, Box<dyn std::error::Error>> {
        let mut growth = Growth::new();
        for series in self.query(&format!("{metric}[1h]"))? {
            let values = labels
                .iter()
                .map(|label| series["metric"][label].as_str().unwrap_or_default().to_owned());
            *growth.entry(values.collect()).or_default() += increase(&series);
        }
        Ok(growth)
    }

    fn wait_until_grown(&self, before: &[Growth], expected: &[Growth], since: Restart) -> TestResult {
        let begun = Instant::now();
        loop {
            let now = self.growths()?;
            let seen: Vec<_> = now
                .iter()
                .zip(before)
                .map(|(now, before)| grown(now, before))
                .collect();
            if seen == expected {
                return Ok(());
            }
            if begun.elapsed() > SCRAPED_WITHIN {
                return Err(
                    format!("after a restart of {since:?}: sent {expected:#?}, counted {seen:#?}").into(),
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Until both daemons were scraped so many times more.
    fn wait_for_scrapes(&self, times: u64) -> TestResult {
        let count = || -> Result<Vec<u64>, Box<dyn std::error::Error>> {
            let counted = self.query("count_over_time(up[1h])")?;
            Ok(counted.iter().map(|series| number(&series["value"][1])).collect())
        };
        let (begun, before) = (Instant::now(), count()?);
        while begun.elapsed() < SCRAPED_WITHIN {
            let now = count()?;
            if now.len() == 2
                && now
                    .iter()
                    .zip(&before)
                    .all(|(now, before)| *now >= before + times)
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err("Prometheus does not scrape both".into())
    }

    fn wait_for_first_scrapes(&self) -> TestResult {
        let begun = Instant::now();
        while self.query("up == 1")?.len() < 2 {
            if begun.elapsed() > SCRAPED_WITHIN {
                return Err(format!("not both are up: {:?}", self.query("up")?).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Resolutions and verdicts, by the functions that dashboards use.
    fn ask_as_a_dashboard_would(&self) -> TestResult {
        for query in [
            "sum(rate(egret_dnsd_queries_total[1m])) > 0",
            "sum by (rcode) (increase(egret_dnsd_responses_total{rcode=\"NXDOMAIN\"}[1m])) > 0",
            "sum by (tier, action) (increase(egret_enforcer_verdicts_total{action=\"deny\"}[1m])) > 0",
            "egret_enforcer_records > 0",
            "histogram_quantile(0.99, sum by (le) (rate(egret_dnsd_held_seconds_bucket[5m]))) > 0",
        ] {
            assert!(!self.query(query)?.is_empty(), "{query}");
        }
        Ok(())
    }
}

/// As Prometheus reads a counter: a value below the last one means that it began again at 0.
fn increase(series: &Value) -> u64 {
    let values = series["values"].as_array().unwrap();
    let values: Vec<u64> = values.iter().map(|sample| number(&sample[1])).collect();
    let steps = values
        .windows(2)
        .map(|pair| pair[1].checked_sub(pair[0]).unwrap_or(pair[1]));
    steps.sum()
}

fn number(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

/// What is more now than before, without what did not change.
fn grown(now: &Growth, before: &Growth) -> Growth {
    let grown = now
        .iter()
        .map(|(labels, now)| (labels.clone(), now - before.get(labels).copied().unwrap_or(0)));
    grown.filter(|(_, growth)| *growth > 0).collect()
}

/// Past the test harness, which keeps what is printed to itself.
fn say(text: &str) {
    io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}
