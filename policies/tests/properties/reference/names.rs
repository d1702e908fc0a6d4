//! Names: the records of a pod, while they are live.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::cluster::ObservedRecord;
use super::{Ask, Broken, PolicyReader};
use crate::ids::Id;

/// A name without its case and its final dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

impl PolicyReader<'_> {
    /// Whether the subject has a live record of the other end's address for one of the names.
    pub(super) fn is_observed(&self, list: &Value, ask: &Ask<'_>) -> Result<bool, Broken> {
        let items = list.as_array().filter(|items| !items.is_empty()).ok_or(Broken)?;
        let names: Vec<&str> = items
            .iter()
            .map(|item| item.as_str().ok_or(Broken))
            .collect::<Result<_, _>>()?;
        let distinct: BTreeSet<String> = names.iter().map(|name| plain(name)).collect();
        if distinct.len() < names.len() && self.errs(Id::F31) {
            return Err(Broken);
        }
        let mut is_observed = false;
        for (place, name) in names.into_iter().enumerate() {
            let is_odd = name.contains(['[', '\\', ']', '^', '`']) || name.starts_with('_');
            if is_odd && self.errs(Id::C55) {
                return Err(Broken);
            }
            let is_name = is_pattern(name) || (name.contains('*') && self.errs(Id::F4));
            let matches = is_name && self.is_told_for(name, ask);
            is_observed |= matches && !(place > 0 && !is_observed && self.errs(Id::F10));
        }
        Ok(is_observed)
    }

    fn is_told_for(&self, pattern: &str, ask: &Ask<'_>) -> bool {
        let observed = || {
            self.cluster
                .observed
                .iter()
                .filter(|observed| observed.pod == ask.subject.key || self.errs(Id::C52))
                .filter(|observed| self.is_asked_for(pattern, observed))
        };
        if observed().next().is_none() {
            return self.errs(Id::F14);
        }
        let address = match ask.dialled {
            Some((address, _)) if self.errs(Id::F22) => address,
            _ => ask.peer,
        };
        if address == ask.peer
            && (self.is_closed_to_names(address)
                || self
                    .owner(address)
                    .is_some_and(|owner| owner.key == ask.subject.key))
        {
            return false;
        }
        let mut here = observed().filter(|observed| observed.address.to_canonical() == address);
        here.any(|observed| self.counts(observed, pattern, ask))
    }

    /// Whether an answer that was given opens anything now.
    fn counts(&self, observed: &ObservedRecord, pattern: &str, ask: &Ask<'_>) -> bool {
        let is_other_family = observed.client.is_ipv4() != observed.address.is_ipv4();
        let is_lost = (observed.before_restart && self.errs(Id::C8))
            || (observed.position > 0 && self.errs(Id::F21))
            || (!observed.chain.is_empty() && self.errs(Id::F25))
            || (is_other_family && self.errs(Id::C54))
            || (self.owner(ask.peer).is_some() && self.errs(Id::F20))
            || (self.is_before_policies(observed) && self.errs(Id::G7))
            || (self.is_superseded(observed) && self.errs(Id::C47))
            || (self.has_another_name(observed, pattern) && self.errs(Id::F28))
            || (self.rank_in_name(observed) >= 99 && self.errs(Id::F17))
            || (self.rank_under(observed, pattern) >= 100 && self.errs(Id::F18));
        self.is_live(observed) && !is_lost
    }

    fn is_live(&self, observed: &ObservedRecord) -> bool {
        if self.is_open {
            return true;
        }
        let setting = &self.cluster.setting;
        let min_ttl = if setting.min_ttl > observed.ttl && self.errs(Id::C51) {
            0
        } else {
            setting.min_ttl
        };
        let grace = if setting.grace > 0 && self.errs(Id::G4) {
            0
        } else {
            setting.grace
        };
        if observed.until(min_ttl, grace) <= self.cluster.now {
            return self.errs(Id::F15);
        }
        let is_again = self
            .cluster
            .observed
            .iter()
            .any(|other| other.step < observed.step && is_same(other, observed));
        !(is_again && self.errs(Id::G2))
    }

    /// Whether a rule with names is younger than the answer.
    fn is_before_policies(&self, observed: &ObservedRecord) -> bool {
        let with_names = |policy: &&super::cluster::Policy| policy.object.to_string().contains("domainNames");
        let mut policies = self.cluster.policies.iter().filter(with_names);
        policies.any(|policy| policy.since > observed.step)
    }

    /// Whether a later answer for the name does not have the address.
    fn is_superseded(&self, observed: &ObservedRecord) -> bool {
        let of_name = |other: &&ObservedRecord| {
            other.pod == observed.pod && plain(&other.question) == plain(&observed.question)
        };
        let all = || self.cluster.observed.iter().filter(of_name);
        let last = all().map(|other| other.step).max();
        let mut in_last = all().filter(|other| Some(other.step) == last);
        !in_last.any(|other| other.address == observed.address)
    }

    fn has_another_name(&self, observed: &ObservedRecord, pattern: &str) -> bool {
        self.cluster.observed.iter().any(|other| {
            other.pod == observed.pod
                && other.address == observed.address
                && !fits(&plain(pattern), &plain(&other.question))
        })
    }

    /// The number of addresses that the pod had observed before for the name.
    fn rank_in_name(&self, observed: &ObservedRecord) -> usize {
        let of_name = |other: &&ObservedRecord| {
            other.pod == observed.pod && plain(&other.question) == plain(&observed.question)
        };
        rank(observed, self.cluster.observed.iter().filter(of_name))
    }

    fn rank_under(&self, observed: &ObservedRecord, pattern: &str) -> usize {
        let under = |other: &&ObservedRecord| {
            other.pod == observed.pod && fits(&plain(pattern), &plain(&other.question))
        };
        let questions: BTreeSet<String> = self
            .cluster
            .observed
            .iter()
            .filter(under)
            .map(|other| plain(&other.question))
            .collect();
        // With one name it is the limit of a name.
        if questions.len() < 2 {
            0
        } else {
            rank(observed, self.cluster.observed.iter().filter(under))
        }
    }

    fn is_asked_for(&self, pattern: &str, observed: &ObservedRecord) -> bool {
        if self.fits_question(pattern, &observed.question) {
            return true;
        }
        observed
            .chain
            .iter()
            .any(|name| fits(&plain(pattern), &plain(name)))
            && self.errs(Id::F27)
    }

    fn fits_question(&self, pattern: &str, question: &str) -> bool {
        let (pattern_plain, question_plain) = (plain(pattern), plain(question));
        let matches = fits(&pattern_plain, &question_plain);
        let is_rewritten = pattern_plain != pattern || question_plain != question;
        if is_rewritten && self.errs(Id::F5) {
            return fits(pattern, question);
        }
        let below = |name: &str, zone: &str| name.strip_suffix(zone).is_some_and(|rest| rest.ends_with('.'));
        match pattern_plain.strip_prefix("*.") {
            Some(_) if pattern_plain.matches('*').count() > 1 => glob(&pattern_plain, &question_plain),
            Some(zone) => {
                let is_deep =
                    matches && question_plain[..question_plain.len() - zone.len() - 1].contains('.');
                let ends_alike = question_plain.ends_with(zone);
                (matches && !(is_deep && self.errs(Id::X10))) || (!matches && ends_alike && self.errs(Id::F3))
            }
            None if pattern_plain.contains('*') => glob(&pattern_plain, &question_plain),
            None => {
                matches
                    || (below(&question_plain, &pattern_plain) && self.errs(Id::F1))
                    || (below(&pattern_plain, &question_plain) && self.errs(Id::F2))
            }
        }
    }
}

/// How many other addresses were observed before.
fn rank<'t>(observed: &ObservedRecord, all: impl Iterator<Item = &'t ObservedRecord>) -> usize {
    let before: BTreeSet<IpAddr> = all
        .filter(|other| (other.step, other.position) < (observed.step, observed.position))
        .map(|other| other.address)
        .collect();
    before.len() - usize::from(before.contains(&observed.address))
}

fn is_same(one: &ObservedRecord, other: &ObservedRecord) -> bool {
    one.pod == other.pod && one.address == other.address && plain(&one.question) == plain(&other.question)
}

/// Whether a name is one that the pattern stands for.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(zone) => {
            let rest = name.strip_suffix(zone).and_then(|rest| rest.strip_suffix('.'));
            rest.is_some_and(|rest| !rest.is_empty())
        }
        None => name == pattern,
    }
}

/// The mistake to let a star stand for anything anywhere.
fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len())
                .filter(|at| rest.is_char_boundary(*at))
                .any(|at| glob(after, &rest[at..]))
        }),
    }
}

/// `(\*\.)?label(\.label)+\.?`, each label of letters, digits, `-` and `_`, the first and last a letter or digit.
fn is_pattern(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let labels: Vec<&str> = text.strip_prefix("*.").unwrap_or(text).split('.').collect();
    let is_label = |label: &&str| {
        let ends = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
        let inside = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        label.len() <= 63
            && ends(label.chars().next())
            && ends(label.chars().last())
            && label.chars().all(inside)
    };
    labels.len() >= 2 && labels.iter().all(is_label)
}
