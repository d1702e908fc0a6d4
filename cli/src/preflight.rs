//! `egret preflight`: what is on this node, what Egret uses of it, and what has to change before.
//!
//! It is the one command that looks at a machine. It reads, and changes nothing.

mod facts;

use std::fmt;
use std::io::{self, Write};

use facts::{Facts, Flavour, Rules, Seen};

/// Egret's bits of the connection mark unless `--egress-mark-mask` and `--ingress-mark-mask` say otherwise (docs/enforcer.md).
const MARKS: u32 = 0x07ff_0000 | 0xf800_3f00;
/// Chains that the kubelet makes in its flavour, as the wrappers of Kubernetes' images look for them.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT", ":KUBE-KUBELET-CANARY"];
/// How the chains of others begin that judge packets of pods, and whose they are.
const AGENTS: [(&str, &str); 6] = [
    (":cali-", "Calico"),
    (":CILIUM_", "Cilium"),
    (":KUBE-ROUTER-", "kube-router"),
    (":KUBE-NWPLCY-", "kube-router"),
    (":WEAVE-NPC", "Weave"),
    (":ANTREA-", "Antrea"),
];

/// Look at this node: what is there, what Egret uses, what must change
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Run it as root in the node's namespaces. It ends with 0 if nothing must change, else with 1."
)]
pub struct Arguments {}

/// Whether something must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    MustChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Egret uses it as it is.
    Fine,
    /// Egret works, and less than everywhere else; or nobody knows.
    Limit,
    /// Egret does not work, or does not protect.
    Change,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "ok",
            Self::Limit => "limit",
            Self::Change => "change",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    weight: Weight,
    subject: &'static str,
    text: String,
}

impl Arguments {
    /// Prints a line for each finding.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub fn run(&self, out: &mut impl Write) -> io::Result<Readiness> {
        let findings = judge(&Facts::read());
        for Finding {
            weight,
            subject,
            text,
        } in &findings
        {
            writeln!(out, "{weight:<7} {subject:<15} {text}")?;
        }
        let must_change = findings.iter().any(|finding| finding.weight == Weight::Change);
        Ok(if must_change {
            Readiness::MustChange
        } else {
            Readiness::Ready
        })
    }
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kernel(facts)];
    findings.extend(iptables(facts));
    findings.push(kube_proxy(facts));
    findings.push(node_local_dns(facts));
    findings.extend(agents(facts));
    findings.extend(marks(facts));
    findings.extend(bridges(facts));
    findings.push(nftables(facts));
    findings.push(ebpf(facts));
    findings
}

fn finding(weight: Weight, subject: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        weight,
        subject,
        text: text.into(),
    }
}

fn kernel(facts: &Facts) -> Finding {
    let missing: Vec<&str> = [("ip_set", facts.has_ipset), ("nf_tables", facts.has_nf_tables)]
        .iter()
        .filter_map(|(name, is_there)| (!is_there).then_some(*name))
        .collect();
    match missing.as_slice() {
        [] => finding(
            Weight::Fine,
            "kernel",
            format!("{}, with ip_set and nf_tables", facts.release),
        ),
        ["nf_tables"] => finding(
            Weight::Limit,
            "kernel",
            format!(
                "{}: nf_tables is not found; the flavour legacy is used",
                facts.release
            ),
        ),
        _ => finding(
            Weight::Change,
            "kernel",
            format!(
                "{}: {} is not found: load it (modprobe), or use a kernel that has it",
                facts.release,
                missing.join(" and ")
            ),
        ),
    }
}

/// The kubelet's flavour, else the one with more rules, else nft; as the enforcer chooses with `--iptables auto`.
fn iptables(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut installed: Vec<(Flavour, &[String])> = Vec::new();
    for Rules { flavour, lines } in &facts.rules {
        match lines {
            Seen::Found(Some(lines)) => installed.push((*flavour, lines)),
            Seen::Found(None) => {}
            Seen::Unknown(why) => findings.push(finding(
                Weight::Change,
                "iptables",
                format!(
                    "the rules of the flavour {} cannot be listed: {why}",
                    flavour.name()
                ),
            )),
        }
    }
    let hinted = installed.iter().find(|(_, lines)| {
        lines
            .iter()
            .any(|line| HINTS.iter().any(|hint| line.starts_with(hint)))
    });
    let most = installed
        .iter()
        .rev()
        .max_by_key(|(_, lines)| foreign_rules(lines));
    let chosen = match (hinted, most) {
        (Some((flavour, _)), _) => finding(
            Weight::Fine,
            "iptables",
            format!("flavour {}, the kubelet's; Egret uses it as well", flavour.name()),
        ),
        (None, Some((flavour, lines))) => finding(
            Weight::Fine,
            "iptables",
            format!(
                "flavour {}: no hint of a kubelet, {} rules of others",
                flavour.name(),
                foreign_rules(lines)
            ),
        ),
        (None, None) if findings.is_empty() => finding(
            Weight::Limit,
            "iptables",
            "no program of iptables on the node: the image has both flavours; install iptables to see what is there",
        ),
        (None, None) => return findings,
    };
    findings.push(chosen);
    findings
}

/// How many rules are of others.
fn foreign_rules(lines: &[String]) -> usize {
    lines
        .iter()
        .filter(|line| line.starts_with("-A ") && !line.starts_with("-A EGRET-"))
        .count()
}

fn lines(facts: &Facts) -> impl Iterator<Item = &String> {
    facts.rules.iter().flat_map(|rules| match &rules.lines {
        Seen::Found(Some(lines)) => lines.as_slice(),
        Seen::Found(None) | Seen::Unknown(_) => &[],
    })
}

fn kube_proxy(facts: &Facts) -> Finding {
    let has_chain = |name: &str| lines(facts).any(|line| line.starts_with(name));
    let is_nftables = match &facts.nft_tables {
        Seen::Found(tables) => tables.iter().any(|table| table.ends_with(" kube-proxy")),
        Seen::Unknown(_) => false,
    };
    if facts.has_ipvs && facts.interfaces.iter().any(|name| name == "kube-ipvs0") {
        return finding(
            Weight::Limit,
            "kube-proxy",
            "mode ipvs: set dns.kubeProxy=ipvs, and let pods ask dnsd at its own address; a Service that leads to a process of the node is judged by the Service's address",
        );
    }
    if is_nftables {
        return finding(
            Weight::Fine,
            "kube-proxy",
            "mode nftables: set dns.kubeProxy=nftables",
        );
    }
    if has_chain(":KUBE-SERVICES ") {
        return finding(Weight::Fine, "kube-proxy", "mode iptables");
    }
    let why = match &facts.nft_tables {
        Seen::Found(_) => String::new(),
        Seen::Unknown(why) => format!(" (tables of nf_tables cannot be listed: {why})"),
    };
    finding(
        Weight::Limit,
        "kube-proxy",
        format!(
            "none of its modes is found{why}: Services that eBPF translates are judged by where packets pass iptables, if they do"
        ),
    )
}

fn node_local_dns(facts: &Facts) -> Finding {
    if facts.interfaces.iter().any(|name| name == "nodelocaldns") {
        finding(
            Weight::Limit,
            "node-local-dns",
            "it is here: dnsd takes its place (deploy/kustomize/overlays/node-local-dns), not one beside the other",
        )
    } else {
        finding(Weight::Fine, "node-local-dns", "it is not here")
    }
}

fn agents(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (prefix, agent) in AGENTS {
        if lines(facts).any(|line| line.starts_with(prefix))
            && !findings.iter().any(|known| known.text.starts_with(agent))
        {
            findings.push(finding(
                Weight::Limit,
                "other agents",
                format!("{agent} has rules here: both judge, and a packet passes if both allow it"),
            ));
        }
    }
    if facts.interfaces.iter().any(|name| name == "cilium_host") {
        findings.push(finding(
            Weight::Change,
            "other agents",
            "Cilium forwards pods' packets in eBPF, past the rules of iptables: the backend netfilter judges none of them",
        ));
    }
    if findings.is_empty() {
        findings.push(finding(Weight::Fine, "other agents", "none is found"));
    }
    findings
}

/// The enforcer does not start beside such a rule.
fn marks(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for line in lines(facts).filter(|line| line.starts_with("-A ") && !line.starts_with("-A EGRET-")) {
        if let Some(bits) = written_bits(line).filter(|bits| bits & MARKS != 0)
            && !findings.iter().any(|known| known.text.ends_with(line.as_str()))
        {
            findings.push(finding(
                Weight::Change,
                "marks",
                format!(
                    "bits {:#010x} of the connection mark are another's: choose others (--egress-mark-mask, --ingress-mark-mask): {line}",
                    bits & MARKS
                ),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(finding(
            Weight::Fine,
            "marks",
            format!("nobody writes {MARKS:#010x} of the connection mark"),
        ));
    }
    findings
}

/// Bits of the connection mark that a rule writes, as `iptables-save` prints it (xtables-addons' `CONNMARK`); all of them where it cannot be read.
fn written_bits(rule: &str) -> Option<u32> {
    let words: Vec<&str> = rule.split_whitespace().collect();
    let target = words.windows(2).position(|pair| pair == ["-j", "CONNMARK"])?;
    let options = &words[target + 2..];
    let after = |name: &str| {
        let at = options.iter().position(|word| *word == name)?;
        options.get(at + 1).copied()
    };
    if options.contains(&"--restore-mark") {
        return None;
    }
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let bits = match (after("--set-xmark"), options.contains(&"--save-mark")) {
        (Some(value), _) => match value.split_once('/') {
            Some((value, mask)) => number(value).zip(number(mask)).map(|(value, mask)| value | mask),
            None => Some(u32::MAX),
        },
        (None, true) => after("--ctmask").map_or(Some(u32::MAX), number),
        (None, false) => None,
    };
    Some(bits.unwrap_or(u32::MAX))
}

fn bridges(facts: &Facts) -> Vec<Finding> {
    if facts.bridges.is_empty() {
        return vec![finding(Weight::Fine, "bridges", "none has ports")];
    }
    let names = facts.bridges.join(", ");
    vec![match facts.bridge_netfilter {
        Some(true) => finding(
            Weight::Fine,
            "bridges",
            format!("{names}: packets between their ports pass iptables (bridge-nf-call-iptables=1)"),
        ),
        Some(false) => finding(
            Weight::Limit,
            "bridges",
            format!(
                "{names}: packets between their ports pass no rule; if pods are behind them, set --bridge-netfilter=enable"
            ),
        ),
        None => finding(
            Weight::Limit,
            "bridges",
            format!(
                "{names}: packets between their ports pass no rule; if pods are behind them, load br_netfilter and set --bridge-netfilter=enable"
            ),
        ),
    }]
}

fn nftables(facts: &Facts) -> Finding {
    const OLDEST: [u32; 2] = [6, 3];
    let mut numbers = facts.release.split(['.', '-']).map(str::parse::<u32>);
    let version = [numbers.next(), numbers.next()].map(|number| number.and_then(Result::ok).unwrap_or(0));
    if !facts.has_nf_tables {
        let text = "the backend nftables lacks the kernel module nf_tables: netfilter is used";
        finding(Weight::Limit, "nftables", text.to_owned())
    } else if version < OLDEST {
        let text = format!(
            "the backend nftables needs Linux 6.3, and this is {}: netfilter is used",
            facts.release
        );
        finding(Weight::Limit, "nftables", text)
    } else {
        finding(
            Weight::Fine,
            "nftables",
            "the backend nftables is used, unless rules of netfilter are there or the flavour above is legacy".to_owned(),
        )
    }
}

fn ebpf(facts: &Facts) -> Finding {
    let missing: Vec<&str> = [
        ("cgroup2 at /sys/fs/cgroup", facts.has_cgroup2),
        ("bpffs at /sys/fs/bpf", facts.has_bpffs),
    ]
    .iter()
    .filter_map(|(name, is_there)| (!is_there).then_some(*name))
    .collect();
    let btf = if facts.has_btf { "with BTF" } else { "without BTF" };
    if missing.is_empty() {
        finding(
            Weight::Fine,
            "ebpf",
            format!("cgroup2 and bpffs are there, {btf}"),
        )
    } else {
        finding(
            Weight::Limit,
            "ebpf",
            format!(
                "the backend ebpf lacks {} ({btf}); the backend netfilter needs none of it",
                missing.join(" and ")
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_nftables_needs_its_module_and_a_kernel_that_is_new_enough() {
        for (release, has_nf_tables, weight) in [
            ("6.3.0", true, Weight::Fine),
            ("6.12.0-55.el10.x86_64", true, Weight::Fine),
            ("6.1.0-28-amd64", true, Weight::Limit),
            ("5.14.0", true, Weight::Limit),
            ("6.12.0", false, Weight::Limit),
        ] {
            let mut facts = node(&[]);
            facts.release = release.into();
            facts.has_nf_tables = has_nf_tables;
            assert_eq!(nftables(&facts).weight, weight, "{release}");
        }
    }

    fn node(rules: &[&str]) -> Facts {
        Facts {
            release: "6.8.0".into(),
            rules: vec![
                Rules {
                    flavour: Flavour::Nft,
                    lines: Seen::Found(Some(rules.iter().map(|&line| line.to_owned()).collect())),
                },
                Rules {
                    flavour: Flavour::Legacy,
                    lines: Seen::Found(Some(Vec::new())),
                },
            ],
            nft_tables: Seen::Found(Vec::new()),
            interfaces: vec!["lo".into(), "eth0".into()],
            bridges: Vec::new(),
            has_ipvs: false,
            bridge_netfilter: None,
            has_cgroup2: true,
            has_btf: true,
            has_bpffs: true,
            has_ipset: true,
            has_nf_tables: true,
        }
    }

    fn of(facts: &Facts, subject: &str) -> (Weight, String) {
        let found = judge(facts)
            .into_iter()
            .find(|finding| finding.subject == subject);
        let found = found.expect("each subject has a finding");
        (found.weight, found.text)
    }

    #[test]
    fn a_usual_node_needs_no_change() {
        let facts = node(&[":KUBE-IPTABLES-HINT - [0:0]", ":KUBE-SERVICES - [0:0]"]);
        assert!(
            judge(&facts).iter().all(|finding| finding.weight == Weight::Fine),
            "{:?}",
            judge(&facts)
        );
        assert!(of(&facts, "iptables").1.contains("nft, the kubelet's"));
        assert_eq!(of(&facts, "kube-proxy").1, "mode iptables");
    }

    #[test]
    fn without_a_hint_the_flavour_with_more_rules_of_others_is_used() {
        let mut facts = node(&["-A EGRET-FORWARD -j RETURN", "-A EGRET-INPUT -j RETURN"]);
        facts.rules[1].lines = Seen::Found(Some(vec!["-A INPUT -j ACCEPT".into()]));
        assert!(of(&facts, "iptables").1.contains("legacy"));
        facts.rules[1].lines = Seen::Found(Some(Vec::new()));
        assert!(of(&facts, "iptables").1.contains("nft"));
    }

    #[test]
    fn the_mode_of_kube_proxy_is_known_by_what_it_leaves() {
        let mut facts = node(&[]);
        assert_eq!(of(&facts, "kube-proxy").0, Weight::Limit);
        facts.nft_tables = Seen::Found(vec!["ip kube-proxy".into()]);
        assert!(of(&facts, "kube-proxy").1.contains("nftables"));
        facts.has_ipvs = true;
        facts.interfaces.push("kube-ipvs0".into());
        assert!(of(&facts, "kube-proxy").1.contains("ipvs"));
    }

    #[test]
    fn bits_that_others_write_must_change_and_those_they_read_need_not() {
        for (rule, is_fine) in [
            ("-A PREROUTING -j CONNMARK --set-xmark 0x80/0x80", true),
            (
                "-A PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80",
                true,
            ),
            ("-A PREROUTING -m connmark --mark 0x10000/0x10000 -j RETURN", true),
            ("-A PREROUTING -j CONNMARK --set-xmark 0x10000/0x10000", false),
            ("-A PREROUTING -j CONNMARK --set-xmark 0x10000/0x0", false),
            (
                "-A PREROUTING -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
                false,
            ),
            ("-A PREROUTING -j CONNMARK --save-mark", false),
            ("-A PREROUTING -j CONNMARK --set-xmark what", false),
            ("-A EGRET-EA-x -j CONNMARK --set-xmark 0x10000/0x7ff0000", true),
        ] {
            let weight = if is_fine { Weight::Fine } else { Weight::Change };
            assert_eq!(of(&node(&[rule]), "marks").0, weight, "{rule}");
        }
    }

    #[test]
    fn what_is_missing_or_in_the_way_is_said() {
        let mut facts = node(&[":cali-FORWARD - [0:0]"]);
        facts.interfaces.extend(["nodelocaldns".into(), "cni0".into()]);
        facts.bridges.push("cni0".into());
        facts.has_cgroup2 = false;
        assert!(of(&facts, "other agents").1.starts_with("Calico"));
        assert_eq!(of(&facts, "node-local-dns").0, Weight::Limit);
        assert!(of(&facts, "bridges").1.contains("load br_netfilter"));
        assert!(of(&facts, "ebpf").1.contains("cgroup2"));
        facts.interfaces.push("cilium_host".into());
        facts.has_ipset = false;
        assert_eq!(of(&facts, "kernel").0, Weight::Change);
        assert!(
            judge(&facts)
                .iter()
                .any(|finding| finding.weight == Weight::Change && finding.text.starts_with("Cilium"))
        );
        facts.rules[0].lines = Seen::Unknown("iptables-nft-save: Permission denied".into());
        assert_eq!(of(&facts, "iptables").0, Weight::Change);
    }
}
