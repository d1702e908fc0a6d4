//! Packets from a pod with a source address that is not the pod's.

use egret_integration::{Packet, PodSpec, World};

use crate::{
    Enforcement,
    deployment::{PATIENCE, Setup, TestResult, eventually, metrics},
    words::{ALLOWED, HONEST, STOLEN, UDP_ECHO, assert_honest_alone, at, families, one_of_each, send_all},
};

const MUTE: u16 = 5140;
const OWN: &[u8] = b"own-own-own";

/// Friends and one place outside enter the server; everybody may send whatever they like.
fn friends_alone() -> String {
    let [v4, v6] = ALLOWED;
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: server, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: server}}}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector: {{matchLabels: {{app: friend}}}}
    - ipBlock: {{cidr: {v4}/32}}
    - ipBlock: {{cidr: "{v6}/128"}}
"#
    )
}

pub(crate) fn nobody_enters_a_pod_in_the_name_of_one_who_may(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let pods = ["client", "friend", "server"].map(PodSpec::new);
    let setting = Setup::of(friends_alone()).instead(pods);
    let deployment = enforcement.of(setting).deploy(world)?;
    let (client, friend) = (
        deployment.world.adversary("client")?,
        deployment.world.adversary("friend")?,
    );
    let outside = deployment.world.router_outside()?;
    let inside = deployment.world.adversary("server")?.sniff()?;
    let friends = deployment.pod("friend").addresses();
    let servers = deployment.pod("server").addresses();
    for ((friends, server), family) in friends
        .into_iter()
        .zip(servers)
        .zip(families(deployment.pod("client")))
    {
        let to = at(server, UDP_ECHO);
        send_all(&client, &one_of_each(at(friends, 4000), to, STOLEN))?;
        friend.send(&Packet::udp(at(friends, 4001), to, HONEST))?;
        assert_honest_alone(&inside, format!("in the name of {friends}"));
        send_all(&client, &one_of_each(at(family.allowed, 4000), to, STOLEN))?;
        outside.send(&Packet::udp(at(family.allowed, 4001), to, HONEST))?;
        assert_honest_alone(&inside, format!("in the name of {}", family.allowed));
    }
    Ok(())
}

/// Nobody says what the pods may; so they may all.
pub(crate) fn nothing_leaves_the_node_in_anothers_name(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let deployment = enforcement
        .of(Setup::of(friends_alone()).and_pod("friend"))
        .deploy(world)?;
    // An echo would come back as an error that quotes it.
    let _mute = deployment.world.mute_on_upstream_network(MUTE)?;
    let adversary = deployment.world.adversary("client")?;
    let outside = deployment.world.router_outside()?.sniff()?;
    for (family, friend) in families(deployment.pod("client")).zip(deployment.pod("friend").addresses()) {
        let to = at(family.allowed, MUTE);
        for (source, port) in [(friend, 4000), (family.denied, 5000)] {
            send_all(&adversary, &one_of_each(at(source, port), to, STOLEN))?;
            // Each packet of its own is seen, so what is not seen was not lost.
            let own = one_of_each(at(family.own, port), to, OWN);
            send_all(&adversary, &own)?;
            adversary.send(&Packet::udp(at(family.own, port), to, HONEST))?;
            let seen = outside.until(HONEST, PATIENCE)?;
            let count = |word: &[u8]| seen.iter().filter(|seen| seen.holds(word)).count();
            assert_eq!(count(OWN), own.len(), "packets in its own name");
            assert_eq!(count(STOLEN), 0, "packets in the name of {source}");
        }
    }
    Ok(())
}

/// With the pod that sent it, not with the one that it pretends to be.
pub(crate) fn what_is_sent_in_anothers_name_is_counted_and_told(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let events = world.files().join("events.jsonl");
    let path = events.display().to_string();
    let setting = Setup::of(friends_alone()).and_pod("friend");
    let deployment = enforcement
        .of(setting)
        .enforcer(&["--events", &path])
        .deploy(world)?;
    let adversary = deployment.world.adversary("client")?;
    let mut sent = 0.0;
    for (family, friend) in families(deployment.pod("client")).zip(deployment.pod("friend").addresses()) {
        let forged = one_of_each(at(friend, 4000), at(family.allowed, MUTE), STOLEN);
        send_all(&adversary, &forged)?;
        adversary.send(&Packet::udp(
            at(family.own, 4001),
            at(family.allowed, MUTE),
            HONEST,
        ))?;
        sent += f64::from(u32::try_from(forged.len())?);
    }
    let counted = || {
        let labels = [
            ("tier", "spoofed-source"),
            ("action", "deny"),
            ("direction", "egress"),
        ];
        metrics(&deployment.enforcer).sum("egret_enforcer_verdicts_total", &labels)
    };
    eventually("each is counted", || counted() >= sent);
    assert!(
        (counted() - sent).abs() < 0.5,
        "and nothing else: {} of {sent}",
        counted()
    );
    let told = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&events).unwrap_or_default();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let lines = lines.map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|line: &serde_json::Value| line["reason"] == "spoofed-source")
            .collect()
    };
    eventually("it is told", || !told().is_empty());
    for line in told().iter().filter(|line| line["type"] == "denied") {
        assert_eq!(
            (&line["pod"], &line["direction"]),
            (&"client".into(), &"egress".into()),
            "{line}"
        );
    }
    Ok(())
}
