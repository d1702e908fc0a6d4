//! Selectors of labels.

use serde_json::Value;

use super::cluster::{Labels, Pod, get, items, only_name};
use super::kinds::only;
use super::{Broken, PolicyReader};
use crate::ids::Id;

impl PolicyReader<'_> {
    /// Whether all requirements hold; broken where one of them cannot be read.
    pub(super) fn selects(&self, selector: &Value, labels: &Labels) -> Result<bool, Broken> {
        let mut holds = true;
        for requirement in requirements(selector, labels) {
            holds &= requirement?;
        }
        Ok(holds)
    }

    /// Whether all requirements hold that can be read, and whether all can.
    pub(super) fn widened(&self, selector: Option<&Value>, labels: &Labels) -> (bool, bool) {
        let Some(selector) = selector else {
            return (true, true);
        };
        let all = requirements(selector, labels);
        let holds = all.iter().all(|requirement| requirement.unwrap_or(true));
        (holds, all.iter().all(Result::is_ok))
    }

    pub(super) fn pod_labels(&self, pod: &Pod) -> Labels {
        let is_stale = pod.labels != pod.first_labels && self.errs(Id::C4);
        if is_stale {
            pod.first_labels.clone()
        } else {
            pod.labels.clone()
        }
    }

    pub(super) fn namespace_labels(&self, name: &str) -> Labels {
        match self.cluster.namespaces.get(name) {
            Some(known) if known.labels != known.first_labels && self.errs(Id::C4) => {
                known.first_labels.clone()
            }
            Some(known) => known.labels.clone(),
            None => only_name(name),
        }
    }

    /// Whether an unknown namespace is taken to match anything.
    pub(super) fn is_unsynced(&self, name: &str) -> bool {
        !self.cluster.namespaces.contains_key(name) && self.errs(Id::C61)
    }
}

fn requirements(selector: &Value, labels: &Labels) -> Vec<Result<bool, Broken>> {
    let mut all = vec![only(selector, &["matchLabels", "matchExpressions"]).map(|()| true)];
    match get(selector, "matchLabels") {
        None => {}
        Some(Value::Object(wanted)) => all.extend(wanted.iter().map(|(key, value)| {
            let value = value.as_str().ok_or(Broken)?;
            Ok(labels.get(key).is_some_and(|has| has == value))
        })),
        Some(_) => all.push(Err(Broken)),
    }
    let expressions = get(selector, "matchExpressions");
    if expressions.is_some_and(|list| !list.is_array()) {
        all.push(Err(Broken));
    }
    all.extend(items(expressions).iter().map(|item| expression(item, labels)));
    all
}

fn expression(item: &Value, labels: &Labels) -> Result<bool, Broken> {
    only(item, &["key", "operator", "values"])?;
    let key = get(item, "key").and_then(Value::as_str).ok_or(Broken)?;
    let values: Vec<&str> = items(get(item, "values"))
        .iter()
        .map(|value| value.as_str().ok_or(Broken))
        .collect::<Result<_, _>>()?;
    let has = labels.get(key);
    let is_one_of = has.is_some_and(|has| values.contains(&has.as_str()));
    match (get(item, "operator").and_then(Value::as_str), values.is_empty()) {
        (Some("In"), false) => Ok(is_one_of),
        (Some("NotIn"), false) => Ok(!is_one_of),
        (Some("Exists"), true) => Ok(has.is_some()),
        (Some("DoesNotExist"), true) => Ok(has.is_none()),
        _ => Err(Broken),
    }
}
