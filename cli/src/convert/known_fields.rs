//! What an API server keeps of a policy of v1alpha1: the fields of its schema.

use super::document::{Collection, Value};

/// The fields that are kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownFields {
    /// All there are.
    All,
    /// These, and of each these.
    Only(&'static [(&'static str, Self)]),
    /// Of each item these.
    Each(&'static Self),
}

use KnownFields::{All, Each, Only};

const SELECTOR: KnownFields = Only(&[
    ("matchLabels", All),
    (
        "matchExpressions",
        Each(&Only(&[("key", All), ("operator", All), ("values", All)])),
    ),
]);
const PODS: KnownFields = Only(&[("namespaceSelector", SELECTOR), ("podSelector", SELECTOR)]);
const PEER: KnownFields = Only(&[
    ("namespaces", SELECTOR),
    ("pods", PODS),
    ("nodes", SELECTOR),
    ("networks", All),
    ("domainNames", All),
]);
const PORT: KnownFields = Only(&[
    ("portNumber", Only(&[("protocol", All), ("port", All)])),
    (
        "portRange",
        Only(&[("protocol", All), ("start", All), ("end", All)]),
    ),
    ("namedPort", All),
]);
const RULE: KnownFields = Only(&[
    ("name", All),
    ("action", All),
    ("from", Each(&PEER)),
    ("to", Each(&PEER)),
    ("ports", Each(&PORT)),
]);
/// The spec.
pub(super) const SPEC: KnownFields = Only(&[
    ("priority", All),
    ("subject", Only(&[("namespaces", SELECTOR), ("pods", PODS)])),
    ("ingress", Each(&RULE)),
    ("egress", Each(&RULE)),
]);

/// The spec of an object of `extensions/v1beta1`, as it was proposed.
pub(super) const SPEC_OF_2016: KnownFields = Only(&[
    ("podSelector", SELECTOR),
    (
        "ingress",
        Each(&Only(&[
            (
                "from",
                Each(&Only(&[
                    ("podSelector", SELECTOR),
                    ("namespaceSelector", SELECTOR),
                ])),
            ),
            ("ports", Each(&Only(&[("protocol", All), ("port", All)]))),
        ])),
    ),
]);

impl KnownFields {
    /// Takes out what an API server would not keep: unknown fields, and of a field that is there twice all
    /// but the last.
    pub(super) fn prune(self, value: &mut Value) {
        match (self, value.collection_mut()) {
            (All, _) | (_, None) => {}
            (Each(fields), Some(list)) => {
                for slot in &mut list.slots {
                    fields.prune(&mut slot.value);
                }
            }
            (Only(fields), Some(mapping)) => prune_mapping(fields, mapping),
        }
    }
}

fn prune_mapping(fields: &[(&str, KnownFields)], mapping: &mut Collection) {
    let written = std::mem::take(&mut mapping.slots);
    for mut slot in written.into_iter().rev() {
        let known = fields.iter().find(|(key, _)| slot.is(key));
        let is_there = known.is_some_and(|(key, _)| mapping.slots.iter().any(|slot| slot.is(key)));
        if let Some((_, below)) = known.filter(|_| !is_there) {
            below.prune(&mut slot.value);
            mapping.slots.push(slot);
        }
    }
    mapping.slots.reverse();
}
