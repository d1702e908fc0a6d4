//! Which agent the server asks for a connection.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use egret_konnectivity::core::{AgentInfo, DialState, Limits, Refusal, Server, Strategy, StreamId};
use egret_konnectivity::proto::{Identifiers, Packet};

fn info(id: &str, identifiers: &str) -> AgentInfo {
    AgentInfo {
        id: id.to_owned(),
        identifiers: Identifiers::parse(identifiers).unwrap(),
        window: None,
    }
}

fn server(strategies: &[Strategy]) -> Server {
    Server::new(Limits::default(), strategies.to_vec())
}

fn packets(server: &mut Server, stream: StreamId) -> Vec<Packet> {
    std::iter::from_fn(|| server.next_packet(stream)).collect()
}

#[test]
fn a_strategy_chooses_among_agents_and_the_next_one_where_it_finds_none() {
    let agents = [
        ("a", "host=n1&ipv4=10.0.0.1"),
        ("b", "default-route=true"),
        ("c", "ipv6=fd00::1"),
    ];
    // Strategies, address, lot, expected agent.
    type Row<'a> = (&'a [Strategy], &'a str, u64, Option<usize>);
    let (default, host, route) = (Strategy::Default, Strategy::DestHost, Strategy::DefaultRoute);
    let table: [Row<'_>; 9] = [
        (&[default], "h:1", 0, Some(0)),
        (&[default], "h:1", 4, Some(1)),
        (&[host], "n1:10250", 9, Some(0)),
        (&[host], "10.0.0.1:10250", 9, Some(0)),
        (&[host], "[fd00:0::1]:10250", 9, Some(2)),
        (&[host], "n2:10250", 9, None),
        (&[host, default], "n2:10250", 2, Some(2)),
        (&[host, route, default], "n2:10250", 2, Some(1)),
        (&[], "h:1", 0, None),
    ];
    for (strategies, address, lot, expected) in table {
        let mut server = server(strategies);
        let streams = agents.map(|(id, identifiers)| server.open_stream(info(id, identifiers)));
        server.dial(address.to_owned(), lot);
        let asked: Vec<_> = streams
            .iter()
            .map(|stream| packets(&mut server, *stream).len())
            .collect();
        let wanted: Vec<_> = (0..3).map(|at| usize::from(Some(at) == expected)).collect();
        assert_eq!(asked, wanted, "{strategies:?} {address} {lot}");
    }
}

#[test]
fn the_agent_with_the_narrowest_network_is_asked() {
    let agents = [
        ("a", "cidr=10.0.0.0/8&cidr=fd00::/8"),
        ("b", "cidr=10.1.0.0/16"),
        ("c", "cidr=10.1.0.0/16"),
        ("d", "host=n1"),
    ];
    for (address, lot, expected) in [
        ("10.1.2.3:1", 0, Some(1)),
        ("10.1.2.3:1", 1, Some(2)),
        ("[::ffff:10.1.2.3]:1", 0, Some(1)),
        ("10.2.2.3:1", 7, Some(0)),
        ("[fd00::1]:1", 7, Some(0)),
        ("192.0.2.1:1", 0, None),
        ("n1:1", 0, None),
    ] {
        let mut server = server(&[Strategy::DestCidr]);
        let streams = agents.map(|(id, identifiers)| server.open_stream(info(id, identifiers)));
        server.dial(address.to_owned(), lot);
        let asked = streams
            .iter()
            .position(|stream| !packets(&mut server, *stream).is_empty());
        assert_eq!(asked, expected, "{address} {lot}");
        assert_eq!(server.agents_for(Strategy::DestCidr), 3);
    }
}

#[test]
fn an_agent_of_the_servers_zone_is_asked_and_the_next_strategy_where_there_is_none() {
    let agents = [
        ("a", "zone=north&host=n1"),
        ("b", "zone=south"),
        ("c", "zone=south&zone=west"),
    ];
    let choices: [(&str, &[Strategy], u64, Option<usize>); 6] = [
        ("south", &[Strategy::Zone], 0, Some(1)),
        ("south", &[Strategy::Zone], 1, Some(2)),
        ("west", &[Strategy::Zone, Strategy::Default], 0, Some(2)),
        ("south", &[Strategy::DestHost, Strategy::Zone], 0, Some(0)),
        ("east", &[Strategy::Zone], 0, None),
        ("east", &[Strategy::Zone, Strategy::Default], 1, Some(1)),
    ];
    for (zone, strategies, lot, expected) in choices {
        let mut server = server(strategies).in_zone(Some(zone.to_owned()));
        let streams = agents.map(|(id, identifiers)| server.open_stream(info(id, identifiers)));
        server.dial("n1:1".to_owned(), lot);
        let asked = streams
            .iter()
            .position(|stream| !packets(&mut server, *stream).is_empty());
        assert_eq!(asked, expected, "{zone} {strategies:?} {lot}");
    }
    // Where the server has no zone, no agent is of it.
    let mut nowhere = server(&[Strategy::Zone]);
    nowhere.open_stream(info("a", "zone=north"));
    assert_eq!(nowhere.agents_for(Strategy::Zone), 0);
    let refused = nowhere.dial("n1:1".to_owned(), 0);
    assert_eq!(nowhere.state(refused), DialState::Refused(Refusal::NoAgent));
}

#[test]
fn of_the_least_loaded_agents_one_is_asked() {
    let mut server = server(&[Strategy::LeastLoaded]);
    let streams = [("a", ""), ("b", "")].map(|(id, identifiers)| server.open_stream(info(id, identifiers)));
    let mut asked = Vec::new();
    for connection in 1..=4 {
        let tunnel = server.dial("h:1".into(), 0);
        for (at, stream) in streams.iter().enumerate() {
            let Some(Packet::DialRequest { random, .. }) = packets(&mut server, *stream).pop() else {
                continue;
            };
            asked.push(at);
            let error = String::new();
            let response = Packet::DialResponse {
                error,
                connection,
                random,
            };
            server.receive(*stream, response).unwrap();
        }
        assert_eq!(server.state(tunnel), DialState::Connected(connection));
    }
    assert_eq!(asked, [0, 1, 0, 1]);
}

#[test]
fn by_a_stream_whose_token_has_ended_nothing_is_dialled_and_what_is_open_goes_on() {
    let mut server = server(&[Strategy::Default]);
    let stream = server.open_stream(info("a", ""));
    let tunnel = server.dial("h:1".into(), 0);
    let Some(Packet::DialRequest { random, .. }) = packets(&mut server, stream).pop() else {
        panic!("it is asked");
    };
    let error = String::new();
    let response = Packet::DialResponse {
        error,
        connection: 1,
        random,
    };
    server.receive(stream, response).unwrap();
    server.expire_stream(stream);
    let refused = server.dial("h:1".into(), 0);
    assert_eq!(server.state(refused), DialState::Refused(Refusal::NoAgent));
    assert_eq!(server.state(tunnel), DialState::Connected(1));
    assert!(server.has_connections(stream));
    assert_eq!(server.agents(), 0);
}

#[test]
fn the_newest_stream_of_an_agent_is_asked_and_one_that_drains_last() {
    let mut server = server(&[Strategy::DestHost, Strategy::Default]);
    let old = server.open_stream(info("a", "host=n1"));
    let new = server.open_stream(info("a", "host=n1"));
    let other = server.open_stream(info("b", ""));
    server.dial("n1:1".into(), 0);
    assert_eq!(packets(&mut server, new).len(), 1);
    server.receive(new, Packet::Drain).unwrap();
    server.dial("n1:1".into(), 0);
    assert_eq!(packets(&mut server, old).len(), 1);
    server.receive(old, Packet::Drain).unwrap();
    server.dial("n1:1".into(), 0);
    assert_eq!(packets(&mut server, other).len(), 1);
    server.close_stream(other);
    server.dial("n1:1".into(), 0);
    // With the one that the other agent did not answer.
    assert_eq!(packets(&mut server, new).len(), 2);
    assert_eq!(server.agents(), 1);
}
