//! A takeover with encrypted blocks: the sockets continue, and no query is lost.

use nix::sys::signal::Signal;

use crate::quic;
use crate::server::{Authority, NAME, Server, free_port, kdig};
use crate::tls::{block, client, connect, is_answered};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_takeover_the_new_process_accepts_and_open_connections_are_answered_or_closed() {
    let authority = Authority::new("takeover");
    let ports = [free_port(), free_port(), free_port()];
    let [over_tls, over_https, over_quic] = ports;
    let tls = authority.tls();
    let keys = [
        format!("tls://.:{over_tls}"),
        format!("https://.:{over_https}"),
        format!("quic://.:{over_quic}"),
    ];
    let corefile: String = keys.iter().map(|key| block(key, &tls)).collect();
    let config = authority.folder.join("host.yaml");
    std::fs::write(
        &config,
        format!("host: {{handover: {}}}\n", authority.file("handover.sock")),
    )
    .unwrap();
    let more = ["--config", config.to_str().unwrap()];
    let mut first = Server::start(&authority, &corefile, &more);
    let mut open = connect(client(&authority, None, &[]), over_tls, NAME)
        .await
        .unwrap();
    assert!(is_answered(&mut open, 1).await);
    let endpoint = quic::endpoint();
    let connect_quic = || quic::connect(&endpoint, quic::client(&authority, None, "doq"), over_quic, NAME);
    let connection = connect_quic().await.unwrap();
    assert!(quic::is_answered(&connection).await);
    // Somebody asks all the time, over each of the three, by connections of his own. kdig sends nothing again over QUIC.
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ca = authority.file("ca.pem");
    let asking: Vec<_> = [(over_tls, ""), (over_https, "+https")]
        .into_iter()
        .map(|(port, way)| {
            let is_over = std::sync::Arc::clone(&is_over);
            let asked = format!(
                "@127.0.0.1 -p {port} +tls-ca={ca} +tls-hostname={NAME} {way} +retry=0 +timeout=5 +short a.test A"
            );
            std::thread::spawn(move || {
                let mut answered = 0;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let reply = kdig(&asked);
                    assert_eq!(reply.trim(), "192.0.2.1", "{asked}");
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    let asking_quic = tokio::spawn(ask_again_and_again(
        endpoint.clone(),
        quic::client(&authority, None, "doq"),
        over_quic,
        std::sync::Arc::clone(&is_over),
    ));
    let second = Server::start(&authority, &corefile, &more);
    second.logs("taking over from the dnsd that answers");
    first.logs("a new process answers");
    // The connection over TLS is the first one's, and goes on; that over QUIC is ended, since its packets go to the second.
    assert!(is_answered(&mut open, 2).await);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(5), connection.closed()).await;
    let ended = ended.expect("it ends").to_string();
    assert!(ended.contains("closed by peer"), "{ended}");
    assert!(quic::is_answered(&connect_quic().await.unwrap()).await);
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    for asking in asking {
        assert!(asking.join().unwrap() > 0);
    }
    assert!(asking_quic.await.unwrap() > 0);
    first.signal(Signal::SIGTERM);
    assert!(first.end());
    let label = format!("server=\"quic://127.0.0.1:{over_quic}\"");
    assert!(second.metric("coredns_dns_requests_total", &[&label]) > 0.0);
}

/// How often a client was answered that connects for each question. A connection that the server ends is opened anew, as
/// clients do; none is left to its clock.
async fn ask_again_and_again(
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
    port: u16,
    is_over: std::sync::Arc<std::sync::atomic::AtomicBool>,
) -> usize {
    let (mut answered, mut ended) = (0, 0);
    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
        let connection = quic::connect(&endpoint, config.clone(), port, NAME).await;
        let is_answered = match &connection {
            Ok(connection) => quic::is_answered(connection).await,
            Err(_) => false,
        };
        if is_answered {
            answered += 1;
            continue;
        }
        let end = match connection {
            Ok(connection) => connection.close_reason(),
            Err(error) => Some(error),
        };
        assert!(
            matches!(
                end,
                Some(
                    quinn::ConnectionError::ApplicationClosed(_)
                        | quinn::ConnectionError::ConnectionClosed(_)
                )
            ),
            "{end:?}"
        );
        ended += 1;
        assert!(ended < 5, "{end:?}");
    }
    answered
}
