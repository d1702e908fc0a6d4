//! Label selectors (`k8s.io/apimachinery/pkg/apis/meta/v1` LabelSelector), validated as the API does.

use std::sync::Arc;

use crate::api::{Field, Notes, Refused};
use crate::diagnostic::Code;
use crate::model::{NamespaceSelector, Requirement, Selector, Values};

/// A selector all of whose requirements can be read.
pub(super) fn selector(field: &Field<'_>, notes: &mut Notes) -> Result<Selector, Refused> {
    requirements(field, notes)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .map(Selector::all_of)
}

/// A selector, as [`selector`], of namespaces.
pub(super) fn namespaces(field: &Field<'_>, notes: &mut Notes) -> Result<NamespaceSelector, Refused> {
    selector(field, notes).map(NamespaceSelector::Matching)
}

/// The selector of a subject: requirements that cannot be read count as met. The second value is whether
/// all of them could be read.
pub(super) fn widened(field: Option<&Field<'_>>, notes: &mut Notes) -> (Selector, bool) {
    let Some(field) = field else {
        return (Selector::everything(), true);
    };
    let requirements = requirements(field, notes);
    let sound = requirements.iter().all(Result::is_ok);
    (Selector::all_of(requirements.into_iter().flatten()), sound)
}

fn requirements(field: &Field<'_>, notes: &mut Notes) -> Vec<Result<Requirement, Refused>> {
    let mut requirements = Vec::new();
    if let Err(refused) = field.only(&["matchLabels", "matchExpressions"], notes) {
        requirements.push(Err(refused));
    }
    if let Some(labels) = field.get("matchLabels") {
        match labels.entries(notes) {
            Ok(labels) => requirements.extend(labels.iter().map(|(key, value)| label(key, value, notes))),
            Err(refused) => requirements.push(Err(refused)),
        }
        requirements.extend(labels.only_once(notes).err().map(Err));
    }
    if let Some(expressions) = field.get("matchExpressions") {
        match expressions.items(notes) {
            Ok(items) => requirements.extend(items.iter().map(|item| expression(item, notes))),
            Err(refused) => requirements.push(Err(refused)),
        }
    }
    requirements
}

fn label(key: &str, value: &Field<'_>, notes: &mut Notes) -> Result<Requirement, Refused> {
    if !is_label_key(key) {
        return Err(value.refuse(Code::InvalidSelector, LABEL_KEY, notes));
    }
    let value = label_value(value, notes)?;
    Ok(Requirement::In(key.into(), Values::from([value])))
}

fn expression(item: &Field<'_>, notes: &mut Notes) -> Result<Requirement, Refused> {
    item.only(&["key", "operator", "values"], notes)?;
    let key_field = item.require("key", LABEL_KEY, notes)?;
    let key = key_field.text(notes)?;
    if !is_label_key(key) {
        return Err(key_field.refuse(Code::InvalidSelector, LABEL_KEY, notes));
    }
    let operator = item.require("operator", OPERATORS, notes)?;
    let values = values(item, notes)?;
    let key: Arc<str> = key.into();
    match (operator.text(notes)?, values.is_empty()) {
        ("In", false) => Ok(Requirement::In(key, values)),
        ("NotIn", false) => Ok(Requirement::NotIn(key, values)),
        ("Exists", true) => Ok(Requirement::Exists(key)),
        ("DoesNotExist", true) => Ok(Requirement::DoesNotExist(key)),
        ("In" | "NotIn", true) => Err(item.refuse(Code::InvalidSelector, "at least one value", notes)),
        ("Exists" | "DoesNotExist", false) => Err(item.refuse(Code::InvalidSelector, "no values", notes)),
        _ => Err(operator.refuse(Code::InvalidSelector, OPERATORS, notes)),
    }
}

fn values(item: &Field<'_>, notes: &mut Notes) -> Result<Values, Refused> {
    let Some(values) = item.get("values") else {
        return Ok(Values::from([]));
    };
    let items = values.items(notes)?;
    items.iter().map(|value| label_value(value, notes)).collect()
}

fn label_value(field: &Field<'_>, notes: &mut Notes) -> Result<Arc<str>, Refused> {
    let value = field.text(notes)?;
    if !value.is_empty() && !is_label_name(value) {
        return Err(field.refuse(Code::InvalidSelector, LABEL_VALUE, notes));
    }
    Ok(value.into())
}

const OPERATORS: &str = "In, NotIn, Exists or DoesNotExist";
const LABEL_KEY: &str =
    "a label key: an optional DNS prefix and '/', then at most 63 letters, digits, '-', '_' and '.'";
const LABEL_VALUE: &str = "a label value: empty, or at most 63 letters, digits, '-', '_' and '.', the first and last a letter or digit";

/// `IsQualifiedName` of k8s.io/apimachinery/pkg/util/validation.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

fn is_label_name(name: &str) -> bool {
    let ends = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    name.len() <= 63
        && ends(name.chars().next())
        && ends(name.chars().last())
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'))
}

fn is_dns_subdomain(name: &str) -> bool {
    let edge = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit();
    let is_label = |label: &str| {
        let octets = label.as_bytes();
        octets.first().copied().is_some_and(edge)
            && octets.last().copied().is_some_and(edge)
            && octets.iter().all(|&octet| edge(octet) || octet == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}
