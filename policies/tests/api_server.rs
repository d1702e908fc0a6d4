//! What the API server may connect to by its network proxy: APIServerEgressPolicy as it is written, in a cluster of two
//! nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

use egret_policies::api::manifest::read;
use egret_policies::api_server::{ApiServerEgress, Destination, Dial, DialVerdict, EarlyVerdict};
use egret_policies::lower::lower;
use egret_policies::model::api_server::{ApiServerPolicy, Selection, ServerName};
use egret_policies::model::cluster::Entity;
use egret_policies::simulator::Verdict::{self, Allow, Deny};
use egret_shared::time::Timestamp;
use proptest::prelude::*;

const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: worker, labels: {role: worker}}
spec: {podCIDRs: [10.0.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: gpu, labels: {role: gpu}}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: v1
kind: Service
metadata: {name: hook, namespace: shop}
spec: {clusterIP: 10.96.0.7, ports: [{port: 443}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: tools}
spec: {clusterIP: 10.96.0.8, ports: [{port: 443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: worker, containers: [{name: c}]}
status: {phase: Running, podIP: 10.0.0.5, podIPs: [{ip: 10.0.0.5}]}
";

const NOW: Timestamp = Timestamp::from_millis(1000);

/// Policies, and the codes of what is wrong with them.
fn policies(text: &str) -> (Vec<ApiServerPolicy>, Vec<&'static str>) {
    let manifest = read(text, "policies.yaml");
    assert!(manifest.is_whole(), "{:?}", manifest.problems);
    let mut policies = Vec::new();
    let mut codes = Vec::new();
    for document in manifest.documents {
        let lowered = lower(&document.object);
        assert!(lowered.entities.is_empty());
        policies.extend(lowered.api_server);
        codes.extend(lowered.diagnostics.iter().map(|diagnostic| diagnostic.code.id()));
    }
    (policies, codes)
}

fn egress(text: &str) -> ApiServerEgress {
    let cluster = read(CLUSTER, "cluster.yaml").documents.into_iter();
    let cluster: Vec<Entity> = cluster.flat_map(|it| lower(&it.object).entities).collect();
    ApiServerEgress::new(&policies(text).0, cluster, NOW)
}

fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.egret.dev/v1alpha1\nkind: APIServerEgressPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    )
}

fn ask(egress: &mut ApiServerEgress, selection: Selection, to: &str) -> DialVerdict {
    ask_by(egress, selection, to, |egress, dial| {
        egress.decide(dial, &ServerName::Unknown, NOW)
    })
}

fn ask_by<T>(
    egress: &mut ApiServerEgress,
    selection: Selection,
    to: &str,
    by: impl FnOnce(&mut ApiServerEgress, Dial<'_>) -> T,
) -> T {
    let (host, port) = to.rsplit_once(':').unwrap();
    let (name, address) = host
        .split_once('=')
        .map_or((None, host), |(name, address)| (Some(name), address));
    let name = name.map(|name| name.parse().unwrap());
    let dial = Dial {
        selection,
        name: name.as_ref(),
        address: address.parse().unwrap(),
        port: port.parse().unwrap(),
    };
    by(egress, dial)
}

#[track_caller]
fn check(egress: &mut ApiServerEgress, table: &[(&str, Verdict, &str)]) {
    for (to, verdict, rule) in table {
        let said = ask(egress, Selection::Cluster, to);
        let of = said
            .rule
            .map(|origin| format!("{} {}", origin.policy, origin.rule));
        assert_eq!(
            (said.verdict, of.as_deref().unwrap_or("")),
            (*verdict, *rule),
            "{to}"
        );
    }
}

#[test]
fn a_destination_is_of_a_class_and_the_first_rule_that_matches_decides() {
    let mut egress = egress(&policy(
        "p",
        "
  rules:
  - {action: Deny, to: [{nodes: {selector: {matchLabels: {role: gpu}}}}]}
  - {action: Allow, to: [{nodes: {}}], protocols: [{tcp: {destinationPort: {number: 10250}}}]}
  - {action: Allow, to: [{services: {namespace: shop}}]}
  - {action: Allow, to: [{pods: {podSelector: {matchLabels: {app: web}}}}]}
  - {action: Deny, to: [{external: {}}]}
  - {action: Deny, to: [{services: {}}]}",
    ));
    let table = [
        ("192.0.2.2:10250", Deny, "APIServerEgressPolicy/p 0"),
        ("192.0.2.1:10250", Allow, "APIServerEgressPolicy/p 1"),
        ("[::ffff:192.0.2.1]:10250", Allow, "APIServerEgressPolicy/p 1"),
        ("192.0.2.1:22", Deny, "APIServerEgressPolicy/p 4"),
        ("10.96.0.7:443", Allow, "APIServerEgressPolicy/p 2"),
        ("10.96.0.8:443", Deny, "APIServerEgressPolicy/p 5"),
        ("10.0.0.5:8443", Allow, "APIServerEgressPolicy/p 3"),
        ("10.0.0.6:8443", Allow, ""),
        ("203.0.113.1:443", Deny, "APIServerEgressPolicy/p 4"),
    ];
    let table = table.map(|(to, verdict, rule)| (to.replace(['[', ']'], ""), verdict, rule));
    let table: Vec<_> = table
        .iter()
        .map(|(to, verdict, rule)| (to.as_str(), *verdict, *rule))
        .collect();
    check(&mut egress, &table);
    for (address, is) in [
        ("192.0.2.2", Destination::Node("gpu".into())),
        ("10.96.0.7", Destination::Service("shop/hook".into())),
        ("10.0.0.5", Destination::Pod("shop/web".into())),
        ("203.0.113.1", Destination::External),
    ] {
        assert_eq!(egress.destination(address.parse().unwrap()), is);
    }
}

/// However an object comes and goes, the verdicts are those of the objects that are there.
#[test]
fn objects_that_change_are_judged_as_if_they_had_been_there() {
    let text = policy(
        "p",
        "
  rules:
  - {action: Deny, to: [{nodes: {selector: {matchLabels: {role: gpu}}}}]}
  - {action: Allow, to: [{nodes: {}}]}
  - {action: Audit, to: [{pods: {podSelector: {matchLabels: {app: web}}}}]}
  - {action: Allow, to: [{services: {namespace: shop}}]}
  - {action: Deny, to: [{external: {}}]}
  - {action: Allow, to: [{domainNames: [hook.example.com]}]}
  - {action: Deny, to: [{services: {}}]}",
    );
    let (policies, _) = policies(&text);
    let objects = |text: &str| -> Vec<Entity> {
        let documents = read(text, "cluster.yaml").documents;
        documents
            .iter()
            .flat_map(|document| lower(&document.object).entities)
            .collect()
    };
    let addresses = [
        "192.0.2.1",
        "192.0.2.2",
        "10.96.0.7",
        "10.96.0.8",
        "10.0.0.5",
        "203.0.113.1",
    ];
    let verdicts = |egress: &mut ApiServerEgress| -> Vec<_> {
        let asked = addresses.map(|address| {
            (
                ask(egress, Selection::Cluster, &format!("{address}:443")),
                egress.destination(address.parse().unwrap()),
            )
        });
        asked.into()
    };
    let all = objects(CLUSTER);
    for (index, one) in all.iter().enumerate() {
        let others = all.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Vec<Entity> = others.map(|(_, entity)| entity.clone()).collect();
        let with = verdicts(&mut ApiServerEgress::new(&policies, all.clone(), NOW));
        let without = verdicts(&mut ApiServerEgress::new(&policies, others.clone(), NOW));
        let mut egress = ApiServerEgress::new(&policies, others, NOW);
        assert_ne!(with, without, "{one:?} says something");
        egress.update([one.clone()], [], NOW);
        assert_eq!(verdicts(&mut egress), with, "{one:?} came");
        egress.update([], [one.key()], NOW);
        assert_eq!(verdicts(&mut egress), without, "{one:?} went");
    }
    // One that is other than before: a pod loses its label, a Service gets another address.
    let mut egress = ApiServerEgress::new(&policies, all, NOW);
    let other = CLUSTER
        .replace("app: web", "app: none")
        .replace("10.96.0.7", "10.96.0.9");
    egress.update(objects(&other), [], NOW);
    let anew = verdicts(&mut ApiServerEgress::new(&policies, objects(&other), NOW));
    assert_eq!(verdicts(&mut egress), anew);
}

#[test]
fn a_policy_is_about_its_selections_and_the_lower_priority_is_asked_first() {
    let text = [
        policy(
            "b",
            "{selections: [cluster], rules: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]}",
        ),
        policy(
            "a",
            "{priority: 501, rules: [{action: Allow, to: [{networks: [192.0.2.0/24]}]}]}",
        ),
        policy(
            "z",
            "{priority: 1, selections: [cluster], rules: [{action: Allow, to: [{networks: [192.0.2.9/32]}]}]}",
        ),
    ];
    let mut egress = egress(&text.concat());
    let mut verdict = |selection, to| ask(&mut egress, selection, to).verdict;
    assert_eq!(verdict(Selection::Cluster, "192.0.2.1:1"), Deny);
    assert_eq!(verdict(Selection::Cluster, "192.0.2.9:1"), Allow);
    assert_eq!(verdict(Selection::ControlPlane, "192.0.2.1:1"), Allow);
    assert_eq!(verdict(Selection::Etcd, "192.0.2.1:1"), Allow);
}

#[test]
fn a_name_opens_its_address_for_the_dial_that_names_it_alone() {
    let mut egress = egress(&policy(
        "p",
        "
  rules:
  - {action: Allow, to: [{domainNames: ['*.example.com']}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}",
    ));
    check(
        &mut egress,
        &[
            ("203.0.113.1:443", Deny, "APIServerEgressPolicy/p 1"),
            (
                "api.example.com=203.0.113.1:443",
                Allow,
                "APIServerEgressPolicy/p 0",
            ),
            ("203.0.113.1:443", Deny, "APIServerEgressPolicy/p 1"),
            (
                "api.example.org=203.0.113.1:443",
                Deny,
                "APIServerEgressPolicy/p 1",
            ),
            (
                "api.example.com=203.0.113.1:443",
                Allow,
                "APIServerEgressPolicy/p 0",
            ),
            // Whoever answers for a name does not open what names never open.
            (
                "api.example.com=169.254.169.254:80",
                Deny,
                "APIServerEgressPolicy/p 1",
            ),
            (
                "api.example.com=192.0.2.1:10250",
                Deny,
                "APIServerEgressPolicy/p 1",
            ),
        ],
    );
}

#[test]
fn an_audited_rule_refuses_nothing_and_hides_no_rule_that_does() {
    let mut egress = egress(&policy(
        "p",
        "
  rules:
  - {name: watched, action: Audit, to: [{networks: [203.0.113.0/24]}]}
  - {action: Deny, to: [{networks: [203.0.113.9/32]}]}
  - {action: Allow, to: [{networks: [203.0.113.0/24]}], limits: {connections: 3}}",
    ));
    let watched = ask(&mut egress, Selection::Cluster, "203.0.113.1:1");
    assert_eq!(watched.verdict, Allow);
    let would = watched.would_deny.unwrap();
    assert_eq!(
        (&*would.policy, would.name.as_deref()),
        ("APIServerEgressPolicy/p", Some("watched"))
    );
    assert_eq!(watched.limits.connections, Some(3));
    let denied = ask(&mut egress, Selection::Cluster, "203.0.113.9:1");
    assert_eq!(
        (denied.verdict, denied.rule.unwrap().rule, denied.would_deny),
        (Deny, 1, None)
    );
    assert_eq!(
        ask(&mut egress, Selection::Cluster, "198.51.100.1:1").would_deny,
        None
    );
}

#[test]
fn an_annotated_policy_refuses_nothing_and_tells_what_it_would() {
    let object = policy(
        "p",
        "{rules: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]}",
    );
    let annotation = "{name: p, annotations: {policy.egret.dev/enforcement: audit}}";
    let mut egress = egress(&object.replace("{name: p}", annotation));
    let said = ask(&mut egress, Selection::Cluster, "203.0.113.1:1");
    assert_eq!((said.verdict, said.would_deny.is_some()), (Allow, true));
}

#[test]
fn what_is_not_understood_refuses_in_the_smallest_unit() {
    let allow = "{action: Allow, to: [{networks: [192.0.2.0/24]}]}";
    let other =
        "{action: Allow, to: [{networks: [203.0.113.0/24]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}";
    // Spec, code, verdict for 192.0.2.1 (of the rule that is wrong), verdict for 203.0.113.1 (of the one behind it).
    let table = [
        (format!("{{rules: [{allow}, {other}]}}"), "", Allow, Allow),
        (format!("{{rule: [], rules: [{allow}]}}"), "EG0103", Deny, Deny),
        ("{rules: []}".to_owned(), "EG0106", Deny, Deny),
        ("{priority: 1}".to_owned(), "EG0105", Deny, Deny),
        (
            format!("{{selections: [], rules: [{allow}, {other}]}}"),
            "EG0106",
            Deny,
            Deny,
        ),
        (
            format!("{{selections: [nodes], rules: [{allow}, {other}]}}"),
            "EG0107",
            Deny,
            Deny,
        ),
        (
            format!("{{priority: 5000, rules: [{allow}, {other}]}}"),
            "EG0110",
            Deny,
            Deny,
        ),
        (
            format!("{{rules: [{}, {other}]}}", allow.replace("networks", "network")),
            "EG0103",
            Deny,
            Allow,
        ),
        (
            format!("{{rules: [{}, {other}]}}", allow.replace("Allow", "Permit")),
            "EG0112",
            Deny,
            Deny,
        ),
        (
            format!(
                "{{rules: [{}, {other}]}}",
                allow.replace("}]}", "}], limits: {connections: 0}}")
            ),
            "EG0104",
            Deny,
            Allow,
        ),
        (
            format!(
                "{{rules: [{}]}}",
                allow
                    .replace("Allow", "Audit")
                    .replace("}]}", "}], limits: {octets: 9}}")
            ),
            "EG0108",
            Deny,
            Deny,
        ),
    ];
    for (spec, code, of_wrong, of_other) in table {
        let text = policy("p", &spec);
        assert_eq!(
            policies(&text).1,
            code.split_terminator(' ').collect::<Vec<_>>(),
            "{spec}"
        );
        let mut egress = egress(&text);
        let mut verdict = |to| ask(&mut egress, Selection::Cluster, to).verdict;
        assert_eq!(
            (verdict("192.0.2.1:1"), verdict("203.0.113.1:1")),
            (of_wrong, of_other),
            "{spec}"
        );
    }
}

#[test]
fn a_version_that_nobody_knows_refuses_everything() {
    let text = policy("p", "{rules: [{action: Allow, to: [{networks: [0.0.0.0/0]}]}]}");
    let text = text.replace("v1alpha1", "v9");
    assert_eq!(policies(&text).1, ["EG0102"]);
    assert_eq!(
        ask(&mut egress(&text), Selection::Etcd, "192.0.2.1:2379").verdict,
        Deny
    );
}

// === TLS server names ===

fn named(text: &str) -> ServerName {
    match text {
        "" => ServerName::Unknown,
        name => ServerName::Known(name.parse().unwrap()),
    }
}

const HOOKS: &str = "
  rules:
  - {action: Deny, to: [{services: {}}], serverNames: [old.shop.svc]}
  - {action: Allow, to: [{services: {}}], serverNames: ['*.shop.svc'], limits: {connections: 3}}
  - {action: Audit, to: [{services: {}}], serverNames: [hook.tools.svc]}
  - {action: Allow, to: [{services: {namespace: tools}}]}
  - {action: Deny, to: [{services: {}}]}
  - {action: Deny, to: [{networks: [203.0.113.0/24]}], serverNames: [bad.example.com]}
  - {action: Deny, to: [{networks: [203.0.113.0/24]}]}";

#[test]
fn a_rule_is_about_its_server_names_and_a_name_that_nobody_knows_is_refused_by_it() {
    let mut egress = egress(&policy("p", HOOKS));
    for (to, name, verdict, rule) in [
        ("10.96.0.7:443", "hook.shop.svc", Allow, Some(1)),
        ("10.96.0.7:443", "HOOK.shop.svc", Allow, Some(1)),
        ("10.96.0.7:443", "a.hook.shop.svc", Allow, Some(1)),
        ("10.96.0.7:443", "shop.svc", Deny, Some(4)),
        ("10.96.0.7:443", "old.shop.svc", Deny, Some(0)),
        // What refuses by a name refuses what has none that can be read; what allows does not allow it.
        ("10.96.0.7:443", "", Deny, Some(0)),
        ("10.96.0.8:443", "", Deny, Some(0)),
        ("10.96.0.8:443", "hook.tools.svc", Allow, Some(3)),
        ("203.0.113.1:443", "good.example.com", Deny, Some(6)),
        ("192.0.2.1:443", "", Allow, None),
    ] {
        let said = ask_by(&mut egress, Selection::Cluster, to, |egress, dial| {
            egress.decide(dial, &named(name), NOW)
        });
        let of = said.rule.as_ref().map(|rule| rule.rule);
        assert_eq!((said.verdict, of), (verdict, rule), "{to} {name:?}");
        let would = said.would_deny.map(|rule| rule.rule);
        assert_eq!(would, (name == "hook.tools.svc").then_some(2), "{to} {name:?}");
        assert_eq!(
            said.limits.connections,
            (rule == Some(1)).then_some(3),
            "{to} {name:?}"
        );
    }
}

#[test]
fn before_the_server_name_is_known_what_is_refused_anyway_is_refused_and_what_no_rule_asks_about_is_allowed()
{
    let mut egress = egress(&policy("p", HOOKS));
    let mut early = |to| {
        let said = ask_by(&mut egress, Selection::Cluster, to, |egress, dial| {
            egress.decide_early(dial, NOW)
        });
        match said {
            EarlyVerdict::Whatever(said) => Some((said.verdict, said.rule.map(|rule| rule.rule))),
            EarlyVerdict::ByServerName => None,
        }
    };
    assert_eq!(early("10.96.0.7:443"), None);
    assert_eq!(early("10.96.0.8:443"), None);
    assert_eq!(early("203.0.113.1:443"), Some((Deny, Some(6))));
    assert_eq!(early("192.0.2.1:443"), Some((Allow, None)));
}

/// Fewer names in a rule that refuses would be a weaker rule.
#[test]
fn a_server_name_that_is_none_closes_its_rule() {
    for (names, codes) in [
        ("[]", "EG0106"),
        ("[hook]", "EG0401"),
        ("[hook.shop.svc, '10.96.0.7']", "EG0401"),
        ("['a.*.svc']", "EG0401"),
        ("hook.shop.svc", "EG0104"),
    ] {
        let rules = format!(
            "
  rules:
  - {{action: Allow, to: [{{networks: [0.0.0.0/0]}}], serverNames: {names}}}
  - {{action: Deny, to: [{{networks: [192.0.2.1/32]}}], serverNames: {names}}}"
        );
        let text = policy("p", &rules);
        assert_eq!(policies(&text).1, [codes, codes], "{names}");
        let mut egress = egress(&text);
        for name in ["", "hook.shop.svc"] {
            let said = ask_by(
                &mut egress,
                Selection::Cluster,
                "10.96.0.7:443",
                |egress, dial| egress.decide(dial, &named(name), NOW),
            );
            let rule = said.rule.map(|rule| rule.rule);
            assert_eq!((said.verdict, rule), (Deny, Some(1)), "{names} {name:?}");
        }
    }
}

proptest! {
    /// A rule that is not about a server name might as well not be there, and what is said before the name is known is what is
    /// said of all names.
    #[test]
    fn verdicts_by_server_name_are_those_of_the_rules_that_are_about_it(
        rules in prop::collection::vec((0..3usize, 0..4usize, 0..4usize), 1..7),
    ) {
        let line = |(action, to, names): &(usize, usize, usize)| {
            let action = ["Allow", "Deny", "Audit"][*action];
            let to = ["networks: [192.0.2.0/24]", "networks: [192.0.2.1/32]", "services: {}", "external: {}"][*to];
            let names = ["", ", serverNames: [a.example.com]", ", serverNames: [b.example.com]", ", serverNames: ['*.example.com']"][*names];
            format!("  - {{action: {action}, to: [{{{to}}}]{names}}}\n")
        };
        let text = policy("p", &format!("\n  rules:\n{}", rules.iter().map(line).collect::<String>()));
        let (policies, codes) = policies(&text);
        prop_assert!(codes.is_empty());
        let cluster: Vec<Entity> = read(CLUSTER, "cluster.yaml").documents.iter().flat_map(|it| lower(&it.object).entities).collect();
        let mut egress = ApiServerEgress::new(&policies, cluster.clone(), NOW);
        for to in ["192.0.2.1:443", "192.0.2.9:443", "10.96.0.7:443", "203.0.113.1:443"] {
            let mut said = Vec::new();
            for name in ["", "a.example.com", "b.example.com", "c.example.com", "d.test"].map(named) {
                let by = |egress: &mut ApiServerEgress| {
                    ask_by(egress, Selection::Cluster, to, |egress, dial| egress.decide(dial, &name, NOW))
                };
                let with = by(&mut egress);
                let about = ApiServerPolicy::about(&policies, &name);
                prop_assert_eq!(&with, &by(&mut ApiServerEgress::new(&about, cluster.clone(), NOW)), "{} {:?}", to, name);
                said.push(with);
            }
            match ask_by(&mut egress, Selection::Cluster, to, |egress, dial| egress.decide_early(dial, NOW)) {
                EarlyVerdict::Whatever(early) => {
                    prop_assert!(said.iter().all(|it| it.verdict == early.verdict), "{} {:?} {:?}", to, early, said);
                    let is_allowed = early.verdict == Allow;
                    prop_assert!(!is_allowed || said.iter().all(|it| it.rule == early.rule));
                }
                EarlyVerdict::ByServerName => {
                    prop_assert!(said.iter().any(|it| it.rule != said[0].rule), "{} {:?}", to, said);
                }
            }
        }
    }
}
