//! Sockets in pods' network namespaces, which are destroyed when their connection is revoked. The namespace
//! is found by the nsid that the node's end of the pod's veth shows, among those pinned in `/run/netns`
//! (containerd, CRI-O) and those of processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use egret_kernel::Transport;
use egret_kernel::conntrack::{ProtocolDetail, Tuple};
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::Links;
use egret_kernel::namespaces;
use egret_kernel::netlink;
use egret_kernel::sock_diag::{Connection, Sockets};

/// The socket that sends packets like this; none for protocols without ports.
pub(super) fn sending(tuple: &Tuple) -> Option<Connection> {
    let ProtocolDetail::Ports { source, destination } = tuple.detail else {
        return None;
    };
    Some(Connection {
        transport: Transport::from_number(tuple.protocol)?,
        local: SocketAddr::new(tuple.source, source),
        remote: SocketAddr::new(tuple.destination, destination),
    })
}

/// What became of sockets.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) ended: u64,
    /// Why some could not be looked for.
    pub(super) hindered: Option<String>,
}

/// Ends sockets of the pods behind these interfaces.
pub(super) fn end(wanted: &BTreeMap<InterfaceName, Vec<Connection>>) -> Outcome {
    let mut outcome = Outcome::default();
    if wanted.is_empty() {
        return outcome;
    }
    match Links::open().and_then(|mut links| numbered(&mut links, wanted).map(|numbered| (links, numbered))) {
        Ok((mut links, numbered)) => end_numbered(&mut links, numbered, wanted, &mut outcome),
        Err(error) => outcome.hindered = Some(error.to_string()),
    }
    outcome
}

/// The number of the namespace behind each interface.
fn numbered<'a>(
    links: &mut Links,
    wanted: &'a BTreeMap<InterfaceName, Vec<Connection>>,
) -> Result<BTreeMap<&'a InterfaceName, u32>, netlink::Error> {
    let mut found = BTreeMap::new();
    for name in wanted.keys() {
        let interface = links.interface_by_name(name.as_str())?;
        found.extend(interface.and_then(|interface| Some((name, interface.link_namespace?))));
    }
    Ok(found)
}

fn end_numbered(
    links: &mut Links,
    numbered: BTreeMap<&InterfaceName, u32>,
    wanted: &BTreeMap<InterfaceName, Vec<Connection>>,
    outcome: &mut Outcome,
) {
    let namespaces = namespaces::find(links, numbered.values().copied().collect());
    for (name, held) in wanted {
        let Some(namespace) = numbered.get(name).and_then(|number| namespaces.get(number)) else {
            outcome.hindered = Some(format!(
                "no network namespace is found behind {}; it is looked for in {}",
                name.as_str(),
                namespaces::SOUGHT_IN
            ));
            continue;
        };
        match end_within(namespace, held) {
            Ok(ended) => outcome.ended += ended,
            Err(error) if error.refusal_code() == Some(nix::libc::EOPNOTSUPP) => {
                outcome.hindered = Some("the kernel has no CONFIG_INET_DIAG_DESTROY".to_owned());
            }
            Err(error) => outcome.hindered = Some(error.to_string()),
        }
    }
}

fn end_within(namespace: &File, held: &[Connection]) -> Result<u64, netlink::Error> {
    Sockets::open_in(namespace.as_fd())?.end_all(held)
}
