//! Names of our chains and sets. What is ours is known by its name alone, after a crash and by `cleanup`; so
//! the whole shape of a name counts, not only a prefix that dnsd's own chains and sets may share.

use egret_kernel::Family;
use egret_kernel::iptables::{ChainName, SetName, Table};
use egret_kernel::nftables::{TableFamily, TableName};
use egret_policies::rules::{Digest, Direction, SetId, SetKind, Tier};
use egret_shared::pod::PodKey;
use ipnet::IpNet;

/// The table of the backend `nftables`.
pub const NFTABLES: TableName = TableName {
    family: TableFamily::Inet,
    name: "egret",
};

/// … and where ports of bridges are looked at.
pub const NFTABLES_BRIDGE: TableName = TableName {
    family: TableFamily::Bridge,
    name: "egret",
};

/// Every chain of ours begins so.
pub const CHAIN_PREFIX: &str = "EGRET-";
/// … and so every denial chain,
const DENIAL_PREFIX: &str = "EGRET-D-";
/// … or why one would be if policies in audit were in force: as long as the other.
const AUDIT_DENIAL_PREFIX: &str = "EGRET-W-";
/// … and so every chain of denials that pods have in common.
const SHARED_DENIALS_PREFIX: &str = "EGRET-S-";
/// Every set of ours ends so, but for its family. The kernel finds a set by comparing its name with that of each one before it, letter
/// by letter: so they differ from the first letter on.
const SET_SUFFIX: &str = "-egret";
/// … and so every preallocated set.
const PREALLOCATED_SUFFIX: &str = "-egret-room";
/// Kinds of sets that share sets of the backend `nftables`, as their names say them.
const SHARED_KINDS: [(&str, SetKind); 3] = [
    ("addresses", SetKind::Addresses),
    ("ports", SetKind::AddressPorts),
    ("records", SetKind::Records),
];
/// What stands behind the name of a set where that is put into a larger table.
const RESIZED_SUFFIX: &str = "-wider";

/// The most lists of one tier that have chains of their own; with more the last two loop, which the kernel
/// refuses.
pub const MAX_LISTS: usize = 4096;

/// What all chains of a pod have in common: 16 letters of its namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodChains(Digest);

impl PodChains {
    /// The chains of a pod.
    #[must_use]
    pub fn of(pod: &PodKey) -> Self {
        Self(Digest::of(&format!("pod {pod}")))
    }

    /// The chains of the node's own rules, which are called as those of a pod are.
    #[must_use]
    pub fn of_node() -> Self {
        Self(Digest::of("node"))
    }

    /// Where the dispatch jumps to.
    #[must_use]
    pub fn entry(self, direction: Direction) -> ChainName {
        self.chain(direction, "")
    }

    /// The rules of a tier behind the first; the place counts the lists of one tier.
    #[must_use]
    pub fn tier(self, direction: Direction, tier: Tier, place: usize) -> ChainName {
        self.chain(direction, &part(number(tier), place))
    }

    /// In the place of `tier` where names are asked as well ([`egret_policies::rules::Names`]).
    #[must_use]
    pub fn tier_with_names(self, direction: Direction, tier: Tier, place: usize) -> ChainName {
        self.chain(direction, &part(number_with_names(tier), place))
    }

    /// What a list says about some ports; the place counts such chains of a direction.
    #[must_use]
    pub fn ports(self, direction: Direction, place: usize) -> ChainName {
        self.chain(direction, &format!("P{:03x}", place.min(MAX_LISTS - 1)))
    }

    /// What no tier decided.
    #[must_use]
    pub fn default(self, direction: Direction) -> ChainName {
        self.chain(direction, "D")
    }

    /// Judges what is related to a flow, and drops what belongs to none.
    #[must_use]
    pub fn related(self, direction: Direction) -> ChainName {
        self.chain(direction, "R")
    }

    /// Marks the flow as allowed.
    #[must_use]
    pub fn allow(self, direction: Direction) -> ChainName {
        self.chain(direction, "A")
    }

    /// Whether a chain is one of these.
    #[must_use]
    pub fn contain(self, chain: &str) -> bool {
        chain.starts_with(CHAIN_PREFIX) && chain.ends_with(self.0.as_str())
    }

    /// Where it is asked what policies in audit would do: in the place of `entry`.
    #[must_use]
    pub fn audit(self, direction: Direction) -> ChainName {
        self.audit_chain(direction, "")
    }

    /// … and in the place of `tier`.
    #[must_use]
    pub fn audit_tier(self, direction: Direction, tier: Tier, place: usize) -> ChainName {
        self.audit_chain(direction, &part(number(tier), place))
    }

    /// A small letter in the place of the capital: a prefix would make the longest names too long.
    fn audit_chain(self, direction: Direction, part: &str) -> ChainName {
        let letter = match direction {
            Direction::Egress => "e",
            Direction::Ingress => "i",
        };
        ours(&format!("{letter}{part}-{}", self.0))
    }

    fn chain(self, direction: Direction, part: &str) -> ChainName {
        let letter = match direction {
            Direction::Egress => "E",
            Direction::Ingress => "I",
        };
        ours(&format!("{letter}{part}-{}", self.0))
    }
}

const fn number(tier: Tier) -> &'static str {
    match tier {
        Tier::ClusterEgressFirewall => "0",
        Tier::Admin => "1",
        Tier::NetworkPolicy => "2",
        Tier::Baseline => "3",
    }
}

const fn number_with_names(tier: Tier) -> &'static str {
    match tier {
        Tier::ClusterEgressFirewall => "4",
        Tier::Admin => "5",
        Tier::NetworkPolicy => "6",
        Tier::Baseline => "7",
    }
}

fn part(number: &str, place: usize) -> String {
    match place {
        0 => number.to_owned(),
        // As long as a chain's name may be: 28 octets (XT_EXTENSION_MAXNAMELEN of linux/netfilter/x_tables.h).
        place => format!("{number}{:03x}", place.min(MAX_LISTS - 1)),
    }
}

/// Behind the jump from FORWARD.
#[must_use]
pub fn forward() -> ChainName {
    ours("FORWARD")
}

/// Behind the jump from INPUT.
#[must_use]
pub fn input() -> ChainName {
    ours("INPUT")
}

/// Behind the jump from OUTPUT; it is there only where it is needed.
#[must_use]
pub fn output() -> ChainName {
    ours("OUTPUT")
}

/// Finds the pod that a packet comes from.
#[must_use]
pub fn from() -> ChainName {
    ours("FROM")
}

/// Behind the jump from PREROUTING of the table `raw`: checks that what comes from a pod has an address of the pod.
#[must_use]
pub fn source() -> ChainName {
    ours("SOURCE")
}

/// The source check by address, where there are many pods.
#[must_use]
pub fn source_lookup() -> ChainName {
    ours("SOURCE-BY")
}

/// The same, about the addresses of a network.
#[must_use]
pub fn source_lookup_of(network: IpNet) -> ChainName {
    ours(&format!("SRC-{}", Digest::of(&network.to_string())))
}

/// The source check by interface: what comes here has no address of the pod behind its interface.
#[must_use]
pub fn source_interfaces() -> ChainName {
    ours("SOURCE-ASK")
}

/// Where a packet of a pod ends that has a source address which is not the pod's.
#[must_use]
pub fn spoofed() -> ChainName {
    ours("SPOOFED")
}

/// Where encapsulated packets to the node end that no policy allows.
#[must_use]
pub fn encapsulation() -> ChainName {
    ours("ENCAP")
}

/// Judges the egress of a pod behind IPVS.
#[must_use]
pub fn ipvs_egress() -> ChainName {
    ours("BEHIND")
}

/// Judges the ingress of a pod behind IPVS.
#[must_use]
pub fn ipvs_ingress() -> ChainName {
    ours("LED")
}

/// Finds the pod that a packet goes to.
#[must_use]
pub fn to() -> ChainName {
    ours("TO")
}

/// Finds the pod that a packet comes from, or goes to.
#[must_use]
pub fn pod_lookup(direction: Direction) -> ChainName {
    match direction {
        Direction::Egress => from(),
        Direction::Ingress => to(),
    }
}

/// The same, about interfaces whose names begin so.
#[must_use]
pub fn lookup_branch(direction: Direction, beginning: &str) -> ChainName {
    ours(&format!(
        "{}-{beginning}",
        match direction {
            Direction::Egress => "FROM",
            Direction::Ingress => "TO",
        }
    ))
}

/// Finds the pod by a packet's address, as a hint.
#[must_use]
pub fn address_lookup(direction: Direction) -> ChainName {
    ours(match direction {
        Direction::Egress => "BY-E",
        Direction::Ingress => "BY-I",
    })
}

/// The same, about the addresses of a network.
#[must_use]
pub fn address_lookup_of(direction: Direction, network: IpNet) -> ChainName {
    let digest = Digest::of(&network.to_string());
    ours(&match direction {
        Direction::Egress => format!("BY-E-{digest}"),
        Direction::Ingress => format!("BY-I-{digest}"),
    })
}

/// Compares all interfaces, where the hint led nowhere.
#[must_use]
pub fn interface_list(direction: Direction) -> ChainName {
    ours(match direction {
        Direction::Egress => "ASK-E",
        Direction::Ingress => "ASK-I",
    })
}

/// Packets of interfaces that are no known pod's, where interfaces are compared by prefix.
#[must_use]
pub fn unmatched(direction: Direction) -> ChainName {
    ours(match direction {
        Direction::Egress => "REST-E",
        Direction::Ingress => "REST-I",
    })
}

/// Where a packet of an unknown pod ends.
#[must_use]
pub fn unknown(direction: Direction) -> ChainName {
    ours(match direction {
        Direction::Egress => "UNKNOWN-E",
        Direction::Ingress => "UNKNOWN-I",
    })
}

/// Where a packet of a flow that is to end goes.
#[must_use]
pub fn revoked() -> ChainName {
    ours("REVOKED")
}

/// Where a refused packet ends.
#[must_use]
pub fn deny() -> ChainName {
    ours("DENY")
}

/// The denial chain of a reason: logs, then drops.
#[must_use]
pub fn denial(reason: Digest) -> ChainName {
    ours(&format!("D-{reason}"))
}

/// The denial chain of a reason of policies in audit: logs, then returns.
#[must_use]
pub fn audit_denial(reason: Digest) -> ChainName {
    ours(&format!("W-{reason}"))
}

/// Denials of the same ports, called by the digest of what they say.
#[must_use]
pub fn shared_denials(said: Digest) -> ChainName {
    ours(&format!("S-{said}"))
}

/// Whether a chain is one of these. It is of all pods whose rules say it, and it counts.
#[must_use]
pub fn is_shared_denials(name: &str) -> bool {
    name.strip_prefix(SHARED_DENIALS_PREFIX).is_some_and(is_digest)
}

/// The digest of the reason of a denial chain; none for other chains.
#[must_use]
pub fn denial_reason(name: &str) -> Option<&str> {
    let prefixes = [DENIAL_PREFIX, AUDIT_DENIAL_PREFIX].into_iter();
    let mut reasons = prefixes.filter_map(|prefix| name.strip_prefix(prefix));
    reasons.find(|reason| is_digest(reason))
}

/// Whether a chain is a denial chain of policies in audit.
#[must_use]
pub fn is_audit_denial(name: &str) -> bool {
    name.strip_prefix(AUDIT_DENIAL_PREFIX).is_some_and(is_digest)
}

/// Whether a chain is one of these. It belongs to no pod, and counts nothing.
#[must_use]
pub fn is_denial(name: &str) -> bool {
    denial_reason(name).is_some()
}

/// What rules counted that are gone, and the last generation; nothing jumps here.
#[must_use]
pub fn totals() -> ChainName {
    ours("TOTALS")
}

/// Which bridges were turned on; nothing jumps here.
#[must_use]
pub fn bridges() -> ChainName {
    ours("BRIDGES")
}

/// The set of a content in a family.
#[must_use]
pub fn set(id: SetId, family: Family) -> SetName {
    let digit = match family {
        Family::V4 => "4",
        Family::V6 => "6",
    };
    let name = [id.digest().as_str(), SET_SUFFIX, "-", digit].concat();
    SetName::new(name).expect("24 letters, digits and dashes are a name")
}

/// Whether sets of this kind share sets of the backend `nftables`.
#[must_use]
pub fn shares_a_set(kind: SetKind) -> bool {
    SHARED_KINDS.iter().any(|(_, shared)| *shared == kind)
}

/// The set of the backend `nftables` in which members of this set are, with those of others; none where it has one alone.
#[must_use]
pub fn shared_set(kind: SetKind, id: SetId, family: Family) -> Option<String> {
    let (word, _) = SHARED_KINDS.into_iter().find(|(_, shared)| *shared == kind)?;
    let digit = match family {
        Family::V4 => '4',
        Family::V6 => '6',
    };
    let letter = char::from(id.digest().letters()[0]);
    Some(format!("{letter}-{word}-{digit}"))
}

/// What sets have their members in a set of this name.
#[must_use]
pub fn shared_by(name: &str) -> Option<(SetKind, Family)> {
    let family = family_of_set(name)?;
    let (letter, kind) = name.get(..name.len() - 2)?.split_once('-')?;
    let (_, kind) = SHARED_KINDS.into_iter().find(|(word, _)| *word == kind)?;
    (letter.len() == 1).then_some((kind, family))
}

/// The inquiry marker: it exists while connections of members that went are not looked for yet.
#[must_use]
pub fn inquiry_marker() -> SetName {
    set(SetId::of_content("connections are to be looked for"), Family::V4)
}

/// A set that keeps a place in the kernel's list, and is neither filled nor named by a rule.
#[must_use]
pub fn preallocated(number: usize) -> String {
    format!("{number:04x}{PREALLOCATED_SUFFIX}")
}

/// Whether a set keeps a place in the kernel's list.
#[must_use]
pub fn is_preallocated(name: &str) -> bool {
    let number = name.strip_suffix(PREALLOCATED_SUFFIX);
    number.is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// The set into which another one is put that outgrows its table, for that moment.
pub(super) fn resized(name: &str) -> String {
    format!("{name}{RESIZED_SUFFIX}")
}

/// Whether a set is temporary: those found at a start were left by a life that was killed.
#[must_use]
pub fn is_temporary(name: &str) -> bool {
    is_preallocated(name) || name.strip_suffix(RESIZED_SUFFIX).is_some_and(is_own_set)
}

/// The family that the name of a set says.
#[must_use]
pub fn family_of_set(name: &str) -> Option<Family> {
    Family::ALL.into_iter().find(|family| match family {
        Family::V4 => name.ends_with("-4"),
        Family::V6 => name.ends_with("-6"),
    })
}

/// Whether a chain is one that all pods share; such chains count nothing.
#[must_use]
pub fn is_shared(name: &str) -> bool {
    const ALONE: [&str; 20] = [
        "FORWARD",
        "INPUT",
        "OUTPUT",
        "SOURCE",
        "SOURCE-BY",
        "SOURCE-ASK",
        "BEHIND",
        "LED",
        "FROM",
        "TO",
        "BY-E",
        "BY-I",
        "ASK-E",
        "ASK-I",
        "REST-E",
        "REST-I",
        "REVOKED",
        "DENY",
        "TOTALS",
        "BRIDGES",
    ];
    name.strip_prefix(CHAIN_PREFIX).is_some_and(|rest| {
        let is_branch = ["FROM-", "TO-", "BY-E-", "BY-I-"]
            .iter()
            .any(|branch| rest.starts_with(branch));
        is_branch || ALONE.contains(&rest) || rest.strip_prefix("SRC-").is_some_and(is_digest)
    })
}

/// The table in which a chain of ours is.
#[must_use]
pub fn table(chain: &str) -> Table {
    let is_raw = chain.strip_prefix(CHAIN_PREFIX).is_some_and(|rest| {
        ["SOURCE", "SOURCE-BY", "SOURCE-ASK", "SPOOFED"].contains(&rest) || rest.starts_with("SRC-")
    });
    if is_raw { Table::Raw } else { Table::Filter }
}

/// Whether a chain exists whatever pods and rules there are.
#[must_use]
pub fn is_independent_of_rules(name: &str) -> bool {
    is_shared(name)
        || [spoofed(), encapsulation()]
            .iter()
            .chain(&Direction::ALL.map(unknown))
            .any(|chain| name == chain.as_str())
}

/// Whether a chain is the enforcer's.
#[must_use]
pub fn is_own_chain(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(CHAIN_PREFIX) else {
        return false;
    };
    if is_independent_of_rules(name) || is_denial(name) || is_shared_denials(name) {
        return true;
    }
    let Some((part, digest)) = rest.split_once('-') else {
        return false;
    };
    let mut letters = part.chars();
    let direction = letters.next().is_some_and(|letter| "EIei".contains(letter));
    let kind = letters
        .next()
        .is_none_or(|letter| "01234567ADPR".contains(letter));
    let place = letters.as_str();
    let is_place =
        place.is_empty() || (place.len() == 3 && place.bytes().all(|digit| digit.is_ascii_hexdigit()));
    direction && kind && is_place && is_digest(digest)
}

/// Whether a set is the enforcer's.
#[must_use]
pub fn is_own_set(name: &str) -> bool {
    let named = name.strip_suffix("-4").or_else(|| name.strip_suffix("-6"));
    // The other way round they were before.
    let digest = named.and_then(|rest| {
        rest.strip_suffix(SET_SUFFIX)
            .or_else(|| rest.strip_prefix("egret-"))
    });
    digest.is_some_and(is_digest)
}

fn is_digest(text: &str) -> bool {
    text.len() == 16
        && text
            .bytes()
            .all(|letter| letter.is_ascii_lowercase() || (b'2'..=b'7').contains(&letter))
}

fn ours(rest: &str) -> ChainName {
    ChainName::new(format!("{CHAIN_PREFIX}{rest}")).expect("at most 28 letters, digits and dashes are a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_ours_only_if_its_whole_pattern_matches() {
        let pod = PodChains::of(&PodKey::new("a", "b"));
        for chain in [
            pod.entry(Direction::Ingress),
            pod.default(Direction::Egress),
            pod.ports(Direction::Egress, 3),
            pod.related(Direction::Egress),
            source_lookup(),
            source_lookup_of("10.0.0.0/29".parse().unwrap()),
            source_interfaces(),
            spoofed(),
            encapsulation(),
            revoked(),
            forward(),
            from(),
            source(),
            ipvs_egress(),
            ipvs_ingress(),
            unknown(Direction::Ingress),
            totals(),
            denial(Digest::of("why")),
            audit_denial(Digest::of("why")),
            shared_denials(Digest::of("what")),
            pod.audit(Direction::Egress),
            pod.audit_tier(Direction::Ingress, Tier::ClusterEgressFirewall, MAX_LISTS),
        ] {
            assert!(is_own_chain(chain.as_str()), "{}", chain.as_str());
        }
        assert!(is_own_set(set(SetId::of_content("x"), Family::V6).as_str()));
        for name in [
            "EGRET-DNSD",
            "EGRET-E-short",
            "EGRET-D-short",
            "EGRET-S-short",
            "EGRET-EX-aaaaaaaaaaaaaaaa",
            "EGRET-EP0-aaaaaaaaaaaaaaaa",
            "KUBE-FORWARD",
            "EGRET-UNKNOWN",
            "EGRET-UNKNOWN-x",
            "EGRET-",
        ] {
            assert!(!is_own_chain(name), "{name}");
        }
        assert!(is_own_set("egret-aaaaaaaaaaaaaaaa-4"), "as they were before");
        for (_, kind) in SHARED_KINDS {
            let name = shared_set(kind, SetId::of_content("x"), Family::V6).unwrap();
            assert_eq!(shared_by(&name), Some((kind, Family::V6)));
            assert!(!is_own_set(&name));
        }
        for name in [
            "egress",
            "records-4",
            "ab-records-4",
            "a-theirs-4",
            "a-records",
            "-4",
        ] {
            assert_eq!(shared_by(name), None, "{name}");
        }
        assert!(
            is_preallocated(&preallocated(0))
                && is_preallocated(&preallocated(8191))
                && !is_own_set(&preallocated(0))
        );
        for name in ["-egret-room", "1-egret-room", "room-egret-room", "0000-egret-4"] {
            assert!(!is_preallocated(name), "{name}");
        }
        let wider = resized("aaaaaaaaaaaaaaaa-egret-4");
        assert!(is_temporary(&wider) && is_temporary(&preallocated(0)) && !is_own_set(&wider));
        assert!(wider.len() <= 31, "the kernel's IPSET_MAXNAMELEN");
        assert!(!is_temporary("theirs-wider") && !is_temporary("aaaaaaaaaaaaaaaa-egret-4"));
        for name in [
            "egret-dnsd-alive-4",
            "egret-aaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaa-4",
            "cali-aaaaaaaaaaaaaaaa-4",
        ] {
            assert!(!is_own_set(name), "{name}");
        }
    }

    #[test]
    fn the_chains_of_a_pod_are_its_own() {
        let one = PodChains::of(&PodKey::new("a", "b"));
        let other = PodChains::of(&PodKey::new("a", "c"));
        let chain = one.tier(Direction::Egress, Tier::Baseline, 0);
        assert!(one.contain(chain.as_str()) && !other.contain(chain.as_str()));
        assert!(!one.contain(forward().as_str()));
    }
}
