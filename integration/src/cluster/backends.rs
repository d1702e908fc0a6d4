//! The enforcer's other backends. What they write is in the kernel when the chart is uninstalled.

use std::path::Path;

use super::{
    Failure,
    objects::{ALLOWED, REFUSED, new_pod},
    plugin,
    story::{Story, WORKLOADS, all_say},
};

/// Where cgroups of the second version are beside those of the first.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// What keeps programs, links and maps of BPF in the kernel: pins of Egret's, and descriptors of processes.
const BPF_OBJECTS: &str = r"
find /sys/fs/bpf/egret -type f 2>/dev/null
find /proc/[0-9]*/fd -lname 'anon_inode:bpf*' 2>/dev/null
true
";

/// Each node has chosen nftables by then.
pub(super) fn netfilter(story: &mut Story<'_>) -> Result<(), Failure> {
    change(story, "netfilter", "", &["ipset", "list", "-n"])?;
    judges(story)
}

/// The pinned programs of `ebpf` judge on, by the policies of that time, until the next backend removes them.
pub(super) fn ebpf_and_back(story: &mut Story<'_>) -> Result<(), Failure> {
    ebpf(story)?;
    judges(story)?;
    let there = bpf_objects(story)?;
    story.conclude(
        there.iter().all(|objects| *objects > 0),
        &format!("its programs, links and maps have {there:?} pins and descriptors on the nodes"),
    );
    change(story, "nftables", "", &["nft", "list", "tables"])?;
    judges(story)?;
    let left = bpf_objects(story)?;
    story.conclude(
        left.iter().all(|objects| *objects == 0),
        &format!("of ebpf's programs, links and maps are left: {left:?} pins and descriptors"),
    );
    let network = story.cluster.network;
    story.kubectl.apply(&new_pod("after-ebpf", "node-1", network))?;
    story.step(
        "A new pod has a network, and is judged by the policy",
        |kubectl| plugin::says_all(kubectl, "after-ebpf", network),
    )
}

pub(super) fn ebpf(story: &mut Story<'_>) -> Result<(), Failure> {
    let cgroups = format!(" --set enforcer.extraArgs={{--cgroup-root={UNIFIED}}}");
    let cgroups = if Path::new(UNIFIED).exists() {
        &*cgroups
    } else {
        ""
    };
    change(story, "ebpf", cgroups, &["find", "/sys/fs/bpf", "-name", "egret"])
}

fn judges(story: &mut Story<'_>) -> Result<(), Failure> {
    let network = story.cluster.network;
    story.step(
        "The allowed name is reached, the other one is refused",
        |kubectl| {
            Ok(
                all_say(kubectl, network, ALLOWED, "hello")?
                    && all_say(kubectl, network, REFUSED, "refused")?,
            )
        },
    )
}

/// [`BPF_OBJECTS`] of each node.
fn bpf_objects(story: &Story<'_>) -> Result<Vec<usize>, Failure> {
    let of_node = |node: &super::Node| Ok(node.machine().run(&["sh", "-c", BPF_OBJECTS])?.lines().count());
    story.cluster.nodes.iter().map(of_node).collect()
}

/// `look` shows on a node that the backend is at work.
fn change(story: &mut Story<'_>, backend: &str, values: &str, look: &[&str]) -> Result<(), Failure> {
    story.screen.heading(&format!("The backend {backend}"));
    story.helm(&format!(
        "upgrade egret deploy/helm/egret --namespace kube-system --reuse-values --set enforcer.backend={backend}{values}"
    ))?;
    story.roll_out(&WORKLOADS)?;
    let said = story.cluster.nodes[0].machine().run(look)?;
    let own = said.lines().find(|line| line.contains("egret"));
    story.conclude(
        own.is_some(),
        &format!(
            "node-1$ {}: {}",
            look.join(" "),
            own.unwrap_or("nothing of Egret's")
        ),
    );
    Ok(())
}
