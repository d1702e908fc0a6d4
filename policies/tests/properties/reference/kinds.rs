//! Policies as a whole: what kind, about whom, how strong.

use egret_policies::model::Direction;
use serde_json::Value;

use super::cluster::{Pod, get, items};
use super::{Act, Ask, Broken, PolicyReader, Tier, types};
use crate::ids::Id;

/// The forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Firewall,
    Cluster,
    Admin,
    Baseline,
    V1,
    Old,
    /// A version that nobody knows.
    UnknownFirewall,
    UnknownCluster,
    UnknownAdmin,
    UnknownV1,
}

impl Dialect {
    fn of(object: &Value) -> Option<Self> {
        let text = |key: &str| object[key].as_str().unwrap_or_default();
        Some(match (text("apiVersion"), text("kind")) {
            ("policy.egret.dev/v1alpha1", "ClusterEgressFirewall") => Self::Firewall,
            ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => Self::Cluster,
            ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy") => Self::Admin,
            ("policy.networking.k8s.io/v1alpha1", "BaselineAdminNetworkPolicy") => Self::Baseline,
            ("networking.k8s.io/v1", "NetworkPolicy") => Self::V1,
            ("extensions/v1beta1", "NetworkPolicy") => Self::Old,
            (_, "ClusterEgressFirewall") => Self::UnknownFirewall,
            (_, "ClusterNetworkPolicy") => Self::UnknownCluster,
            (_, "AdminNetworkPolicy") => Self::UnknownAdmin,
            (_, "NetworkPolicy") => Self::UnknownV1,
            _ => return None,
        })
    }

    /// Which of one priority goes first: it is the kind that counts, not its version.
    pub(crate) const fn place(self) -> u8 {
        match self {
            Self::Cluster | Self::UnknownCluster => 0,
            Self::Admin | Self::UnknownAdmin => 1,
            Self::Baseline => 2,
            Self::Firewall | Self::UnknownFirewall | Self::V1 | Self::Old | Self::UnknownV1 => 3,
        }
    }

    pub(crate) const fn is_firewall(self) -> bool {
        matches!(self, Self::Firewall | Self::UnknownFirewall)
    }

    pub(crate) const fn is_cluster_wide(self) -> bool {
        matches!(
            self,
            Self::Cluster | Self::Admin | Self::Baseline | Self::UnknownCluster | Self::UnknownAdmin
        )
    }

    pub(crate) const fn is_unknown(self) -> bool {
        matches!(
            self,
            Self::UnknownFirewall | Self::UnknownCluster | Self::UnknownAdmin | Self::UnknownV1
        )
    }

    /// The fields of its spec.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Firewall | Self::UnknownFirewall => &["priority", "rules", "services"],
            Self::Cluster | Self::UnknownCluster => &["tier", "priority", "subject", "ingress", "egress"],
            Self::Admin | Self::UnknownAdmin => &["priority", "subject", "ingress", "egress"],
            Self::Baseline => &["subject", "ingress", "egress"],
            Self::V1 | Self::UnknownV1 => &["podSelector", "policyTypes", "ingress", "egress"],
            Self::Old => &["podSelector", "ingress"],
        }
    }
}

/// A place in the order, and whether it is the one that was meant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    pub(crate) tier: Tier,
    pub(crate) priority: u64,
    pub(crate) is_sound: bool,
}

/// Whether a value is a mapping of no other fields than these.
pub(crate) fn only(value: &Value, known: &[&str]) -> Result<(), Broken> {
    let fields = value.as_object().ok_or(Broken)?;
    let is_known = |field: &String| known.contains(&field.as_str());
    if fields.keys().all(is_known) {
        Ok(())
    } else {
        Err(Broken)
    }
}

impl<'c> PolicyReader<'c> {
    /// The policies that count.
    pub(super) fn policies(&self) -> impl Iterator<Item = (Dialect, &'c Value)> {
        let counts = |policy: &&super::cluster::Policy| !policy.is_gone || self.errs(Id::G8);
        self.cluster.policies.iter().filter(counts).filter_map(|policy| {
            let is_stale = policy.first != policy.object && self.errs(Id::K14);
            let object = if is_stale { &policy.first } else { &policy.object };
            let dialect = Dialect::of(object)?;
            let is_example = || object["metadata"]["name"].to_string().contains("example");
            let is_ignored =
                dialect == Dialect::Old && (self.errs(Id::P16) || (is_example() && self.errs(Id::P17)));
            (!is_ignored).then_some((dialect, object))
        })
    }

    pub(super) fn rank(&self, policy: &Value, dialect: Dialect) -> Rank {
        let spec = &policy["spec"];
        let written = get(spec, "priority")
            .and_then(Value::as_u64)
            .filter(|number| *number <= 1000);
        let (tier, priority) = match dialect {
            Dialect::Firewall | Dialect::UnknownFirewall => {
                let default = get(spec, "priority").is_none().then_some(500);
                (Ok(Tier::Firewall), written.or(default))
            }
            Dialect::Baseline => {
                let is_sound = policy["metadata"]["name"] == "default";
                return Rank {
                    tier: Tier::Baseline,
                    priority: u64::MAX,
                    is_sound,
                };
            }
            Dialect::Cluster | Dialect::UnknownCluster => {
                let tier = match get(spec, "tier").and_then(Value::as_str) {
                    Some("Admin") => Ok(Tier::Admin),
                    Some("Baseline") => Ok(Tier::Baseline),
                    Some(_) | None => Err(Tier::Admin),
                };
                (tier, written)
            }
            Dialect::Admin | Dialect::UnknownAdmin | Dialect::V1 | Dialect::Old | Dialect::UnknownV1 => {
                (Ok(Tier::Admin), written)
            }
        };
        let is_unread = dialect == Dialect::UnknownFirewall
            || (dialect == Dialect::Firewall && self.firewall_rules(policy).is_err());
        Rank {
            tier: tier.unwrap_or_else(|strongest| strongest),
            priority: if is_unread { 0 } else { priority.unwrap_or(0) },
            is_sound: tier.is_ok() && priority.is_some(),
        }
    }

    /// Whether a cluster-wide policy is about a pod, and whether all of its subject could be read.
    pub(super) fn cluster_subject(&self, policy: &Value, dialect: Dialect, pod: &Pod) -> (bool, bool) {
        let Some(subject) = get(&policy["spec"], "subject") else {
            return (true, false);
        };
        let is_known = only(subject, &["namespaces", "pods"]).is_ok();
        match (get(subject, "namespaces"), get(subject, "pods")) {
            (Some(namespaces), None) => {
                let (matches, is_sound) =
                    self.widened(Some(namespaces), &self.namespace_labels(&pod.namespace));
                (matches || self.is_unsynced(&pod.namespace), is_known && is_sound)
            }
            (None, Some(pods)) => {
                let has = |key| get(pods, key).is_some();
                let (namespaces, selector) = (has("namespaceSelector"), has("podSelector"));
                let is_whole = match dialect {
                    Dialect::Cluster | Dialect::UnknownCluster => selector,
                    _ => namespaces || selector,
                };
                let is_whole = is_whole && only(pods, &["namespaceSelector", "podSelector"]).is_ok();
                let of_namespace = self.widened(
                    get(pods, "namespaceSelector"),
                    &self.namespace_labels(&pod.namespace),
                );
                let in_namespace = of_namespace.0 || (namespaces && self.is_unsynced(&pod.namespace));
                let of_pod = self.widened(get(pods, "podSelector"), &self.pod_labels(pod));
                (
                    in_namespace && of_pod.0,
                    is_known && is_whole && of_namespace.1 && of_pod.1,
                )
            }
            (None, None) | (Some(_), Some(_)) => (true, false),
        }
    }

    /// What the first rule that matches does.
    pub(super) fn first_match(
        &self,
        policy: &Value,
        dialect: Dialect,
        rank: Rank,
        ask: &Ask<'_>,
    ) -> Option<Act> {
        if dialect.is_firewall() {
            return self.firewall_match(policy, dialect, rank, ask);
        }
        let (is_selected, is_understood) = self.cluster_subject(policy, dialect, ask.subject);
        if !is_selected {
            return None;
        }
        let spec = &policy["spec"];
        let word = ask.direction.word();
        if dialect.is_unknown() {
            let is_named = |word: &str| get(spec, word).is_some();
            let is_silent = !is_named(word) && (is_named("ingress") || is_named("egress"));
            return (!is_silent && !self.errs(Id::C21)).then_some(Act::Deny);
        }
        if only(spec, dialect.fields()).is_err() {
            return (!self.errs(Id::C21)).then_some(Act::Deny);
        }
        let Value::Array(rules) = get(spec, word)? else {
            return (!self.errs(Id::C21)).then_some(Act::Deny);
        };
        let is_sound = rank.is_sound && is_understood;
        let acts = rules
            .iter()
            .filter_map(|rule| self.act(rule, dialect, rank.tier, is_sound, ask));
        let mut acts = acts.peekable();
        if acts.peek() == Some(&Act::Pass) && self.errs(Id::C19) {
            return acts.find(|act| *act != Act::Pass);
        }
        acts.next()
    }

    fn firewall_rules<'p>(&self, policy: &'p Value) -> Result<&'p [Value], Broken> {
        let spec = get(policy, "spec").ok_or(Broken)?;
        only(spec, Dialect::Firewall.fields())?;
        match get(spec, "rules") {
            Some(Value::Array(rules)) if !rules.is_empty() => Ok(rules),
            Some(_) | None => Err(Broken),
        }
    }

    /// Only what is written to ignore them does.
    pub(super) fn is_about_clients_outside(&self, policy: &Value, dialect: Dialect) -> bool {
        let services = &policy["spec"]["services"];
        let is_read = dialect == Dialect::Firewall && self.firewall_rules(policy).is_ok();
        let is_plain = only(services, &["exposure"]).is_ok();
        !(is_read && is_plain && services["exposure"] == "Ignore")
    }

    fn firewall_match(&self, policy: &Value, dialect: Dialect, rank: Rank, ask: &Ask<'_>) -> Option<Act> {
        let rules = self.firewall_rules(policy);
        let (Dialect::Firewall, Ok(rules)) = (dialect, rules) else {
            let is_denied = self.is_external(ask) && !self.errs(Id::E9);
            return is_denied.then_some(Act::Deny);
        };
        rules
            .iter()
            .find_map(|rule| self.act(rule, dialect, Tier::Firewall, rank.is_sound, ask))
    }

    // === NetworkPolicy ===

    /// Whether a NetworkPolicy of either form is about the subject.
    pub(super) fn is_network_policy_of(&self, dialect: Dialect, policy: &Value, ask: &Ask<'_>) -> bool {
        let is_one = matches!(dialect, Dialect::V1 | Dialect::UnknownV1 | Dialect::Old);
        let namespace = get(&policy["metadata"], "namespace")
            .and_then(Value::as_str)
            .unwrap_or("default");
        if !is_one || namespace != ask.subject.namespace {
            return false;
        }
        let selector = get(&policy["spec"], "podSelector");
        if selector.is_none() && dialect == Dialect::Old && self.errs(Id::P9) {
            return false;
        }
        self.widened(selector, &self.pod_labels(ask.subject)).0
    }

    /// Whether a NetworkPolicy of `networking.k8s.io` isolates what it selects.
    pub(super) fn isolates(&self, policy: &Value, dialect: Dialect, direction: Direction) -> bool {
        let spec = &policy["spec"];
        let types_field = get(spec, "policyTypes");
        let is_type = |item: &Value| item == "Ingress" || item == "Egress";
        let is_readable = types_field.is_none_or(Value::is_array) && items(types_field).iter().all(is_type);
        let is_broken = get(policy, "spec").is_some_and(|spec| only(spec, dialect.fields()).is_err());
        if dialect.is_unknown() || !is_readable || is_broken {
            return true;
        }
        let is_written = types(policy).contains(&direction);
        let is_absent = items(types_field).is_empty();
        let by_mistake =
            (is_absent && direction == Direction::Egress && self.errs(Id::C59)) || self.errs(Id::C16);
        is_written || by_mistake
    }

    /// Whether a rule of a NetworkPolicy allows.
    pub(super) fn allows(&self, policy: &Value, dialect: Dialect, ask: &Ask<'_>) -> bool {
        let spec = &policy["spec"];
        let is_broken = get(policy, "spec").is_some_and(|spec| only(spec, dialect.fields()).is_err());
        let (_, is_sound) = self.widened(get(spec, "podSelector"), &self.pod_labels(ask.subject));
        if dialect == Dialect::UnknownV1 || is_broken || !is_sound {
            return false;
        }
        let rules = items(get(spec, ask.direction.word()));
        if rules.is_empty() && dialect == Dialect::Old && self.errs(Id::P10) {
            return true;
        }
        rules
            .iter()
            .any(|rule| self.act(rule, dialect, Tier::Admin, true, ask) == Some(Act::Allow))
    }
}
