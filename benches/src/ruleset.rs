//! Whose rules are measured.

use std::str::FromStr;

use egret_kernel::iptables::Flavour;

/// A backend with the kernel's packet filter; of `netfilter` both flavours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruleset {
    /// Rules of iptables, sets of ipset.
    Netfilter(Flavour),
    /// One native table.
    Nftables,
    /// Programs at the pods' cgroups.
    Ebpf,
    /// iptables (nft), with programs in front.
    Both,
}

impl Ruleset {
    /// All that are packet filters alone.
    pub const ALL: [Self; 3] = [
        Self::Netfilter(Flavour::Legacy),
        Self::Netfilter(Flavour::Nft),
        Self::Nftables,
    ];

    /// As tables call it: `nft` is iptables with that flavour.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Netfilter(flavour) => flavour.name(),
            Self::Nftables => "nftables",
            Self::Ebpf => "ebpf",
            Self::Both => "both",
        }
    }

    /// What chooses it, as options of the enforcer.
    #[must_use]
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Netfilter(Flavour::Legacy) => &["--iptables", "legacy"],
            Self::Netfilter(Flavour::Nft) => &["--iptables", "nft"],
            Self::Both => &["--iptables", "nft"],
            Self::Nftables | Self::Ebpf => &[],
        }
    }

    /// The value of `--backend`.
    #[must_use]
    pub const fn backend(self) -> &'static str {
        match self {
            Self::Netfilter(_) => "netfilter",
            Self::Nftables => "nftables",
            Self::Ebpf => "ebpf",
            Self::Both => "both",
        }
    }

    /// Whether programs judge the sockets of pods, which are in cgroups then.
    #[must_use]
    pub const fn judges_sockets(self) -> bool {
        matches!(self, Self::Ebpf | Self::Both)
    }
}

impl FromStr for Ruleset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|ruleset| ruleset.name() == text);
        found.ok_or_else(|| format!("{text}: want legacy, nft or nftables"))
    }
}
