//! The form of 2016, by the lines of its proposal, asked from outside of the program; v1 beside it.

mod invocation;
mod texts;

use texts::{CLUSTER, Table, WORLD, np_ingress};

const ANNOTATION: &str = r#"{"ingress": {"isolation": "DefaultDeny"}}"#;

/// The cluster in which namespace `shop` says this of itself.
fn annotated(name: &'static str, annotation: &str) -> Table {
    let written = "metadata: {name: shop, labels: {team: a}}";
    assert!(CLUSTER.contains(written));
    let with = format!(
        "metadata: {{name: shop, labels: {{team: a}}, annotations: {{net.beta.kubernetes.io/network-policy: '{annotation}'}}}}"
    );
    Table::over(name, &CLUSTER.replace(written, &with))
}

/// An object of 2016 for the pods `app: web`.
fn legacy(ingress: &str) -> String {
    np_ingress(ingress)
        .replace("networking.k8s.io/v1", "extensions/v1beta1")
        .replace("policyTypes: [Ingress], ", "")
}

#[test]
fn the_annotation_isolates() {
    annotated("2016_isolated", ANNOTATION)
        .text("P-1 P-3 P-4 P-7", &np_ingress("{ports: [{port: 1}]}").replace("shop", "tools"), &[
            ("tools/job", "shop/web", "TCP/80", "deny default np EG0118"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
            (WORLD, "shop/db", "TCP/80", "deny none np"),
            ("shop/web", WORLD, "TCP/80", "allow default none"),
            ("shop/web", "tools/job", "TCP/80", "allow default default"),
            (r#"{"node":"n1"}"#, "shop/web", "TCP/80", "allow none"),
            (r#"{"node":"n2"}"#, "shop/web", "TCP/80", "deny none np"),
        ])
        .text("P-8 X-8", &(legacy("{ports: [{port: 1}]}") + &np_ingress("{ports: [{port: 2}]}").replace("name: p,", "name: q,")), &[
            (WORLD, "shop/web", "TCP/1", "allow none np EG0120"),
            (WORLD, "shop/web", "TCP/2", "allow none np"),
            (WORLD, "shop/web", "TCP/3", "deny none np"),
        ])
        .text("P-12 P-13 CROSS-1 CASE-60", &legacy("{ports: [], from: [{podSelector: {}}]}, {from: [], ports: [{port: 1}]}"), &[
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
            ("shop/db", "shop/web", "TCP/1", "deny default np"),
        ])
        .text("P-11 P-12 P-13", &legacy("{}"), &[
            (WORLD, "shop/web", "TCP/80", "allow none np"),
            (WORLD, "shop/web", "ICMP", "allow none np"),
        ])
        .text("P-15", &legacy("{from: [{podSelector: {}, namespaceSelector: {}}]}, {from: [{namespaceSelector: {matchLabels: {team: b}}}]}"), &[
            ("tools/job", "shop/web", "TCP/80", "allow default np EG0108"),
            ("shop/db", "shop/web", "TCP/80", "deny default np"),
        ])
        .text("P-10", &legacy(""), &[(WORLD, "shop/web", "TCP/80", "deny none np")])
        .check();
    annotated("2016_unreadable", "{")
        .text(
            "P-1",
            &legacy("{ports: [{port: 1}]}"),
            &[
                (WORLD, "shop/web", "TCP/80", "deny none np EG0118"),
                (WORLD, "shop/web", "TCP/1", "allow none np"),
            ],
        )
        .check();
}

#[test]
fn without_it_the_objects_say_nothing() {
    for (name, annotation) in [("2016_empty", "{}"), ("2016_undefined", r#"{"ingress": {}}"#)] {
        annotated(name, annotation)
            .text(
                "P-2 P-17 CROSS-2",
                &legacy("{ports: [{port: 1}]}"),
                &[(WORLD, "shop/web", "TCP/80", "allow none default EG0120")],
            )
            .text(
                "P-2 X-8",
                &np_ingress("{ports: [{port: 1}]}"),
                &[
                    (WORLD, "shop/web", "TCP/80", "deny none np"),
                    (WORLD, "shop/db", "TCP/80", "allow none default"),
                ],
            )
            .text(
                "P-2 X-8",
                &(legacy("{}") + &np_ingress("{ports: [{port: 1}]}").replace("name: p,", "name: q,")),
                &[(WORLD, "shop/web", "TCP/80", "deny none np")],
            )
            .check();
    }
}
