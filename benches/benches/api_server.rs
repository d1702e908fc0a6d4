//! Promise S-9: what a connection of the API server costs where there are 10,000 rules about it.

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use egret_benches::START;
use egret_policies::api::manifest;
use egret_policies::api_server::{ApiServerEgress, Dial};
use egret_policies::lower::lower;
use egret_policies::model::api_server::{ApiServerPolicy, Selection, ServerName};

const POLICIES: usize = 100;
const RULES: usize = 100;

/// Each rule has networks of its own; the last rule of the last policy denies the rest. Each policy audits a rule.
fn policies() -> Vec<ApiServerPolicy> {
    let mut text = String::new();
    for policy in 0..POLICIES {
        let metadata = format!("metadata: {{name: p{policy:03}}}");
        writeln!(
            text,
            "---\napiVersion: policy.egret.dev/v1alpha1\nkind: APIServerEgressPolicy\n{metadata}\nspec:\n  rules:"
        )
        .expect("a text takes what is written");
        for rule in 0..RULES {
            let action = if rule == 7 { "Audit" } else { "Allow" };
            let line = format!(
                "  - {{action: {action}, to: [{{networks: [10.{policy}.{rule}.0/24, 172.16.{policy}.{rule}/32]}}], \
                 protocols: [{{tcp: {{destinationPort: {{number: 443}}}}}}]}}"
            );
            writeln!(text, "{line}").expect("a text takes what is written");
        }
    }
    text.push_str("  - {action: Deny, to: [{networks: [0.0.0.0/0]}]}\n");
    let manifest = manifest::read(&text, "policies.yaml");
    assert!(manifest.is_whole());
    let lowered = manifest.documents.iter().map(|document| lower(&document.object));
    lowered.filter_map(|lowered| lowered.api_server).collect()
}

fn dials(criterion: &mut Criterion) {
    let mut egress = ApiServerEgress::new(&policies(), [], START);
    for (what, address) in [
        ("of the first rule", "10.0.0.1"),
        ("of the last rule that allows", "10.99.99.1"),
        ("denied behind all", "192.0.2.1"),
    ] {
        let dial = Dial {
            selection: Selection::Cluster,
            name: None,
            address: address.parse().expect("it is an address"),
            port: 443,
        };
        criterion.bench_function(&format!("api_server/a dial {what}, 10000 rules"), |bencher| {
            bencher.iter(|| black_box(egress.decide(dial, &ServerName::Unknown, START)));
        });
    }
}

criterion_group!(benches, dials);
criterion_main!(benches);
