//! The proof sees a conversion that is wrong: each row has one mistake that a converter could make.

use super::*;
use crate::manifests::text::{ManifestText, ManifestTexts};
use egret_policies::api::UnknownFields;

fn manifests(text: &str) -> Manifests {
    let text = ManifestText {
        file: "test".into(),
        text: text.to_owned(),
    };
    let texts = ManifestTexts {
        read: vec![text],
        ignored: Vec::new(),
    };
    Manifests::of(&texts, UnknownFields::AsWritten).unwrap()
}

fn admin(priority: u32, name: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{priority: {priority}, subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: x}}}}}}}}, {rules}}}\n"
    )
}

fn baseline(rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: BaselineAdminNetworkPolicy\nmetadata: {{name: default}}\n\
         spec: {{subject: {{namespaces: {{}}}}, {rules}}}\n"
    )
}

fn cluster(tier: &str, priority: u32, name: &str, subject: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{tier: {tier}, priority: {priority}, subject: {subject}, {rules}}}\n"
    )
}

const X: &str = "{pods: {podSelector: {matchLabels: {app: x}}}}";
const EVERYBODY: &str = "{namespaces: {}}";

fn proof(before: &str, after: &str) -> Result<Proof, Differences> {
    let (before, after) = (manifests(before), manifests(after));
    prove(&before, &DnsStandIn::default(), &before.policies, &after.policies)
}

/// The right conversion passes, the wrong one does not.
#[track_caller]
fn caught(before: &str, right: &str, wrong: &str, said: &str) {
    let proved = proof(before, right).unwrap_or_else(|differences| panic!("{:?}", differences.first));
    assert!(proved.connections > 0, "an empty proof proves nothing");
    let differences = proof(before, wrong).expect_err("the mistake is not seen");
    let first: Vec<String> = differences.first.iter().map(ToString::to_string).collect();
    assert!(first.iter().any(|one| one.contains(said)), "{said}: {first:#?}");
}

/// One rule of the policy `p` for the pods `app: x`.
#[track_caller]
fn caught_in_rule(before: &str, right: &str, wrong: &str, said: &str) {
    let [right, wrong] = [right, wrong].map(|rules| cluster("Admin", 5, "p", X, rules));
    caught(&admin(5, "p", before), &right, &wrong, said);
}

#[test]
fn another_action_is_seen() {
    caught_in_rule(
        "egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]",
        "egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]",
        "egress: [{action: Accept, to: [{networks: [192.0.2.0/24]}]}]",
        "to 192.0.2.0/24, everything: was denied by AdminNetworkPolicy/p, rule 0; would be allowed by ClusterNetworkPolicy/p, rule 0",
    );
}

#[test]
fn one_port_more_is_seen() {
    let range = |last: u16| {
        format!(
            "ingress: [{{action: Deny, from: [{{namespaces: {{}}}}], protocols: [{{tcp: {{destinationPort: {{range: {{start: 80, end: {last}}}}}}}}}]}}]"
        )
    };
    caught_in_rule(
        "ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portRange: {start: 80, end: 90}}]}]",
        &range(90),
        &range(91),
        "TCP 91: was allowed by default; would be denied by ClusterNetworkPolicy/p, rule 0",
    );
}

#[test]
fn a_protocol_that_is_forgotten_is_seen() {
    caught_in_rule(
        "egress: [{action: Deny, to: [{namespaces: {}}], ports: [{portNumber: {protocol: UDP, port: 53}}]}]",
        "egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}]}]",
        "egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 53}}}]}]",
        "UDP 53: was denied",
    );
    caught_in_rule(
        "egress: [{action: Deny, to: [{namespaces: {}}], ports: [{portNumber: {port: 53}}]}]",
        "egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 53}}}]}]",
        "egress: [{action: Deny, to: [{namespaces: {}}]}]",
        "everything but TCP 53: was allowed",
    );
}

#[test]
fn a_named_port_that_becomes_another_is_seen() {
    caught_in_rule(
        "ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: web}]}]",
        "ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: web}]}]",
        "ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: wed}]}]",
        "was denied by AdminNetworkPolicy/p, rule 0; would be allowed by default",
    );
}

#[test]
fn a_peer_that_is_forgotten_is_seen() {
    let y = "{pods: {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [x]}]}}}";
    let both =
        format!("ingress: [{{action: Deny, from: [{y}, {{namespaces: {{matchLabels: {{team: b}}}}}}]}}]");
    let one = format!("ingress: [{{action: Deny, from: [{y}]}}]");
    caught_in_rule(
        &both,
        &both,
        &one,
        "was denied by AdminNetworkPolicy/p, rule 0; would be allowed by default",
    );
}

#[test]
fn a_name_that_is_forgotten_is_seen() {
    let names = |names: &str, allow: &str| {
        format!(
            "egress: [{{action: {allow}, to: [{{domainNames: [{names}]}}]}}, {{action: Deny, to: [{{networks: [0.0.0.0/0, \"::/0\"]}}]}}]"
        )
    };
    caught_in_rule(
        &names("a.test, \"*.b.test\"", "Allow"),
        &names("a.test, \"*.b.test\"", "Accept"),
        &names("a.test", "Accept"),
        "to *.b.test at",
    );
}

#[test]
fn rules_in_another_order_are_seen() {
    let [deny, pass] = [
        "{action: Deny, to: [{networks: [10.0.0.0/8]}]}",
        "{action: Pass, to: [{networks: [10.1.0.0/16]}]}",
    ];
    caught_in_rule(
        &format!("egress: [{pass}, {deny}]"),
        &format!("egress: [{pass}, {deny}]"),
        &format!("egress: [{deny}, {pass}]"),
        "to 10.1.0.0",
    );
}

#[test]
fn a_wider_subject_is_seen() {
    let rules = "egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]";
    caught(
        &admin(5, "p", rules),
        &cluster("Admin", 5, "p", X, rules),
        &cluster("Admin", 5, "p", EVERYBODY, rules),
        "was allowed by default; would be denied by ClusterNetworkPolicy/p, rule 0",
    );
}

#[test]
fn policies_in_another_order_are_seen() {
    let deny = "egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]";
    let allow = |word: &str| format!("egress: [{{action: {word}, to: [{{networks: [192.0.2.0/24]}}]}}]");
    let other = cluster("Admin", 5, "z", X, &allow("Accept"));
    caught(
        &(admin(5, "p", deny) + &other),
        &(cluster("Admin", 6, "p", X, deny) + &other),
        &(cluster("Admin", 5, "p", X, deny) + &other),
        "was allowed by ClusterNetworkPolicy/z, rule 0; would be denied by ClusterNetworkPolicy/p, rule 0",
    );
}

#[test]
fn another_tier_is_seen_beside_a_networkpolicy_only() {
    let deny = "ingress: [{action: Deny, from: [{namespaces: {}}]}]";
    let open = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: open, namespace: a}\nspec: {podSelector: {}, ingress: [{}]}\n";
    let pods = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: a}\nstatus: {podIPs: [{ip: 10.0.0.1}]}\n";
    let right = cluster("Baseline", 1000, "default", EVERYBODY, deny);
    let wrong = cluster("Admin", 1000, "default", EVERYBODY, deny);
    let others = format!("{open}{pods}");
    caught(
        &(baseline(deny) + &others),
        &(right + &others),
        &(wrong + &others),
        "was allowed by NetworkPolicy/a/open, rule 0",
    );
}

const ANNOTATED: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: old, annotations: {net.beta.kubernetes.io/network-policy: '{\"ingress\": {\"isolation\": \"DefaultDeny\"}}'}}\n";

fn of_namespace(version: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: {version}\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: old}}\nspec: {spec}\n"
    )
}

/// No pod is in the manifests: those that are made up show it.
#[test]
fn what_an_empty_list_of_2016_means_is_seen() {
    let old = |rule: &str| {
        ANNOTATED.to_owned()
            + &of_namespace(
                "extensions/v1beta1",
                "p",
                &format!("{{podSelector: {{matchLabels: {{app: x}}}}, ingress: [{rule}]}}"),
            )
    };
    let new = |rule: &str| {
        of_namespace("networking.k8s.io/v1", "deny", "{podSelector: {}}")
            + &of_namespace(
                "networking.k8s.io/v1",
                "p",
                &format!("{{podSelector: {{matchLabels: {{app: x}}}}, ingress: [{rule}]}}"),
            )
    };
    for rule in [
        "{from: [], ports: [{port: 80}]}",
        "{from: [{podSelector: {}}], ports: []}",
    ] {
        caught(
            &old(rule),
            &new(""),
            &new(rule),
            "was denied in tier np; would be allowed by NetworkPolicy/old/p, rule 0",
        );
    }
}

#[test]
fn an_isolation_that_is_forgotten_or_new_is_seen() {
    let allow = "{podSelector: {matchLabels: {app: x}}, ingress: [{from: [{podSelector: {}}]}]}";
    let old = of_namespace("extensions/v1beta1", "p", allow);
    let new = of_namespace("networking.k8s.io/v1", "p", allow);
    let deny = of_namespace("networking.k8s.io/v1", "deny", "{podSelector: {}}");
    caught(
        &format!("{ANNOTATED}{old}"),
        &format!("{deny}{new}"),
        &new,
        "was denied in tier np; would be allowed by default",
    );
    caught(&old, "", &new, "was allowed by default; would be denied");
}
