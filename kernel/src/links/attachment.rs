//! What an address is attached to: who has it now is another than who had it before where that is another.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use nix::libc::{NDA_DST, NDA_LLADDR, RTM_GETNEIGH, RTM_NEWNEIGH};

use super::{Interface, Links};
use crate::Family;
use crate::netlink::{Error, MalformedMessage, ReplyPart, Request};

/// What an address is attached to at one moment: to be compared on one node. Another build may make another number of the
/// same, so what differs may be the same, and what is equal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment(u64);

impl Attachment {
    /// The attachment to whatever is described so.
    pub fn to(what: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// The attachment that another process of this node told as this number.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// As a number, for another process of this node.
    pub const fn as_number(self) -> u64 {
        self.0
    }

    /// A cable into another namespace is one pod's, and goes with it. Its index alone does not tell it from the next one:
    /// a link that is made inside the pod and moved out keeps its index where that is free (`__dev_change_net_namespace`),
    /// so the first pod of a node may always get the same.
    pub fn to_cable(interface: &Interface) -> Option<Self> {
        let kind = interface.kind.as_deref()?;
        let namespace = interface.link_namespace?;
        (kind == "veth" || kind == "netkit").then(|| {
            Self::to(&(
                interface.index,
                &interface.name,
                &interface.hardware,
                interface.link,
                namespace,
            ))
        })
    }
}

impl Links {
    /// What an address is attached to that is reached by this interface: its cable; where others are behind the interface too,
    /// the hardware address that the node knows for it. None where it cannot be told.
    pub fn attachment(&mut self, interface: u32, address: IpAddr) -> Result<Option<Attachment>, Error> {
        let Some(link) = self.interface_by_index(interface)? else {
            return Ok(None);
        };
        if let Some(cable) = Attachment::to_cable(&link) {
            return Ok(Some(cable));
        }
        let hardware = self.neighbour(interface, address)?;
        Ok(hardware.map(|hardware| Attachment::to(&(interface, hardware))))
    }

    /// The hardware address of a neighbour, as the node knows it.
    fn neighbour(&mut self, interface: u32, address: IpAddr) -> Result<Option<Vec<u8>>, Error> {
        let found = match self
            .socket
            .ask(&neighbour_request(interface, address), read_neighbour)
        {
            Ok(found) => found.into_iter().next(),
            // Not known; or the kernel is older than 5.0 and gives the whole table alone.
            Err(error) if error.refusal_code().is_some() => None,
            Err(error) => return Err(error),
        };
        Ok(found.filter(|hardware| !hardware.is_empty()))
    }
}

/// `struct ndmsg` of `linux/neighbour.h`.
const NEIGHBOUR_HEADER: usize = 12;

fn neighbour_request(interface: u32, address: IpAddr) -> Request {
    let (family, octets) = match address {
        IpAddr::V4(address) => (Family::V4, address.octets().to_vec()),
        IpAddr::V6(address) => (Family::V6, address.octets().to_vec()),
    };
    let mut header = [0; NEIGHBOUR_HEADER];
    header[0] = family.number();
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    Request::new("a neighbour", RTM_GETNEIGH, 0, &header).bytes(NDA_DST, &octets)
}

fn read_neighbour(answer: ReplyPart<'_>) -> Result<Option<Vec<u8>>, MalformedMessage> {
    if answer.kind != RTM_NEWNEIGH {
        return Ok(None);
    }
    let (_, attributes) = answer.split::<NEIGHBOUR_HEADER>()?;
    Ok(attributes.get(NDA_LLADDR).map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Tunnel;

    #[test]
    fn a_veth_is_identified_by_all_its_attributes_and_nothing_else_is_a_veth() {
        let cable = Interface {
            decapsulates: Tunnel::Nothing,
            index: 3,
            name: "veth0".to_owned(),
            is_up: true,
            mtu: 1500,
            kind: Some("veth".to_owned()),
            master: None,
            link: Some(2),
            hardware: vec![2, 0, 0, 0, 0, 1],
            link_namespace: Some(0),
        };
        let attachment = Attachment::to_cable(&cable);
        assert!(attachment.is_some());
        let others: [fn(&mut Interface); 5] = [
            |other| other.index = 4,
            |other| other.name = "veth1".to_owned(),
            |other| other.hardware[5] = 2,
            |other| other.link = Some(3),
            |other| other.link_namespace = Some(1),
        ];
        for change in others {
            let mut other = cable.clone();
            change(&mut other);
            assert!(Attachment::to_cable(&other).is_some_and(|other| Some(other) != attachment));
        }
        let same: [fn(&mut Interface); 2] = [|same| same.is_up = false, |same| same.mtu = 9000];
        for change in same {
            let mut same = cable.clone();
            change(&mut same);
            assert_eq!(Attachment::to_cable(&same), attachment);
        }
        let none: [fn(&mut Interface); 3] = [
            |none| none.kind = Some("bridge".to_owned()),
            |none| none.kind = None,
            |none| none.link_namespace = None,
        ];
        for change in none {
            let mut none = cable.clone();
            change(&mut none);
            assert_eq!(Attachment::to_cable(&none), None);
        }
    }
}
