//! What the API server may connect to by its network proxy (KEP-1281): the policies of it, and the clients that they are
//! about. A client is an egress selection; to the compiler it is a pod that no cluster can have.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::pod::PodKey;

use super::cluster::{Pod, PodLife};
use super::{
    Action, Effect, Enforcement, Exposure, Kind, Labels, NamespaceSelector, Peers, Policy, PolicyId, Ports,
    Rank, Requirement, Rule, Selector, Subject, Tier, Values,
};

/// An egress selection, as `EgressSelectorConfiguration` names them: for what the API server connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selection {
    /// Webhooks by URL, authentication and audit webhooks, other API servers.
    ControlPlane,
    /// Kubelets, pods, Services: webhooks and aggregated APIs.
    Cluster,
    /// etcd.
    Etcd,
}

/// A text that names no selection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of controlplane, cluster, etcd")]
pub struct InvalidSelection(String);

/// No namespace has such a name (DNS-1123), so no policy about pods selects what is in it.
const NAMESPACE: &str = "(api-server)";
const LABEL: &str = "selection";

impl Selection {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ControlPlane, Self::Cluster, Self::Etcd];

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ControlPlane => "controlplane",
            Self::Cluster => "cluster",
            Self::Etcd => "etcd",
        }
    }

    /// What stands for it among the pods.
    #[must_use]
    pub fn pod(self) -> Pod {
        // Of "this network" (RFC 1122 §3.2.1.3) and of the discard prefix (RFC 6666): nobody has such addresses.
        let number = 1 + self as u8;
        let addresses = [
            IpAddr::V4(Ipv4Addr::new(0, 0, 0, number)),
            IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, number.into())),
        ];
        Pod {
            key: self.key(),
            uid: None,
            labels: Labels::from_iter([(LABEL, self.word())]),
            node: Some(NAMESPACE.into()),
            addresses: addresses.to_vec(),
            host_network: false,
            life: PodLife::Live,
            started: None,
            ports: Vec::new(),
        }
    }

    /// The key of that.
    #[must_use]
    pub fn key(self) -> PodKey {
        PodKey::new(NAMESPACE, self.word())
    }

    /// Whether a pod stands for a selection.
    #[must_use]
    pub fn is_one(pod: &PodKey) -> bool {
        pod.namespace() == NAMESPACE
    }

    /// The node that has them all.
    #[must_use]
    pub fn node() -> Arc<str> {
        NAMESPACE.into()
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Selection {
    type Err = InvalidSelection;

    fn from_str(text: &str) -> Result<Self, InvalidSelection> {
        let is_it = |selection: &Self| selection.word() == text;
        let found = Self::ALL.into_iter().find(is_it);
        found.ok_or_else(|| InvalidSelection(text.to_owned()))
    }
}

/// A policy about what the API server connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServerPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// 0 to 1000; lower is asked first, of equal ones the first by name.
    pub priority: u32,
    /// The selections that it is about.
    pub selections: BTreeSet<Selection>,
    /// Its rules: the first that matches decides.
    pub rules: Vec<ApiServerRule>,
    /// Whether it decides, or is only asked what it would decide.
    pub enforcement: Enforcement,
}

/// A rule of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServerRule {
    /// Its index in the list of the object.
    pub index: usize,
    /// Its name.
    pub name: Option<Arc<str>>,
    /// What a match does.
    pub action: ApiServerAction,
    /// The destination.
    pub peers: Peers,
    /// The destination port.
    pub ports: Ports,
    /// The TLS server name.
    pub server_names: ServerNames,
    /// What connections that it allows may use.
    pub limits: TunnelLimits,
}

/// What a match does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiServerAction {
    /// Allowed; no further rule is asked.
    Allow,
    /// Refused.
    Deny,
    /// As if the rule were not there, and told that it would refuse.
    Audit,
}

/// The TLS server names (RFC 6066 §3) that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNames {
    /// All, and connections without one.
    Any,
    /// Those that one of these matches.
    OneOf(Vec<NamePattern>),
}

/// What is known of the server name that the first octets of a connection ask for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerName {
    /// This one.
    Known(DnsName),
    /// None can be read.
    Unknown,
}

impl ServerNames {
    /// Whether a rule of this action is about a connection. Where nobody knows its name, one that allows is not, and one that
    /// refuses is.
    #[must_use]
    pub fn concern(&self, action: ApiServerAction, name: &ServerName) -> bool {
        match (self, name) {
            (Self::Any, _) => true,
            (Self::OneOf(patterns), ServerName::Known(name)) => {
                patterns.iter().any(|pattern| pattern.matches(name))
            }
            (Self::OneOf(_), ServerName::Unknown) => match action {
                ApiServerAction::Allow => false,
                ApiServerAction::Deny | ApiServerAction::Audit => true,
            },
        }
    }
}

/// Limits of connections; what is not there is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelLimits {
    /// How many may be open at once.
    pub connections: Option<u32>,
    /// How many octets one may carry, both directions together.
    pub octets: Option<u64>,
    /// How long one may be open.
    pub duration: Option<Duration>,
}

impl ApiServerPolicy {
    /// As policies about pods, all at once: their ranks are their positions. Audited forms have the rules that are only
    /// asked as if they denied; as they hold all other rules as well, they stand before those that decide.
    #[must_use]
    pub fn lower(policies: &[Self]) -> Vec<Policy> {
        let mut ordered: Vec<&Self> = policies.iter().collect();
        ordered.sort_by_key(|policy| (policy.priority, Arc::clone(&policy.name)));
        let audited = ordered.iter().any(|policy| policy.has_audit());
        let audited = if audited { ordered.as_slice() } else { &[] };
        let audited = audited.iter().map(|policy| policy.audited());
        let in_force = ordered.iter().filter(|policy| !policy.enforcement.is_audit());
        let all = audited.chain(in_force.map(|policy| policy.in_force()));
        (0..)
            .zip(all)
            .map(|(position, policy)| policy.at(position))
            .collect()
    }

    /// As they are about connections of one server name: a rule about others matches nothing.
    #[must_use]
    pub fn about(policies: &[Self], name: &ServerName) -> Vec<Self> {
        let mut policies = policies.to_vec();
        for rule in policies.iter_mut().flat_map(|policy| &mut policy.rules) {
            if !rule.server_names.concern(rule.action, name) {
                rule.peers = Peers::OneOf([].into());
            }
        }
        policies
    }

    fn has_audit(&self) -> bool {
        let is_audit = |rule: &ApiServerRule| rule.action == ApiServerAction::Audit;
        self.enforcement.is_audit() || self.rules.iter().any(is_audit)
    }

    fn audited(&self) -> Policy {
        let action = |action| match action {
            ApiServerAction::Allow => Some(Action::Allow),
            ApiServerAction::Deny | ApiServerAction::Audit => Some(Action::Deny),
        };
        self.policy(Kind::AuditedApiServerEgressPolicy, Enforcement::Audited, action)
    }

    fn in_force(&self) -> Policy {
        let action = |action| match action {
            ApiServerAction::Allow => Some(Action::Allow),
            ApiServerAction::Deny => Some(Action::Deny),
            ApiServerAction::Audit => None,
        };
        self.policy(Kind::ApiServerEgressPolicy, Enforcement::Enforced, action)
    }

    fn policy(
        &self,
        kind: Kind,
        enforcement: Enforcement,
        action: impl Fn(ApiServerAction) -> Option<Action>,
    ) -> Policy {
        let rules = self.rules.iter().filter_map(|rule| {
            Some(Rule {
                index: rule.index,
                name: rule.name.clone(),
                action: action(rule.action)?,
                peers: rule.peers.clone(),
                ports: rule.ports.clone(),
            })
        });
        let words = self
            .selections
            .iter()
            .map(|selection| Arc::from(selection.word()));
        Policy {
            id: PolicyId {
                kind,
                namespace: None,
                name: Arc::clone(&self.name),
            },
            rank: Rank {
                tier: Tier::Admin,
                priority: 0,
            },
            subject: Subject {
                namespaces: NamespaceSelector::Named(NAMESPACE.into()),
                pods: Selector::all_of([Requirement::In(LABEL.into(), Values::from_iter(words))]),
            },
            egress: Effect::Rules(rules.collect()),
            ingress: Effect::None,
            exposure: Exposure::Ignore,
            enforcement,
        }
    }
}

/// As the origin of a rule names it.
impl fmt::Display for ApiServerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Kind::ApiServerEgressPolicy, self.name)
    }
}

impl Policy {
    const fn at(mut self, position: u32) -> Self {
        self.rank.priority = position;
        self
    }
}
