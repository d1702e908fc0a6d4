//! The node: the namespace in which dnsd and the enforcer run, and through which every packet of a pod is forwarded.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use crate::{Output, WorldError, command, netns::Netns};

/// What the manifests and `--node` call it.
pub const NAME: &str = "node-1";
/// The node's own addresses, on its uplink.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 2);
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd76, 0, 0, 0, 0, 0, 0, 2);
/// Where dnsd listens: node-local addresses on `lo`, as node-local-dns has them.
pub const DNS: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);
pub const DNS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x20, 0x10);

/// rp_filter is off so that a spoofed source address is the daemons' and the rules' to refuse, not the kernel's;
/// duplicate address detection would hold every IPv6 address for a second.
const SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/forwarding", "1"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// Which half of iptables is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The node of a world.
#[derive(Debug)]
pub struct Node {
    netns: Arc<Netns>,
}

impl Node {
    pub(crate) fn create(world: &str) -> Result<Self, WorldError> {
        let netns = Netns::create(world, "node", SYSCTLS)?;
        netns.ip(&format!(
            "link set lo up\n\
             address add {DNS}/32 dev lo\n\
             address add {DNS_V6}/128 dev lo nodad\n"
        ))?;
        Ok(Self {
            netns: Arc::new(netns),
        })
    }

    /// The name of its namespace, for `ip netns exec`.
    pub fn namespace(&self) -> &str {
        self.netns.name()
    }

    pub fn addresses(&self) -> [IpAddr; 2] {
        [ADDRESS.into(), ADDRESS_V6.into()]
    }

    /// Runs a program of the host inside the node.
    pub fn run(&self, argv: &[&str]) -> Result<Output, WorldError> {
        command::run(&self.netns, argv)
    }

    /// What `ipset list` says.
    pub fn ipset_list(&self) -> Result<String, WorldError> {
        self.ask(&["ipset", "list"])
    }

    /// What `ipset save` says.
    pub fn ipset_save(&self) -> Result<String, WorldError> {
        command::list(&self.netns, &["ipset", "save"])
    }

    /// The enforcer's table of nftables, as JSON; none where there is none.
    pub fn nftables_list(&self) -> Option<String> {
        command::list(&self.netns, &["nft", "-j", "list", "table", "inet", "egret"]).ok()
    }

    /// The rules of one family, without counters.
    pub fn iptables_save(&self, family: Family) -> Result<String, WorldError> {
        let save = match family {
            Family::V4 => "iptables-save",
            Family::V6 => "ip6tables-save",
        };
        command::list(&self.netns, &[save])
    }

    /// The connections that the node tracks.
    pub fn conntrack_list(&self) -> Result<String, WorldError> {
        self.ask(&["conntrack", "-L"])
    }

    /// Writes a sysctl of the node, named by its path below /proc/sys/net.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), WorldError> {
        self.netns.sysctl(key, value)
    }

    pub(crate) fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// Runs a program of the host inside the node; anything but success is an error.
    pub fn run_well(&self, argv: &[&str]) -> Result<(), WorldError> {
        self.ask(argv).map(drop)
    }

    fn ask(&self, argv: &[&str]) -> Result<String, WorldError> {
        command::ask(&self.netns, argv)
    }
}
