//! The candidate names above a name: one label below a base of a search list.
//!
//! | base | above `a.b.com.shop.svc.cluster.local` | above `a.b.com.cluster.local` |
//! |---|---|---|
//! | the zone | | `com.cluster.local` |
//! | `svc` of the zone | `shop.svc.cluster.local` | |
//! | a namespace there | `com.shop.svc.cluster.local` | |

use crate::cache::nxdomain_cut::public_suffix::is_public;
use crate::config::model::{CutZone, ZoneKind};
use crate::dns::message::WireName;

/// The candidates above a name: a namespace or its equivalent, and a name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ancestors<'a> {
    pub(super) upper: &'a [u8],
    pub(super) lower: Option<&'a [u8]>,
}

/// The upper or the lower candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Upper,
    Lower,
}

/// Labels of a cluster's zone that have names below them although servers deny them (plugin/kubernetes: `pod`, and
/// `ns.dns`), or that are bases.
const SERVICES: &[u8] = b"svc";
const SPARED: [&[u8]; 2] = [b"pod", b"dns"];

impl CutZone {
    /// The candidates strictly above a name of the zone, if there are any.
    pub(super) fn ancestors<'a>(&self, name: &'a WireName) -> Option<Ancestors<'a>> {
        let octets = name.as_octets();
        let [first, second, third, fourth] = starts(octets, self.zone.apex().as_octets().len());
        let first = &octets[first?..];
        let second = &octets[second?..];
        let is_of_cluster = self.kind == ZoneKind::Cluster;
        if is_of_cluster && label(first) == SERVICES {
            let third = &octets[third?..];
            return is_plain(label(second)).then_some(Ancestors {
                upper: second,
                lower: fourth.map(|_| third).filter(|third| is_plain(label(third))),
            });
        }
        let is_spared = match self.kind {
            ZoneKind::Cluster => SPARED.contains(&label(first)),
            ZoneKind::Named => false,
            ZoneKind::Searched => !is_public(label(first)),
        };
        (!is_spared && is_plain(label(first))).then_some(Ancestors {
            upper: first,
            lower: None,
        })
    }
}

impl<'a> Ancestors<'a> {
    /// The candidates in a zone: others are of another block.
    pub(super) fn within(self, apex: &WireName) -> Option<Self> {
        let is_in = |ancestor: &&[u8]| ancestor.len() >= apex.as_octets().len();
        let lower = self.lower.filter(is_in);
        if is_in(&self.upper) {
            return Some(self);
        }
        lower.map(|upper| Self { upper, lower: None })
    }

    pub(super) fn at(&self, level: Level) -> Option<&'a [u8]> {
        match level {
            Level::Upper => Some(self.upper),
            Level::Lower => self.lower,
        }
    }
}

/// The first label of a name.
pub(super) fn label(name: &[u8]) -> &[u8] {
    &name[1..=usize::from(name[0])]
}

/// The offsets of the labels before a zone, the nearest first.
fn starts(name: &[u8], zone: usize) -> [Option<usize>; 4] {
    let mut starts = [None; 4];
    let mut at = 0;
    while at < name.len().saturating_sub(zone) {
        starts.rotate_right(1);
        starts[0] = Some(at);
        at += 1 + usize::from(name[at]);
    }
    starts
}

/// Whether a label is neither a port or protocol (RFC 2782) nor a wildcard: names below such labels exist although the
/// labels do not.
fn is_plain(label: &[u8]) -> bool {
    !matches!(label, [b'_' | b'*', ..])
}
