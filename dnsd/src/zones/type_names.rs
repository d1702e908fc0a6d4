//! Types and classes as people write them.

use std::borrow::Cow;

use crate::dns::message::{CLASSES, TYPES};

pub(super) fn kind_name(number: u16) -> Cow<'static, str> {
    TYPES
        .name(number)
        .map_or_else(|| format!("TYPE{number}").into(), Cow::Borrowed)
}

pub(super) fn class_name(number: u16) -> Cow<'static, str> {
    CLASSES
        .name(number)
        .map_or_else(|| format!("CLASS{number}").into(), Cow::Borrowed)
}
