//! Configuration: `Options` are the options of the command line and the file; `Config` is complete and validated.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egret_kernel::iptables::Flavour;
use egret_policies::compiler::{DnsStandIn, NodeScope, PodToOwnNode, Settings};
use egret_policies::model::Enforcement;
use egret_policies::records::{NamesMayOpen, RecordLimits, RecordSettings, usually_protected};
use egret_shared::cni::DEFAULT_SOCKET;
use egret_shared::rt::config::{ConfigError, load};

use crate::backend::netfilter::bridges::BridgeNetfilter;
use crate::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks, SharedBits};
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::model::settings::JumpPosition;
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::model::unknown_pods::UnknownPods;
use crate::backend::unknown_pods::Stance;
use crate::events::sink::Destination;

mod value;
mod options;

pub use options::{Args, Command, Options};
pub use value::{
    BackendChoice, BackendKind, EnforcementMode, FlavourChoice, InvalidValue, MillisDuration, NameTarget,
    OwnNodeAccess, PodInterfaces, Source, UnknownPodPolicy,
};

use options::{DEFAULT_LINK, DEFAULT_OBJECTS, DEFAULT_STATE};

/// The most rules with a series of their own: each is a line in the kernel, written with every change.
const MAX_SERIES: usize = 4096;

/// The validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Settings that need a restart to change.
    pub startup: StartupConfig,
    /// The interval of comparisons with the kernel; zero for never.
    pub resync: Duration,
    /// How many rules have a series of their own.
    pub rule_metrics: usize,
}

/// Settings that need a restart to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// The folder of manifests.
    pub source: Source,
    /// How the API server is reached, where that is the source; none to find out.
    pub kubeconfig: Option<PathBuf>,
    /// The backend; none where it is chosen at start.
    pub backend: Option<BackendKind>,
    /// The socket for dnsd.
    pub link: PathBuf,
    /// The socket for the CNI plugin; none for no plugin.
    pub cni: Option<PathBuf>,
    /// The address of the admin endpoints.
    pub admin: SocketAddr,
    /// The file of records; none to store nothing.
    pub state: Option<PathBuf>,
    /// The file of the source's objects; none to store nothing.
    pub state_objects: Option<PathBuf>,
    /// The folder for the report of the node's addresses; none for no report.
    pub report_dir: Option<PathBuf>,
    /// Settings of the compiler, with the node's name.
    pub compiler: Settings,
    /// The flavour of iptables; none to detect it.
    pub flavour: Option<Flavour>,
    /// Our bits of the connection mark.
    pub marks: Marks,
    /// Whether rules of others may write these bits.
    pub allow_foreign_marks: bool,
    /// Where our jumps are among the rules of others.
    pub jump: JumpPosition,
    /// What the sender of a denied packet receives.
    pub deny: DenyAction,
    /// What happens to unknown pods.
    pub unknown: UnknownPods,
    /// The log of denied packets.
    pub events: Events,
    /// What is done about bridges of pods.
    pub bridges: BridgeNetfilter,
    /// Namespaces whose pods dnsd does not intercept.
    pub not_intercepted: BTreeSet<Arc<str>>,
    /// The cgroup2 folder of the backend ebpf.
    pub cgroup_root: PathBuf,
    /// The pin path of the backend ebpf.
    pub bpf_pins: PathBuf,
}

impl StartupConfig {
    /// The name of this node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        match &self.compiler.node {
            NodeScope::One(node) => node,
            NodeScope::All => "",
        }
    }
}

/// The log of denied packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// Where it is written.
    pub to: Destination,
    /// How the kernel logs denied packets.
    pub telling: NflogSettings,
}

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidConfig {
    /// The file cannot be read or parsed.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// A required field is missing.
    #[error("{field} is missing: {expected}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What it should hold.
        expected: &'static str,
    },
    /// A value is out of range.
    #[error("{field}: {value} is not accepted; {range} is")]
    Range {
        /// The field.
        field: &'static str,
        /// The value.
        value: String,
        /// The accepted range.
        range: &'static str,
    },
    /// The masks share bits.
    #[error("egressMarkMask, ingressMarkMask: {0}")]
    Marks(#[from] SharedBits),
}

impl Config {
    /// Reads the command line and the file that it names.
    ///
    /// # Errors
    ///
    /// The field, or the file with line and column.
    pub fn load(args: &Args) -> Result<Self, InvalidConfig> {
        let file = match &args.config {
            Some(path) => load::<Options>(path)?,
            None => Options::default(),
        };
        args.options.clone().over(file).validate()
    }

    /// Fields that differ and need a restart.
    #[must_use]
    pub fn needs_restart(&self, other: &Self) -> Vec<&'static str> {
        let (mine, theirs) = (&self.startup, &other.startup);
        [
            ("source", mine.source != theirs.source),
            ("kubeconfig", mine.kubeconfig != theirs.kubeconfig),
            ("backend", mine.backend != theirs.backend),
            ("link", mine.link != theirs.link),
            ("cni", mine.cni != theirs.cni),
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

impl Options {
    /// Validates the options and adds defaults.
    ///
    /// # Errors
    ///
    /// The field.
    pub fn validate(self) -> Result<Config, InvalidConfig> {
        let (compiler, unknown) = (self.compiler()?, self.unknown());
        let events = self.events()?;
        let rule_metrics = self.rule_metrics.unwrap_or(0);
        if rule_metrics > MAX_SERIES {
            return Err(InvalidConfig::Range {
                field: "ruleMetrics",
                value: rule_metrics.to_string(),
                range: "at most 4096",
            });
        }
        let report_dir = self.report_dir(&compiler.node)?;
        let (egress, ingress) = (
            self.egress_mark_mask.unwrap_or(DEFAULT_EGRESS),
            self.ingress_mark_mask.unwrap_or(DEFAULT_INGRESS),
        );
        let backend = self.backend.and_then(BackendChoice::kind);
        let bridges = self.bridge_netfilter.unwrap_or(BridgeNetfilter::Off);
        let source = self.source.ok_or(InvalidConfig::Missing {
            field: "source",
            expected: "kube, or dir: and the path of a folder of manifests",
        })?;
        Ok(Config {
            startup: StartupConfig {
                source,
                kubeconfig: self.kubeconfig,
                backend,
                link: self.link.unwrap_or_else(|| DEFAULT_LINK.into()),
                admin: self
                    .admin
                    .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9254))),
                cni: Some(self.cni.unwrap_or_else(|| DEFAULT_SOCKET.into()))
                    .filter(|path| !path.as_os_str().is_empty()),
                state: Some(self.state.unwrap_or_else(|| DEFAULT_STATE.into()))
                    .filter(|path| !path.as_os_str().is_empty()),
                state_objects: Some(self.state_objects.unwrap_or_else(|| DEFAULT_OBJECTS.into()))
                    .filter(|path| !path.as_os_str().is_empty()),
                report_dir,
                compiler,
                flavour: self.iptables.unwrap_or(FlavourChoice::Auto).flavour(),
                marks: Marks::new(egress, ingress)?,
                allow_foreign_marks: self.allow_foreign_marks.unwrap_or(false),
                jump: self.jump.unwrap_or(JumpPosition::Insert),
                deny: self.deny_action.unwrap_or(DenyAction::Drop),
                events,
                unknown,
                bridges,
                not_intercepted: self
                    .not_intercepted
                    .unwrap_or_else(|| vec!["kube-system".to_owned()])
                    .into_iter()
                    .map(Arc::from)
                    .collect(),
                cgroup_root: self.cgroup_root.unwrap_or_else(|| "/sys/fs/cgroup".into()),
                bpf_pins: self.bpf_pins.unwrap_or_else(|| "/sys/fs/bpf/egret".into()),
            },
            resync: self
                .resync
                .map_or(Duration::from_secs(60), MillisDuration::as_duration),
            rule_metrics,
        })
    }

    fn compiler(&self) -> Result<Settings, InvalidConfig> {
        let node = self.node.clone().filter(|node| !node.is_empty());
        let node = node.ok_or(InvalidConfig::Missing {
            field: "node",
            expected: "the name that Pods have in spec.nodeName",
        })?;
        Ok(Settings {
            node: NodeScope::One(Arc::from(node)),
            records: self.records()?,
            pod_to_own_node: match self.pod_to_own_node.unwrap_or(OwnNodeAccess::Allow) {
                OwnNodeAccess::Allow => PodToOwnNode::Allow,
                OwnNodeAccess::Dns => PodToOwnNode::Dns,
                OwnNodeAccess::Enforce => PodToOwnNode::Enforce,
            },
            dns: self.dns()?,
            enforcement: match self.enforcement.unwrap_or(EnforcementMode::Enforce) {
                EnforcementMode::Enforce => Enforcement::Enforced,
                EnforcementMode::Audit => Enforcement::Audited,
            },
        })
    }

    /// The node's name becomes a file name.
    fn report_dir(&self, node: &NodeScope) -> Result<Option<PathBuf>, InvalidConfig> {
        let written = self.report_dir.clone();
        let new = written.filter(|path| !path.as_os_str().is_empty());
        match node {
            NodeScope::One(name) if new.is_some() && !is_name_of_node(name) => Err(InvalidConfig::Range {
                field: "node",
                value: name.to_string(),
                range: "with reportDir, a name as Nodes have it (a-z, 0-9, - and ., at most 240 characters)",
            }),
            NodeScope::One(_) | NodeScope::All => Ok(new),
        }
    }

    fn unknown(&self) -> UnknownPods {
        let written = self.pod_interfaces.clone();
        UnknownPods {
            stance: match self.on_unknown_pod {
                None => Stance::DenyOncePolicies,
                Some(UnknownPodPolicy::Deny) => Stance::Deny,
                Some(UnknownPodPolicy::Allow) => Stance::Allow,
            },
            interfaces: match written {
                None => options::default_pod_interfaces(),
                Some(written) => written.into_iter().map(PodInterfaces::into_pattern).collect(),
            },
        }
    }

    fn events(&self) -> Result<Events, InvalidConfig> {
        let per_second = self.events_per_second.unwrap_or(10);
        let group = self.events_group.unwrap_or(9254);
        let refuse = |field, value: u32, range| InvalidConfig::Range {
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
            to: self.events.clone().unwrap_or(Destination::Off),
            telling: NflogSettings { group, per_second },
        })
    }

    fn dns(&self) -> Result<DnsStandIn, InvalidConfig> {
        let listens: Vec<IpAddr> = self.dns_address.iter().flatten().copied().collect();
        if let Some(any) = listens.iter().find(|address| address.is_unspecified()) {
            return Err(InvalidConfig::Range {
                field: "dnsAddress",
                value: any.to_string(),
                range: "each address that pods ask, by itself,",
            });
        }
        let default = DnsStandIn::default();
        Ok(DnsStandIn {
            service: self.dns_service.clone().unwrap_or(default.service),
            addresses: listens.into_iter().collect(),
        })
    }

    fn may_names_open(&self, what: NameTarget) -> bool {
        self.names_may_open.iter().flatten().any(|opened| *opened == what)
    }

    fn records(&self) -> Result<RecordSettings, InvalidConfig> {
        let default = RecordSettings::default();
        let span = |written: Option<MillisDuration>, default: Duration| {
            written.map_or(default, MillisDuration::as_duration)
        };
        let (min_ttl, max_ttl) = (
            span(self.min_ttl, default.min_ttl),
            span(self.max_ttl, default.max_ttl),
        );
        if min_ttl > max_ttl {
            let value = format!("{} s", min_ttl.as_secs());
            return Err(InvalidConfig::Range {
                field: "minTtl",
                value,
                range: "at most maxTtl",
            });
        }
        Ok(RecordSettings {
            min_ttl,
            max_ttl,
            grace: span(self.record_grace, default.grace),
            protected: self.protected.clone().unwrap_or_else(usually_protected),
            names_may_open: NamesMayOpen {
                node: self.may_names_open(NameTarget::Node),
                api_server: self.may_names_open(NameTarget::ApiServer),
            },
            limits: RecordLimits {
                names_per_pod: at_least("namesPerPod", self.names_per_pod, default.limits.names_per_pod, 1)?,
                addresses_per_name: at_least(
                    "addressesPerName",
                    self.addresses_per_name,
                    default.limits.addresses_per_name,
                    100,
                )?,
                total: at_least("recordsTotal", self.records_total, default.limits.total, 1)?,
            },
        })
    }
}

/// RFC 1123, as the API server demands of Nodes. The length leaves room for the rest of the file name.
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
    default: usize,
    least: usize,
) -> Result<usize, InvalidConfig> {
    let value = written.unwrap_or(default);
    if (least..=10_000_000).contains(&value) {
        return Ok(value);
    }
    let range = if least == 100 {
        "100 to 10000000"
    } else {
        "1 to 10000000"
    };
    Err(InvalidConfig::Range {
        field,
        value: value.to_string(),
        range,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn config(arguments: &[&str]) -> Result<Config, InvalidConfig> {
        Config::load(&Args::try_parse_from([&["enforcer"], arguments].concat()).unwrap())
    }

    #[test]
    fn source_and_node_must_be_written_and_the_rest_has_defaults() {
        let config = config(&["--source", "dir:/m", "--node", "n"]).unwrap();
        assert_eq!(config.startup.source, Source::Dir("/m".into()));
        assert_eq!(config.startup.backend, None);
        assert_eq!(config.startup.state, Some(PathBuf::from("/run/egret/state")));
        assert_eq!(
            config.startup.state_objects,
            Some(PathBuf::from("/var/lib/egret/objects"))
        );
        assert!(matches!(
            super::tests::config(&["--node", "n"]),
            Err(InvalidConfig::Missing { field: "source", .. })
        ));
        assert!(matches!(
            super::tests::config(&["--source", "dir:/m"]),
            Err(InvalidConfig::Missing { field: "node", .. })
        ));
    }

    #[test]
    fn jumps_are_inserted_and_no_foreign_marks_allowed_unless_it_is_written() {
        let beside = |arguments: &[&str]| {
            let arguments = [&["--source", "dir:/m", "--node", "n"], arguments].concat();
            let startup = config(&arguments).unwrap().startup;
            (startup.jump, startup.allow_foreign_marks)
        };
        assert_eq!(beside(&[]), (JumpPosition::Insert, false));
        let written = ["--jump", "append", "--allow-foreign-marks"];
        assert_eq!(beside(&written), (JumpPosition::Append, true));
        assert!(!beside(&["--allow-foreign-marks=false"]).1);
    }

    #[test]
    fn an_empty_state_keeps_nothing() {
        let state = |state: &str| {
            let arguments = ["--source", "dir:/m", "--node", "n", "--state", state];
            config(&arguments).unwrap().startup.state
        };
        assert_eq!((state(""), state("/s")), (None, Some(PathBuf::from("/s"))));
        let arguments = ["--source", "dir:/m", "--node", "n", "--state-objects", ""];
        assert_eq!(
            super::tests::config(&arguments).unwrap().startup.state_objects,
            None
        );
    }

    #[test]
    fn the_nodes_addresses_are_reported_where_that_is_written_and_the_name_is_a_nodes() {
        let report = |node: &str, folder: &str| {
            let arguments = ["--source", "dir:/m", "--node", node, "--report-dir", folder];
            config(&arguments).map(|config| config.startup.report_dir)
        };
        assert_eq!(report("n-1.example", "/r").unwrap(), Some(PathBuf::from("/r")));
        assert_eq!(report("../n", "").unwrap(), None);
        for wrong in ["../n", "a/b", "N", ".n", "n\n"] {
            assert!(
                matches!(
                    report(wrong, "/r"),
                    Err(InvalidConfig::Range { field: "node", .. })
                ),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_backend_netfilter_is_called_iptables_as_well() {
        let arguments = ["--source", "dir:/m", "--node", "n", "--backend", "iptables"];
        let startup = config(&arguments).unwrap().startup;
        assert_eq!(startup.backend, Some(BackendKind::Netfilter));
        let of_file: BackendChoice = serde_json::from_str("\"iptables\"").unwrap();
        assert_eq!(of_file, BackendChoice::Netfilter);
    }

    #[test]
    fn dnsd_stands_in_for_kube_dns_where_its_addresses_are_written() {
        let dns = |arguments: &[&str]| {
            let arguments = [&["--source", "dir:/m", "--node", "n"], arguments].concat();
            config(&arguments).unwrap().startup.compiler.dns
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
            config(&arguments).unwrap().startup.unknown
        };
        // Whether pods are closed where it is unknown whether there are policies, without policies, and with policies.
        let closes = |arguments: &[&str]| {
            [None, Some(false), Some(true)].map(|any| unknown(arguments).stance.closes(any))
        };
        assert_eq!(closes(&[]), [true, false, true]);
        assert_eq!(closes(&["--on-unknown-pod", "deny"]), [true, true, true]);
        assert_eq!(closes(&["--on-unknown-pod", "allow"]), [false, false, false]);
        let named = unknown(&["--pod-interfaces", "lxc+", "br-pods"]).interfaces;
        assert!(named.iter().any(|pattern| pattern.matches("lxc0a1b")));
        assert!(!named.iter().any(|pattern| pattern.matches("cni0")));
        let default = unknown(&[]).interfaces;
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
            let is_closed = default.iter().any(|pattern| pattern.matches(name));
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
            let error = serde_saphyr::from_str::<Options>(&format!("{field}: {{}}"))
                .unwrap_err()
                .to_string();
            assert!(!error.contains("unknown field"), "{field}: {error}");
        }
        // The last two were fields of an earlier version.
        for unknown in ["nodes", "membersPerSet", "nftWriter"] {
            let error = serde_saphyr::from_str::<Options>(&format!("{unknown}: x")).unwrap_err();
            let named = format!("unknown field `{unknown}`");
            assert!(error.to_string().contains(&named), "{error}");
        }
    }
}
