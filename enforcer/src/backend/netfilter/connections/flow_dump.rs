//! Dumps of conntrack flows at pods' addresses. For each query the kernel walks its whole table, which has a
//! quarter of a million buckets (`ctnetlink_dump_table`), however few flows there are. So queries are merged,
//! and one dump serves all changes before it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::{Conntrack, Flow, FlowFilter, Tuple};
use egret_kernel::{Family, netlink};
use egret_policies::rules::Direction;

/// Flows that a pod with this address opened, or that were opened to it.
type FlowEnd = (Direction, IpAddr);

/// Which flows are to be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowQuery {
    pub(super) ends: BTreeSet<FlowEnd>,
    /// All of a family.
    pub(super) families: BTreeSet<Family>,
}

impl FlowQuery {
    pub(super) const fn about(ends: BTreeSet<FlowEnd>) -> Self {
        Self {
            ends,
            families: BTreeSet::new(),
        }
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        self.ends.extend(other.ends);
        self.families.extend(other.families);
        self
    }

    /// Whether the flow is one of these.
    pub(super) fn is_about(&self, flow: &Flow) -> bool {
        let is_in = |direction| self.ends.contains(&(direction, pods_end(direction, flow)));
        self.families.contains(&flow.family()) || Direction::ALL.into_iter().any(is_in)
    }
}

/// Flows as they were at one moment.
#[derive(Debug)]
pub(super) struct FlowDump {
    pub(super) flows: Vec<Flow>,
    /// Whether these are all flows that there were.
    pub(super) is_all: bool,
}

impl FlowDump {
    /// Asks the kernel for all these flows; others may be among them. Who has so many more questions about flows is spared them
    /// where these are all that there are.
    pub(super) fn query(
        conntrack: &mut Conntrack,
        query: &FlowQuery,
        more: usize,
    ) -> Result<Self, netlink::Error> {
        let mut filters = filters(query);
        let count = conntrack.count()?;
        let is_all = filters.len() + more > 1 && (is_whole(&filters) || count <= FEW_FLOWS);
        if is_all {
            filters = vec![FlowFilter::ALL];
        }
        // What begins from now on is judged by the rules of now.
        if count == 0 {
            filters.clear();
        }
        let mut found: BTreeMap<(u16, Tuple), Flow> = BTreeMap::new();
        for filter in filters {
            let flows = conntrack.dump(&filter)?.into_iter();
            found.extend(flows.map(|flow| ((flow.zone, flow.original), flow)));
        }
        let flows = found.into_values().collect();
        Ok(Self { flows, is_all })
    }
}

/// The end of a flow at which a pod is judged.
pub(super) fn pods_end(direction: Direction, flow: &Flow) -> IpAddr {
    match direction {
        Direction::Egress => flow.original.source,
        Direction::Ingress => flow.reply.source,
    }
}

/// To be told of so many takes about as long as to walk an empty table once more.
const FEW_FLOWS: u32 = 1 << 13;

/// What is to be asked. Of IPv6 the kernel tells all in any case.
fn filters(query: &FlowQuery) -> Vec<FlowFilter> {
    const FEW: usize = 2;
    let ends = |family| {
        let ends = query.ends.iter();
        ends.filter(move |(_, address)| Family::of(*address) == family)
    };
    let is_whole = |family| query.families.contains(&family);
    let mut filters: Vec<FlowFilter> = match ends(Family::V4).count() {
        0..=FEW if !is_whole(Family::V4) => ends(Family::V4).map(|end| filter(*end)).collect(),
        _ => vec![FlowFilter::family(Family::V4)],
    };
    if is_whole(Family::V6) || ends(Family::V6).next().is_some() {
        filters.push(FlowFilter::family(Family::V6));
    }
    filters
}

fn filter((direction, address): FlowEnd) -> FlowFilter {
    match direction {
        Direction::Egress => FlowFilter::from_source(address),
        Direction::Ingress => FlowFilter::answered_by(address),
    }
}

/// Whether they ask about everything together.
fn is_whole(filters: &[FlowFilter]) -> bool {
    Family::ALL
        .into_iter()
        .all(|family| filters.contains(&FlowFilter::family(family)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(number: u8, family: Family) -> BTreeSet<FlowEnd> {
        let address = |last: u8| match family {
            Family::V4 => IpAddr::from([10, 0, 0, last]),
            Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]),
        };
        (1..=number)
            .flat_map(|last| Direction::ALL.map(|direction| (direction, address(last))))
            .collect()
    }

    #[test]
    fn the_kernel_is_asked_at_most_three_times_and_once_where_all_are_wanted() {
        let (few, many) = (ends(1, Family::V4), ends(2, Family::V4));
        let six = ends(1, Family::V6);
        let both = |one: &BTreeSet<FlowEnd>, other: &BTreeSet<FlowEnd>| one.union(other).copied().collect();
        let rows: [(BTreeSet<FlowEnd>, usize, bool); 6] = [
            (BTreeSet::new(), 0, false),
            (few.clone(), 2, false),
            (many.clone(), 1, false),
            (six.clone(), 1, false),
            (both(&few, &six), 3, false),
            (both(&many, &six), 2, true),
        ];
        for (ends, number, whole) in rows {
            let asked = filters(&FlowQuery::about(ends.clone()));
            assert_eq!((asked.len(), is_whole(&asked)), (number, whole), "{ends:?}");
        }
        let networks = FlowQuery {
            families: Family::ALL.into(),
            ..FlowQuery::about(few)
        };
        assert!(is_whole(&filters(&networks)));
    }
}
