//! What a world may leave behind, and what it may change in the machine's own namespace.
//!
//! A test process that is killed leaves its pins, folders and cgroups; the next world sweeps them, by the pid in their
//! names. Its processes have died with it.

use std::{collections::BTreeSet, env, fs, io, path::Path, process::Command};

use crate::{
    cgroup::cgroup2_root,
    netns::{PINS, WORLD_VARIABLE, unpin},
};

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
    let pins = entries(PINS).into_iter().filter(|name| name.starts_with(&prefix));
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

/// The file system of BPF is the machine's, not a namespace's.
pub(crate) const BPF_PINS: &str = "/sys/fs/bpf";

/// Removes what killed test processes left.
pub(crate) fn sweep_dead_worlds() {
    sweep(PINS, "eg", unpin);
    sweep(BPF_PINS, "eg", |folder| fs::remove_dir_all(folder));
    sweep(env::temp_dir(), "eg", |folder| fs::remove_dir_all(folder));
    if let Ok(root) = cgroup2_root() {
        sweep(root, "egret-test", remove_cgroup);
    }
}

fn sweep(folder: impl AsRef<Path>, prefix: &str, remove: impl Fn(&Path) -> io::Result<()>) {
    let left = entries(&folder)
        .into_iter()
        .filter(|name| is_of_a_dead_process(name, prefix));
    for path in left.map(|name| folder.as_ref().join(name)) {
        if let Err(error) = remove(&path) {
            eprintln!("{}: {error}", path.display());
        }
    }
}

/// `<prefix>-<pid>-<n>`, with the role of a namespace after it or not, of a process that is gone.
fn is_of_a_dead_process(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
    let mut parts = rest.unwrap_or_default().splitn(3, '-');
    let pid = parts.next().and_then(|pid| pid.parse::<u32>().ok());
    let number = parts.next().and_then(|number| number.parse::<u32>().ok());
    let ours = parts
        .next()
        .is_none_or(|role| role == "node" || role == "upstream" || role.starts_with("pod-"));
    match (pid, number) {
        (Some(pid), Some(_)) => ours && !Path::new("/proc").join(pid.to_string()).exists(),
        (None, _) | (_, None) => false,
    }
}

/// A cgroup goes by `rmdir`, its children first; its files go with it.
fn remove_cgroup(group: &Path) -> io::Result<()> {
    for child in fs::read_dir(group)?.flatten() {
        if child.file_type()?.is_dir() {
            remove_cgroup(&child.path())?;
        }
    }
    fs::remove_dir(group)
}

/// Whether the process was started by this world, directly or not: it has inherited the world's name.
fn belongs_to(pid: &str, world: &str) -> bool {
    let wanted = format!("{WORLD_VARIABLE}={world}");
    let environment = fs::read(Path::new("/proc").join(pid).join("environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == wanted.as_bytes())
}

fn entries(folder: impl AsRef<Path>) -> BTreeSet<String> {
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

#[cfg(test)]
mod tests {
    use super::is_of_a_dead_process;

    #[test]
    fn only_leftovers_of_dead_worlds_are_removed() {
        let own = std::process::id();
        for (name, prefix, swept) in [
            ("eg-4294967295-0-node", "eg", true),
            ("eg-4294967295-3-pod-client", "eg", true),
            ("eg-4294967295-0", "eg", true),
            ("egret-test-4294967295-0", "egret-test", true),
            ("egret-test-4294967295-0", "eg", false),
            (&*format!("eg-{own}-0-node"), "eg", false),
            ("eg-4294967295-x-node", "eg", false),
            ("eg-4294967295-0-mine", "eg", false),
            ("eg-4294967295", "eg", false),
            ("production", "eg", false),
        ] {
            assert_eq!(is_of_a_dead_process(name, prefix), swept, "{name}");
        }
    }
}
