//! ClusterEgressFirewall, as `lower::firewall` reads it.

use super::shape::{
    SchemaNode, integer, kind, list, map, nothing, object, one_of, optional, required, set, text, word,
};
use super::{Definition, age, column, status};

pub(super) fn definition() -> Definition {
    let holds = |name: &str, field: &str, description: &str| {
        let path = format!(".status.conditions[?(@.type==\"{name}\")].{field}");
        column(name, "string", &path, description)
    };
    Definition {
        kind: "ClusterEgressFirewall",
        plural: "clusteregressfirewalls",
        singular: "clusteregressfirewall",
        short: &["cef"],
        columns: vec![
            column("Priority", "integer", ".spec.priority", "Lower is asked first"),
            column("Rules", "integer", ".status.rules", "How many rules it has"),
            holds("Accepted", "status", "Whether everything in it is understood"),
            holds("Resolved", "status", "Whether every destination is known"),
            holds("Programmed", "message", "On how many nodes it is in force"),
            age(),
        ],
        has_status: true,
        schema: kind(
            "What no pod may reach outside its cluster, whatever other policies say. It only restricts: what it allows \
             other policies may still deny. Pods of the host's network are not its subject.",
            vec![required("spec", spec()), optional("status", status::shape())],
        ),
    }
}

fn spec() -> SchemaNode {
    let priority = integer(0, 1000).or(500).says(
        "Lower is asked first. Of objects of one priority each gives the verdict of its first rule that matches, and \
         a Deny beats an Allow.",
    );
    let unique = "self.all(rule, !has(rule.name) || \
                  self.exists_one(other, has(other.name) && other.name == rule.name))";
    let rules = list(rule(), 1, 100)
        .says("The first rule that matches decides for this object.")
        .only_where(unique, "names of rules must be unique");
    let exposure = word(&["Reject", "Ignore"]).or("Reject").says(
        "Whether clients that are neither pods nor nodes are kept, too, from what is denied, where a Service leads \
         them there.",
    );
    object(vec![
        optional("priority", priority),
        required("rules", rules),
        optional(
            "services",
            object(vec![optional("exposure", exposure)]).says("Services that lead to what is denied."),
        ),
    ])
    .says("What is denied, and what is not.")
}

fn rule() -> SchemaNode {
    let names = "self.action == 'Allow' || !self.to.exists(peer, has(peer.domainNames) || \
                 (has(peer.apiServer) && has(peer.apiServer.additionalNames)))";
    object(vec![
        optional("name", text(100).says("For people; unique in the object.")),
        required(
            "action",
            word(&["Allow", "Deny"]).says(
                "Allow: not denied by this object; other policies still count. Deny: dropped, finally.",
            ),
        ),
        required(
            "to",
            list(peer(), 1, 50).says("Destinations, of which one must match."),
        ),
        optional(
            "protocols",
            list(protocol(), 1, 25).says(
                "Protocols and ports, of which one must match; everything, ICMP too, where it is left out.",
            ),
        ),
    ])
    .only_where(
        names,
        "domainNames and additionalNames only with action Allow: names are learnt from what pods ask",
    )
}

fn peer() -> SchemaNode {
    let network = text(43).only_where("isCIDR(self)", "a network such as 10.0.0.0/8 or fd00::/8");
    one_of(vec![
        optional(
            "networks",
            set(network, 1, 100).says("Networks; pods and Services of the cluster are never meant."),
        ),
        optional("nodes", nodes()),
        optional("apiServer", api_server()),
        optional(
            "external",
            nothing()
                .says("Everything that is neither a pod nor a Service of this cluster; nodes are external."),
        ),
        optional(
            "domainNames",
            set(domain_name(), 1, 25).says(
                "Addresses that the pod was told for these names; *. in front stands for one label or more.",
            ),
        ),
    ])
    .not_empty()
    .says("Exactly one of the fields; {} in a field means all of it.")
}

fn nodes() -> SchemaNode {
    let addresses = word(&["All", "Reported"]).or("All").says(
        "All: every local address of the nodes, bridges and virtual addresses too. Reported: those in Node.status \
         alone.",
    );
    object(vec![
        optional("selector", selector()),
        optional("addresses", addresses),
    ])
    .says("Nodes.")
}

fn api_server() -> SchemaNode {
    let address = text(45).only_where("isIP(self)", "an IPv4 or IPv6 address");
    object(vec![
        optional(
            "additionalAddresses",
            set(address, 0, 32).says("Addresses at which nobody would find it, such as a load balancer's."),
        ),
        optional(
            "additionalNames",
            set(domain_name(), 1, 8).says("Names of it; only with action Allow."),
        ),
    ])
    .says("The API server, wherever it is reached; {} for what is found in the cluster.")
}

/// The expression of the policy API after its correction to `A-Z` (network-policy-api, pull request 391): two labels
/// or more. RFC 1035 §2.3.4 limits a name; a dot may end it.
const DOMAIN_NAME: &str =
    r"^(\*\.)?([a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$";

fn domain_name() -> SchemaNode {
    text(254).like(DOMAIN_NAME)
}

fn protocol() -> SchemaNode {
    let of = |what: &str| {
        object(vec![optional("destinationPort", port())]).says(&format!("{what}; {{}} for every port."))
    };
    one_of(vec![
        optional("tcp", of("TCP")),
        optional("udp", of("UDP")),
        optional("sctp", of("SCTP")),
        optional("icmp", nothing().says("ICMP and ICMPv6.")),
    ])
    .not_empty()
}

fn port() -> SchemaNode {
    let number = || integer(1, 65535);
    let range = object(vec![required("start", number()), required("end", number())])
        .only_where("self.start <= self.end", "start must not be above end")
        .says("Ports from start to end, both included.");
    one_of(vec![
        optional("number", number().says("One port.")),
        optional("range", range),
    ])
    .not_empty()
    .says("The port at the destination, behind Services.")
}

/// Labels as k8s.io/apimachinery/pkg/util/validation has them.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

fn selector() -> SchemaNode {
    let value = || text(63).like(LABEL_VALUE);
    let expression = object(vec![
        required("key", text(317).like(LABEL_KEY)),
        required("operator", word(&["In", "NotIn", "Exists", "DoesNotExist"])),
        optional("values", list(value(), 0, 64)),
    ])
    .only_where(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "In and NotIn need values, Exists and DoesNotExist have none",
    );
    object(vec![
        optional("matchLabels", map(value(), 64)),
        optional("matchExpressions", list(expression, 0, 64)),
    ])
    .says("Labels of the nodes; all nodes where it is left out or {}.")
}
