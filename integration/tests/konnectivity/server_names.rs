//! Rules about TLS server names: what the first octets of a connection ask for. Hellos are those of real clients
//! (`fuzz/corpus/client_hello`); the destination sends back what reaches it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::echo;
use super::policy::{Policed, is_closed, policy};
use super::process::{PATIENCE, within};
use super::targets::Target;

const BY_NAME: &str = "{rules: [
  {name: hook, action: Allow, to: [{networks: [127.0.0.0/8]}], serverNames: [hook.shop.svc]},
  {name: rest, action: Deny, to: [{networks: [127.0.0.0/8]}]}]}";

fn hello(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/client_hello");
    fs::read(folder.join(name)).unwrap()
}

fn open(policed: &Policed, target: &Target) -> UnixStream {
    let stream = policed.pair.connect(&target.address()).1.unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The record of the close of the connection that was opened last.
fn closed(policed: &Policed, count: usize) -> Value {
    let records = policed.records(count);
    let record = records.last().unwrap().clone();
    assert_eq!(record["event"], "close", "{record}");
    record
}

#[test]
fn a_connection_passes_by_the_name_that_it_asks_for_and_its_neighbour_does_not() {
    let policed = Policed::start(BY_NAME);
    let target = Target::echo();
    let mut count = 0;
    for name in ["go", "openssl", "records"] {
        let mut stream = open(&policed, &target);
        let octets = hello(name);
        assert_eq!(echo(&mut stream, &octets), octets, "{name}");
        assert_eq!(echo(&mut stream, b"and what follows"), b"and what follows");
        drop(stream);
        count += 2;
        let record = closed(&policed, count);
        assert_eq!(record["serverName"], "hook.shop.svc");
        assert_eq!(record["rule"]["name"], "hook");
    }
    let opened = &policed.records(count)[0];
    assert_eq!(
        (&opened["awaits"], &opened["rule"]),
        (&"serverName".into(), &Value::Null)
    );
    // In pieces, the first of which say nothing.
    let mut stream = open(&policed, &target);
    let octets = hello("openssl");
    for piece in octets.chunks(100) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut read = vec![0; octets.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(read, octets);
    drop(stream);
    count += 2;
    assert_eq!(closed(&policed, count)["rule"]["name"], "hook");
    for (name, field, said) in [
        ("one-name", "serverName", "a.shop.svc"),
        ("openssl-no-name", "serverNameUnknown", "no server name"),
        ("go-encrypted", "serverNameUnknown", "encrypted ClientHello"),
        ("two-names", "serverNameUnknown", "ClientHello is malformed"),
        ("http", "serverNameUnknown", "not TLS"),
    ] {
        let mut stream = open(&policed, &target);
        stream.write_all(&hello(name)).unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).unwrap();
        assert!(read.is_empty(), "{name}: nothing reached the destination");
        count += 2;
        let record = closed(&policed, count);
        assert_eq!(record[field], said, "{record}");
        assert_eq!(record["endedBy"]["name"], "rest");
        assert_eq!(record["octetsSent"], 0);
        let cause = record["cause"].as_str().unwrap();
        let to = target.address();
        let expected =
            format!("egress denied by APIServerEgressPolicy/p rule 1 (rest): cluster -> {to} (server name");
        assert!(cause.starts_with(&expected), "{cause}");
    }
    let count = |action: &str, rule: &str| {
        let labels = format!(
            "selection=\"cluster\",policy=\"APIServerEgressPolicy/p\",rule=\"{rule}\",action=\"{action}\""
        );
        policed
            .pair
            .server_metric(&format!("egret_konnectivity_policy_decisions_total{{{labels}}}"))
    };
    assert_eq!(count("Deny", "1"), Some(5.0));
}

/// Nothing is waited for where no rule asks, and what speaks first is heard.
#[test]
fn where_a_rule_asks_nothing_passes_before_the_hello_and_where_none_asks_it_is_only_told() {
    let policed = Policed::start(BY_NAME);
    let target = Target::collect();
    let mut stream = open(&policed, &target);
    let octets = hello("openssl");
    stream.write_all(&octets[..100]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(target.collected(), b"", "the destination got nothing");
    let record = closed(&policed, 2);
    assert_eq!(
        record["serverNameUnknown"],
        "closed before the ClientHello was whole"
    );

    let begun = Instant::now();
    let mut stream = open(&policed, &target);
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    assert!(begun.elapsed() > Duration::from_secs(9), "it could have said it");
    assert_eq!(closed(&policed, 4)["serverNameUnknown"], "no ClientHello in time");

    let policed = Policed::start("{rules: [{name: all, action: Allow, to: [{networks: [127.0.0.0/8]}]}]}");
    let target = Target::echo();
    let mut stream = open(&policed, &target);
    assert_eq!(echo(&mut stream, &octets[..100]), &octets[..100]);
    assert_eq!(echo(&mut stream, &octets[100..]), &octets[100..]);
    drop(stream);
    let record = closed(&policed, 2);
    assert_eq!(
        (&record["serverName"], &record["rule"]["name"]),
        (&"hook.shop.svc".into(), &"all".into())
    );
}

#[test]
fn rules_that_change_are_about_the_names_of_open_connections() {
    let policed = Policed::start("{rules: [{name: all, action: Allow, to: [{networks: [127.0.0.0/8]}]}]}");
    let target = Target::echo();
    let mut named = open(&policed, &target);
    let mut other = open(&policed, &target);
    let mut silent = open(&policed, &target);
    for (stream, name) in [(&mut named, "openssl"), (&mut other, "one-name")] {
        let octets = hello(name);
        assert_eq!(echo(stream, &octets), octets);
    }
    fs::write(policed.file(), policy(BY_NAME)).unwrap();
    within("what has another name, or none, is closed", || {
        is_closed(&mut other) && is_closed(&mut silent)
    });
    named.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(echo(&mut named, b"goes on"), b"goes on");
    // One that waits is judged by the rules that are in force when it speaks.
    let mut waiting = open(&policed, &target);
    fs::write(
        policed.file(),
        policy(&BY_NAME.replace("hook.shop.svc", "a.shop.svc")),
    )
    .unwrap();
    within("they are in force", || is_closed(&mut named));
    waiting.write_all(&hello("openssl")).unwrap();
    within("it is refused", || is_closed(&mut waiting));
}

/// Limits are those of the rule that the name leads to.
#[test]
fn a_rule_by_server_name_limits_what_it_allows() {
    let rules = BY_NAME.replace("serverNames", "limits: {connections: 1, seconds: 2}, serverNames");
    let policed = Policed::start(&rules);
    let target = Target::echo();
    let octets = hello("openssl");
    let mut first = open(&policed, &target);
    assert_eq!(echo(&mut first, &octets), octets);
    let mut second = open(&policed, &target);
    second.write_all(&octets).unwrap();
    within("one is open", || is_closed(&mut second));
    let cause = closed(&policed, 3)["cause"].as_str().unwrap().to_owned();
    assert!(cause.contains("rule 0 (hook): 1 connections are open"), "{cause}");
    assert_eq!(first.read(&mut [0; 1]).unwrap(), 0, "its time is over");
}
