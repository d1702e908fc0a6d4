//! An interface that exists to hold addresses: packets to them stay on this host.

use crate::Family;
use crate::netlink::{ACKNOWLEDGE, CREATE, EXCLUSIVE, Error, Request};
use nix::libc::{
    EEXIST, ENODEV, EOPNOTSUPP, IFA_ADDRESS, IFA_FLAGS, IFA_LOCAL, IFF_UP, IFLA_IFNAME, IFLA_INFO_KIND,
    IFLA_LINKINFO, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK,
};
use std::net::IpAddr;

use super::{ADDRESS_HEADER, Interface, LINK_HEADER, Links};

/// Kinds of interfaces that send nothing anywhere by themselves: the first is made for that, the second is where a
/// kernel is built without the first.
const KINDS: [&str; 2] = ["dummy", "ifb"];

impl Links {
    /// The interface of this name, made if there is none.
    ///
    /// # Errors
    /// When the kernel refuses, or knows no kind of interface for it.
    pub fn ensure_local(&mut self, name: &str) -> Result<(Interface, InterfaceOrigin), Error> {
        if let Some(interface) = self.interface_by_name(name)? {
            return Ok((interface, InterfaceOrigin::Before));
        }
        self.create_local(name)?;
        let created = self.interface_by_name(name)?;
        created
            .map(|interface| (interface, InterfaceOrigin::Now))
            .ok_or(Error::Malformed {
                asked: "a new interface",
                reason: "it was made and is not there",
            })
    }

    /// Gives the interface an address of its own, which no other host has a route to; says whether it had none such.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn ensure_address(&mut self, interface: u32, address: IpAddr) -> Result<bool, Error> {
        let flags = ACKNOWLEDGE | CREATE | EXCLUSIVE;
        let (family, length, octets) = match address {
            IpAddr::V4(address) => (Family::V4, 32, address.octets().to_vec()),
            IpAddr::V6(address) => (Family::V6, 128, address.octets().to_vec()),
        };
        let mut header = [0; ADDRESS_HEADER];
        header[..2].copy_from_slice(&[family.number(), length]);
        header[4..].copy_from_slice(&interface.to_ne_bytes());
        let request = Request::new("an address for an interface", RTM_NEWADDR, flags, &header)
            .bytes(IFA_LOCAL, &octets)
            .bytes(IFA_ADDRESS, &octets)
            .bytes(IFA_FLAGS, &NO_DUPLICATE_DETECTION.to_ne_bytes());
        match self.socket.tell(&request) {
            Ok(()) => Ok(true),
            Err(error) if error.refusal_code() == Some(EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Brings an interface up: IPv6 addresses are local only then, IPv4 addresses also before.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bring_up(&mut self, interface: u32) -> Result<(), Error> {
        let up = u32::try_from(IFF_UP)
            .expect("a flag is not negative")
            .to_ne_bytes();
        let mut header = [0; LINK_HEADER];
        header[4..8].copy_from_slice(&interface.to_ne_bytes());
        header[8..12].copy_from_slice(&up);
        header[12..].copy_from_slice(&up);
        self.socket.tell(&Request::new(
            "an interface to be up",
            RTM_NEWLINK,
            ACKNOWLEDGE,
            &header,
        ))
    }

    /// Removes the interface of this name and its addresses; says whether there was one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&mut self, name: &str) -> Result<bool, Error> {
        let request = Request::new("an interface to go", RTM_DELLINK, ACKNOWLEDGE, &[0; LINK_HEADER])
            .text(IFLA_IFNAME, name);
        match self.socket.tell(&request) {
            Ok(()) => Ok(true),
            Err(error) if error.refusal_code() == Some(ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn create_local(&mut self, name: &str) -> Result<(), Error> {
        let mut last = Ok(());
        for kind in KINDS {
            let flags = ACKNOWLEDGE | CREATE | EXCLUSIVE;
            let request = Request::new("a new interface", RTM_NEWLINK, flags, &[0; LINK_HEADER])
                .text(IFLA_IFNAME, name)
                .nest(IFLA_LINKINFO, |info| info.bytes(IFLA_INFO_KIND, kind.as_bytes()));
            last = self.socket.tell(&request);
            let is_unknown = |error: &Error| error.refusal_code() == Some(EOPNOTSUPP);
            if !last.as_ref().is_err_and(is_unknown) {
                return last;
            }
        }
        last
    }
}

/// Who made an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceOrigin {
    /// Somebody, before.
    Before,
    /// This call.
    Now,
}

/// `IFA_F_NODAD`: nobody else is there to have the address.
const NO_DUPLICATE_DETECTION: u32 = 0x02;
