//! After a boot nobody knows who has the addresses that pods had before: rules of one would be rules of another. So
//! where only such pods are known, nothing is allowed to or from their addresses.

use std::sync::Arc;

use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::model::{
    Action, Effect, Enforcement, Exposure, Kind, NamespaceSelector, Peers, Policy, PolicyId, Ports, Rank,
    Rule, Selector, Subject, Tier,
};

/// No object of a cluster can have this name.
const NAME: &str = "pods_of_another_boot";

/// The policy that closes every pod of this node, in the tier that is asked first and whose Deny is final.
pub(in crate::watch) fn to_all() -> [(EntityKey, Entity); 1] {
    let policy = Entity::Policy(Policy {
        id: PolicyId {
            kind: Kind::ClusterEgressFirewall,
            namespace: None,
            name: Arc::from(NAME),
        },
        rank: Rank {
            tier: Tier::ClusterEgressFirewall,
            priority: 0,
        },
        subject: Subject {
            namespaces: NamespaceSelector::Matching(Selector::everything()),
            pods: Selector::everything(),
        },
        egress: nothing(),
        ingress: nothing(),
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    });
    [(policy.key(), policy)]
}

fn nothing() -> Effect {
    Effect::Rules(Arc::new([Rule {
        index: 0,
        name: None,
        action: Action::Deny,
        peers: Peers::Any,
        ports: Ports::Any,
    }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_policies::api::manifest;
    use egret_policies::compiler::{Compiler, Event, NodeScope, Settings};
    use egret_policies::lower::lower;
    use egret_policies::memory::{Connection, Memory, Protocol, Verdict};
    use egret_policies::model::Direction;
    use egret_shared::net::Transport;
    use egret_shared::time::Timestamp;

    const KNOWN: &str = "
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: default}, spec: {nodeName: here}, status: {podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: default}, spec: {nodeName: there}, status: {podIPs: [{ip: 10.0.1.1}]}}
---
apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: opens}
spec: {priority: 0, rules: [{name: all, action: Allow, to: [{networks: [0.0.0.0/0]}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: opens}
spec:
  tier: Admin
  priority: 0
  subject: {namespaces: {}}
  ingress: [{name: all, action: Accept, from: [{namespaces: {}}]}]
  egress: [{name: all, action: Accept, to: [{namespaces: {}}, {networks: [0.0.0.0/0]}]}]
";

    /// What is in force of `KNOWN`, and what of it with `to_all`.
    fn verdict(direction: Direction, peer: &str, peer_is_own_node: bool) -> [Verdict; 2] {
        [false, true].map(|is_closed| {
            let now = Timestamp::from_millis(1);
            let mut compiler = Compiler::new(Settings::for_scope(NodeScope::One(Arc::from("here"))));
            let read = manifest::read(KNOWN, "test");
            assert!(read.is_whole(), "{:?}", read.problems);
            let known = read.documents.iter().flat_map(|document| {
                let lowered = lower(&document.object);
                assert!(lowered.diagnostics.is_empty(), "{:?}", lowered.diagnostics);
                lowered.entities
            });
            let closing = to_all().into_iter().map(|(_, entity)| entity);
            for entity in known.chain(closing.filter(|_| is_closed)) {
                compiler.handle(Event::Apply(entity), now);
            }
            let mut kernel = Memory::new();
            kernel
                .apply(&compiler.in_sync().poll_batch(now).unwrap(), now)
                .unwrap();
            let connection = Connection {
                pod: "default/a".parse().unwrap(),
                direction,
                peer: peer.parse().unwrap(),
                peer_is_own_node,
                protocol: Protocol::Port(Transport::Tcp, 80),
            };
            kernel.decide(&connection, now).verdict
        })
    }

    #[test]
    fn nothing_that_policies_allow_opens_a_pod_of_another_boot_but_to_its_node() {
        use Direction::{Egress, Ingress};
        let (opened, closed) = ([Verdict::Allow, Verdict::Allow], [Verdict::Allow, Verdict::Deny]);
        assert_eq!(verdict(Egress, "203.0.113.7", false), closed);
        assert_eq!(verdict(Egress, "10.0.1.1", false), closed);
        assert_eq!(verdict(Egress, "192.0.2.1", true), closed);
        assert_eq!(verdict(Ingress, "10.0.1.1", false), closed);
        assert_eq!(verdict(Ingress, "203.0.113.7", false), closed);
        assert_eq!(verdict(Ingress, "192.0.2.1", true), opened);
    }
}
