//! Reordering of records: in index if all have the same layout, otherwise by encoding the message anew.

use std::net::IpAddr;

use egret_shared::net::IpNet;

use crate::dns::message::{Malformed, Message, Record, ResourceRecord, Section, Sections, kind};

/// A record and its index in the section before the reordering.
#[derive(Clone, Debug)]
pub(super) struct IndexedRecord {
    pub(super) record: Record,
    pub(super) address: Option<IpAddr>,
    index: usize,
}

/// The new order of each section.
#[derive(Debug)]
pub(super) struct SectionOrders([Vec<IndexedRecord>; 3]);

impl SectionOrders {
    /// Reads the records and calls `arrange` for each section.
    pub(super) fn read(
        message: &Message<'_>,
        mut arrange: impl FnMut(&mut Vec<IndexedRecord>, Section),
    ) -> Result<Self, Malformed> {
        let mut sections = [Vec::new(), Vec::new(), Vec::new()];
        for record in message.records() {
            let record = record?;
            let section = &mut sections[index(record.section)];
            if record.kind != kind::OPT {
                let address = address(message.octets(), &record);
                section.push(IndexedRecord {
                    record,
                    address,
                    index: section.len(),
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

    /// Swaps records in index, if all that move have the same pointer as owner and the same length: then no name is
    /// inside them and no pointer leads into them.
    pub(super) fn swap_in_place(&self, octets: &mut [u8]) -> bool {
        let alike = |items: &[IndexedRecord]| {
            let moved = || {
                items
                    .iter()
                    .enumerate()
                    .filter(|(index, item)| *index != item.index)
            };
            let form = |item: &IndexedRecord| {
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
            let mut by_index: Vec<&IndexedRecord> = items.iter().collect();
            by_index.sort_by_key(|item| item.index);
            for (target, source) in by_index.iter().zip(items) {
                let (to, from) = (span(&target.record), span(&source.record));
                if target.index != source.index {
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
            let ordered = items.iter().filter_map(|item| before.get(item.index).cloned());
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

fn is_in_order(items: &[IndexedRecord]) -> bool {
    items.iter().enumerate().all(|(index, item)| index == item.index)
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

const fn is_address(item: &IndexedRecord) -> bool {
    matches!(item.record.kind, kind::A | kind::AAAA)
}

/// The records before the addresses (aliases first: some stub resolvers need that), the addresses, and the rest.
pub(super) fn part(
    records: &[IndexedRecord],
) -> (Vec<IndexedRecord>, Vec<IndexedRecord>, Vec<IndexedRecord>) {
    let pick = |takes: fn(&IndexedRecord) -> bool| records.iter().filter(move |item| takes(item)).cloned();
    let is_rest =
        |item: &IndexedRecord| !is_address(item) && !matches!(item.record.kind, kind::CNAME | kind::MX);
    let before = pick(|item| item.record.kind == kind::CNAME).chain(pick(is_rest));
    (
        before.collect(),
        pick(is_address).collect(),
        pick(|item| item.record.kind == kind::MX).collect(),
    )
}

/// Shuffles addresses and mail servers uniformly.
pub(super) fn shuffle(records: &mut Vec<IndexedRecord>, random: &mut impl FnMut(usize) -> usize) {
    if records.len() < 2 {
        return;
    }
    let (before, mut addresses, mut servers) = part(records);
    for group in [&mut addresses, &mut servers] {
        for index in 1..group.len() {
            let other = random(index + 1).min(index);
            group.swap(index, other);
        }
    }
    *records = [before, addresses, servers].concat();
}

/// Sorts by the first network that contains the address. Other addresses follow, then other records.
pub(super) fn prefer(records: &mut [IndexedRecord], networks: &[IpNet]) {
    let rank = |item: &IndexedRecord| {
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
