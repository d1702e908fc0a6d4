//! Asks both clusters about the same connections.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_policies::model::{Direction, Effect, Tier};

use crate::cluster::selection::Selection;
use crate::reach::Reach;
use crate::reach::connection_end::{End, EndPair, Workload};
use crate::reach::fold::{Folding, Unit, UnitGroup};
use crate::reach::merge::{Row, merge};
use crate::reach::points::{Boundaries, EndPairVerdicts, PartExtent};
use crate::reach::ports::PortSet;

use crate::reach::decision::RuleDecision;

use super::cause::{Cause, DecidingRules};
use super::change::Change;

/// The difference of two clusters.
pub(super) struct ClusterDiff {
    /// What changes.
    pub(super) rows: Vec<Row<Change>>,
    /// All pods of both.
    pub(super) units: Vec<Unit>,
}

/// One of the two clusters.
struct ClusterSide<'a> {
    reach: &'a Reach,
    units: BTreeMap<Arc<Workload>, Unit>,
    selection: RefCell<Selection>,
}

/// A workload in both, before and after.
type UnitPair<'a> = [Option<&'a Unit>; 2];

/// The same connection in both, before and after.
type PointPair = [Option<EndPairVerdicts>; 2];

pub(super) fn compare(before: &Reach, after: &Reach) -> ClusterDiff {
    let mut apart = before.split_groups();
    apart.extend(after.split_groups());
    let sides = [before, after].map(|reach| ClusterSide::new(reach, &apart));
    let mut units: BTreeMap<Arc<Workload>, Unit> = BTreeMap::new();
    for side in &sides {
        units.extend(side.units.clone());
    }
    let in_both = |workload: &Arc<Workload>| sides.each_ref().map(|side| side.units.get(workload));
    let in_both: Vec<UnitPair<'_>> = units.keys().map(in_both).collect();
    let mut changes = Vec::new();
    for (workload, from) in units.keys().zip(&in_both) {
        for to in &in_both {
            changes.extend(changes_between(&sides, from, to));
        }
        changes.extend(changes_with_others(&sides, workload));
    }
    ClusterDiff {
        rows: merge(changes),
        units: units.into_values().collect(),
    }
}

/// The changes between two workloads. Of most nothing changes, and nothing else is asked of them.
fn changes_between(
    sides: &[ClusterSide<'_>; 2],
    from: &UnitPair<'_>,
    to: &UnitPair<'_>,
) -> Vec<(EndPair, PartExtent, Option<Change>)> {
    if let ([Some(from_before), Some(from_after)], [Some(to_before), Some(to_after)]) = (from, to) {
        let [before, after] = sides.each_ref().map(|side| side.reach);
        let was = before.allowed_between(from_before, to_before);
        if was.eq(after.allowed_between(from_after, to_after)) {
            return Vec::new();
        }
    }
    let points = |place: usize| match (from[place], to[place]) {
        (Some(from), Some(to)) => sides[place].reach.between_pods(from, to),
        (None, _) | (_, None) => Vec::new(),
    };
    changes_among(sides, points)
}

/// The changes of a workload's connections with whatever is no pod.
fn changes_with_others(
    sides: &[ClusterSide<'_>; 2],
    workload: &Workload,
) -> Vec<(EndPair, PartExtent, Option<Change>)> {
    let cuts = Direction::ALL.map(|direction| (direction, cuts(sides, workload, direction)));
    changes_among(sides, |place| sides[place].with_others(workload, &cuts))
}

/// What changes among some connections, before (0) and after (1): of every way on which anything does, all parts.
fn changes_among(
    sides: &[ClusterSide<'_>; 2],
    points: impl Fn(usize) -> Vec<EndPairVerdicts>,
) -> Vec<(EndPair, PartExtent, Option<Change>)> {
    let mut both: BTreeMap<(EndPair, PartExtent), PointPair> = BTreeMap::new();
    for place in 0..sides.len() {
        for point in points(place) {
            let key = (point.ends.clone(), point.extent);
            both.entry(key).or_default()[place] = Some(point);
        }
    }
    let mut changed = BTreeSet::new();
    let mut changes = Vec::new();
    for ((way, extent), points) in both {
        let change = change(sides, &way, &points);
        if change.is_some() {
            changed.insert(way.clone());
        }
        changes.push((way, extent, change));
    }
    changes.retain(|(way, _, _)| changed.contains(way));
    changes
}

/// Where the rules of either cut the outside, so that both are asked about the same parts.
fn cuts(sides: &[ClusterSide<'_>; 2], workload: &Workload, direction: Direction) -> Boundaries {
    let mut all = Boundaries::default();
    for side in sides {
        if let Some(unit) = side.units.get(workload) {
            let cuts = side.reach.boundaries(unit, direction);
            all.networks.extend(cuts.networks);
            all.names.extend(cuts.names);
        }
    }
    all
}

fn change(sides: &[ClusterSide<'_>; 2], way: &EndPair, points: &PointPair) -> Option<Change> {
    if let [Some(before), Some(after)] = points
        && before.has_same_verdicts(after)
    {
        return None;
    }
    let [before, after] = ports(points);
    if before == after {
        return None;
    }
    let ports = before.without(&after).union(&after.without(&before));
    Some(Change {
        because: causes(sides, way, points, &ports),
        before,
        after,
    })
}

/// What is allowed. Of a name only what it is needed for, before or after: the rest is said of the outside.
fn ports(points: &PointPair) -> [PortSet; 2] {
    let of = |point: &Option<EndPairVerdicts>, ports: fn(&EndPairVerdicts) -> PortSet| {
        point.as_ref().map(ports).unwrap_or_default()
    };
    let needed = |point: &EndPairVerdicts| match &point.without_record {
        Some(untold) => point.verdicts.allowed().without(untold),
        None => PortSet::everything(),
    };
    let [one, other] = points;
    let needed = of(one, needed).union(&of(other, needed));
    let allowed = |point| of(point, |point| point.verdicts.allowed()).intersection(&needed);
    [allowed(one), allowed(other)]
}

fn causes(sides: &[ClusterSide<'_>; 2], way: &EndPair, points: &PointPair, ports: &PortSet) -> Vec<Cause> {
    let [Some(before), Some(after)] = points else {
        return vec![Cause::End(missing_end(sides, way, points))];
    };
    let mut causes: BTreeMap<(Direction, RuleDecision, RuleDecision), PortSet> = BTreeMap::new();
    for direction in Direction::ALL {
        let (Some(was), Some(is)) = (before.verdicts.of(direction), after.verdicts.of(direction)) else {
            continue;
        };
        for (of_these, was) in was.decisions(ports) {
            for (ports, is) in is
                .decisions(&of_these)
                .filter(|(_, is)| is.verdict != was.verdict)
            {
                let isolating = |side: &ClusterSide<'_>| side.isolating(way, direction);
                let before = RuleDecision::new(was, || isolating(&sides[0]));
                let after = RuleDecision::new(is, || isolating(&sides[1]));
                let of_cause = causes.entry((direction, before, after)).or_default();
                *of_cause = of_cause.union(&ports);
            }
        }
    }
    let rules = causes
        .into_iter()
        .map(|((direction, before, after), ports)| DecidingRules {
            direction,
            ports,
            before,
            after,
        });
    rules.map(|rules| Cause::Rules(Box::new(rules))).collect()
}

/// Which end is not there in one of the two.
fn missing_end(sides: &[ClusterSide<'_>; 2], way: &EndPair, points: &PointPair) -> String {
    let (side, word) = if points[0].is_none() {
        (&sides[0], "new")
    } else {
        (&sides[1], "gone")
    };
    let is_missing = |place: &&End| match place {
        End::Pods(workload) => !side.units.contains_key(workload),
        End::Node(name) => !side.reach.nodes.contains_key(name),
        End::OwnNode | End::Outside | End::Name(_) => false,
    };
    match [&way.from, &way.to].into_iter().find(is_missing) {
        Some(place) => format!("{place} is {word}"),
        None => format!("the addresses of one end are {word}"),
    }
}

impl<'a> ClusterSide<'a> {
    fn new(reach: &'a Reach, apart: &BTreeSet<UnitGroup>) -> Self {
        let manifests = &reach.loaded.manifests;
        let units = reach.units(Folding::Workloads, apart);
        Self {
            reach,
            units: units
                .into_iter()
                .map(|unit| (Arc::clone(&unit.workload), unit))
                .collect(),
            selection: RefCell::new(Selection::new(
                manifests.policies.clone(),
                manifests.namespaces.clone(),
            )),
        }
    }

    fn with_others(&self, workload: &Workload, cuts: &[(Direction, Boundaries); 2]) -> Vec<EndPairVerdicts> {
        let Some(unit) = self.units.get(workload) else {
            return Vec::new();
        };
        let mut points = self.reach.with_nodes(unit);
        for (direction, cuts) in cuts {
            points.extend(self.reach.with_outside(unit, *direction, cuts));
            points.extend(self.reach.with_names(unit, cuts));
        }
        points
    }

    /// The NetworkPolicies that isolate the pods of a way in a direction.
    fn isolating(&self, way: &EndPair, direction: Direction) -> Vec<String> {
        let subject = match direction {
            Direction::Egress => &way.from,
            Direction::Ingress => &way.to,
        };
        let End::Pods(workload) = subject else {
            return Vec::new();
        };
        let pod = self
            .units
            .get(workload)
            .and_then(|unit| unit.workload.pods.first());
        let Some(member) = pod.and_then(|pod| self.reach.loaded.cluster.member(pod)) else {
            return Vec::new();
        };
        let mut selection = self.selection.borrow_mut();
        let policies = selection.policies_of(&member.pod);
        policies
            .filter(|policy| policy.rank.tier == Tier::NetworkPolicy)
            .filter(|policy| matches!(policy.effect(direction), Effect::Rules(_)))
            .map(|policy| policy.id.to_string())
            .collect()
    }
}
