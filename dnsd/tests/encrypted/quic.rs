//! DNS over QUIC (RFC 9250).

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::Message;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::server::{Authority, NAME, Server, at, free_port, kdig};
use crate::tls::{self, block, question};

const PATIENCE: Duration = Duration::from_secs(20);
/// `DOQ_PROTOCOL_ERROR`.
const PROTOCOL_ERROR: u32 = 2;

pub(crate) fn endpoint() -> Endpoint {
    Endpoint::client(at(0)).unwrap()
}

pub(crate) fn client(authority: &Authority, shown: Option<&str>, protocol: &str) -> ClientConfig {
    let config = tls::client(authority, shown, &[protocol]);
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

pub(crate) async fn connect(
    endpoint: &Endpoint,
    config: ClientConfig,
    port: u16,
    name: &str,
) -> Result<Connection, ConnectionError> {
    let connecting = endpoint.connect_with(config, at(port), name).unwrap();
    timeout(PATIENCE, connecting).await.expect("it says something")
}

pub(crate) fn framed(query: &[u8]) -> Vec<u8> {
    [&u16::try_from(query.len()).unwrap().to_be_bytes(), query].concat()
}

/// The message of a stream of its own.
pub(crate) async fn ask(connection: &Connection, octets: &[u8]) -> Option<Message> {
    let (mut writer, mut reader) = connection.open_bi().await.ok()?;
    writer.write_all(octets).await.ok()?;
    writer.finish().ok()?;
    let read = timeout(PATIENCE, reader.read_to_end(70_000)).await;
    let framed = read.expect("it answers or ends").ok()?;
    let (length, message) = framed.split_first_chunk()?;
    assert_eq!(usize::from(u16::from_be_bytes(*length)), message.len());
    Some(Message::from_vec(message).unwrap())
}

pub(crate) async fn is_answered(connection: &Connection) -> bool {
    let reply = ask(connection, &framed(&question(0, "a.test."))).await;
    reply.is_some_and(|reply| reply.metadata.id == 0 && reply.answers.len() == 1)
}

async fn code_of(connection: &Connection) -> Option<u64> {
    match timeout(PATIENCE, connection.closed()).await.expect("it ends") {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        _other => None,
    }
}

#[test]
fn kdig_is_answered_and_the_second_answer_is_cached() {
    let authority = Authority::new("kdig-quic");
    let port = free_port();
    let server = Server::start(
        &authority,
        &block(&format!("quic://.:{port}"), &authority.tls()),
        &[],
    );
    let ca = authority.file("ca.pem");
    for _ in 0..2 {
        let asked = format!("@127.0.0.1 -p {port} +tls-ca={ca} +tls-hostname={NAME} +quic +short a.test A");
        assert_eq!(kdig(&asked).trim(), "192.0.2.1", "{}", server.log());
    }
    let label = format!("server=\"quic://127.0.0.1:{port}\"");
    let requests = ["proto=\"udp\"", "type=\"A\"", label.as_str()];
    assert_eq!(server.metric("coredns_dns_requests_total", &requests), 2.0);
    assert_eq!(server.metric("coredns_cache_hits_total", &[&label]), 1.0);
    let answered = [label.as_str(), "status=\"0x0\""];
    assert_eq!(server.metric("coredns_dns_quic_responses_total", &answered), 2.0);
}

#[tokio::test]
async fn streams_are_answered_concurrently_and_an_invalid_query_ends_the_connection() {
    let authority = Authority::new("quic");
    let port = free_port();
    let server = Server::start(
        &authority,
        &block(&format!("quic://.:{port}"), &authority.tls()),
        &[],
    );
    let endpoint = endpoint();
    let open = || connect(&endpoint, client(&authority, None, "doq"), port, NAME);
    let connection = open().await.unwrap();
    // One that says nothing yet holds up none of the others.
    let (mut silent, _unread) = connection.open_bi().await.unwrap();
    silent.write_all(&[0]).await.unwrap();
    for _ in 0..300 {
        assert!(is_answered(&connection).await);
    }
    let query = question(0, "a.test.");
    let mut long = framed(&query);
    long.push(0);
    let mut oversized = framed(&query);
    oversized.resize(66_000, 0);
    for wrong in [
        vec![],
        vec![0, 0],
        framed(&[0; 5]),
        framed(&question(1, "a.test.")),
        framed(&query)[..10].to_vec(),
        long,
        oversized,
        vec![0xff; 100],
    ] {
        let connection = open().await.unwrap();
        assert!(ask(&connection, &wrong).await.is_none());
        assert_eq!(
            code_of(&connection).await,
            Some(PROTOCOL_ERROR.into()),
            "{wrong:?}"
        );
    }
    // A response is not answered, and ends its stream alone.
    let response = [[0, 0, 0x80, 0].as_slice(), &[0; 8]].concat();
    assert!(ask(&connection, &framed(&response)).await.is_none());
    assert!(is_answered(&connection).await);
    // What is no QUIC at all.
    let stranger = UdpSocket::bind(at(0)).await.unwrap();
    for garbage in [&[][..], &[0xff; 1_200], &[0; 40], &query] {
        stranger.send_to(garbage, at(port)).await.unwrap();
    }
    assert!(is_answered(&connection).await, "{}", server.log());
}

#[tokio::test]
async fn another_protocol_another_name_and_a_missing_certificate_are_refused() {
    let authority = Authority::new("quic-refused");
    authority.issue("client", "client.test");
    let port = free_port();
    let tls = format!(
        "{} {} {{\n client_auth require_and_verify\n }}",
        authority.tls(),
        authority.file("ca.pem")
    );
    let _server = Server::start(&authority, &block(&format!("quic://.:{port}"), &tls), &[]);
    let endpoint = endpoint();
    let shown = Some("client");
    for (protocol, name) in [("h3", NAME), ("doq", "other.test")] {
        let refused = connect(&endpoint, client(&authority, shown, protocol), port, name).await;
        assert!(refused.is_err(), "{protocol}, {name}");
    }
    let bare = connect(&endpoint, client(&authority, None, "doq"), port, NAME).await;
    let is_refused = match bare {
        Ok(connection) => !is_answered(&connection).await,
        Err(_) => true,
    };
    assert!(is_refused);
    let connection = connect(&endpoint, client(&authority, shown, "doq"), port, NAME).await;
    assert!(is_answered(&connection.unwrap()).await);
}

#[tokio::test]
async fn connections_count_with_tcp_and_end_when_idle() {
    let authority = Authority::new("quic-limit");
    let port = free_port();
    let more = ["--tcp-connections-per-client", "2"];
    let options = format!("{}\n timeouts {{\n idle 1s\n }}", authority.tls());
    let server = Server::start(&authority, &block(&format!("quic://.:{port}"), &options), &more);
    let endpoint = endpoint();
    let open = || connect(&endpoint, client(&authority, None, "doq"), port, NAME);
    let both = [open().await.unwrap(), open().await.unwrap()];
    for connection in &both {
        assert!(is_answered(connection).await);
    }
    assert!(open().await.is_err());
    assert_eq!(server.metric("egret_dnsd_tcp_refused_total", &[]), 1.0);
    for connection in &both {
        // By the server's word, or both by their clocks.
        timeout(PATIENCE, connection.closed()).await.expect("it ends");
    }
    // The server may hear of it later.
    for _ in 0..100 {
        if let Ok(connection) = open().await {
            assert!(is_answered(&connection).await);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody has a connection, and none is given");
}
