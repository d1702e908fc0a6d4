//! The configuration as it is written: each option of the command line is a field of the file.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use egret_kernel::iptables::InterfacePattern;
use egret_shared::net::IpNet;
use egret_shared::pod::PodKey;
use serde::Deserialize;

use super::value::{
    BackendKind, Enforce, EventsTo, FlavourChoice, OnUnknownPod, Opened, OwnNode, PodInterfaces, Source, Span,
};
use crate::backend::netfilter::NftWriter;
use crate::backend::netfilter::bridges::BridgeNetfilter;
use crate::backend::netfilter::marks::MarkMask;
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::model::settings::JumpPosition;

/// Makes the kernel of a node agree with the network policies that concern its pods.
///
/// Every option but --config is also a field of the YAML file, in camelCase (--deny-action is denyAction); the
/// command line goes before the file. SIGHUP reads the file again: resync and ruleMetrics change at once, the others
/// need a restart. SIGTERM stops; rules and sets stay in force. Exit codes: 0 stopped by a signal, 64 wrong usage or
/// configuration, 1 anything else.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "enforcer",
    version,
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// What to do instead of enforcing.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The fields that can also be in the file.
    #[command(flatten)]
    pub written: Written,
}

pub(super) const DEFAULT_STATE: &str = "/run/egret/state";
/// Where it outlives a boot.
pub(super) const DEFAULT_OBJECTS: &str = "/var/lib/egret/objects";

/// What else there is to do.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Removes every trace of the enforcer from the kernel, and its state file, and nothing else. The report of the
    /// node's addresses stays: other nodes go by it.
    Cleanup {
        /// Only tells what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Where the backend ebpf keeps what outlives it.
        #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf/egret")]
        bpf_pins: PathBuf,
        /// The file that keeps what pods were told; empty for none.
        #[arg(long, value_name = "PATH", default_value = DEFAULT_STATE, value_parser = path_or_empty())]
        state: PathBuf,
        /// The file that keeps what the source said last; empty for none.
        #[arg(long, value_name = "PATH", default_value = DEFAULT_OBJECTS, value_parser = path_or_empty())]
        state_objects: PathBuf,
    },
}

/// The fields, none of which need be written.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Written {
    /// Where objects come from: dir: and a folder of manifests (YAML, JSON), which is watched (required)
    #[arg(long, value_name = "dir:PATH")]
    pub source: Option<Source>,
    /// The name of this node, as Pods have it in spec.nodeName (required)
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// What enforces [default: netfilter]
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<BackendKind>,
    /// The Unix socket for dnsd [default: /run/egret/link.sock]
    #[arg(long, value_name = "PATH")]
    pub link: Option<PathBuf>,
    /// Where /healthz, /readyz, /metrics, /records and /rules are answered [default: 127.0.0.1:9254]
    #[arg(long, value_name = "ADDR:PORT")]
    pub admin: Option<SocketAddr>,
    /// The file that keeps what pods were told for the enforcer's next start; empty for none [default: /run/egret/state]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub state: Option<PathBuf>,
    /// The file that keeps what the source said last for a start without it; empty for none [default: /var/lib/egret/objects]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub state_objects: Option<PathBuf>,
    /// The folder where this node's addresses are reported to the others, which read it; other nodes may write theirs there,
    /// and it may be the one of --source; empty for none [default: none]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub report_dir: Option<PathBuf>,
    /// Which iptables the backend netfilter uses [default: auto]
    #[arg(long, value_name = "FLAVOUR")]
    pub iptables: Option<FlavourChoice>,
    /// What writes rules in the flavour nft: netlink, the enforcer itself, or programs, iptables-nft-restore [default: netlink]
    #[arg(long, value_name = "WRITER")]
    pub nft_writer: Option<NftWriter>,
    /// What the sender of a refused packet is told [default: drop]
    #[arg(long, value_name = "ACTION")]
    pub deny_action: Option<DenyAction>,
    /// What happens to a pod that is not known yet [default: deny once there is any policy, or nobody knows whether]
    #[arg(long, value_name = "WHAT")]
    pub on_unknown_pod: Option<OnUnknownPod>,
    /// Where pods are that are not known yet, as iptables names interfaces: a + at the end is any ending, and bridges
    /// of known pods need not be named [default: veth+ cali+ gke+ eni+ azv+ cni0 cbr0 kube-bridge]
    #[arg(long, value_name = "INTERFACES", num_args = 1..)]
    pub pod_interfaces: Option<Vec<PodInterfaces>>,
    /// Where each denied packet is told as a line of JSON: stdout, a path, or off [default: off]
    #[arg(long, value_name = "WHERE")]
    pub events: Option<EventsTo>,
    /// Packets that are told a second, of each reason to deny: 1 to 1000; of all together, ten times as many [default: 10]
    #[arg(long, value_name = "COUNT")]
    pub events_per_second: Option<u32>,
    /// The NFLOG group by which the kernel tells of them: 1 to 65535 [default: 9254]
    #[arg(long, value_name = "GROUP")]
    pub events_group: Option<u16>,
    /// Bits of the connection mark for egress; not 0x80 (AWS VPC CNI) [default: 0x07ff0000]
    #[arg(long, value_name = "MASK")]
    pub egress_mark_mask: Option<MarkMask>,
    /// Bits of the connection mark for ingress [default: 0xf8003f00]
    #[arg(long, value_name = "MASK")]
    pub ingress_mark_mask: Option<MarkMask>,
    /// Start though rules of others write these bits: flows may then look allowed that are not [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub allow_foreign_marks: Option<bool>,
    /// Where our jumps stand in FORWARD and INPUT: insert, in front of what others have, or append, behind it [default: insert]
    #[arg(long, value_name = "PLACE")]
    pub jump: Option<JumpPosition>,
    /// How often the kernel is compared with what it should hold, and repaired; 0s for never, nor out of turn [default: 60s]
    #[arg(long, value_name = "SPAN")]
    pub resync: Option<Span>,
    /// Single rules with a series of their own in /metrics: at most 4096 [default: 0]
    #[arg(long, value_name = "COUNT")]
    pub rule_metrics: Option<usize>,
    /// Whether policies are enforced on this node, or only asked what they would deny [default: enforce]
    #[arg(long, value_name = "HOW")]
    pub enforcement: Option<Enforce>,
    /// What a pod that a NetworkPolicy isolates may ask of its own node [default: allow]
    #[arg(long, value_name = "WHAT")]
    pub pod_to_own_node: Option<OwnNode>,
    /// Where dnsd listens in the place of the DNS Service: what policies say of its pods at port 53 counts there too
    #[arg(long, value_name = "ADDRESS", num_args = 1..)]
    pub dns_address: Option<Vec<IpAddr>>,
    /// The Service in whose place dnsd listens [default: kube-system/kube-dns]
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub dns_service: Option<PodKey>,
    /// Namespaces whose pods ask other resolvers themselves though dnsd intercepts [default: kube-system]
    #[arg(long, value_name = "NAMESPACE", num_args = 1..)]
    pub not_intercepted: Option<Vec<String>>,
    /// How long after its TTL an address may still be connected to [default: 30s]
    #[arg(long, value_name = "SPAN")]
    pub record_grace: Option<Span>,
    /// TTLs below this count as this [default: 0s]
    #[arg(long, value_name = "SPAN")]
    pub min_ttl: Option<Span>,
    /// TTLs above this count as this [default: 24h]
    #[arg(long, value_name = "SPAN")]
    pub max_ttl: Option<Span>,
    /// Networks that no name opens [default: loopback, link-local, and the metadata services of clouds]
    #[arg(long, value_name = "CIDR", num_args = 1..)]
    pub protected: Option<Vec<IpNet>>,
    /// What of the cluster itself a name may open: node, api-server [default: neither]
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub names_may_open: Option<Vec<Opened>>,
    /// Names that one pod may have records of: 1 to 10000000 [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pub names_per_pod: Option<usize>,
    /// Addresses of one name for one pod: 100 to 10000000 [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pub addresses_per_name: Option<usize>,
    /// Records of all pods: 1 to 10000000 [default: 200000]
    #[arg(long, value_name = "COUNT")]
    pub records_total: Option<usize>,
    /// Members that a set of the backend netfilter has places for, in each family: 1 to 10000000 [default: 1048576]
    #[arg(long, value_name = "COUNT")]
    pub members_per_set: Option<usize>,
    /// Whether what goes from port to port of a bridge of pods is handed to iptables: enable turns it on for these bridges
    /// [default: off]
    #[arg(long, value_name = "WHETHER")]
    pub bridge_netfilter: Option<BridgeNetfilter>,
    /// The cgroup2 folder below which the backend ebpf looks for pods [default: /sys/fs/cgroup]
    #[arg(long, value_name = "PATH")]
    pub cgroup_root: Option<PathBuf>,
    /// Where the backend ebpf keeps what outlives it [default: /sys/fs/bpf/egret]
    #[arg(long, value_name = "PATH")]
    pub bpf_pins: Option<PathBuf>,
}

/// clap takes no empty path of itself.
fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// What CNI plugins call the node's end of a pod's cable, or the bridge that it is plugged into, and hardly anybody
/// else calls anything: ptp (and kindnet), Calico, GKE, the AWS VPC CNI, Azure; bridge (and flannel), kubenet,
/// kube-router.
pub(super) fn usual_pod_interfaces() -> Vec<InterfacePattern> {
    [
        "veth+",
        "cali+",
        "gke+",
        "eni+",
        "azv+",
        "cni0",
        "cbr0",
        "kube-bridge",
    ]
    .map(|pattern| InterfacePattern::new(pattern).expect("these are patterns"))
    .to_vec()
}

impl Written {
    /// These fields, and `below` where nothing was written.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            source: self.source.or(below.source),
            node: self.node.or(below.node),
            backend: self.backend.or(below.backend),
            link: self.link.or(below.link),
            admin: self.admin.or(below.admin),
            state: self.state.or(below.state),
            state_objects: self.state_objects.or(below.state_objects),
            report_dir: self.report_dir.or(below.report_dir),
            iptables: self.iptables.or(below.iptables),
            nft_writer: self.nft_writer.or(below.nft_writer),
            deny_action: self.deny_action.or(below.deny_action),
            events: self.events.or(below.events),
            events_per_second: self.events_per_second.or(below.events_per_second),
            events_group: self.events_group.or(below.events_group),
            on_unknown_pod: self.on_unknown_pod.or(below.on_unknown_pod),
            pod_interfaces: self.pod_interfaces.or(below.pod_interfaces),
            egress_mark_mask: self.egress_mark_mask.or(below.egress_mark_mask),
            ingress_mark_mask: self.ingress_mark_mask.or(below.ingress_mark_mask),
            allow_foreign_marks: self.allow_foreign_marks.or(below.allow_foreign_marks),
            jump: self.jump.or(below.jump),
            resync: self.resync.or(below.resync),
            rule_metrics: self.rule_metrics.or(below.rule_metrics),
            enforcement: self.enforcement.or(below.enforcement),
            pod_to_own_node: self.pod_to_own_node.or(below.pod_to_own_node),
            dns_address: self.dns_address.or(below.dns_address),
            dns_service: self.dns_service.or(below.dns_service),
            record_grace: self.record_grace.or(below.record_grace),
            min_ttl: self.min_ttl.or(below.min_ttl),
            max_ttl: self.max_ttl.or(below.max_ttl),
            protected: self.protected.or(below.protected),
            names_may_open: self.names_may_open.or(below.names_may_open),
            names_per_pod: self.names_per_pod.or(below.names_per_pod),
            addresses_per_name: self.addresses_per_name.or(below.addresses_per_name),
            records_total: self.records_total.or(below.records_total),
            members_per_set: self.members_per_set.or(below.members_per_set),
            bridge_netfilter: self.bridge_netfilter.or(below.bridge_netfilter),
            not_intercepted: self.not_intercepted.or(below.not_intercepted),
            cgroup_root: self.cgroup_root.or(below.cgroup_root),
            bpf_pins: self.bpf_pins.or(below.bpf_pins),
        }
    }
}
