//! Rows for people: ends of which the same is to be said stand together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fold::Unit;
use super::merge::Row;
use super::place::Place;

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
            let name = Name::Pods(Arc::clone(&namespace), unit.workload.to_string());
            all.0.entry(namespace).or_default().insert(name);
        }
        all
    }

    /// The names, all of a namespace or of the cluster in one; one that is excepted need not be among them.
    fn shorten(&self, names: &BTreeSet<Name>, except: Option<&Name>) -> Vec<String> {
        let has_all =
            |of: &BTreeSet<Name>| of.iter().all(|name| names.contains(name) || Some(name) == except);
        let count = |of: &BTreeSet<Name>| of.iter().filter(|name| names.contains(*name)).count();
        let mut texts = Vec::new();
        let is_whole = |of: &BTreeSet<Name>| count(of) > 1 && has_all(of);
        let all: BTreeSet<Name> = self.0.values().flatten().cloned().collect();
        let mut namespaces = BTreeSet::new();
        if is_whole(&all) {
            texts.push("every pod".to_owned());
            namespaces.extend(self.0.keys().cloned());
        } else {
            for (namespace, _) in self.0.iter().filter(|(_, of)| is_whole(of)) {
                texts.push(format!("every pod of {namespace}"));
                namespaces.insert(Arc::clone(namespace));
            }
        }
        let is_said = |name: &&Name| match name {
            Name::Pods(namespace, _) => namespaces.contains(namespace),
            Name::Other(_) => false,
        };
        texts.extend(names.iter().filter(|name| !is_said(name)).map(|name| match name {
            Name::Pods(_, text) | Name::Other(text) => text.clone(),
        }));
        texts
    }

    /// Puts together what can be said at once.
    pub fn gather<V, T: Clone + Ord>(&self, rows: &[Row<V>], said: impl Fn(&Row<V>) -> T) -> Vec<Several<T>> {
        let mut by_source: BTreeMap<Name, BTreeMap<T, BTreeSet<Name>>> = BTreeMap::new();
        for row in rows {
            let of_source = by_source.entry(name(row, &row.way.from)).or_default();
            let to = name(row, &row.way.to);
            of_source.entry(said(row)).or_default().insert(to);
        }
        let mut gathered: BTreeMap<(Vec<String>, T), Sides> = BTreeMap::new();
        for (from, of_source) in by_source {
            for (said, to) in of_source {
                let key = (self.shorten(&to, Some(&from)), said);
                let sides = gathered.entry(key).or_default();
                sides.from.insert(from.clone());
                sides.to.extend(to);
            }
        }
        let mut several: Vec<Several<T>> = Vec::with_capacity(gathered.len());
        for ((to, said), sides) in gathered {
            let only = sides.to.first().filter(|_| sides.to.len() == 1);
            let from = self.shorten(&sides.from, only);
            several.push(Several { from, to, said });
        }
        several.sort();
        several
    }
}

/// All ends of what is gathered.
#[derive(Default)]
struct Sides {
    from: BTreeSet<Name>,
    to: BTreeSet<Name>,
}

fn name<V>(row: &Row<V>, place: &Place) -> Name {
    match place {
        Place::Pods(workload) => Name::Pods(Arc::clone(&workload.namespace), workload.to_string()),
        Place::OwnNode | Place::Node(_) | Place::Outside | Place::Name(_) => {
            Name::Other(row.part.name(place))
        }
    }
}
