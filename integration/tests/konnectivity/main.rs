//! `proxy-server` and `proxy-agent` as processes on loopback: with each other, with upstream's, and behind a real API server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure how long real packets and processes take"
)]

mod api_server;
mod grpcio;
mod identity;
mod keys;
mod leases;
mod objects;
mod pair;
mod partition;
mod partitioned;
mod policy;
mod process;
mod server_names;
mod targets;
mod upstream;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use pair::{Front, Pair, Program};
use process::{PATIENCE, within};
use targets::Target;

const ALL: [(Program, Program); 4] = [
    (Program::Ours, Program::Ours),
    (Program::Ours, Program::Upstream),
    (Program::Upstream, Program::Ours),
    (Program::Upstream, Program::Upstream),
];

/// Octets that no place in them is like another one.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

/// What comes back of what is sent.
fn echo(stream: &mut UnixStream, octets: &[u8]) -> Vec<u8> {
    let (mut writer, sent) = (stream.try_clone().unwrap(), octets.to_vec());
    let writes = std::thread::spawn(move || writer.write_all(&sent));
    let mut read = vec![0; octets.len()];
    stream.read_exact(&mut read).unwrap();
    writes.join().unwrap().unwrap();
    read
}

#[test]
fn octets_pass_both_ways_by_each_server_with_each_agent() {
    for (server, agent) in ALL {
        let Some(pair) = Pair::start(server, agent, Front::HttpConnectUds) else {
            return;
        };
        let target = Target::echo();
        let (head, mut stream) = pair.connect(&target.address());
        let stream = stream.as_mut().unwrap();
        assert_eq!(
            head, "HTTP/1.1 200 Connection Established",
            "{server:?} {agent:?}"
        );
        let octets = pattern(8 << 20);
        assert!(echo(stream, &octets) == octets, "{server:?} {agent:?}");
    }
}

#[test]
fn a_failed_dial_is_told_in_the_words_of_go() {
    for (server, agent) in ALL {
        let Some(pair) = Pair::start(server, agent, Front::HttpConnectUds) else {
            return;
        };
        let address = Target::closed();
        let (head, _) = pair.connect(&address);
        // Upstream's server tells the status alone.
        let expected = match server {
            Program::Ours => {
                format!("HTTP/1.1 502 dial tcp {address}: connect: connection refused")
            }
            Program::Upstream => "HTTP/1.1 502 Bad Gateway".to_owned(),
        };
        assert_eq!(head, expected, "{server:?} {agent:?}");
    }
}

#[test]
fn what_was_sent_before_a_close_arrives_and_both_ends_are_closed() {
    for (server, agent) in ALL {
        let Some(pair) = Pair::start(server, agent, Front::HttpConnectUds) else {
            return;
        };
        let octets = pattern(3 << 20);
        // The target speaks when it is spoken to: what comes right behind the head breaks API servers.
        let target = Target::answer_and_close(octets.clone());
        let (_, stream) = pair.connect(&target.address());
        let mut stream = stream.unwrap();
        stream.write_all(b"?").unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).unwrap();
        assert!(read == octets, "{server:?} {agent:?}: {} octets", read.len());

        // Upstream's agent drops what it has not written when it is asked to close.
        if agent == Program::Upstream {
            continue;
        }
        let target = Target::collect();
        let (_, stream) = pair.connect(&target.address());
        let mut stream = stream.unwrap();
        stream.write_all(b"last words").unwrap();
        drop(stream);
        assert_eq!(target.collected(), b"last words", "{server:?} {agent:?}");
    }
}

/// With upstream's server the neighbours wait for more than 20 seconds.
#[test]
fn a_reader_that_stops_does_not_stop_its_neighbours_and_loses_nothing() {
    let pair = Pair::start(Program::Ours, Program::Ours, Front::HttpConnectUds).unwrap();
    let octets = pattern(16 << 20);
    let (source, echoes) = (Target::answer_and_close(octets.clone()), Target::echo());
    let (_, stuck) = pair.connect(&source.address());
    let mut stuck = stuck.unwrap();
    stuck.write_all(b"?").unwrap();
    let (_, stream) = pair.connect(&echoes.address());
    let mut neighbour = stream.unwrap();
    // Beyond what all buffers on the way take.
    within("the reader is stuck", || {
        pair.agent_metric("konnectivity_network_proxy_agent_open_endpoint_connections") == Some(2.0)
    });
    for _ in 0..200 {
        assert_eq!(echo(&mut neighbour, b"are you there?"), b"are you there?");
    }
    let (head, _) = pair.connect(&echoes.address());
    assert_eq!(head, "HTTP/1.1 200 Connection Established");
    let mut read = Vec::new();
    stuck.read_to_end(&mut read).unwrap();
    assert!(read == octets, "{} octets", read.len());
}

/// Some clients leave before they are answered, some with octets on the way, some after a failed dial.
#[test]
fn nothing_is_left_of_connections_however_they_ended() {
    let pair = Pair::start(Program::Ours, Program::Ours, Front::HttpConnectUds).unwrap();
    let (echoes, closed) = (Target::echo(), Target::closed());
    let source = Target::answer_and_close(pattern(1 << 20));
    let leave = |address: &str| {
        let mut stream = UnixStream::connect(pair.socket()).unwrap();
        stream
            .write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
    };
    let mut before = None;
    for _ in 0..2 {
        for _ in 0..100 {
            leave(&echoes.address());
            leave(&closed);
            let (_, stream) = pair.connect(&source.address());
            stream.unwrap().write_all(b"?").unwrap();
            let (_, stream) = pair.connect(&echoes.address());
            assert_eq!(echo(&mut stream.unwrap(), b"all of it"), b"all of it");
        }
        within("no connection is left", || {
            let server = |name| pair.server_metric(&format!("konnectivity_network_proxy_server_{name}"));
            let agent = "konnectivity_network_proxy_agent_open_endpoint_connections";
            server("established_connections") == Some(0.0)
                && server("pending_backend_dials") == Some(0.0)
                && server("http_connections") == Some(0.0)
                && pair.agent_metric(agent) == Some(0.0)
        });
        // Connections of the admin listeners end a moment after they are answered.
        let before = *before.get_or_insert_with(|| pair.open_files());
        within("no file is left", || {
            pair.open_files()
                .iter()
                .zip(before)
                .all(|(now, before)| *now <= before)
        });
    }
}

#[test]
fn where_upstreams_agent_counts_no_credits_the_stuck_connection_alone_is_closed() {
    let Some(pair) = Pair::start(Program::Ours, Program::Upstream, Front::HttpConnectUds) else {
        return;
    };
    let octets = pattern(64 << 20);
    let (source, echoes) = (Target::answer_and_close(octets.clone()), Target::echo());
    let (_, stuck) = pair.connect(&source.address());
    let mut stuck = stuck.unwrap();
    stuck.write_all(b"?").unwrap();
    let (_, stream) = pair.connect(&echoes.address());
    let mut neighbour = stream.unwrap();
    for _ in 0..200 {
        assert_eq!(echo(&mut neighbour, b"are you there?"), b"are you there?");
    }
    let mut read = Vec::new();
    stuck.read_to_end(&mut read).unwrap();
    assert!(read.len() < octets.len(), "it was never full");
    assert!(octets.starts_with(&read));
    assert_eq!(echo(&mut neighbour, b"still?"), b"still?");
}

#[test]
fn a_dial_of_an_agent_that_dies_goes_to_another_one_or_fails_at_once() {
    let mut pair = Pair::start(Program::Ours, Program::Ours, Front::HttpConnectUds).unwrap();
    let target = Target::echo();
    pair.agent().stop();
    let waiting = pair.start_connect(&target.address());
    within("the dial waits", || {
        pair.server_metric("konnectivity_network_proxy_server_pending_backend_dials") == Some(1.0)
    });
    pair.agent().kill();
    let head = waiting.join().unwrap();
    assert_eq!(head, "HTTP/1.1 502 agent connection closed while dialing");

    // The first stands for the destination, the second for nothing.
    pair.start_agent(Program::Ours, "ipv4=127.0.0.1").unwrap();
    pair.wait_for_agents(1);
    let first = pair.agents() - 1;
    pair.start_agent(Program::Ours, "").unwrap();
    pair.wait_for_agents(2);
    pair.agent_at(first).stop();
    let waiting = pair.start_connect(&target.address());
    within("the dial waits", || {
        pair.server_metric("konnectivity_network_proxy_server_pending_backend_dials") == Some(1.0)
    });
    pair.agent_at(first).kill();
    assert_eq!(waiting.join().unwrap(), "HTTP/1.1 200 Connection Established");
}

/// It is stopped, not ended: no packet tells of it.
#[test]
fn an_agent_that_does_not_answer_is_noticed() {
    let further = ["--keepalive-time=1s", "--backend-dial-timeout=0"];
    let port = process::free_port();
    let front = Front::HttpConnectUds;
    let mut pair = Pair::server_at(Program::Ours, front, "127.0.0.1", port, &further).unwrap();
    pair.start_agent(Program::Ours, "").unwrap();
    pair.wait_for_agents(1);
    pair.agent().stop();
    let (head, _) = pair.connect(&Target::echo().address());
    assert_eq!(head, "HTTP/1.1 502 agent connection closed while dialing");
    assert_eq!(pair.readiness(), 503);
    pair.agent().signal("CONT");
    pair.wait_for_agents(1);
}

/// As above, the other way round: an agent asks every 30 s at most, for upstream's servers close those that ask more often.
/// What the agent has open for it ends, and it comes back.
#[test]
fn a_server_that_does_not_answer_is_noticed_by_its_agent() {
    let mut pair = Pair::server(Program::Ours, Front::HttpConnectUds).unwrap();
    pair.start_agent(Program::Ours, "").unwrap();
    pair.wait_for_agents(1);
    let target = Target::collect();
    let (_, stream) = pair.connect(&target.address());
    let mut stream = stream.unwrap();
    stream.write_all(b"before").unwrap();
    let open = "konnectivity_network_proxy_agent_open_endpoint_connections";
    within("it is connected", || pair.agent_metric(open) == Some(1.0));
    pair.server_process().stop();
    // It is asked after 30 s at the latest, and has 20 s to answer.
    std::thread::sleep(Duration::from_secs(40));
    assert_eq!(target.collected(), b"before", "the destination sees the end");
    within("nothing is open", || pair.agent_metric(open) == Some(0.0));
    pair.server_process().signal("CONT");
    assert_eq!(
        stream.read(&mut [0; 1]).unwrap(),
        0,
        "its client sees the end, too"
    );
    within("the agent is back", || {
        let (head, _) = pair.connect(&Target::echo().address());
        head == "HTTP/1.1 200 Connection Established"
    });
}

#[test]
fn a_server_has_more_connections_than_its_soft_limit_of_open_files() {
    let mut pair = Pair::start(Program::Ours, Program::Ours, Front::HttpConnectUds).unwrap();
    pair.server_process().kill();
    pair.limit_open_files(100);
    pair.restart_server();
    pair.wait_for_agents(1);
    let target = Target::echo();
    let open: Vec<_> = (0..150).map(|_| pair.connect(&target.address())).collect();
    for (head, _) in &open {
        assert_eq!(head, "HTTP/1.1 200 Connection Established");
    }
}

#[test]
fn an_agent_connects_to_as_many_servers_as_there_are() {
    let front = Front::HttpConnectUds;
    for program in [Program::Ours, Program::Upstream] {
        let port = process::free_port();
        let further = ["--server-count=2"];
        let start = |host| Pair::server_at(program, front, host, port, &further);
        let (Some(mut first), Some(second)) = (start("127.0.0.1"), start("127.0.0.2")) else {
            return;
        };
        let hosts = "--proxy-server-host=127.0.0.1,127.0.0.2";
        first
            .start_agent_with(Program::Ours, &[hosts, "--allow-destinations=127.0.0.0/8"])
            .unwrap();
        first.wait_for_agents(1);
        second.wait_for_agents(1);
        let target = Target::echo();
        for server in [&first, &second] {
            let (head, _) = server.connect(&target.address());
            assert_eq!(head, "HTTP/1.1 200 Connection Established", "{program:?}");
        }
    }
}

#[test]
fn an_agent_that_is_told_to_stop_waits_for_its_connections_and_exits() {
    for server in [Program::Ours, Program::Upstream] {
        let Some(pair) = Pair::start(server, Program::Ours, Front::HttpConnectUds) else {
            return;
        };
        let target = Target::echo();
        let (_, stream) = pair.connect(&target.address());
        let mut stream = stream.unwrap();
        pair.agent().signal("TERM");
        within("it drains", || pair.agent().log().contains("draining"));
        assert_eq!(echo(&mut stream, b"goes on"), b"goes on", "{server:?}");
        assert_eq!(pair.agent().exit(Duration::from_millis(200)), None, "{server:?}");
        drop(stream);
        assert_eq!(pair.agent().exit(PATIENCE), Some(0), "{server:?}");
    }
}

/// A server may ask for it before it reads that the agent drains, and asks an agent that drains where there is no other.
#[test]
fn an_idle_agent_that_is_told_to_stop_still_makes_a_connection() {
    for server in [Program::Ours, Program::Upstream] {
        let Some(pair) = Pair::start(server, Program::Ours, Front::HttpConnectUds) else {
            return;
        };
        let target = Target::echo();
        pair.agent().signal("TERM");
        within("it drains", || pair.agent().log().contains("draining"));
        let (head, stream) = pair.connect(&target.address());
        assert_eq!(head, "HTTP/1.1 200 Connection Established", "{server:?}");
        assert_eq!(echo(&mut stream.unwrap(), b"goes on"), b"goes on", "{server:?}");
        assert_eq!(pair.agent().exit(PATIENCE), Some(0), "{server:?}");
    }
}

#[test]
fn an_agent_does_not_connect_to_its_own_machine_unless_it_is_allowed() {
    let mut pair = Pair::server(Program::Ours, Front::HttpConnectUds).unwrap();
    pair.start_agent_with(Program::Ours, &["--allow-destinations=127.0.0.2/32"])
        .unwrap();
    pair.wait_for_agents(1);
    let target = Target::echo();
    let port = target.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "169.254.169.254",
    ] {
        let (head, _) = pair.connect(&format!("{host}:{port}"));
        assert!(head.starts_with("HTTP/1.1 502 dial tcp "), "{host}: {head}");
        assert!(head.contains("this agent does not connect to"), "{host}: {head}");
    }
    let (head, _) = pair.connect(&format!("127.0.0.2:{port}"));
    assert_eq!(head, "HTTP/1.1 200 Connection Established");
}

/// curl tunnels as a client that nobody here wrote.
#[test]
fn clients_by_tls_show_a_certificate() {
    for (server, agent) in ALL {
        let Some(pair) = Pair::start(server, agent, Front::HttpConnectTls) else {
            return;
        };
        let target = Target::http(b"a page".to_vec());
        let curl = |arguments: &[String]| {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "-p", "--max-time", "10", "--proxy", &pair.proxy_url()])
                .args(arguments)
                .arg(format!("http://{}/", target.address()));
            curl.output().unwrap()
        };
        let shown = pair.curl_identity();
        let page = curl(&shown);
        let said = String::from_utf8_lossy(&page.stderr);
        assert_eq!(page.stdout, b"a page", "{server:?} {agent:?}: {said}");
        let refused = curl(&shown[..2]);
        assert!(!refused.status.success(), "{server:?} {agent:?}");
    }
}

#[test]
fn an_agent_without_a_certificate_of_the_cluster_is_not_taken() {
    let mut pair = Pair::server(Program::Ours, Front::HttpConnectUds).unwrap();
    pair.start_agent_without_certificate().unwrap();
    within("it is refused", || {
        pair.agent().log().contains("no connection to a proxy server")
    });
    assert_eq!(pair.readiness(), 503);
    pair.start_agent(Program::Ours, "").unwrap();
    pair.wait_for_agents(1);
    assert_eq!(pair.readiness(), 200);
}
