//! Parts of a way of which the same is to be said become one row.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::net::Family;

use super::addresses::{Addresses, number_of};
use super::connection_end::{End, EndPair};
use super::points::PartExtent;

/// Something to be said of a way, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row<V> {
    /// From whom to whom.
    pub ends: EndPair,
    /// Which part.
    pub part: EndPairPart,
    /// What is said.
    pub value: V,
}

/// A part of a way.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndPairPart {
    /// Whether it is all.
    pub is_all: bool,
    /// The families in which pods meet.
    pub families: BTreeSet<Family>,
    /// The addresses of what is no pod.
    pub addresses: Addresses,
}

impl EndPairPart {
    /// The only family, where there is more than one.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        self.families.first().copied().filter(|_| !self.is_all)
    }

    /// A place in words, as far as this part reaches.
    #[must_use]
    pub fn name(&self, place: &End) -> String {
        match place {
            End::Pods(_) => place.to_string(),
            End::OwnNode | End::Node(_) | End::Outside | End::Name(_) if self.is_all => place.to_string(),
            End::OwnNode | End::Node(_) | End::Name(_) => format!("{place} at {}", self.addresses),
            End::Outside => self.addresses.to_string(),
        }
    }

    fn add(&mut self, extent: PartExtent) {
        match extent {
            PartExtent::Whole => {}
            PartExtent::Family(family) => {
                self.families.insert(family);
            }
            PartExtent::Address(address) => self.add_addresses(&single(address)),
            PartExtent::Range(family, range) => self.add_addresses(&Addresses::range(family, range)),
        }
    }

    fn add_addresses(&mut self, addresses: &Addresses) {
        self.addresses = self.addresses.union(addresses);
    }
}

fn single(address: IpAddr) -> Addresses {
    let number = number_of(address);
    Addresses::range(Family::of(address), (number, number))
}

/// Merges what is said of parts; where nothing is said there is no row, but such a part belongs to the whole.
pub fn merge<V: Ord>(points: impl IntoIterator<Item = (EndPair, PartExtent, Option<V>)>) -> Vec<Row<V>> {
    let mut ways: BTreeMap<EndPair, Vec<(PartExtent, Option<V>)>> = BTreeMap::new();
    for (way, extent, value) in points {
        ways.entry(way).or_default().push((extent, value));
    }
    let mut rows = Vec::new();
    for (way, points) in ways {
        merge_way(&way, points, &mut rows);
    }
    rows
}

/// As [`merge`], of one way.
pub fn merge_way<V: Ord>(
    way: &EndPair,
    points: impl IntoIterator<Item = (PartExtent, Option<V>)>,
    rows: &mut Vec<Row<V>>,
) {
    let mut whole = EndPairPart::default();
    // There are few: most ways have one.
    let mut parts: Vec<(V, EndPairPart)> = Vec::new();
    for (extent, value) in points {
        whole.add(extent);
        let Some(value) = value else { continue };
        match parts.iter_mut().find(|(known, _)| *known == value) {
            Some((_, part)) => part.add(extent),
            None => {
                let mut part = EndPairPart::default();
                part.add(extent);
                parts.push((value, part));
            }
        }
    }
    let first = rows.len();
    rows.extend(parts.into_iter().map(|(value, part)| Row {
        ends: way.clone(),
        part: EndPairPart {
            is_all: part == whole,
            ..part
        },
        value,
    }));
    rows[first..].sort_by(|one, other| (&one.part, &one.value).cmp(&(&other.part, &other.value)));
}
