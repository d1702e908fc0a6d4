//! Server and agent without IO: what each is told, what each says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use egret_konnectivity::core::{
    Agent, AgentEvent, AgentInfo, DialState, Limits, Overloaded, Read, Refusal, Room, Server, Strategy,
    StreamEvent, StreamId, TunnelId,
};
use egret_konnectivity::proto::{Identifiers, MAX_DATA, Packet};
use proptest::prelude::{Just, any, prop, prop_oneof, proptest};

const SMALL: Limits = Limits {
    window: 1000,
    unread: 4000,
    unread_total: 10_000,
    unsent: 500,
};

fn info(id: &str, identifiers: &str) -> AgentInfo {
    AgentInfo {
        id: id.to_owned(),
        identifiers: Identifiers::parse(identifiers).unwrap(),
        window: None,
    }
}

fn server(strategies: &[Strategy]) -> Server {
    Server::new(SMALL, strategies.to_vec())
}

fn packets(server: &mut Server, stream: StreamId) -> Vec<Packet> {
    std::iter::from_fn(|| server.next_packet(stream)).collect()
}

fn request(address: &str, random: i64) -> Packet {
    Packet::DialRequest {
        protocol: "tcp".into(),
        address: address.into(),
        random,
    }
}

fn response(random: i64, connection: i64, error: &str) -> Packet {
    Packet::DialResponse {
        error: error.into(),
        connection,
        random,
    }
}

fn data(connection: i64, octets: &[u8]) -> Packet {
    Packet::Data {
        connection,
        data: Bytes::copy_from_slice(octets),
    }
}

fn close_request(connection: i64) -> Packet {
    Packet::CloseRequest { connection }
}

fn close_response(connection: i64, error: &str) -> Packet {
    Packet::CloseResponse {
        error: error.into(),
        connection,
    }
}

fn read(octets: &[u8]) -> Read {
    Read::Data(Bytes::copy_from_slice(octets))
}

fn end() -> Read {
    Read::End(String::new())
}

/// A server with one stream and one tunnel by it, which is connection 1.
fn connected(window: Option<u32>) -> (Server, StreamId, TunnelId) {
    let mut server = server(&[Strategy::Default]);
    let stream = server.open_stream(AgentInfo {
        window,
        ..info("a", "")
    });
    let tunnel = server.dial("h:1".into(), 0);
    assert_eq!(packets(&mut server, stream), [request("h:1", 1)]);
    server.receive(stream, response(1, 1, "")).unwrap();
    assert_eq!(server.state(tunnel), DialState::Connected(1));
    (server, stream, tunnel)
}

#[test]
fn without_an_agent_a_dial_is_refused() {
    let mut server = server(&[Strategy::Default]);
    let tunnel = server.dial("h:1".into(), 0);
    assert_eq!(server.state(tunnel), DialState::Refused(Refusal::NoAgent));
    assert_eq!(Refusal::NoAgent.to_string(), "No agent available");
    server.remove(tunnel);
    assert!(server.is_idle());
}

#[test]
fn what_an_agent_refuses_is_told_in_its_words() {
    let mut server = server(&[Strategy::Default]);
    let stream = server.open_stream(info("a", ""));
    let tunnel = server.dial("h:1".into(), 0);
    let error = "dial tcp h:1: connect: connection refused";
    server.receive(stream, response(1, 0, error)).unwrap();
    let refusal = Refusal::Target(error.to_owned());
    assert_eq!(refusal.to_string(), error);
    assert_eq!(server.state(tunnel), DialState::Refused(refusal));
}

#[test]
fn dials_of_a_stream_that_ends_go_to_another_agent_at_once_or_fail() {
    let mut server = server(&[Strategy::Default]);
    let (first, second) = (
        server.open_stream(info("a", "")),
        server.open_stream(info("b", "")),
    );
    let tunnel = server.dial("h:1".into(), 0);
    packets(&mut server, first);
    server.take_wakeups();
    server.close_stream(first);
    assert_eq!(server.state(tunnel), DialState::Dialing);
    assert_eq!(packets(&mut server, second), [request("h:1", 2)]);
    // What the first would still say counts for nothing.
    server.receive(first, response(2, 1, "")).unwrap();
    assert_eq!(server.state(tunnel), DialState::Dialing);
    server.close_stream(second);
    assert!(server.take_wakeups().tunnels.contains(&tunnel));
    assert_eq!(server.state(tunnel), DialState::Refused(Refusal::AgentGone));
    server.remove(tunnel);
    assert!(server.is_idle());
}

#[test]
fn a_second_stream_of_an_agent_shares_no_connection_with_the_first() {
    let mut server = server(&[Strategy::Default]);
    let first = server.open_stream(info("a", ""));
    let one = server.dial("h:1".into(), 0);
    server.receive(first, response(1, 1, "")).unwrap();
    let second = server.open_stream(info("a", ""));
    let two = server.dial("h:1".into(), 0);
    server.receive(second, response(2, 1, "")).unwrap();
    server.receive(first, data(1, b"of one")).unwrap();
    server.receive(second, data(1, b"of two")).unwrap();
    assert_eq!(server.read(one), read(b"of one"));
    assert_eq!(server.read(two), read(b"of two"));
    server.close_stream(first);
    assert_eq!(server.read(one), end());
    assert_eq!(server.read(two), Read::Empty);
}

#[test]
fn a_dial_that_nobody_waits_for_is_given_up_and_its_connection_closed() {
    let mut server = server(&[Strategy::Default]);
    let stream = server.open_stream(info("a", ""));
    let tunnel = server.dial("h:1".into(), 0);
    server.remove(tunnel);
    assert_eq!(
        packets(&mut server, stream),
        [request("h:1", 1), Packet::DialClose { random: 1 }]
    );
    server.receive(stream, response(1, 5, "")).unwrap();
    server.receive(stream, data(5, b"banner")).unwrap();
    assert_eq!(packets(&mut server, stream), [close_request(5)]);
    server.receive(stream, close_response(5, "")).unwrap();
    assert!(server.is_idle());
}

#[test]
fn what_came_before_a_close_is_read_before_the_end() {
    let (mut server, stream, tunnel) = connected(None);
    server.receive(stream, data(1, b"last words")).unwrap();
    server.receive(stream, close_response(1, "why")).unwrap();
    assert_eq!(server.room(tunnel), Room::Closed);
    assert_eq!(server.read(tunnel), read(b"last words"));
    assert_eq!(server.read(tunnel), Read::End("why".into()));
    server.remove(tunnel);
    assert_eq!(packets(&mut server, stream), []);
    assert!(server.is_idle());
}

#[test]
fn what_came_before_the_stream_ended_is_read() {
    let (mut server, stream, tunnel) = connected(None);
    server.receive(stream, data(1, b"last words")).unwrap();
    server.close_stream(stream);
    assert_eq!(server.read(tunnel), read(b"last words"));
    assert_eq!(server.read(tunnel), end());
    server.remove(tunnel);
    assert!(server.is_idle());
}

#[test]
fn a_client_that_finishes_has_its_octets_sent_before_the_close() {
    let (mut server, stream, tunnel) = connected(None);
    server.write(tunnel, Bytes::from_static(b"request"));
    server.finish(tunnel);
    assert!(!server.is_finished(tunnel));
    server.receive(stream, data(1, b"dropped")).unwrap();
    assert_eq!(
        packets(&mut server, stream),
        [data(1, b"request"), close_request(1)]
    );
    assert!(server.is_finished(tunnel));
    server
        .receive(stream, data(1, b"dropped, and not answered"))
        .unwrap();
    assert_eq!(packets(&mut server, stream), []);
    server.receive(stream, close_response(1, "")).unwrap();
    server.remove(tunnel);
    assert!(server.is_idle());
}

#[test]
fn connections_take_turns_and_no_packet_is_large() {
    let (mut server, stream, one) = connected(None);
    let two = server.dial("h:2".into(), 0);
    packets(&mut server, stream);
    server.receive(stream, response(2, 2, "")).unwrap();
    server.write(one, Bytes::from(vec![1; 2 * MAX_DATA + 1]));
    server.write(two, Bytes::from_static(b"short"));
    let sent: Vec<_> = packets(&mut server, stream)
        .into_iter()
        .map(|packet| match packet {
            Packet::Data { connection, data } => (connection, data.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sent, [(1, MAX_DATA), (2, 5), (1, MAX_DATA), (1, 1)]);
}

#[test]
fn a_peer_with_credits_is_sent_no_more_than_it_takes() {
    let (mut server, stream, tunnel) = connected(Some(10));
    server.write(tunnel, Bytes::from_static(b"0123456789abcdef"));
    assert_eq!(packets(&mut server, stream), [data(1, b"0123456789")]);
    let more = |octets| Packet::Credit {
        connection: 1,
        octets,
    };
    server.receive(stream, more(4)).unwrap();
    assert_eq!(packets(&mut server, stream), [data(1, b"abcd")]);
    server.finish(tunnel);
    assert_eq!(
        packets(&mut server, stream),
        [],
        "the close waits for what goes before it"
    );
    server.receive(stream, more(2)).unwrap();
    assert_eq!(packets(&mut server, stream), [data(1, b"ef"), close_request(1)]);
}

#[test]
fn a_reader_that_reads_gives_credit_and_a_peer_that_sends_more_is_closed() {
    let (mut server, stream, tunnel) = connected(Some(10));
    for _ in 0..2 {
        server.receive(stream, data(1, &[0; 500])).unwrap();
    }
    assert_eq!(
        packets(&mut server, stream),
        [],
        "nothing is read, nothing is given"
    );
    server.read(tunnel);
    let credit = Packet::Credit {
        connection: 1,
        octets: 500,
    };
    assert_eq!(packets(&mut server, stream), [credit]);
    server.receive(stream, data(1, &[0; 501])).unwrap();
    assert_eq!(packets(&mut server, stream), [close_request(1)]);
    assert_eq!(server.read(tunnel), end());
}

#[test]
fn without_credits_a_full_connection_slows_its_peer_and_is_closed_alone() {
    let (mut server, stream, stuck) = connected(None);
    let neighbour = server.dial("h:2".into(), 0);
    server.receive(stream, response(2, 2, "")).unwrap();
    packets(&mut server, stream);
    let full = StreamEvent::Full(stuck);
    assert_eq!(
        server.receive(stream, data(1, &[0; 1999])).unwrap(),
        StreamEvent::Nothing
    );
    assert_eq!(server.receive(stream, data(1, &[0; 1])).unwrap(), full);
    assert!(server.is_half_full(stuck));
    server.receive(stream, data(1, &[0; 2000])).unwrap();
    server.receive(stream, data(1, &[0; 1])).unwrap();
    assert_eq!(packets(&mut server, stream), [close_request(1)]);
    assert_eq!(server.read(stuck), end());
    server.receive(stream, data(2, b"goes on")).unwrap();
    assert_eq!(server.read(neighbour), read(b"goes on"));
}

#[test]
fn beyond_the_total_the_connection_with_most_is_closed() {
    let (mut server, stream, _) = connected(None);
    let mut tunnels = Vec::new();
    for at in 2..=5 {
        tunnels.push(server.dial("h:1".into(), 0));
        server.receive(stream, response(at, at, "")).unwrap();
    }
    packets(&mut server, stream);
    for (connection, length) in [(2, 1900), (3, 3000), (4, 2500), (5, 2500)] {
        server
            .receive(stream, data(connection, &vec![0; length]))
            .unwrap();
    }
    assert_eq!(packets(&mut server, stream), [], "9,900 of 10,000");
    server.receive(stream, data(2, &[0; 101])).unwrap();
    assert_eq!(packets(&mut server, stream), [close_request(3)]);
}

#[test]
fn an_agent_that_makes_us_answer_and_reads_nothing_is_cut_off() {
    let mut server = server(&[Strategy::Default]);
    let stream = server.open_stream(info("a", ""));
    let mut connections = 1..100_000;
    let refused = connections.find_map(|connection| server.receive(stream, data(connection, b"x")).err());
    assert_eq!(refused, Some(Overloaded));
}

fn agent_packets(agent: &mut Agent) -> Vec<Packet> {
    std::iter::from_fn(|| agent.next_packet()).collect()
}

fn dialled(agent: &mut Agent, random: i64) -> i64 {
    let AgentEvent::Dial { dial, .. } = agent.receive(request("h:1", random)).unwrap() else {
        panic!("a dial");
    };
    agent.connected(dial).unwrap()
}

#[test]
fn an_agent_numbers_connections_from_one_and_answers_before_data() {
    let mut agent = Agent::new(SMALL, None);
    let first = dialled(&mut agent, 7);
    agent.write(first, Bytes::from_static(b"banner"));
    let second = dialled(&mut agent, 8);
    assert_eq!(
        agent_packets(&mut agent),
        [response(7, 1, ""), response(8, 2, ""), data(1, b"banner")]
    );
    assert_eq!((first, second), (1, 2));
}

#[test]
fn an_agent_sends_all_data_before_it_closes() {
    let mut agent = Agent::new(SMALL, None);
    let connection = dialled(&mut agent, 7);
    agent.write(connection, Bytes::from_static(b"last words"));
    agent.finish(connection);
    assert_eq!(
        agent_packets(&mut agent),
        [response(7, 1, ""), data(1, b"last words"), close_response(1, "")]
    );
    assert!(agent.is_idle());
}

#[test]
fn an_agent_confirms_a_close_at_once_and_writes_what_came_before() {
    let mut agent = Agent::new(SMALL, Some(5));
    let connection = dialled(&mut agent, 7);
    agent.write(connection, Bytes::from_static(b"more than is taken"));
    agent.receive(data(1, b"request")).unwrap();
    agent.receive(close_request(1)).unwrap();
    assert_eq!(
        agent_packets(&mut agent),
        [response(7, 1, ""), close_response(1, "")]
    );
    assert_eq!(agent.read(connection), read(b"request"));
    assert_eq!(agent.read(connection), end());
    assert!(agent.is_idle());
}

#[test]
fn an_agent_answers_what_belongs_to_no_connection_in_upstreams_words() {
    let mut agent = Agent::new(SMALL, None);
    agent.receive(data(3, b"x")).unwrap();
    agent.receive(close_request(4)).unwrap();
    assert_eq!(
        agent_packets(&mut agent),
        [
            close_response(3, "unrecognized connectID"),
            close_response(4, "Unknown connectID")
        ]
    );
}

#[test]
fn an_agent_gives_up_a_dial_that_nobody_waits_for() {
    let mut agent = Agent::new(SMALL, None);
    let AgentEvent::Dial { dial, .. } = agent.receive(request("h:1", 7)).unwrap() else {
        panic!("a dial");
    };
    let given_up = agent.receive(Packet::DialClose { random: 7 }).unwrap();
    assert_eq!(given_up, AgentEvent::GiveUp(vec![dial]));
    assert_eq!(agent.connected(dial), None);
    assert!(agent.is_idle());
}

// === Both ends, joined ===

/// One thing that happens; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Dial,
    Answer(usize, bool),
    ToAgent(usize),
    ToServer(usize),
    ClientWrites(usize, usize),
    ClientReads(usize),
    ClientFinishes(usize),
    ClientLeaves(usize),
    TargetWrites(usize, usize),
    TargetReads(usize),
    TargetFinishes(usize),
    StreamEnds,
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::strategy::Strategy as _;
    let any = 0..64usize;
    prop::collection::vec(
        prop_oneof![
            3 => Just(Step::Dial),
            4 => (any.clone(), prop::bool::weighted(0.9)).prop_map(|(at, well)| Step::Answer(at, well)),
            12 => (1..8usize).prop_map(Step::ToAgent),
            12 => (1..8usize).prop_map(Step::ToServer),
            8 => (any.clone(), 1..700usize).prop_map(|(at, length)| Step::ClientWrites(at, length)),
            8 => any.clone().prop_map(Step::ClientReads),
            1 => any.clone().prop_map(Step::ClientFinishes),
            1 => any.clone().prop_map(Step::ClientLeaves),
            8 => (any.clone(), 1..700usize).prop_map(|(at, length)| Step::TargetWrites(at, length)),
            8 => any.clone().prop_map(Step::TargetReads),
            1 => any.prop_map(Step::TargetFinishes),
            1 => prop::bool::weighted(0.1).prop_map(|ends| if ends { Step::StreamEnds } else { Step::Dial }),
        ],
        1..200,
    )
}

/// What one end wrote and the other one read of a connection, in one direction.
#[derive(Debug, Default)]
struct Direction {
    written: Vec<u8>,
    read: Vec<u8>,
    /// The writer closed after all this, and nobody closed before.
    is_whole: bool,
}

#[derive(Debug)]
struct Client {
    tunnel: TunnelId,
    connection: Option<i64>,
    has_finished: bool,
}

struct Joined {
    server: Server,
    agent: Agent,
    stream: StreamId,
    is_up: bool,
    to_agent: VecDeque<Packet>,
    to_server: VecDeque<Packet>,
    dials: Vec<egret_konnectivity::core::DialId>,
    clients: Vec<Client>,
    /// Connections of the agent that its edge still serves.
    targets: Vec<i64>,
    up: HashMap<i64, Direction>,
    down: HashMap<i64, Direction>,
    next_octet: u8,
}

impl Joined {
    fn new(credits: bool) -> Self {
        let window = credits.then_some(SMALL.window);
        let mut server = server(&[Strategy::Default]);
        let stream = server.open_stream(AgentInfo {
            window,
            ..info("a", "")
        });
        Self {
            server,
            agent: Agent::new(SMALL, window),
            stream,
            is_up: true,
            to_agent: VecDeque::new(),
            to_server: VecDeque::new(),
            dials: Vec::new(),
            clients: Vec::new(),
            targets: Vec::new(),
            up: HashMap::new(),
            down: HashMap::new(),
            next_octet: 0,
        }
    }

    fn octets(&mut self, length: usize) -> Vec<u8> {
        (0..length)
            .map(|_| {
                self.next_octet = self.next_octet.wrapping_add(7);
                self.next_octet
            })
            .collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Dial => {
                let tunnel = self.server.dial("h:1".into(), 0);
                self.clients.push(Client {
                    tunnel,
                    connection: None,
                    has_finished: false,
                });
            }
            Step::Answer(at, well) if !self.dials.is_empty() => {
                let dial = self.dials.remove(at % self.dials.len());
                if *well {
                    self.targets.extend(self.agent.connected(dial));
                } else {
                    self.agent.refused(dial, "no".into());
                }
            }
            Step::ToAgent(count) => (0..*count).for_each(|_| self.move_to_agent()),
            Step::ToServer(count) => (0..*count).for_each(|_| self.move_to_server()),
            Step::ClientWrites(at, length) => self.client_writes(*at, *length),
            Step::ClientReads(at) => self.client_reads(*at),
            Step::ClientFinishes(at) if !self.clients.is_empty() => {
                let at = at % self.clients.len();
                let client = &mut self.clients[at];
                client.has_finished = true;
                self.server.finish(client.tunnel);
            }
            Step::ClientLeaves(at) if !self.clients.is_empty() => {
                let client = self.clients.remove(at % self.clients.len());
                self.server.remove(client.tunnel);
            }
            Step::TargetWrites(at, length) if !self.targets.is_empty() => {
                let connection = self.targets[at % self.targets.len()];
                if let Room::Octets(room) = self.agent.room(connection) {
                    let octets = self.octets(room.min(*length));
                    self.down.entry(connection).or_default().written.extend(&octets);
                    self.agent.write(connection, octets.into());
                }
            }
            Step::TargetReads(at) => self.target_reads(*at),
            Step::TargetFinishes(at) if !self.targets.is_empty() => {
                let connection = self.targets.remove(at % self.targets.len());
                let is_open = self.agent.room(connection) != Room::Closed;
                self.down.entry(connection).or_default().is_whole = is_open;
                self.agent.finish(connection);
            }
            Step::StreamEnds if self.is_up => {
                self.is_up = false;
                self.to_agent.clear();
                self.to_server.clear();
                self.dials.clear();
                self.server.close_stream(self.stream);
                self.agent.close();
                for direction in self.down.values_mut() {
                    direction.is_whole = false;
                }
            }
            _ => {}
        }
    }

    fn move_to_agent(&mut self) {
        if let Some(packet) = self.is_up.then(|| self.server.next_packet(self.stream)).flatten() {
            self.to_agent.push_back(packet);
        }
        if let Some(packet) = self.to_agent.pop_front() {
            match self.agent.receive(packet).unwrap() {
                AgentEvent::Dial { dial, .. } => self.dials.push(dial),
                AgentEvent::GiveUp(dials) => self.dials.retain(|dial| !dials.contains(dial)),
                AgentEvent::Nothing | AgentEvent::Full(_) => {}
            }
        }
    }

    fn move_to_server(&mut self) {
        if let Some(packet) = self.is_up.then(|| self.agent.next_packet()).flatten() {
            self.to_server.push_back(packet);
        }
        if let Some(packet) = self.to_server.pop_front() {
            self.server.receive(self.stream, packet).unwrap();
        }
    }

    fn client_writes(&mut self, at: usize, length: usize) {
        if self.clients.is_empty() {
            return;
        }
        let at = at % self.clients.len();
        let tunnel = self.clients[at].tunnel;
        if let DialState::Connected(connection) = self.server.state(tunnel)
            && let Room::Octets(room) = self.server.room(tunnel)
        {
            self.clients[at].connection = Some(connection);
            let octets = self.octets(room.min(length));
            self.up.entry(connection).or_default().written.extend(&octets);
            self.server.write(tunnel, octets.into());
        }
    }

    fn client_reads(&mut self, at: usize) {
        if self.clients.is_empty() {
            return;
        }
        let at = at % self.clients.len();
        let Client {
            tunnel, has_finished, ..
        } = self.clients[at];
        let DialState::Connected(connection) = self.server.state(tunnel) else {
            if matches!(self.server.state(tunnel), DialState::Refused(_)) {
                self.server.remove(tunnel);
                self.clients.remove(at);
            }
            return;
        };
        match self.server.read(tunnel) {
            Read::Data(data) => self.down.entry(connection).or_default().read.extend(&data),
            Read::Empty => {}
            Read::End(_) => {
                if !has_finished {
                    let direction = self.down.entry(connection).or_default();
                    assert!(
                        !direction.is_whole || direction.read == direction.written,
                        "an end before the last octet"
                    );
                }
                if self.server.is_finished(tunnel) {
                    self.server.remove(tunnel);
                    self.clients.remove(at);
                }
            }
        }
    }

    fn target_reads(&mut self, at: usize) {
        if self.targets.is_empty() {
            return;
        }
        let at = at % self.targets.len();
        let connection = self.targets[at];
        match self.agent.read(connection) {
            Read::Data(data) => self.up.entry(connection).or_default().read.extend(&data),
            Read::Empty => {}
            Read::End(_) => {
                self.targets.remove(at);
            }
        }
    }

    fn check(&self) {
        for direction in self.up.values().chain(self.down.values()) {
            assert!(
                direction.written.starts_with(&direction.read),
                "lost, repeated or reordered"
            );
        }
    }

    /// Everybody reads and closes until nothing moves.
    fn close(&mut self) {
        for _ in 0..20_000 {
            self.step(&Step::Answer(0, true));
            self.move_to_agent();
            self.move_to_server();
            for at in 0..self.clients.len().max(self.targets.len()) {
                self.client_reads(at);
                self.target_reads(at);
            }
            for client in &mut self.clients {
                client.has_finished = true;
                self.server.finish(client.tunnel);
            }
            if self.clients.is_empty()
                && self.targets.is_empty()
                && self.agent.is_idle()
                && self.server.is_idle()
            {
                return;
            }
        }
        panic!("left: {:?} {:?}", self.server, self.agent);
    }
}

proptest! {
    #[test]
    fn no_octet_is_lost_repeated_or_reordered_and_nothing_is_left(steps in steps(), credits in any::<bool>()) {
        let mut joined = Joined::new(credits);
        for step in &steps {
            joined.step(step);
            joined.check();
        }
        joined.close();
        joined.check();
    }
}
