//! The world itself, without the daemons: what the other tests stand on has to hold by itself.

#![allow(
    clippy::disallowed_methods,
    reason = "how long a real world takes to stand is what one test measures"
)]
#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

use std::{
    collections::BTreeSet,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use egret_integration::{
    DaemonSpec, Family, LoadPlan, Lookup, Outcome, PodSpec, RecordType, Records, ResponseCode, Service,
    Spoof, Transport, UdpOutcome, World, upstream,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(2);
const QUICK: Duration = Duration::from_millis(200);
/// How long a slow name takes: so long that no other is that slow by chance.
const SLOW: Duration = Duration::from_secs(3);

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// A world whose pods ask the upstream directly.
fn world_without_daemons(pods: &[&str]) -> Option<World> {
    let mut world = World::or_skip()?;
    for pod in pods {
        world
            .add(PodSpec::new(pod))
            .unwrap()
            .use_name_servers(&[upstream::ADDRESS.into()])
            .unwrap();
    }
    Some(world)
}

#[test]
fn stock_programs_in_a_pod_resolve_and_fetch_over_both_families() -> TestResult {
    let Some(world) = world_without_daemons(&["client", "other"]) else {
        return Ok(());
    };
    world.upstream().set(
        "api.example.test",
        Records::addresses(["203.0.113.7", "2001:db8::7"]),
    );
    for pod in world.pods() {
        let hosts = pod.run(&["getent", "ahosts", "api.example.test"])?;
        assert!(hosts.success(), "{hosts:?}");
        let found: BTreeSet<_> = hosts
            .stdout
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(found, BTreeSet::from(["203.0.113.7", "2001:db8::7"]));
        for (flag, seen) in [("-4", "203.0.113.7\n"), ("-6", "2001:db8::7\n")] {
            let page = pod.run(&["curl", flag, "-sS", "-m", "5", "http://api.example.test:8080/"])?;
            assert_eq!(page.stdout, seen, "{page:?}");
        }
    }
    assert!(world.upstream().asked_for("API.example.test", RecordType::A) >= 4);
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn every_service_answers_on_addresses_that_nobody_has_added() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let client = world.pod("client");
    for address in [
        "198.18.0.1",
        "198.19.255.254",
        "192.0.2.99",
        "198.51.100.3",
        "2001:db8:5::1",
    ] {
        let address: IpAddr = address.parse()?;
        let mut echo = client
            .connect_tcp(SocketAddr::new(address, 7), PATIENCE)
            .connection();
        assert!(echo.is_alive(), "{address}");
        assert_eq!(echo.peer()?.ip(), address);
        let datagram = client.exchange_udp(SocketAddr::new(address, 5000), b"over here", PATIENCE);
        assert!(
            matches!(&datagram, UdpOutcome::Answered { bytes, .. } if bytes == b"over here"),
            "{datagram:?}"
        );
        let closed = client.connect_tcp(SocketAddr::new(address, 9999), PATIENCE);
        assert!(matches!(closed, Outcome::Refused), "{closed:?}");
        let closed = client.exchange_udp(SocketAddr::new(address, 9999), b"?", PATIENCE);
        assert!(matches!(closed, UdpOutcome::Refused), "{closed:?}");
    }
    let mut pushed = client.connect_tcp(at("203.0.113.9:19"), PATIENCE).connection();
    let received = pushed.received_within(Duration::from_millis(220))?;
    assert!(
        (6..=12).contains(&received),
        "{received} bytes, two a line, a line every 50 ms"
    );
    Ok(())
}

#[test]
fn a_silent_drop_a_rejection_and_a_missing_route_look_different() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    for (address, target) in [("203.0.113.1", "DROP"), ("203.0.113.2", "REJECT")] {
        let rule = ["iptables", "-w", "-A", "FORWARD", "-d", address, "-j", target];
        assert!(world.node().run(&rule)?.success());
    }
    let saved = world.node().iptables_save(Family::V4)?;
    assert!(saved.contains("-A FORWARD -d 203.0.113.1/32 -j DROP"), "{saved}");
    let client = world.pod("client");
    let dropped = client.connect_tcp(at("203.0.113.1:7"), QUICK);
    assert!(matches!(dropped, Outcome::TimedOut), "{dropped:?}");
    assert!(matches!(
        client.exchange_udp(at("203.0.113.1:7"), b"?", QUICK),
        UdpOutcome::Silent
    ));
    let rejected = client.connect_tcp(at("203.0.113.2:7"), PATIENCE);
    assert!(matches!(rejected, Outcome::Refused), "{rejected:?}");
    let beyond = client.connect_tcp(at("100.64.0.1:7"), QUICK);
    assert!(
        matches!(beyond, Outcome::Unreachable | Outcome::TimedOut),
        "{beyond:?}"
    );
    assert!(client.connect_tcp(at("203.0.113.3:7"), PATIENCE).is_connected());
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn pods_reach_each_other_through_the_node() -> TestResult {
    let Some(world) = world_without_daemons(&["client", "server"]) else {
        return Ok(());
    };
    let (client, server) = (world.pod("client"), world.pod("server"));
    server.serve(8080, Service::Http)?;
    server.serve(5000, Service::UdpEcho)?;
    for address in server.addresses() {
        assert!(
            client
                .connect_tcp(SocketAddr::new(address, 8080), PATIENCE)
                .is_connected(),
            "{address}"
        );
        assert!(
            client
                .exchange_udp(SocketAddr::new(address, 5000), b"hello", PATIENCE)
                .is_answered(),
            "{address}"
        );
    }
    let route = world
        .node()
        .run(&["ip", "route", "get", &server.address().to_string()])?;
    assert!(route.stdout.contains(server.interface()), "{route:?}");
    Ok(())
}

#[test]
fn a_held_answer_waits_for_its_release() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let (client, upstream) = (world.pod("client"), world.upstream());
    upstream.set("held.example.test", Records::addresses(["203.0.113.1"]).held());
    let lookup = Lookup::of("held.example.test", RecordType::A).at(upstream::ADDRESS);
    assert!(client.look_up(&lookup.clone().patience(QUICK)).is_err());
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| client.look_up(&lookup)));
        assert!(upstream.wait_until_asked("held.example.test", 3, PATIENCE));
        upstream.release("held.example.test");
        for reply in both {
            assert_eq!(reply.join().unwrap().unwrap().addresses().len(), 1);
        }
    });
    Ok(())
}

#[test]
fn the_upstream_counts_and_logs_what_it_is_asked() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let (client, upstream) = (world.pod("client"), world.upstream());
    upstream.set("api.example.test", Records::addresses(["203.0.113.7"]).ttl(17));
    let lookup = Lookup::of("aPi.eXample.Test", RecordType::A)
        .at(upstream::ADDRESS)
        .with_id(4711);
    for lookup in [
        lookup.clone(),
        lookup.clone().over_tcp(),
        lookup.at(upstream::ADDRESS_V6),
    ] {
        let reply = client.look_up(&lookup)?;
        assert_eq!(
            (reply.id(), reply.code(), reply.ttl()),
            (4711, ResponseCode::NoError, Some(17))
        );
        assert_eq!(reply.addresses(), ["203.0.113.7".parse::<IpAddr>()?]);
        assert_eq!(reply.question().as_deref(), Some("aPi.eXample.Test."));
    }
    assert_eq!(upstream.asked("api.example.test"), 3);
    assert_eq!(upstream.asked_for("api.example.test", RecordType::AAAA), 0);
    let log = upstream.log();
    let transports: Vec<_> = log.iter().map(|asked| asked.transport).collect();
    assert_eq!(transports, [Transport::Udp, Transport::Tcp, Transport::Udp]);
    assert!(
        log.iter()
            .all(|asked| asked.name == "aPi.eXample.Test." && asked.id == 4711)
    );
    assert_eq!([log[0].from.ip(), log[2].from.ip()], client.addresses());
    Ok(())
}

#[test]
fn a_name_with_120_addresses_is_truncated_over_udp_whole_over_tcp_and_all_of_them_serve() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let client = world.pod("client");
    let addresses: Vec<String> = (1..=120).map(|last| format!("198.51.100.{last}")).collect();
    world
        .upstream()
        .set("many.example.test", Records::addresses(addresses.clone()));
    let lookup = Lookup::of("many.example.test", RecordType::A).at(upstream::ADDRESS);
    let short = client.look_up(&lookup.clone().with_udp_size(1232))?;
    assert!(short.is_truncated() && short.addresses().is_empty());
    let whole = client.look_up(&lookup.over_tcp())?;
    assert!(!whole.is_truncated());
    assert_eq!(
        whole
            .addresses()
            .iter()
            .map(IpAddr::to_string)
            .collect::<Vec<_>>(),
        addresses
    );
    for address in whole.addresses() {
        assert!(
            client
                .connect_tcp(SocketAddr::new(address, 443), PATIENCE)
                .is_connected(),
            "{address}"
        );
    }
    Ok(())
}

#[test]
fn answers_of_every_shape_can_be_set_while_it_runs() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let (client, upstream) = (world.pod("client"), world.upstream());
    upstream.set("www.example.test", Records::alias("cdn.example.test").ttl(60));
    upstream.set("cdn.example.test", Records::alias("edge.example").ttl(20));
    upstream.set(
        "edge.example",
        Records::addresses(["203.0.113.1", "203.0.113.2"]).ttl(40),
    );
    upstream.set("dangling.example.test", Records::alias("gone.example.test"));
    upstream.set("*.wild.example.test", Records::addresses(["203.0.113.3"]));
    upstream.set("empty.example.test", Records::no_data().ttl(5));
    upstream.set("broken.example.test", Records::code(ResponseCode::ServFail));
    upstream.set(
        "short.example.test",
        Records::addresses(["203.0.113.4"]).truncated_over_udp(),
    );
    upstream.set(
        "loud.example.test",
        Records::addresses(["203.0.113.5"]).spelled("LOUD.Example.Test"),
    );
    for (name, code, addresses, records, truncated) in [
        ("www.example.test", ResponseCode::NoError, 2, 4, false),
        ("dangling.example.test", ResponseCode::NXDomain, 0, 1, false),
        ("any.wild.example.test", ResponseCode::NoError, 1, 1, false),
        ("wild.example.test", ResponseCode::NXDomain, 0, 0, false),
        ("empty.example.test", ResponseCode::NoError, 0, 0, false),
        ("broken.example.test", ResponseCode::ServFail, 0, 0, false),
        ("short.example.test", ResponseCode::NoError, 0, 0, true),
        ("loud.example.test", ResponseCode::NoError, 1, 1, false),
        ("nowhere.example.test", ResponseCode::NXDomain, 0, 0, false),
    ] {
        let reply = client.look_up(&Lookup::of(name, RecordType::A).at(upstream::ADDRESS))?;
        let seen = (
            reply.code(),
            reply.addresses().len(),
            reply.message.answers.len(),
            reply.is_truncated(),
        );
        assert_eq!(seen, (code, addresses, records, truncated), "{name}");
        let negative = code == ResponseCode::NXDomain || name.starts_with("empty");
        assert!(
            !negative || reply.message.authorities[0].record_type() == RecordType::SOA,
            "{name}"
        );
    }
    let loud = client.look_up(&Lookup::of("loud.example.test", RecordType::A).at(upstream::ADDRESS))?;
    assert_eq!(loud.message.answers[0].name.to_ascii(), "LOUD.Example.Test.");
    upstream.remove("edge.example");
    let gone = client.look_up(&Lookup::of("www.example.test", RecordType::A).at(upstream::ADDRESS))?;
    assert_eq!(gone.code(), ResponseCode::NXDomain);
    Ok(())
}

#[test]
fn a_slow_name_delays_no_other_and_a_silent_one_never_answers() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let (client, upstream) = (world.pod("client"), world.upstream());
    upstream.set(
        "slow.example.test",
        Records::addresses(["203.0.113.1"]).after(SLOW),
    );
    upstream.set("quick.example.test", Records::addresses(["203.0.113.2"]));
    upstream.set("silent.example.test", Records::silence());
    let lookup = |name| {
        Lookup::of(name, RecordType::A)
            .at(upstream::ADDRESS)
            .patience(4 * SLOW)
    };
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| client.look_up(&lookup("slow.example.test")));
        assert!(upstream.wait_until_asked("slow.example.test", 1, PATIENCE));
        client.look_up(&lookup("quick.example.test")).unwrap();
        assert!(!slow.is_finished(), "the quick one waited for the slow one");
        let slow = slow.join().unwrap().unwrap();
        assert!(slow.took >= SLOW, "{:?}", slow.took);
    });
    assert!(
        client
            .look_up(&lookup("silent.example.test").patience(QUICK))
            .is_err()
    );
    assert!(!upstream.wait_until_asked("never.example.test", 1, Duration::from_millis(10)));
    Ok(())
}

/// A connected socket refuses what comes from elsewhere, so this one is not connected: it sees what a resolver's
/// socket sees.
#[test]
fn a_spoofing_upstream_sends_each_false_answer_before_the_right_one() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    let evil: IpAddr = "203.0.113.66".parse()?;
    let spoofs = [
        Spoof::WrongId(evil),
        Spoof::WrongPort(evil),
        Spoof::WrongQuestion(evil),
        Spoof::WrongServer(evil),
    ];
    world.upstream().set(
        "api.example.test",
        Records::addresses(["203.0.113.7"]).spoofed(spoofs),
    );
    let server = SocketAddr::new(upstream::ADDRESS.into(), 53);
    let lookup = Lookup::of("api.example.test", RecordType::A)
        .at(upstream::ADDRESS)
        .with_id(7);
    let seen = world
        .pod("client")
        .converse(server, &lookup.to_vec(), 5, PATIENCE)?;
    assert_eq!(seen.len(), 5);
    let genuine = |index: usize| (seen[index].from == server, seen[index].reply.id() == 7);
    assert_eq!(genuine(0), (true, false), "wrong id");
    assert_eq!(
        (seen[1].from.ip() == server.ip(), seen[1].from.port() == 53),
        (true, false),
        "wrong port"
    );
    assert_eq!(
        seen[2].reply.question().as_deref(),
        Some("not.api.example.test."),
        "wrong question"
    );
    assert_eq!(
        (seen[3].from.ip() == server.ip(), seen[3].from.port() == 53),
        (false, true),
        "wrong server"
    );
    assert!(
        seen[..4]
            .iter()
            .all(|false_one| false_one.reply.addresses() == [evil])
    );
    assert_eq!(genuine(4), (true, true));
    assert_eq!(seen[4].reply.addresses(), ["203.0.113.7".parse::<IpAddr>()?]);
    Ok(())
}

#[test]
fn a_pod_can_send_a_query_that_claims_to_be_anothers() -> TestResult {
    let Some(world) = world_without_daemons(&["client", "victim"]) else {
        return Ok(());
    };
    let (client, victim, upstream) = (world.pod("client"), world.pod("victim"), world.upstream());
    for (address, server) in victim
        .addresses()
        .into_iter()
        .zip([upstream::ADDRESS.into(), upstream::ADDRESS_V6.into()])
    {
        upstream.clear_log();
        let query = Lookup::of("api.example.test", RecordType::A).to_vec();
        client.send_udp_as(
            SocketAddr::new(address, 5353),
            SocketAddr::new(server, 53),
            &query,
        )?;
        assert!(
            upstream.wait_until_asked("api.example.test", 1, PATIENCE),
            "as {address}"
        );
        assert_eq!(upstream.log()[0].from, SocketAddr::new(address, 5353));
    }
    let alone = client.connect_tcp_as(
        SocketAddr::new(victim.address(), 5354),
        at("203.0.113.7:7"),
        QUICK,
    );
    assert!(!alone.is_connected(), "the answers go to the victim");
    Ok(())
}

#[test]
fn a_pod_with_a_cgroup_has_its_programs_and_its_probes_in_it() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.put_pods_in_cgroups()?;
    let client = world.add(PodSpec::new("client"))?;
    let cgroup = client.cgroup().expect("it was asked for");
    let own = client.run(&["cat", "/proc/self/cgroup"])?;
    let path = own
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .expect("a cgroup2 line");
    assert!(cgroup.to_str().unwrap().ends_with(path), "{own:?}");
    // Only sockets of this cgroup (level 2 below the root) are dropped: the probe's socket must be one of them.
    let matching = [
        "iptables",
        "-w",
        "-A",
        "OUTPUT",
        "-m",
        "cgroup",
        "--path",
        &path[1..],
        "-j",
        "DROP",
    ];
    assert!(client.connect_tcp(at("203.0.113.7:7"), PATIENCE).is_connected());
    let added = client.run(&matching)?;
    assert!(added.success(), "{added:?}");
    let dropped = client.connect_tcp(at("203.0.113.7:7"), QUICK);
    assert!(!dropped.is_connected(), "{dropped:?}");
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn a_load_counts_what_is_lost_leaked_and_late() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    world
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    let block = |verb: &str, address: &str| {
        let rule = ["iptables", "-w", verb, "FORWARD", "-d", address, "-j", "DROP"];
        assert!(world.node().run(&rule).unwrap().success());
    };
    block("-A", "203.0.113.66");
    let plan = LoadPlan::of(["api.example.test"])
        .forbidding([at("203.0.113.66:7")])
        .asking(upstream::ADDRESS.into());
    let quiet = world.load("client", plan.clone());
    quiet.wait_for(PATIENCE, |report| {
        report.connections > 5 && report.echoes > 5 && report.refusals > 0
    });
    let report = quiet.stop();
    assert!(
        report.is_clean() && report.late == 0 && report.lookups_unanswered == 0,
        "{report:#?}"
    );

    block("-D", "203.0.113.66");
    block("-A", "203.0.113.7");
    let loud = world.load("client", plan);
    assert!(loud.wait_for(PATIENCE, |report| report.leaked > 0 && report.connections > 0));
    block("-D", "203.0.113.7");
    assert!(loud.wait_for(PATIENCE, |report| report.late > 0 && report.echoes > 0));
    block("-A", "203.0.113.7");
    assert!(loud.wait_for(PATIENCE * 2, |report| report.lost > 0));
    let report = loud.stop();
    assert!(!report.is_clean() && report.notes.len() >= 3, "{report:#?}");
    Ok(())
}

#[test]
fn a_daemon_that_is_not_built_is_named() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    let error = world
        .launch(DaemonSpec::dnsd(9000).in_folder("/nowhere"))
        .unwrap_err();
    assert!(
        error.to_string().starts_with("/nowhere/dnsd does not exist"),
        "{error}"
    );
    Ok(())
}

/// A stand-in that says when it starts and ends, and never answers.
#[test]
fn a_daemon_that_never_gets_ready_shows_its_log_and_its_end() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    let script = world.files().join("dnsd");
    std::fs::write(
        &script,
        "#!/bin/sh\necho started $*\necho no such upstream >&2\nexit 3\n",
    )?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let error = world
        .start(world.dnsd().in_folder(world.files()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("dnsd is not ready") && error.contains("exit status: 3"),
        "{error}"
    );
    assert!(
        error.contains("started --admin 127.0.0.1:9253 --listen 169.254.20.10:53"),
        "{error}"
    );
    assert!(error.contains("no such upstream"), "{error}");
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn a_daemon_can_be_hung_killed_restarted_and_asked_for_its_metrics() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    std::fs::write(world.files().join("prometheus.yml"), "global: {}\n")?;
    let spec = DaemonSpec::stock("prometheus", 9090, "/-/ready").with([
        "--web.listen-address=127.0.0.1:9090".to_owned(),
        format!("--config.file={}/prometheus.yml", world.files().display()),
        format!("--storage.tsdb.path={}/prometheus", world.files().display()),
    ]);
    let mut prometheus = world.start(spec)?;
    let build = prometheus.metrics()?;
    assert!(build.has("prometheus_build_info", &[]) && build.sum("prometheus_ready", &[]) == 1.0);
    prometheus.stop()?;
    assert!(prometheus.get("/-/ready").is_err(), "it hangs");
    prometheus.cont()?;
    prometheus.wait_until_ready()?;
    let first = prometheus.pid();
    assert!(!prometheus.kill()?.success() && !prometheus.is_running());
    prometheus.restart()?;
    prometheus.wait_until_ready()?;
    assert_ne!(prometheus.pid(), first);
    assert!(prometheus.terminate()?.success());
    assert!(
        prometheus.log().matches("Server is ready").count() >= 2,
        "{}",
        prometheus.log()
    );
    drop(prometheus);
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn the_manifests_describe_the_world() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    let world = world.with_pod("client")?.with(
        PodSpec::new("shop")
            .in_namespace("sales")
            .labelled("tier", "front"),
    )?;
    let text = std::fs::read_to_string(world.manifests().folder().join("world.yaml"))?;
    for part in [
        "kind: Node",
        "  name: sales\n",
        "    tier: \"front\"\n",
        "  - ip: 10.77.0.2\n",
        "  - ip: \"fd77::2\"\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    world.manifests().write("policy.yaml", "kind: NetworkPolicy\n")?;
    world.manifests().remove("policy.yaml")?;
    assert_eq!(std::fs::read_dir(world.manifests().folder())?.count(), 1);
    Ok(())
}

#[test]
fn a_panic_takes_a_world_down_and_nothing_of_it_is_left() -> TestResult {
    let Some(first) = World::or_skip() else {
        return Ok(());
    };
    drop(first);
    let begun = Instant::now();
    let world = World::new()?
        .with_pod("one")?
        .with_pod("two")?
        .with_pod("three")?;
    let up = begun.elapsed();
    let name = world.name().to_owned();
    let begun = Instant::now();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        assert!(world.pods().count() != 3, "as planned");
    }));
    let down = begun.elapsed();
    assert!(panicked.is_err());
    eprintln!("three pods: up in {up:?}, down in {down:?}");
    assert_eq!(egret_integration::leftovers_of(&name), Vec::<String>::new());
    Ok(())
}

/// The search for leftovers must be able to find something.
#[test]
fn what_a_world_has_is_found_while_it_lives() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.put_pods_in_cgroups()?;
    world.add(PodSpec::new("client"))?;
    let sleeper = world.launch(DaemonSpec::stock("sleep", 1, "/").with(["60"]))?;
    let found = egret_integration::leftovers_of(world.name());
    for trace in [
        format!("namespace {}", world.node().namespace()),
        format!("namespace {}", world.upstream_network_namespace()),
        format!("namespace {}", world.pod("client").netns_name()),
        format!("process {}", sleeper.pid()),
    ] {
        assert!(found.contains(&trace), "{trace} in {found:#?}");
    }
    for kind in ["mount", "cgroup"] {
        assert!(
            found.iter().any(|trace| trace.starts_with(kind)),
            "{kind} in {found:#?}"
        );
    }
    drop(sleeper);
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn the_entrance_that_people_are_shown_leads_into_the_pod() -> TestResult {
    let Some(world) = world_without_daemons(&["client"]) else {
        return Ok(());
    };
    world
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    let mut shell = Command::new("sh")
        .args(["-c", &world.pod("client").entrance()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    shell
        .stdin
        .take()
        .expect("it is piped")
        .write_all(b"curl -sS http://api.example.test/; ip -brief address")?;
    let said = String::from_utf8(shell.wait_with_output()?.stdout)?;
    assert!(
        said.starts_with("203.0.113.7\n") && said.contains("10.77.0.1/32 fd77::1/128"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_program_that_hangs_is_ended_at_its_deadline() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    let world = world.with_pod("client")?;
    let hung = world
        .pod("client")
        .run_for(&["sh", "-c", "echo before; sleep 60"], QUICK)?;
    assert!(hung.timed_out && !hung.success(), "{hung:?}");
    assert_eq!(hung.stdout, "before\n");
    world.assert_nothing_left();
    Ok(())
}
