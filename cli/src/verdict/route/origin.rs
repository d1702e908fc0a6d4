//! The source of a probe, with the addresses that it may connect from.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use egret_shared::net::{Family, Transport};
use egret_shared::pod::PodKey;

use super::{ProbeConnection, Unjudgeable};

/// Who connects.
#[derive(Debug)]
pub(super) struct ProbeSource {
    /// As the probe has it.
    pub(super) written: String,
    /// The pod, if it is one.
    pub(super) pod: Option<PodKey>,
    /// The addresses, in the order in which they are preferred.
    pub(super) addresses: Vec<IpAddr>,
    /// Whether what it asks for is judged before any Service is followed.
    pub(super) is_before_services: bool,
}

impl ProbeSource {
    /// The connection to somebody with these addresses: by the first family that both have, in the order of
    /// the source's addresses.
    pub(super) fn connect(
        &self,
        name: &str,
        addresses: &[IpAddr],
        port: Option<(Transport, NonZeroU16)>,
    ) -> Result<ProbeConnection, Unjudgeable> {
        let to = |source: &IpAddr| {
            let same_family = |address: &&IpAddr| Family::of(**address) == Family::of(*source);
            addresses
                .iter()
                .find(same_family)
                .map(|destination| ProbeConnection {
                    source: *source,
                    destination: *destination,
                    port,
                    is_forwarded: false,
                    taken_by: None,
                })
        };
        self.addresses.iter().find_map(to).ok_or_else(|| {
            let families = addresses.iter().copied().map(Family::of).collect();
            self.no_common_family(name.to_owned(), families)
        })
    }

    /// The same source, which connects from one of its addresses.
    pub(super) fn connecting_from(&self, address: IpAddr) -> Self {
        Self {
            written: self.written.clone(),
            pod: self.pod.clone(),
            addresses: vec![address],
            is_before_services: self.is_before_services,
        }
    }

    pub(super) fn no_common_family(&self, to: String, to_families: BTreeSet<Family>) -> Unjudgeable {
        Unjudgeable::NoCommonFamily {
            from: self.written.clone(),
            from_families: self.addresses.iter().copied().map(Family::of).collect(),
            to,
            to_families,
        }
    }
}
