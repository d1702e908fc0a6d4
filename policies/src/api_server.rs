//! What becomes of a connection that the API server asks its network proxy for. The rules are those of the compiler, for the
//! egress selections in the place of pods, and the [`Simulator`](crate::simulator) is the backend.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::name::DnsName;
use egret_shared::net::Transport;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use crate::compiler::{Compiler, Event, InSync, NodeScope, Owner, Settings};
use crate::model::api_server::{
    ApiServerAction, ApiServerPolicy, Selection, ServerName, ServerNames, TunnelLimits,
};
use crate::model::cluster::{Entity, EntityKey};
use crate::model::{Direction, Peer};
use crate::rules::Origin;
use crate::simulator::{Connection, Decision, Protocol, RuleIndex, RuleList, Simulator, Verdict};

/// Longer than any record that this makes.
const LONGEST_LIFE: Duration = Duration::from_secs(2);

/// The rules of all selections.
#[derive(Debug)]
pub struct ApiServerEgress {
    compiler: Compiler<InSync>,
    simulator: Simulator,
    /// Of the rules as the last change left them: decisions change records alone.
    index: RuleIndex,
    limits: BTreeMap<RuleKey, TunnelLimits>,
    /// Of the rules that ask for one.
    server_names: HashMap<RuleKey, (ApiServerAction, ServerNames)>,
    services: BTreeMap<IpAddr, Arc<str>>,
}

/// The policy of a rule, and its index.
type RuleKey = (Arc<str>, usize);

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Dial<'a> {
    /// For what the API server asks.
    pub selection: Selection,
    /// The name that it asked for; none where it asked for an address.
    pub name: Option<&'a DnsName>,
    /// The address; of a name, one of those that the name has.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialVerdict {
    /// Whether it may be made.
    pub verdict: Verdict,
    /// The rule that says so; none where no rule matches, which allows.
    pub rule: Option<Origin>,
    /// The rule that would refuse it if audited rules were in force.
    pub would_deny: Option<Origin>,
    /// What it may use.
    pub limits: TunnelLimits,
}

/// What can be said of a connection before its client has sent anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EarlyVerdict {
    /// This, whatever server name it asks for.
    Whatever(DialVerdict),
    /// A rule asks for the server name.
    ByServerName,
}

/// What has an address, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A node, by name.
    Node(Arc<str>),
    /// A pod: `namespace/name`.
    Pod(String),
    /// A Service: `namespace/name`.
    Service(Arc<str>),
    /// Anything else.
    External,
}

impl Destination {
    /// The word for the class.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Node(_) => "nodes",
            Self::Pod(_) => "pods",
            Self::Service(_) => "services",
            Self::External => "external",
        }
    }

    /// Which one.
    #[must_use]
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Node(name) | Self::Service(name) => Some(name),
            Self::Pod(key) => Some(key),
            Self::External => None,
        }
    }
}

impl ApiServerEgress {
    /// Compiles policies, in a cluster of these objects.
    #[must_use]
    pub fn new(
        policies: &[ApiServerPolicy],
        cluster: impl IntoIterator<Item = Entity>,
        now: Timestamp,
    ) -> Self {
        let mut settings = Settings::for_scope(NodeScope::One(Selection::node()));
        // What a name has is used at once, or not at all.
        settings.records.grace = Duration::ZERO;
        let mut compiler = Compiler::new(settings);
        let mut services = BTreeMap::new();
        for entity in cluster {
            note_service(&mut services, &entity);
            compiler.handle(Event::Apply(entity), now);
        }
        for selection in Selection::ALL {
            compiler.handle(Event::Apply(Entity::Pod(selection.pod())), now);
        }
        let (mut limits, mut server_names) = (BTreeMap::new(), HashMap::new());
        for policy in ApiServerPolicy::lower(policies) {
            compiler.handle(Event::Apply(Entity::Policy(policy)), now);
        }
        for policy in policies {
            let name: Arc<str> = policy.to_string().into();
            for rule in &policy.rules {
                let key = (Arc::clone(&name), rule.index);
                limits.insert(key.clone(), rule.limits);
                if rule.server_names != ServerNames::Any {
                    server_names.insert(key, (rule.action, rule.server_names.clone()));
                }
            }
        }
        let mut compiler = compiler.in_sync();
        let simulator = Simulator::of(&mut compiler, now);
        Self {
            index: RuleIndex::new(&simulator),
            compiler,
            simulator,
            limits,
            server_names,
            services,
        }
    }

    /// Objects of the cluster that are new or other than before, and those that are gone.
    pub fn update(
        &mut self,
        applied: impl IntoIterator<Item = Entity>,
        deleted: impl IntoIterator<Item = EntityKey>,
        now: Timestamp,
    ) {
        for key in deleted {
            if let EntityKey::Service(service) = &key {
                forget_service(&mut self.services, &service.to_string());
            }
            self.compiler.handle(Event::Delete(key), now);
        }
        for entity in applied {
            note_service(&mut self.services, &entity);
            self.compiler.handle(Event::Apply(entity), now);
        }
        self.take_in(now);
        self.index = RuleIndex::new(&self.simulator);
    }

    /// What becomes of a connection whose client asks for this server name.
    pub fn decide(&mut self, dial: Dial<'_>, server_name: &ServerName, now: Timestamp) -> DialVerdict {
        self.with_name(dial, now, |this, connection| {
            this.decide_among(connection, now, &|rule| this.is_about(rule, server_name))
        })
    }

    /// What becomes of a connection whose client has sent nothing yet.
    pub fn decide_early(&mut self, dial: Dial<'_>, now: Timestamp) -> EarlyVerdict {
        if self.server_names.is_empty() {
            return EarlyVerdict::Whatever(self.decide(dial, &ServerName::Unknown, now));
        }
        self.with_name(dial, now, |this, connection| {
            // Without the rules that refuse by a server name: what is refused all the same is refused by any name.
            let verdict = this.decide_among(connection, now, &|rule| {
                let asks = this.server_names.get(&key_of(rule));
                asks.is_none_or(|(action, _)| *action == ApiServerAction::Allow)
            });
            if verdict.verdict == Verdict::Deny {
                return EarlyVerdict::Whatever(verdict);
            }
            let verdict = this.decide_among(connection, now, &|_rule| true);
            let asks = |rule: &Option<Origin>| {
                let key = rule.as_ref().map(key_of);
                key.is_some_and(|key| this.server_names.contains_key(&key))
            };
            match asks(&verdict.rule) {
                true => EarlyVerdict::ByServerName,
                false => EarlyVerdict::Whatever(DialVerdict {
                    would_deny: verdict
                        .would_deny
                        .clone()
                        .filter(|rule| !asks(&Some(rule.clone()))),
                    ..verdict
                }),
            }
        })
    }

    /// Whether a rule asks for the server name.
    #[must_use]
    pub fn asks_for_server_names(&self) -> bool {
        !self.server_names.is_empty()
    }

    fn is_about(&self, rule: &Origin, name: &ServerName) -> bool {
        if self.server_names.is_empty() {
            return true;
        }
        let asks = self.server_names.get(&key_of(rule));
        asks.is_none_or(|(action, names)| names.concern(*action, name))
    }

    fn with_name<T>(
        &mut self,
        dial: Dial<'_>,
        now: Timestamp,
        decide: impl FnOnce(&Self, &Connection) -> T,
    ) -> T {
        if let Some(name) = dial.name {
            self.observe(dial.selection, name, dial.address, now);
        }
        let connection = Connection {
            pod: dial.selection.key(),
            direction: Direction::Egress,
            peer: dial.address,
            peer_is_own_node: false,
            protocol: Protocol::Port(Transport::Tcp, dial.port),
        };
        let decided = decide(self, &connection);
        if dial.name.is_some() {
            self.forget(now);
        }
        decided
    }

    fn decide_among(
        &self,
        connection: &Connection,
        now: Timestamp,
        is_asked: &dyn Fn(&Origin) -> bool,
    ) -> DialVerdict {
        let decide = |list| {
            let decide = |index| self.simulator.decide_by((list, index), connection, now, is_asked);
            let decision = decide(Some(&self.index));
            debug_assert_eq!(decision, decide(None), "the index hides no rule");
            decision
        };
        let decision = decide(RuleList::InForce);
        let verdict = decision.as_ref().map_or(Verdict::Allow, |it| it.verdict);
        let would_deny = (verdict == Verdict::Allow)
            .then(|| decide(RuleList::Audit))
            .flatten()
            .filter(|decision| decision.verdict == Verdict::Deny);
        DialVerdict {
            verdict,
            limits: decision.as_ref().map(|it| self.limits_of(it)).unwrap_or_default(),
            rule: decision.and_then(|decision| decision.origin),
            would_deny: would_deny.and_then(|decision| decision.origin),
        }
    }

    /// What has an address.
    #[must_use]
    pub fn destination(&self, address: IpAddr) -> Destination {
        let address = address.to_canonical();
        match (self.services.get(&address), self.compiler.owner(address)) {
            (Some(service), _) => Destination::Service(Arc::clone(service)),
            (None, Some(Owner::Node(name))) => Destination::Node(name),
            (None, Some(Owner::Pod(key))) => Destination::Pod(key.to_string()),
            (None, None) => Destination::External,
        }
    }

    /// The name has the address now, and no longer than this decision takes: another dial of the address is one of the address.
    fn observe(&mut self, selection: Selection, name: &DnsName, address: IpAddr, now: Timestamp) {
        // Of its addresses one says who was told.
        let client = selection.pod().addresses.into_iter().take(1);
        let observations = client.map(|client| Observation {
            client,
            question: name.clone(),
            chain: Vec::new(),
            addresses: vec![ObservedAddress {
                address,
                expires: now,
            }],
        });
        for observation in observations {
            self.compiler.handle(Event::Observed(observation), now);
        }
        self.take_in(now);
    }

    fn take_in(&mut self, now: Timestamp) {
        while let Some(batch) = self.compiler.poll_batch(now) {
            self.simulator
                .apply(&batch, now)
                .expect("every batch of the compiler can be applied");
        }
    }

    fn forget(&mut self, now: Timestamp) {
        let over = now.after(LONGEST_LIFE);
        self.compiler.handle_timeout(over);
        self.simulator.expire(over);
    }

    fn limits_of(&self, decision: &Decision) -> TunnelLimits {
        let origin = decision.origin.as_ref();
        let limits = origin.and_then(|origin| self.limits.get(&key_of(origin)).copied());
        limits.unwrap_or_default()
    }
}

fn key_of(rule: &Origin) -> RuleKey {
    (Arc::clone(&rule.policy), rule.rule)
}

fn note_service(services: &mut BTreeMap<IpAddr, Arc<str>>, entity: &Entity) {
    if let Entity::Service(service) = entity {
        let name: Arc<str> = service.key.to_string().into();
        forget_service(services, &name);
        let addresses = service.addresses.iter().map(IpAddr::to_canonical);
        services.extend(addresses.map(|address| (address, Arc::clone(&name))));
    }
}

fn forget_service(services: &mut BTreeMap<IpAddr, Arc<str>>, name: &str) {
    services.retain(|_, service| &**service != name);
}

/// Whether some rule asks what has an address: without the objects of the cluster nobody can say.
#[must_use]
pub fn needs_cluster(policies: &[ApiServerPolicy]) -> bool {
    let peers = policies
        .iter()
        .flat_map(|policy| &policy.rules)
        .flat_map(|rule| rule.peers.listed());
    peers.into_iter().any(|peer| match peer {
        Peer::Pods { .. }
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::External(_)
        | Peer::ApiServer
        | Peer::Services { .. } => true,
        Peer::Networks(_) | Peer::Names(_) => false,
    })
}
