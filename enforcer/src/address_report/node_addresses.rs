//! The node's addresses for its own compiler. No DNS name opens them, whether or not the node's status lists them.

use std::io;
use std::net::IpAddr;

use egret_kernel::links::Links;
use egret_policies::compiler::Event;

use super::addresses;

/// The node's addresses as the compiler knows them.
#[derive(Debug)]
pub struct NodeAddresses {
    links: Links,
    told: Option<Vec<IpAddr>>,
}

impl NodeAddresses {
    /// Opens the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// When no socket can be opened.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            links: Links::open().map_err(io::Error::other)?,
            told: None,
        })
    }

    /// An event with the addresses, if they changed since the last call.
    ///
    /// # Errors
    ///
    /// When the kernel does not list them; the compiler keeps the last ones.
    pub fn changed(&mut self) -> io::Result<Option<Event>> {
        let listed = addresses::list(&mut self.links).map_err(io::Error::other)?;
        let node_addresses: Vec<IpAddr> = listed.into_keys().collect();
        if self.told.as_ref() == Some(&node_addresses) {
            return Ok(None);
        }
        self.told = Some(node_addresses.clone());
        Ok(Some(Event::NodeHolds(node_addresses)))
    }
}
