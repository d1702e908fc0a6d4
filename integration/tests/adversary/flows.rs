//! Flows of a neighbour, known by addresses and ports, that somebody else writes to.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{Adversary, Connection, Packet, Records, Segment, Sniffer, World};

use crate::{
    Enforcement,
    deployment::{Deployment, PATIENCE, Setup, TestResult, only_names},
    words::{ALLOWED, HONEST, STOLEN, TCP_ECHO, UDP_ECHO, allowed_alone, assert_honest_alone, at, families},
};

/// The client may go wherever it likes, the victim to one place.
pub(crate) fn a_flow_that_one_pod_opens_in_anothers_name_is_judged_when_the_other_uses_it(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let setting = Setup::of(allowed_alone("victim")).and_pod("victim");
    let deployment = enforcement.of(setting).deploy(world)?;
    let (client, victim) = (
        deployment.world.adversary("client")?,
        deployment.world.adversary("victim")?,
    );
    let outside = deployment.world.router_outside()?.sniff()?;
    for family in families(deployment.pod("victim")) {
        let (own, denied) = (at(family.own, 4000), at(family.denied, UDP_ECHO));
        client.send(&Packet::udp(own, denied, b"opening"))?;
        client.send(&Packet::tcp(own, denied, Segment::syn(1), b"opening"))?;
        victim.send(&Packet::udp(own, denied, STOLEN))?;
        victim.send(&Packet::tcp(own, denied, Segment::syn(1), STOLEN))?;
        victim.send(&Packet::udp(own, at(family.allowed, UDP_ECHO), HONEST))?;
        assert_honest_alone(&outside, denied);
    }
    Ok(())
}

/// A connection of the victim, and what somebody who reads along knows of it.
struct Open {
    connection: Connection,
    from: SocketAddr,
    to: SocketAddr,
    next: Segment,
}

impl Open {
    fn of(
        deployment: &Deployment<'_>,
        sniffer: &Sniffer,
        to: IpAddr,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let to = at(to, TCP_ECHO);
        let mut connection = deployment.pod("victim").connect_tcp(to, PATIENCE).connection();
        connection.echo_within(PATIENCE)?;
        let from = connection.local()?;
        // The victim's own acknowledgment of the echo says both numbers.
        let last = sniffer.next(PATIENCE, |seen| {
            let is_ours = seen.ends() == Some((from, to));
            let acknowledges = |(segment, payload): (Segment, Vec<u8>)| !segment.syn && payload.is_empty();
            // The first one is of the handshake.
            is_ours && seen.segment().is_some_and(acknowledges)
        })?;
        let last = sniffer
            .next(PATIENCE, |seen| {
                seen.ends() == Some((from, to))
                    && seen
                        .segment()
                        .is_some_and(|(segment, payload)| !segment.syn && payload.is_empty())
            })?
            .or(last);
        let (next, _) = last
            .and_then(|seen| seen.segment())
            .ok_or("nothing of it is seen")?;
        Ok(Self {
            connection,
            from,
            to,
            next,
        })
    }

    /// All that ends connections, in the name of the victim and with its numbers.
    fn attack_by(&self, adversary: &Adversary) -> std::io::Result<()> {
        let acknowledgment = self.next.acknowledgment.unwrap_or_default();
        let ack = Segment::ack(self.next.sequence, acknowledgment);
        let forged = [
            Segment::syn(self.next.sequence),
            Segment::syn(self.next.sequence.wrapping_add(1 << 30)),
            ack.with_fin(),
            ack.with_rst(),
            Segment {
                acknowledgment: None,
                ..ack.with_rst()
            },
        ];
        for segment in forged {
            adversary.send(&Packet::tcp(self.from, self.to, segment, STOLEN))?;
            // In the name of the other end as well, to the victim.
            let back = Segment {
                sequence: acknowledgment,
                acknowledgment: segment.acknowledgment.map(|_| self.next.sequence),
                ..segment
            };
            adversary.send(&Packet::tcp(self.to, self.from, back, STOLEN))?;
        }
        Ok(())
    }

    /// What the node's connection tracking says of its state.
    fn tracked(&self, deployment: &Deployment<'_>) -> Result<String, Box<dyn std::error::Error>> {
        let family = if self.from.is_ipv4() { "ipv4" } else { "ipv6" };
        let port = self.from.port().to_string();
        let asked = ["conntrack", "-L", "-f", family, "-p", "tcp", "--sport", &port];
        Ok(deployment.world.node().run(&asked)?.stdout)
    }
}

/// The adversary may itself go where the victim's connection leads, then it may not.
pub(crate) fn segments_in_a_neighbours_name_do_not_end_its_connection(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let policies = format!("{}---\n{}", allowed_alone("victim"), nowhere("confined"));
    let setting = Setup::of(policies).and_pod("victim").and_pod("confined");
    let deployment = enforcement.of(setting).deploy(world)?;
    let sniffer = deployment.world.adversary("victim")?.sniff_both_ways()?;
    for name in ["client", "confined"] {
        let adversary = deployment.world.adversary(name)?;
        for to in ALLOWED {
            let mut open = Open::of(&deployment, &sniffer, to.parse()?)?;
            open.attack_by(&adversary)?;
            let tracked = open.tracked(&deployment)?;
            assert!(
                tracked.contains("ESTABLISHED"),
                "{name}: {to} is tracked as {tracked}"
            );
            let echoed = open.connection.echo_within(PATIENCE);
            assert!(
                echoed.is_ok(),
                "{name} ends the victim's connection to {to}: {echoed:?}"
            );
        }
    }
    Ok(())
}

fn nowhere(label: &str) -> String {
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: nowhere, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: {label}}}}}
  policyTypes: [Egress]
  egress: []
"#
    )
}

/// What is tracked as closed is forgotten after some seconds, and then judged as new.
pub(crate) fn a_reset_in_a_neighbours_name_does_not_end_a_connection_whose_record_is_over(
    world: &mut World,
    enforcement: Enforcement,
) -> TestResult {
    let setting = Setup::of(only_names(&["*.example.test"])).and_pod("victim");
    let deployment = enforcement.of(setting.without_grace()).deploy(world)?;
    let node = deployment.world.node();
    node.sysctl("netfilter/nf_conntrack_tcp_timeout_close", "1")?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses([ALLOWED[0]]).ttl(1));
    deployment.ask("victim", "api.example.test");
    let sniffer = deployment.world.adversary("victim")?.sniff_both_ways()?;
    let mut open = Open::of(&deployment, &sniffer, ALLOWED[0].parse()?)?;
    crate::deployment::eventually("the record is over", || {
        !deployment.kernel_holds("victim", ALLOWED[0])
    });
    let adversary = deployment.world.adversary("client")?;
    open.attack_by(&adversary)?;
    // Longer than what is closed is remembered, were it closed.
    let is_forgotten = || {
        open.tracked(&deployment)
            .is_ok_and(|tracked| !tracked.contains("ESTABLISHED"))
    };
    let forgotten = crate::deployment::is_soon(std::time::Duration::from_millis(2_500), is_forgotten);
    let echoed = open.connection.echo_within(PATIENCE);
    assert!(echoed.is_ok(), "the victim's connection ends: {echoed:?}");
    assert!(!forgotten, "it is tracked as closed");
    deployment.assert_refused("victim", ALLOWED[0]);
    Ok(())
}
