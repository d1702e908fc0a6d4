//! AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy, with the contradictions of
//! their texts (X-n) as they were decided.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;

use common::{codes, indent, labels, policy, rules};
use egret_policies::diagnostic::{Code, Severity};
use egret_policies::lower::equal_priorities;
use egret_policies::model::{
    Action, Direction, Effect, Kind, NamespaceSelector, Peer, Peers, Policy, Port, Ports, Rule, Selector,
    Tier,
};
use egret_shared::net::{IpNet, PortRange, Transport};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    Anp,
    Banp,
    Cnp,
}

impl As {
    const ALL: [Self; 3] = [Self::Anp, Self::Banp, Self::Cnp];

    fn allow(self) -> &'static str {
        match self {
            Self::Anp | Self::Banp => "Allow",
            Self::Cnp => "Accept",
        }
    }

    fn ports(self) -> &'static str {
        match self {
            Self::Anp | Self::Banp => "ports",
            Self::Cnp => "protocols",
        }
    }

    /// An object with all that it needs besides rules.
    fn object(self, rest: &str) -> String {
        let head = match self {
            Self::Anp => "priority: 7",
            Self::Banp => "subject: {namespaces: {}}",
            Self::Cnp => "tier: Admin\npriority: 7",
        };
        let subject = if self == Self::Banp || rest.contains("subject:") {
            ""
        } else {
            "subject: {namespaces: {}}\n"
        };
        let head = if self == Self::Banp && rest.contains("subject:") {
            ""
        } else {
            head
        };
        self.bare(&format!("{head}\n{subject}{}", rest.trim()))
    }

    fn bare(self, spec: &str) -> String {
        let (version, kind, name) = match self {
            Self::Anp => ("v1alpha1", "AdminNetworkPolicy", "p"),
            Self::Banp => ("v1alpha1", "BaselineAdminNetworkPolicy", "default"),
            Self::Cnp => ("v1alpha2", "ClusterNetworkPolicy", "p"),
        };
        let spec = indent(spec.trim(), 2);
        format!(
            "apiVersion: policy.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n"
        )
    }

    fn egress(self, action: &str, rest: &str) -> (Vec<Rule>, Vec<Code>) {
        let rule = indent(rest.trim(), 2);
        let (policy, diagnostics) = policy(&self.object(&format!("egress:\n- action: {action}\n  {rule}")));
        (rules(&policy.egress).to_vec(), codes(&diagnostics))
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn everything() -> NamespaceSelector {
    NamespaceSelector::Matching(Selector::everything())
}

fn range(transport: Transport, first: u16, last: u16) -> Port {
    Port::Range(transport, PortRange::new(first, last).unwrap())
}

fn is_deny_all(rule: &Rule) -> bool {
    (rule.action, &rule.peers, &rule.ports) == (Action::Deny, &Peers::Any, &Ports::Any)
}

fn matches_nothing(rule: &Rule) -> bool {
    rule.peers == Peers::OneOf([].into()) || rule.ports == Ports::OneOf([].into())
}

/// Fail closed, as the types' comments of both groups prescribe it.
fn assert_closed(dialect: As, rest: &str, expected: Code) {
    for action in [dialect.allow(), "Deny", "Pass"] {
        let (rules, codes) = dialect.egress(action, rest);
        assert_eq!(rules.len(), 1, "{dialect:?} {action} {rest}");
        assert_eq!(
            codes.first(),
            Some(&expected),
            "{dialect:?} {action} {rest}: {codes:?}"
        );
        if action == dialect.allow() {
            assert_eq!(rules[0].action, Action::Allow);
            assert!(matches_nothing(&rules[0]), "{dialect:?} {rest}: {rules:?}");
        } else {
            assert!(is_deny_all(&rules[0]), "{dialect:?} {action} {rest}: {rules:?}");
        }
    }
}

#[test]
fn a_policy_stands_where_its_kind_tier_and_priority_say() {
    for (text, id, tier, priority) in [
        (As::Anp.object(""), "AdminNetworkPolicy/p", Tier::Admin, 7),
        (
            As::Banp.object(""),
            "BaselineAdminNetworkPolicy/default",
            Tier::Baseline,
            u32::MAX,
        ),
        (As::Cnp.object(""), "ClusterNetworkPolicy/p", Tier::Admin, 7),
        (
            As::Cnp.object("").replace("Admin\n", "Baseline\n"),
            "ClusterNetworkPolicy/p",
            Tier::Baseline,
            7,
        ),
    ] {
        let (policy, diagnostics) = policy(&text);
        assert_eq!(diagnostics, [], "{text}");
        assert_eq!(policy.id.to_string(), id);
        assert_eq!((policy.rank.tier, policy.rank.priority), (tier, priority), "{id}");
        assert_eq!(
            (policy.ingress, policy.egress),
            (Effect::None, Effect::None),
            "{id}"
        );
    }
}

#[test]
fn rules_keep_their_order_names_and_actions() {
    let (policy, diagnostics) = policy(&As::Cnp.object(
        "ingress:
- {name: first, action: Accept, from: [{namespaces: {}}]}
- {action: Deny, from: [{pods: {podSelector: {}}}]}
- {name: last, action: Pass, from: [{namespaces: {}}]}",
    ));
    assert_eq!(diagnostics, []);
    let seen: Vec<_> = rules(&policy.ingress)
        .iter()
        .map(|rule| (rule.index, rule.name.as_deref(), rule.action))
        .collect();
    assert_eq!(
        seen,
        [
            (0, Some("first"), Action::Allow),
            (1, None, Action::Deny),
            (2, Some("last"), Action::Pass)
        ]
    );
    assert_eq!(policy.egress, Effect::None);
}

#[test]
fn subjects_are_namespaces_or_pods() {
    for (dialect, subject, warned) in [
        (As::Anp, "namespaces: {matchLabels: {team: a}}", false),
        (As::Cnp, "pods: {podSelector: {matchLabels: {app: web}}}", false),
        (
            As::Anp,
            "pods: {podSelector: {matchLabels: {app: web}}, namespaceSelector: {}}",
            false,
        ),
        (As::Anp, "pods: {podSelector: {matchLabels: {app: web}}}", true),
        (
            As::Banp,
            "pods: {namespaceSelector: {matchLabels: {team: a}}}",
            true,
        ),
    ] {
        let (policy, diagnostics) = policy(&dialect.object(&format!(
            "subject: {{{subject}}}\negress: [{{action: Deny, to: [{{namespaces: {{}}}}]}}]"
        )));
        let expected: &[Code] = if warned { &[Code::HalfSelector] } else { &[] };
        assert_eq!(codes(&diagnostics), expected, "{dialect:?} {subject}");
        let of_namespace = |labels: &egret_policies::model::Labels| match &policy.subject.namespaces {
            NamespaceSelector::Matching(selector) => selector.matches(labels),
            NamespaceSelector::Named(name) => panic!("{name}"),
        };
        assert!(of_namespace(&labels(&[("team", "a")])), "{subject}");
        assert_eq!(of_namespace(&labels(&[])), !subject.contains("team"), "{subject}");
        assert_eq!(
            policy.subject.pods.matches(&labels(&[])),
            !subject.contains("app"),
            "{subject}"
        );
        assert!(!matches_nothing(&rules(&policy.egress)[0]), "{subject}");
    }
}

#[test]
fn peers_of_egress() {
    for dialect in As::ALL {
        for (peer, expected) in [
            (
                "namespaces: {}",
                Peer::Pods {
                    namespaces: everything(),
                    pods: Selector::everything(),
                },
            ),
            (
                "pods: {namespaceSelector: {}, podSelector: {}}",
                Peer::Pods {
                    namespaces: everything(),
                    pods: Selector::everything(),
                },
            ),
            ("nodes: {}", Peer::Nodes(Selector::everything())),
            (
                "networks: [10.0.0.0/8, '::/0']",
                Peer::Networks(vec![net("10.0.0.0/8"), net("::/0")]),
            ),
        ] {
            let (rules, codes) = dialect.egress("Deny", &format!("to: [{{{peer}}}]"));
            assert_eq!(codes, [], "{dialect:?} {peer}");
            assert_eq!(
                rules[0].peers,
                Peers::OneOf([expected].into()),
                "{dialect:?} {peer}"
            );
            assert_eq!(rules[0].ports, Ports::Any);
        }
    }
}

#[test]
fn domain_names_are_read_with_any_case_and_final_dot() {
    for dialect in [As::Anp, As::Cnp] {
        let (rules, codes) = dialect.egress(
            dialect.allow(),
            "to: [{domainNames: [API.Example.com., '*.example.org']}]",
        );
        assert_eq!(codes, []);
        let names = vec![
            "api.example.com".parse().unwrap(),
            "*.example.org".parse().unwrap(),
        ];
        assert_eq!(
            rules[0].peers,
            Peers::OneOf([Peer::Names(names)].into()),
            "{dialect:?}"
        );
    }
}

/// The schema admits them (`A-z`, no length limits); nobody can be told an address for them.
#[test]
fn invalid_names_match_nothing_and_the_others_count() {
    let long = "a".repeat(64);
    for name in [
        "'[x.io'",
        "'*'",
        "'*.com'",
        "localhost",
        "'a.*.io'",
        "'**.x.io'",
        "_dmarc.x.io",
        &format!("{long}.io"),
    ] {
        let (rules, codes) = As::Cnp.egress("Accept", &format!("to: [{{domainNames: [{name}, good.io]}}]"));
        assert_eq!(codes, [Code::InvalidDomain], "{name}");
        let names = Peer::Names(vec!["good.io".parse().unwrap()]);
        assert_eq!(rules[0].peers, Peers::OneOf([names].into()), "{name}");
    }
    let (rules, codes) = As::Anp.egress("Allow", "to: [{domainNames: ['*']}]");
    assert_eq!(codes, [Code::InvalidDomain]);
    assert_eq!(rules[0].peers, Peers::OneOf([Peer::Names(Vec::new())].into()));
    let (_, codes) = As::Anp.egress("Allow", "to: [{domainNames: [1.2.3.4, x.io, X.io]}]");
    assert_eq!(codes, [Code::DomainNameIsAddress, Code::DuplicateItem]);
}

/// X-6, F-6: names only where they allow.
#[test]
fn domain_names_in_deny_and_pass_become_deny_all() {
    for dialect in [As::Anp, As::Cnp] {
        for action in ["Deny", "Pass"] {
            let (rules, codes) = dialect.egress(action, "to: [{domainNames: [x.io]}, {namespaces: {}}]");
            assert_eq!(codes, [Code::DomainNamesNeedAllow], "{dialect:?} {action}");
            assert!(is_deny_all(&rules[0]), "{dialect:?} {action}");
        }
    }
}

/// F-7 and the schema of BaselineAdminNetworkPolicy.
#[test]
fn peers_that_a_direction_or_kind_does_not_have_are_unknown() {
    let (rules, codes) = As::Banp.egress("Allow", "to: [{domainNames: [x.io]}]");
    assert_eq!(codes, [Code::UnknownField]);
    assert!(matches_nothing(&rules[0]));
    for dialect in As::ALL {
        for peer in ["networks: [10.0.0.0/8]", "nodes: {}", "domainNames: [x.io]"] {
            let text = dialect.object(&format!("ingress: [{{action: Deny, from: [{{{peer}}}]}}]"));
            let (policy, diagnostics) = policy(&text);
            assert_eq!(codes_of(&diagnostics), [Code::UnknownField], "{dialect:?} {peer}");
            assert!(
                is_deny_all(&rules_of(&policy, Direction::Ingress)[0]),
                "{dialect:?} {peer}"
            );
        }
    }
}

fn codes_of(diagnostics: &[egret_policies::diagnostic::Diagnostic]) -> Vec<Code> {
    codes(diagnostics)
}

fn rules_of(policy: &Policy, direction: Direction) -> &[Rule] {
    rules(policy.effect(direction))
}

/// Corner case 21: a peer of a newer version must not make a Deny vanish.
#[test]
fn what_is_not_understood_fails_closed() {
    for dialect in [As::Anp, As::Cnp] {
        let ports = dialect.ports();
        for (rest, code) in [
            ("to: [{}]", Code::UnknownAlternative),
            ("to: [{services: {}}]", Code::UnknownField),
            ("to: [{namespaces: {}}, {all: {}}]", Code::UnknownField),
            (
                "to: [{namespaces: {}, networks: [10.0.0.0/8]}]",
                Code::SeveralAlternatives,
            ),
            ("to: []", Code::EmptyList),
            ("name: x", Code::FieldMissing),
            ("to: null", Code::FieldMissing),
            ("to: {namespaces: {}}", Code::WrongType),
            ("to: [{namespaces: {sameLabels: [a]}}]", Code::UnknownField),
            ("to: [{namespaces: {namespaceSelector: {}}}]", Code::UnknownField),
            (
                "to: [{namespaces: {matchExpressions: [{key: a, operator: Foo}]}}]",
                Code::InvalidSelector,
            ),
            (
                "to: [{pods: {}}]",
                if dialect == As::Cnp {
                    Code::FieldMissing
                } else {
                    Code::UnknownAlternative
                },
            ),
            ("to: [{nodes: {matchLabels: {'a b': c}}}]", Code::InvalidSelector),
            ("to: [{networks: []}]", Code::EmptyList),
            ("to: [{networks: [10.0.0.0/33]}]", Code::InvalidCidr),
            ("to: [{networks: [10.0.0.0/8, x]}]", Code::InvalidCidr),
            ("to: [{networks: 10.0.0.0/8}]", Code::WrongType),
            ("to: [{namespaces: {}}]\nform: 1", Code::UnknownField),
            (
                "from: [{namespaces: {}}]\nto: [{namespaces: {}}]",
                Code::UnknownField,
            ),
            ("to: [{namespaces: {}}]\nname: [x]", Code::WrongType),
            (
                &format!("to: [{{namespaces: {{}}}}]\n{ports}: []"),
                Code::EmptyList,
            ),
            (
                &format!("to: [{{namespaces: {{}}}}]\n{ports}: [{{}}]"),
                Code::UnknownAlternative,
            ),
            (
                &format!("to: [{{namespaces: {{}}}}]\n{ports}: [{{icmp: {{}}}}]"),
                Code::UnknownField,
            ),
            (
                &format!("to: [{{namespaces: {{}}}}]\n{ports}: 80"),
                Code::WrongType,
            ),
        ] {
            assert_closed(dialect, rest, code);
        }
    }
    assert_closed(
        As::Cnp,
        "to: [{namespaces: {}}]\nports: [{portNumber: {port: 80}}]",
        Code::UnknownField,
    );
    assert_closed(
        As::Anp,
        "to: [{namespaces: {}}]\nprotocols: [{tcp: {}}]",
        Code::UnknownField,
    );
}

/// The author of a policy that is closed as a whole learns of all its mistakes at once.
#[test]
fn an_unknown_field_of_the_spec_hides_nothing_else_that_is_wrong() {
    let rules = "policyTypes: [Egress]\negress: [{action: Allow, to: [{namespaces: {}}]}, {action: Deny, to: [{networks: [10.0.0.0/33]}]}]";
    let (policy, diagnostics) = policy(&As::Cnp.object(rules));
    assert_eq!(
        codes_of(&diagnostics),
        [Code::UnknownField, Code::InvalidAction, Code::InvalidCidr]
    );
    for diagnostic in &diagnostics {
        assert_eq!(
            diagnostic.enforced, "everything is denied to its subject, in both directions",
            "{diagnostic}"
        );
    }
    assert_eq!(
        policy.ingress.rules().len(),
        1,
        "denied in the other direction, too"
    );
}

#[test]
fn the_enforced_part_of_a_diagnostic_says_what_became_of_the_rule() {
    for (action, enforced) in [
        ("Accept", "the rule matches nothing"),
        ("Pass", "the rule denies everything"),
    ] {
        let (_, diagnostics) =
            policy(&As::Cnp.object(&format!("egress: [{{action: {action}, to: [{{}}]}}]")));
        assert_eq!(diagnostics[0].enforced, enforced);
        assert_eq!(diagnostics[0].field, "spec.egress[0].to[0]");
    }
}

#[test]
fn an_action_that_is_none_denies_everything() {
    for (dialect, action) in [
        (As::Anp, "Accept"),
        (As::Cnp, "Allow"),
        (As::Cnp, "deny"),
        (As::Banp, "Pass"),
        (As::Cnp, "''"),
    ] {
        let (rules, codes) = dialect.egress(action, "to: [{networks: [10.0.0.0/8]}]");
        assert_eq!(codes, [Code::InvalidAction], "{dialect:?} {action}");
        assert!(is_deny_all(&rules[0]), "{dialect:?} {action}");
    }
    let (policy, diagnostics) = policy(&As::Anp.object("egress: [{to: [{namespaces: {}}]}]"));
    assert_eq!(codes(&diagnostics), [Code::FieldMissing]);
    assert!(is_deny_all(&rules(&policy.egress)[0]));
}

#[test]
fn ports_of_the_first_version() {
    for (ports, expected, warned) in [
        (
            "[{portNumber: {port: 80}}]",
            vec![range(Transport::Tcp, 80, 80)],
            None,
        ),
        (
            "[{portNumber: {port: 53, protocol: UDP}}]",
            vec![range(Transport::Udp, 53, 53)],
            None,
        ),
        (
            "[{portRange: {start: 1, end: 9, protocol: SCTP}}]",
            vec![range(Transport::Sctp, 1, 9)],
            None,
        ),
        // the schema does not ask for start < end.
        (
            "[{portRange: {start: 9, end: 9}}]",
            vec![range(Transport::Tcp, 9, 9)],
            None,
        ),
        (
            "[{portRange: {start: 9, end: 1}}]",
            vec![],
            Some(Code::EmptyRange),
        ),
        (
            "[{namedPort: web}]",
            vec![Port::Named {
                name: "web".into(),
                transport: None,
            }],
            None,
        ),
        // The schema admits any text as a protocol.
        (
            "[{portNumber: {port: 80, protocol: tcp}}, {portNumber: {port: 81}}]",
            vec![range(Transport::Tcp, 81, 81)],
            Some(Code::InvalidProtocol),
        ),
    ] {
        for action in ["Allow", "Deny", "Pass"] {
            let (rules, codes) =
                As::Anp.egress(action, &format!("to: [{{namespaces: {{}}}}]\nports: {ports}"));
            assert_eq!(codes, Vec::from_iter(warned), "{ports}");
            assert_eq!(rules[0].ports, Ports::OneOf(expected.clone().into()), "{ports}");
            assert_ne!(rules[0].peers, Peers::Any, "{ports}");
        }
    }
    for (port, code) in [
        ("portNumber: {port: 0}", Code::InvalidPort),
        ("portNumber: {port: '80'}", Code::InvalidPort),
        ("portNumber: {}", Code::FieldMissing),
        ("portNumber: 80", Code::WrongType),
        ("portRange: {start: 1}", Code::FieldMissing),
        ("portRange: {start: 1, end: 65536}", Code::InvalidPort),
        (
            "portNumber: {port: 80}, namedPort: web",
            Code::SeveralAlternatives,
        ),
        ("portNumber: {port: 80, endPort: 90}", Code::UnknownField),
    ] {
        assert_closed(
            As::Anp,
            &format!("to: [{{namespaces: {{}}}}]\nports: [{{{port}}}]"),
            code,
        );
    }
}

#[test]
fn protocols_of_the_second_version() {
    for (protocols, expected, noted) in [
        (
            "[{tcp: {destinationPort: {number: 80}}}]",
            vec![range(Transport::Tcp, 80, 80)],
            None,
        ),
        (
            "[{udp: {destinationPort: {range: {start: 1, end: 9}}}}]",
            vec![range(Transport::Udp, 1, 9)],
            None,
        ),
        // the type's comment against minProperties.
        (
            "[{sctp: {}}]",
            vec![range(Transport::Sctp, 1, 65535)],
            Some(Code::AllPortsOfProtocol),
        ),
        (
            "[{tcp: {destinationPort: {range: {start: 9, end: 9}}}}]",
            vec![range(Transport::Tcp, 9, 9)],
            Some(Code::SinglePortRange),
        ),
        (
            "[{destinationNamedPort: web}]",
            vec![Port::Named {
                name: "web".into(),
                transport: None,
            }],
            None,
        ),
    ] {
        let (rules, codes) = As::Cnp.egress(
            "Deny",
            &format!("to: [{{namespaces: {{}}}}]\nprotocols: {protocols}"),
        );
        assert_eq!(codes, Vec::from_iter(noted), "{protocols}");
        assert_eq!(rules[0].ports, Ports::OneOf(expected.into()), "{protocols}");
    }
    for (protocol, code) in [
        ("tcp: null", Code::UnknownAlternative),
        ("tcp: {destinationPort: {}}", Code::UnknownAlternative),
        ("tcp: {destinationPort: {number: 0}}", Code::InvalidPort),
        ("tcp: {destinationPort: 80}", Code::WrongType),
        (
            "tcp: {destinationPort: {number: 1, range: {start: 1, end: 2}}}",
            Code::SeveralAlternatives,
        ),
        (
            "tcp: {destinationPort: {range: {start: 2, end: 1}}}",
            Code::InvalidPort,
        ),
        ("tcp: {port: 80}", Code::UnknownField),
        (
            "tcp: {destinationPort: {number: 1}}, udp: {}",
            Code::SeveralAlternatives,
        ),
        ("destinationNamedPort: [web]", Code::WrongType),
    ] {
        assert_closed(
            As::Cnp,
            &format!("to: [{{namespaces: {{}}}}]\nprotocols: [{{{protocol}}}]"),
            code,
        );
    }
}

/// The standard schema admits the combination (the rule against it is in the experimental one).
#[test]
fn a_named_port_with_peers_that_are_no_pods_matches_nothing() {
    for peer in ["networks: [10.0.0.0/8]", "nodes: {}", "domainNames: [x.io]"] {
        let (rules, codes) = As::Cnp.egress(
            "Accept",
            &format!("to: [{{{peer}}}]\nprotocols: [{{destinationNamedPort: web}}]"),
        );
        assert_eq!(codes, [Code::NamedPortWithoutPod], "{peer}");
        assert!(matches_nothing(&rules[0]), "{peer}");
    }
    let (rules, codes) = As::Cnp.egress(
        "Deny",
        "to: [{networks: [10.0.0.0/8]}]\nprotocols: [{destinationNamedPort: web}]",
    );
    assert_eq!(codes, [Code::NamedPortWithoutPod], "for every action");
    assert!(matches_nothing(&rules[0]) && rules[0].action == Action::Deny);
}

/// A subject that is not understood is wider for Deny and isolation, and opens nothing.
#[test]
fn a_subject_that_cannot_be_read_denies_to_all_that_may_be_meant_and_allows_nothing() {
    let three = "egress:\n- {action: Accept, to: [{namespaces: {}}]}\n- {action: Deny, to: [{networks: [10.0.0.0/8]}]}\n- {action: Pass, to: [{namespaces: {}}]}";
    for (subject, limited) in [
        ("{}", false),
        ("null", false),
        ("{namespace: {}}", false),
        ("{namespaces: {}, pods: {podSelector: {}}}", false),
        (
            "{pods: {podSelector: {matchLabels: {app: web}}, podselector: {}}}",
            true,
        ),
        ("{pods: {podSelector: {matchLabels: {app: web, 'a b': c}}}}", true),
        (
            "{pods: {podSelector: {matchLabels: {app: web}, matchExpressions: [{key: a, operator: Foo}]}}}",
            true,
        ),
    ] {
        let (policy, diagnostics) = policy(&As::Cnp.object(&format!("subject: {subject}\n{three}")));
        assert!(
            policy.subject.pods.matches(&labels(&[("app", "web")])),
            "{subject}"
        );
        assert_eq!(
            policy.subject.pods.matches(&labels(&[("app", "db")])),
            !limited,
            "{subject}"
        );
        let rules = rules(&policy.egress);
        assert!(matches_nothing(&rules[0]), "{subject}");
        assert_eq!(
            rules[1].peers,
            Peers::OneOf([Peer::Networks(vec![net("10.0.0.0/8")])].into()),
            "{subject}"
        );
        assert!(is_deny_all(&rules[2]), "{subject}");
        assert_eq!(diagnostics[0].severity, Severity::Error, "{subject}");
    }
}

#[test]
fn an_unreadable_tier_or_priority_is_the_strongest_and_allows_nothing() {
    let rest = "subject: {namespaces: {}}\ningress:\n- {action: Accept, from: [{namespaces: {}}]}\n- {action: Deny, from: [{namespaces: {}}]}";
    for (head, code) in [
        ("tier: Baseline\npriority: 1001", Code::InvalidPriority),
        ("tier: Baseline\npriority: -1", Code::InvalidPriority),
        ("tier: Baseline\npriority: '5'", Code::InvalidPriority),
        ("tier: Baseline", Code::FieldMissing),
        ("tier: admin\npriority: 3", Code::InvalidTier),
        ("priority: 3", Code::FieldMissing),
    ] {
        let (policy, diagnostics) = policy(&As::Cnp.bare(&format!("{head}\n{rest}")));
        assert_eq!(codes(&diagnostics), [code], "{head}");
        let strongest = policy.rank.tier == Tier::Admin || policy.rank.priority == 0;
        assert!(strongest, "{head}: {:?}", policy.rank);
        let rules = rules(&policy.ingress);
        assert!(
            matches_nothing(&rules[0]) && !matches_nothing(&rules[1]),
            "{head}"
        );
    }
}

#[test]
fn a_baseline_that_is_not_called_default_allows_nothing() {
    let text = As::Banp
        .object("ingress: [{action: Allow, from: [{namespaces: {}}]}]")
        .replace("name: default", "name: other");
    let (policy, diagnostics) = policy(&text);
    assert_eq!(codes(&diagnostics), [Code::BaselineName]);
    assert!(matches_nothing(&rules(&policy.ingress)[0]));
}

#[test]
fn an_unknown_field_of_the_spec_denies_everything_to_the_subject() {
    for dialect in As::ALL {
        let text = dialect.object("subject: {namespaces: {matchLabels: {team: a}}}\negres: []\ningress: []");
        let (policy, diagnostics) = policy(&text);
        assert_eq!(
            codes(&diagnostics).first(),
            Some(&Code::UnknownField),
            "{dialect:?}"
        );
        for direction in Direction::ALL {
            assert!(is_deny_all(&rules_of(&policy, direction)[0]), "{dialect:?}");
        }
        assert_ne!(policy.subject.namespaces, everything(), "{dialect:?}");
    }
}

#[test]
fn a_spec_that_is_not_there_denies_everything_to_everybody() {
    for dialect in As::ALL {
        let text = dialect.bare("x").replace("spec:\n  x\n", "");
        let (policy, diagnostics) = policy(&text);
        assert_eq!(codes(&diagnostics), [Code::FieldMissing], "{dialect:?}");
        assert_eq!(
            (&policy.subject.namespaces, &policy.subject.pods),
            (&everything(), &Selector::everything())
        );
        for direction in Direction::ALL {
            assert!(is_deny_all(&rules_of(&policy, direction)[0]), "{dialect:?}");
        }
    }
}

#[test]
fn rules_that_are_no_list_deny_everything_in_their_direction() {
    let (policy, diagnostics) = policy(&As::Anp.object("egress: {action: Deny}"));
    assert_eq!(codes(&diagnostics), [Code::WrongType]);
    assert!(is_deny_all(&rules(&policy.egress)[0]));
    assert_eq!(policy.ingress, Effect::None);
}

#[test]
fn versions_that_are_not_known_deny_everything_in_the_directions_that_they_name() {
    for (text, kind) in [
        (
            As::Cnp
                .object("egress: [{action: Accept, to: [{namespaces: {}}]}]")
                .replace("v1alpha2", "v1beta1"),
            Kind::ClusterNetworkPolicy,
        ),
        (
            As::Anp
                .object("egress: [{action: Allow}]")
                .replace("v1alpha1", "v1alpha2"),
            Kind::AdminNetworkPolicy,
        ),
        (
            As::Banp.object("egress: [{}]").replace("v1alpha1", "v1"),
            Kind::BaselineAdminNetworkPolicy,
        ),
    ] {
        let (policy, diagnostics) = policy(&text);
        assert_eq!(codes(&diagnostics), [Code::UnknownVersion], "{kind}");
        assert_eq!(policy.id.kind, kind);
        assert!(is_deny_all(&rules(&policy.egress)[0]), "{kind}");
        assert_eq!(policy.ingress, Effect::None, "{kind}");
    }
    let text = As::Cnp.bare("rules: []").replace("v1alpha2", "v1");
    let (policy, _) = policy(&text);
    for direction in Direction::ALL {
        assert!(is_deny_all(&rules_of(&policy, direction)[0]));
    }
    assert_eq!(policy.subject.namespaces, everything());
}

#[test]
fn more_than_the_api_admits_is_a_warning() {
    let items = vec!["10.0.0.0/8"; 1]
        .into_iter()
        .map(str::to_owned)
        .chain((0..25).map(|i| format!("11.0.{i}.0/24")));
    let networks = items.collect::<Vec<_>>().join(", ");
    let (rules, codes) = As::Cnp.egress("Deny", &format!("to: [{{networks: [{networks}]}}]"));
    assert_eq!(codes, [Code::OverLimit]);
    assert!(
        matches!(&rules[0].peers, Peers::OneOf(peers) if matches!(&peers[..], [Peer::Networks(nets)] if nets.len() == 26))
    );
}

/// The API leaves open who goes first; whoever relies on it should know.
#[test]
fn equal_priorities_are_told_to_both() {
    let of = |text: &str| policy(text).0;
    let (anp, cnp) = (of(&As::Anp.object("")), of(&As::Cnp.object("")));
    let baseline = of(&As::Cnp.object("").replace("Admin\n", "Baseline\n"));
    let diagnostics = equal_priorities([&anp, &cnp, &baseline]);
    assert_eq!(codes(&diagnostics), [Code::EqualPriority, Code::EqualPriority]);
    assert_eq!(diagnostics[0].object.to_string(), "ClusterNetworkPolicy/p");
    assert_eq!(diagnostics[0].enforced, "it is asked as number 1 of 2");
    assert_eq!(equal_priorities([&anp, &baseline]), []);
}
