//! dnsd in the place of node-local-dns: what pods get while it is dead, hangs, or is replaced.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use egret_integration::{
    Daemon, DaemonSpec, Lookup, PodSpec, RecordType, Records, ResponseCode, Transport, World, node, upstream,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::backend_override;
use super::deployment::{CLIENT_ALONE, QUICK, TestResult, eventually, ip, metrics, only_names, within};

/// How long pods may be without DNS.
pub(super) const GAP: Duration = Duration::from_secs(2);
/// How often dnsd is replaced in a story.
pub(super) const ROLLS: usize = 6;

const NAME: &str = "api.example.test";

/// The four ways to the node's DNS: two families, two protocols.
fn ways() -> [Lookup; 4] {
    let lookup = || Lookup::of(NAME, RecordType::A).patience(QUICK);
    [
        lookup().at(node::DNS),
        lookup().at(node::DNS).over_tcp(),
        lookup().at(node::DNS_V6),
        lookup().at(node::DNS_V6).over_tcp(),
    ]
}

fn answers(world: &World, pod: &str, way: &Lookup) -> bool {
    world.pod(pod).look_up(way).is_ok()
}

/// Who asked the upstream last: a pod itself, or dnsd for it.
fn last_asked_by_pod(world: &World, pod: &str) -> bool {
    let log = world.upstream().log();
    let addresses = world.pod(pod).addresses();
    log.last()
        .is_some_and(|asked| addresses.contains(&asked.from.ip()))
}

/// What an operator applies; the installer's variables are replaced as its header says.
const MANIFEST: &str = include_str!("../../../deploy/node-local-dns/node-local-dns.yaml");

pub(super) fn the_manifest_of_node_local_dns_serves_pods(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world
        .manifests()
        .write("policy.yaml", &only_names(&["api.example.test"]))?;
    for name in [
        "api.example.test",
        "web.shop.svc.cluster.test",
        "host.corp.example",
    ] {
        world.upstream().set(name, Records::addresses(["203.0.113.7"]));
    }
    let spec = node_cache(world)?;
    let mut enforcer = world.start(backend_override::enforcer(world))?;
    let mut dnsd = world.launch(spec)?;
    eventually("dnsd serves, and knows what is interesting", || {
        assert!(dnsd.is_running(), "{}", dnsd.log());
        let knows_interest = |(_, page): (u16, String)| page.contains("have interest in names");
        dnsd.get("/readyz").is_ok_and(knows_interest)
    });
    for (name, transport) in [
        ("web.shop.svc.cluster.test", Transport::Tcp),
        ("host.corp.example", Transport::Udp),
        ("api.example.test", Transport::Udp),
    ] {
        for server in [ip("169.254.20.10"), ip("fd00::20:10")] {
            let lookup = Lookup::of(name, RecordType::A).at(server);
            let reply = world.pod("client").look_up(&lookup)?;
            assert_eq!(
                reply.message.response_code,
                ResponseCode::NoError,
                "{name} at {server}"
            );
        }
        let log = world.upstream().log();
        let asked = log
            .iter()
            .filter(|asked| asked.name.trim_end_matches('.').eq_ignore_ascii_case(name));
        let asked: Vec<Transport> = asked.map(|asked| asked.transport).collect();
        // Under load it may be asked a second time before it has answered.
        assert!(
            !asked.is_empty() && asked.iter().all(|how| *how == transport),
            "{name}: {asked:?}"
        );
    }
    let outcome = world
        .pod("client")
        .connect_tcp(SocketAddr::new(ip("203.0.113.7"), 7), QUICK);
    assert!(
        outcome.is_connected(),
        "an allowed name connects at once: {outcome:?}"
    );
    let counted = dnsd.metrics()?.sum(
        "coredns_dns_requests_total",
        &[("zone", "cluster.test."), ("family", "2")],
    );
    assert!(counted >= 1.0, "existing dashboards go on working: {counted}");
    eventually("it has its rules", || {
        rules(world).is_ok_and(|rules| rules.contains("NodeLocal"))
    });
    // Told to end, it answers on until `lameduck` is over, or it is told again.
    dnsd.signal(Signal::SIGTERM)?;
    eventually("it is in lameduck mode", || dnsd.log().contains("lameduck mode"));
    assert!(answers(
        world,
        "client",
        &Lookup::of(NAME, RecordType::A).at(node::DNS)
    ));
    dnsd.terminate()?;
    enforcer.terminate()?;
    assert!(!rules(world)?.contains("NodeLocal"));
    Ok(())
}

/// dnsd with the arguments of the manifest, its ConfigMap where the mount would be, and the ConfigMap kube-dns.
fn node_cache(world: &World) -> Result<DaemonSpec, Box<dyn std::error::Error>> {
    let text = MANIFEST
        .replace("__PILLAR__LOCAL__DNS__", &node::DNS.to_string())
        .replace("__PILLAR__DNS__SERVER__", &node::DNS_V6.to_string())
        .replace("__PILLAR__DNS__DOMAIN__", "cluster.test");
    let objects = text.split("\n---\n").map(serde_saphyr::from_str::<Value>);
    let objects: Vec<Value> = objects.collect::<Result<_, _>>()?;
    let of_kind = |kind: &str| {
        objects
            .iter()
            .find(|object| object["kind"] == kind)
            .cloned()
            .unwrap()
    };
    let folder = world.files().join("node-cache");
    let put = |file: &str, text: &str| {
        let path = folder.join(file);
        std::fs::create_dir_all(path.parent().unwrap())?;
        std::fs::write(&path, text).map(|()| path.display().to_string())
    };
    let base = put(
        "Corefile.base",
        of_kind("ConfigMap")["data"]["Corefile"].as_str().unwrap(),
    )?;
    let server = upstream::ADDRESS;
    put("kube-dns/upstreamNameservers", &format!("[\"{server}\"]"))?;
    put(
        "kube-dns/stubDomains",
        &format!("{{\"corp.example\": [\"{server}\"]}}"),
    )?;
    let handover = folder.join("handover.sock");
    let own = format!(
        "link: {}\nhost:\n  handover: {}\n",
        world.link().display(),
        handover.display()
    );
    let own = put("own.yaml", &own)?;
    let arguments = of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let corefile = folder.join("Corefile").display().to_string();
    let arguments: Vec<String> = serde_json::from_value(arguments)?;
    let arguments = arguments.into_iter().map(|word| {
        if word == "/etc/Corefile" {
            corefile.clone()
        } else {
            word
        }
    });
    let spec = DaemonSpec {
        arguments: arguments.collect(),
        ..DaemonSpec::dnsd(9253)
    };
    let kube_dns = folder.join("kube-dns").display().to_string();
    Ok(spec
        .with(["-basecorefile", &base, "-kubednscm", &kube_dns, "-config", &own])
        .with_variable("KUBE_DNS_UPSTREAM_SERVICE_HOST", &server.to_string()))
}

pub(super) fn pods_reach_the_cluster_dns_soon_after_dnsd_died_or_hangs(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    let spec = world.dnsd().with(["--rules", "--sync-interval", "1s"]);
    let mut dnsd = world.start(with_fallback(spec.clone()))?;
    let by_dnsd = || {
        ways()
            .iter()
            .all(|way| answers(world, "client", way) && !last_asked_by_pod(world, "client"))
    };
    let by_cluster_dns = || {
        ways()
            .iter()
            .all(|way| answers(world, "client", way) && last_asked_by_pod(world, "client"))
    };
    eventually("dnsd answers", by_dnsd);
    eventually("the way past it is there, in both families", || {
        rules(world).is_ok_and(|rules| rules.matches("--to-destination").count() == 8)
    });

    dnsd.kill()?;
    within(GAP, "the cluster DNS answers after a death", by_cluster_dns);
    dnsd.restart()?;
    dnsd.wait_until_ready()?;
    eventually("dnsd answers again", by_dnsd);
    eventually("what went past is counted when it is back", || {
        went_past(&dnsd).iter().all(|count| *count >= 1.0)
    });

    let before = went_past(&dnsd);
    dnsd.stop()?;
    within(GAP, "the cluster DNS answers while dnsd hangs", by_cluster_dns);
    dnsd.cont()?;
    eventually("dnsd answers when it goes on", by_dnsd);
    eventually("what went past meanwhile is counted as well", || {
        went_past(&dnsd)
            .iter()
            .zip(before)
            .all(|(count, before)| *count > before)
    });

    let mut enforcer = world.start(backend_override::enforcer(world))?;
    eventually("dnsd knows the enforcer", || {
        let knows_interest = |(_, page): (u16, String)| page.contains("have interest in names");
        dnsd.get("/readyz").is_ok_and(knows_interest)
    });
    enforcer.stop()?;
    dnsd.stop()?;
    within(GAP, "the cluster DNS answers while both hang", by_cluster_dns);
    enforcer.cont()?;
    dnsd.cont()?;
    eventually("dnsd answers when both go on", by_dnsd);
    enforcer.terminate()?;

    dnsd.terminate()?;
    assert!(!rules(world)?.contains("NodeLocal"), "what was set up is removed");
    let mut alone = world.start(spec.with(["--fallback", "none"]))?;
    eventually("dnsd answers", by_dnsd);
    alone.kill()?;
    std::thread::sleep(GAP);
    for way in ways() {
        assert!(
            !answers(world, "client", &way),
            "without a fallback nobody else answers: {way:?}"
        );
    }
    alone.restart()?;
    alone.wait_until_ready()?;
    alone.terminate()?;
    Ok(())
}

/// The upstream stands for the cluster DNS, in both families.
pub(super) fn with_fallback(spec: DaemonSpec) -> DaemonSpec {
    let endpoints = [
        format!("{}:{}", upstream::ADDRESS, upstream::PORT),
        format!("[{}]:{}", upstream::ADDRESS_V6, upstream::PORT),
    ];
    endpoints.into_iter().fold(spec, |spec, endpoint| {
        spec.with(["--fallback-server".to_owned(), endpoint])
    })
}

/// What pods asked while no dnsd was alive, by family and protocol.
fn went_past(dnsd: &Daemon) -> [f64; 4] {
    let metrics = metrics(dnsd);
    [("IPv4", "udp"), ("IPv4", "tcp"), ("IPv6", "udp"), ("IPv6", "tcp")].map(|(family, transport)| {
        let labels = [("family", family), ("transport", transport)];
        metrics.sum("egret_dnsd_went_past_total", &labels)
    })
}

/// The cluster's DNS Service, with these endpoints.
fn cluster_dns(v4: &[&str], v6: &[&str]) -> String {
    let slice = |name: &str, family: &str, endpoints: &[&str]| {
        let endpoints: Vec<String> = endpoints
            .iter()
            .map(|address| format!("{{addresses: [\"{address}\"]}}"))
            .collect();
        format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, namespace: kube-system, labels: {{kubernetes.io/service-name: kube-dns}}}}
addressType: {family}
endpoints: [{}]
ports: [{{name: dns, protocol: UDP, port: 53}}, {{name: dns-tcp, protocol: TCP, port: 53}}]
",
            endpoints.join(", ")
        )
    };
    let service = "apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, protocol: TCP, port: 53}]
";
    [
        service.to_owned(),
        slice("four", "IPv4", v4),
        slice("six", "IPv6", v6),
    ]
    .concat()
}

/// Endpoints of the cluster's DNS that no configuration names.
const ENDPOINTS: [&str; 3] = ["198.51.100.61", "198.51.100.62", "2001:db8:8::61"];

pub(super) fn the_fallback_asks_whom_only_the_enforcer_knew(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    let [first, second, six] = ENDPOINTS;
    world
        .manifests()
        .write("dns.yaml", &cluster_dns(&["198.51.100.60"], &[six]))?;
    let mut enforcer = world.start(backend_override::enforcer(world))?;
    let mut dnsd = world.start(world.dnsd().with(["--rules"]))?;
    let by_dnsd = || {
        ways()
            .iter()
            .all(|way| answers(world, "client", way) && !last_asked_by_pod(world, "client"))
    };
    let by_endpoints = || {
        ways().iter().all(|way| {
            let is_answered = answers(world, "client", way) && last_asked_by_pod(world, "client");
            let log = world.upstream().log();
            let asks = |endpoint: &str| log.last().is_some_and(|asked| asked.server == ip(endpoint));
            is_answered && ENDPOINTS.into_iter().any(asks)
        })
    };
    let leads_to = |endpoint: &str| {
        let number = |rules: String| {
            rules
                .matches(&format!("--to-destination {endpoint}:53\n"))
                .count()
        };
        rules(world).is_ok_and(|rules| number(rules) == 4)
    };
    eventually("dnsd answers", by_dnsd);
    eventually("the endpoint is known", || {
        leads_to("198.51.100.60") && leads_to(&format!("[{six}]"))
    });
    world
        .manifests()
        .write("dns.yaml", &cluster_dns(&[first, second], &[six]))?;
    eventually("the endpoints are others", || leads_to(first) && leads_to(second));
    assert!(!leads_to("198.51.100.60"), "it is none any more");

    enforcer.kill()?;
    dnsd.kill()?;
    within(GAP, "the endpoints answer after all are dead", by_endpoints);
    dnsd.restart()?;
    dnsd.wait_until_ready()?;
    eventually("dnsd answers again", by_dnsd);
    eventually("what went past is counted", || {
        went_past(&dnsd).iter().all(|count| *count >= 1.0)
    });
    dnsd.kill()?;
    within(GAP, "a dnsd that nobody told has forgotten nobody", by_endpoints);
    dnsd.restart()?;
    dnsd.wait_until_ready()?;
    dnsd.terminate()?;
    assert!(!rules(world)?.contains("to-destination"));
    Ok(())
}

fn rules(world: &World) -> Result<String, Box<dyn std::error::Error>> {
    let both = [egret_integration::Family::V4, egret_integration::Family::V6];
    let saved: Result<Vec<String>, _> = both
        .into_iter()
        .map(|family| world.node().iptables_save(family))
        .collect();
    Ok(saved?.concat())
}

pub(super) fn dns_is_judged_although_dnsd_lets_it_in(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client").labelled("app", "client"))?;
    world.add(PodSpec::new("other"))?;
    world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
    world.manifests().write("policy.yaml", CLIENT_ALONE)?;
    for (enforcer_first, jump) in [(true, "insert"), (false, "insert"), (false, "append")] {
        let start_dnsd = || world.start(world.dnsd().with(["--rules"]));
        let start_enforcer = || world.start(backend_override::enforcer(world).with(["--jump", jump]));
        let (mut enforcer, mut dnsd) = if enforcer_first {
            let enforcer = start_enforcer()?;
            (enforcer, start_dnsd()?)
        } else {
            let dnsd = start_dnsd()?;
            eventually("dnsd lets DNS in", || lets_in(world));
            (start_enforcer()?, dnsd)
        };
        eventually("dnsd lets DNS in", || lets_in(world));
        eventually("others are answered", || {
            ways().iter().all(|way| answers(world, "other", way))
        });
        // A jump that was appended stands behind what lets DNS in until that is noticed; the interval is a minute.
        within(GAP * 10, "DNS is judged", || {
            jump != "append" || ways().iter().all(|way| !answers(world, "client", way))
        });
        for way in ways() {
            assert!(
                !answers(world, "client", &way),
                "enforcer first: {enforcer_first}, {jump}: {way:?}"
            );
        }
        dnsd.terminate()?;
        enforcer.terminate()?;
        world.node().run_well(&["true"])?;
    }
    Ok(())
}

fn lets_in(world: &World) -> bool {
    rules(world).is_ok_and(|rules| rules.matches("allow DNS traffic").count() == 8)
}

pub(super) fn dnsds_that_take_over_from_each_other_lose_no_question(world: &mut World) -> TestResult {
    let (v4, v6) = (node::DNS.into(), node::DNS_V6.into());
    let ways = [
        (v4, Transport::Udp),
        (v4, Transport::Tcp),
        (v6, Transport::Udp),
        (v6, Transport::Tcp),
    ];
    roll(world, &[], ways, |_world| {})
}

/// Replaces dnsd again and again while a pod asks at these addresses; none of the questions may be lost. `settle` waits, before
/// and after, until everything is as it should be.
pub(super) fn roll(
    world: &mut World,
    arguments: &[&str],
    ways: [(IpAddr, Transport); 4],
    settle: impl Fn(&World),
) -> TestResult {
    world.add(PodSpec::new("client"))?;
    for number in 0..50 {
        let name = format!("n{number}.example.test");
        world
            .upstream()
            .set(&name, Records::addresses(["203.0.113.7"]).ttl(1));
    }
    let spec = by_hand(world).with(arguments.iter().copied());
    let _enforcer = world.start(backend_override::enforcer(world))?;
    let mut serving = world.start(spec.clone())?;
    settle(world);
    let (stop, asked, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let rolled: TestResult = std::thread::scope(|scope| {
        for (asker, (server, transport)) in ways.into_iter().enumerate() {
            let (world, stop, asked, lost) = (&*world, &stop, &asked, &lost);
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // A socket of its own for each question, and nobody asks twice.
                    let name = format!("n{}.example.test", (number + asker) % 50);
                    let lookup = Lookup::of(&name, RecordType::A).patience(GAP);
                    let lookup = match transport {
                        Transport::Udp => lookup,
                        Transport::Tcp => lookup.over_tcp(),
                    };
                    let lookup = lookup.at(server);
                    asked.fetch_add(1, Ordering::Relaxed);
                    if let Err(failure) = world.pod("client").look_up(&lookup) {
                        eprintln!("lost: {failure}");
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _end = EndOfQuestions(&stop);
        (0..ROLLS).try_for_each(|roll| replace(world, &mut serving, &spec, roll))
    });
    rolled?;
    assert_eq!(
        lost.load(Ordering::Relaxed),
        0,
        "of {} questions",
        asked.load(Ordering::Relaxed)
    );
    assert!(
        asked.load(Ordering::Relaxed) > 10 * ROLLS,
        "{} questions",
        asked.load(Ordering::Relaxed)
    );
    assert!(
        rules(world)?.contains("NodeLocal"),
        "what was set up stays for the last"
    );
    assert!(
        world
            .pod("client")
            .look_up(&Lookup::of("n1.example.test", RecordType::A).at(ip("169.254.20.10")))
            .is_ok()
    );
    settle(world);
    serving.terminate()?;
    assert!(!rules(world)?.contains("NodeLocal"));
    Ok(())
}

pub(super) fn what_one_dnsd_told_and_kept_the_next_one_knows(world: &mut World) -> TestResult {
    for pod in ["first", "second"] {
        world.add(PodSpec::new(pod))?;
    }
    world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
    world.manifests().write("policy.yaml", &only_names(&[NAME]))?;
    let spec = by_hand(world);
    let mut enforcer = world.start(backend_override::enforcer(world))?;
    let mut serving = world.start(spec.clone())?;
    eventually("dnsd knows what is interesting", || {
        let knows_interest = |(_, page): (u16, String)| page.contains("have interest in names");
        serving.get("/readyz").is_ok_and(knows_interest)
    });
    let server = SocketAddr::new(ip("203.0.113.7"), 7);
    for way in ways() {
        assert!(answers(world, "first", &way), "{way:?}");
    }
    assert!(world.pod("first").connect_tcp(server, QUICK).is_connected());
    let (asked, sockets) = (world.upstream().asked(NAME), sockets(world)?);
    assert_eq!(
        sockets.len(),
        4,
        "one that is asked and one that replies, in each family: {sockets:?}"
    );
    replace(world, &mut serving, &spec, 0)?;
    assert_eq!(self::sockets(world)?, sockets, "they are the same");
    let told = serving.metrics()?.sum("egret_dnsd_ledger_entries", &[]);
    assert!(
        told >= 1.0,
        "what was told is known before anybody asks again: {told}"
    );
    for way in ways() {
        assert!(answers(world, "second", &way), "{way:?}");
        let outcome = world.pod("second").connect_tcp(server, QUICK);
        assert!(outcome.is_connected(), "as soon as it is answered: {outcome:?}");
    }
    assert!(world.pod("first").connect_tcp(server, QUICK).is_connected());
    assert_eq!(
        world.upstream().asked(NAME),
        asked,
        "what the first one kept is not asked for again"
    );
    enforcer.terminate()?;
    serving.terminate()?;
    Ok(())
}

/// The UDP sockets of port 53, by their numbers (inodes).
fn sockets(world: &World) -> Result<BTreeSet<String>, Box<dyn std::error::Error>> {
    let mut sockets = BTreeSet::new();
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        let table = world.node().run(&["cat", table])?.stdout;
        let fields = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours = fields.filter(|fields| fields.get(1).is_some_and(|own| own.ends_with(":0035")));
        sockets.extend(ours.filter_map(|fields| fields.get(9).map(ToString::to_string)));
    }
    Ok(sockets)
}

/// Nobody asks any more, also where a story ends early.
pub(super) struct EndOfQuestions<'a>(pub(super) &'a AtomicBool);

impl Drop for EndOfQuestions<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn replace(world: &World, serving: &mut Daemon, spec: &DaemonSpec, roll: usize) -> TestResult {
    let mut spec = spec.clone();
    spec.name = format!("dnsd-{roll}");
    let mut successor = world.launch(spec)?;
    let mut ended = None;
    eventually("the successor answers, and the predecessor has gone", || {
        assert!(successor.is_running(), "{}", successor.log());
        ended = serving.ended();
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    std::mem::swap(serving, &mut successor);
    Ok(())
}

/// What the world's dnsd is given to be replaced as if by hand: nobody starts it again.
pub(super) fn by_hand(world: &World) -> DaemonSpec {
    let path = world.files().join("handover.sock");
    let handover = ["--handover".to_owned(), path.display().to_string()];
    let spec = world.dnsd().with(["--rules"]).with(handover);
    spec.with_variable("INVOCATION_ID", "")
}

pub(super) fn what_is_set_up_goes_with_the_last_dnsd_alone(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
    let mut looked_after = by_hand(world).with_variable("INVOCATION_ID", "4c6e");
    let mut first = world.start(looked_after.clone())?;
    eventually("dnsd lets DNS in", || lets_in(world));
    looked_after.name = "dnsd-second".into();
    let mut second = world.launch(looked_after.clone())?;
    eventually("the first one waits to be stopped", || {
        first.log().contains("waiting to be stopped")
    });
    assert!(first.terminate()?.success());
    assert!(lets_in(world), "the second one lives");
    assert!(ways().iter().all(|way| answers(world, "client", way)));

    looked_after.name = "dnsd-third".into();
    let mut third = world.launch(looked_after)?;
    eventually("the second one waits to be stopped", || {
        second.log().contains("waiting to be stopped")
    });
    third.kill()?;
    // A program that it was about to start may have its socket for a moment longer. Of who lives there the type is wrong.
    let place = world.files().join("handover.sock");
    eventually("nobody is where successors ask", || {
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        UnixStream::connect(&place).is_err_and(refused)
    });
    assert!(second.terminate()?.success());
    assert!(!rules(world)?.contains("NodeLocal"), "nobody answers any more");
    Ok(())
}
