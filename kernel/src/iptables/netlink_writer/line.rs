//! The lines of a batch for `iptables-restore --noflush --counters`, as far as the writer of transactions knows them.

use super::tokens::UnsupportedToken;
use crate::iptables::{Hook, Table};

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// `*filter`, `*raw`: all that follows is about that table.
    Table(Table),
    /// A chain is made, or emptied.
    Declare(&'a str),
    Append {
        place: RulePosition<'a>,
        /// Packets and octets that are to be counted already.
        counted: [u64; 2],
        rule: &'a str,
    },
    /// A rule comes to the head.
    Insert {
        place: RulePosition<'a>,
        rule: &'a str,
    },
    /// A jump to this chain is taken out of a hook, the first one of which there was no mention yet.
    DeleteJump {
        hook: Hook,
        to: &'a str,
    },
    Flush(&'a str),
    Remove(&'a str),
    Commit,
}

/// Where a rule is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RulePosition<'a> {
    Hook(Hook),
    Chain(&'a str),
}

impl<'a> RulePosition<'a> {
    pub(super) fn name(self) -> &'a str {
        match self {
            Self::Hook(hook) => hook.name(),
            Self::Chain(chain) => chain,
        }
    }

    fn read(name: &'a str) -> Result<Self, UnsupportedToken> {
        match hook(name) {
            Some(hook @ (Hook::Prerouting | Hook::Input | Hook::Forward | Hook::Output)) => {
                Ok(Self::Hook(hook))
            }
            Some(Hook::Postrouting) => Err(UnsupportedToken::word(name)),
            None => chain(name).map(Self::Chain),
        }
    }
}

impl<'a> Line<'a> {
    pub(super) fn read(line: &'a str) -> Result<Self, UnsupportedToken> {
        match line {
            "*filter" => return Ok(Self::Table(Table::Filter)),
            "*raw" => return Ok(Self::Table(Table::Raw)),
            _ => {}
        }
        if line == "COMMIT" {
            return Ok(Self::Commit);
        }
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.strip_suffix(" - [0:0]");
            let name = name.ok_or_else(|| UnsupportedToken::word(declared))?;
            return chain(name).map(Self::Declare);
        }
        let (counted, command) = match line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
            Some((counted, command)) => (counters(counted)?, command),
            None => ([0, 0], line),
        };
        let (verb, rest) = command
            .split_once(' ')
            .ok_or_else(|| UnsupportedToken::word(command))?;
        let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        if counted != [0, 0] && verb != "-A" {
            return Err(UnsupportedToken::word(line));
        }
        match (verb, rule) {
            ("-A", rule) => Ok(Self::Append {
                place: RulePosition::read(name)?,
                counted,
                rule,
            }),
            // A number in front of the rule would be where it comes.
            ("-I", rule) if !rule.starts_with(|letter: char| letter.is_ascii_digit()) => Ok(Self::Insert {
                place: RulePosition::read(name)?,
                rule,
            }),
            ("-D", rule) => match (RulePosition::read(name)?, rule.strip_prefix("-j ")) {
                (RulePosition::Hook(hook), Some(to)) => chain(to).map(|to| Self::DeleteJump { hook, to }),
                (RulePosition::Hook(_) | RulePosition::Chain(_), _) => Err(UnsupportedToken::word(line)),
            },
            ("-F", "") => chain(name).map(Self::Flush),
            ("-X", "") => chain(name).map(Self::Remove),
            (_, _) => Err(UnsupportedToken::word(line)),
        }
    }
}

/// A chain of users.
fn chain(name: &str) -> Result<&str, UnsupportedToken> {
    const VERDICTS: [&str; 4] = ["ACCEPT", "DROP", "RETURN", "QUEUE"];
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let is_chain = (1..=28).contains(&name.len()) && name.bytes().all(is_plain);
    if is_chain && hook(name).is_none() && !VERDICTS.contains(&name) {
        Ok(name)
    } else {
        Err(UnsupportedToken::word(name))
    }
}

fn hook(name: &str) -> Option<Hook> {
    Hook::ALL.into_iter().find(|hook| hook.name() == name)
}

fn counters(text: &str) -> Result<[u64; 2], UnsupportedToken> {
    let both = text
        .split_once(':')
        .and_then(|(packets, octets)| Some([packets.parse().ok()?, octets.parse().ok()?]));
    both.ok_or_else(|| UnsupportedToken::word(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_programs_read_them() {
        let rows = [
            (":A - [0:0]", Line::Declare("A")),
            (
                "-A A -j B",
                Line::Append {
                    place: RulePosition::Chain("A"),
                    counted: [0, 0],
                    rule: "-j B",
                },
            ),
            (
                "[7:9] -A FORWARD",
                Line::Append {
                    place: RulePosition::Hook(Hook::Forward),
                    counted: [7, 9],
                    rule: "",
                },
            ),
            (
                "-I INPUT -j A",
                Line::Insert {
                    place: RulePosition::Hook(Hook::Input),
                    rule: "-j A",
                },
            ),
            (
                "-D INPUT -j A",
                Line::DeleteJump {
                    hook: Hook::Input,
                    to: "A",
                },
            ),
            ("-F A", Line::Flush("A")),
            ("-X A", Line::Remove("A")),
            ("*filter", Line::Table(Table::Filter)),
            ("*raw", Line::Table(Table::Raw)),
            (
                "-I PREROUTING -j A",
                Line::Insert {
                    place: RulePosition::Hook(Hook::Prerouting),
                    rule: "-j A",
                },
            ),
        ];
        for (text, line) in rows {
            assert_eq!(Line::read(text), Ok(line), "{text}");
        }
    }

    #[test]
    fn what_is_not_ours_to_write_is_left_to_the_programs() {
        for text in [
            "*nat",
            ":INPUT ACCEPT [0:0]",
            ":INPUT - [0:0]",
            ":A - [1:0]",
            "-I INPUT 3 -j A",
            "-D INPUT -s 10.0.0.0/8 -j A",
            "-D INPUT -j DROP",
            "-D A -j B",
            "-R A 1 -j B",
            "-F INPUT",
            "-X",
            "-P INPUT DROP",
            "# remark",
            "",
            "[1:1] -I INPUT -j A",
            "[1] -A A",
            ":RETURN - [0:0]",
            "-A POSTROUTING -j A",
            "-X a/b",
        ] {
            assert!(Line::read(text).is_err(), "{text}");
        }
        let named = |length| format!("-F {}", "A".repeat(length));
        for (length, is_known) in [(0, false), (1, true), (28, true), (29, false)] {
            assert_eq!(Line::read(&named(length)).is_ok(), is_known, "{length}");
        }
    }
}
