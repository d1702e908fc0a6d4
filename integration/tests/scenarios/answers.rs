//! What dnsd makes of answers: chains, strays, forgeries, and those that are too long for a datagram.

use std::net::SocketAddr;

use egret_integration::{
    Lookup, RecordType, Records, Spoof, Transport, World,
    lookup::{read_framed, write_framed},
    node,
};

use super::deployment::{MOMENT, PATIENCE, QUICK, Setup, TestResult, eventually, ip, only_names};

/// Three aliases, the addresses first; a loop of aliases; and a policy for an alias's target alone.
pub(super) fn aliases_in_any_order_lead_to_their_addresses(world: &mut World) -> TestResult {
    let policy = only_names(&["www.example.test", "loop.example.test", "target.example.test"]);
    let deployment = Setup::of(policy).deploy(world)?;
    let upstream = deployment.upstream();
    upstream.set("www.example.test", Records::alias("cdn.example.test").reversed());
    upstream.set("cdn.example.test", Records::alias("edge.example"));
    upstream.set("edge.example", Records::alias("rack.example"));
    upstream.set("rack.example", Records::addresses(["203.0.113.1", "203.0.113.2"]));
    upstream.set("loop.example.test", Records::alias("pool.example.test"));
    upstream.set("pool.example.test", Records::alias("loop.example.test"));
    upstream.set("elsewhere.example.test", Records::alias("target.example.test"));
    upstream.set("target.example.test", Records::addresses(["203.0.113.3"]));
    let reply = deployment.ask("client", "www.example.test");
    assert_eq!(reply.message.answers.len(), 5);
    assert_eq!(
        reply.message.answers[0].record_type(),
        RecordType::A,
        "as the upstream wrote it"
    );
    for address in ["203.0.113.1", "203.0.113.2"] {
        deployment.assert_reaches("client", address);
    }
    assert!(
        deployment
            .ask("client", "loop.example.test")
            .addresses()
            .is_empty()
    );
    // A record belongs to the name that was asked for, not to those that it leads over.
    assert_eq!(
        deployment
            .ask("client", "elsewhere.example.test")
            .addresses()
            .len(),
        1
    );
    deployment.assert_refused("client", "203.0.113.3");
    deployment.ask("client", "target.example.test");
    deployment.assert_reaches("client", "203.0.113.3");
    Ok(())
}

/// F-26: the upstream does not follow the alias, so the pod asks for the target itself. The target counts if a rule names it, too.
pub(super) fn a_chain_over_two_answers_counts_where_the_second_name_is_named_too(
    world: &mut World,
) -> TestResult {
    let policy = only_names(&["one.example.test", "both.example.test", "edge.both.example.test"]);
    let deployment = Setup::of(policy).deploy(world)?;
    let upstream = deployment.upstream();
    for (name, target, address, is_open) in [
        ("one.example.test", "edge.one.example.test", "203.0.113.1", false),
        ("both.example.test", "edge.both.example.test", "203.0.113.2", true),
    ] {
        upstream.set(name, Records::alias(target));
        upstream.set(target, Records::no_data());
        let first = deployment.ask("client", name);
        assert_eq!(first.message.answers.len(), 1, "the alias alone: {first:?}");
        upstream.set(target, Records::addresses([address]));
        let second = deployment.ask("client", target);
        assert_eq!(second.addresses(), [ip(address)], "{target}");
        let outcome = deployment.reach("client", address);
        assert_eq!(outcome.is_connected(), is_open, "{name}: {outcome:?}");
    }
    Ok(())
}

pub(super) fn an_address_lives_as_long_as_the_shortest_alias_on_its_way(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["www.example.test"]))
        .without_grace()
        .deploy(world)?;
    deployment
        .upstream()
        .set("www.example.test", Records::alias("cdn.example.test").ttl(600));
    deployment
        .upstream()
        .set("cdn.example.test", Records::alias("edge.example").ttl(20));
    deployment
        .upstream()
        .set("edge.example", Records::addresses(["203.0.113.7"]).ttl(3600));
    deployment.ask("client", "www.example.test");
    deployment.assert_reaches("client", "203.0.113.7");
    let left = deployment.kernel_records_left("client")[&ip("203.0.113.7")];
    assert!((15..=21).contains(&left), "{left} s left of 20");
    Ok(())
}

pub(super) fn an_address_whose_owner_is_not_on_the_chain_is_not_learned(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    let records = Records::addresses(["203.0.113.7"]).with_stray("bank.example.test", "203.0.113.66");
    deployment.upstream().set("api.example.test", records);
    assert_eq!(
        deployment.ask("client", "api.example.test").addresses().len(),
        2,
        "it is relayed as it came"
    );
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_refused("client", "203.0.113.66");
    assert_eq!(deployment.kernel_records("client"), [ip("203.0.113.7")]);
    Ok(())
}

/// Whoever writes a zone could otherwise open the node itself and the cloud's metadata service to its readers.
pub(super) fn a_name_opens_neither_the_node_nor_the_metadata_service(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    let addresses = ["169.254.169.254", "127.0.0.1", "203.0.113.7"];
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(addresses));
    let told = deployment.ask("client", "api.example.test").addresses();
    assert_eq!(told, addresses.map(ip), "it is relayed as it came");
    deployment.assert_reaches("client", "203.0.113.7");
    assert_eq!(deployment.kernel_records("client"), [ip("203.0.113.7")]);
    assert_eq!(deployment.dnsd_counted("egret_dnsd_protected_total", &[]), 2.0);
    Ok(())
}

/// Their addresses are no special ones, so only the cluster's objects say whose they are; and they may say so late.
pub(super) fn a_name_opens_neither_a_node_nor_the_api_server(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    let node = deployment.world.node().addresses()[0].to_string();
    let addresses = [node.as_str(), "203.0.113.6", "203.0.113.7"];
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(addresses));
    let told = deployment.ask("client", "api.example.test").addresses();
    assert_eq!(told, addresses.map(ip), "it is relayed as it came");
    let mut open = deployment.assert_reaches("client", "203.0.113.6");
    deployment.assert_reaches("client", "203.0.113.7");
    assert_eq!(
        deployment.kernel_records("client"),
        [ip("203.0.113.6"), ip("203.0.113.7")],
        "the node is known, and nobody said yet where the API server is"
    );
    deployment
        .world
        .manifests()
        .write("api-server.yaml", API_SERVER)?;
    eventually("nothing is open to the API server", || {
        open.echo_within(QUICK).is_err()
    });
    deployment.assert_refused("client", "203.0.113.6");
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.world.manifests().remove("api-server.yaml")?;
    eventually("it is nobody's again", || {
        deployment.kernel_holds("client", "203.0.113.6")
    });
    deployment.assert_reaches("client", "203.0.113.6");
    assert!(!deployment.kernel_records("client").contains(&ip(&node)));
    Ok(())
}

const API_SERVER: &str = "apiVersion: policy.egret.dev/v1alpha1
kind: APIServerAddresses
metadata: {name: cloud}
spec:
  addresses: [203.0.113.6]
";

/// Each forgery comes before the right answer: another id, another port, another question, another server.
pub(super) fn a_spoofed_answer_is_neither_relayed_nor_learned(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["*.example.test"])).deploy(world)?;
    let evil = ip("203.0.113.66");
    let forgeries = [
        ("id", Spoof::WrongId(evil)),
        ("port", Spoof::WrongPort(evil)),
        ("question", Spoof::WrongQuestion(evil)),
        ("server", Spoof::WrongServer(evil)),
    ];
    for (what, forgery) in forgeries {
        let name = format!("{what}.example.test");
        deployment
            .upstream()
            .set(&name, Records::addresses(["203.0.113.7"]).spoofed([forgery]));
        let told = deployment.ask("client", &name).addresses();
        assert_eq!(told, [ip("203.0.113.7")], "an answer with another {what}");
    }
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_refused("client", "203.0.113.66");
    assert_eq!(deployment.kernel_records("client"), [ip("203.0.113.7")]);
    Ok(())
}

pub(super) fn a_truncated_answer_is_asked_again_over_tcp(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["short.example.test"])).deploy(world)?;
    let records = Records::addresses(["203.0.113.7", "203.0.113.8"]).truncated_over_udp();
    deployment.upstream().set("short.example.test", records);
    let reply = deployment.ask("client", "short.example.test");
    assert_eq!((reply.is_truncated(), reply.addresses().len()), (false, 2));
    for address in ["203.0.113.7", "203.0.113.8"] {
        deployment.assert_reaches("client", address);
    }
    let transports: Vec<_> = deployment
        .upstream()
        .log()
        .iter()
        .map(|asked| asked.transport)
        .collect();
    assert_eq!(transports, [Transport::Udp, Transport::Tcp]);
    Ok(())
}

/// 120 addresses fit into no datagram.
pub(super) fn stock_programs_that_are_told_of_truncation_get_all_over_tcp(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["many.example.test"])).deploy(world)?;
    let addresses: Vec<String> = (1..=120).map(|last| format!("198.51.100.{last}")).collect();
    deployment
        .upstream()
        .set("many.example.test", Records::addresses(addresses));
    assert!(deployment.ask("client", "many.example.test").is_truncated());
    let dig = deployment
        .pod("client")
        .run(&["dig", "+short", "many.example.test", "A"])?;
    assert_eq!(dig.stdout.lines().count(), 120, "{dig:?}");
    let hosts = deployment
        .pod("client")
        .run(&["getent", "ahostsv4", "many.example.test"])?;
    let streams = hosts
        .stdout
        .lines()
        .filter(|line| line.contains("STREAM"))
        .count();
    assert_eq!(streams, 120, "{hosts:?}");
    deployment.assert_reaches("client", "198.51.100.1");
    deployment.assert_reaches("client", "198.51.100.120");
    assert_eq!(deployment.kernel_records("client").len(), 120);
    Ok(())
}

/// Three questions in one segment, then one in many; what nobody waits for overtakes what is held.
pub(super) fn questions_over_one_connection_are_observed_and_held_each_by_itself(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(only_names(&["*.held.example.test"]))
        .patient()
        .deploy(world)?;
    for (name, address) in [
        ("one.held.example.test", "203.0.113.1"),
        ("two.held.example.test", "203.0.113.2"),
        ("slow.held.example.test", "203.0.113.3"),
        ("free.example.test", "203.0.113.9"),
    ] {
        deployment.upstream().set(name, Records::addresses([address]));
    }
    let question = |name: &str, id| Lookup::of(name, RecordType::A).with_id(id).to_vec();
    let to = SocketAddr::new(node::DNS.into(), 53);
    let mut connection = deployment.pod("client").connect_tcp(to, PATIENCE).connection();
    let stream = connection.stream();
    let id_of = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);

    deployment.enforcer.stop()?;
    let framed = [
        question("one.held.example.test", 1),
        question("two.held.example.test", 2),
        question("free.example.test", 3),
    ];
    let framed = framed.map(|message| [&[0, u8::try_from(message.len()).unwrap()][..], &message].concat());
    std::io::Write::write_all(stream, &framed.concat())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let first = read_framed(stream).expect("what nobody waits for is answered");
    assert_eq!(id_of(&first), 3);
    stream.set_read_timeout(Some(MOMENT))?;
    let early = stream.peek(&mut [0]);
    assert!(early.is_err(), "an answer before the kernel was ready");
    deployment.enforcer.cont()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut rest = [(); 2].map(|()| id_of(&read_framed(stream).expect("both are answered now")));
    rest.sort_unstable();
    assert_eq!(rest, [1, 2]);
    deployment.assert_reaches("client", "203.0.113.1");
    deployment.assert_reaches("client", "203.0.113.2");

    let slow = question("slow.held.example.test", 4);
    let length = u16::try_from(slow.len()).unwrap().to_be_bytes();
    for byte in [&length[..], &slow].concat() {
        std::io::Write::write_all(stream, &[byte])?;
    }
    assert_eq!(
        id_of(&read_framed(stream).expect("a question in pieces is answered")),
        4
    );
    deployment.assert_reaches("client", "203.0.113.3");
    write_framed(stream, &question("free.example.test", 5))?;
    assert_eq!(id_of(&read_framed(stream).expect("the connection goes on")), 5);
    Ok(())
}
