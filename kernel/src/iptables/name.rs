//! Names that stand in rule text as they are, so they are checked once: a blank or a quote in one would be another rule.

use std::fmt;

/// The tables that packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    Raw,
    Mangle,
    Nat,
    Filter,
}

impl Table {
    pub const ALL: [Self; 4] = [Self::Raw, Self::Mangle, Self::Nat, Self::Filter];

    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mangle => "mangle",
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The chains that the kernel itself calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl Hook {
    pub const ALL: [Self; 5] = [
        Self::Prerouting,
        Self::Input,
        Self::Forward,
        Self::Output,
        Self::Postrouting,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

/// A name that iptables would not take, or would take for something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" cannot be the name of {what}: {accepted} are accepted")]
pub struct NameError {
    what: &'static str,
    name: String,
    accepted: &'static str,
}

/// A chain of ours: neither a hook nor the name of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainName(String);

impl ChainName {
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        const VERDICTS: [&str; 4] = ["ACCEPT", "DROP", "RETURN", "QUEUE"];
        let name = name.into();
        let taken = VERDICTS.contains(&name.as_str()) || Hook::ALL.iter().any(|hook| hook.name() == name);
        if is_word(&name, 28) && !taken {
            return Ok(Self(name));
        }
        let accepted = "1 to 28 letters, digits and -_.: that begin with a letter or digit and are no hook and no verdict";
        Err(NameError {
            what: "a chain",
            name,
            accepted,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An interface. The name is exact: a trailing `+`, which iptables takes for "and all that begin so", is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceName(String);

impl InterfaceName {
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if is_word(&name, 15) {
            return Ok(Self(name));
        }
        let accepted = "1 to 15 letters, digits and -_.: that begin with a letter or digit";
        Err(NameError {
            what: "an interface in a rule",
            name,
            accepted,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The interfaces of a rule: one by its exact name, or with a `+` at the end all whose names begin so. A `+` alone, which
/// would be all there are, is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfacePattern(String);

impl InterfacePattern {
    pub fn new(pattern: impl Into<String>) -> Result<Self, NameError> {
        let pattern = pattern.into();
        if is_word(pattern.strip_suffix('+').unwrap_or(&pattern), 15) && pattern.len() <= 15 {
            return Ok(Self(pattern));
        }
        let accepted = "1 to 15 letters, digits and -_.: that begin with a letter or digit, the last of several may be +,";
        Err(NameError {
            what: "interfaces in a rule",
            name: pattern,
            accepted,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the interface of this name is one of them.
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('+') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.0,
        }
    }
}

impl From<InterfaceName> for InterfacePattern {
    fn from(name: InterfaceName) -> Self {
        Self(name.0)
    }
}

/// A set that a rule refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetName(String);

impl From<SetName> for String {
    fn from(name: SetName) -> Self {
        name.0
    }
}

impl SetName {
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if is_word(&name, 31) {
            return Ok(Self(name));
        }
        let accepted = "1 to 31 letters, digits and -_.: that begin with a letter or digit";
        Err(NameError {
            what: "a set in a rule",
            name,
            accepted,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_word(name: &str, longest: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    name.len() <= longest
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(plain)
}

/// Where a rule stands: in a hook's chain or in one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainRef {
    Hook(Hook),
    Chain(ChainName),
}

impl ChainRef {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Hook(hook) => hook.name(),
            Self::Chain(chain) => chain.as_str(),
        }
    }
}

impl From<Hook> for ChainRef {
    fn from(hook: Hook) -> Self {
        Self::Hook(hook)
    }
}

impl From<&ChainName> for ChainRef {
    fn from(chain: &ChainName) -> Self {
        Self::Chain(chain.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_change_the_rule_is_refused() {
        for name in [
            "",
            "a b",
            "a\"",
            "-x",
            "!x",
            "a\n-F",
            "DROP",
            "INPUT",
            &"x".repeat(29),
            "é",
        ] {
            assert!(ChainName::new(name).is_err(), "{name:?}");
        }
        for name in ["", "veth+", "a b", "!lo", &"x".repeat(16)] {
            assert!(InterfaceName::new(name).is_err(), "{name:?}");
        }
        for name in ["", "a,b", "a b", &"x".repeat(32)] {
            assert!(SetName::new(name).is_err(), "{name:?}");
        }
        for pattern in ["", "+", "ca+li", "cali++", "-+", "a b+", "cali0123456789a+"] {
            assert!(InterfacePattern::new(pattern).is_err(), "{pattern:?}");
        }
        assert!(ChainName::new("x".repeat(28)).is_ok());
        assert!(InterfaceName::new("cali0123456789a").is_ok() && InterfaceName::new("eth0.100").is_ok());
    }

    #[test]
    fn a_pattern_is_a_name_or_all_that_begin_so() {
        for (pattern, name, matches) in [
            ("cali+", "cali0a1b", true),
            ("cali+", "cali", true),
            ("cali+", "cal", false),
            ("cni0", "cni0", true),
            ("cni0", "cni01", false),
        ] {
            let of = InterfacePattern::new(pattern).unwrap();
            assert_eq!(of.matches(name), matches, "{pattern} {name}");
        }
    }
}
