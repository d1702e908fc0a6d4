//! The enforcer's other backends. What they write is in the kernel when the chart is uninstalled.

use std::path::Path;

use super::{
    Failure,
    objects::{ALLOWED, REFUSED},
    story::{Story, WORKLOADS, all_say},
};

/// Where cgroups of the second version are beside those of the first.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// Each node has chosen nftables by then.
pub(super) fn netfilter(story: &mut Story<'_>) -> Result<(), Failure> {
    change(story, "netfilter", "", &["ipset", "list", "-n"])?;
    story.step(
        "The allowed name is reached, the other one is refused",
        |kubectl| Ok(all_say(kubectl, ALLOWED, "hello")? && all_say(kubectl, REFUSED, "refused")?),
    )
}

/// Without a policy.
pub(super) fn ebpf(story: &mut Story<'_>) -> Result<(), Failure> {
    let cgroups = format!(" --set enforcer.extraArgs={{--cgroup-root={UNIFIED}}}");
    let cgroups = if Path::new(UNIFIED).exists() {
        &*cgroups
    } else {
        ""
    };
    change(story, "ebpf", cgroups, &["find", "/sys/fs/bpf", "-name", "egret"])
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
