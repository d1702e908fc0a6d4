//! Corefiles: what is made of them, and what is said of those that cannot be taken.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io;
use std::path::Path;
use std::time::Duration;

use egret_dnsd::corefile::{Error, Warning, expand, read};
use egret_dnsd::plan::{Plan, UpstreamHost};

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
        "ROUND" => Some("{$ROUND}".to_owned()),
        _other => None,
    }
}

fn reading(text: &str) -> Result<(Plan, Vec<Warning>), Vec<Error>> {
    read(text, "/etc/coredns/Corefile", &env, &load, 53)
}

fn plan(text: &str) -> Plan {
    match reading(text) {
        Ok((plan, _)) => plan,
        Err(errors) => panic!("{errors:?} in {text}"),
    }
}

/// Where something was written is not what it means.
fn without_places(mut plan: Plan) -> Plan {
    for block in &mut plan.blocks {
        block.origin.clear();
        for forward in &mut block.forward {
            forward.origin.clear();
        }
        for template in &mut block.template {
            template.origin.clear();
        }
    }
    plan
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
    let written = expand(&stock::corefile(), "Corefile", &env, &load).unwrap();
    assert_eq!(without_places(self::plan(&written)), without_places(plan));
}
