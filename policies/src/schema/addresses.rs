//! NodeAddressReport and APIServerAddresses, as `lower::addresses` reads them.

use super::shape::{SchemaNode, kind, list, moment, object, optional, required, set, text, word};
use super::{Definition, age, column};

/// Addresses of the API server that the platform declares.
pub(super) fn api_server() -> Definition {
    let addresses = set(address(), 1, 256).says("The addresses.");
    let spec = object(vec![required("addresses", addresses)]).says("What is declared.");
    Definition {
        kind: "APIServerAddresses",
        plural: "apiserveraddresses",
        singular: "apiserveraddresses",
        short: &[],
        columns: vec![
            column("First", "string", ".spec.addresses[0]", "The first address"),
            age(),
        ],
        has_status: false,
        schema: kind(
            "Addresses at which the API server is reached and which no object of Kubernetes lists, such as a load \
             balancer's. Whoever provides the cluster writes it; every ClusterEgressFirewall that says apiServer means \
             them, too.",
            vec![required("spec", spec)],
        ),
    }
}

/// What the agent of a node says of the node's addresses. The object has the node's name.
pub(super) fn report() -> Definition {
    let item = object(vec![
        required("ip", address().says("The address.")),
        optional("interface", text(15).says("The interface that has it.")),
        optional(
            "scope",
            word(&["global", "site", "link", "host"]).says("How far it is valid, as ip-address(8) says it."),
        ),
    ]);
    let addresses = list(item, 0, 4096).says(
        "Every local address but loopback, multicast and those of Services (kube-ipvs0): bridges, tunnels and \
         virtual addresses too.",
    );
    Definition {
        kind: "NodeAddressReport",
        plural: "nodeaddressreports",
        singular: "nodeaddressreport",
        short: &[],
        columns: vec![
            column("First", "string", ".addresses[0].ip", "The first address"),
            column("Observed", "date", ".observedTime", "When the agent last looked"),
            age(),
        ],
        has_status: false,
        schema: kind(
            "All local addresses of the node of the same name, as its agent sees them: more than Node.status lists.",
            vec![
                required("addresses", addresses),
                optional("observedTime", moment().says("When the agent last looked.")),
            ],
        ),
    }
}

/// The longest text of an address: IPv6 with an embedded IPv4 address (RFC 4291 §2.2).
fn address() -> SchemaNode {
    text(45).only_where("isIP(self)", "an IPv4 or IPv6 address")
}
