//! Corefiles: their plans, and the errors of invalid ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io;
use std::path::Path;
use std::time::Duration;

use egret_dnsd::config::corefile::{Error, Warning, read};
use egret_dnsd::config::model::{Plan, UpstreamHost};
use proptest::prelude::*;
use serde_json::{Value, json};

#[path = "corefile/accepted.rs"]
mod accepted;
#[path = "corefile/refused.rs"]
mod refused;
#[path = "corefile/stock.rs"]
mod stock;

/// Files that are there in these tests.
fn load(path: &Path) -> io::Result<String> {
    match path.to_str().unwrap() {
        "/etc/coredns/more.conf" => Ok("cache 30\nerrors".to_owned()),
        "/etc/coredns/other/zones.conf" => Ok("a.example {\n  import ../more.conf\n}".to_owned()),
        "/etc/coredns/other/../more.conf" => Ok("whoami".to_owned()),
        "/etc/coredns/broken.conf" => {
            Ok("cache 30\n\n  forward . 192.0.2.1 {\n    force_tcp x\n  }".to_owned())
        }
        "/etc/coredns/self.conf" => Ok("import self.conf".to_owned()),
        "/etc/coredns/*.override" => Ok("/etc/coredns/1.override\n/etc/coredns/2.override".to_owned()),
        "/etc/coredns/1.override" => Ok("log".to_owned()),
        "/etc/coredns/2.override" => Ok("debug".to_owned()),
        "/etc/coredns/*.none" => Ok(String::new()),
        _other => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

fn env(name: &str) -> Option<String> {
    match name {
        "UPSTREAM" => Some("192.0.2.53".to_owned()),
        "WHAT" => Some("cache".to_owned()),
        "TWO" => Some("a.example b.example".to_owned()),
        "OTHER" => Some("{$UPSTREAM}".to_owned()),
        "ROUND" => Some("{$ROUND}".to_owned()),
        _other => None,
    }
}

fn reading(text: &str) -> Result<(Plan, Vec<Warning>), Vec<Error>> {
    read(text, "/etc/coredns/Corefile", &env, &load, 53)
}

/// The plan as JSON, and its warnings.
fn understood(text: &str) -> (Value, Vec<String>) {
    match reading(text) {
        Ok((plan, warnings)) => (
            serde_json::to_value(&plan).unwrap(),
            warnings.iter().map(ToString::to_string).collect(),
        ),
        Err(errors) => panic!("{errors:?} in {text}"),
    }
}

fn errors(text: &str) -> Vec<String> {
    match reading(text) {
        Ok(found) => vec![format!("{found:?} from {text}")],
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn the_stock_corefile_of_node_local_dns_is_four_blocks() {
    let (plan, warnings) = reading(&stock::corefile()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let zones: Vec<String> = plan
        .blocks
        .iter()
        .map(|block| block.zones[0].to_string())
        .collect();
    assert_eq!(zones, ["cluster.local.", "in-addr.arpa.", "ip6.arpa.", "."]);
    for block in &plan.blocks {
        assert_eq!((block.port, block.bind.len(), block.forward.len()), (53, 1, 1));
        assert!(block.detects_loop && block.prometheus && block.errors.is_some());
    }
    let cluster = &plan.blocks[0];
    let cache = cluster.cache.as_ref().unwrap();
    assert_eq!(
        (cache.success.entries, cache.denial.max_ttl.as_secs()),
        (9_984, 5)
    );
    assert_eq!(cache.success.max_ttl.as_secs(), 30);
    assert!(cluster.forward[0].force_tcp && !plan.blocks[3].forward[0].force_tcp);
    assert_eq!(
        plan.blocks[3].forward[0].to[0].host,
        UpstreamHost::ResolvConf("/etc/resolv.conf".into())
    );
    assert_eq!(plan.reload.unwrap().interval, Duration::from_secs(30));
    assert_eq!(plan.health[0].address, "169.254.20.10:8080".parse().unwrap());
    assert_eq!(plan.prometheus, ["[::]:9253".parse().unwrap()]);
}

#[test]
fn directives_mean_what_they_mean_in_coredns() {
    let mut wrong = Vec::new();
    for (directive, pointer, value) in accepted::in_a_block() {
        let (plan, warnings) = understood(&format!(".:53 {{\n{directive}\n}}\n"));
        let found = plan["servers"][0].pointer(pointer);
        if found != Some(&value) || !warnings.is_empty() {
            wrong.push(format!("{directive}: {pointer} is {found:?}, {warnings:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn whole_corefiles_mean_what_they_mean_in_coredns() {
    for (text, pointer, value) in accepted::texts() {
        let (plan, _) = understood(text);
        assert_eq!(
            plan.pointer(pointer),
            Some(&value),
            "{text}: {pointer} of {plan:#}"
        );
    }
}

#[test]
fn options_without_effect_are_warned_of_with_their_position() {
    let mut wrong = Vec::new();
    for (text, warning) in accepted::warned_of() {
        let (_, warnings) = understood(text);
        if warnings != [format!("/etc/coredns/{warning}")] {
            wrong.push(warnings);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn refusals_have_their_position_and_what_is_accepted() {
    let mut wrong = Vec::new();
    for (text, error) in refused::texts() {
        let found = errors(text);
        if found != [format!("/etc/coredns/{error}")] {
            wrong.push((error, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn values_out_of_their_ranges_are_refused() {
    for directive in refused::in_a_block() {
        let found = errors(&format!(".:53 {{\n{directive}\n}}\n"));
        assert!(
            found.len() == 1 && found[0].contains("; accepted: "),
            "{directive}: {found:?}"
        );
    }
}

#[test]
fn all_errors_of_directives_are_reported_at_once() {
    let found = errors(". {\n  cache 0\n  ready\n  forward .\n}\na. {\n  bufsize 1\n}\n");
    let places: Vec<&str> = found
        .iter()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        places,
        ["2:9", "3:3", "4:3", "7:11"].map(|place| format!("/etc/coredns/Corefile:{place}"))
    );
}

#[test]
fn a_zone_with_another_port_is_a_block_of_its_own() {
    let (plan, _) = understood("a.example b.example:5353 c.example {\n  bind 192.0.2.1\n}\n");
    let blocks = plan["servers"].as_array().unwrap();
    let served: Vec<(&Value, &Value)> = blocks
        .iter()
        .map(|block| (&block["port"], &block["zones"]))
        .collect();
    assert_eq!(
        served,
        [
            (&json!(53), &json!(["a.example.", "c.example."])),
            (&json!(5353), &json!(["b.example."])),
        ]
    );
}

/// The function of `make fuzz`: what is accepted means the same with everything in its place, and as YAML.
#[path = "../../fuzz/src/corefile.rs"]
#[allow(unreachable_pub, dead_code, reason = "all of it is used where it is fuzzed")]
mod round_trip;

#[test]
fn each_accepted_line_means_the_same_as_yaml() {
    for (directive, _, _) in accepted::in_a_block() {
        round_trip::check(format!(".:53 {{\n{directive}\n}}\n").as_bytes());
    }
    for (text, _, _) in accepted::texts() {
        round_trip::check(text.as_bytes());
    }
}

/// As often as a block may have it.
fn some_directives() -> impl Strategy<Value = String> {
    let all: Vec<&str> = accepted::in_a_block()
        .into_iter()
        .map(|(text, _, _)| text)
        .collect();
    prop::collection::vec(prop::sample::select(all), 0..12).prop_map(|mut directives| {
        let once = ["cache", "errors", "hosts", "loop", "prometheus", "{", "import"];
        let mut seen: Vec<&str> = Vec::new();
        directives.retain(|directive| {
            let name = once.into_iter().find(|name| directive.starts_with(name));
            let is_new = name.is_none_or(|name| !seen.contains(&name) && name != "{" && name != "import");
            seen.extend(name);
            is_new
        });
        directives.join("\n")
    })
}

proptest! {
    #[test]
    fn any_plan_means_the_same_as_yaml(blocks in prop::collection::vec(some_directives(), 1..4)) {
        let mut text = String::new();
        for (index, directives) in blocks.iter().enumerate() {
            text.push_str(&format!("zone{index}.example 10.{}.0.0/15 {{\n{directives}\n}}\n", index * 2));
        }
        prop_assert!(reading(&text).is_ok(), "{:?} in {text}", reading(&text));
        round_trip::check(text.as_bytes());
    }
}
