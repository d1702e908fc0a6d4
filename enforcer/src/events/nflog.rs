//! Denied packets of the backends `netfilter` and `nftables`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use egret_kernel::nflog::Listener;
use nix::net::if_::if_indextoname;

use super::channel::{Channel, ReadPackets, Source};
use super::denied::DeniedPacket;
use crate::backend::netfilter::denials::{Denial, DenialRegistry};

/// An NFLOG group.
#[derive(Debug)]
pub struct Nflog {
    /// Its number.
    pub group: u16,
    /// The reasons by NFLOG prefix.
    pub denials: DenialRegistry,
}

impl Source for Nflog {
    fn listen(&self) -> Result<Box<dyn Channel>, String> {
        let listener = Listener::bind(self.group).map_err(|error| error.to_string())?;
        tracing::info!(group = self.group, "denied packets are told");
        Ok(Box::new(BoundGroup {
            listener,
            denials: self.denials.clone(),
            interfaces: BTreeMap::new(),
        }))
    }
}

#[derive(Debug)]
struct BoundGroup {
    listener: Listener,
    denials: DenialRegistry,
    /// Interface names of this second: in the next one an index may be another interface's.
    interfaces: BTreeMap<u32, Option<String>>,
}

impl Channel for BoundGroup {
    fn as_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.listener.as_fd()]
    }

    fn read(&mut self) -> Result<ReadPackets, String> {
        let told = self.listener.read().map_err(|error| error.to_string())?;
        let (interfaces, denials) = (&mut self.interfaces, &self.denials);
        let mut name_of = |index: u32| interfaces.entry(index).or_insert_with(|| name_of(index)).clone();
        let denied: Vec<DeniedPacket> = told
            .packets
            .iter()
            .filter_map(|logged| DeniedPacket::read(logged, denials, &mut name_of))
            .collect();
        Ok(ReadPackets {
            foreign: super::count(told.packets.len() - denied.len()),
            denied,
            lost: told.lost,
        })
    }

    fn suppressed(&self, denial: &Denial) -> Option<u64> {
        let suppressed = self.denials.suppressed(denial);
        suppressed
            .inspect_err(|error| tracing::debug!(%error, "it is not known how many packets were not told"))
            .ok()
    }

    fn has(&self, denial: &Denial) -> bool {
        self.denials.has(denial)
    }

    fn end_window(&mut self) {
        self.interfaces.clear();
    }
}

fn name_of(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}
