//! DNS over TLS (RFC 7858).

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::server::{Authority, NAME, Server, at, free_port, kdig};

const PATIENCE: Duration = Duration::from_secs(20);

/// A block that answers by itself, and keeps its answers.
pub(crate) fn block(key: &str, options: &str) -> String {
    format!(
        "{key} {{\n bind 127.0.0.1\n {options}\n prometheus 127.0.0.1:0\n cache 60\n template IN A {{\n answer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\"\n }}\n}}\n"
    )
}

/// A question for an address, with this id.
pub(crate) fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

/// Who trusts the authority, shows this certificate if any, and speaks these protocols.
pub(crate) fn client(authority: &Authority, shown: Option<&str>, protocols: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(authority.folder.join("ca.pem")).unwrap();
    roots.add(ca).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let certificate =
                CertificateDer::from_pem_file(authority.folder.join(format!("{file}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(authority.folder.join(format!("{file}.key"))).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

pub(crate) async fn connect(
    config: ClientConfig,
    port: u16,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(at(port)).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

pub(crate) async fn send(stream: &mut TlsStream<TcpStream>, message: &[u8]) {
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, message].concat()).await.unwrap();
}

/// The next message; nothing where the connection ended.
pub(crate) async fn receive(stream: &mut TlsStream<TcpStream>) -> Option<Message> {
    let reading = async {
        let length = stream.read_u16().await.ok()?;
        let mut octets = vec![0; length.into()];
        stream.read_exact(&mut octets).await.ok()?;
        Some(Message::from_vec(&octets).unwrap())
    };
    timeout(PATIENCE, reading).await.expect("it answers or closes")
}

pub(crate) async fn is_answered(stream: &mut TlsStream<TcpStream>, id: u16) -> bool {
    send(stream, &question(id, "a.test.")).await;
    receive(stream)
        .await
        .is_some_and(|reply| reply.metadata.id == id && reply.answers.len() == 1)
}

#[test]
fn kdig_is_answered_and_the_second_answer_is_cached() {
    let authority = Authority::new("kdig-tls");
    let port = free_port();
    let server = Server::start(
        &authority,
        &block(&format!("tls://.:{port}"), &authority.tls()),
        &[],
    );
    let asked = format!(
        "@127.0.0.1 -p {port} +tls-ca={} +tls-hostname={NAME} +short a.test A",
        authority.file("ca.pem")
    );
    for _ in 0..2 {
        assert_eq!(kdig(&asked).trim(), "192.0.2.1", "{}", server.log());
    }
    let label = format!("server=\"tls://127.0.0.1:{port}\"");
    let requests = ["proto=\"tcp\"", "type=\"A\"", label.as_str()];
    assert_eq!(server.metric("coredns_dns_requests_total", &requests), 2.0);
    assert_eq!(server.metric("coredns_cache_hits_total", &[&label]), 1.0);
    assert_eq!(
        server.metric("egret_dnsd_queries_total", &["transport=\"tcp\""]),
        2.0
    );
}

#[tokio::test]
async fn queries_on_one_connection_are_answered_and_invalid_ones_affect_no_other() {
    let authority = Authority::new("frames");
    let port = free_port();
    let _server = Server::start(
        &authority,
        &block(&format!("tls://.:{port}"), &authority.tls()),
        &[],
    );
    let mut stream = connect(client(&authority, None, &["dot"]), port, NAME)
        .await
        .unwrap();
    assert!(is_answered(&mut stream, 1).await);
    // Nothing at all, no header, a response: no answer, and the connection goes on.
    send(&mut stream, &[]).await;
    send(&mut stream, &[0; 5]).await;
    send(&mut stream, &[[0, 9, 0x80, 0].as_slice(), &[0; 8]].concat()).await;
    assert!(is_answered(&mut stream, 2).await);
    // As long as a frame can be, and no question.
    let mut long = question(3, "a.test.");
    long.resize(65_535, 0xff);
    send(&mut stream, &long).await;
    let refused = receive(&mut stream).await.unwrap();
    assert_eq!(refused.metadata.id, 3);
    assert!(is_answered(&mut stream, 4).await);
    // Who speaks no TLS is closed, and so is who speaks another protocol in it.
    let mut plain = TcpStream::connect(at(port)).await.unwrap();
    plain.write_all(&[0xff; 64]).await.unwrap();
    let mut rest = Vec::new();
    drop(
        timeout(PATIENCE, plain.read_to_end(&mut rest))
            .await
            .expect("it closes"),
    );
    assert!(
        connect(client(&authority, None, &["h2"]), port, NAME)
            .await
            .is_err()
    );
    assert!(is_answered(&mut stream, 5).await);
}

#[tokio::test]
async fn any_server_name_gets_the_certificate() {
    let authority = Authority::new("sni");
    let port = free_port();
    let _server = Server::start(
        &authority,
        &block(&format!("tls://.:{port}"), &authority.tls()),
        &[],
    );
    let other = connect(client(&authority, None, &[]), port, "other.test").await;
    let error = other
        .expect_err("the certificate is for another name")
        .to_string();
    assert!(error.contains("not valid for name"), "{error}");
    let mut stream = connect(client(&authority, None, &[]), port, NAME).await.unwrap();
    assert!(is_answered(&mut stream, 1).await);
}

#[tokio::test]
async fn clients_need_the_certificate_of_client_auth() {
    let authority = Authority::new("auth");
    let stranger = Authority::new("auth-stranger");
    authority.issue("client", "client.test");
    stranger.issue("client", "client.test");
    for name in ["client.pem", "client.key"] {
        let text = std::fs::read_to_string(stranger.folder.join(name)).unwrap();
        authority.put(&format!("other-{name}"), &text);
    }
    std::fs::rename(
        authority.folder.join("other-client.pem"),
        authority.folder.join("other.pem"),
    )
    .unwrap();
    std::fs::rename(
        authority.folder.join("other-client.key"),
        authority.folder.join("other.key"),
    )
    .unwrap();
    let shown = [None, Some("other"), Some("client")];
    let kinds = [
        ("nocert", [true, true, true]),
        ("request", [true, true, true]),
        ("require", [false, true, true]),
        ("verify_if_given", [true, false, true]),
        ("require_and_verify", [false, false, true]),
    ];
    let ports: Vec<u16> = kinds.iter().map(|_| free_port()).collect();
    let blocks: Vec<String> = kinds
        .iter()
        .zip(&ports)
        .map(|((kind, _), port)| {
            let tls = format!(
                "{} {} {{\n client_auth {kind}\n }}",
                authority.tls(),
                authority.file("ca.pem")
            );
            block(&format!("tls://.:{port}"), &tls)
        })
        .collect();
    let _server = Server::start(&authority, &blocks.concat(), &[]);
    for ((kind, answered), port) in kinds.iter().zip(&ports) {
        for (shown, answered) in shown.iter().zip(answered) {
            let stream = connect(client(&authority, *shown, &[]), *port, NAME).await;
            // With TLS 1.3 a client hears that it is refused when it reads.
            let is_answered = match stream {
                Ok(mut stream) => is_answered(&mut stream, 1).await,
                Err(_) => false,
            };
            assert_eq!(is_answered, *answered, "{kind}, {shown:?}");
        }
    }
}

/// Some hang in the middle of a handshake, and some before it; others are answered, and those are closed.
#[tokio::test]
async fn slow_handshakes_delay_no_client_and_end() {
    let authority = Authority::new("slow");
    let port = free_port();
    let options = format!("{}\n timeouts {{\n read 1s\n }}", authority.tls());
    let _server = Server::start(&authority, &block(&format!("tls://.:{port}"), &options), &[]);
    let mut slow = Vec::new();
    for begun in [&[][..], &[0x16, 3, 1, 2, 0], &[0x16]].iter().cycle().take(20) {
        let mut stream = TcpStream::connect(at(port)).await.unwrap();
        stream.write_all(begun).await.unwrap();
        slow.push(stream);
    }
    let mut stream = connect(client(&authority, None, &[]), port, NAME).await.unwrap();
    assert!(is_answered(&mut stream, 1).await);
    for mut stream in slow {
        let mut rest = Vec::new();
        drop(
            timeout(PATIENCE, stream.read_to_end(&mut rest))
                .await
                .expect("it is closed"),
        );
    }
}

#[tokio::test]
async fn connections_count_with_tcp() {
    let authority = Authority::new("limit");
    let port = free_port();
    let more = ["--tcp-connections-per-client", "3"];
    let corefile = block(&format!("tls://.:{port}"), &authority.tls());
    let server = Server::start(&authority, &corefile, &more);
    let mut open = Vec::new();
    for id in 1..=3 {
        let mut stream = connect(client(&authority, None, &[]), port, NAME).await.unwrap();
        assert!(is_answered(&mut stream, id).await);
        open.push(stream);
    }
    assert!(connect(client(&authority, None, &[]), port, NAME).await.is_err());
    assert_eq!(server.metric("egret_dnsd_tcp_refused_total", &[]), 1.0);
    for stream in &mut open {
        assert!(is_answered(stream, 9).await, "those that are there stay");
    }
}
