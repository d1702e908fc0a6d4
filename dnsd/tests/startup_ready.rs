//! A dnsd that says that it is ready has everything in place for the time after its end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::IpAddr;
use std::time::Duration;

use egret_integration::{Family, Lookup, RecordType, Records, World, node, upstream, within};

const NAME: &str = "api.example.test";
/// How long pods may be without DNS.
const GAP: Duration = Duration::from_secs(2);
/// How long one query may take.
const QUICK: Duration = Duration::from_millis(300);
const STARTS: usize = 2;

#[test]
fn pods_reach_the_cluster_dns_after_a_dnsd_that_is_killed_as_soon_as_it_is_ready() {
    let Some(world) = World::or_skip() else { return };
    let world = world.with_pod("client").unwrap();
    let records = Records::addresses(["203.0.113.7"]).ttl(0);
    world.upstream().set(NAME, records);
    // Without one dnsd waits for it, and is ready later.
    let _enforcer = world.start(world.enforcer("netfilter")).unwrap();
    let servers = [
        format!("{}:{}", upstream::ADDRESS, upstream::PORT),
        format!("[{}]:{}", upstream::ADDRESS_V6, upstream::PORT),
    ];
    let spec = servers
        .into_iter()
        .fold(world.dnsd().with(["--rules"]), |spec, server| {
            spec.with(["--fallback-server".to_owned(), server])
        });
    for start in 0..STARTS {
        assert!(!has_rules(&world), "start {start} has everything to write");
        let mut dnsd = world.start(spec.clone()).unwrap();
        dnsd.kill().unwrap();
        within(GAP, "the cluster DNS answers", || {
            [IpAddr::from(node::DNS), node::DNS_V6.into()]
                .into_iter()
                .all(|server| {
                    let lookup = Lookup::of(NAME, RecordType::A).patience(QUICK).at(server);
                    [lookup.clone(), lookup.over_tcp()]
                        .iter()
                        .all(|way| world.pod("client").look_up(way).is_ok())
                })
        });
        dnsd.restart().unwrap();
        dnsd.wait_until_ready().unwrap();
        dnsd.terminate().unwrap();
    }
}

fn has_rules(world: &World) -> bool {
    [Family::V4, Family::V6].into_iter().any(|family| {
        let rules = world.node().iptables_save(family).unwrap();
        rules.contains("NodeLocal")
    })
}
