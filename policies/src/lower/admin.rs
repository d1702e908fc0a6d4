//! AdminNetworkPolicy, BaselineAdminNetworkPolicy and ClusterNetworkPolicy: one meaning in three dialects.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::NamePattern;

use super::port;
use super::rule::{self, RuleLabel};
use super::selector;
use super::{id_of, network, spec};
use crate::api::{Field, Notes, Object, Refused};
use crate::diagnostic::Code;
use crate::model::{
    Action, Direction, Effect, Enforcement, Exposure, Kind, NamespaceSelector, Peer, Peers, Policy, Ports,
    Rank, Rule, Selector, Subject, Tier,
};

/// What the three kinds write differently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    kind: Kind,
    version: &'static str,
    /// The action that allows.
    allow: &'static str,
    /// All actions, for messages.
    actions: &'static str,
    passes: bool,
    domain_names: bool,
    ports: &'static str,
    read_port: fn(&Field<'_>, &mut Notes) -> Result<Vec<crate::model::Port>, Refused>,
    /// Rules in a direction, peers in a rule, ports in a rule.
    most: usize,
    spec: &'static [&'static str],
}

impl Dialect {
    pub(super) const ADMIN: Self = Self {
        kind: Kind::AdminNetworkPolicy,
        version: "policy.networking.k8s.io/v1alpha1",
        allow: "Allow",
        actions: "Allow, Deny or Pass",
        passes: true,
        domain_names: true,
        ports: "ports",
        read_port: port::admin_port,
        most: 100,
        spec: &["priority", "subject", "ingress", "egress"],
    };

    pub(super) const BASELINE: Self = Self {
        kind: Kind::BaselineAdminNetworkPolicy,
        actions: "Allow or Deny",
        passes: false,
        domain_names: false,
        spec: &["subject", "ingress", "egress"],
        ..Self::ADMIN
    };

    pub(super) const CLUSTER: Self = Self {
        kind: Kind::ClusterNetworkPolicy,
        version: "policy.networking.k8s.io/v1alpha2",
        allow: "Accept",
        actions: "Accept, Deny or Pass",
        passes: true,
        domain_names: true,
        ports: "protocols",
        read_port: port::protocol,
        most: 25,
        spec: &["tier", "priority", "subject", "ingress", "egress"],
    };
}

/// Lowers a policy of a version that is known.
pub(super) fn lower(object: &Object, dialect: Dialect, notes: &mut Notes) -> Policy {
    let mark = notes.mark();
    let spec = spec::required(object, notes);
    // Everything is read before anything is given up, so that all that is wrong is said at once.
    let known = spec.as_ref().map(|spec| spec.only(dialect.spec, notes));
    notes.enforce(mark, ALL_DENIED);
    let (Ok(spec), Ok(known)) = (&spec, known) else {
        return Policy {
            egress: deny_everything(),
            ingress: deny_everything(),
            ..silent(object, dialect, strongest(dialect), rule::every_pod())
        };
    };
    let (rank, ranked) = rank(object, spec, dialect, notes);
    let (subject, understood) = subject(spec, dialect, notes);
    notes.enforce(mark, UNSOUND);
    let reader = AdminRuleReader {
        dialect,
        sound: ranked && understood,
    };
    let effects = Direction::ALL.map(|direction| reader.effect(spec, direction, notes));
    let [egress, ingress] = match known {
        Ok(()) => effects,
        Err(Refused) => {
            notes.overrule(mark, ALL_DENIED);
            [deny_everything(), deny_everything()]
        }
    };
    Policy {
        egress,
        ingress,
        ..silent(object, dialect, rank, subject)
    }
}

const ALL_DENIED: &str = "everything is denied to its subject, in both directions";

/// Lowers a policy of a version that is not known: Deny all in the directions that it names, in both
/// where it names none (a version might call them otherwise).
pub(super) fn lower_unknown(object: &Object, dialect: Dialect, notes: &mut Notes) -> Policy {
    let found = format!("{} of {:?}", object.kind_name, object.api_version);
    let enforced = "everything is denied to its subject, in the directions that it names";
    Field::root(&object.body).tell(Code::UnknownVersion, found, dialect.version, enforced, notes);
    denying(object, dialect, notes, |spec| {
        let named: Vec<_> = Direction::ALL
            .into_iter()
            .filter(|direction| spec.is_some_and(|spec| spec.get(direction.word()).is_some()))
            .collect();
        if named.is_empty() {
            Direction::ALL.to_vec()
        } else {
            named
        }
    })
}

const UNSOUND: &str = "Deny rules count for all that may be meant, with the strongest place that may be meant; allow rules match nothing, Pass becomes Deny all";

fn denying(
    object: &Object,
    dialect: Dialect,
    notes: &mut Notes,
    directions: impl FnOnce(Option<&Field<'_>>) -> Vec<Direction>,
) -> Policy {
    let mark = notes.mark();
    let spec = spec::spec(object, notes).unwrap_or_default();
    let directions = directions(spec.as_ref());
    let (rank, subject) = match &spec {
        Some(spec) => (
            rank(object, spec, dialect, notes).0,
            subject(spec, dialect, notes).0,
        ),
        None => (strongest(dialect), rule::every_pod()),
    };
    notes.enforce(mark, UNSOUND);
    let effect = |direction| match directions.contains(&direction) {
        true => deny_everything(),
        false => Effect::None,
    };
    Policy {
        egress: effect(Direction::Egress),
        ingress: effect(Direction::Ingress),
        ..silent(object, dialect, rank, subject)
    }
}

fn silent(object: &Object, dialect: Dialect, rank: Rank, subject: Subject) -> Policy {
    Policy {
        id: id_of(object, dialect.kind),
        rank,
        subject,
        egress: Effect::None,
        ingress: Effect::None,
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    }
}

fn deny_everything() -> Effect {
    Effect::Rules(Arc::new([rule::deny_all(&RuleLabel { index: 0, name: None })]))
}

/// The place in the order of evaluation, and whether it is the one that was meant.
fn rank(object: &Object, spec: &Field<'_>, dialect: Dialect, notes: &mut Notes) -> (Rank, bool) {
    let strongest = strongest(dialect);
    if matches!(dialect.kind, Kind::BaselineAdminNetworkPolicy) {
        return (strongest, is_default(object, notes));
    }
    let tier = match dialect.kind {
        Kind::ClusterNetworkPolicy => tier(spec, notes),
        _ => Ok(strongest.tier),
    };
    let priority = priority(spec, notes);
    let rank = Rank {
        tier: tier.unwrap_or(strongest.tier),
        priority: priority.unwrap_or(strongest.priority),
    };
    (rank, tier.is_ok() && priority.is_ok())
}

const fn strongest(dialect: Dialect) -> Rank {
    match dialect.kind {
        Kind::BaselineAdminNetworkPolicy => Rank {
            tier: Tier::Baseline,
            priority: u32::MAX,
        },
        _ => Rank {
            tier: Tier::Admin,
            priority: 0,
        },
    }
}

fn is_default(object: &Object, notes: &mut Notes) -> bool {
    let is_default = &*object.metadata.name == "default";
    if !is_default {
        let name = object.metadata.name.to_string();
        Field::root(&object.body).tell(Code::BaselineName, name, "default", UNSOUND, notes);
    }
    is_default
}

fn tier(spec: &Field<'_>, notes: &mut Notes) -> Result<Tier, Refused> {
    let field = spec.require("tier", "Admin or Baseline", notes)?;
    match field.text(notes)? {
        "Admin" => Ok(Tier::Admin),
        "Baseline" => Ok(Tier::Baseline),
        _ => Err(field.refuse(Code::InvalidTier, "Admin or Baseline", notes)),
    }
}

pub(super) fn priority(spec: &Field<'_>, notes: &mut Notes) -> Result<u32, Refused> {
    let accepted = "a whole number from 0 to 1000";
    let field = spec.require("priority", accepted, notes)?;
    let number = field
        .maybe_integer()
        .and_then(|number| u32::try_from(number).ok());
    number
        .filter(|&number| number <= 1000)
        .ok_or_else(|| field.refuse(Code::InvalidPriority, accepted, notes))
}

/// The subject, and whether all of it could be read; what could not does not limit it.
fn subject(spec: &Field<'_>, dialect: Dialect, notes: &mut Notes) -> (Subject, bool) {
    let Ok(subject) = spec.require("subject", "namespaces or pods", notes) else {
        return (rule::every_pod(), false);
    };
    let known = subject.only(&["namespaces", "pods"], notes).is_ok();
    match (subject.get("namespaces"), subject.get("pods")) {
        (Some(namespaces), None) => {
            let (namespaces, sound) = selector::widened(Some(&namespaces), notes);
            let namespaces = NamespaceSelector::Matching(namespaces);
            (
                Subject {
                    namespaces,
                    ..rule::every_pod()
                },
                known && sound,
            )
        }
        (None, Some(pods)) => {
            let (subject, sound) = subject_pods(&pods, dialect, notes);
            (subject, known && sound)
        }
        (None, None) => {
            subject.refuse(Code::UnknownAlternative, "namespaces or pods", notes);
            (rule::every_pod(), false)
        }
        (Some(_), Some(_)) => {
            subject.refuse(Code::SeveralAlternatives, "namespaces or pods", notes);
            (rule::every_pod(), false)
        }
    }
}

fn subject_pods(field: &Field<'_>, dialect: Dialect, notes: &mut Notes) -> (Subject, bool) {
    let known = field.only(&["namespaceSelector", "podSelector"], notes).is_ok();
    let whole = check_halves(field, dialect, notes).is_ok();
    let (namespaces, sound) = selector::widened(field.get("namespaceSelector").as_ref(), notes);
    let (pods, sound_pods) = selector::widened(field.get("podSelector").as_ref(), notes);
    let namespaces = NamespaceSelector::Matching(namespaces);
    (
        Subject { namespaces, pods },
        known && whole && sound && sound_pods,
    )
}

/// v1alpha1 asks for both selectors, yet stored objects have one: the other is read as `{}`. v1alpha2 asks
/// for podSelector only.
fn check_halves(pods: &Field<'_>, dialect: Dialect, notes: &mut Notes) -> Result<(), Refused> {
    let has = |key| pods.get(key).is_some();
    if dialect.kind == Kind::ClusterNetworkPolicy {
        return pods
            .require("podSelector", "a selector; {} is every pod", notes)
            .map(|_| ());
    }
    match (has("namespaceSelector"), has("podSelector")) {
        (true, true) => Ok(()),
        (false, false) => {
            let accepted = "namespaceSelector and podSelector";
            Err(pods.refuse(Code::UnknownAlternative, accepted, notes))
        }
        (true, false) | (false, true) => {
            let accepted = "namespaceSelector and podSelector";
            let enforced = "the missing one is read as {}";
            pods.tell(Code::HalfSelector, pods.describe(), accepted, enforced, notes);
            Ok(())
        }
    }
}

/// Reads the rules of a policy.
#[derive(Clone, Copy)]
struct AdminRuleReader {
    dialect: Dialect,
    /// Whether it is known whom the policy is about and when it is asked.
    sound: bool,
}

impl AdminRuleReader {
    fn effect(self, spec: &Field<'_>, direction: Direction, notes: &mut Notes) -> Effect {
        let Some(list) = spec.get(direction.word()) else {
            return Effect::None;
        };
        let mark = notes.mark();
        let items = list.items(notes);
        notes.enforce(mark, "everything is denied in this direction");
        let Ok(items) = items else {
            return deny_everything();
        };
        list.limit(items.len(), self.dialect.most, notes);
        if items.is_empty() {
            return Effect::None;
        }
        let rules = items.iter().enumerate();
        Effect::Rules(
            rules
                .flat_map(|(index, item)| self.rule(item, index, direction, notes))
                .collect(),
        )
    }

    fn rule(self, item: &Field<'_>, index: usize, direction: Direction, notes: &mut Notes) -> Vec<Rule> {
        let mark = notes.mark();
        let name = name(item, notes);
        let action = self.action(item, notes);
        let label = RuleLabel {
            index,
            name: name.clone().unwrap_or_default(),
        };
        let body = self.body(item, &label, (action, direction), notes);
        let (rules, enforced) = match (action, name.and(body)) {
            (Ok(Action::Pass), Ok(_)) if !self.sound => (vec![rule::deny_all(&label)], DENY_ALL),
            (Ok(Action::Allow), Ok(_)) if !self.sound => {
                (vec![rule::nothing(&label, Action::Allow)], NOTHING)
            }
            (Ok(Action::Allow), Err(Refused)) => (vec![rule::nothing(&label, Action::Allow)], NOTHING),
            (Ok(Action::Deny | Action::Pass), Err(Refused)) | (Err(Refused), _) => {
                (vec![rule::deny_all(&label)], DENY_ALL)
            }
            (Ok(_), Ok(rules)) => (rules, "the rule as it is"),
        };
        notes.enforce(mark, enforced);
        rules
    }

    fn action(self, item: &Field<'_>, notes: &mut Notes) -> Result<Action, Refused> {
        let field = item.require("action", self.dialect.actions, notes)?;
        match field.text(notes)? {
            text if text == self.dialect.allow => Ok(Action::Allow),
            "Deny" => Ok(Action::Deny),
            "Pass" if self.dialect.passes => Ok(Action::Pass),
            _ => Err(field.refuse(Code::InvalidAction, self.dialect.actions, notes)),
        }
    }

    fn body(
        self,
        item: &Field<'_>,
        label: &RuleLabel,
        (action, direction): (Result<Action, Refused>, Direction),
        notes: &mut Notes,
    ) -> Result<Vec<Rule>, Refused> {
        let other_end = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        // Everything is read before anything is given up, so that all that is wrong is said at once.
        let known = item.only(&["name", "action", other_end, self.dialect.ports], notes);
        let peers = self.peers(item, other_end, (action, direction), notes);
        let ports = self.ports(item, notes);
        known?;
        let both = (peers?, ports?);
        Ok(rule::rules(item, label, (action?, direction), both, notes))
    }

    fn ports(self, item: &Field<'_>, notes: &mut Notes) -> Result<Ports, Refused> {
        let field = item.get(self.dialect.ports);
        let items = field
            .map(|field| field.some_items(self.dialect.most, notes))
            .transpose()?;
        port::all(items, self.dialect.read_port, notes)
    }

    fn peers(
        self,
        item: &Field<'_>,
        other_end: &str,
        rule: (Result<Action, Refused>, Direction),
        notes: &mut Notes,
    ) -> Result<Peers, Refused> {
        let list = item.require(other_end, "a list of peers", notes)?;
        let items = list.some_items(self.dialect.most, notes)?;
        let peers: Vec<_> = items.iter().map(|peer| self.peer(peer, rule, notes)).collect();
        peers.into_iter().collect::<Result<_, _>>().map(Peers::OneOf)
    }

    fn peer(
        self,
        item: &Field<'_>,
        (action, direction): (Result<Action, Refused>, Direction),
        notes: &mut Notes,
    ) -> Result<Peer, Refused> {
        let known: &[&'static str] = match (direction, self.dialect.domain_names) {
            (Direction::Ingress, _) => &["namespaces", "pods"],
            (Direction::Egress, false) => &["namespaces", "pods", "nodes", "networks"],
            (Direction::Egress, true) => &["namespaces", "pods", "nodes", "networks", "domainNames"],
        };
        let (word, field) = rule::one_of(item, known, notes)?;
        match word {
            "namespaces" => Ok(Peer::Pods {
                namespaces: selector::namespaces(&field, notes)?,
                pods: Selector::everything(),
            }),
            "pods" => self.pods(&field, notes),
            "nodes" => selector::selector(&field, notes).map(Peer::Nodes),
            "networks" => networks(&field, notes),
            _ => domain_names(&field, action, notes),
        }
    }

    fn pods(self, field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
        field.only(&["namespaceSelector", "podSelector"], notes)?;
        check_halves(field, self.dialect, notes)?;
        let read = |key: &str, notes: &mut Notes| match field.get(key) {
            Some(field) => selector::selector(&field, notes),
            None => Ok(Selector::everything()),
        };
        let namespaces = NamespaceSelector::Matching(read("namespaceSelector", notes)?);
        let pods = read("podSelector", notes)?;
        Ok(Peer::Pods { namespaces, pods })
    }
}

pub(super) const DENY_ALL: &str = "the rule denies everything";
pub(super) const NOTHING: &str = "the rule matches nothing";

pub(super) fn name(item: &Field<'_>, notes: &mut Notes) -> Result<Option<Arc<str>>, Refused> {
    let Some(field) = item.get("name") else {
        return Ok(None);
    };
    let name = field.text(notes)?;
    field.limit(name.chars().count(), 100, notes);
    Ok(Some(name.into()))
}

/// The most networks or names in a peer.
const MOST_IN_SET: usize = 25;

fn networks(field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
    let items = field.some_items(MOST_IN_SET, notes)?;
    let networks: Vec<_> = items.iter().map(|item| network::cidr(item, notes)).collect();
    let networks: Vec<_> = networks.into_iter().collect::<Result<_, _>>()?;
    Ok(Peer::Networks(once(networks, &items, notes)))
}

/// Names that are none match nothing, the others count: the schema's expression admits some that no
/// server can have (`A-z` also admits `[`, `\\`, `]`, `^`, `_` and a grave accent).
pub(super) fn domain_names(
    field: &Field<'_>,
    action: Result<Action, Refused>,
    notes: &mut Notes,
) -> Result<Peer, Refused> {
    if matches!(action, Ok(Action::Deny | Action::Pass)) {
        let accepted = format!("{} only in rules that allow", field.name());
        return Err(field.refuse(Code::DomainNamesNeedAllow, &accepted, notes));
    }
    let for_addresses = match field.name() {
        "additionalNames" => "additionalAddresses",
        _ => "networks",
    };
    let items = field.some_items(MOST_IN_SET, notes)?;
    let mut names = Vec::new();
    let mut places = Vec::new();
    for item in items {
        if let Some(name) = domain_name(&item, for_addresses, notes)? {
            names.push(name);
            places.push(item);
        }
    }
    Ok(Peer::Names(once(names, &places, notes)))
}

fn domain_name(
    item: &Field<'_>,
    for_addresses: &str,
    notes: &mut Notes,
) -> Result<Option<NamePattern>, Refused> {
    let text = item.text(notes)?;
    match text.parse::<NamePattern>() {
        Ok(name) => {
            if text.parse::<IpAddr>().is_ok() {
                let enforced = "the name matches nothing";
                item.tell(
                    Code::DomainNameIsAddress,
                    item.describe(),
                    for_addresses,
                    enforced,
                    notes,
                );
            }
            Ok(Some(name))
        }
        Err(error) => {
            let accepted = match text.starts_with("**.") {
                true => "\"*.\" once, which covers one label and several",
                false => "two labels or more, optionally behind \"*.\"",
            };
            item.tell(
                Code::InvalidDomain,
                error.to_string(),
                accepted,
                "the name matches nothing",
                notes,
            );
            Ok(None)
        }
    }
}

/// Every item once, in the order of the list.
pub(super) fn once<T: PartialEq>(items: Vec<T>, places: &[Field<'_>], notes: &mut Notes) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    for (item, place) in items.into_iter().zip(places) {
        if kept.contains(&item) {
            place.tell(
                Code::DuplicateItem,
                place.describe(),
                "each item once",
                "it counts once",
                notes,
            );
        } else {
            kept.push(item);
        }
    }
    kept
}
