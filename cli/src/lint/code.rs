//! The table of what only `lint` finds: mistakes in objects that are understood. As with all codes, a number
//! is kept for ever.

use egret_policies::diagnostic::{Code, Severity};

/// What is to be known of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LintCode {
    /// The number, such as `EG1001`.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it says, in a few words.
    pub title: &'static str,
    /// What to do about it.
    pub fix: &'static str,
}

const fn warning(id: &'static str, title: &'static str, fix: &'static str) -> LintCode {
    let severity = Severity::Warning;
    LintCode {
        id,
        severity,
        title,
        fix,
    }
}

const fn info(id: &'static str, title: &'static str, fix: &'static str) -> LintCode {
    let severity = Severity::Info;
    LintCode {
        id,
        severity,
        title,
        fix,
    }
}

/// A policy whose subject is none of the pods.
pub const SELECTS_NOTHING: LintCode = warning(
    "EG1001",
    "A policy that selects no pod",
    "Compare its selectors with the labels of the pods and namespaces, and its namespace with theirs.",
);
/// A rule behind one that matches all that it matches.
pub const NEVER_REACHED: LintCode = warning(
    "EG1002",
    "A rule that is never reached",
    "Remove it, or put it before the other: a stronger priority, or an earlier place in the list.",
);
/// All of one family, nothing of the other.
pub const ONE_FAMILY: LintCode = warning(
    "EG1003",
    "All addresses of one family only",
    "Write both 0.0.0.0/0 and ::/0.",
);
/// A named port of no container.
pub const UNSERVED_NAME: LintCode = warning(
    "EG1004",
    "A named port that no pod serves",
    "Write the name of a container port, with its protocol, or the number.",
);
/// The port of a Service instead of the one behind it.
pub const SERVICE_PORT: LintCode = warning(
    "EG1005",
    "The port of a Service where the pod's is meant",
    "Write the port at which the pods listen: policies see connections behind the Service.",
);
/// No names without DNS.
pub const DNS_BLOCKED: LintCode = warning(
    "EG1006",
    "Rules with domain names for a pod that may not ask for names",
    "Allow UDP and TCP 53 to the DNS server: domainNames do not.",
);
/// Nobody said where DNS is.
pub const DNS_UNKNOWN: LintCode = info(
    "EG1007",
    "Rules with domain names, and no DNS server that is known",
    "Give its addresses with --dns, or its pods (k8s-app=kube-dns in kube-system) among the manifests.",
);
/// A name that stands for a virtual address.
pub const SERVICE_NAME: LintCode = warning(
    "EG1008",
    "A domain name of a Service with a cluster address",
    "Select the pods behind the Service: connections are judged by their addresses, never by the Service's.",
);
/// Domain names in the Baseline tier.
pub const BASELINE_NAMES: LintCode = info(
    "EG1009",
    "Domain names in the Baseline tier",
    "Some API servers refuse them: where they must be accepted, use tier Admin.",
);
/// Two objects answer to one name.
pub const SAME_NAME: LintCode = warning(
    "EG1010",
    "A pod and a workload, or two workloads, of one name",
    "Give them different names, or leave one out of the manifests.",
);
/// A policy that is tried, and perhaps forgotten.
pub const IN_AUDIT: LintCode = info(
    "EG1011",
    "A policy, or a Namespace, in audit",
    "Remove the annotation policy.egret.dev/enforcement when nothing is denied any more that should be allowed.",
);
/// DNS is external, too.
pub const DNS_DENIED: LintCode = warning(
    "EG1012",
    "A ClusterEgressFirewall that takes DNS from pods",
    "Put an Allow rule for UDP and TCP 53 to the DNS server before it.",
);
/// A Service that leads nowhere, for pods.
pub const DENIED_ENDPOINT: LintCode = warning(
    "EG1013",
    "A Service that leads to what a ClusterEgressFirewall denies",
    "Take the endpoint out of the Service, or put an Allow rule for it before the one that denies it.",
);

/// All of them, by number.
pub const MISTAKES: [LintCode; 13] = [
    SELECTS_NOTHING,
    NEVER_REACHED,
    ONE_FAMILY,
    UNSERVED_NAME,
    SERVICE_PORT,
    DNS_BLOCKED,
    DNS_UNKNOWN,
    SERVICE_NAME,
    BASELINE_NAMES,
    SAME_NAME,
    IN_AUDIT,
    DNS_DENIED,
    DENIED_ENDPOINT,
];

/// What to do about a diagnostic of reading and lowering.
pub(super) fn fix_of(id: &str) -> &'static str {
    let code = Code::ALL.iter().find(|code| code.id() == id);
    code.map_or("See the message.", |code| code.fix())
}
