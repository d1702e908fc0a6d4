//! Rows for people: ends of which the same is to be said stand together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::connection_end::{End, Workload};
use super::fold::Unit;
use super::merge::Row;

/// An end in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndName {
    /// Pods of a namespace.
    Pods(Arc<str>, String),
    /// Anything else.
    Other(String),
}

/// Several ends at each side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndGroup<T> {
    /// Who connects.
    pub from: Vec<String>,
    /// To whom.
    pub to: Vec<String>,
    /// What is to be said of it.
    pub said: T,
}

/// All pods, by namespace.
#[derive(Clone, Debug, Default)]
pub struct AllPods(BTreeMap<Arc<str>, BTreeSet<EndName>>);

impl AllPods {
    /// The pods of the units.
    pub fn of<'a>(units: impl IntoIterator<Item = &'a Unit>) -> Self {
        let mut all = Self::default();
        for unit in units {
            let namespace = Arc::clone(&unit.workload.namespace);
            let names = all.0.entry(namespace).or_default();
            names.insert(EndName::of(&unit.workload));
        }
        all
    }

    /// Puts together what can be said at once.
    pub fn gather<V, T: Clone + Ord>(
        &self,
        rows: &[Row<V>],
        said: impl Fn(&Row<V>) -> T,
    ) -> Vec<EndGroup<T>> {
        let ends = EndTable::of(self, rows);
        let mut by_source: BTreeMap<EndIndex, BTreeMap<T, Vec<EndIndex>>> = BTreeMap::new();
        for (row, (from, to)) in rows.iter().zip(&ends.of_rows) {
            let of_source = by_source.entry(*from).or_default();
            of_source.entry(said(row)).or_default().push(*to);
        }
        let mut gathered: BTreeMap<(Vec<EndSummary>, T), SourcesOfGroup> = BTreeMap::new();
        for (from, of_source) in by_source {
            for (said, mut to) in of_source {
                to.sort_unstable();
                to.dedup();
                let sides = gathered.entry((ends.shorten(&to, Some(from)), said)).or_default();
                sides.add(from, &to);
            }
        }
        let several = gathered.into_iter().map(|((to, said), sides)| EndGroup {
            from: ends.texts(&ends.shorten(&sides.from, sides.only())),
            to: ends.texts(&to),
            said,
        });
        let mut several: Vec<EndGroup<T>> = several.collect();
        several.sort();
        several
    }
}

/// An end by its place in the order of all: there are as many rows as pairs of pods, and texts are made once.
type EndIndex = usize;

/// All ends of some rows.
struct EndTable {
    /// In order.
    names: Vec<EndName>,
    /// The place of the namespace of each that is pods.
    namespaces: Vec<Option<usize>>,
    /// Namespaces, with the number of their names.
    totals: Vec<(Arc<str>, usize)>,
    of_rows: Vec<(EndIndex, EndIndex)>,
}

/// Some ends in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EndSummary {
    Everybody,
    /// All of a namespace, by its place.
    Namespace(usize),
    One(EndIndex),
}

impl EndTable {
    fn of<V>(everybody: &AllPods, rows: &[Row<V>]) -> Self {
        let mut known = NameCollector::default();
        let of_rows: Vec<(usize, usize)> = rows
            .iter()
            .map(|row| (known.know(row, &row.ends.from), known.know(row, &row.ends.to)))
            .collect();
        let names: BTreeSet<&EndName> = known.names.iter().collect();
        let names: Vec<EndName> = names.into_iter().cloned().collect();
        let place = |name: &EndName| names.binary_search(name).expect("every name is among all");
        let places: Vec<EndIndex> = known.names.iter().map(place).collect();
        let namespace_of = |name: &EndName| match name {
            EndName::Pods(namespace, _) => everybody.0.keys().position(|known| known == namespace),
            EndName::Other(_) => None,
        };
        Self {
            namespaces: names.iter().map(namespace_of).collect(),
            totals: everybody
                .0
                .iter()
                .map(|(namespace, names)| (Arc::clone(namespace), names.len()))
                .collect(),
            of_rows: of_rows
                .into_iter()
                .map(|(from, to)| (places[from], places[to]))
                .collect(),
            names,
        }
    }

    /// The ends (in order), all of a namespace or of the cluster in one; one that is excepted need not be among them.
    fn shorten(&self, ends: &[EndIndex], except: Option<EndIndex>) -> Vec<EndSummary> {
        let mut counts = vec![0; self.totals.len()];
        for namespace in ends.iter().filter_map(|end| self.namespaces[*end]) {
            counts[namespace] += 1;
        }
        let missing = except.filter(|except| ends.binary_search(except).is_err());
        let missing = missing.and_then(|except| self.namespaces[except]);
        let wanted = |place: usize| self.totals[place].1 - usize::from(missing == Some(place));
        let is_whole = |place: usize| counts[place] > 1 && counts[place] == wanted(place);
        let all: usize = counts.iter().sum();
        let has_all = all > 1 && (0..counts.len()).all(|place| counts[place] == wanted(place));
        let mut short = Vec::new();
        if has_all {
            short.push(EndSummary::Everybody);
        } else {
            short.extend(
                (0..counts.len())
                    .filter(|place| is_whole(*place))
                    .map(EndSummary::Namespace),
            );
        }
        let is_said = |end: EndIndex| self.namespaces[end].is_some_and(|place| has_all || is_whole(place));
        short.extend(
            ends.iter()
                .filter(|end| !is_said(**end))
                .map(|end| EndSummary::One(*end)),
        );
        short
    }

    fn texts(&self, short: &[EndSummary]) -> Vec<String> {
        let text = |short: &EndSummary| match short {
            EndSummary::Everybody => "every pod".to_owned(),
            EndSummary::Namespace(place) => format!("every pod of {}", self.totals[*place].0),
            EndSummary::One(end) => match &self.names[*end] {
                EndName::Pods(_, text) | EndName::Other(text) => text.clone(),
            },
        };
        short.iter().map(text).collect()
    }
}

/// Names in the order in which they are met, and the workloads whose names are known.
#[derive(Default)]
struct NameCollector {
    names: Vec<EndName>,
    workloads: HashMap<*const Workload, usize>,
}

impl NameCollector {
    fn know<V>(&mut self, row: &Row<V>, end: &End) -> usize {
        let End::Pods(workload) = end else {
            return self.add(EndName::Other(row.part.name(end)));
        };
        if let Some(known) = self.workloads.get(&Arc::as_ptr(workload)) {
            return *known;
        }
        let known = self.add(EndName::of(workload));
        self.workloads.insert(Arc::as_ptr(workload), known);
        known
    }

    fn add(&mut self, name: EndName) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }
}

/// Who connects to the same.
#[derive(Default)]
struct SourcesOfGroup {
    from: Vec<EndIndex>,
    /// Some of those to whom, two at least if there are two.
    to: BTreeSet<EndIndex>,
}

impl SourcesOfGroup {
    /// Sources come in order, each once.
    fn add(&mut self, from: EndIndex, to: &[EndIndex]) {
        self.from.push(from);
        // What is asked later is only whether there is but one.
        self.to.extend(to.iter().take(2));
    }

    /// The only destination.
    fn only(&self) -> Option<EndIndex> {
        self.to.first().copied().filter(|_| self.to.len() == 1)
    }
}

impl EndName {
    fn of(workload: &Workload) -> Self {
        Self::Pods(Arc::clone(&workload.namespace), workload.to_string())
    }
}
