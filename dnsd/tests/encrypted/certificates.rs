//! Certificates are reloaded when their files change. Invalid ones are refused at the start, and change nothing later.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::quic;
use crate::server::{Authority, NAME, Server, eventually, free_port};
use crate::tls::{block, client, connect, is_answered};

/// The certificate that is shown over TLS.
async fn shown(authority: &Authority, port: u16) -> CertificateDer<'static> {
    let stream = connect(client(authority, None, &[]), port, NAME).await.unwrap();
    let certificates = stream.get_ref().1.peer_certificates().unwrap();
    certificates[0].clone().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn new_connections_get_a_reloaded_certificate_and_a_broken_file_changes_nothing() {
    let authority = Authority::new("reload");
    let ports = [free_port(), free_port()];
    let [over_tls, over_quic] = ports;
    let tls = format!("{}\n timeouts {{\n read 60s\n idle 60s\n }}", authority.tls());
    let corefile =
        block(&format!("tls://.:{over_tls}"), &tls) + &block(&format!("quic://.:{over_quic}"), &tls);
    let server = Server::start(&authority, &corefile, &[]);
    let first = shown(&authority, over_tls).await;
    let mut open = connect(client(&authority, None, &[]), over_tls, NAME)
        .await
        .unwrap();
    let endpoint = quic::endpoint();
    let connection = quic::connect(&endpoint, quic::client(&authority, None, "doq"), over_quic, NAME);
    let connection = connection.await.unwrap();
    // By itself.
    authority.issue("server", NAME);
    eventually(
        || server.log().matches("the certificate was read again").count() == 2,
        || server.log(),
    );
    let second = shown(&authority, over_tls).await;
    assert_ne!(second, first);
    assert!(is_answered(&mut open, 1).await, "who is connected stays so");
    assert!(quic::is_answered(&connection).await);
    let again = quic::connect(&endpoint, quic::client(&authority, None, "doq"), over_quic, NAME);
    let identity = again.await.unwrap().peer_identity().unwrap();
    let identity = identity.downcast::<Vec<CertificateDer<'static>>>().unwrap();
    assert_eq!(identity[0], second);
    // At once, when the configuration is read again.
    let key = fs::read_to_string(authority.folder.join("server.key")).unwrap();
    authority.put("server.key", "nothing\n");
    server.signal(Signal::SIGHUP);
    server.logs("the certificate stays as it is");
    assert!(server.log().contains("server.key"), "{}", server.log());
    assert_eq!(shown(&authority, over_tls).await, second);
    assert_eq!(
        server.metric("egret_dnsd_certificate_reload_failed_total", &[]),
        2.0,
        "of each of the two"
    );
    authority.put("server.key", &key);
    authority.issue("server", NAME);
    server.signal(Signal::SIGHUP);
    eventually(
        || server.log().matches("the certificate was read again").count() == 4,
        || server.log(),
    );
    assert_ne!(shown(&authority, over_tls).await, second);
    assert!(is_answered(&mut open, 2).await);
}

#[test]
fn an_unusable_certificate_is_refused_with_its_position() {
    let authority = Authority::new("wrong");
    let other = Authority::new("wrong-other");
    authority.put("empty.pem", "");
    let (pem, key) = (authority.file("server.pem"), authority.file("server.key"));
    let (empty, other_key) = (authority.file("empty.pem"), other.file("server.key"));
    for (words, wanted) in [
        (format!("/nonexistent.pem {key}"), "/nonexistent.pem: ".to_owned()),
        (
            format!("{empty} {key}"),
            format!("{empty}: there is no certificate; want certificates in PEM"),
        ),
        (
            format!("{pem} /nonexistent.key"),
            "want a private key in PEM".to_owned(),
        ),
        (
            format!("{pem} {other_key}"),
            format!("{other_key}: it is not the key of the certificate in {pem}; want that key in PEM"),
        ),
        (
            format!("{pem} {key} /nonexistent.ca {{\n client_auth require_and_verify\n }}"),
            "/nonexistent.ca: ".to_owned(),
        ),
    ] {
        let corefile = block(&format!("tls://.:{}", free_port()), &format!("tls {words}"));
        let mut server = Server::launch(&authority.folder, &corefile, &[]);
        assert!(!server.end(), "{words}");
        server.logs(&wanted);
        assert!(server.log().contains("Corefile:3: tls: "), "{}", server.log());
        // What it means is said all the same: the files may be elsewhere.
        let path = authority.file("Corefile");
        let output = Command::new(env!("CARGO_BIN_EXE_dnsd"))
            .args(["check", &path])
            .output()
            .unwrap();
        let (said, warned) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(
            output.status.success() && said.contains(" over tls on port "),
            "{said}"
        );
        assert!(said.contains("\n  tls          "), "{said}");
        assert!(
            warned.contains("Corefile:3: tls: ") && warned.contains(&wanted),
            "{warned}"
        );
    }
}

#[test]
fn tls_in_yaml_and_in_a_converted_corefile_are_equal() {
    let authority = Authority::new("yaml");
    let corefile = authority.folder.join("Corefile");
    let tls = format!("{} {{\n client_auth verify_if_given\n }}", authority.tls());
    fs::write(&corefile, block("https://.", &tls)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dnsd"))
        .arg("convert")
        .arg(&corefile)
        .output()
        .unwrap();
    let yaml = String::from_utf8(output.stdout).unwrap();
    for line in [
        "scheme: https",
        "port: 443",
        "tls:",
        "certificate: ",
        "clientAuth: verify_if_given",
    ] {
        assert!(yaml.contains(line), "{line}: {yaml}");
    }
    let check = |text: &str| {
        authority.put("dnsd.yaml", text);
        let file = authority.file("dnsd.yaml");
        let output = Command::new(env!("CARGO_BIN_EXE_dnsd"))
            .args(["check", &file])
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(check(&yaml), (true, String::new()));
    for (text, wanted) in [
        (
            "servers:\n- zones: [.]\n  scheme: quic\n",
            "servers[0].tls: there is none, and the scheme is quic; accepted: certificate and key, each a file in PEM",
        ),
        (
            "servers:\n- zones: [.]\n  tls: {certificate: a, key: b}\n",
            "servers[0].tls: the scheme is dns; accepted: it where the scheme is tls, https or quic",
        ),
        (
            "servers:\n- zones: [.]\n  scheme: tls\n  port: 853\n  tls: {certificate: a}\n",
            "line 5",
        ),
        (
            "servers:\n- zones: [a]\n  scheme: tls\n  tls: {certificate: a, key: b}\n- zones: [b]\n  scheme: tls\n  tls: {certificate: a, key: c}\n",
            "servers[1].tls: servers[0] has another on the same port and address; accepted: the same in all blocks of a port and an address",
        ),
    ] {
        let (is_taken, said) = check(text);
        assert!(!is_taken && said.contains(wanted), "{text}: {said}");
    }
}
