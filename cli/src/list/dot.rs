//! Connections as a picture's source, in the language of Graphviz.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::reach::connection_end::End;
use crate::reach::fold::Unit;
use crate::reach::merge::Row;
use crate::reach::ports::PortSet;

/// A graph: a box for each namespace with its workloads, and an arrow for each connection. What is allowed
/// in both directions has one arrow with two heads.
pub(super) fn render(units: &[Unit], rows: &[Row<Rc<PortSet>>]) -> String {
    let mut text = String::from("digraph connections {\n  rankdir=LR;\n  node [shape=box];\n");
    let mut namespaces: BTreeMap<&str, Vec<&Unit>> = BTreeMap::new();
    for unit in units {
        namespaces.entry(&unit.workload.namespace).or_default().push(unit);
    }
    for (namespace, units) in namespaces {
        let id = quote(&format!("cluster {namespace}"));
        text.push_str(&format!("  subgraph {id} {{\n    label={};\n", quote(namespace)));
        for unit in units {
            let label = quote(&unit.workload.name);
            text.push_str(&format!(
                "    {} [label={label}];\n",
                quote(&unit.workload.to_string())
            ));
        }
        text.push_str("  }\n");
    }
    let arrows: BTreeSet<(String, String, String)> = rows.iter().map(arrow).collect();
    for place in places(rows) {
        text.push_str(&format!("  {} [shape=ellipse];\n", quote(&place)));
    }
    for (from, to, label) in &arrows {
        let back = (to.clone(), from.clone(), label.clone());
        let heads = match (arrows.contains(&back), from.cmp(to)) {
            (true, std::cmp::Ordering::Greater) => continue,
            (true, std::cmp::Ordering::Less) => ", dir=both",
            (true, std::cmp::Ordering::Equal) | (false, _) => "",
        };
        let (from, to, label) = (quote(from), quote(to), quote(label));
        text.push_str(&format!("  {from} -> {to} [label={label}{heads}];\n"));
    }
    text.push_str("}\n");
    text
}

fn arrow(row: &Row<Rc<PortSet>>) -> (String, String, String) {
    (
        row.part.name(&row.ends.from),
        row.part.name(&row.ends.to),
        super::words(row),
    )
}

fn places(rows: &[Row<Rc<PortSet>>]) -> BTreeSet<String> {
    let is_pods = |place: &&End| matches!(place, End::Pods(_));
    let others = |row: &Row<Rc<PortSet>>| {
        [&row.ends.from, &row.ends.to]
            .into_iter()
            .filter(|place| !is_pods(place))
            .map(|place| row.part.name(place))
            .collect::<Vec<_>>()
    };
    rows.iter().flat_map(others).collect()
}

/// A string of the language: quotes and backslashes are escaped.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
