//! Many pods of few kinds: what rules say of them is found out once for each kind, although every pod differs from all
//! others in something that other rules ask for. Counted, not timed, so that it is the same on every machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use clap::Parser;
use egret_cli::list::connections;
use egret_cli::options::ManifestOptions;
use egret_cli::reach::Reach;
use egret_cli::reach::fold::Folding;
use egret_cli::reach::load::LoadedCluster;

const KINDS: usize = 3;

/// The options, as the program reads them.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    from: ManifestOptions,
}

/// Pods of three kinds; a policy lets each kind reach the next one, and one of another namespace has a rule for each pod.
fn manifests(pods: usize) -> String {
    let mut text = String::new();
    for number in 0..pods {
        write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}, namespace: shop, labels: {{app: a{}, own: o{number}}}}}\n\
             spec: {{nodeName: n}}\nstatus: {{phase: Running, podIP: 10.0.{}.{}}}\n",
            number % KINDS,
            number / 250,
            number % 250 + 1,
        )
        .unwrap();
    }
    for kind in 0..KINDS {
        write!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: np{kind}, namespace: shop}}\n\
             spec:\n  podSelector: {{matchLabels: {{app: a{kind}}}}}\n  policyTypes: [Egress]\n  egress:\n  - to:\n    \
             - podSelector: {{matchLabels: {{app: a{}}}}}\n",
            (kind + 1) % KINDS,
        )
        .unwrap();
    }
    text.push_str(WATCHER);
    for number in 0..pods {
        writeln!(
            text,
            "  - to: [{{namespaceSelector: {{}}, podSelector: {{matchLabels: {{own: o{number}}}}}}}]"
        )
        .unwrap();
    }
    text
}

const WATCHER: &str = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: watcher, namespace: other}\n\
    spec: {nodeName: n}\nstatus: {phase: Running, podIP: 10.1.0.1}\n\
    ---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: np, namespace: other}\n\
    spec:\n  podSelector: {}\n  policyTypes: [Egress]\n  egress:\n";

/// How often rules are gone through to list the connections of all pods, each for itself; and the connections.
fn judgements(pods: usize) -> (usize, usize) {
    let folder = std::env::temp_dir().join(format!("egret-many-pods-{}-{pods}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("all.yaml"), manifests(pods)).unwrap();
    let options = Options::parse_from(["egret", "--manifests", folder.to_str().unwrap()]);
    let reach = Reach::new(LoadedCluster::read(&options.from).unwrap());
    fs::remove_dir_all(&folder).unwrap();
    let units = reach.units(Folding::Pods, &BTreeSet::new());
    let rows = connections(&reach, &units);
    (reach.evaluation_count(), rows.len())
}

#[test]
fn what_is_said_of_many_pods_is_found_out_once_for_each_kind() {
    let (few, of_few) = judgements(30);
    let (many, of_many) = judgements(300);
    // The watcher's rules say of each pod something else.
    assert_eq!(many - few, 300 - 30);
    assert!(of_few < of_many, "{of_few} connections, then {of_many}");
}
