//! Names: what a pod was told, while it is live.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

use super::cluster::Told;
use super::{Ask, Broken, PolicyReader};
use crate::ids::Id;

/// A name without its case and its final dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

impl PolicyReader<'_> {
    /// Whether the subject was told the other end's address for one of the names.
    pub(super) fn is_told(&self, list: &Value, ask: &Ask<'_>) -> Result<bool, Broken> {
        let items = list.as_array().filter(|items| !items.is_empty()).ok_or(Broken)?;
        let names: Vec<&str> = items
            .iter()
            .map(|item| item.as_str().ok_or(Broken))
            .collect::<Result<_, _>>()?;
        let distinct: BTreeSet<String> = names.iter().map(|name| plain(name)).collect();
        if distinct.len() < names.len() && self.errs(Id::F31) {
            return Err(Broken);
        }
        let mut is_told = false;
        for (place, name) in names.into_iter().enumerate() {
            let is_odd = name.contains(['[', '\\', ']', '^', '`']) || name.starts_with('_');
            if is_odd && self.errs(Id::C55) {
                return Err(Broken);
            }
            let is_name = is_pattern(name) || (name.contains('*') && self.errs(Id::F4));
            let matches = is_name && self.is_told_for(name, ask);
            is_told |= matches && !(place > 0 && !is_told && self.errs(Id::F10));
        }
        Ok(is_told)
    }

    fn is_told_for(&self, pattern: &str, ask: &Ask<'_>) -> bool {
        let told = || {
            self.cluster
                .told
                .iter()
                .filter(|told| told.pod == ask.subject.key || self.errs(Id::C52))
                .filter(|told| self.is_asked_for(pattern, told))
        };
        if told().next().is_none() {
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
        let mut here = told().filter(|told| told.address.to_canonical() == address);
        here.any(|told| self.counts(told, pattern, ask))
    }

    /// Whether an answer that was given opens anything now.
    fn counts(&self, told: &Told, pattern: &str, ask: &Ask<'_>) -> bool {
        let is_other_family = told.client.is_ipv4() != told.address.is_ipv4();
        let is_lost = (told.before_restart && self.errs(Id::C8))
            || (told.place > 0 && self.errs(Id::F21))
            || (!told.chain.is_empty() && self.errs(Id::F25))
            || (is_other_family && self.errs(Id::C54))
            || (self.owner(ask.peer).is_some() && self.errs(Id::F20))
            || (self.is_before_policies(told) && self.errs(Id::G7))
            || (self.is_superseded(told) && self.errs(Id::C47))
            || (self.has_another_name(told, pattern) && self.errs(Id::F28))
            || (self.rank_in_name(told) >= 99 && self.errs(Id::F17))
            || (self.rank_under(told, pattern) >= 100 && self.errs(Id::F18));
        self.is_live(told) && !is_lost
    }

    fn is_live(&self, told: &Told) -> bool {
        if self.is_open {
            return true;
        }
        let setting = &self.cluster.setting;
        let min_ttl = if setting.min_ttl > told.ttl && self.errs(Id::C51) {
            0
        } else {
            setting.min_ttl
        };
        let grace = if setting.grace > 0 && self.errs(Id::G4) {
            0
        } else {
            setting.grace
        };
        if told.until(min_ttl, grace) <= self.cluster.now {
            return self.errs(Id::F15);
        }
        let is_again = self
            .cluster
            .told
            .iter()
            .any(|other| other.step < told.step && is_same(other, told));
        !(is_again && self.errs(Id::G2))
    }

    /// Whether a rule with names is younger than the answer.
    fn is_before_policies(&self, told: &Told) -> bool {
        let with_names = |policy: &&super::cluster::Policy| policy.object.to_string().contains("domainNames");
        let mut policies = self.cluster.policies.iter().filter(with_names);
        policies.any(|policy| policy.since > told.step)
    }

    /// Whether a later answer for the name does not have the address.
    fn is_superseded(&self, told: &Told) -> bool {
        let of_name =
            |other: &&Told| other.pod == told.pod && plain(&other.question) == plain(&told.question);
        let all = || self.cluster.told.iter().filter(of_name);
        let last = all().map(|other| other.step).max();
        let mut in_last = all().filter(|other| Some(other.step) == last);
        !in_last.any(|other| other.address == told.address)
    }

    fn has_another_name(&self, told: &Told, pattern: &str) -> bool {
        self.cluster.told.iter().any(|other| {
            other.pod == told.pod
                && other.address == told.address
                && !fits(&plain(pattern), &plain(&other.question))
        })
    }

    /// How many addresses the pod was told before for the name.
    fn rank_in_name(&self, told: &Told) -> usize {
        let of_name =
            |other: &&Told| other.pod == told.pod && plain(&other.question) == plain(&told.question);
        rank(told, self.cluster.told.iter().filter(of_name))
    }

    fn rank_under(&self, told: &Told, pattern: &str) -> usize {
        let under = |other: &&Told| other.pod == told.pod && fits(&plain(pattern), &plain(&other.question));
        let questions: BTreeSet<String> = self
            .cluster
            .told
            .iter()
            .filter(under)
            .map(|other| plain(&other.question))
            .collect();
        // With one name it is the limit of a name.
        if questions.len() < 2 {
            0
        } else {
            rank(told, self.cluster.told.iter().filter(under))
        }
    }

    fn is_asked_for(&self, pattern: &str, told: &Told) -> bool {
        if self.fits_question(pattern, &told.question) {
            return true;
        }
        told.chain.iter().any(|name| fits(&plain(pattern), &plain(name))) && self.errs(Id::F27)
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

/// How many other addresses were told before.
fn rank<'t>(told: &Told, all: impl Iterator<Item = &'t Told>) -> usize {
    let before: BTreeSet<IpAddr> = all
        .filter(|other| (other.step, other.place) < (told.step, told.place))
        .map(|other| other.address)
        .collect();
    before.len() - usize::from(before.contains(&told.address))
}

fn is_same(one: &Told, other: &Told) -> bool {
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
