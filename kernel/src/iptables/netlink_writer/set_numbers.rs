//! What number the kernel gives a set: a match names a set by it. By the options of a socket (`ip_set_sockfn_get` of
//! net/netfilter/ipset/ip_set_core.c), which all versions of the protocol have.
//!
//! A number stays with a *name*: a swap of two sets exchanges what is in them and leaves both numbers with their names
//! (`ip_set_swap`), and a set that a rule refers to can neither be destroyed nor renamed. Until a rule does, another may destroy it, and
//! give the number to another set. So numbers are asked for anew for each transaction, and compared behind it, when
//! nobody can change them any more. What number a set had before is only where its name is looked for first: by number the kernel finds
//! a set at once, by name it goes through those in front of it.

use super::rule::SetIndices;
use crate::Family;
use crate::iptables::sockopt;
use nix::errno::Errno;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;

/// The number of each set at its last lookup.
#[derive(Debug, Default)]
pub(super) struct SetNumberCache {
    numbers: HashMap<Box<str>, u16>,
    /// Of how many sets the largest change was: at a start, of all.
    largest: usize,
}

impl SetNumberCache {
    /// So many more than the largest change had: sets that went make room for others when all are forgotten.
    const ROOM: usize = 2048;

    fn of(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied()
    }

    fn note(&mut self, indices: &SetIndices<'_>) {
        self.largest = self.largest.max(indices.len());
        if self.numbers.len() + indices.len() > Self::ROOM + 2 * self.largest {
            self.numbers = HashMap::new();
        }
        for (name, number) in indices {
            if self.of(name) != Some(*number) {
                self.numbers.insert((*name).into(), *number);
            }
        }
    }
}

/// Asks for numbers in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct SetNumbers {
    socket: OwnedFd,
    level: i32,
}

/// `SO_IP_SET`.
const OPTION: i32 = 83;
const BY_NAME: u32 = 6;
const BY_INDEX: u32 = 7;
/// The oldest protocol that kernels speak, and all speak.
const PROTOCOL: u32 = 6;
/// `struct ip_set_req_get_set`: the operation, the protocol, and the name or the number.
const QUESTION: usize = 40;
const SUBJECT: usize = 8;
/// `IPSET_INVALID_ID`.
const NONE: u16 = u16::MAX;
/// From so many names on it is quicker to go through all sets, for to find one by its name the kernel goes through those before it.
const MANY: usize = 256;

impl SetNumbers {
    pub(super) fn open() -> Result<Self, Errno> {
        let (socket, level) = sockopt::open(Family::V4)?;
        Ok(Self { socket, level })
    }

    /// The numbers of these sets; one that is not there has none.
    pub(super) fn find<'a>(
        &self,
        names: &BTreeSet<&'a str>,
        hints: &mut SetNumberCache,
    ) -> Result<SetIndices<'a>, Errno> {
        let mut found = self.find_where_they_were(names, hints)?;
        let others: BTreeSet<&str> = names
            .iter()
            .filter(|name| !found.contains_key(*name))
            .copied()
            .collect();
        found.extend(if others.len() > MANY {
            self.find_among_all(&others)?
        } else {
            self.find_by_name(&others)?
        });
        hints.note(&found);
        Ok(found)
    }

    fn find_where_they_were<'a>(
        &self,
        names: &BTreeSet<&'a str>,
        hints: &SetNumberCache,
    ) -> Result<SetIndices<'a>, Errno> {
        let mut found = SetIndices::new();
        for (name, number) in names.iter().filter_map(|name| Some((*name, hints.of(name)?))) {
            if self.name_of(number)?.as_deref() == Some(name) {
                found.insert(name, number);
            }
        }
        Ok(found)
    }

    fn find_by_name<'a>(&self, names: &BTreeSet<&'a str>) -> Result<SetIndices<'a>, Errno> {
        let mut found = SetIndices::new();
        for name in names.iter().filter(|name| name.len() < QUESTION - SUBJECT) {
            let mut question = question(BY_NAME);
            question[SUBJECT..SUBJECT + name.len()].copy_from_slice(name.as_bytes());
            let number = number_in(&self.ask(question)?);
            if number != NONE {
                found.insert(*name, number);
            }
        }
        Ok(found)
    }

    fn find_among_all<'a>(&self, names: &BTreeSet<&'a str>) -> Result<SetIndices<'a>, Errno> {
        let mut found = SetIndices::new();
        for number in 0..NONE {
            let Some(answer) = self.name_of(number)? else {
                break;
            };
            if let Some(name) = names.get(answer.as_str()) {
                found.insert(*name, number);
                if found.len() == names.len() {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The name of a set that has another number by now, if there is one.
    pub(super) fn changed<'a>(&self, indices: &SetIndices<'a>) -> Result<Option<&'a str>, Errno> {
        for (name, number) in indices {
            if self.name_of(*number)?.as_deref() != Some(name) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// What the set of this number is called, empty if it is none; none beyond the last number that there can be.
    fn name_of(&self, number: u16) -> Result<Option<String>, Errno> {
        let mut question = question(BY_INDEX);
        question[SUBJECT..SUBJECT + 2].copy_from_slice(&number.to_ne_bytes());
        let answer = match self.ask(question) {
            Ok(answer) => answer,
            Err(Errno::EINVAL) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let name = answer[SUBJECT..]
            .split(|octet| *octet == 0)
            .next()
            .unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(name).into_owned()))
    }

    fn ask(&self, mut question: [u8; QUESTION]) -> Result<[u8; QUESTION], Errno> {
        sockopt::get(&self.socket, self.level, OPTION, &mut question)?;
        Ok(question)
    }
}

fn question(operation: u32) -> [u8; QUESTION] {
    let mut question = [0; QUESTION];
    question[..4].copy_from_slice(&operation.to_ne_bytes());
    question[4..8].copy_from_slice(&PROTOCOL.to_ne_bytes());
    question
}

fn number_in(answer: &[u8; QUESTION]) -> u16 {
    u16::from_ne_bytes([answer[SUBJECT], answer[SUBJECT + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(hints: &mut SetNumberCache, names: &[String]) {
        hints.note(&names.iter().map(|name| (name.as_str(), 7)).collect());
    }

    /// Each pod that comes has sets that none had before.
    #[test]
    fn names_of_sets_that_went_are_forgotten_and_those_of_a_large_change_are_not() {
        let name = |number: usize| format!("s-{number}");
        let mut hints = SetNumberCache::default();
        let all: Vec<String> = (0..100).map(name).collect();
        noted(&mut hints, &all);
        for number in 100..2_000 {
            noted(&mut hints, &[name(number)]);
        }
        assert_eq!((hints.of("s-0"), hints.of("s-1999")), (Some(7), Some(7)));
        for number in 2_000..10_000 {
            noted(&mut hints, &[name(number)]);
            assert!(hints.numbers.len() <= 2_248, "{}", hints.numbers.len());
        }
        assert_eq!((hints.of("s-0"), hints.of("s-9999")), (None, Some(7)));
    }

    #[test]
    fn a_changed_set_index_is_noted() {
        let mut hints = SetNumberCache::default();
        hints.note(&SetIndices::from([("one", 1)]));
        hints.note(&SetIndices::from([("one", 2)]));
        assert_eq!(hints.of("one"), Some(2));
    }
}
