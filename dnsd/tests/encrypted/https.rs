//! DNS over HTTPS (RFC 8484): over HTTP/2 with kdig, and over HTTP/1.1 by hand.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::server::{Authority, NAME, Server, free_port, kdig};
use crate::tls::{block, client, connect, question};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn kdig_is_answered_over_post_and_get_and_the_second_answer_is_cached() {
    let authority = Authority::new("kdig-https");
    let port = free_port();
    let server = Server::start(
        &authority,
        &block(&format!("https://.:{port}"), &authority.tls()),
        &[],
    );
    let ca = authority.file("ca.pem");
    for method in ["+https", "+https-get"] {
        let asked =
            format!("@127.0.0.1 -p {port} +tls-ca={ca} +tls-hostname={NAME} {method} +short a.test A");
        assert_eq!(kdig(&asked).trim(), "192.0.2.1", "{method}: {}", server.log());
    }
    let label = format!("server=\"https://127.0.0.1:{port}\"");
    let requests = ["proto=\"tcp\"", "type=\"A\"", label.as_str()];
    assert_eq!(server.metric("coredns_dns_requests_total", &requests), 2.0);
    assert_eq!(server.metric("coredns_cache_hits_total", &[&label]), 1.0);
    let answered = [label.as_str(), "status=\"200\""];
    assert_eq!(server.metric("coredns_dns_https_responses_total", &answered), 2.0);
    let elsewhere = format!("@127.0.0.1 -p {port} +tls-ca={ca} +tls-hostname={NAME} +https=/other a.test A");
    assert!(!kdig(&elsewhere).contains("192.0.2.1"));
    let not_found = [label.as_str(), "status=\"404\""];
    assert!(server.metric("coredns_dns_https_responses_total", &not_found) >= 1.0);
}

/// Sends a request over HTTP/1.1, and reads its reply: head and body.
async fn ask(stream: &mut TlsStream<TcpStream>, request: &[u8]) -> (String, Vec<u8>) {
    stream.write_all(request).await.unwrap();
    let reading = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body).await.unwrap();
        (head, body)
    };
    timeout(PATIENCE, reading).await.expect("it answers")
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: {NAME}\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_reply_has_max_age_and_an_invalid_query_is_refused() {
    let authority = Authority::new("https");
    let port = free_port();
    let _server = Server::start(
        &authority,
        &block(&format!("https://.:{port}"), &authority.tls()),
        &[],
    );
    let config = || client(&authority, None, &["http/1.1"]);
    let mut stream = connect(config(), port, NAME).await.unwrap();
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(question(0, "a.test."));
    for request in [
        post("/dns-query", &question(7, "a.test.")),
        get(&format!("/dns-query?dns={encoded}")),
        get(&format!("/dns-query?x=1&dns={encoded}")),
    ] {
        let (head, body) = ask(&mut stream, &request).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(
            head.contains("content-type: application/dns-message\r\n"),
            "{head}"
        );
        assert!(
            head.contains("cache-control: max-age=60\r\n") || head.contains("max-age=59"),
            "{head}"
        );
        assert_eq!(Message::from_vec(&body).unwrap().answers.len(), 1);
    }
    for (request, status) in [
        (post("/other", &question(7, "a.test.")), "404"),
        (get("/"), "404"),
        (get("/dns-query"), "400"),
        (get("/dns-query?dns=!!!"), "400"),
        (get(&format!("/dns-query?dns={encoded}&dns={encoded}")), "400"),
        (post("/dns-query", &[]), "400"),
        (post("/dns-query", &[0; 5]), "400"),
        // A response: nothing is due.
        (
            post("/dns-query", &[[0, 9, 0x80, 0].as_slice(), &[0; 8]].concat()),
            "500",
        ),
        (
            format!("PUT /dns-query?dns={encoded} HTTP/1.1\r\nhost: {NAME}\r\n\r\n").into_bytes(),
            "400",
        ),
    ] {
        let (head, _) = ask(&mut stream, &request).await;
        let said = String::from_utf8_lossy(&request).into_owned();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{said}: {head}");
    }
    // Longer than any message: it is refused, and the connection may end.
    let (head, _) = ask(&mut stream, &post("/dns-query", &vec![0; 70_000])).await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    // Neither HTTP nor TLS.
    let mut garbage = connect(config(), port, NAME).await.unwrap();
    garbage.write_all(&[0xff; 100]).await.unwrap();
    let mut rest = Vec::new();
    drop(
        timeout(PATIENCE, garbage.read_to_end(&mut rest))
            .await
            .expect("it closes"),
    );
    assert!(
        connect(client(&authority, None, &["dot"]), port, NAME)
            .await
            .is_err()
    );
    let mut stream = connect(config(), port, NAME).await.unwrap();
    let (head, _) = ask(&mut stream, &post("/dns-query", &question(7, "a.test."))).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[tokio::test]
async fn a_silent_client_is_disconnected_and_counts_as_a_connection() {
    let authority = Authority::new("https-idle");
    let port = free_port();
    let options = format!(
        "{}\n timeouts {{\n read 1s\n idle 1s\n write 1s\n }}",
        authority.tls()
    );
    let more = ["--tcp-connections-per-client", "2"];
    let _server = Server::start(&authority, &block(&format!("https://.:{port}"), &options), &more);
    let config = || client(&authority, None, &["http/1.1"]);
    let mut silent = connect(config(), port, NAME).await.unwrap();
    let mut half = connect(config(), port, NAME).await.unwrap();
    let request = post("/dns-query", &question(7, "a.test."));
    half.write_all(&request[..request.len() - 1]).await.unwrap();
    assert!(
        connect(config(), port, NAME).await.is_err(),
        "there are two already"
    );
    let mut rest = Vec::new();
    drop(
        timeout(PATIENCE, silent.read_to_end(&mut rest))
            .await
            .expect("it closes"),
    );
    let (head, _) = ask(&mut half, &[]).await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    drop((silent, half));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut stream = connect(config(), port, NAME).await.unwrap();
    let (head, _) = ask(&mut stream, &request).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}
