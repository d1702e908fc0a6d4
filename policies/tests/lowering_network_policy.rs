//! NetworkPolicy v1, line by line of its API documentation, of KEP-2079 (endPort) and of what others got
//! wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;

use std::sync::Arc;

use common::{codes, indent, labels, lowered_as, policy, rules};
use egret_policies::api::UnknownFields;
use egret_policies::diagnostic::{Code, Severity};
use egret_policies::model::cluster::Entity;
use egret_policies::model::{
    Action, Direction, Effect, NamespaceSelector, Peer, Peers, Policy, Port, Ports, Requirement, Rule,
    Selector, Tier,
};
use egret_shared::net::{IpNet, PortRange, Transport};

fn np(spec: &str) -> String {
    let spec = indent(spec.trim(), 2);
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\nspec:\n  {spec}\n"
    )
}

fn understood(spec: &str) -> Policy {
    let (policy, diagnostics) = policy(&np(spec));
    assert_eq!(diagnostics, [], "{spec}");
    policy
}

/// The only egress rule of a policy, and the codes of its diagnostics.
fn egress_rule(rule: &str) -> (Vec<Rule>, Vec<Code>) {
    let spec = format!(
        "podSelector: {{}}\npolicyTypes: [Egress]\negress:\n- {}",
        indent(rule.trim(), 2)
    );
    let (policy, diagnostics) = policy(&np(&spec));
    (rules(&policy.egress).to_vec(), codes(&diagnostics))
}

fn ingress_rule(rule: &str) -> (Vec<Rule>, Vec<Code>) {
    let spec = format!("podSelector: {{}}\ningress:\n- {}", indent(rule.trim(), 2));
    let (policy, diagnostics) = policy(&np(&spec));
    (rules(&policy.ingress).to_vec(), codes(&diagnostics))
}

fn matches_nothing(rule: &Rule) -> bool {
    rule.peers == Peers::OneOf([].into()) && rule.ports == Ports::OneOf([].into())
}

fn tcp(first: u16, last: u16) -> Port {
    Port::Range(Transport::Tcp, PortRange::new(first, last).unwrap())
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_policy_has_its_id_rank_and_namespace() {
    let policy = understood("podSelector: {matchLabels: {app: web}}");
    assert_eq!(policy.id.to_string(), "NetworkPolicy/shop/p");
    assert_eq!((policy.rank.tier, policy.rank.priority), (Tier::NetworkPolicy, 0));
    assert_eq!(policy.subject.namespaces, NamespaceSelector::Named("shop".into()));
    assert!(policy.subject.pods.matches(&labels(&[("app", "web")])));
    assert!(!policy.subject.pods.matches(&labels(&[("app", "db")])));
}

/// Default of policyTypes (`SetDefaults_NetworkPolicy`): by length, and egress by its rules.
#[test]
fn policy_types_are_defaulted_as_the_api_does() {
    for (spec, ingress, egress) in [
        ("podSelector: {}", true, false),
        ("{}", true, false),
        ("policyTypes: []", true, false),
        ("policyTypes: null", true, false),
        ("egress: []", true, false),
        ("egress: null", true, false),
        ("egress: [{}]", true, true),
        ("policyTypes: []\negress: [{}]", true, true),
        ("policyTypes: [Ingress]", true, false),
        ("policyTypes: [Egress]", false, true),
        ("policyTypes: [Egress, Ingress]", true, true),
    ] {
        let policy = understood(spec);
        let isolated = |effect: &Effect| *effect != Effect::None;
        assert_eq!(
            (isolated(&policy.ingress), isolated(&policy.egress)),
            (ingress, egress),
            "{spec}"
        );
    }
}

#[test]
fn a_policy_without_spec_isolates_the_ingress_of_its_namespace() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n";
    let (policy, diagnostics) = policy(text);
    assert_eq!(
        (policy.ingress, policy.egress),
        (Effect::Rules(Arc::default()), Effect::None)
    );
    assert_eq!(
        policy.subject.namespaces,
        NamespaceSelector::Named("default".into())
    );
    assert_eq!(policy.subject.pods, Selector::everything());
    assert_eq!(diagnostics, []);
}

#[test]
fn policy_types_that_cannot_be_read_isolate_in_both_directions() {
    for types in ["[Foo]", "[ingress]", "Ingress", "[Egress, 1]", "{}"] {
        let (policy, diagnostics) = policy(&np(&format!("policyTypes: {types}\ningress: [{{}}]")));
        assert_eq!(rules(&policy.ingress).len(), 1, "{types}");
        assert_eq!(policy.egress, Effect::Rules(Arc::default()), "{types}");
        assert!(
            diagnostics
                .iter()
                .any(|diagnostic| diagnostic.severity == Severity::Error),
            "{types}"
        );
    }
}

#[test]
fn rules_of_a_direction_that_is_not_listed_are_ignored_with_a_warning() {
    let (policy, diagnostics) = policy(&np("policyTypes: [Egress]\ningress: [{}]"));
    assert_eq!(
        (policy.ingress, policy.egress),
        (Effect::None, Effect::Rules(Arc::default()))
    );
    assert_eq!(codes(&diagnostics), [Code::RulesIgnored]);
}

/// Missing and empty are the same in v1 (they are not in the form of 2016).
#[test]
fn missing_and_empty_lists_of_a_rule_mean_everything() {
    for rule in ["{}", "to: []", "ports: []", "{to: [], ports: null}"] {
        let (rules, codes) = egress_rule(rule);
        assert_eq!(codes, [], "{rule}");
        assert_eq!(
            (&rules[0].peers, &rules[0].ports),
            (&Peers::Any, &Ports::Any),
            "{rule}"
        );
        assert_eq!(rules[0].action, Action::Allow);
    }
}

#[test]
fn peers_mean_what_the_documentation_says() {
    let own = NamespaceSelector::Named("shop".into());
    let app = |value: &str| Selector::all_of([Requirement::In("app".into(), [Arc::from(value)].into())]);
    let pods = |namespaces, pods| Peer::Pods { namespaces, pods };
    for (peer, expected) in [
        ("podSelector: {}", pods(own.clone(), Selector::everything())),
        ("podSelector: {matchLabels: {app: a}}", pods(own, app("a"))),
        (
            "namespaceSelector: {}",
            pods(
                NamespaceSelector::Matching(Selector::everything()),
                Selector::everything(),
            ),
        ),
        (
            "namespaceSelector: {matchLabels: {app: a}}\n  podSelector: {matchLabels: {app: b}}",
            pods(NamespaceSelector::Matching(app("a")), app("b")),
        ),
        (
            "ipBlock: {cidr: 10.0.0.0/8}",
            Peer::Networks(nets(&["10.0.0.0/8"])),
        ),
        (
            "ipBlock: {cidr: '::/0', except: null}",
            Peer::Networks(nets(&["::/0"])),
        ),
    ] {
        let (rules, codes) = egress_rule(&format!("to:\n- {peer}"));
        assert_eq!(codes, [], "{peer}");
        assert_eq!(rules[0].peers, Peers::OneOf([expected].into()), "{peer}");
    }
}

/// Corner case 23: the exception of one block never takes from another.
#[test]
fn exceptions_are_subtracted_from_their_own_block_only() {
    let (rules, codes) = egress_rule(
        "to:\n- ipBlock: {cidr: 10.0.0.0/8, except: [10.128.0.0/9, 10.64.0.0/10]}\n- ipBlock: {cidr: 10.200.0.0/16}",
    );
    assert_eq!(codes, []);
    let expected = vec![
        Peer::Networks(nets(&["10.0.0.0/10"])),
        Peer::Networks(nets(&["10.200.0.0/16"])),
    ];
    assert_eq!(rules[0].peers, Peers::OneOf(expected.into()));
}

/// Corner case 26: objects stored before validation became strict.
#[test]
fn old_notations_are_read_as_the_network_that_they_mean() {
    for (text, meant) in [
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("010.000.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/08", "10.0.0.0/8"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:10.9.9.9/128", "10.9.9.9/32"),
        ("fd00::1/8", "fd00::/8"),
    ] {
        let (rules, codes) = egress_rule(&format!("to: [{{ipBlock: {{cidr: '{text}'}}}}]"));
        assert_eq!(codes, [Code::LegacyCidr], "{text}");
        assert_eq!(
            rules[0].peers,
            Peers::OneOf([Peer::Networks(nets(&[meant]))].into()),
            "{text}"
        );
    }
}

#[test]
fn networks_that_are_none_close_the_rule() {
    for (block, code) in [
        ("{cidr: 10.0.0.0/33}", Code::InvalidCidr),
        ("{cidr: 10.0.0.0}", Code::InvalidCidr),
        ("{cidr: 10.0.0/8}", Code::InvalidCidr),
        ("{cidr: 10.0.0.256/8}", Code::InvalidCidr),
        ("{cidr: 10.0.0.0/-1}", Code::InvalidCidr),
        ("{cidr: 10.0.0.0/+8}", Code::InvalidCidr),
        ("{cidr: '::/129'}", Code::InvalidCidr),
        ("{cidr: '::ffff:10.0.0.0/95'}", Code::InvalidCidr),
        ("{cidr: 'fe80::1%eth0/64'}", Code::InvalidCidr),
        ("{cidr: ''}", Code::InvalidCidr),
        ("{cidr: [10.0.0.0/8]}", Code::WrongType),
        ("{except: [10.0.0.0/8]}", Code::FieldMissing),
        ("{cidr: null}", Code::FieldMissing),
        ("{cidr: 10.0.0.0/8, except: [11.0.0.0/16]}", Code::InvalidExcept),
        ("{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}", Code::InvalidExcept),
        ("{cidr: 10.0.0.0/8, except: [0.0.0.0/0]}", Code::InvalidExcept),
        ("{cidr: 10.0.0.0/8, except: ['fd00::/8']}", Code::InvalidExcept),
        ("{cidr: 10.0.0.0/8, except: [x]}", Code::InvalidCidr),
        ("{cidr: 10.0.0.0/8, except: 10.1.0.0/16}", Code::WrongType),
        ("{cidr: 10.0.0.0/8, excpt: [10.1.0.0/16]}", Code::UnknownField),
        ("[10.0.0.0/8]", Code::WrongType),
    ] {
        let rule = format!("to:\n- podSelector: {{}}\n- ipBlock: {block}");
        let (rules, codes) = egress_rule(&rule);
        assert_eq!(codes, [code], "{block}");
        assert!(matches_nothing(&rules[0]), "{block}: {rules:?}");
    }
}

#[test]
fn peers_that_cannot_be_read_close_the_rule() {
    for (peer, code) in [
        ("{}", Code::UnknownAlternative),
        ("null", Code::WrongType),
        ("{podSelector: null}", Code::UnknownAlternative),
        ("{podselector: {}}", Code::UnknownField),
        (
            "{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}",
            Code::SeveralAlternatives,
        ),
        (
            "{namespaceSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}",
            Code::SeveralAlternatives,
        ),
        ("{podSelector: []}", Code::WrongType),
        ("{podSelector: {matchLabel: {a: b}}}", Code::UnknownField),
        ("{podSelector: {app: web}}", Code::UnknownField),
        ("{podSelector: {matchLabels: [a]}}", Code::WrongType),
        ("{podSelector: {matchLabels: {a: null}}}", Code::WrongType),
        ("{podSelector: {matchLabels: {'a b': c}}}", Code::InvalidSelector),
        ("{podSelector: {matchLabels: {a: 'b c'}}}", Code::InvalidSelector),
        ("{podSelector: {matchLabels: {'/a': c}}}", Code::InvalidSelector),
        ("{namespaceSelector: {matchExpressions: {}}}", Code::WrongType),
        (
            "{namespaceSelector: {matchExpressions: [{operator: Exists}]}}",
            Code::FieldMissing,
        ),
        (
            "{namespaceSelector: {matchExpressions: [{key: a}]}}",
            Code::FieldMissing,
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: in, values: [b]}]}}",
            Code::InvalidSelector,
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: In}]}}",
            Code::InvalidSelector,
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: NotIn, values: []}]}}",
            Code::InvalidSelector,
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}",
            Code::InvalidSelector,
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: In, values: b}]}}",
            Code::WrongType,
        ),
        (
            "{podSelector: {matchExpressions: [{key: a, operator: In, values: ['-']}]}}",
            Code::InvalidSelector,
        ),
    ] {
        let (rules, codes) = ingress_rule(&format!("from:\n- {peer}\n- ipBlock: {{cidr: 10.0.0.0/8}}"));
        assert_eq!(codes, [code], "{peer}");
        assert!(matches_nothing(&rules[0]), "{peer}: {rules:?}");
    }
}

#[test]
fn selectors_have_four_operators_which_all_must_hold() {
    let policy = understood(
        "podSelector:
  matchLabels: {app: web}
  matchExpressions:
  - {key: tier, operator: In, values: [front, back]}
  - {key: env, operator: NotIn, values: [dev]}
  - {key: team, operator: Exists}
  - {key: legacy, operator: DoesNotExist, values: []}",
    );
    let good = [("app", "web"), ("tier", "front"), ("team", "")];
    for (extra, selected) in [
        (None, true),
        (Some(("env", "prod")), true), // NotIn also selects what has no such label
        (Some(("env", "dev")), false),
        (Some(("legacy", "")), false),
        (Some(("tier", "middle")), false),
        (Some(("app", "db")), false),
    ] {
        let set = labels(&good.into_iter().chain(extra).collect::<Vec<_>>());
        assert_eq!(policy.subject.pods.matches(&set), selected, "{extra:?}");
    }
    assert!(!policy.subject.pods.matches(&labels(&good[..2])));
}

/// A requirement that cannot be read must not leave a pod open, and must not open one either.
#[test]
fn an_invalid_requirement_in_a_subject_counts_as_met_and_the_rules_open_nothing() {
    let (policy, diagnostics) = policy(&np(
        "podSelector:\n  matchLabels: {app: web}\n  matchExpressions: [{key: a, operator: Foo}]\ningress: [{}]",
    ));
    assert!(policy.subject.pods.matches(&labels(&[("app", "web")])));
    assert!(!policy.subject.pods.matches(&labels(&[("app", "db")])));
    assert_eq!(
        (policy.ingress, policy.egress),
        (Effect::Rules(Arc::default()), Effect::None)
    );
    assert_eq!(codes(&diagnostics), [Code::InvalidSelector]);
    assert_eq!(
        diagnostics[0].field,
        "spec.podSelector.matchExpressions[0].operator"
    );
}

/// KEP-2079 and the documentation of ports.
#[test]
fn ports_mean_what_the_documentation_says() {
    let udp = |first, last| Port::Range(Transport::Udp, PortRange::new(first, last).unwrap());
    let sctp = |port| Port::Range(Transport::Sctp, PortRange::single(port).unwrap());
    let named = |name: &str, transport| Port::Named {
        name: name.into(),
        transport: Some(transport),
    };
    for (port, expected) in [
        ("{}", tcp(1, 65535)),
        ("{protocol: UDP}", udp(1, 65535)), // corner case 32
        ("{port: 80}", tcp(80, 80)),
        ("{port: 53, protocol: UDP}", udp(53, 53)),
        ("{port: 7, protocol: SCTP}", sctp(7)), // corner case 28
        ("{port: 30000, endPort: 32767}", tcp(30000, 32767)), // K-13
        ("{port: 80, endPort: 80}", tcp(80, 80)), // K-4
        ("{port: 1, endPort: 65535, protocol: UDP}", udp(1, 65535)), // K-7
        ("{port: http}", named("http", Transport::Tcp)),
        ("{port: dns-tcp, protocol: UDP}", named("dns-tcp", Transport::Udp)),
        ("{port: 80, endPort: null}", tcp(80, 80)),
    ] {
        let (rules, codes) = ingress_rule(&format!("ports: [{port}]"));
        assert_eq!(codes, [], "{port}");
        assert_eq!(rules[0].ports, Ports::OneOf([expected].into()), "{port}");
    }
}

/// K-9 and K-13: several ranges are a union.
#[test]
fn all_but_two_ports_are_three_ranges() {
    let (rules, codes) = egress_rule(
        "ports: [{port: 1, endPort: 110}, {port: 112, endPort: 444}, {port: 446, endPort: 65535}]",
    );
    assert_eq!(codes, []);
    assert_eq!(
        rules[0].ports,
        Ports::OneOf([tcp(1, 110), tcp(112, 444), tcp(446, 65535)].into())
    );
}

#[test]
fn ports_that_cannot_be_read_close_the_rule() {
    for (port, code) in [
        ("{endPort: 80}", Code::InvalidEndPort),              // K-2, K-12
        ("{port: http, endPort: 80}", Code::InvalidEndPort),  // K-3
        ("{port: 80, endPort: 79}", Code::InvalidEndPort),    // K-4
        ("{port: 80, endPort: 65536}", Code::InvalidEndPort), // K-5
        ("{port: 80, endPort: '90'}", Code::InvalidEndPort),
        ("{port: 0}", Code::InvalidPort),
        ("{port: 65536}", Code::InvalidPort),
        ("{port: -1}", Code::InvalidPort),
        ("{port: '80'}", Code::InvalidPortName), // a text of digits is no name
        ("{port: 'HTTP'}", Code::InvalidPortName),
        ("{port: 'a--b'}", Code::InvalidPortName),
        ("{port: '-a'}", Code::InvalidPortName),
        ("{port: 'a23456789012345x'}", Code::InvalidPortName),
        ("{port: 080}", Code::UnquotedText), // octal in YAML 1.1
        ("{port: [80]}", Code::WrongType),
        ("{protocol: tcp}", Code::InvalidProtocol),
        ("{protocol: ICMP}", Code::InvalidProtocol),
        ("{protocol: [TCP]}", Code::WrongType),
        ("{port: 80, endport: 90}", Code::UnknownField),
        ("null", Code::WrongType),
    ] {
        let (rules, codes) = ingress_rule(&format!("ports: [{{port: 443}}, {port}]"));
        assert_eq!(codes.first(), Some(&code), "{port}");
        assert!(matches_nothing(&rules[0]), "{port}: {rules:?}");
    }
}

/// Corner cases 9 to 13.
#[test]
fn a_named_port_is_one_of_pods() {
    let named = Port::Named {
        name: "web".into(),
        transport: Some(Transport::Tcp),
    };
    let (rules, codes) = egress_rule("ports: [{port: web}]");
    assert_eq!((codes.as_slice(), &rules[0].peers), ([].as_slice(), &Peers::Any));
    assert_eq!(rules[0].ports, Ports::OneOf([named.clone()].into()));

    let (rules, codes) = ingress_rule("from: [{ipBlock: {cidr: 10.0.0.0/8}}]\nports: [{port: web}]");
    assert_eq!(codes, [], "for ingress the port is the subject's");
    assert_eq!(rules[0].ports, Ports::OneOf([named.clone()].into()));

    let (rules, codes) = egress_rule("to: [{ipBlock: {cidr: 10.0.0.0/8}}]\nports: [{port: web}]");
    assert_eq!(codes, [Code::NamedPortWithoutPod]);
    assert!(matches_nothing(&rules[0]));

    let (rules, _) = egress_rule(
        "to: [{ipBlock: {cidr: 10.0.0.0/8}}, {podSelector: {}}]\nports: [{port: web}, {port: 443}]",
    );
    assert_eq!(rules.len(), 2);
    assert!(matches!(&rules[0].peers, Peers::OneOf(peers) if matches!(peers[..], [Peer::Pods { .. }])));
    assert_eq!(rules[0].ports, Ports::OneOf([named, tcp(443, 443)].into()));
    assert_eq!(
        rules[1].peers,
        Peers::OneOf([Peer::Networks(nets(&["10.0.0.0/8"]))].into())
    );
    assert_eq!(rules[1].ports, Ports::OneOf([tcp(443, 443)].into()));
    assert_eq!((rules[0].index, rules[1].index), (0, 0));
}

/// What an API server would prune, often to "allow everything".
#[test]
fn an_unknown_field_closes_the_rule_that_has_it_and_no_other() {
    for rule in [
        "form: [{podSelector: {}}]",
        "to: [{podSelector: {}}]", // in an ingress rule
        "{from: [{podSelector: {}}], prots: [{port: 80}]}",
        "{from: [{podSelector: {}, podselector: {}}]}",
        "{ports: [{port: 80, endport: 90}]}",
        "{from: [{podSelector: {}}], from: [{namespaceSelector: {}}]}", // which one?
    ] {
        let (policy, diagnostics) = policy(&np(&format!(
            "podSelector: {{}}\ningress:\n- {rule}\n- from: [{{podSelector: {{}}}}]"
        )));
        let rules = rules(&policy.ingress);
        assert!(matches_nothing(&rules[0]), "{rule}: {rules:?}");
        assert!(!matches_nothing(&rules[1]), "{rule}");
        assert_eq!(diagnostics[0].severity, Severity::Error, "{rule}");
        assert_eq!(diagnostics[0].enforced, "the rule matches nothing", "{rule}");
    }
}

#[test]
fn an_unknown_field_of_the_spec_closes_everything() {
    for field in [
        "egres: [{}]",
        "policyType: [Egress]",
        "podselector: {}",
        "foo: null",
    ] {
        let (policy, diagnostics) = policy(&np(&format!("ingress: [{{}}]\n{field}")));
        let closed = Effect::Rules(Arc::default());
        assert_eq!((&policy.ingress, &policy.egress), (&closed, &closed), "{field}");
        assert_eq!(codes(&diagnostics), [Code::UnknownField], "{field}");
    }
}

#[test]
fn read_as_stored_unknown_fields_are_dropped_with_a_warning() {
    let text = np("podSelector: {}\nfoo: 1\ningress:\n- form: [{podSelector: {}}]\n- null");
    let lowered = lowered_as(&text, UnknownFields::AsStored);
    let Entity::Policy(policy) = &lowered.entities[0] else {
        panic!("{lowered:?}");
    };
    assert_eq!(policy.egress, Effect::None);
    for rule in rules(&policy.ingress) {
        assert_eq!((&rule.peers, &rule.ports), (&Peers::Any, &Ports::Any));
    }
    assert_eq!(
        codes(&lowered.diagnostics),
        [Code::UnknownField, Code::UnknownField]
    );
    assert!(
        lowered
            .diagnostics
            .iter()
            .all(|diagnostic| diagnostic.severity == Severity::Warning)
    );
}

#[test]
fn an_unknown_field_outside_the_spec_is_a_warning() {
    let text = np("podSelector: {}")
        .replace("spec:", "extra: 1\nspec:")
        .replace("{name: p", "{name: p, nmae: q");
    let (policy, diagnostics) = policy(&text);
    assert_eq!(policy.ingress, Effect::Rules(Arc::default()));
    assert_eq!(
        codes(&diagnostics),
        [Code::UnknownFieldOutside, Code::UnknownFieldOutside]
    );
    assert!(
        diagnostics
            .iter()
            .all(|diagnostic| diagnostic.severity == Severity::Warning)
    );
}

#[test]
fn rules_that_are_no_rules_are_closed() {
    for rule in [
        "null",
        "x",
        "[]",
        "{from: {}}",
        "{ports: 80}",
        "{from: 10.0.0.0/8}",
    ] {
        let (policy, diagnostics) = policy(&np(&format!("ingress: [{rule}]")));
        assert!(matches_nothing(&rules(&policy.ingress)[0]), "{rule}");
        assert_eq!(codes(&diagnostics), [Code::WrongType], "{rule}");
    }
    let (policy, _) = policy(&np("egress: {to: []}"));
    assert_eq!(
        policy.egress,
        Effect::Rules(Arc::default()),
        "an egress that is no list isolates"
    );
}

#[test]
fn a_spec_that_cannot_be_read_isolates_the_namespace() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: [1]\n";
    let (policy, diagnostics) = policy(text);
    let closed = Effect::Rules(Arc::default());
    assert_eq!((&policy.ingress, &policy.egress), (&closed, &closed));
    assert_eq!(policy.subject.pods, Selector::everything());
    assert_eq!(codes(&diagnostics), [Code::WrongType]);
}

#[test]
fn a_version_that_is_not_known_isolates_its_subject_in_both_directions() {
    for version in [
        "networking.k8s.io/v2",
        "networking.k8s.io/v1beta1",
        "extensions/v1",
    ] {
        let text = np("podSelector: {matchLabels: {app: web}}\ningress: [{}]")
            .replace("networking.k8s.io/v1", version);
        let (policy, diagnostics) = policy(&text);
        for direction in Direction::ALL {
            assert_eq!(
                *policy.effect(direction),
                Effect::Rules(Arc::default()),
                "{version}"
            );
        }
        assert!(
            !policy.subject.pods.matches(&labels(&[("app", "db")])),
            "{version}"
        );
        assert_eq!(codes(&diagnostics), [Code::UnknownVersion], "{version}");
    }
}

#[test]
fn a_diagnostic_is_one_line_with_all_that_is_needed() {
    let (_, diagnostics) = policy(&np(
        "egress:\n- to:\n  - podSelector: {}\n  - ipBlock: {cidr: 10.0.0.0/33}",
    ));
    assert_eq!(
        diagnostics[0].to_string(),
        "error EG0301 NetworkPolicy/shop/p spec.egress[0].to[1].ipBlock.cidr (line 8, column 23): \
         found \"10.0.0.0/33\"; accepted: a network such as 10.0.0.0/8 or fd00::/8; enforced: the rule matches nothing"
    );
}

#[test]
fn an_object_with_errors_without_end_is_closed_and_told_of_a_few() {
    let rules = "- {form: 1}\n".repeat(5_000);
    let (policy, diagnostics) = policy(&np(&format!("ingress:\n{}", rules.trim_end())));
    assert_eq!(diagnostics.len(), 201);
    assert_eq!(diagnostics[200].code, Code::TooManyDiagnostics);
    assert!(common::rules(&policy.ingress).iter().all(matches_nothing));
    let fields: String = (0..5_000).map(|number| format!("x{number}: 1\n")).collect();
    let (policy, diagnostics) =
        crate::common::policy(&np(&format!("ingress: [{{}}]\n{}", fields.trim_end())));
    assert_eq!(
        (policy.ingress, diagnostics.len()),
        (Effect::Rules(Arc::default()), 201)
    );
}
