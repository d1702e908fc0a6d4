//! The reversal of rewrites in an answer.

use crate::config::model::{NameMatch, TtlRange};
use crate::dns::message::{Message, Query, ResourceRecord, Response, Sections, WireName, flag, kind};
use crate::plugins::Unusable;
use crate::plugins::name_text::{NameRevert, replaced};

use super::options::{replace_option, without_option};

/// One change of an answer.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Of owner names.
    Owner(NameRevert),
    /// Of the first name in the data.
    Value(NameRevert),
    Ttl(TtlRange),
    Cname(NameMatch, String),
    Rcode(u16, u16),
    /// Removes an option of the OPT, or restores the client's.
    Option(u16, Option<Vec<u8>>),
}

/// All changes of an answer.
#[derive(Clone, Debug)]
pub struct Revert {
    query: Query<'static>,
    is_changed: bool,
    changes: Vec<Change>,
    pub(super) is_for_client_alone: bool,
}

impl Revert {
    pub(super) const fn new(query: Query<'static>) -> Self {
        Self {
            query,
            is_changed: false,
            changes: Vec::new(),
            is_for_client_alone: false,
        }
    }

    pub(super) fn push(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Adds a change if its rule matched; returns whether it did.
    pub(super) fn push_if(&mut self, takes: bool, change: impl FnOnce() -> Change) -> bool {
        if takes {
            self.push(change());
        }
        takes
    }

    pub(super) fn note_asked(&mut self, asked: &Query) {
        self.is_changed = asked.question != self.query.question || asked.edns != self.query.edns;
    }

    /// Whether other clients may receive the answer: not if the query has data about the client (RFC 7871 §7.3).
    #[must_use]
    pub const fn is_shareable(&self) -> bool {
        !self.is_for_client_alone
    }

    /// Whether there is nothing to change.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        !self.is_changed && self.changes.is_empty()
    }

    /// Whether the response code or the type may change: then a denial is not the upstream's.
    #[must_use]
    pub fn may_deny_otherwise(&self, asked: &Query) -> bool {
        let is_code = |change: &Change| matches!(change, Change::Rcode(..) | Change::Cname(..));
        asked.question.kind != self.query.question.kind || self.changes.iter().any(is_code)
    }

    /// The new target of an alias in the answer. The caller queries it with the type of the rewritten question, and
    /// passes the answer to `apply`.
    #[must_use]
    pub fn target(&self, octets: &[u8]) -> Option<WireName> {
        if !self
            .changes
            .iter()
            .any(|change| matches!(change, Change::Cname(..)))
        {
            return None;
        }
        let sections = Sections::read(&Message::read(octets).ok()?).ok()?;
        let (_, target) = self.redirection(&sections.answer)?;
        Some(target)
    }

    /// The answer for the client. `found` is the answer for `target`; without it aliases stay as they are.
    ///
    /// # Errors
    /// When an answer cannot be read, or does not fit.
    pub fn apply(&self, octets: Vec<u8>, found: Option<&[u8]>, udp_size: u16) -> Result<Vec<u8>, Unusable> {
        if self.is_nothing() {
            return Ok(octets);
        }
        let mut response = Response::read(&Message::read(&octets)?)?;
        // Changed records are not authentic.
        response.flags &= !flag::AD;
        if let Some(found) = found {
            self.redirect(&mut response, &Response::read(&Message::read(found)?)?);
        }
        for record in response.sections.iter_mut() {
            self.change_record(record);
        }
        for change in self.changes.iter().rev() {
            match change {
                Change::Rcode(from, to) if response.rcode == *from => response.rcode = *to,
                Change::Option(code, Some(old)) => replace_option(&mut response.options, *code, old),
                Change::Option(code, None) => response.options = without_option(&response.options, *code),
                Change::Rcode(..)
                | Change::Owner(_)
                | Change::Value(_)
                | Change::Ttl(_)
                | Change::Cname(..) => {}
            }
        }
        Ok(response.write(&self.query, udp_size)?)
    }

    fn change_record(&self, record: &mut ResourceRecord) {
        for change in self.changes.iter().rev() {
            match change {
                Change::Owner(back) => {
                    if let Some(name) = back.apply(&record.owner) {
                        record.owner = name;
                    }
                }
                Change::Value(back) => change_value(record, back),
                Change::Ttl(range) => record.ttl = record.ttl.clamp(range.at_least, range.at_most),
                Change::Cname(..) | Change::Rcode(..) | Change::Option(..) => {}
            }
        }
    }

    /// The alias whose target changes: its index, and the new target.
    fn redirection(&self, answers: &[ResourceRecord]) -> Option<(usize, WireName)> {
        let rules = || {
            self.changes.iter().rev().filter_map(|change| match change {
                Change::Cname(of, to) => Some((of, to)),
                _other => None,
            })
        };
        let aliases = answers
            .iter()
            .enumerate()
            .filter(|(_, record)| record.kind == kind::CNAME);
        aliases
            .filter_map(|(place, record)| Some((place, record.data.first_name()?.to_string())))
            .find_map(|(place, target)| {
                let other = rules().find_map(|(of, to)| replaced(of, to, &target))?;
                Some((place, WireName::parse(&other).ok()?))
            })
    }

    /// Keeps the aliases up to the changed one, and appends the records of its new target.
    fn redirect(&self, response: &mut Response, found: &Response) {
        let answers = &mut response.sections.answer;
        let Some((place, target)) = self.redirection(answers) else {
            return;
        };
        answers.truncate(place + 1);
        answers.retain(|record| record.kind == kind::CNAME);
        if let Some(name) = answers.last_mut().and_then(|alias| alias.data.first_name_mut()) {
            *name = target;
        }
        answers.extend(found.sections.answer.iter().cloned());
        response.flags = response.flags & !flag::TC | found.flags & flag::TC;
    }
}

/// CoreDNS rewrites the data of SRV, MX, CNAME, NS, DNAME, NAPTR, SOA (the first name) and PTR.
fn change_value(record: &mut ResourceRecord, back: &NameRevert) {
    const CHANGED: [u16; 8] = [2, 5, 6, 12, 15, 33, 35, 39];
    if !CHANGED.contains(&record.kind) {
        return;
    }
    if let Some(name) = record.data.first_name_mut()
        && let Some(other) = back.apply(name)
    {
        *name = other;
    }
}
