//! Questions of pods to other resolvers, answered by dnsd: what is caught, how it is judged, and when it is not caught.

use std::io;
use std::net::{IpAddr, SocketAddr};

use egret_integration::lookup::{read_framed, write_framed};
use egret_integration::{
    Connection, Family, Lookup, Outcome, PodSpec, ProxyMode, RecordType, Records, Reply, ServicePort,
    Transport, World, upstream,
};

use super::backend_override;
use super::deployment::{Deployment, PATIENCE, QUICK, Setup, TestResult, eventually, ip, only_names, within};
use super::replacement::{GAP, roll};

/// A resolver on the upstream network, as 8.8.8.8 is one.
const OTHER: &str = "198.51.100.53";
const OTHER_V6: &str = "2001:db8:8::53";
const NAME: &str = "api.example.test";

const CATCHES: &[&str] = &["--rules", "--intercept"];

/// The four ways to another resolver: two families, two protocols.
fn ways(name: &str) -> [Lookup; 4] {
    let lookup = |server| Lookup::of(name, RecordType::A).patience(QUICK).at(ip(server));
    [
        lookup(OTHER),
        lookup(OTHER).over_tcp(),
        lookup(OTHER_V6),
        lookup(OTHER_V6).over_tcp(),
    ]
}

/// Pods may ask the other resolver whatever they like, and reach these names.
fn others_and(names: &[&str]) -> String {
    let others = format!("networks: [{OTHER}/32, \"{OTHER_V6}/128\", 169.254.20.10/32");
    only_names(names)
        .replace("networks: [169.254.20.10/32", &others)
        .replace(
            "    protocols:\n    - udp: {destinationPort: {number: 53}}\n    - tcp: {destinationPort: {number: 53}}\n",
            "",
        )
}

/// Whether the kernel hands over what this pod asks of others.
fn is_caught(world: &World, pod: &str) -> bool {
    let sets = world.node().ipset_save().unwrap();
    let addresses = world.pod(pod).addresses();
    addresses.iter().all(|address| {
        let number = if address.is_ipv4() { 4 } else { 6 };
        sets.contains(&format!("add egret-dnsd-pods-{number} {address}\n"))
    })
}

fn wait_until_caught(world: &World, pod: &str) {
    let lives = || {
        world
            .node()
            .ipset_save()
            .unwrap()
            .matches("add egret-dnsd-living-")
            .count()
            == 4
    };
    eventually("the pod's questions to others are caught", || {
        // They come family by family, three each.
        rules(world).matches("-j TPROXY").count() > 3 && is_caught(world, pod) && lives()
    });
}

/// Asks, and says who asked the upstream for it. A dnsd that gets no processor for a second counts as dead, and the
/// pod's question goes on: then it is asked again.
fn asked_by_dnsd(deployment: &Deployment<'_>, way: &Lookup, name: &str) -> (Reply, IpAddr) {
    let way = way.clone().named(name).patience(PATIENCE);
    let mut heard = None;
    eventually("dnsd asks for the pod", || {
        let reply = deployment.ask_as("client", &way);
        let (from, server) = last_asked(deployment.world, name).expect("somebody was asked");
        let is_dnsd = !deployment.pod("client").addresses().contains(&from.ip());
        heard = Some((reply, server));
        is_dnsd
    });
    heard.expect("it was asked")
}

fn rules(world: &World) -> String {
    [Family::V4, Family::V6]
        .map(|family| world.node().iptables_save(family).unwrap())
        .concat()
}

/// What was asked last under this name: by whom, and of whom.
fn last_asked(world: &World, name: &str) -> Option<(SocketAddr, IpAddr)> {
    let log = world.upstream().log();
    let of_name = |asked: &str| asked.trim_end_matches('.').eq_ignore_ascii_case(name);
    let last = log.iter().rev().find(|asked| of_name(&asked.name))?;
    Some((last.from, last.server))
}

fn ask(deployment: &Deployment<'_>, lookup: &Lookup) -> bool {
    deployment.pod("client").look_up(lookup).is_ok()
}

pub(super) fn a_question_to_another_resolver_is_answered_in_its_name_and_opens_its_own(
    world: &mut World,
) -> TestResult {
    let setting = Setup::of(others_and(&["*.example.test"])).dnsd(CATCHES);
    let deployment = setting.deploy(world)?;
    wait_until_caught(deployment.world, "client");
    for (number, way) in ways("").iter().enumerate() {
        let (name, address) = (
            format!("n{number}.example.test"),
            format!("203.0.113.{}", number + 1),
        );
        deployment
            .upstream()
            .set(&name, Records::addresses([address.as_str()]));
        deployment.assert_refused("client", &address);
        // The socket is connected: it takes nothing from anybody else.
        let (reply, server) = asked_by_dnsd(&deployment, way, &name);
        assert_eq!(reply.addresses(), [ip(&address)], "{way:?}");
        deployment.assert_reaches("client", &address);
        assert_eq!(server, IpAddr::from(upstream::ADDRESS), "{way:?}");
    }
    let flows = deployment.world.node().conntrack_list()?;
    let of_other: Vec<&str> = flows.lines().filter(|flow| flow.contains(OTHER)).collect();
    assert!(!of_other.is_empty(), "{flows}");
    for flow in of_other {
        let there = format!("dst={OTHER} ");
        let back = format!("src={OTHER} ");
        assert!(
            flow.contains(&there) && flow.contains(&back),
            "nothing is translated: {flow}"
        );
    }
    let echo = deployment.reach_port("client", OTHER, 443);
    assert!(echo.is_connected(), "no other port is touched: {echo:?}");
    Ok(())
}

/// The node itself may be asked by an isolated pod; what is caught is not for the node.
const ISOLATED: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress]
";

pub(super) fn what_is_caught_is_judged_by_the_address_that_was_asked(world: &mut World) -> TestResult {
    let deployment = Setup::of(ISOLATED).dnsd(CATCHES).deploy(world)?;
    wait_until_caught(deployment.world, "client");
    deployment
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    let local = Lookup::of(NAME, RecordType::A).patience(QUICK);
    for (policy, may_ask) in [
        (ISOLATED.to_owned(), false),
        (others_and(&[]), true),
        (only_names(&[]), false),
    ] {
        deployment.world.manifests().write(
            "policy.yaml",
            &policy.replace("- domainNames: []", "- domainNames: [none.example.test]"),
        )?;
        eventually("dnsd itself may be asked", || ask(&deployment, &local));
        for way in ways(NAME) {
            if may_ask {
                eventually("an allowed question is answered", || ask(&deployment, &way));
            } else {
                eventually("the change is in force", || !ask(&deployment, &way));
                let (name, way) = ("denied.example.test", way.named("denied.example.test"));
                assert!(!ask(&deployment, &way), "{way:?}");
                assert_eq!(
                    last_asked(deployment.world, name),
                    None,
                    "nobody is asked: {way:?}"
                );
            }
        }
    }
    Ok(())
}

pub(super) fn pods_of_a_spared_namespace_ask_other_resolvers_themselves(world: &mut World) -> TestResult {
    let setting = Setup::of(others_and(&["*.example.test"]))
        .and(PodSpec::new("coredns").in_namespace("kube-system"))
        .dnsd(CATCHES);
    let deployment = setting.deploy(world)?;
    wait_until_caught(deployment.world, "client");
    deployment
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    for way in ways(NAME) {
        deployment.ask_as("coredns", &way.clone().patience(PATIENCE));
        let (from, _) = last_asked(deployment.world, NAME).unwrap();
        assert!(
            deployment.pod("coredns").addresses().contains(&from.ip()),
            "{way:?}: {from}"
        );
        asked_by_dnsd(&deployment, &way, NAME);
    }
    assert_eq!(
        deployment.kernel_records("coredns"),
        [] as [IpAddr; 0],
        "what was not told by dnsd opens nothing"
    );
    Ok(())
}

/// The cluster addresses of a Service with resolvers.
const RESOLVERS: [&str; 2] = ["10.96.0.53", "fd00:96::53"];

/// kube-proxy translates behind the rule that catches: a connection to the Service would be reset if it were caught.
pub(super) fn a_service_at_the_port_of_dns_is_asked_itself(world: &mut World) -> TestResult {
    let service = "apiVersion: v1
kind: Service
metadata: {name: resolvers, namespace: default}
spec:
  clusterIP: 10.96.0.53
  clusterIPs: [10.96.0.53, \"fd00:96::53\"]
  ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, protocol: TCP, port: 53}]
";
    world.manifests().write("service.yaml", service)?;
    let ports: Vec<ServicePort> = RESOLVERS
        .into_iter()
        .zip([OTHER, OTHER_V6])
        .flat_map(|(at, endpoint)| {
            let [at, endpoint] = [at, endpoint].map(|address| SocketAddr::new(ip(address), 53));
            [ServicePort::udp("dns"), ServicePort::tcp("dns-tcp")].map(|port| port.at(at).to(endpoint))
        })
        .collect();
    world.proxy(ProxyMode::Iptables, &ports)?;
    let deployment = Setup::of(others_and(&["*.example.test"]))
        .dnsd(CATCHES)
        .deploy(world)?;
    wait_until_caught(deployment.world, "client");
    deployment
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    for (number, way) in ways(NAME).iter().enumerate() {
        asked_by_dnsd(&deployment, way, NAME);
        let to_service = way.clone().at(ip(RESOLVERS[number / 2])).patience(PATIENCE);
        deployment.ask_as("client", &to_service);
        let (from, server) = last_asked(deployment.world, NAME).unwrap();
        let is_pods = deployment.pod("client").addresses().contains(&from.ip());
        assert!(
            is_pods && [ip(OTHER), ip(OTHER_V6)].contains(&server),
            "{to_service:?}: {from} asked {server}"
        );
    }
    Ok(())
}

pub(super) fn what_pods_ask_of_others_goes_there_when_dnsd_is_dead_or_hangs(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world
        .upstream()
        .set(NAME, Records::addresses(["203.0.113.7"]).ttl(0));
    let mut enforcer = world.start(backend_override::enforcer(world))?;
    let routing = || {
        world
            .node()
            .run(&["ip", "rule", "list"])
            .map(|output| output.stdout)
    };
    let before = routing()?;
    let mut dnsd = world.start(world.dnsd().with(CATCHES.iter().copied()))?;
    let all = |by_pod: bool| {
        ways(NAME).iter().all(|way| {
            let is_answered = world.pod("client").look_up(way).is_ok();
            let (from, server) = last_asked(world, NAME).unwrap();
            let is_pods = world.pod("client").addresses().contains(&from.ip());
            is_answered && is_pods == by_pod && ([ip(OTHER), ip(OTHER_V6)].contains(&server) == by_pod)
        })
    };
    world.pod("client").look_up(&Lookup::of(NAME, RecordType::A))?;
    eventually("dnsd answers", || all(false));

    dnsd.kill()?;
    within(GAP, "others answer after a death", || all(true));
    assert_eq!(
        rules(world).matches("-j TPROXY").count(),
        6,
        "what is left is harmless"
    );
    dnsd.restart()?;
    dnsd.wait_until_ready()?;
    eventually("dnsd answers again", || all(false));

    dnsd.stop()?;
    within(GAP, "others answer while dnsd hangs", || all(true));
    dnsd.cont()?;
    eventually("dnsd answers when it goes on", || all(false));

    dnsd.terminate()?;
    let left = rules(world);
    assert!(!left.contains("egret dnsd: intercept"), "{left}");
    assert_eq!(routing()?, before);
    let sets = world.node().ipset_save()?;
    assert!(!sets.contains("egret-dnsd-"), "{sets}");
    assert!(all(true), "others are asked as if dnsd had never been");
    enforcer.terminate()?;
    Ok(())
}

/// dnsd asks whom the pod asked: who is trusted teaches names, who is not answers and teaches nothing.
pub(super) fn a_resolver_that_nobody_trusts_answers_and_opens_nothing(world: &mut World) -> TestResult {
    for trusted in [false, true] {
        let setting = Setup::of(others_and(&["*.example.test"]))
            .dnsd(CATCHES)
            .dnsd(&["--intercept-upstream", "original"]);
        let trusting = setting
            .clone()
            .dnsd(&["--trusted-resolver", OTHER, "--trusted-resolver", OTHER_V6]);
        if trusted {
            world.remove("client")?;
        }
        let deployment = if trusted { trusting } else { setting }.deploy(world)?;
        wait_until_caught(deployment.world, "client");
        for (number, way) in ways("").iter().enumerate() {
            let (name, address) = (
                format!("o{number}.example.test"),
                format!("203.0.113.{}", number + 1),
            );
            deployment
                .upstream()
                .set(&name, Records::addresses([address.as_str()]));
            let (reply, server) = asked_by_dnsd(&deployment, way, &name);
            assert_eq!(reply.addresses(), [ip(&address)], "{way:?}");
            assert!([ip(OTHER), ip(OTHER_V6)].contains(&server), "{way:?}: {server}");
            assert_eq!(deployment.kernel_holds("client", &address), trusted, "{way:?}");
            // It was kept for nobody: who asks dnsd itself is told what dnsd's upstream says.
            deployment
                .upstream()
                .set(&name, Records::addresses(["203.0.113.77"]));
            assert_eq!(deployment.ask("client", &name).addresses(), [ip("203.0.113.77")]);
        }
        if !trusted {
            assert_eq!(deployment.kernel_records("client"), [ip("203.0.113.77")]);
        }
    }
    Ok(())
}

/// A connection to another resolver, in each family.
fn connect(world: &World) -> [Connection; 2] {
    [OTHER, OTHER_V6].map(|server| {
        let outcome = world
            .pod("client")
            .connect_tcp(SocketAddr::new(ip(server), 53), PATIENCE);
        match outcome {
            Outcome::Connected(connection) => connection,
            other => panic!("{server}: {other:?}"),
        }
    })
}

/// Asks over a connection that is open; says who was asked for it.
fn ask_over(world: &World, connection: &mut Connection, name: &str) -> io::Result<IpAddr> {
    put_over(connection, name)?;
    hear_over(world, connection, name)
}

fn put_over(connection: &mut Connection, name: &str) -> io::Result<()> {
    write_framed(connection.stream(), &Lookup::of(name, RecordType::A).to_vec())
}

fn hear_over(world: &World, connection: &mut Connection, name: &str) -> io::Result<IpAddr> {
    connection.stream().set_read_timeout(Some(PATIENCE))?;
    read_framed(connection.stream())?;
    Ok(last_asked(world, name).expect("somebody was asked").1)
}

pub(super) fn a_connection_to_another_resolver_stays_with_whom_it_began(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    for name in ["before.example.test", "then.example.test", NAME] {
        world
            .upstream()
            .set(name, Records::addresses(["203.0.113.7"]).ttl(0));
    }
    let mut enforcer = world.start(backend_override::enforcer(world))?;
    let others = [ip(OTHER), ip(OTHER_V6)];
    let by_dnsd = IpAddr::from(upstream::ADDRESS);
    let mut theirs = connect(world);
    let mut dnsd = world.start(world.dnsd().with(CATCHES.iter().copied()))?;
    wait_until_caught(world, "client");
    for (connection, server) in theirs.iter_mut().zip(others) {
        let asked = ask_over(world, connection, "before.example.test");
        assert_eq!(asked.expect("it goes on with the other resolver"), server);
    }

    // A sign of life may be late whenever dnsd gets no processor: then it was caught by nobody.
    let mut ours = connect(world);
    eventually("connections are caught", || {
        let mut asked = ours.iter_mut().map(|it| ask_over(world, it, NAME));
        let is_caught = asked.all(|server| server.is_ok_and(|server| server == by_dnsd));
        if !is_caught {
            ours = connect(world);
        }
        is_caught
    });
    dnsd.stop()?;
    within(GAP, "others are asked while dnsd hangs", || {
        ways(NAME).iter().all(|way| {
            let is_answered = world.pod("client").look_up(way).is_ok();
            is_answered && last_asked(world, NAME).is_some_and(|(_, server)| others.contains(&server))
        })
    });
    for connection in &mut ours {
        put_over(connection, "then.example.test").expect("it is open");
    }
    // What would be reset is reset by now.
    assert!(
        ways(NAME)
            .iter()
            .all(|way| world.pod("client").look_up(way).is_ok())
    );
    dnsd.cont()?;
    for connection in &mut ours {
        let asked = hear_over(world, connection, "then.example.test");
        assert_eq!(asked.expect("it goes on with dnsd"), by_dnsd);
    }
    dnsd.terminate()?;
    enforcer.terminate()?;
    Ok(())
}

pub(super) fn questions_to_others_are_not_lost_when_dnsds_take_over(world: &mut World) -> TestResult {
    let asked = [OTHER, OTHER_V6].map(ip);
    let asked = [
        (asked[0], Transport::Udp),
        (asked[0], Transport::Tcp),
        (asked[1], Transport::Udp),
        (asked[1], Transport::Tcp),
    ];
    roll(world, &["--intercept"], asked, |world| {
        let is_asked_by_dnsd = |way: &Lookup| {
            world.pod("client").look_up(way).is_ok()
                && last_asked(world, "n1.example.test")
                    .is_some_and(|(_, server)| server == IpAddr::from(upstream::ADDRESS))
        };
        eventually("dnsd answers what is asked of others", || {
            ways("n1.example.test").iter().all(is_asked_by_dnsd)
        });
    })
}
