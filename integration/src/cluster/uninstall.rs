//! What the chart leaves on a node once it was uninstalled: nothing.

use super::{
    Failure, konnectivity,
    node::Node,
    story::{Story, WORKLOADS},
};

/// Lines that each node says about itself, in order.
pub(super) struct Traces(Vec<Vec<String>>);

/// Rules, chains, sets, links, addresses, routes, settings of the network, plugins and their configuration, and what lies where Egret writes. Left out are counters, addresses that links give
/// themselves, and the table `raw` without a rule, which iptables-nft leaves wherever it was used.
const LOOK: &str = r#"
for save in iptables-nft-save ip6tables-nft-save iptables-legacy-save ip6tables-legacy-save; do
  $save 2>/dev/null | sed -e '/^#/d; /^COMMIT/d; s/\[[0-9]*:[0-9]*\]//g' -e "s/^/$save /" | grep -v ' \*raw$'
done
nft list tables | grep -v 'table ip6* raw$'
ipset list -n | sed 's/^/set /'
ip -o link | sed -E 's/^[0-9]+: //; s/[:@].*//; s/^/link /'
ip -o address | awk '{ print "address", $2, $3, $4 }'
for family in -4 -6; do ip $family rule | sed "s/^/rule $family /"; done
ip route show table all | grep -v '^local fe80:' | sed 's/ metric .*//; s/^/route /'
sysctl -a -r '^net\.(ipv[46]\.(conf\.(all|default|eth0)|ip_|vs)|bridge|netfilter)' 2>/dev/null | grep -v nf_conntrack_count
find /etc/cni/net.d /opt/cni/bin -type f -exec sha256sum {} +
find /run/egret /var/lib/egret /sys/fs/bpf -mindepth 1 2>/dev/null
true
"#;

impl Traces {
    pub(super) fn of(nodes: &[Node]) -> Result<Self, Failure> {
        let of_node = |node: &Node| -> Result<Vec<String>, Failure> {
            let said = node.machine().run(&["sh", "-c", LOOK])?;
            let mut lines = said
                .lines()
                .map(str::trim_end)
                .map(str::to_owned)
                .collect::<Vec<_>>();
            lines.sort_unstable();
            lines.dedup();
            Ok(lines)
        };
        Ok(Self(nodes.iter().map(of_node).collect::<Result<_, _>>()?))
    }

    /// What is there now and was not, and the other way round.
    fn differences(&self, now: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (number, (before, now)) in self.0.iter().zip(&now.0).enumerate() {
            let node = number + 1;
            let only = |of: &[String], other: &[String], sign: &str| {
                of.iter()
                    .filter(|line| !other.contains(line))
                    .map(|line| format!("node-{node} {sign} {line}"))
                    .collect::<Vec<_>>()
            };
            found.extend(only(now, before, "+"));
            found.extend(only(before, now, "-"));
        }
        found
    }

    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

pub(super) fn play(story: &mut Story<'_>, before: &Traces) -> Result<(), Failure> {
    story.screen.heading("Uninstall");
    let installed = Traces::of(&story.cluster.nodes)?;
    let there = before.differences(&installed).len();
    story
        .helm("upgrade egret deploy/helm/egret --namespace kube-system --reuse-values --set cleanup=true")?;
    story.roll_out(&WORKLOADS[..1])?;
    story.helm("uninstall egret --namespace kube-system --wait")?;
    story.step("dnsd has ended", |kubectl| {
        let pods = [
            "pods",
            "-n",
            "kube-system",
            "-l",
            "app.kubernetes.io/name=egret-dnsd",
        ];
        Ok(kubectl.get(&[&pods[..], &["-o", "name"]].concat())?.is_empty())
    })?;
    konnectivity::without_agents_again(story)?;
    let traffic = story.traffic(false)?;
    story.more_traffic(&traffic, 100)?;
    drop(traffic);
    let now = Traces::of(&story.cluster.nodes)?;
    let left = before.differences(&now);
    story.screen.line(&format!(
        "{there} lines about the nodes differed while it was installed: rules, sets, links, addresses, settings, files"
    ));
    if left.is_empty() {
        story.conclude(true, &format!("none of {} differs now", now.len()));
    } else {
        story.conclude(false, &format!("{} differ now:", left.len()));
        story.screen.plain(&left.join("\n"));
    }
    Ok(())
}
