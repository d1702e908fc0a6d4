//! The program as people and scripts meet it: options, exit status, output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

mod invocation;

use invocation::{Invocation, ProgramOutput, network_policy, pod};

fn egret(arguments: &[&str], input: &str) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(arguments);
    invocation::run(command, input)
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/examples/by-name")
        .join(name)
}

#[test]
fn help_names_every_option_and_the_exit_status() {
    let answered = egret(&["verdict", "--help"], "");
    assert_eq!((answered.status, answered.stderr.as_str()), (Some(0), ""));
    for word in [
        "--manifests <PATH>...",
        "--probes <FILE>",
        "--records <FILE>",
        "-o, --output <FORMAT>",
        "--as-stored",
        "Exit status:",
        "\"protocol\": \"TCP\"",
        "\"ttl\": 30",
    ] {
        assert!(answered.stdout.contains(word), "{word}: {}", answered.stdout);
    }
}

#[test]
fn bad_usage_ends_with_2() {
    for arguments in [
        &["verdict"][..],
        &["verdict", "--manifests", "x"],
        &["verdict", "--manifests", ".", "--probes", "-", "-o", "xml"],
        &["verdict", "--manifests", ".", "--probes", "-", "--no-such-option"],
        &["no-such-command"],
        &[],
    ] {
        let answered = egret(arguments, "");
        assert_eq!(answered.status, Some(2), "{arguments:?}");
        assert!(!answered.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn input_that_cannot_be_read_ends_with_2_and_is_named() {
    let good = example("");
    let good = good.to_str().unwrap();
    let probe = r#"{"id":"1","from":"shop/client","to":"shop/other","protocol":"TCP","port":80}"#;
    for (arguments, input, said) in [
        (
            ["/nowhere", "-", "/dev/null"],
            probe.to_owned(),
            "egret: /nowhere: No such file",
        ),
        (
            [good, "/nowhere", "/dev/null"],
            String::new(),
            "egret: /nowhere: No such file",
        ),
        (
            [good, "-", "/nowhere"],
            probe.to_owned(),
            "egret: /nowhere: No such file",
        ),
        (
            [good, "-", "/dev/null"],
            format!("{probe}\n{{\"id\":2}}\n"),
            "egret: -:2: field \"from\": missing",
        ),
        (
            [good, "-", "/dev/null"],
            probe.replace("80", "0"),
            "egret: -:1: field \"port\": 0 is no port; a number from 1 to 65535 is expected",
        ),
    ] {
        let [manifests, probes, records] = arguments;
        let answered = egret(
            &[
                "verdict",
                "--manifests",
                manifests,
                "--probes",
                probes,
                "--records",
                records,
            ],
            &input,
        );
        assert_eq!(answered.status, Some(2), "{arguments:?}");
        assert!(
            answered.stderr.starts_with(said),
            "{arguments:?}: {}",
            answered.stderr
        );
        assert_eq!(answered.stdout, "");
    }
}

#[test]
fn rows_come_in_the_order_of_the_probes_with_their_ids() {
    let probe = |id: &str| {
        format!(r#"{{"id":{id},"from":"192.0.2.1","to":"a/web","protocol":"SCTP","port":80}}"#)
            .replace("\"192.0.2.1\"", "{\"ip\":\"192.0.2.1\"}")
    };
    let rows = Invocation::of("order")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .probe(&probe("\"z\""))
        .probe("")
        .probe(&probe("7"))
        .probe(&probe("\"z\""))
        .rows();
    let ids: Vec<String> = rows.iter().map(|row| row["id"].to_string()).collect();
    assert_eq!(ids, ["\"z\"", "7", "\"z\""]);
}

#[test]
fn the_table_fits_100_columns() {
    let long = "a-very-long-name-of-a-namespace-that-somebody-thought-of/and-a-pod-with-a-name-that-is-even-longer-0000000000";
    let (namespace, _) = long.split_once('/').unwrap();
    let answered = Invocation::of("table")
        .manifest(&pod(long, "app: web", &[]))
        .manifest(&network_policy(
            &format!("{namespace}/a-policy-whose-name-explains-everything-about-it"),
            "{podSelector: {}, ingress: [{form: []}, {ports: [{port: 80}]}]}",
        ))
        .tcp(long, long, 80)
        .tcp("2001:db8:1111:2222:3333:4444:5555:6666", long, 80)
        .tcp("192.0.2.1", long, 80)
        .in_a_table()
        .answer();
    assert_eq!(answered.status, Some(2), "IPv6 has no way to a pod without it");
    for line in answered.stdout.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    for word in [
        "CONNECTION",
        "BECAUSE",
        "exempt from policies",
        "no common family",
        "EG0103",
        "3 probes: 2 allow, 0 deny, 1 error",
    ] {
        assert!(answered.stdout.contains(word), "{word}:\n{}", answered.stdout);
    }
    assert!(
        !answered.stdout.contains('\u{1b}'),
        "no colours where nobody looks"
    );
}

#[test]
fn whoever_stops_reading_is_not_shouted_at() {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "\"$0\" \"$@\" | head -n 1",
        env!("CARGO_BIN_EXE_egret"),
        "verdict",
        "-o",
        "json",
    ]);
    command
        .arg("--manifests")
        .arg(example(""))
        .arg("--probes")
        .arg("-");
    let probe = r#"{"id":"1","from":"shop/client","to":"shop/other","protocol":"TCP","port":80}"#;
    let answered = invocation::run(command, &format!("{probe}\n").repeat(2000));
    assert_eq!((answered.rows().len(), answered.stderr.as_str()), (1, ""));
}

/// Ten times what it takes on two slow cores with a debug build.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
#[allow(clippy::disallowed_methods, reason = "what is measured is time")]
fn ten_thousand_probes_over_a_thousand_manifests_take_no_time_worth_mentioning() {
    let mut asked = Invocation::of("speed");
    for number in 0..500 {
        let (namespace, app) = (number % 20, number % 50);
        let key = format!("ns{namespace}/pod{number}");
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: \"{app}\"}}}}, ingress: [{{from: [{{podSelector: {{}}}}, {{ipBlock: {{cidr: 192.0.{namespace}.0/24}}}}], ports: [{{port: 80}}]}}]}}"
        );
        let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
        asked = asked
            .file(
                &format!("pods/{number}.yaml"),
                &pod(&key, &format!("app: \"{app}\""), &[&address]),
            )
            .file(
                &format!("policies/{number}.yaml"),
                &network_policy(&format!("ns{namespace}/policy{number}"), &spec),
            );
    }
    let mut key = String::new();
    for number in 0..10_000 {
        let (from, to) = (number % 500, number * 7 % 500);
        key.clear();
        write!(key, "ns{}/pod{to}", to % 20).unwrap();
        asked = asked.tcp(&format!("ns{}/pod{from}", from % 20), &key, 80);
    }
    let start = Instant::now();
    let rows = asked.rows();
    let elapsed = start.elapsed();
    assert_eq!(rows.len(), 10_000);
    println!("10,000 probes, 1,000 manifests: {elapsed:?}");
    assert!(elapsed < PATIENCE, "{elapsed:?}");
}
