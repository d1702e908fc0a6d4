//! The sockets of pods' programs: each pod has its own network namespace, which is found by the number that the node's end of the
//! pod's veth shows, among the namespaces that are pinned in `/run/netns` (containerd, CRI-O) or that some process is in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use egret_kernel::Transport;
use egret_kernel::conntrack::{Detail, Tuple};
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::Links;
use egret_kernel::netlink;
use egret_kernel::sockets::Sockets;

/// One end of a connection, as the program that has it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    transport: Transport,
    local: SocketAddr,
    remote: SocketAddr,
}

impl Held {
    /// The socket that sends packets like this; none for protocols without ports.
    pub(super) fn sending(tuple: &Tuple) -> Option<Self> {
        let Detail::Ports { source, destination } = tuple.detail else {
            return None;
        };
        Some(Self {
            transport: Transport::from_number(tuple.protocol)?,
            local: SocketAddr::new(tuple.source, source),
            remote: SocketAddr::new(tuple.destination, destination),
        })
    }
}

/// What became of sockets.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) ended: u64,
    /// Why some could not be looked for.
    pub(super) hindered: Option<String>,
}

/// Ends sockets of the pods behind these interfaces.
pub(super) fn end(wanted: &BTreeMap<InterfaceName, Vec<Held>>) -> Outcome {
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
    wanted: &'a BTreeMap<InterfaceName, Vec<Held>>,
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
    wanted: &BTreeMap<InterfaceName, Vec<Held>>,
    outcome: &mut Outcome,
) {
    let namespaces = namespaces(links, numbered.values().copied().collect());
    for (name, held) in wanted {
        let Some(namespace) = numbered.get(name).and_then(|number| namespaces.get(number)) else {
            outcome.hindered = Some(format!(
                "no network namespace is found behind {}; it is looked for in /run/netns and in /proc/*/ns/net",
                name.as_str()
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

fn end_within(namespace: &File, held: &[Held]) -> Result<u64, netlink::Error> {
    let mut sockets = Sockets::open_in(namespace.as_fd())?;
    let mut ended = 0;
    for one in held {
        ended += u64::from(sockets.end(one.transport, one.local, one.remote)?);
    }
    Ok(ended)
}

/// Opens the namespaces of these numbers, as far as they are found. They are not kept: who keeps one open keeps it alive.
fn namespaces(links: &mut Links, mut missing: BTreeSet<u32>) -> BTreeMap<u32, File> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for path in pinned().chain(in_use()) {
        if missing.is_empty() {
            break;
        }
        // Processes end, and pins go, while they are listed.
        let Ok(file) = File::open(path) else { continue };
        let Ok(identity) = file.metadata().map(|data| (data.dev(), data.ino())) else {
            continue;
        };
        if !seen.insert(identity) {
            continue;
        }
        // What is no namespace of a network is refused.
        if let Ok(Some(number)) = links.namespace_id(file.as_fd())
            && missing.remove(&number)
        {
            found.insert(number, file);
        }
    }
    found
}

fn pinned() -> impl Iterator<Item = PathBuf> {
    ["/run/netns", "/var/run/netns"].into_iter().flat_map(entries)
}

fn in_use() -> impl Iterator<Item = PathBuf> {
    entries("/proc")
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .map(|path| path.join("ns/net"))
}

/// A folder that is not there has no entries.
fn entries(folder: &str) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
}
