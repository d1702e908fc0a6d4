//! After a boot, addresses of stored pods may belong to other pods. If only stored pods are known, everything from and
//! to their addresses is denied.

use std::sync::Arc;

use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::model::{
    Action, Effect, Enforcement, Exposure, Kind, NamespaceSelector, Peers, Policy, PolicyId, Ports, Rank,
    Rule, Selector, Subject, Tier,
};

/// A name that no object can have in a cluster.
const NAME: &str = "pods_of_another_boot";

/// The policy that denies everything to the pods of this node, in the first tier, whose Deny is final.
pub(in crate::watch) fn deny_all_policy() -> [(EntityKey, Entity); 1] {
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
        egress: deny_everything(),
        ingress: deny_everything(),
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    });
    [(policy.key(), policy)]
}

fn deny_everything() -> Effect {
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
    use egret_policies::model::Direction;
    use egret_policies::simulator::{Connection, Protocol, Simulator, Verdict};
    use egret_shared::net::Transport;
    use egret_shared::time::Timestamp;

    const KNOWN : & str = "
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

    /// The verdict of `KNOWN`, and that with `deny_all_policy` added.
    fn verdict(direction: Direction, peer: &str, peer_is_own_node: bool) -> [Verdict; 2] {
        [false, true].map(|is_closed| {
            let now = Timestamp::from_millis(1);
            let mut compiler = Compiler::new(Settings::for_scope(NodeScope::One(Arc::from("here"))));
            let read = manifest::read(KNOWN, "test");
            assert!(read.is_whole(), "{:?}", read.problems);
            let stored = read.documents.iter().flat_map(|document| {
                let lowered = lower(&document.object);
                assert!(lowered.diagnostics.is_empty(), "{:?}", lowered.diagnostics);
                lowered.entities
            });
            let closing = deny_all_policy().into_iter().map(|(_, entity)| entity);
            for entity in stored.chain(closing.filter(|_| is_closed)) {
                compiler.handle(Event::Apply(entity), now);
            }
            let mut kernel = Simulator::new();
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
        let (opened, deny_all) = ([Verdict::Allow, Verdict::Allow], [Verdict::Allow, Verdict::Deny]);
        assert_eq!(verdict(Egress, "203.0.113.7", false), deny_all);
        assert_eq!(verdict(Egress, "10.0.1.1", false), deny_all);
        assert_eq!(verdict(Egress, "192.0.2.1", true), deny_all);
        assert_eq!(verdict(Ingress, "10.0.1.1", false), deny_all);
        assert_eq!(verdict(Ingress, "203.0.113.7", false), deny_all);
        assert_eq!(verdict(Ingress, "192.0.2.1", true), opened);
    }
}
