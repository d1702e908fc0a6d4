//! How long an answer is held while the rules of another pod change all the time.
//!
//! With daemons that have switches and `EGRET_SWITCH_OFF=records-meanwhile`, answers wait for rules.

#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(clippy::unwrap_used, reason = "a measurement that cannot be made says why")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use egret_integration::{Lookup, PodSpec, RecordType, Records, World};

const QUESTIONS: usize = 300;

const NAMES: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}
  egress:
  - {name: names, action: Accept, to: [{domainNames: ["*.example.test"]}]}
"#;

/// Other rules for the pod `other` with each number.
fn rules(number: usize) -> String {
    let port = 1000 + number % 1000;
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: other, namespace: default}}\n\
         spec:\n  podSelector: {{matchLabels: {{app: other}}}}\n  policyTypes: [Egress]\n  \
         egress: [{{ports: [{{protocol: TCP, port: {port}}}]}}]\n"
    )
}

fn main() {
    let mut world = World::new().unwrap();
    for pod in ["client", "other"] {
        world.add(PodSpec::new(pod)).unwrap();
    }
    world.manifests().write("names.yaml", NAMES).unwrap();
    let enforcer = world.start(world.enforcer("netfilter")).unwrap();
    let dnsd = world.start(world.dnsd()).unwrap();
    while dnsd.metrics().unwrap().sum("egret_dnsd_link_connected", &[]) < 1.0 {
        std::thread::yield_now();
    }
    let ask = |name: &str| {
        let records = Records::addresses(["203.0.113.7"]);
        world.upstream().set(name, records);
        let asked = Instant::now();
        let lookup = Lookup::of(name, RecordType::A).patience(Duration::from_secs(4));
        world.pod("client").look_up(&lookup).unwrap();
        asked.elapsed()
    };
    let still: Vec<_> = (0..QUESTIONS)
        .map(|number| ask(&format!("s{number}.example.test")))
        .collect();
    let is_over = AtomicBool::new(false);
    let (changing, changes) = std::thread::scope(|scope| {
        let change = scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                world.manifests().write("other.yaml", &rules(number)).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
            number
        });
        let times: Vec<_> = (0..QUESTIONS)
            .map(|number| ask(&format!("c{number}.example.test")))
            .collect();
        is_over.store(true, Ordering::Relaxed);
        (times, change.join().unwrap())
    });
    let batches = enforcer
        .metrics()
        .unwrap()
        .sum("egret_enforcer_batches_total", &[("touched", "rules")]);
    println!("{changes} changes, {batches} batches of rules");
    for (what, mut times) in [("rules stay", still), ("rules change", changing)] {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!(
            "{what}: p50 {:?}, p90 {:?}, p99 {:?}, max {:?}",
            at(50),
            at(90),
            at(99),
            at(100)
        );
    }
    drop((dnsd, enforcer));
    world.assert_nothing_left();
}
