//! Which of the two iptables this host uses. Rules of both are evaluated, but whoever reads one does not see the other:
//! a node agent must write where the kubelet and kube-proxy do.

use super::legacy::TableEntries;
use super::{Error, Table, parse, run};
use crate::{Family, nftables};
use std::io;
use std::str::FromStr;

/// The two programs that bear the name iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// Rules kept in `nf_tables`.
    Nft,
    /// Rules kept in `x_tables`.
    Legacy,
}

/// A flavour, and why that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detection {
    pub flavour: Flavour,
    pub evidence: DetectionReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectionReason {
    /// It holds `KUBE-IPTABLES-HINT` or `KUBE-KUBELET-CANARY`.
    KubernetesHint,
    /// It holds more rules than the other.
    MoreRules,
    /// Neither says anything; it is what `iptables` runs here.
    DefaultProgram,
    /// Its programs are the only ones here.
    OnlyOneInstalled,
}

/// Chains that the kubelet keeps in the mangle table, for others to find its flavour by (kubernetes KEP 3178).
const HINT_TABLE: Table = Table::Mangle;
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

impl Flavour {
    pub const BOTH: [Self; 2] = [Self::Nft, Self::Legacy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }

    /// Decides as the iptables wrappers of Kubernetes images do: by the kubelet's hint (nft asked first), else by
    /// the number of rules, else by what `iptables` is. Rules in chains that are `own` do not count: they are where
    /// whoever asks once was, not where others are. Creates no table in either flavour.
    pub fn detect(own: fn(&str) -> bool) -> Result<Detection, Error> {
        let nft = Self::Nft.holdings(own)?;
        let legacy = Self::Legacy.holdings(own)?;
        let default = || {
            if default_is_legacy() {
                Self::Legacy
            } else {
                Self::Nft
            }
        };
        decide(nft, legacy, default).ok_or(Error::NoPrograms)
    }

    /// The flavour that the kubelet's hint is in (nft asked first); none without a hint. Starts no process.
    pub fn hinted() -> io::Result<Option<Self>> {
        for flavour in Self::BOTH {
            for family in Family::ALL {
                if flavour.has_any_chain(family, HINT_TABLE, &HINTS)? {
                    return Ok(Some(flavour));
                }
            }
        }
        Ok(None)
    }

    /// Whether a table of this flavour has one of these chains. Starts no process, and makes no table.
    pub fn has_any_chain(self, family: Family, table: Table, chains: &[&str]) -> io::Result<bool> {
        match self {
            Self::Nft => nftables::has_any_chain(family, table.name(), chains).map_err(io::Error::other),
            Self::Legacy => {
                let entries = TableEntries::read(family, table)?;
                let has = |entries: TableEntries| chains.iter().any(|chain| entries.has_chain(chain));
                Ok(entries.is_some_and(has))
            }
        }
    }

    pub(super) fn program(self, family: Family, verb: &str) -> String {
        format!("{}-{verb}", self.single_program(family))
    }

    /// The one that lists and changes single rules.
    pub(super) fn single_program(self, family: Family) -> String {
        let tables = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{tables}-{}", self.name())
    }

    /// What both families hold together; `None` if the program is not there.
    ///
    /// Without `-t` only tables that exist are listed; with it, the legacy program would create the table it is asked for.
    fn holdings(self, own: fn(&str) -> bool) -> Result<Option<FlavourContents>, Error> {
        let mut sum = None;
        for family in Family::ALL {
            match run(&self.program(family, "save"), &[], "") {
                // A table that nft programs made unreadable is reported by a failure behind what is readable: still a count.
                Ok(output) => {
                    sum = Some(
                        sum.unwrap_or_default()
                            + FlavourContents::of(&String::from_utf8_lossy(&output.stdout), own),
                    );
                }
                Err(Error::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }
}

impl FromStr for Flavour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::BOTH.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| format!("\"{text}\" is not a flavour of iptables: nft or legacy is accepted"))
    }
}

fn decide(
    nft: Option<FlavourContents>,
    legacy: Option<FlavourContents>,
    default: impl FnOnce() -> Flavour,
) -> Option<Detection> {
    let (flavour, evidence) = match (nft, legacy) {
        (None, None) => return None,
        (Some(_), None) => (Flavour::Nft, DetectionReason::OnlyOneInstalled),
        (None, Some(_)) => (Flavour::Legacy, DetectionReason::OnlyOneInstalled),
        (Some(nft), Some(_)) if nft.has_hint => (Flavour::Nft, DetectionReason::KubernetesHint),
        (Some(_), Some(legacy)) if legacy.has_hint => (Flavour::Legacy, DetectionReason::KubernetesHint),
        (Some(nft), Some(legacy)) if nft.rules > legacy.rules => (Flavour::Nft, DetectionReason::MoreRules),
        (Some(nft), Some(legacy)) if nft.rules < legacy.rules => {
            (Flavour::Legacy, DetectionReason::MoreRules)
        }
        (Some(_), Some(_)) => (default(), DetectionReason::DefaultProgram),
    };
    Some(Detection { flavour, evidence })
}

fn default_is_legacy() -> bool {
    run("iptables", &["--version"], "")
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("legacy"))
}

/// What a flavour holds, as far as the decision goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlavourContents {
    has_hint: bool,
    rules: usize,
}

impl FlavourContents {
    fn of(listing: &str, own: fn(&str) -> bool) -> Self {
        let tables = parse(listing);
        let hint = |table: &super::TableListing| {
            table.name == HINT_TABLE.name()
                && table
                    .chains
                    .iter()
                    .any(|chain| HINTS.contains(&chain.name.as_str()))
        };
        let rules = tables
            .iter()
            .flat_map(|table| &table.chains)
            .filter(|chain| !own(&chain.name))
            .map(|chain| chain.rules.len())
            .sum();
        Self {
            has_hint: tables.iter().any(hint),
            rules,
        }
    }
}

impl std::ops::Add for FlavourContents {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            has_hint: self.has_hint || other.has_hint,
            rules: self.rules + other.rules,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flavour_with_the_hint_wins_then_the_one_with_more_rules_then_the_default() {
        let holds = |has_hint, rules| Some(FlavourContents { has_hint, rules });
        let cases = [
            (
                holds(true, 0),
                holds(false, 100),
                Flavour::Nft,
                DetectionReason::KubernetesHint,
            ),
            (
                holds(false, 100),
                holds(true, 0),
                Flavour::Legacy,
                DetectionReason::KubernetesHint,
            ),
            (
                holds(true, 0),
                holds(true, 9),
                Flavour::Nft,
                DetectionReason::KubernetesHint,
            ),
            (
                holds(false, 2),
                holds(false, 1),
                Flavour::Nft,
                DetectionReason::MoreRules,
            ),
            (
                holds(false, 1),
                holds(false, 2),
                Flavour::Legacy,
                DetectionReason::MoreRules,
            ),
            (
                holds(false, 1),
                holds(false, 1),
                Flavour::Legacy,
                DetectionReason::DefaultProgram,
            ),
            (
                None,
                holds(false, 0),
                Flavour::Legacy,
                DetectionReason::OnlyOneInstalled,
            ),
            (
                holds(false, 0),
                None,
                Flavour::Nft,
                DetectionReason::OnlyOneInstalled,
            ),
        ];
        for (nft, legacy, flavour, evidence) in cases {
            assert_eq!(
                decide(nft, legacy, || Flavour::Legacy),
                Some(Detection { flavour, evidence }),
                "{nft:?} {legacy:?}"
            );
        }
        assert_eq!(decide(None, None, || Flavour::Nft), None);
    }

    #[test]
    fn a_hint_counts_in_the_mangle_table_only() {
        let hint = |table| format!("*{table}\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n");
        assert!(FlavourContents::of(&hint("mangle"), |_| false).has_hint);
        assert!(!FlavourContents::of(&hint("filter"), |_| false).has_hint);
    }

    #[test]
    fn rules_of_ones_own_say_nothing_about_others() {
        let listing = "*filter\n:MINE - [0:0]\n:THEIRS - [0:0]\n-A MINE -j DROP\n-A THEIRS -j DROP\nCOMMIT\n";
        assert_eq!(FlavourContents::of(listing, |chain| chain == "MINE").rules, 1);
    }

    #[test]
    fn only_the_two_names_are_flavours() {
        assert_eq!("nft".parse(), Ok(Flavour::Nft));
        assert!("NFT".parse::<Flavour>().is_err() && "".parse::<Flavour>().is_err());
    }
}
