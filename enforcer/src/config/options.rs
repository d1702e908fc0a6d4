//! The options: each one of the command line is a field of the file.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use egret_kernel::iptables::InterfacePattern;
use egret_shared::cni::DEFAULT_SOCKET;
use egret_shared::net::IpNet;
use egret_shared::pod::PodKey;
use serde::Deserialize;

use super::value::{
    BackendChoice, EnforcementMode, FlavourChoice, MillisDuration, NameTarget, OwnNodeAccess, PodInterfaces,
    Source, UnknownPodPolicy,
};
use crate::backend::netfilter::bridges::BridgeNetfilter;
use crate::backend::netfilter::marks::MarkMask;
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::model::settings::JumpPosition;
use crate::events::sink::Destination;

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
    pub options: Options,
}

pub(super) const DEFAULT_LINK: &str = "/run/egret/link.sock";
pub(super) const DEFAULT_STATE: &str = "/run/egret/state";
/// This folder survives a boot.
pub(super) const DEFAULT_OBJECTS: &str = "/var/lib/egret/objects";

/// Commands beside enforcing.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Removes everything of the enforcer from the kernel, and its state files, and nothing else. The report of the
    /// node's addresses stays, because other nodes use it.
    Cleanup {
        /// Only lists what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// The pin path of the backend ebpf.
        #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf/egret")]
        bpf_pins: PathBuf,
        /// The file of records; empty for none.
        #[arg(long, value_name = "PATH", default_value = DEFAULT_STATE, value_parser = path_or_empty())]
        state: PathBuf,
        /// The file of the source's objects; empty for none.
        #[arg(long, value_name = "PATH", default_value = DEFAULT_OBJECTS, value_parser = path_or_empty())]
        state_objects: PathBuf,
        /// The Unix socket for dnsd; stays while an enforcer listens there.
        #[arg(long, value_name = "PATH", default_value = DEFAULT_LINK, value_parser = path_or_empty())]
        link: PathBuf,
        /// The Unix socket for the CNI plugin, with its folder of networks; they stay while an enforcer listens there.
        #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, value_parser = path_or_empty())]
        cni: PathBuf,
    },
    /// Writes the status of policies and Events of what is wrong with them. Run it as a Deployment: of several replicas one
    /// is the leader, by the Lease egret-controller in its namespace. SIGTERM releases it.
    Controller {
        /// Where and how the API server is reached [default: $KUBECONFIG, else the service account of the pod].
        #[arg(long, value_name = "PATH")]
        kubeconfig: Option<PathBuf>,
        /// Where /healthz, /readyz and /metrics are answered.
        #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9255")]
        admin: SocketAddr,
    },
}

/// The fields, all optional.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Options {
    /// Where objects come from: kube, the API server of a cluster, or dir: and a folder of manifests (YAML, JSON); either is
    /// watched (required)
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<Source>,
    /// Where and how the API server is reached [default: $KUBECONFIG, else the service account of the pod]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of this node, as Pods have it in spec.nodeName (required)
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// What enforces [default: auto]
    #[arg(long, value_name = "BACKEND")]
    pub backend: Option<BackendChoice>,
    /// The Unix socket for dnsd [default: /run/egret/link.sock]
    #[arg(long, value_name = "PATH")]
    pub link: Option<PathBuf>,
    /// The socket on which the CNI plugin egret-cni reports pods and waits for their rules; empty for none [default:
    /// /run/egret/cni.sock]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub cni: Option<PathBuf>,
    /// Where /healthz, /readyz, /metrics, /records and /rules are answered [default: 127.0.0.1:9254]
    #[arg(long, value_name = "ADDR:PORT")]
    pub admin: Option<SocketAddr>,
    /// The file of records for the next start: the names and addresses that pods were given; empty for none [default:
    /// /run/egret/state]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub state: Option<PathBuf>,
    /// The file of the source's objects, for a start at which the source is unreadable; empty for none [default:
    /// /var/lib/egret/objects]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub state_objects: Option<PathBuf>,
    /// The folder where this node's addresses are reported to other nodes, which read it. It may be the folder of
    /// --source; empty for none [default: none]
    #[arg(long, value_name = "PATH", value_parser = path_or_empty())]
    pub report_dir: Option<PathBuf>,
    /// Which iptables the backend netfilter uses [default: auto]
    #[arg(long, value_name = "FLAVOUR")]
    pub iptables: Option<FlavourChoice>,
    /// What the sender of a denied packet receives [default: drop]
    #[arg(long, value_name = "ACTION")]
    pub deny_action: Option<DenyAction>,
    /// What happens to a pod that is unknown yet [default: deny once there is any policy, or if that is unknown]
    #[arg(long, value_name = "WHAT")]
    pub on_unknown_pod: Option<UnknownPodPolicy>,
    /// Interfaces of pods that are unknown yet, as iptables names them: a + at the end matches any ending, and bridges
    /// of known pods need not be named [default: veth+ cali+ gke+ eni+ azv+ cni0 cbr0 kube-bridge]
    #[arg(long, value_name = "INTERFACES", num_args = 1 ..)]
    pub pod_interfaces: Option<Vec<PodInterfaces>>,
    /// Where each denied packet is logged as a line of JSON: stdout, a path, or off [default: off]
    #[arg(long, value_name = "WHERE")]
    pub events: Option<Destination>,
    /// Denied packets that are logged a second, for each reason: 1 to 1000; for all reasons, ten times as many
    /// [default: 10]
    #[arg(long, value_name = "COUNT")]
    pub events_per_second: Option<u32>,
    /// The NFLOG group of denied packets: 1 to 65535 [default: 9254]
    #[arg(long, value_name = "GROUP")]
    pub events_group: Option<u16>,
    /// Bits of the connection mark for egress; not 0x80 (AWS VPC CNI) [default: 0x07ff0000]
    #[arg(long, value_name = "MASK")]
    pub egress_mark_mask: Option<MarkMask>,
    /// Bits of the connection mark for ingress [default: 0xf8003f00]
    #[arg(long, value_name = "MASK")]
    pub ingress_mark_mask: Option<MarkMask>,
    /// Start although rules of others write these bits: connections may then look allowed that are not [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0 ..= 1, default_missing_value = "true")]
    pub allow_foreign_marks: Option<bool>,
    /// Where our jumps are in FORWARD and INPUT: insert, in front of the rules of others, or append, behind them
    /// [default: insert]
    #[arg(long, value_name = "PLACE")]
    pub jump: Option<JumpPosition>,
    /// The interval at which the kernel is compared and repaired; 0s for never, also not after changes by others
    /// [default: 60s]
    #[arg(long, value_name = "SPAN")]
    pub resync: Option<MillisDuration>,
    /// Single rules with a series of their own in /metrics: at most 4096 [default: 0]
    #[arg(long, value_name = "COUNT")]
    pub rule_metrics: Option<usize>,
    /// Whether policies are enforced on this node, or audited: only logged and counted [default: enforce]
    #[arg(long, value_name = "HOW")]
    pub enforcement: Option<EnforcementMode>,
    /// What an isolated pod may send to its own node [default: allow]
    #[arg(long, value_name = "WHAT")]
    pub pod_to_own_node: Option<OwnNodeAccess>,
    /// Addresses where dnsd serves instead of the DNS Service: rules about the Service's pods at port 53 count there
    /// too
    #[arg(long, value_name = "ADDRESS", num_args = 1 ..)]
    pub dns_address: Option<Vec<IpAddr>>,
    /// The Service that dnsd serves instead of [default: kube-system/kube-dns]
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub dns_service: Option<PodKey>,
    /// Namespaces whose pods' queries to other resolvers dnsd does not intercept [default: kube-system]
    #[arg(long, value_name = "NAMESPACE", num_args = 1 ..)]
    pub not_intercepted: Option<Vec<String>>,
    /// How long after its TTL an address may still be connected to [default: 30s]
    #[arg(long, value_name = "SPAN")]
    pub record_grace: Option<MillisDuration>,
    /// TTLs below this count as this [default: 0s]
    #[arg(long, value_name = "SPAN")]
    pub min_ttl: Option<MillisDuration>,
    /// TTLs above this count as this [default: 24h]
    #[arg(long, value_name = "SPAN")]
    pub max_ttl: Option<MillisDuration>,
    /// Networks that no DNS name opens [default: loopback, link-local, and the metadata services of clouds]
    #[arg(long, value_name = "CIDR", num_args = 1 ..)]
    pub protected: Option<Vec<IpNet>>,
    /// Addresses of the cluster itself that a DNS name may open: node, api-server [default: neither]
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub names_may_open: Option<Vec<NameTarget>>,
    /// Names that one pod may have records of: 1 to 10000000 [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pub names_per_pod: Option<usize>,
    /// Addresses of one name for one pod: 100 to 10000000 [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pub addresses_per_name: Option<usize>,
    /// Records of all pods: 1 to 10000000 [default: 200000]
    #[arg(long, value_name = "COUNT")]
    pub records_total: Option<usize>,
    /// Whether traffic between ports of a pods' bridge is passed to iptables: enable turns it on for these bridges
    /// [default: off]
    #[arg(long, value_name = "WHETHER")]
    pub bridge_netfilter: Option<BridgeNetfilter>,
    /// The cgroup2 folder in which the backend ebpf finds pods [default: /sys/fs/cgroup]
    #[arg(long, value_name = "PATH")]
    pub cgroup_root: Option<PathBuf>,
    /// The pin path of the backend ebpf, for what has to survive a restart [default: /sys/fs/bpf/egret]
    #[arg(long, value_name = "PATH")]
    pub bpf_pins: Option<PathBuf>,
}

/// clap refuses an empty path otherwise.
fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Names of the node's end of a pod's veth pair, or of its bridge, by CNI plugin: ptp (and kindnet), Calico, GKE, the
/// AWS VPC CNI, Azure; bridge (and flannel), kubenet, kube-router. Hardly any other interface has such a name.
pub(super) fn default_pod_interfaces() -> Vec<InterfacePattern> {
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

/// Takes each field from the first value, or from the second one if it is not set.
macro_rules! first_set {
    ($first:ident, $second:ident: $($field:ident)*) => {
        Self { $($field: $first.$field.or($second.$field)),* }
    };
}

impl Options {
    /// These options, with `below` for the ones that are not set.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        first_set!(self, below:
            source kubeconfig node backend link cni admin state state_objects report_dir iptables deny_action events
            events_per_second events_group on_unknown_pod pod_interfaces egress_mark_mask ingress_mark_mask
            allow_foreign_marks jump resync rule_metrics enforcement pod_to_own_node dns_address dns_service
            record_grace min_ttl max_ttl protected names_may_open names_per_pod addresses_per_name records_total
            bridge_netfilter not_intercepted cgroup_root bpf_pins
        )
    }
}
