//! NetworkPolicy: `networking.k8s.io/v1`, and the closed form of versions that are not known.

use std::sync::Arc;

use super::rule::{self, RuleLabel};
use super::selector;
use super::{id_of, network, port, spec};
use crate::api::{Field, Notes, Object, Refused};
use crate::diagnostic::Code;
use crate::model::{
    Action, Direction, Effect, Enforcement, Exposure, Kind, NamespaceSelector, Peer, Peers, Policy, Rank,
    Rule, Selector, Subject, Tier,
};

const SPEC: [&str; 4] = ["podSelector", "policyTypes", "ingress", "egress"];
const NO_RULES: &str = "the policy isolates in both directions and allows nothing";
const NOTHING: &str = "the rule matches nothing";

/// `networking.k8s.io/v1`.
pub(super) fn lower(object: &Object, notes: &mut Notes) -> Policy {
    let mark = notes.mark();
    let spec = match spec::spec(object, notes) {
        Ok(spec) => spec,
        Err(Refused) => {
            notes.enforce(mark, NO_RULES);
            return isolating(
                object,
                Kind::NetworkPolicy,
                Selector::everything(),
                &Direction::ALL,
            );
        }
    };
    // A field that belongs to no rule might have restricted every rule, or named a direction.
    let whole = spec.as_ref().map_or(Ok(()), |spec| spec.only(&SPEC, notes));
    notes.enforce(mark, NO_RULES);
    let field = |key: &str| spec.as_ref().and_then(|spec| spec.get(key));
    let (pods, sound) = selector::widened(field("podSelector").as_ref(), notes);
    notes.enforce(mark, "the requirement counts as met, and the rules match nothing");
    let own = own_namespace(object);
    let rules_of = |direction: Direction, notes: &mut Notes| {
        NetworkPolicyReader { own: &own, direction }.rules(field(direction.word()), notes)
    };
    let ingress = rules_of(Direction::Ingress, notes);
    let egress = rules_of(Direction::Egress, notes);
    let types = policy_types(field("policyTypes").as_ref(), &egress, notes);
    let mut policy = isolating(object, Kind::NetworkPolicy, pods, &[]);
    for (direction, rules) in [(Direction::Ingress, ingress), (Direction::Egress, egress)] {
        let effect = match (whole, types.contains(&direction)) {
            (Err(Refused), _) => Effect::Rules(Arc::default()),
            (Ok(()), true) => Effect::Rules(if sound { rules.rules.into() } else { Arc::default() }),
            (Ok(()), false) => {
                rules.warn_if_ignored(direction, notes);
                Effect::None
            }
        };
        *effect_mut(&mut policy, direction) = effect;
    }
    policy
}

/// The rules of a direction as they are written, whether or not the policy is about it.
struct RawRules<'a> {
    /// The list; none where there is none.
    list: Option<Field<'a>>,
    rules: Vec<Rule>,
    /// Whether something is there, readable or not.
    any: bool,
}

impl RawRules<'_> {
    fn warn_if_ignored(&self, direction: Direction, notes: &mut Notes) {
        if let Some(list) = self.list.as_ref().filter(|_| self.any) {
            let accepted = format!("policyTypes that lists the direction {}", direction.word());
            list.tell(
                Code::RulesIgnored,
                list.describe(),
                &accepted,
                "the rules are ignored",
                notes,
            );
        }
    }
}

/// Reads the rules of a direction.
struct NetworkPolicyReader<'n> {
    /// The policy's namespace: the one of peers that do not name any.
    own: &'n Arc<str>,
    direction: Direction,
}

impl NetworkPolicyReader<'_> {
    fn rules<'a>(&self, list: Option<Field<'a>>, notes: &mut Notes) -> RawRules<'a> {
        let mark = notes.mark();
        let items = list
            .as_ref()
            .map_or_else(|| Ok(Vec::new()), |list| list.items(notes));
        notes.enforce(mark, "the direction is isolated and nothing is allowed");
        let Ok(items) = items else {
            return RawRules {
                list,
                rules: Vec::new(),
                any: true,
            };
        };
        RawRules {
            rules: items
                .iter()
                .enumerate()
                .flat_map(|(index, item)| self.rule_or_nothing(item, index, notes))
                .collect(),
            any: !items.is_empty(),
            list,
        }
    }

    fn rule_or_nothing(&self, item: &Field<'_>, index: usize, notes: &mut Notes) -> Vec<Rule> {
        let mark = notes.mark();
        let label = RuleLabel { index, name: None };
        let rules = self.rule(item, &label, notes);
        notes.enforce(mark, NOTHING);
        rules.unwrap_or_else(|Refused| vec![rule::nothing(&label, Action::Allow)])
    }

    fn rule(&self, item: &Field<'_>, label: &RuleLabel, notes: &mut Notes) -> Result<Vec<Rule>, Refused> {
        let other_end = match self.direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        // Everything is read before anything is given up, so that all that is wrong is said at once.
        let known = item.only(&[other_end, "ports"], notes);
        let peers = self.peers(item.get(other_end).as_ref(), notes);
        let ports = some(item.get("ports").as_ref(), notes)
            .and_then(|items| port::all(items, port::network_policy_port, notes));
        known?;
        let both = (peers?, ports?);
        Ok(rule::rules(
            item,
            label,
            (Action::Allow, self.direction),
            both,
            notes,
        ))
    }

    fn peers(&self, field: Option<&Field<'_>>, notes: &mut Notes) -> Result<Peers, Refused> {
        let Some(items) = some(field, notes)? else {
            return Ok(Peers::Any);
        };
        let peers: Vec<_> = items.iter().map(|item| self.peer(item, notes)).collect();
        peers.into_iter().collect::<Result<_, _>>().map(Peers::OneOf)
    }

    fn peer(&self, item: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
        item.only(&["podSelector", "namespaceSelector", "ipBlock"], notes)?;
        match (
            item.get("ipBlock"),
            item.get("namespaceSelector"),
            item.get("podSelector"),
        ) {
            (Some(block), None, None) => network::ip_block(&block, notes).map(Peer::Networks),
            (Some(_), _, _) => {
                Err(item.refuse(Code::SeveralAlternatives, "ipBlock alone, or selectors", notes))
            }
            (None, None, None) => {
                let accepted = "podSelector, namespaceSelector, both, or ipBlock";
                Err(item.refuse(Code::UnknownAlternative, accepted, notes))
            }
            (None, namespaces, pods) => self.pods(namespaces.as_ref(), pods.as_ref(), notes),
        }
    }

    fn pods(
        &self,
        namespaces: Option<&Field<'_>>,
        pods: Option<&Field<'_>>,
        notes: &mut Notes,
    ) -> Result<Peer, Refused> {
        let own = || Ok(NamespaceSelector::Named(Arc::clone(self.own)));
        let everything = || Ok(Selector::everything());
        Ok(Peer::Pods {
            namespaces: namespaces.map_or_else(own, |field| selector::namespaces(field, notes))?,
            pods: pods.map_or_else(everything, |field| selector::selector(field, notes))?,
        })
    }
}

/// The items of a list that means everything when it is missing or empty.
fn some<'a>(field: Option<&Field<'a>>, notes: &mut Notes) -> Result<Option<Vec<Field<'a>>>, Refused> {
    let items = field.map(|field| field.items(notes)).transpose()?;
    Ok(items.filter(|items| !items.is_empty()))
}

/// The directions that the policy is about. Absent and empty are the same, and mean ingress, and egress
/// where there is an egress rule (`SetDefaults_NetworkPolicy` of k8s.io/kubernetes).
fn policy_types(field: Option<&Field<'_>>, egress: &RawRules<'_>, notes: &mut Notes) -> Vec<Direction> {
    let mark = notes.mark();
    let types = field.map_or(Ok(Vec::new()), |field| {
        let items = field.items(notes)?;
        items
            .iter()
            .map(|item| policy_type(item, notes))
            .collect::<Result<Vec<_>, _>>()
    });
    notes.enforce(mark, "the policy isolates in both directions");
    match types {
        Err(Refused) => Direction::ALL.to_vec(),
        Ok(types) if !types.is_empty() => types,
        Ok(_) if egress.any => Direction::ALL.to_vec(),
        Ok(_) => vec![Direction::Ingress],
    }
}

fn policy_type(item: &Field<'_>, notes: &mut Notes) -> Result<Direction, Refused> {
    match item.text(notes)? {
        "Ingress" => Ok(Direction::Ingress),
        "Egress" => Ok(Direction::Egress),
        _ => Err(item.refuse(Code::InvalidPolicyTypes, "Ingress or Egress", notes)),
    }
}

/// A version that is not known: it may close either direction, so both are.
pub(super) fn lower_unknown(object: &Object, notes: &mut Notes) -> Policy {
    let root = Field::root(&object.body);
    let enforced = "the selected pods are isolated in both directions";
    root.tell(
        Code::UnknownVersion,
        version(object),
        "networking.k8s.io/v1",
        enforced,
        notes,
    );
    let pods = subject_of_unread(object, notes);
    isolating(object, Kind::NetworkPolicy, pods, &Direction::ALL)
}

fn version(object: &Object) -> String {
    format!("{} of {:?}", object.kind_name, object.api_version)
}

fn subject_of_unread(object: &Object, notes: &mut Notes) -> Selector {
    let mark = notes.mark();
    let pods = match spec::spec(object, notes) {
        Ok(Some(spec)) => selector::widened(spec.get("podSelector").as_ref(), notes).0,
        Ok(None) | Err(Refused) => Selector::everything(),
    };
    notes.enforce(mark, "the requirement counts as met");
    pods
}

pub(super) const RANK: Rank = Rank {
    tier: Tier::NetworkPolicy,
    priority: 0,
};

fn isolating(object: &Object, kind: Kind, pods: Selector, directions: &[Direction]) -> Policy {
    let effect = |direction| match directions.contains(&direction) {
        true => Effect::Rules(Arc::default()),
        false => Effect::None,
    };
    Policy {
        id: id_of(object, kind),
        rank: RANK,
        subject: Subject {
            namespaces: NamespaceSelector::Named(own_namespace(object)),
            pods,
        },
        egress: effect(Direction::Egress),
        ingress: effect(Direction::Ingress),
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    }
}

pub(super) fn own_namespace(object: &Object) -> Arc<str> {
    let namespace = object.metadata.namespace.as_ref();
    namespace.map_or_else(|| "default".into(), Arc::clone)
}

const fn effect_mut(policy: &mut Policy, direction: Direction) -> &mut Effect {
    match direction {
        Direction::Egress => &mut policy.egress,
        Direction::Ingress => &mut policy.ingress,
    }
}
