//! What a world could leave behind, and what it could change in the machine's own namespace.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use crate::{cgroup::cgroup2_root, netns::WORLD_VARIABLE};

/// The machine's own namespace, as far as a test could spoil it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    parts: Vec<(&'static str, String)>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let parts = vec![
            ("links", first_fields("/proc/net/dev")),
            ("IPv4 routes", file("/proc/net/route")),
            ("IPv6 addresses", file("/proc/net/if_inet6")),
            ("IPv4 forwarding", file("/proc/sys/net/ipv4/ip_forward")),
            ("IPv6 forwarding", file("/proc/sys/net/ipv6/conf/all/forwarding")),
            ("iptables tables", file("/proc/net/ip_tables_names")),
            ("nftables", nftables()),
        ];
        Self { parts }
    }

    /// What is different now, in words.
    pub(crate) fn differences(&self, now: &Self) -> Vec<String> {
        let pairs = self
            .parts
            .iter()
            .zip(&now.parts)
            .filter(|(before, after)| before != after);
        pairs
            .map(|((what, before), (_, after))| format!("{what} changed:\n{before}\nis now\n{after}"))
            .collect()
    }
}

/// The namespaces, mounts, processes and cgroups that still carry the name of a world.
pub fn of_world(world: &str) -> Vec<String> {
    let prefix = format!("{world}-");
    let pins = entries("/run/netns")
        .into_iter()
        .filter(|name| name.starts_with(&prefix));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts
        .lines()
        .filter(|line| line.contains(&prefix))
        .map(str::to_owned)
        .collect::<Vec<_>>();
    let processes = entries("/proc").into_iter().filter(|pid| belongs_to(pid, world));
    let cgroup = world.replacen("eg-", "egret-test-", 1);
    let cgroups = cgroup2_root()
        .map(|root| root.join(cgroup))
        .ok()
        .filter(|path| path.exists());
    pins.map(|name| format!("namespace {name}"))
        .chain(mounts.into_iter().map(|line| format!("mount {line}")))
        .chain(processes.map(|pid| format!("process {pid}")))
        .chain(cgroups.map(|path| format!("cgroup {}", path.display())))
        .collect()
}

/// Whether the process was started by this world, directly or not: it has inherited the world's name.
fn belongs_to(pid: &str, world: &str) -> bool {
    let wanted = format!("{WORLD_VARIABLE}={world}");
    let environment = fs::read(Path::new("/proc").join(pid).join("environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == wanted.as_bytes())
}

fn entries(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn first_fields(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Stateless: without the counters, which go on counting.
fn nftables() -> String {
    let listed = Command::new("nft").args(["-s", "list", "ruleset"]).output();
    listed
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default()
}
