//! The node's addresses for its own compiler: no name opens them, whether or not the node's status lists them.

use std::io;
use std::net::IpAddr;

use egret_kernel::links::Links;
use egret_policies::compiler::Event;

use super::addresses;

/// The addresses of this node as the compiler was told last.
#[derive(Debug)]
pub struct NodeAddresses {
    links: Links,
    told: Option<Vec<IpAddr>>,
}

impl NodeAddresses {
    /// Asks the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            links: Links::open().map_err(io::Error::other)?,
            told: None,
        })
    }

    /// What the compiler is to be told, if the addresses are others than it was told last.
    ///
    /// # Errors
    /// When the kernel does not list them; what the compiler was told stays in force.
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
