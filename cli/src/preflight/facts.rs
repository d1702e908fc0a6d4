//! What is on a node, as its kernel and its iptables say it. Nothing is changed, and no kernel module is loaded.

use std::fs;
use std::io;
use std::process::Command;

/// The programs that list rules, by flavour, IPv4 first.
const LISTERS: [(Flavour, [&str; 2]); 2] = [
    (Flavour::Nft, ["iptables-nft-save", "ip6tables-nft-save"]),
    (Flavour::Legacy, ["iptables-legacy-save", "ip6tables-legacy-save"]),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    Nft,
    Legacy,
}

impl Flavour {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

/// Something that may not be seen by whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    Found(T),
    /// Why not.
    Unknown(String),
}

/// The rules of one flavour, of both families, a line each; None where its programs are not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) flavour: Flavour,
    pub(super) lines: Seen<Option<Vec<String>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) release: String,
    pub(super) rules: Vec<Rules>,
    /// Names of tables of nf_tables, such as `ip kube-proxy`; unknown where `nft` is not installed or not allowed.
    pub(super) nft_tables: Seen<Vec<String>>,
    pub(super) interfaces: Vec<String>,
    /// Interfaces that are bridges with ports.
    pub(super) bridges: Vec<String>,
    pub(super) has_ipvs: bool,
    /// `net.bridge.bridge-nf-call-iptables`; none where `br_netfilter` is not loaded.
    pub(super) bridge_netfilter: Option<bool>,
    pub(super) has_cgroup2: bool,
    pub(super) has_btf: bool,
    pub(super) has_bpffs: bool,
    pub(super) has_ipset: bool,
    pub(super) has_nf_tables: bool,
}

impl Facts {
    /// Of the node in whose namespaces this runs.
    pub(super) fn read() -> Self {
        let release = word("/proc/sys/kernel/osrelease");
        Self {
            rules: LISTERS
                .iter()
                .map(|(flavour, programs)| Rules {
                    flavour: *flavour,
                    lines: listed(programs),
                })
                .collect(),
            nft_tables: nft_tables(),
            bridges: bridges(),
            interfaces: interfaces(),
            has_ipvs: exists("/proc/net/ip_vs"),
            bridge_netfilter: fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables")
                .ok()
                .map(|value| value.trim() == "1"),
            has_cgroup2: exists("/sys/fs/cgroup/cgroup.controllers"),
            has_btf: exists("/sys/kernel/btf/vmlinux"),
            has_bpffs: fs::read_to_string("/proc/self/mounts")
                .is_ok_and(|mounts| mounts.lines().any(|line| line.contains(" /sys/fs/bpf bpf "))),
            has_ipset: has_module(&release, "ip_set", "ip_set_net_init"),
            has_nf_tables: has_module(&release, "nf_tables", "nf_tables_init_net"),
            release,
        }
    }
}

/// Each program is asked by its own name: what `iptables` means on this machine is not what a container sees.
fn listed(programs: &[&str; 2]) -> Seen<Option<Vec<String>>> {
    let mut lines = Vec::new();
    for program in programs {
        match Command::new(program).output() {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout);
                lines.extend(text.lines().map(ToOwned::to_owned));
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                return Seen::Unknown(format!("{program}: {}", said.trim()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Seen::Found(None),
            Err(error) => return Seen::Unknown(format!("{program}: {error}")),
        }
    }
    Seen::Found(Some(lines))
}

fn nft_tables() -> Seen<Vec<String>> {
    match Command::new("nft").args(["list", "tables"]).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let tables = text.lines().filter_map(|line| line.strip_prefix("table "));
            Seen::Found(tables.map(ToOwned::to_owned).collect())
        }
        Ok(output) => Seen::Unknown(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Seen::Unknown(format!("nft: {error}")),
    }
}

/// Loaded, among the modules of this kernel, or built in: then it is known by a function of it.
fn has_module(release: &str, name: &str, symbol: &str) -> bool {
    exists(&format!("/sys/module/{name}"))
        || ["modules.builtin", "modules.dep"].iter().any(|list| {
            fs::read_to_string(format!("/lib/modules/{release}/{list}"))
                .is_ok_and(|text| text.contains(&format!("/{name}.ko")))
        })
        || fs::read_to_string("/proc/kallsyms").is_ok_and(|symbols| {
            symbols
                .lines()
                .any(|line| line.split_whitespace().nth(2) == Some(symbol))
        })
}

fn exists(path: &str) -> bool {
    fs::exists(path).unwrap_or(false)
}

fn word(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|error| error.to_string(), |text| text.trim().to_owned())
}

/// `/sys/class/net` is that of whoever mounted it, which need not be this network namespace.
fn interfaces() -> Vec<String> {
    let listed = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Those that have ports; none where iproute2 is not installed.
fn bridges() -> Vec<String> {
    let ports = Command::new("ip")
        .args(["-o", "link", "show", "type", "bridge_slave"])
        .output();
    let Ok(ports) = ports else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&ports.stdout);
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split(" master ").nth(1)?.split_whitespace().next())
        .map(ToOwned::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}
