//! A port of v1alpha1 as a protocol of v1alpha2.

use super::document::{BlankLine, Collection, CollectionKind, CollectionStyle, Entry, Scalar, Value};

/// A port that no connection has.
#[derive(Debug)]
pub(super) struct UnmatchablePort(pub(super) String);

/// Converts an item of `ports`. What v1alpha1 admits although no connection can have it has no form in
/// v1alpha2: a protocol that is none, a range that ends before it starts.
pub(super) fn protocol(slot: Entry) -> Result<Entry, UnmatchablePort> {
    if let Some(port) = slot.value.get("portNumber") {
        let number = Value::word(text(port, "port"));
        return converted(&slot, port, ("number", number));
    }
    if let Some(range) = slot.value.get("portRange") {
        let (first, last) = (text(range, "start"), text(range, "end"));
        let numbers = first
            .parse::<u16>()
            .and_then(|low| Ok((low, last.parse::<u16>()?)));
        let Some((low, high)) = numbers.ok().filter(|(low, high)| low <= high) else {
            return Err(UnmatchablePort(format!("the range {first} to {last}")));
        };
        if low == high {
            return converted(&slot, range, ("number", Value::word(first)));
        }
        let fields = [("start", Value::word(first)), ("end", Value::word(last))];
        let both = Value::fields(inner_style(range), fields);
        return converted(&slot, range, ("range", both));
    }
    Ok(named(slot))
}

/// A named port has the protocol of the container port in both.
fn named(mut slot: Entry) -> Entry {
    for field in slot
        .value
        .collection_mut()
        .into_iter()
        .flat_map(|all| &mut all.slots)
    {
        if field.is("namedPort") {
            field.key = Some(Scalar::word("destinationNamedPort"));
        }
    }
    slot
}

fn converted(slot: &Entry, port: &Value, (key, value): (&str, Value)) -> Result<Entry, UnmatchablePort> {
    let protocol = match port.get("protocol").and_then(Value::text) {
        None | Some("TCP") => "tcp",
        Some("UDP") => "udp",
        Some("SCTP") => "sctp",
        Some(other) => return Err(UnmatchablePort(format!("the protocol {other:?}"))),
    };
    let inner = inner_style(port);
    let destination = Value::field(inner, "destinationPort", Value::field(inner, key, value));
    let outer = match &slot.value {
        Value::Collection(collection) => collection.style,
        Value::Scalar(_) => CollectionStyle::Block(2),
    };
    let mut comments = Comments::default();
    comments.take(&slot.value);
    let mut new = Entry {
        value: Value::field(outer, protocol, destination),
        ..slot.clone()
    };
    let last = comments.beside.pop();
    let beside = comments
        .beside
        .iter()
        .map(|beside| beside.trim_start().to_owned());
    new.above
        .extend(comments.above.into_iter().chain(beside).map(BlankLine::of));
    let line = last_line(&mut new);
    line.beside = last.or_else(|| line.beside.take());
    Ok(new)
}

fn text<'a>(port: &'a Value, key: &str) -> &'a str {
    port.get(key).and_then(Value::text).unwrap_or_default()
}

const fn inner_style(port: &Value) -> CollectionStyle {
    match port {
        Value::Collection(Collection {
            style: CollectionStyle::Flow,
            ..
        }) => CollectionStyle::Flow,
        Value::Collection(_) | Value::Scalar(_) => CollectionStyle::Block(2),
    }
}

/// The comments in something that is written anew.
#[derive(Default)]
struct Comments {
    above: Vec<String>,
    beside: Vec<String>,
}

impl Comments {
    fn take(&mut self, value: &Value) {
        for slot in value.slots() {
            self.above
                .extend(slot.above.iter().filter_map(BlankLine::comment));
            self.beside.extend(slot.beside.clone());
            self.take(&slot.value);
        }
    }
}

/// The field on the last line of a slot.
fn last_line(slot: &mut Entry) -> &mut Entry {
    let goes_on = matches!(
        &slot.value,
        Value::Collection(Collection { style: CollectionStyle::Block(_), shape: CollectionKind::Mapping, slots }) if !slots.is_empty()
    );
    if !goes_on {
        return slot;
    }
    let slots = slot
        .value
        .collection_mut()
        .map(|collection| &mut collection.slots);
    last_line(
        slots
            .and_then(|slots| slots.last_mut())
            .expect("it goes on in its last field"),
    )
}
