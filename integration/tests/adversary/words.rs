//! The addresses, policies and expectations that stories share.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{Adversary, Packet, Pod, Segment, Sniffer};

use crate::deployment::{PATIENCE, QUICK, ip};

/// Outside; `ALLOWED` is what policies of stories allow, `DENIED` what none does.
pub(crate) const ALLOWED: [&str; 2] = ["203.0.113.7", "2001:db8::7"];
pub(crate) const DENIED: [&str; 2] = ["203.0.113.66", "2001:db8::66"];
pub(crate) const UDP_ECHO: u16 = 5000;
pub(crate) const TCP_ECHO: u16 = 7;
/// In whatever must not arrive, and in whatever must.
pub(crate) const STOLEN: &[u8] = b"stolen-stolen-stolen";
pub(crate) const HONEST: &[u8] = b"honest-honest-honest";

pub(crate) fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

/// The allowed and the denied address of each family, with the pod's own.
pub(crate) fn families(pod: &Pod) -> impl Iterator<Item = Family> + use<> {
    let outside = ALLOWED.into_iter().zip(DENIED);
    pod.addresses()
        .into_iter()
        .zip(outside)
        .map(|(own, (allowed, denied))| Family {
            own,
            allowed: ip(allowed),
            denied: ip(denied),
        })
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) own: IpAddr,
    pub(crate) allowed: IpAddr,
    pub(crate) denied: IpAddr,
}

/// The pods with this label may send to the allowed addresses, and nowhere else.
pub(crate) fn allowed_alone(label: &str) -> String {
    let [v4, v6] = ALLOWED;
    format!(
        r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: allowed-alone-{label}, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: {label}}}}}
  policyTypes: [Egress]
  egress:
  - to: [{{ipBlock: {{cidr: {v4}/32}}}}, {{ipBlock: {{cidr: "{v6}/128"}}}}]
"#
    )
}

/// One packet of each kind from one end to another, all with this payload; from several ports, beginning with that of `from`.
pub(crate) fn one_of_each(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<Packet> {
    let next = |number| at(from.ip(), from.port() + number);
    vec![
        Packet::udp(from, to, payload),
        Packet::tcp(next(1), to, Segment::syn(1), payload),
        Packet::tcp(next(2), to, Segment::ack(1, 1), payload),
        Packet::echo_request(from.ip(), to.ip(), payload),
        Packet::of_protocol(from.ip(), to.ip(), 253, payload),
    ]
}

/// The honest packet comes, and no stolen one before it.
#[track_caller]
pub(crate) fn assert_honest_alone(sniffer: &Sniffer, what: impl std::fmt::Display) {
    let seen = match sniffer.until(HONEST, PATIENCE) {
        Ok(seen) => seen,
        Err(error) => panic!("{what}: {error}"),
    };
    let stolen = seen.iter().filter(|seen| seen.holds(STOLEN)).count();
    assert_eq!(stolen, 0, "{what}: packets that should not arrive");
}

/// Nothing stolen comes for a while.
#[track_caller]
pub(crate) fn assert_nothing_stolen(sniffer: &Sniffer, what: impl std::fmt::Display) {
    let stolen = sniffer.next(QUICK, |seen| seen.holds(STOLEN)).unwrap();
    assert!(
        stolen.is_none(),
        "{what}: it arrives: {:?}",
        stolen.and_then(|seen| seen.ends())
    );
}

/// Sends all of them.
pub(crate) fn send_all(adversary: &Adversary, packets: &[Packet]) -> std::io::Result<()> {
    packets.iter().try_for_each(|packet| adversary.send(packet))
}
