//! The node's end of a pod's link: the other end of the interface inside (`IFLA_LINK`), which no name has to be guessed for.

use std::fs::File;
use std::thread;

use egret_kernel::links::{Interface, Links};
use egret_shared::cni::HostInterface;
use nix::sched::{CloneFlags, setns};

use crate::error::{CniError, Code};

/// Finds it. None where the interface inside is no veth to the node: then nothing of it is on the node but routes.
pub(crate) fn find(netns: &str, interface: &str) -> Result<Option<HostInterface>, CniError> {
    let inside = find_inside(netns, interface)?;
    let Some(index) = inside.link.filter(|_| inside.kind.as_deref() == Some("veth")) else {
        return Ok(None);
    };
    let unknown = |error| CniError::new(Code::Io, format_args!("the node's interfaces: {error}"));
    let found = Links::open()
        .and_then(|mut links| links.interface_by_index(index))
        .map_err(unknown)?;
    // The index is one of the namespace of the other end, which may be a third one. Its own link leads back.
    let is_end = |link: &Interface| link.kind.as_deref() == Some("veth") && link.link == Some(inside.index);
    Ok(found.filter(is_end).map(|link| HostInterface {
        name: link.name,
        index: link.index,
    }))
}

/// The interface inside. A socket belongs to the namespace in which it was opened; the thread that entered it ends.
fn find_inside(netns: &str, interface: &str) -> Result<Interface, CniError> {
    let namespace =
        File::open(netns).map_err(|error| CniError::io(format_args!("CNI_NETNS: {netns}"), &error))?;
    let enter = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
        Links::open().map_err(|error| error.to_string())
    };
    let entered = thread::scope(|scope| scope.spawn(enter).join());
    let entered = entered.unwrap_or_else(|_panic| Err("the thread that enters it died".to_owned()));
    let mut links =
        entered.map_err(|reason| CniError::new(Code::Io, format_args!("CNI_NETNS: {netns}: {reason}")))?;
    let unknown = |error| {
        CniError::new(
            Code::Io,
            format_args!("the interface {interface} in {netns}: {error}"),
        )
    };
    let inside = links.interface_by_name(interface).map_err(unknown)?;
    let missing = || {
        CniError::new(
            Code::InvalidConfig,
            format_args!("there is no interface {interface} in {netns}"),
        )
    };
    inside.ok_or_else(missing)
}
