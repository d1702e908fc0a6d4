//! Renders a pod's rules as one list: an isolating tier ends with a rule that denies everything, and a Pass says where
//! the list continues.

use std::sync::Arc;

use egret_policies::rules::{
    Action, DefaultAction, Digest, Direction, DirectionRules, Origin, PeerMatch, PodRules, PortMatch, Rule,
    SetId, SetKind, Tier, TierRules,
};

use super::layout::{
    CounterKey, CounterTier, ListName, MAX_RULES, PeerValue, PortValue, RuleList, RuleValue,
};
use crate::backend;

/// Why rules cannot be rendered: the pod is denied everything instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unrenderable {
    #[error("its {} rules are {count}, the eBPF programs hold at most {MAX_RULES} for one direction", .direction.word())]
    TooMany { direction: Direction, count: usize },
    #[error("a rule of {policy} names the set {set}, which was never made")]
    UnknownSet { policy: Arc<str>, set: Digest },
}

/// The rendered lists of a pod, and the rules of their counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) egress: Vec<RuleValue>,
    pub(super) ingress: Vec<RuleValue>,
    /// Of both directions, with the policies in audit.
    pub(super) audit: [Vec<RuleValue>; 2],
    /// The rules for which others stand.
    pub(super) attributions: Vec<RuleList>,
    pub(super) labels: Vec<(CounterKey, (Arc<str>, usize))>,
}

/// What of a pod's rules the programs judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// All.
    Everything,
    /// What the pod opens: a packet filter judges everything as well.
    WhatItOpens,
}

/// Renders the rules of a pod; `kind_of` gives the kinds of sets.
pub(super) fn render(
    pod: &PodRules,
    share: Share,
    kind_of: impl Fn(SetId) -> Option<SetKind>,
) -> Result<Rendered, Unrenderable> {
    let none = DirectionRules::default();
    let (ingress, audit) = match share {
        Share::Everything => (&pod.ingress, [&pod.audit.egress, &pod.audit.ingress]),
        Share::WhatItOpens => (&none, [&none; 2]),
    };
    let egress = List::of(&pod.egress, Direction::Egress, &kind_of)?;
    let ingress = List::of(ingress, Direction::Ingress, &kind_of)?;
    let [audit_egress, audit_ingress] = audit;
    let audit_egress = List::of(audit_egress, Direction::Egress, &kind_of)?;
    let audit_ingress = List::of(audit_ingress, Direction::Ingress, &kind_of)?;
    let would_deny = |list: &List| {
        let denying = list.labels.iter();
        let denying = denying.filter(|(key, _)| key.action == backend::Action::Deny);
        let labels = denying.map(|(key, origin)| {
            let action = backend::Action::WouldDeny;
            (CounterKey { action, ..*key }, origin.clone())
        });
        labels.collect::<Vec<_>>()
    };
    let audited = [&audit_egress, &audit_ingress].map(would_deny);
    let mut labels = audited.concat();
    let mut attributions = Vec::new();
    let [egress, ingress, audit_egress, audit_ingress] =
        [egress, ingress, audit_egress, audit_ingress].map(|list| {
            attributions.extend(list.attributions);
            (list.rules, list.labels)
        });
    labels.extend(egress.1.into_iter().chain(ingress.1));
    Ok(Rendered {
        egress: egress.0,
        ingress: ingress.0,
        audit: [audit_egress.0, audit_ingress.0],
        attributions,
        labels,
    })
}

/// Renders rules for what clients outside reach by Services.
pub(super) fn render_outside(
    rules: &DirectionRules,
    kind_of: impl Fn(SetId) -> Option<SetKind>,
) -> Result<Rendered, Unrenderable> {
    let list = List::of(rules, Direction::Egress, &kind_of)?;
    Ok(Rendered {
        egress: list.rules,
        attributions: list.attributions,
        labels: list.labels,
        ..Rendered::default()
    })
}

/// The list of one direction.
struct List {
    direction: Direction,
    rules: Vec<RuleValue>,
    attributions: Vec<RuleList>,
    labels: Vec<(CounterKey, (Arc<str>, usize))>,
}

impl List {
    fn of(
        rules: &DirectionRules,
        direction: Direction,
        kind_of: &impl Fn(SetId) -> Option<SetKind>,
    ) -> Result<Self, Unrenderable> {
        let mut list = Self {
            direction,
            rules: Vec::new(),
            attributions: Vec::new(),
            labels: Vec::new(),
        };
        for tier in &rules.tiers {
            list.append(tier, kind_of)?;
        }
        match list.rules.len() {
            count if count > MAX_RULES => Err(Unrenderable::TooMany { direction, count }),
            _ => Ok(list),
        }
    }

    fn append(
        &mut self,
        tier: &TierRules,
        kind_of: &impl Fn(SetId) -> Option<SetKind>,
    ) -> Result<(), Unrenderable> {
        let rules = || tier.rules.iter();
        let exceptions = rules().filter(|rule| rule.except.is_some()).count();
        let length = rules().count() + exceptions + usize::from(tier.default_action == DefaultAction::Deny);
        let next = u32::try_from(self.rules.len() + length).unwrap_or(u32::MAX);
        for rule in rules() {
            let counter = self.counter(tier.tier, rule.action, &rule.origin);
            let ports = match rule.port {
                PortMatch::Any => PortValue::Any,
                PortMatch::Range(transport, range) => PortValue::Range(transport, range),
                PortMatch::Icmp => PortValue::Icmp,
            };
            if let Some(except) = rule.except {
                // A Pass in front of the rule skips it.
                let behind = u32::try_from(self.rules.len() + 2).unwrap_or(u32::MAX);
                let counter = self.counter(tier.tier, Action::Pass, &rule.origin);
                self.rules.push(RuleValue {
                    counter,
                    peer: in_set(except, rule, kind_of)?,
                    ports: PortValue::Any,
                    next: behind,
                    attribution: ListName::EMPTY,
                });
            }
            let attribution = self.attribution(tier.tier, rule, kind_of)?;
            self.rules.push(RuleValue {
                counter,
                peer: peer(rule, kind_of)?,
                ports,
                next,
                attribution,
            });
        }
        if tier.default_action == DefaultAction::Deny {
            let counter = self.counter(tier.tier, Action::Deny, &isolation());
            self.rules.push(RuleValue {
                counter,
                peer: PeerValue::Any,
                ports: PortValue::Any,
                next,
                attribution: ListName::EMPTY,
            });
        }
        Ok(())
    }

    /// The list of the rules for which a Deny stands: the first that matches is the one that denies.
    fn attribution(
        &mut self,
        tier: Tier,
        rule: &Rule,
        kind_of: &impl Fn(SetId) -> Option<SetKind>,
    ) -> Result<ListName, Unrenderable> {
        let Some(rules) = &rule.attribution else {
            return Ok(ListName::EMPTY);
        };
        let tier = TierRules {
            tier,
            rules: Arc::clone(rules),
            default_action: DefaultAction::NextTier,
        };
        let several = DirectionRules::of(vec![tier]);
        let list = Self::of(&several, self.direction, kind_of)?;
        let named = RuleList::of(&list.rules);
        let name = named.name;
        self.attributions.push(named);
        self.labels.extend(list.labels);
        Ok(name)
    }

    /// Equal rules of different pods share a counter, also after a restart.
    fn counter(&mut self, tier: Tier, action: Action, origin: &Origin) -> CounterKey {
        let (action_name, number) = (format!("{action:?}"), origin.rule.to_string());
        let text = [tier.word(), &action_name, &origin.policy, &number].join("\n");
        let counter = CounterKey {
            tier: CounterTier::Policy(tier),
            action: action.into(),
            direction: self.direction,
            digest: Some(Digest::of(&text)),
        };
        self.labels
            .push((counter, (Arc::clone(&origin.policy), origin.rule)));
        counter
    }
}

/// The origin of the counter at a tier's end.
fn isolation() -> Origin {
    Origin {
        policy: "isolation".into(),
        rule: 0,
        name: None,
    }
}

fn peer(rule: &Rule, kind_of: &impl Fn(SetId) -> Option<SetKind>) -> Result<PeerValue, Unrenderable> {
    match &rule.peer {
        PeerMatch::Any => Ok(PeerValue::Any),
        PeerMatch::OwnNode => Ok(PeerValue::OwnNode),
        PeerMatch::Itself => Ok(PeerValue::Itself),
        PeerMatch::In(set) => in_set(*set, rule, kind_of),
    }
}

fn in_set(
    set: SetId,
    rule: &Rule,
    kind_of: &impl Fn(SetId) -> Option<SetKind>,
) -> Result<PeerValue, Unrenderable> {
    match kind_of(set) {
        Some(SetKind::Addresses | SetKind::Records) => Ok(PeerValue::Addresses(set)),
        Some(SetKind::Networks) => Ok(PeerValue::Networks(set)),
        Some(SetKind::AddressPorts) => Ok(PeerValue::AddressPorts(set)),
        Some(SetKind::NetworkPorts) => Ok(PeerValue::NetworkPorts(set)),
        None => Err(Unrenderable::UnknownSet {
            policy: Arc::clone(&rule.origin.policy),
            set: set.digest(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_policies::rules::{Audit, DirectionRules};
    use egret_shared::net::{PortRange, Transport};
    use egret_shared::pod::PodKey;

    fn rule(action: Action, peer: PeerMatch) -> Rule {
        let port = PortMatch::Range(Transport::Tcp, PortRange::single(443).unwrap());
        Rule {
            action,
            peer,
            except: None,
            port,
            origin: Origin {
                policy: "Kind/a".into(),
                rule: 0,
                name: None,
            },
            attribution: None,
        }
    }

    fn pod(tiers: Vec<TierRules>) -> PodRules {
        PodRules {
            audit: Audit::default(),
            pod: PodKey::new("default", "client"),
            uid: None,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            egress: DirectionRules::of(tiers),
            ingress: DirectionRules::of(Vec::new()),
        }
    }

    fn tier(tier: Tier, rules: Vec<Rule>, otherwise: DefaultAction) -> TierRules {
        TierRules {
            tier,
            rules: rules.into(),
            default_action: otherwise,
        }
    }

    #[test]
    fn a_pass_goes_on_behind_its_tier_and_an_isolating_tier_ends_in_a_deny() {
        let pod = pod(vec![
            tier(
                Tier::Admin,
                vec![
                    rule(Action::Pass, PeerMatch::Any),
                    rule(Action::Deny, PeerMatch::OwnNode),
                ],
                DefaultAction::NextTier,
            ),
            tier(
                Tier::NetworkPolicy,
                vec![rule(Action::Allow, PeerMatch::Any)],
                DefaultAction::Deny,
            ),
        ]);
        let rendered = render(&pod, Share::Everything, |_| None).unwrap();
        let list: Vec<_> = rendered
            .egress
            .iter()
            .map(|rule| (rule.counter.action, rule.peer, rule.next))
            .collect();
        assert_eq!(
            list,
            [
                (Action::Pass.into(), PeerValue::Any, 2),
                (Action::Deny.into(), PeerValue::OwnNode, 2),
                (Action::Allow.into(), PeerValue::Any, 4),
                (Action::Deny.into(), PeerValue::Any, 4),
            ]
        );
        assert_eq!(rendered.egress[3].ports, PortValue::Any);
    }

    #[test]
    fn an_exception_is_a_pass_that_leads_behind_its_rule() {
        let (set, cluster) = (SetId::of_content("world"), SetId::of_content("cluster"));
        let excepting = |action| Rule {
            except: Some(cluster),
            ..rule(action, PeerMatch::In(set))
        };
        let firewalls = |rules| tier(Tier::ClusterEgressFirewall, rules, DefaultAction::NextTier);
        let pod = pod(vec![
            firewalls(vec![excepting(Action::Pass), excepting(Action::Deny)]),
            firewalls(vec![rule(Action::Deny, PeerMatch::Any)]),
        ]);
        let rendered = render(&pod, Share::Everything, |_| Some(SetKind::Networks)).unwrap();
        let list: Vec<_> = rendered
            .egress
            .iter()
            .map(|rule| (rule.counter.action, rule.peer, rule.next))
            .collect();
        assert_eq!(
            list,
            [
                (Action::Pass.into(), PeerValue::Networks(cluster), 2),
                (Action::Pass.into(), PeerValue::Networks(set), 4),
                (Action::Pass.into(), PeerValue::Networks(cluster), 4),
                (Action::Deny.into(), PeerValue::Networks(set), 4),
                (Action::Deny.into(), PeerValue::Any, 5),
            ]
        );
        assert_eq!(
            rendered.egress[0].ports,
            PortValue::Any,
            "an exception is about addresses"
        );
    }

    #[test]
    fn each_direction_has_its_own_list_and_counters() {
        let mut pod = pod(vec![tier(
            Tier::NetworkPolicy,
            vec![rule(Action::Allow, PeerMatch::Any)],
            DefaultAction::Deny,
        )]);
        pod.ingress.tiers = vec![tier(
            Tier::ClusterEgressFirewall,
            vec![Rule {
                port: PortMatch::Icmp,
                ..rule(Action::Deny, PeerMatch::Any)
            }],
            DefaultAction::NextTier,
        )];
        let rendered = render(&pod, Share::Everything, |_| None).unwrap();
        assert_eq!((rendered.egress.len(), rendered.ingress.len()), (2, 1));
        assert_eq!(rendered.ingress[0].ports, PortValue::Icmp);
        let directions = |rules: &[RuleValue]| rules[0].counter.direction;
        assert_eq!(directions(&rendered.egress), Direction::Egress);
        assert_eq!(directions(&rendered.ingress), Direction::Ingress);
        assert_eq!(rendered.labels.len(), 3);
    }

    #[test]
    fn no_tier_is_no_rule_and_an_isolating_tier_without_rules_is_one() {
        assert_eq!(
            render(&pod(Vec::new()), Share::Everything, |_| None)
                .unwrap()
                .egress
                .len(),
            0
        );
        let isolated = pod(vec![tier(Tier::NetworkPolicy, Vec::new(), DefaultAction::Deny)]);
        assert_eq!(
            render(&isolated, Share::Everything, |_| None).unwrap().egress[0]
                .counter
                .action,
            backend::Action::Deny
        );
    }

    #[test]
    fn what_cannot_be_held_is_an_error() {
        let many = pod(vec![tier(
            Tier::NetworkPolicy,
            vec![rule(Action::Allow, PeerMatch::Any); MAX_RULES],
            DefaultAction::Deny,
        )]);
        assert_eq!(
            render(&many, Share::Everything, |_| None),
            Err(Unrenderable::TooMany {
                direction: Direction::Egress,
                count: MAX_RULES + 1
            })
        );
        let set = SetId::of_content("unheard of");
        let unknown = pod(vec![tier(
            Tier::NetworkPolicy,
            vec![rule(Action::Allow, PeerMatch::In(set))],
            DefaultAction::Deny,
        )]);
        assert_eq!(
            render(&unknown, Share::Everything, |_| None),
            Err(Unrenderable::UnknownSet {
                policy: "Kind/a".into(),
                set: set.digest()
            })
        );
    }
}
