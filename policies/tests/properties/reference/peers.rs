//! The peers of a rule.

use std::net::IpAddr;

use egret_policies::simulator::Protocol;
use egret_shared::net::Transport;
use serde_json::Value;

use super::cluster::{Labels, get};
use super::kinds::{Dialect, only};
use super::networks::Net;
use super::rules::Found;
use super::{Act, Ask, Broken, PolicyReader, Tier};
use crate::ids::Id;

impl<'c> PolicyReader<'c> {
    /// Which of the peers the other end is. All are read, so that one that is broken closes the rule.
    pub(super) fn find(
        &self,
        list: Option<&Value>,
        dialect: Dialect,
        tier: Tier,
        action: Result<Act, Broken>,
        ask: &Ask<'_>,
    ) -> Result<Found<'c>, Broken> {
        let any = Found {
            any: true,
            ..Found::default()
        };
        let items = match (list, dialect) {
            (None, Dialect::V1 | Dialect::Old) => return Ok(any),
            (None, _) => return Err(Broken),
            (Some(list), _) => list.as_array().ok_or(Broken)?,
        };
        if items.is_empty() {
            return match dialect {
                Dialect::V1 if !self.errs(Id::C60) => Ok(any),
                Dialect::V1 => Ok(Found::default()),
                Dialect::Old if self.errs(Id::P13) => Ok(any),
                Dialect::Old => Ok(Found::default()),
                Dialect::Firewall if self.errs(Id::E12) => Ok(any),
                _ => Err(Broken),
            };
        }
        let mut found = Found::default();
        for (place, item) in items.iter().enumerate() {
            match dialect {
                Dialect::V1 => self.v1_peer(item, ask, &mut found)?,
                Dialect::Old => self.old_peer(item, ask, &mut found)?,
                Dialect::Firewall => self.firewall_peer(item, action, ask, &mut found)?,
                _ => {
                    let names_before = found.names;
                    self.cluster_peer(item, dialect, tier, action, ask, &mut found)?;
                    if place > 0 && found.names && !names_before && self.errs(Id::F10) {
                        found.names = false;
                    }
                }
            }
        }
        if dialect == Dialect::V1 && found.places && self.is_vetoed(items, ask) {
            found.places = false;
        }
        Ok(found)
    }

    fn v1_peer(&self, item: &Value, ask: &Ask<'_>, found: &mut Found<'c>) -> Result<(), Broken> {
        only(item, &["podSelector", "namespaceSelector", "ipBlock"])?;
        let own = &ask.subject.namespace;
        match (
            get(item, "ipBlock"),
            get(item, "namespaceSelector"),
            get(item, "podSelector"),
        ) {
            (Some(block), None, None) => found.places |= self.ip_block(block, ask)?,
            (None, None, Some(pods)) => {
                self.find_pods(|namespace, _| Ok(namespace == own), Some(pods), ask, found)?;
            }
            (None, Some(namespaces), pods) => {
                let in_namespace = |_: &str, labels: &Labels| self.selects(namespaces, labels);
                self.find_pods(in_namespace, pods, ask, found)?;
            }
            (None, None, None) | (Some(_), _, _) => return Err(Broken),
        }
        Ok(())
    }

    fn old_peer(&self, item: &Value, ask: &Ask<'_>, found: &mut Found<'c>) -> Result<(), Broken> {
        only(item, &["podSelector", "namespaceSelector"])?;
        let own = &ask.subject.namespace;
        match (get(item, "namespaceSelector"), get(item, "podSelector")) {
            (None, Some(pods)) => self.find_pods(|namespace, _| Ok(namespace == own), Some(pods), ask, found),
            (Some(namespaces), pods) if pods.is_none() || self.errs(Id::P15) => {
                self.find_pods(|_, labels| self.selects(namespaces, labels), pods, ask, found)
            }
            (None, None) | (Some(_), _) => Err(Broken),
        }
    }

    fn cluster_peer(
        &self,
        item: &Value,
        dialect: Dialect,
        tier: Tier,
        action: Result<Act, Broken>,
        ask: &Ask<'_>,
        found: &mut Found<'c>,
    ) -> Result<(), Broken> {
        let known: &[&str] = match (ask.is_egress(), dialect) {
            (false, _) => &["namespaces", "pods"],
            (true, Dialect::Baseline) if !self.errs(Id::F32) => &["namespaces", "pods", "nodes", "networks"],
            (true, _) => &["namespaces", "pods", "nodes", "networks", "domainNames"],
        };
        let (word, field) = one_of(item, known)?;
        match word {
            "namespaces" => {
                let in_namespace = |_: &str, labels: &Labels| self.selects(field, labels);
                self.find_pods(in_namespace, None, ask, found)?;
            }
            "pods" => {
                only(field, &["namespaceSelector", "podSelector"])?;
                let (namespaces, pods) = (get(field, "namespaceSelector"), get(field, "podSelector"));
                let is_whole = match dialect {
                    Dialect::Cluster => pods.is_some(),
                    _ => namespaces.is_some() || pods.is_some(),
                };
                if !is_whole {
                    return Err(Broken);
                }
                let in_namespace = |_: &str, labels: &Labels| match namespaces {
                    Some(namespaces) => self.selects(namespaces, labels),
                    None => Ok(true),
                };
                self.find_pods(in_namespace, pods, ask, found)?;
            }
            "nodes" => found.places |= self.is_reported_node(Some(field), ask.peer)?,
            "networks" => {
                for net in self.networks(field)? {
                    found.places |= self.net_has(&net, ask.peer);
                }
            }
            _ => {
                let is_denied = !matches!(action, Ok(Act::Allow));
                let is_reported = (action_is(action, Act::Deny) && self.errs(Id::X6))
                    || (action_is(action, Act::Pass) && self.errs(Id::G1));
                if is_denied && action.is_ok() && !is_reported {
                    return Err(Broken);
                }
                let is_found = self.is_observed(field, ask)?;
                found.names |= is_found && !(tier == Tier::Baseline && self.errs(Id::X6));
            }
        }
        Ok(())
    }

    /// Looks for the other end among pods of such a namespace and of such labels.
    fn find_pods(
        &self,
        in_namespace: impl Fn(&str, &Labels) -> Result<bool, Broken>,
        pods: Option<&Value>,
        ask: &Ask<'_>,
        found: &mut Found<'c>,
    ) -> Result<(), Broken> {
        let is_selected = |namespace: &str, namespace_labels: &Labels, labels: &Labels| {
            let in_namespace = in_namespace(namespace, namespace_labels)?;
            let is_pod = pods.map_or(Ok(true), |pods| self.selects(pods, labels))?;
            Ok::<bool, Broken>(in_namespace && is_pod)
        };
        // Whether it can be read does not depend on who is there.
        let nobody = Labels::default();
        let of_nobody = is_selected("", &nobody, &nobody)?;
        let others = self.pods_at(ask);
        for pod in &others {
            let labels = self.pod_labels(pod);
            let is_peer = is_selected(&pod.namespace, &self.namespace_labels(&pod.namespace), &labels)?;
            let is_pod = pods.map_or(Ok(true), |pods| self.selects(pods, &labels))?;
            if is_peer || (is_pod && self.is_unsynced(&pod.namespace)) {
                found.pods.push(pod);
            }
        }
        if others.is_empty() {
            let as_own = is_selected(&ask.subject.namespace, &nobody, &nobody)?;
            let by_mistake = (of_nobody || as_own) && self.errs(Id::C7);
            found.places |= by_mistake || self.is_resolver(ask, is_selected);
        }
        Ok(())
    }

    /// The pod at the other end, and those in whose place dnsd is there.
    pub(super) fn pods_at(&self, ask: &Ask<'_>) -> Vec<&'c super::Pod> {
        let of_host = || {
            let mut pods = self.cluster.pods.iter();
            let pod = pods.find(|pod| pod.host_network && !pod.ended && pod.addresses.contains(&ask.peer));
            pod.filter(|_| self.errs(Id::C5))
        };
        let pod = self.owner(ask.peer).or_else(of_host);
        pod.into_iter().chain(self.in_place_of(ask)).collect()
    }

    /// The pods of the DNS Service, where dnsd is asked in their place.
    fn in_place_of(&self, ask: &Ask<'_>) -> Vec<&'c super::Pod> {
        let is_dns = matches!(ask.protocol, Protocol::Port(Transport::Udp | Transport::Tcp, 53));
        let listens = self.cluster.setting.dnsd.is_some_and(|dnsd| dnsd == ask.peer);
        if !is_dns || !listens || !ask.is_egress() || self.errs(Id::C39) {
            return Vec::new();
        }
        let is_service =
            |object: &&Value| object["metadata"]["name"] == "kube-dns" && object["kind"] == "Service";
        let service = self.cluster.others.iter().find(is_service);
        let selector = service.and_then(|service| service["spec"]["selector"].as_object());
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
            return Vec::new();
        };
        let is_selected = |pod: &&super::Pod| {
            let mut wanted = selector.iter();
            wanted.all(|(key, value)| pod.labels.get(key).is_some_and(|has| has == value))
        };
        let of_system = self
            .cluster
            .pods
            .iter()
            .filter(|pod| pod.namespace == "kube-system" && !pod.host_network);
        of_system
            .filter(is_selected)
            .filter(|pod| self.has_own_address(pod))
            .collect()
    }

    /// The mistake to take whoever answers at port 53 for the pods of the DNS.
    fn is_resolver(
        &self,
        ask: &Ask<'_>,
        is_selected: impl Fn(&str, &Labels, &Labels) -> Result<bool, Broken>,
    ) -> bool {
        let is_dns = ask.is_egress() && matches!(ask.protocol, Protocol::Port(_, 53));
        is_dns
            && self.cluster.pods.iter().any(|pod| {
                let namespace = self.namespace_labels(&pod.namespace);
                pod.namespace == "kube-system"
                    && is_selected(&pod.namespace, &namespace, &pod.labels).unwrap_or(false)
            })
            && self.cluster.setting.dnsd.is_none()
            && self.errs(Id::C39)
    }

    // === Networks ===

    fn ip_block(&self, block: &Value, ask: &Ask<'_>) -> Result<bool, Broken> {
        only(block, &["cidr", "except"])?;
        let whole = self.net(get(block, "cidr").ok_or(Broken)?)?;
        let except = match get(block, "except") {
            None => Vec::new(),
            Some(list) => list
                .as_array()
                .ok_or(Broken)?
                .iter()
                .map(|item| self.net(item))
                .collect::<Result<_, _>>()?,
        };
        for net in &except {
            let is_mistaken = !net.is_same_family(&whole) && self.errs(Id::C25);
            if !net.is_strictly_inside(&whole) && !is_mistaken {
                return Err(Broken);
            }
        }
        let address = match ask.dialled {
            Some((address, _)) if self.errs(Id::C27) => address,
            _ => ask.peer,
        };
        let is_inside = self.net_has(&whole, address) && !except.iter().any(|net| net.has(address));
        Ok(is_inside && !(self.owner(address).is_some() && self.errs(Id::C24)))
    }

    /// The mistake to take the exception of one block for one of all.
    fn is_vetoed(&self, items: &[Value], ask: &Ask<'_>) -> bool {
        let blocks = items.iter().filter_map(|item| get(item, "ipBlock"));
        let mut except = blocks.flat_map(|block| super::cluster::texts(get(block, "except")));
        let is_excepted = except.any(|text| Net::read(text).is_some_and(|net| net.has(ask.peer)));
        is_excepted && self.errs(Id::C23)
    }

    pub(super) fn networks(&self, list: &Value) -> Result<Vec<Net>, Broken> {
        let items = list.as_array().filter(|items| !items.is_empty()).ok_or(Broken)?;
        items.iter().map(|item| self.net(item)).collect()
    }

    fn net(&self, value: &Value) -> Result<Net, Broken> {
        let net = value.as_str().and_then(Net::read).ok_or(Broken)?;
        if !net.is_strict && self.errs(Id::C26) {
            return Err(Broken);
        }
        Ok(net)
    }

    pub(super) fn net_has(&self, net: &Net, address: IpAddr) -> bool {
        net.has(address) || (address.is_ipv6() && net.is_all_v4() && self.errs(Id::F33))
    }
}

fn action_is(action: Result<Act, Broken>, wanted: Act) -> bool {
    action.is_ok_and(|action| action == wanted)
}

/// The one field of those that are known.
pub(crate) fn one_of<'v>(
    item: &'v Value,
    known: &[&'static str],
) -> Result<(&'static str, &'v Value), Broken> {
    only(item, known)?;
    let mut there = known.iter().filter_map(|word| Some((*word, get(item, word)?)));
    match (there.next(), there.next()) {
        (Some(one), None) => Ok(one),
        (None, _) | (Some(_), Some(_)) => Err(Broken),
    }
}
