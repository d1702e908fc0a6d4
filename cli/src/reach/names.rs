//! Rows for people: ends of which the same is to be said stand together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::fold::Unit;
use super::merge::Row;
use super::place::{Place, Workload};

/// An end in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// Pods of a namespace.
    Pods(Arc<str>, String),
    /// Anything else.
    Other(String),
}

/// Several ends at each side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Several<T> {
    /// Who connects.
    pub from: Vec<String>,
    /// To whom.
    pub to: Vec<String>,
    /// What is to be said of it.
    pub said: T,
}

/// All pods, by namespace.
#[derive(Clone, Debug, Default)]
pub struct Everybody(BTreeMap<Arc<str>, BTreeSet<Name>>);

impl Everybody {
    /// The pods of the units.
    pub fn of<'a>(units: impl IntoIterator<Item = &'a Unit>) -> Self {
        let mut all = Self::default();
        for unit in units {
            let namespace = Arc::clone(&unit.workload.namespace);
            let names = all.0.entry(namespace).or_default();
            names.insert(Name::of(&unit.workload));
        }
        all
    }

    /// Puts together what can be said at once.
    pub fn gather<V, T: Clone + Ord>(&self, rows: &[Row<V>], said: impl Fn(&Row<V>) -> T) -> Vec<Several<T>> {
        let ends = Ends::of(self, rows);
        let mut by_source: BTreeMap<End, BTreeMap<T, Vec<End>>> = BTreeMap::new();
        for (row, (from, to)) in rows.iter().zip(&ends.of_rows) {
            let of_source = by_source.entry(*from).or_default();
            of_source.entry(said(row)).or_default().push(*to);
        }
        let mut gathered: BTreeMap<(Vec<Short>, T), Sides> = BTreeMap::new();
        for (from, of_source) in by_source {
            for (said, mut to) in of_source {
                to.sort_unstable();
                to.dedup();
                let sides = gathered.entry((ends.shorten(&to, Some(from)), said)).or_default();
                sides.add(from, &to);
            }
        }
        let several = gathered.into_iter().map(|((to, said), sides)| Several {
            from: ends.texts(&ends.shorten(&sides.from, sides.only())),
            to: ends.texts(&to),
            said,
        });
        let mut several: Vec<Several<T>> = several.collect();
        several.sort();
        several
    }
}

/// An end by its place in the order of all: there are as many rows as pairs of pods, and texts are made once.
type End = usize;

/// All ends of some rows.
struct Ends {
    /// In order.
    names: Vec<Name>,
    /// The place of the namespace of each that is pods.
    namespaces: Vec<Option<usize>>,
    /// Namespaces, with the number of their names.
    totals: Vec<(Arc<str>, usize)>,
    of_rows: Vec<(End, End)>,
}

/// Some ends in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Short {
    Everybody,
    /// All of a namespace, by its place.
    Namespace(usize),
    One(End),
}

impl Ends {
    fn of<V>(everybody: &Everybody, rows: &[Row<V>]) -> Self {
        let mut known = Known::default();
        let of_rows: Vec<(usize, usize)> = rows
            .iter()
            .map(|row| (known.know(row, &row.way.from), known.know(row, &row.way.to)))
            .collect();
        let names: BTreeSet<&Name> = known.names.iter().collect();
        let names: Vec<Name> = names.into_iter().cloned().collect();
        let place = |name: &Name| names.binary_search(name).expect("every name is among all");
        let places: Vec<End> = known.names.iter().map(place).collect();
        let namespace_of = |name: &Name| match name {
            Name::Pods(namespace, _) => everybody.0.keys().position(|known| known == namespace),
            Name::Other(_) => None,
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
    fn shorten(&self, ends: &[End], except: Option<End>) -> Vec<Short> {
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
            short.push(Short::Everybody);
        } else {
            short.extend(
                (0..counts.len())
                    .filter(|place| is_whole(*place))
                    .map(Short::Namespace),
            );
        }
        let is_said = |end: End| self.namespaces[end].is_some_and(|place| has_all || is_whole(place));
        short.extend(
            ends.iter()
                .filter(|end| !is_said(**end))
                .map(|end| Short::One(*end)),
        );
        short
    }

    fn texts(&self, short: &[Short]) -> Vec<String> {
        let text = |short: &Short| match short {
            Short::Everybody => "every pod".to_owned(),
            Short::Namespace(place) => format!("every pod of {}", self.totals[*place].0),
            Short::One(end) => match &self.names[*end] {
                Name::Pods(_, text) | Name::Other(text) => text.clone(),
            },
        };
        short.iter().map(text).collect()
    }
}

/// Names in the order in which they are met, and the workloads whose names are known.
#[derive(Default)]
struct Known {
    names: Vec<Name>,
    workloads: HashMap<*const Workload, usize>,
}

impl Known {
    fn know<V>(&mut self, row: &Row<V>, place: &Place) -> usize {
        let Place::Pods(workload) = place else {
            return self.add(Name::Other(row.part.name(place)));
        };
        if let Some(known) = self.workloads.get(&Arc::as_ptr(workload)) {
            return *known;
        }
        let known = self.add(Name::of(workload));
        self.workloads.insert(Arc::as_ptr(workload), known);
        known
    }

    fn add(&mut self, name: Name) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }
}

/// Who connects to the same.
#[derive(Default)]
struct Sides {
    from: Vec<End>,
    /// Some of those to whom, two at least if there are two.
    to: BTreeSet<End>,
}

impl Sides {
    /// Sources come in order, each once.
    fn add(&mut self, from: End, to: &[End]) {
        self.from.push(from);
        // What is asked later is only whether there is but one.
        self.to.extend(to.iter().take(2));
    }

    /// The only destination.
    fn only(&self) -> Option<End> {
        self.to.first().copied().filter(|_| self.to.len() == 1)
    }
}

impl Name {
    fn of(workload: &Workload) -> Self {
        Self::Pods(Arc::clone(&workload.namespace), workload.to_string())
    }
}
