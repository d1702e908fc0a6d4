//! Orders of records, and how they are put into effect: in place where the records are alike, by writing the
//! message anew otherwise.

use std::net::IpAddr;

use egret_shared::net::IpNet;

use crate::dns::message::{Malformed, Message, Record, ResourceRecord, Section, Sections, kind};

/// A record and the place where it stood in its section.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) record: Record,
    pub(super) address: Option<IpAddr>,
    place: usize,
}

/// The new orders of a message's sections.
#[derive(Debug)]
pub(super) struct Orders([Vec<Item>; 3]);

impl Orders {
    /// Reads the records, and has each section arranged.
    pub(super) fn read(
        message: &Message<'_>,
        mut arrange: impl FnMut(&mut Vec<Item>, Section),
    ) -> Result<Self, Malformed> {
        let mut sections = [Vec::new(), Vec::new(), Vec::new()];
        for record in message.records() {
            let record = record?;
            let section = &mut sections[index(record.section)];
            if record.kind != kind::OPT {
                let address = address(message.octets(), &record);
                section.push(Item {
                    record,
                    address,
                    place: section.len(),
                });
            }
        }
        for section in [Section::Answer, Section::Authority, Section::Additional] {
            arrange(&mut sections[index(section)], section);
        }
        Ok(Self(sections))
    }

    pub(super) fn are_the_same(&self) -> bool {
        self.0.iter().all(|items| is_in_order(items))
    }

    /// Swaps records within the message where that changes nothing else: all that move have an owner that is
    /// the same pointer, and the same length, so no name stands within them and none is pointed at.
    pub(super) fn swap_in_place(&self, octets: &mut [u8]) -> bool {
        let alike = |items: &[Item]| {
            let moved = || {
                items
                    .iter()
                    .enumerate()
                    .filter(|(place, item)| *place != item.place)
            };
            let form = |item: &Item| {
                let record = &item.record;
                let owner = octets.get(record.owner_at..record.ttl_at - 4)?;
                (owner.len() == 2).then(|| (owner.to_vec(), record.data.len()))
            };
            let first = moved().next().and_then(|(_, item)| form(item));
            moved().all(|(_, item)| item.address.is_some() && first.is_some() && form(item) == first)
        };
        if !self.0.iter().all(|items| alike(items)) {
            return false;
        }
        for items in &self.0 {
            let copy = octets.to_vec();
            let mut by_place: Vec<&Item> = items.iter().collect();
            by_place.sort_by_key(|item| item.place);
            for (target, source) in by_place.iter().zip(items) {
                let (to, from) = (span(&target.record), span(&source.record));
                if target.place != source.place {
                    octets[to].copy_from_slice(&copy[from]);
                }
            }
        }
        true
    }

    pub(super) fn apply(&self, sections: &mut Sections) {
        let Sections {
            answer,
            authority,
            additional,
        } = sections;
        for (records, items) in [answer, authority, additional].into_iter().zip(&self.0) {
            let before = std::mem::take(records);
            let ordered = items.iter().filter_map(|item| before.get(item.place).cloned());
            *records = ordered.collect::<Vec<ResourceRecord>>();
        }
    }
}

const fn index(section: Section) -> usize {
    match section {
        Section::Answer => 0,
        Section::Authority => 1,
        Section::Additional => 2,
    }
}

fn is_in_order(items: &[Item]) -> bool {
    items.iter().enumerate().all(|(place, item)| place == item.place)
}

const fn span(record: &Record) -> std::ops::Range<usize> {
    record.owner_at..record.data.end
}

fn address(octets: &[u8], record: &Record) -> Option<IpAddr> {
    let data = &octets[record.data.clone()];
    match record.kind {
        kind::A => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
        kind::AAAA => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
        _other => None,
    }
}

const fn is_address(item: &Item) -> bool {
    matches!(item.record.kind, kind::A | kind::AAAA)
}

/// What goes before the addresses (aliases first: some stub resolvers want them there), the addresses, and what
/// goes behind.
pub(super) fn part(records: &[Item]) -> (Vec<Item>, Vec<Item>, Vec<Item>) {
    let pick = |takes: fn(&Item) -> bool| records.iter().filter(move |item| takes(item)).cloned();
    let is_rest = |item: &Item| !is_address(item) && !matches!(item.record.kind, kind::CNAME | kind::MX);
    let before = pick(|item| item.record.kind == kind::CNAME).chain(pick(is_rest));
    (
        before.collect(),
        pick(is_address).collect(),
        pick(|item| item.record.kind == kind::MX).collect(),
    )
}

/// Addresses and mail servers in any order, each as likely as any other.
pub(super) fn shuffle(records: &mut Vec<Item>, random: &mut impl FnMut(usize) -> usize) {
    if records.len() < 2 {
        return;
    }
    let (before, mut addresses, mut servers) = part(records);
    for group in [&mut addresses, &mut servers] {
        for place in 1..group.len() {
            let other = random(place + 1).min(place);
            group.swap(place, other);
        }
    }
    *records = [before, addresses, servers].concat();
}

/// Addresses of the first network first, and so on; the others behind, and what is no address behind those.
pub(super) fn prefer(records: &mut [Item], networks: &[IpNet]) {
    let rank = |item: &Item| {
        let network = |address: IpAddr| networks.iter().position(|network| network.contains(&address));
        match item.record.kind {
            kind::CNAME => (0, 0),
            kind::A | kind::AAAA => (1, item.address.and_then(network).unwrap_or(usize::MAX)),
            kind::MX => (2, 0),
            _other => (3, 0),
        }
    };
    records.sort_by_key(rank);
}
