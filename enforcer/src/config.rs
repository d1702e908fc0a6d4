//! What the enforcer is told to do: `Written` is what people write, on the command line and in the file; `Config` is
//! what is meant, whole and within its ranges.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egret_kernel::iptables::Flavour;
use egret_policies::compiler::{DnsStandIn, NodeScope, PodToOwnNode, Settings};
use egret_policies::model::Enforcement;
use egret_policies::records::{NamesMayOpen, RecordLimits, RecordSettings, usually_protected};
use egret_shared::rt::config::{ConfigError, load};

use crate::backend::netfilter::bridges::BridgeNetfilter;
use crate::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks, SharedBits};
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::model::settings::JumpPosition;
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::model::unknown_pods::{Stance, UnknownPods};
use crate::backend::netfilter::{MOST_MEMBERS, NftWriter};

mod value;
mod written;

pub use value::{
    BackendKind, Enforce, EventsTo, FlavourChoice, InvalidValue, OnUnknownPod, Opened, OwnNode,
    PodInterfaces, Source, Span,
};
pub use written::{Args, Command, Written};

use written::{DEFAULT_OBJECTS, DEFAULT_STATE};

/// Rules that may have a series of their own: each is a line that the kernel keeps, written with every change of rules.
const MOST_SERIES: usize = 4096;

/// The configuration as it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What needs a restart to change.
    pub fixed: Fixed,
    /// How often the kernel is compared; never where it is zero.
    pub resync: Duration,
    /// How many rules have a series of their own.
    pub rule_metrics: usize,
}

/// The part of the configuration that needs a restart to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Where objects come from.
    pub source: PathBuf,
    /// Which kernel.
    pub backend: BackendKind,
    /// The socket for dnsd.
    pub link: PathBuf,
    /// Where operators ask.
    pub admin: SocketAddr,
    /// The file that keeps what pods were told; none to keep nothing.
    pub state: Option<PathBuf>,
    /// The file that keeps what the source said last; none to keep nothing.
    pub state_objects: Option<PathBuf>,
    /// The folder for the report of the node's addresses; none to report nothing.
    pub report_dir: Option<PathBuf>,
    /// For the compiler; the node's name is in it.
    pub compiler: Settings,
    /// Which iptables; none to find out.
    pub flavour: Option<Flavour>,
    /// What writes rules in the flavour `nft`.
    pub nft_writer: NftWriter,
    /// Our bits of the connection mark.
    pub marks: Marks,
    /// Whether rules of others may write these bits.
    pub allow_foreign_marks: bool,
    /// Where our jumps stand among the rules of others.
    pub jump: JumpPosition,
    /// What a refused sender is told.
    pub deny: DenyAction,
    /// What happens to pods that are not known yet.
    pub unknown: UnknownPods,
    /// Where denied packets are told, and how many.
    pub events: Events,
    /// How many members a set of the backend netfilter has places for.
    pub members_per_set: u32,
    /// What is done about bridges that pods are on.
    pub bridges: BridgeNetfilter,
    /// Namespaces whose pods dnsd does not intercept.
    pub not_intercepted: BTreeSet<Arc<str>>,
    /// Where the backend ebpf finds the pods' cgroups.
    pub cgroup_root: PathBuf,
    /// Where the backend ebpf keeps what outlives it.
    pub bpf_pins: PathBuf,
}

impl Fixed {
    /// The name of this node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        match &self.compiler.node {
            NodeScope::One(node) => node,
            NodeScope::All => "",
        }
    }
}

/// Where denied packets are told, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// Where.
    pub to: EventsTo,
    /// How the kernel tells of them.
    pub telling: NflogSettings,
}

/// Why a configuration cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The file.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// A field that must be there.
    #[error("{field} is missing: {wanted}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What would be accepted.
        wanted: &'static str,
    },
    /// A value outside of its range.
    #[error("{field}: {value} is not accepted; {range} is")]
    Range {
        /// The field.
        field: &'static str,
        /// What was written.
        value: String,
        /// What would be accepted.
        range: &'static str,
    },
    /// The marks.
    #[error("egressMarkMask, ingressMarkMask: {0}")]
    Marks(#[from] SharedBits),
}

impl Config {
    /// Takes the command line, and the file that it names if it does.
    ///
    /// # Errors
    /// With the field, or the file, line and column.
    pub fn load(args: &Args) -> Result<Self, Invalid> {
        let file = match &args.config {
            Some(path) => load::<Written>(path)?,
            None => Written::default(),
        };
        args.written.clone().over(file).mean()
    }

    /// The fields by which `other` differs that need a restart.
    #[must_use]
    pub fn needs_restart(&self, other: &Self) -> Vec<&'static str> {
        let (mine, theirs) = (&self.fixed, &other.fixed);
        [
            ("source", mine.source != theirs.source),
            ("backend", mine.backend != theirs.backend),
            ("link", mine.link != theirs.link),
            ("admin", mine.admin != theirs.admin),
            ("state", mine.state != theirs.state),
            ("stateObjects", mine.state_objects != theirs.state_objects),
            ("reportDir", mine.report_dir != theirs.report_dir),
            ("node", mine.compiler.node != theirs.compiler.node),
            (
                "enforcement",
                mine.compiler.enforcement != theirs.compiler.enforcement,
            ),
            (
                "podToOwnNode",
                mine.compiler.pod_to_own_node != theirs.compiler.pod_to_own_node,
            ),
            ("dnsAddress, dnsService", mine.compiler.dns != theirs.compiler.dns),
            (
                "records (grace, TTLs, limits, protected, namesMayOpen)",
                mine.compiler.records != theirs.compiler.records,
            ),
            ("iptables", mine.flavour != theirs.flavour),
            ("nftWriter", mine.nft_writer != theirs.nft_writer),
            ("egressMarkMask, ingressMarkMask", mine.marks != theirs.marks),
            (
                "allowForeignMarks",
                mine.allow_foreign_marks != theirs.allow_foreign_marks,
            ),
            ("jump", mine.jump != theirs.jump),
            ("denyAction", mine.deny != theirs.deny),
            ("onUnknownPod, podInterfaces", mine.unknown != theirs.unknown),
            (
                "events, eventsPerSecond, eventsGroup",
                mine.events != theirs.events,
            ),
            ("membersPerSet", mine.members_per_set != theirs.members_per_set),
            ("bridgeNetfilter", mine.bridges != theirs.bridges),
            ("notIntercepted", mine.not_intercepted != theirs.not_intercepted),
            ("cgroupRoot", mine.cgroup_root != theirs.cgroup_root),
            ("bpfPins", mine.bpf_pins != theirs.bpf_pins),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }
}

impl Written {
    /// What is meant, with defaults where nothing was written.
    ///
    /// # Errors
    /// With the field.
    pub fn mean(self) -> Result<Config, Invalid> {
        let (compiler, unknown) = (self.compiler()?, self.unknown());
        let events = self.events()?;
        let rule_metrics = self.rule_metrics.unwrap_or(0);
        if rule_metrics > MOST_SERIES {
            return Err(Invalid::Range {
                field: "ruleMetrics",
                value: rule_metrics.to_string(),
                range: "at most 4096",
            });
        }
        let report_dir = self.report_dir(&compiler.node)?;
        let members_per_set = self.members_per_set()?;
        let (egress, ingress) = (
            self.egress_mark_mask.unwrap_or(DEFAULT_EGRESS),
            self.ingress_mark_mask.unwrap_or(DEFAULT_INGRESS),
        );
        let source = self.source.ok_or(Invalid::Missing {
            field: "source",
            wanted: "dir: and the path of a folder of manifests",
        })?;
        Ok(Config {
            fixed: Fixed {
                source: source.into_path(),
                backend: self.backend.unwrap_or(BackendKind::Netfilter),
                link: self.link.unwrap_or_else(|| "/run/egret/link.sock".into()),
                admin: self
                    .admin
                    .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9254))),
                state: Some(self.state.unwrap_or_else(|| DEFAULT_STATE.into()))
                    .filter(|path| !path.as_os_str().is_empty()),
                state_objects: Some(self.state_objects.unwrap_or_else(|| DEFAULT_OBJECTS.into()))
                    .filter(|path| !path.as_os_str().is_empty()),
                report_dir,
                compiler,
                flavour: self.iptables.unwrap_or(FlavourChoice::Auto).flavour(),
                nft_writer: self.nft_writer.unwrap_or_default(),
                marks: Marks::new(egress, ingress)?,
                allow_foreign_marks: self.allow_foreign_marks.unwrap_or(false),
                jump: self.jump.unwrap_or(JumpPosition::Insert),
                deny: self.deny_action.unwrap_or(DenyAction::Drop),
                events,
                unknown,
                members_per_set,
                bridges: self.bridge_netfilter.unwrap_or(BridgeNetfilter::Off),
                not_intercepted: self
                    .not_intercepted
                    .unwrap_or_else(|| vec!["kube-system".to_owned()])
                    .into_iter()
                    .map(Arc::from)
                    .collect(),
                cgroup_root: self.cgroup_root.unwrap_or_else(|| "/sys/fs/cgroup".into()),
                bpf_pins: self.bpf_pins.unwrap_or_else(|| "/sys/fs/bpf/egret".into()),
            },
            resync: self.resync.map_or(Duration::from_secs(60), Span::as_duration),
            rule_metrics,
        })
    }

    fn compiler(&self) -> Result<Settings, Invalid> {
        let node = self.node.clone().filter(|node| !node.is_empty());
        let node = node.ok_or(Invalid::Missing {
            field: "node",
            wanted: "the name that Pods have in spec.nodeName",
        })?;
        Ok(Settings {
            node: NodeScope::One(Arc::from(node)),
            records: self.records()?,
            pod_to_own_node: match self.pod_to_own_node.unwrap_or(OwnNode::Allow) {
                OwnNode::Allow => PodToOwnNode::Allow,
                OwnNode::Dns => PodToOwnNode::Dns,
                OwnNode::Enforce => PodToOwnNode::Enforce,
            },
            dns: self.dns()?,
            enforcement: match self.enforcement.unwrap_or(Enforce::Enforce) {
                Enforce::Enforce => Enforcement::Enforced,
                Enforce::Audit => Enforcement::Audited,
            },
        })
    }

    fn members_per_set(&self) -> Result<u32, Invalid> {
        let Some(written) = self.members_per_set else {
            return Ok(MOST_MEMBERS);
        };
        let members = at_least("membersPerSet", Some(written), written, 1)?;
        Ok(u32::try_from(members).unwrap_or(MOST_MEMBERS))
    }

    /// The name of the node becomes that of a file.
    fn report_dir(&self, node: &NodeScope) -> Result<Option<PathBuf>, Invalid> {
        let written = self.report_dir.clone();
        let wanted = written.filter(|path| !path.as_os_str().is_empty());
        match node {
            NodeScope::One(name) if wanted.is_some() && !is_name_of_node(name) => Err(Invalid::Range {
                field: "node",
                value: name.to_string(),
                range: "with reportDir, a name as Nodes have it (a-z, 0-9, - and ., at most 240 characters)",
            }),
            NodeScope::One(_) | NodeScope::All => Ok(wanted),
        }
    }

    fn unknown(&self) -> UnknownPods {
        let written = self.pod_interfaces.clone();
        UnknownPods {
            stance: match self.on_unknown_pod {
                None => Stance::DenyOncePolicies,
                Some(OnUnknownPod::Deny) => Stance::Deny,
                Some(OnUnknownPod::Allow) => Stance::Allow,
            },
            interfaces: match written {
                None => written::usual_pod_interfaces(),
                Some(written) => written.into_iter().map(PodInterfaces::into_pattern).collect(),
            },
        }
    }

    fn events(&self) -> Result<Events, Invalid> {
        let per_second = self.events_per_second.unwrap_or(10);
        let group = self.events_group.unwrap_or(9254);
        let refuse = |field, value: u32, range| Invalid::Range {
            field,
            value: value.to_string(),
            range,
        };
        if !(1..=1000).contains(&per_second) {
            return Err(refuse("eventsPerSecond", per_second, "1 to 1000"));
        }
        if group == 0 {
            return Err(refuse("eventsGroup", 0, "1 to 65535"));
        }
        Ok(Events {
            to: self.events.clone().unwrap_or(EventsTo::Off),
            telling: NflogSettings { group, per_second },
        })
    }

    fn dns(&self) -> Result<DnsStandIn, Invalid> {
        let listens: Vec<IpAddr> = self.dns_address.iter().flatten().copied().collect();
        if let Some(any) = listens.iter().find(|address| address.is_unspecified()) {
            return Err(Invalid::Range {
                field: "dnsAddress",
                value: any.to_string(),
                range: "each address that pods ask, by itself,",
            });
        }
        let usual = DnsStandIn::default();
        Ok(DnsStandIn {
            service: self.dns_service.clone().unwrap_or(usual.service),
            addresses: listens.into_iter().collect(),
        })
    }

    fn lets_names_open(&self, what: Opened) -> bool {
        self.names_may_open.iter().flatten().any(|opened| *opened == what)
    }

    fn records(&self) -> Result<RecordSettings, Invalid> {
        let usual = RecordSettings::default();
        let span = |written: Option<Span>, usual: Duration| written.map_or(usual, Span::as_duration);
        let (min_ttl, max_ttl) = (
            span(self.min_ttl, usual.min_ttl),
            span(self.max_ttl, usual.max_ttl),
        );
        if min_ttl > max_ttl {
            let value = format!("{} s", min_ttl.as_secs());
            return Err(Invalid::Range {
                field: "minTtl",
                value,
                range: "at most maxTtl",
            });
        }
        Ok(RecordSettings {
            min_ttl,
            max_ttl,
            grace: span(self.record_grace, usual.grace),
            protected: self.protected.clone().unwrap_or_else(usually_protected),
            names_may_open: NamesMayOpen {
                node: self.lets_names_open(Opened::Node),
                api_server: self.lets_names_open(Opened::ApiServer),
            },
            limits: RecordLimits {
                names_per_pod: at_least("namesPerPod", self.names_per_pod, usual.limits.names_per_pod, 1)?,
                addresses_per_name: at_least(
                    "addressesPerName",
                    self.addresses_per_name,
                    usual.limits.addresses_per_name,
                    100,
                )?,
                total: at_least("recordsTotal", self.records_total, usual.limits.total, 1)?,
            },
        })
    }
}

/// RFC 1123, as the API server asks of Nodes; the file's name must fit, too.
fn is_name_of_node(name: &str) -> bool {
    let is_end = |octet: &u8| octet.is_ascii_lowercase() || octet.is_ascii_digit();
    let octets = name.as_bytes();
    octets.len() <= 240
        && octets
            .iter()
            .all(|octet| is_end(octet) || matches!(octet, b'-' | b'.'))
        && octets.first().is_some_and(is_end)
        && octets.last().is_some_and(is_end)
}

fn at_least(
    field: &'static str,
    written: Option<usize>,
    usual: usize,
    least: usize,
) -> Result<usize, Invalid> {
    let value = written.unwrap_or(usual);
    if (least..=10_000_000).contains(&value) {
        return Ok(value);
    }
    let range = if least == 100 {
        "100 to 10000000"
    } else {
        "1 to 10000000"
    };
    Err(Invalid::Range {
        field,
        value: value.to_string(),
        range,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn config(arguments: &[&str]) -> Result<Config, Invalid> {
        Config::load(&Args::try_parse_from([&["enforcer"], arguments].concat()).unwrap())
    }

    #[test]
    fn source_and_node_must_be_written_and_the_rest_has_defaults() {
        let config = config(&["--source", "dir:/m", "--node", "n"]).unwrap();
        assert_eq!(config.fixed.source, PathBuf::from("/m"));
        assert_eq!(config.fixed.backend, BackendKind::Netfilter);
        assert_eq!(config.fixed.state, Some(PathBuf::from("/run/egret/state")));
        assert_eq!(
            config.fixed.state_objects,
            Some(PathBuf::from("/var/lib/egret/objects"))
        );
        assert!(matches!(
            super::tests::config(&["--node", "n"]),
            Err(Invalid::Missing { field: "source", .. })
        ));
        assert!(matches!(
            super::tests::config(&["--source", "dir:/m"]),
            Err(Invalid::Missing { field: "node", .. })
        ));
    }

    #[test]
    fn jumps_are_inserted_and_no_foreign_marks_allowed_unless_it_is_written() {
        let beside = |arguments: &[&str]| {
            let arguments = [&["--source", "dir:/m", "--node", "n"], arguments].concat();
            let fixed = config(&arguments).unwrap().fixed;
            (fixed.jump, fixed.allow_foreign_marks)
        };
        assert_eq!(beside(&[]), (JumpPosition::Insert, false));
        let written = ["--jump", "append", "--allow-foreign-marks"];
        assert_eq!(beside(&written), (JumpPosition::Append, true));
        assert!(!beside(&["--allow-foreign-marks=false"]).1);
    }

    #[test]
    fn rules_are_written_by_netlink_unless_the_programs_are_written() {
        let writer = |arguments: &[&str]| {
            let arguments = [&["--source", "dir:/m", "--node", "n"], arguments].concat();
            config(&arguments).unwrap().fixed.nft_writer
        };
        assert_eq!(writer(&[]), NftWriter::Netlink);
        assert_eq!(writer(&["--nft-writer", "programs"]), NftWriter::Programs);
        let of_file = |word: &str| serde_saphyr::from_str::<Written>(&format!("nftWriter: {word}"));
        assert_eq!(of_file("programs").unwrap().nft_writer, Some(NftWriter::Programs));
        let error = of_file("program").unwrap_err().to_string();
        assert!(
            error.contains("nftWriter") && error.contains("netlink, programs"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_state_keeps_nothing() {
        let state = |state: &str| {
            let arguments = ["--source", "dir:/m", "--node", "n", "--state", state];
            config(&arguments).unwrap().fixed.state
        };
        assert_eq!((state(""), state("/s")), (None, Some(PathBuf::from("/s"))));
        let arguments = ["--source", "dir:/m", "--node", "n", "--state-objects", ""];
        assert_eq!(
            super::tests::config(&arguments).unwrap().fixed.state_objects,
            None
        );
    }

    #[test]
    fn the_nodes_addresses_are_reported_where_that_is_written_and_the_name_is_a_nodes() {
        let report = |node: &str, folder: &str| {
            let arguments = ["--source", "dir:/m", "--node", node, "--report-dir", folder];
            config(&arguments).map(|config| config.fixed.report_dir)
        };
        assert_eq!(report("n-1.example", "/r").unwrap(), Some(PathBuf::from("/r")));
        assert_eq!(report("../n", "").unwrap(), None);
        for wrong in ["../n", "a/b", "N", ".n", "n\n"] {
            assert!(
                matches!(report(wrong, "/r"), Err(Invalid::Range { field: "node", .. })),
                "{wrong}"
            );
        }
    }

    #[test]
    fn dnsd_stands_in_for_kube_dns_where_its_addresses_are_written() {
        let dns = |arguments: &[&str]| {
            let arguments = [&["--source", "dir:/m", "--node", "n"], arguments].concat();
            config(&arguments).unwrap().fixed.compiler.dns
        };
        assert_eq!(dns(&[]), DnsStandIn::default());
        let both = ["--dns-address", "169.254.20.10", "--dns-address", "fd00::20:10"];
        let written = dns(&[both.as_slice(), &["--dns-service", "dns/coredns"]].concat());
        assert_eq!(dns(&both).service.to_string(), "kube-system/kube-dns");
        assert_eq!(
            (written.service.to_string(), written.addresses.len()),
            ("dns/coredns".into(), 2)
        );
    }

    #[test]
    fn unknown_pods_are_closed_once_there_are_policies_unless_something_else_is_written() {
        let unknown = |arguments: &[&str]| {
            let arguments = [&["--source", "dir:/m", "--node", "n"], arguments].concat();
            config(&arguments).unwrap().fixed.unknown
        };
        // What is closed where it is not known whether there are policies, where there are none, and some.
        let closes = |arguments: &[&str]| {
            [None, Some(false), Some(true)].map(|any| unknown(arguments).are_closed(any))
        };
        assert_eq!(closes(&[]), [true, false, true]);
        assert_eq!(closes(&["--on-unknown-pod", "deny"]), [true, true, true]);
        assert_eq!(closes(&["--on-unknown-pod", "allow"]), [false, false, false]);
        let named = unknown(&["--pod-interfaces", "lxc+", "br-pods"]).interfaces;
        assert!(named.iter().any(|pattern| pattern.matches("lxc0a1b")));
        assert!(!named.iter().any(|pattern| pattern.matches("cni0")));
        let usual = unknown(&[]).interfaces;
        for (name, is_a_pods) in [
            ("veth1a2b3c4d", true),
            ("cali0123456789a", true),
            ("cni0", true),
            ("docker0", false),
            ("br-0123456789ab", false),
            ("virbr0", false),
            ("vnet0", false),
            ("lxcbr0", false),
            ("tap0", false),
            ("eth0", false),
            ("enp3s0", false),
            ("flannel.1", false),
            ("cni-podman0", false),
        ] {
            let is_closed = usual.iter().any(|pattern| pattern.matches(name));
            assert_eq!(is_closed, is_a_pods, "{name}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_its_field() {
        for wrong in [
            &["--addresses-per-name", "99"][..],
            &["--events-per-second", "0"],
            &["--events-per-second", "1001"],
            &["--events-group", "0"],
            &["--rule-metrics", "4097"],
            &["--names-per-pod", "0"],
            &["--members-per-set", "0"],
            &["--min-ttl", "2s", "--max-ttl", "1s"],
            &["--egress-mark-mask", "0xff", "--ingress-mark-mask", "0xff"],
            &["--dns-address", "169.254.20.10", "0.0.0.0"],
        ] {
            let arguments = [&["--source", "dir:/m", "--node", "n"], wrong].concat();
            assert!(config(&arguments).is_err(), "{wrong:?}");
        }
        for wrong in [
            &["--backend", "ipvs"][..],
            &["--iptables", "xt"],
            &["--nft-writer", "nft"],
            &["--jump", "first"],
            &["--allow-foreign-marks", "maybe"],
            &["--source", "/m"],
            &["--source", "dir:"],
            &["--dns-service", "kube-dns"],
            &["--events", "stout"],
            &["--pod-interfaces", "+"],
            &["--pod-interfaces", "l+"],
            &["--pod-interfaces", "a b"],
            &["--on-unknown-pod", "reject"],
            &["--dns-address", "169.254.20.10:53"],
        ] {
            assert!(
                Args::try_parse_from([&["enforcer"], wrong].concat()).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn every_option_is_a_field_of_the_file_and_unknown_fields_are_refused() {
        use clap::CommandFactory;
        let command = Args::command();
        let options = command.get_arguments().filter_map(|argument| argument.get_long());
        for option in options.filter(|option| !["config", "help", "version"].contains(option)) {
            let mut words = option.split('-');
            let field: String = words.next().unwrap_or_default().to_owned()
                + &words
                    .map(|word| word[..1].to_uppercase() + &word[1..])
                    .collect::<String>();
            let error = serde_saphyr::from_str::<Written>(&format!("{field}: {{}}"))
                .unwrap_err()
                .to_string();
            assert!(!error.contains("unknown field"), "{field}: {error}");
        }
        assert!(
            serde_saphyr::from_str::<Written>("nodes: x")
                .unwrap_err()
                .to_string()
                .contains("unknown field")
        );
    }
}
