//! Decides a connection straight from the objects: slowly, obviously, and with nothing in common with
//! the compiler but the words of the model. What it says is what policies mean; the tests hold the
//! compiler to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::observation::Observation;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::compiler::{PodToOwnNode, Settings};
use crate::model::cluster::{Entity, EntityKey, Pod};
use crate::model::{Action, Direction, Effect, Kind, Policy, Rule, Tier};
use crate::simulator::{Connection, Protocol, Verdict};

mod cluster;
mod addresses;
mod matching;
mod forwarded;
mod dns;
mod observations;

use observations::{ObservedRecord, PodRun};

/// All that there is, as plain lists.
#[derive(Clone, Debug)]
pub struct World {
    settings: Settings,
    entities: BTreeMap<EntityKey, Entity>,
    records: Vec<ObservedRecord>,
    runs: Vec<PodRun>,
    held: Vec<IpAddr>,
}

impl World {
    /// An empty world.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            entities: BTreeMap::new(),
            records: Vec::new(),
            runs: Vec::new(),
            held: Vec::new(),
        }
    }

    /// An object is now like this.
    pub fn apply(&mut self, entity: Entity) {
        self.entities.insert(entity.key(), entity);
        self.forget_lost_runs();
    }

    /// An object is gone.
    pub fn delete(&mut self, key: &EntityKey) {
        self.entities.remove(key);
        self.forget_lost_runs();
    }

    /// A client was told addresses; nothing comes of it when the client is no local pod.
    pub fn observe(&mut self, observation: &Observation, now: Timestamp) {
        self.remember(observation, now);
    }

    /// The node on which all this is asked holds these addresses.
    pub fn hold(&mut self, addresses: Vec<IpAddr>) {
        self.held = addresses;
    }

    /// The pod that has an address for its own.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<&PodKey> {
        self.pod_at(address.to_canonical()).map(|pod| &pod.key)
    }

    /// The pods that are to have rules.
    pub fn local_pods(&self) -> impl Iterator<Item = PodKey> {
        self.pods()
            .filter(|pod| self.is_local(pod) && !self.own_addresses(pod).is_empty())
            .map(|pod| pod.key.clone())
    }

    /// What becomes of a connection in one direction.
    #[must_use]
    pub fn decide(&self, connection: &Connection, now: Timestamp) -> Verdict {
        self.answer(&Question::new(self, connection, now))
    }

    /// Whether a connection that is allowed would be denied if the policies in audit were in force.
    #[must_use]
    pub fn would_deny(&self, connection: &Connection, now: Timestamp) -> bool {
        let question = Question {
            with_audited: true,
            ..Question::new(self, connection, now)
        };
        self.decide(connection, now) == Verdict::Allow && self.answer(&question) == Verdict::Deny
    }

    /// What becomes of a connection that was allowed when it began, when its rules are asked again.
    #[must_use]
    pub fn decide_open(&self, connection: &Connection, now: Timestamp) -> Verdict {
        self.answer(&Question {
            is_open: true,
            ..Question::new(self, connection, now)
        })
    }

    fn answer(&self, question: &Question<'_>) -> Verdict {
        let connection = question.connection;
        match self.pod_with_own_address(&connection.pod) {
            None => Verdict::Allow,
            Some(_) if connection.direction == Direction::Ingress && connection.peer_is_own_node => {
                Verdict::Allow
            }
            Some(subject) => question.decide(subject),
        }
    }
}

/// What one tier says.
enum TierVerdict {
    Allow,
    Deny,
    AskNext,
}

struct Question<'a> {
    world: &'a World,
    connection: &'a Connection,
    now: Timestamp,
    /// Whether what was told once is enough.
    is_open: bool,
    /// Whether policies in audit count.
    with_audited: bool,
}

impl<'a> Question<'a> {
    const fn new(world: &'a World, connection: &'a Connection, now: Timestamp) -> Self {
        Self {
            world,
            connection,
            now,
            is_open: false,
            with_audited: false,
        }
    }
}

impl Question<'_> {
    fn decide(&self, subject: &Pod) -> Verdict {
        let tiers = [
            self.firewalls(subject),
            self.ordered(subject, Tier::Admin),
            self.network_policies(subject),
            self.ordered(subject, Tier::Baseline),
        ];
        for answer in tiers {
            match answer {
                TierVerdict::Allow => return Verdict::Allow,
                TierVerdict::Deny => return Verdict::Deny,
                TierVerdict::AskNext => {}
            }
        }
        Verdict::Allow
    }

    /// ClusterEgressFirewalls by priority. Of those with one priority each is asked by itself, and one that
    /// denies is enough. An allow is no grant: it only ends the tier.
    fn firewalls(&self, subject: &Pod) -> TierVerdict {
        let policies = self.policies_on(subject, Tier::ClusterEgressFirewall);
        let priorities: BTreeSet<u32> = policies.iter().map(|policy| policy.rank.priority).collect();
        for priority in priorities {
            let mut is_allowed = false;
            for policy in policies.iter().filter(|policy| policy.rank.priority == priority) {
                let rules = self.rules_of(policy).unwrap_or_default();
                match rules
                    .iter()
                    .find(|rule| self.matches(subject, rule))
                    .map(|rule| rule.action)
                {
                    Some(Action::Deny) => return TierVerdict::Deny,
                    Some(Action::Allow | Action::Pass) => is_allowed = true,
                    None => {}
                }
            }
            if is_allowed {
                return TierVerdict::AskNext;
            }
        }
        TierVerdict::AskNext
    }

    /// Policies by priority, their rules in order: the first match decides.
    fn ordered(&self, subject: &Pod, tier: Tier) -> TierVerdict {
        let mut policies = self.policies_on(subject, tier);
        policies.sort_by(|one, other| (one.rank.priority, &one.id).cmp(&(other.rank.priority, &other.id)));
        for policy in policies {
            for rule in self.rules_of(policy).unwrap_or_default() {
                if self.matches(subject, rule) {
                    return match rule.action {
                        Action::Deny => TierVerdict::Deny,
                        Action::Allow => TierVerdict::Allow,
                        Action::Pass => TierVerdict::AskNext,
                    };
                }
            }
        }
        TierVerdict::AskNext
    }

    /// A pod is isolated when one NetworkPolicy speaks of the direction; then what no rule of any of
    /// them allows is denied.
    fn network_policies(&self, subject: &Pod) -> TierVerdict {
        let policies = self.policies_on(subject, Tier::NetworkPolicy);
        let mut speaking: Vec<&[Rule]> = Vec::new();
        for policy in &policies {
            speaking.extend(self.rules_of(policy));
            if let Effect::Opens(rules) = policy.effect(self.connection.direction)
                && self.closes_by_annotation(&policies)
            {
                speaking.push(rules);
            }
        }
        if speaking.is_empty() {
            return TierVerdict::AskNext;
        }
        let mut rules = speaking.into_iter().flatten();
        if rules.any(|rule| rule.action == Action::Allow && self.matches(subject, rule))
            || self.is_own_node()
            || self.is_itself(subject)
        {
            TierVerdict::Allow
        } else {
            TierVerdict::Deny
        }
    }

    /// The form of 2016: without the annotation on the namespace its policies have no effect.
    fn closes_by_annotation(&self, policies: &[&Policy]) -> bool {
        policies.iter().any(|policy| {
            policy.id.kind == Kind::LegacyNetworkPolicy
                && matches!(policy.effect(self.connection.direction), Effect::Rules(_))
        })
    }

    /// A pod that is isolated for egress still reaches its own node, as far as the setting says.
    fn is_own_node(&self) -> bool {
        let is_asked = self.connection.direction == Direction::Egress && self.connection.peer_is_own_node;
        is_asked
            && match self.world.settings.pod_to_own_node {
                PodToOwnNode::Allow => true,
                PodToOwnNode::Dns => matches!(
                    self.connection.protocol,
                    Protocol::Port(
                        egret_shared::net::Transport::Udp | egret_shared::net::Transport::Tcp,
                        53
                    )
                ),
                PodToOwnNode::Enforce => false,
            }
    }

    /// no NetworkPolicy keeps a pod from itself. What it sends to itself is seen only where a Service led it back.
    fn is_itself(&self, subject: &Pod) -> bool {
        let peer = self.world.pod_at(self.connection.peer.to_canonical());
        peer.is_some_and(|peer| peer.key == subject.key)
    }

    fn policies_on(&self, subject: &Pod, tier: Tier) -> Vec<&Policy> {
        self.world
            .entities
            .values()
            .filter_map(|entity| match entity {
                Entity::Policy(policy) => Some(policy),
                Entity::Namespace(_)
                | Entity::Pod(_)
                | Entity::Node(_)
                | Entity::Service(_)
                | Entity::EndpointSlice(_)
                | Entity::NodeAddressReport(_)
                | Entity::ApiServerAddresses(_) => None,
            })
            .filter(|policy| policy.rank.tier == tier)
            .filter(|policy| self.with_audited || !self.world.is_audited(policy, subject))
            .filter(|policy| {
                self.world
                    .selects(&policy.subject.namespaces, &policy.subject.pods, subject)
            })
            .collect()
    }

    fn rules_of<'p>(&self, policy: &'p Policy) -> Option<&'p [Rule]> {
        let effect = match self.connection.direction {
            Direction::Egress => &policy.egress,
            Direction::Ingress => &policy.ingress,
        };
        match effect {
            Effect::None | Effect::Opens(_) => None,
            Effect::Rules(rules) => Some(rules),
        }
    }
}
