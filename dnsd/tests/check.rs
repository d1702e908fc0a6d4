//! `dnsd check` and `dnsd convert` as people run them, and the server blocks of the YAML file.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::process::{Command, Output};

use egret_dnsd::config::RawConfig;
use egret_dnsd::config::model::Plan;
use serde_json::Value;

#[path = "corefile/stock.rs"]
mod stock;

/// A folder that goes when the test does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("egret-check-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn with(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn dnsd(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_dnsd"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |octets| String::from_utf8(octets).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn check_prints_each_block_in_the_order_of_its_chain() {
    let folder = Folder::new("table");
    let file = folder.with("Corefile", &stock::corefile());
    let (code, said, warnings) = dnsd(&["check", &file]);
    assert_eq!((code, warnings.as_str()), (Some(0), ""), "{said}");
    let expected = format!(
        "{file}: Corefile, 4 server blocks\n\n\
         cluster.local. on port 53 of 169.254.20.10, 10.96.0.10 ({file}:2)\n  \
           prometheus   on\n  \
           errors       as by default\n  \
           cache        denial.maxTtl=5s success.maxTtl=30s\n  \
           loop         on\n  \
           forward      forceTcp to=10.96.104.4:53\n"
    );
    assert!(said.starts_with(&expected), "{said}\n{expected}");
    assert!(
        said.contains("\nhealth       address=169.254.20.10:8080\n"),
        "{said}"
    );
}

#[test]
fn errors_have_their_position_and_exit_code_64() {
    let folder = Folder::new("refused");
    let file = folder.with("Corefile", ". {\n  cache 0\n  ready\n}\n");
    let (code, said, errors) = dnsd(&["check", &file]);
    assert_eq!((code, said.as_str()), (Some(64), ""));
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines[0].starts_with(&format!("dnsd: {file}:2:9: cache TTL: \"0\"; accepted: ")),
        "{errors}"
    );
    assert!(
        lines[1].starts_with(&format!("dnsd: {file}:3:3: ready: ")),
        "{errors}"
    );

    let (code, said, _) = dnsd(&["check", "-o", "json", &file]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, Some(64));
    assert_eq!(json["errors"][1]["line"], 3);
    assert_eq!(dnsd(&["check", "/nonexistent/Corefile"]).0, Some(64));
    assert_eq!(dnsd(&["convert", &file]).0, Some(64));
}

#[test]
fn warnings_are_printed_beside_the_plan() {
    let folder = Folder::new("warned");
    let file = folder.with("Corefile", ". {\n  trace\n  whoami\n}\n");
    let warning = format!("{file}:2:3: trace does nothing: dnsd sends no spans to a tracing service");
    for command in ["check", "convert"] {
        let (code, _, warnings) = dnsd(&[command, &file]);
        assert_eq!(
            (code, warnings),
            (Some(0), format!("warning: {warning}\n")),
            "{command}"
        );
    }
    let (_, said, _) = dnsd(&["check", "-o", "json", &file]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["warnings"], serde_json::json!([warning]));
    assert_eq!(json["plan"]["servers"][0]["whoami"], true);
}

#[test]
fn imports_and_snippets_are_expanded() {
    let folder = Folder::new("expanded");
    folder.with("more.conf", "cache 30\n");
    folder.with("1.override", "debug");
    folder.with("2.override", "whoami");
    let text = "(s) {\n errors\n}\n. {\n import s\n import more.conf\n import *.override\n}\n";
    let file = folder.with("text", text);
    let (code, said, _) = dnsd(&["check", "-o", "corefile", &file]);
    assert_eq!(code, Some(0));
    assert_eq!(said, ". {\n    errors\n    cache 30\n    debug\n    whoami\n}\n");
}

#[test]
fn a_converted_corefile_has_the_same_plan() {
    let folder = Folder::new("converted");
    let corefile = folder.with("Corefile", &stock::corefile());
    let (code, yaml, _) = dnsd(&["convert", &corefile]);
    assert_eq!(code, Some(0));
    let yaml = folder.with("dnsd.yaml", &yaml);
    let plans = [&corefile, &yaml].map(|file| {
        let (code, said, errors) = dnsd(&["check", "-o", "json", file]);
        assert_eq!(code, Some(0), "{errors}");
        let found: Value = serde_json::from_str(&said).unwrap();
        found["plan"].clone()
    });
    assert_eq!(plans[0], plans[1]);
    let text = std::fs::read_to_string(&yaml).unwrap();
    assert!(
        text.len() < 2_000 && text.starts_with("servers:\n- zones:"),
        "{text}"
    );
}

#[test]
fn the_format_of_a_file_is_detected() {
    let folder = Folder::new("format");
    for (name, text, format) in [
        ("dnsd.conf", ".:53 {\n whoami\n}\n", "Corefile"),
        ("dnsd.conf", "servers: [{zones: [.], whoami: true}]\n", "YAML"),
        ("dnsd.conf", "{\"servers\": [\n{\n\"zones\": [\".\"]}]}\n", "YAML"),
        ("Corefile.base", ".", "Corefile"),
        (
            "a.yaml",
            "listen: [\"127.0.0.1:53\"]\nupstreams: [\"192.0.2.1:53\"]\n",
            "YAML",
        ),
    ] {
        let file = folder.with(name, text);
        let (code, said, errors) = dnsd(&["check", "-o", "json", &file]);
        assert_eq!(code, Some(0), "{text}: {errors}");
        let found: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(found["format"], format, "{text}");
    }
    let file = folder.with("a.yaml", ".");
    assert_eq!(dnsd(&["check", "--corefile", &file]).0, Some(0));
    let (_, said, _) = dnsd(&["check", "--dns-port", "5353", "--corefile", &file]);
    assert!(said.contains(". on port 5353 of every address"), "{said}");
}

fn plan(yaml: &str) -> Result<Plan, String> {
    let written: RawConfig = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    written
        .validate()
        .map(|config| config.plan)
        .map_err(|error| error.to_string())
}

#[test]
fn server_blocks_in_yaml_have_the_defaults_of_coredns() {
    let plan = plan(
        "servers:\n- zones: [.]\n  cache: {denial: {entries: 10}}\n  rewrite:\n  - rule: {name: {of: {exact: A}, to: b}}\n  \
         - rule: {name: {of: {prefix: A}, to: b}}\n  forward: [{to: [tcp://192.0.2.1]}]\nreload: {interval: 10s}\n",
    )
    .unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    for (pointer, value) in [
        ("/servers/0/port", serde_json::json!(53)),
        ("/servers/0/cache/denial/maxTtl", serde_json::json!("30m")),
        ("/servers/0/cache/success/maxTtl", serde_json::json!("1h")),
        ("/servers/0/rewrite/0/rule/name/of/exact", serde_json::json!("a.")),
        ("/servers/0/rewrite/0/rule/name/to", serde_json::json!("b.")),
        ("/servers/0/rewrite/1/rule/name/of/prefix", serde_json::json!("a")),
        (
            "/servers/0/forward/0/to",
            serde_json::json!(["tcp://192.0.2.1:53"]),
        ),
        ("/reload/jitter", serde_json::json!("5s")),
    ] {
        assert_eq!(json.pointer(pointer), Some(&value), "{pointer}");
    }
    assert_eq!(plan.blocks[0].forward[0].origin, "servers[0].forward[0]");
}

#[test]
fn server_blocks_in_yaml_are_refused_with_the_field() {
    let mut wrong = Vec::new();
    for (yaml, said) in [
        ("servers: []", "servers: there is none"),
        ("servers: [{}]", "servers[0].zones: there is none"),
        ("servers: [{zones: [.], cahce: {}}]", "cahce"),
        ("servers: [{zones: [a..b]}]", "\"a..b\" is not a domain name"),
        ("servers: [{zones: [.], port: 0}]", "servers[0].port: 0"),
        (
            "servers: [{zones: [.], bufsize: 511}]",
            "511 is not accepted; 512 to 4096 are",
        ),
        (
            "servers: [{zones: [.], timeouts: {read: 1ms}}]",
            "1ms is not accepted; 1s to 24h is",
        ),
        (
            "servers: [{zones: [.], timeouts: {queriesPerConnection: 0}}]",
            "servers[0].timeouts.queriesPerConnection",
        ),
        (
            "servers: [{zones: [.], bind: [{to: []}]}]",
            "servers[0].bind[0].to",
        ),
        (
            "servers: [{zones: [.], bind: [{to: [a/b]}]}]",
            "\"a/b\" is neither an address nor the name of an interface",
        ),
        (
            "servers: [{zones: [.], cache: {servfail: 6m}}]",
            "6m is not accepted; 0s to 5m is",
        ),
        (
            "servers: [{zones: [.], cache: {success: {maxTtl: 1500ms}}}]",
            "1500ms is not accepted",
        ),
        ("servers: [{zones: [.], cache: {success: {maxTtl: 5}}}]", "maxTtl"),
        (
            "servers: [{zones: [.], cache: {prefetch: {amount: 0}}}]",
            "servers[0].cache.prefetch.amount",
        ),
        (
            "servers: [{zones: [.], cache: {prefetch: {percentage: 9}}}]",
            "9 is not accepted; 10 to 90 are",
        ),
        (
            "servers: [{zones: [.], log: [{classes: []}]}]",
            "servers[0].log[0]",
        ),
        ("servers: [{zones: [.], log: [{classes: [some]}]}]", "some"),
        (
            "servers: [{zones: [.], dns64: {prefix: 192.0.2.0/24}}]",
            "servers[0].dns64.prefix",
        ),
        (
            "servers: [{zones: [.], hosts: {ttl: 0s}}]",
            "0s is not accepted; 1s to 65535s",
        ),
        (
            "servers: [{zones: [.], hosts: {fallthroughUnsupported: true}}]",
            "servers[0].hosts.fallthroughUnsupported",
        ),
        (
            "servers: [{zones: [.], template: [{type: AA}]}]",
            "\"AA\" is not accepted",
        ),
        ("servers: [{zones: [.], template: [{class: IN}]}]", "type"),
        (
            "servers: [{zones: [.], template: [{type: A, answer: ['{{ .Name']}]}]",
            "servers[0].template[0]",
        ),
        (
            "servers: [{zones: [.], rewrite: [{rule: {name: {of: {regex: '('}, to: a}}}]}]",
            "\"(\" is not a regular expression",
        ),
        (
            "servers: [{zones: [.], rewrite: [{rule: {name: {of: {regex: a}, to: '{1}{2}'}}}]}]",
            "servers[0].rewrite[0].rule.name.to",
        ),
        (
            "servers: [{zones: [.], rewrite: [{rule: {ttl: {of: {exact: a}, to: {atLeast: 2, atMost: 1}}}}]}]",
            "servers[0].rewrite[0]",
        ),
        (
            "servers: [{zones: [.], forward: [{}]}]",
            "servers[0].forward[0]: the number of upstreams",
        ),
        (
            "servers: [{zones: [.], forward: [{to: [192.0.2.1.5]}]}]",
            "cannot be asked",
        ),
        (
            "servers: [{zones: [.], forward: [{to: [192.0.2.1], failover: [NOERROR]}]}]",
            "servers[0].forward[0]: failover",
        ),
        (
            "servers: [{zones: [.], forward: [{to: [192.0.2.1], readTimeout: 0s}]}]",
            "servers[0].forward[0]: no time to read",
        ),
        (
            "servers: [{zones: [.], forward: [{to: [192.0.2.1], policy: best}]}]",
            "best",
        ),
        (
            "servers: [{zones: [a, a]}]",
            "servers[0].zones[1]: a. is there twice",
        ),
        (
            "servers: [{zones: [a]}, {zones: [a]}]",
            "servers[1].zones[0]: a. is served by servers[0]",
        ),
        (
            "servers: [{zones: [a]}]\nlisten: ['127.0.0.1:53']",
            "listen is said by the server blocks",
        ),
        (
            "servers: [{zones: [a]}]\nreload: {interval: 1s}",
            "reload.interval",
        ),
        ("servers: [{zones: [a]}]\nreload: {jitter: 1ms}", "reload.jitter"),
        (
            "listen: ['127.0.0.1:53']\nupstreams: ['192.0.2.1:53']\nhealth: [{}]",
            "health: there are no server blocks",
        ),
    ] {
        match plan(yaml) {
            Err(error) if error.contains(said) => {}
            found => wrong.push(format!("{yaml}: {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Escape sequences, C0, DEL, C1, bidi, zero width, separators, BOM.
const HOSTILE: &str = "a\u{1b}[31m\u{7}\u{7f}\u{9b}2J\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}z";

fn is_obeyed(char: char) -> bool {
    (char.is_control() && char != '\n' && char != '\t')
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// What check and convert print about Corefiles and YAML with a text in every place, good and bad.
fn said_about(text: &str) -> Vec<(String, String)> {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("hostile-{}", text.escape_unicode().count()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = [
        (
            "good",
            format!(
                "# {text}\n. {{\n    template ANY ANY {{\n        answer \"x.example. 60 IN TXT {text}\"\n    }}\n    log . \"{{remote}} {text}\"\n    errors {{\n        consolidate 5m \"{text}\"\n    }}\n    forward . 192.0.2.1\n}}\n"
            ),
        ),
        ("zone", format!("{text}.example {{\n    whoami\n}}\n")),
        ("plugin", format!(". {{\n    {text} {text}\n}}\n")),
        (
            "argument",
            format!(". {{\n    forward . {text}\n    cache {text}\n}}\n"),
        ),
        (
            "snippet",
            format!("({text}) {{\n    whoami\n}}\n. {{\n    import {text}\n    import no{text}\n}}\n"),
        ),
        (
            "yaml",
            format!(
                "servers: [{{zones: [\"{}\"]}}]\n",
                text.escape_unicode().to_string().replace(['{', '}'], "")
            ),
        ),
    ];
    let mut said = Vec::new();
    for (name, content) in files {
        let file = folder.join(format!("{name}-{text}"));
        std::fs::write(&file, content).unwrap();
        let file = file.to_str().unwrap();
        for arguments in [
            &["check", file][..],
            &["check", "--corefile", file],
            &["check", "--corefile", file, "-o", "json"],
            &["check", "--corefile", file, "-o", "corefile"],
            &["check", file, "-o", text],
            &["convert", file],
            &["--config", file],
            &["-conf", file, "-localip", text],
        ] {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_dnsd"))
                .args(arguments)
                .output()
                .unwrap();
            said.push((
                format!("{arguments:?}"),
                String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
            ));
        }
    }
    said
}

#[test]
fn control_characters_of_a_file_are_escaped() {
    let said = said_about(HOSTILE);
    for (command, text) in &said {
        assert_eq!(
            text.lines().find(|line| line.contains(is_obeyed)),
            None,
            "{command}"
        );
    }
    let told = said.iter().filter(|(_, text)| text.contains("202e")).count();
    assert!(told > said.len() / 3, "{told} of {}", said.len());
    let ordinary = said_about("aü日本z");
    let told = ordinary
        .iter()
        .filter(|(_, text)| text.contains("aü日本z"))
        .count();
    assert!(told > ordinary.len() / 3, "{told} of {}", ordinary.len());
}
