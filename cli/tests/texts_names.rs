//! Names by the lines of NPEP-133 and of its later update, as far as an answer that a pod was given says it all.

mod invocation;
mod texts;

use texts::{CLUSTER, Table, WORLD, WORLD_6, anp, banp, baseline, cnp, np_egress};

const REST: &str = "{action: Deny, to: [{networks: [0.0.0.0/0, \"::/0\"]}]}";

/// Names that are accepted, before everything else is denied.
fn names(list: &str) -> String {
    cnp(&format!(
        "egress: [{{action: Accept, to: [{{domainNames: [{list}]}}]}}, {REST}]"
    ))
}

fn with_ports(list: &str, port: &str) -> String {
    names(list).replace(
        "]}]}, {action: Deny",
        &format!("]}}], protocols: [{port}]}}, {{action: Deny"),
    )
}

const KUBERNETES: &str = "203.0.113.10";
const WWW: &str = "203.0.113.11";
const BLOG: &str = "203.0.113.12";
const LATEST: &str = "203.0.113.13";
const MY: &str = "203.0.113.14";
const WIKIPEDIA: &str = "203.0.113.15";

/// What `shop/web` asked for; `shop/db` asked for nothing.
fn told(name: &'static str) -> Table {
    Table::of(name)
        .told("shop/web", "kubernetes.io", KUBERNETES, 60)
        .told("shop/web", "www.kubernetes.io", WWW, 60)
        .told("shop/web", "blog.kubernetes.io", BLOG, 60)
        .told("shop/web", "latest.blog.kubernetes.io", LATEST, 60)
        .told("shop/web", "my-kubernetes.io", MY, 60)
        .told("shop/web", "wikipedia.org", WIKIPEDIA, 60)
}

#[test]
fn which_names_a_pattern_means() {
    told("names_patterns")
        .text(
            "F-1",
            &names("kubernetes.io"),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WWW, "TCP/443", "deny admin none"),
                ("shop/web", BLOG, "TCP/443", "deny admin none"),
                ("shop/web", MY, "TCP/443", "deny admin none"),
                ("shop/web", WIKIPEDIA, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-2",
            &names("blog.kubernetes.io"),
            &[
                ("shop/web", BLOG, "TCP/443", "allow admin none"),
                ("shop/web", WWW, "TCP/443", "deny admin none"),
                ("shop/web", KUBERNETES, "TCP/443", "deny admin none"),
                ("shop/web", LATEST, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-3 X-10",
            &names("\"*.kubernetes.io\""),
            &[
                ("shop/web", WWW, "TCP/443", "allow admin none"),
                ("shop/web", BLOG, "TCP/443", "allow admin none"),
                ("shop/web", LATEST, "TCP/443", "allow admin none"),
                ("shop/web", KUBERNETES, "TCP/443", "deny admin none"),
                ("shop/web", MY, "TCP/443", "deny admin none"),
                ("shop/web", WIKIPEDIA, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-4 X-10 MOVE-14",
            &names("\"**.kubernetes.io\""),
            &[("shop/web", WWW, "TCP/443", "deny admin none EG0401")],
        )
        .text(
            "F-4",
            &names("\"b*.kubernetes.io\""),
            &[("shop/web", BLOG, "TCP/443", "deny admin none EG0401")],
        )
        .text(
            "F-4",
            &names("\"latest.*.kubernetes.io\""),
            &[("shop/web", LATEST, "TCP/443", "deny admin none EG0401")],
        )
        .text(
            "F-4",
            &names("\"*kubernetes.io\""),
            &[("shop/web", MY, "TCP/443", "deny admin none EG0401")],
        )
        .text(
            "F-4 API-4",
            &names("\"*\""),
            &[("shop/web", WIKIPEDIA, "TCP/443", "deny admin none EG0401")],
        )
        .text(
            "API-4",
            &names("\"*.org\""),
            &[("shop/web", WIKIPEDIA, "TCP/443", "deny admin none EG0401")],
        )
        .text(
            "API-4 CASE-55",
            &names("\"[kubernetes.io\", wikipedia.org"),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "deny admin none EG0401"),
                ("shop/web", WIKIPEDIA, "TCP/443", "allow admin none"),
            ],
        )
        .text(
            "API-5",
            &names("203.0.113.15"),
            &[("shop/web", WIKIPEDIA, "TCP/443", "deny admin none EG0403")],
        )
        .text(
            "F-5 CASE-46",
            &names("Kubernetes.IO."),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WWW, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-5 CASE-46",
            &names("\"*.KUBERNETES.io.\""),
            &[("shop/web", LATEST, "TCP/443", "allow admin none")],
        )
        .text(
            "F-10",
            &names("kubernetes.io, wikipedia.org"),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WIKIPEDIA, "TCP/443", "allow admin none"),
                ("shop/web", MY, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-10",
            &names("kubernetes.io]}, {domainNames: [wikipedia.org"),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WIKIPEDIA, "TCP/443", "allow admin none"),
                ("shop/web", MY, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-31",
            &names("kubernetes.io, Kubernetes.io"),
            &[("shop/web", KUBERNETES, "TCP/443", "allow admin none EG0404")],
        )
        .text(
            "F-31",
            &names(
                &(0..26)
                    .map(|n| format!("n{n}.x.io"))
                    .chain(["kubernetes.io".to_owned()])
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
            &[("shop/web", KUBERNETES, "TCP/443", "allow admin none EG0114")],
        )
        .check();
}

#[test]
fn where_names_may_stand() {
    let ingress = "ingress: [{action: Accept, from: [{domainNames: [kubernetes.io]}]}, {action: Deny, from: [{namespaces: {}}]}]";
    told("names_places")
        .text(
            "F-7",
            &cnp(ingress),
            &[("tools/job", "shop/web", "TCP/80", "deny default admin EG0103")],
        )
        .text(
            "F-7",
            &names("kubernetes.io").replace("namespaces: {matchLabels: {team: a}}", "domainNames: [x.io]"),
            &[("shop/web", KUBERNETES, "TCP/443", "deny admin none EG0103")],
        )
        .text(
            "F-32 API-3 X-6",
            &anp(&format!(
                "egress: [{{action: Allow, to: [{{domainNames: [kubernetes.io]}}]}}, {REST}]"
            )),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WWW, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-32 F-33 API-3 X-6 MOVE-11",
            &baseline(&format!(
                "egress: [{{action: Accept, to: [{{domainNames: [kubernetes.io]}}]}}, {REST}]"
            )),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow baseline none"),
                ("shop/web", WWW, "TCP/443", "deny baseline none"),
            ],
        )
        .text(
            "F-32",
            &np_egress("{to: [{domainNames: [kubernetes.io]}]}"),
            &[("shop/web", KUBERNETES, "TCP/443", "deny np none EG0103")],
        )
        .text(
            "DECIDE-13",
            &baseline("egress: [{action: Deny, to: [{domainNames: [kubernetes.io]}]}]"),
            &[("shop/web", WIKIPEDIA, "TCP/443", "deny baseline none EG0402")],
        )
        .text(
            "F-33",
            &names("kubernetes.io"),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", "198.51.100.9", "TCP/443", "deny admin none"),
                ("shop/web", WORLD_6, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-33",
            &(names("kubernetes.io").replace(&format!(", {REST}"), "")
                + &cnp(&format!("egress: [{REST}]"))
                    .replace("name: p}", "name: q}")
                    .replace("priority: 10", "priority: 11")),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WWW, "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-33",
            &(names("kubernetes.io").replace(&format!(", {REST}"), "")
                + &banp("egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]")),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", WWW, "TCP/443", "deny baseline none"),
                ("shop/web", WORLD_6, "TCP/443", "allow default none"),
            ],
        )
        .check();
}

#[test]
fn ports_dns_and_who_asked() {
    let kube_dns = format!(
        "{CLUSTER}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: dns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}\n\
         spec: {{nodeName: n2, containers: []}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.1.53}}]}}\n"
    );
    told("names_ports")
        .told("shop/web", "shared.example.com", KUBERNETES, 60)
        .text(
            "F-9",
            &with_ports("kubernetes.io", "{tcp: {destinationPort: {number: 443}}}"),
            &[
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
                ("shop/web", KUBERNETES, "TCP/80", "deny admin none"),
                ("shop/web", KUBERNETES, "UDP/443", "deny admin none"),
                ("shop/web", KUBERNETES, "ICMP", "deny admin none"),
            ],
        )
        .text(
            "F-8 F-28",
            &names("shared.example.com"),
            &[(
                "shop/web",
                r#"{"name":"kubernetes.io"}"#,
                "TCP/443",
                "allow admin none",
            )],
        )
        .text(
            "F-12",
            &names("kubernetes.io"),
            &[(
                "shop/web",
                r#"{"name":"wikipedia.org"}"#,
                "TCP/443",
                "deny admin none",
            )],
        )
        .text(
            "F-14 CASE-52 TRAP-8",
            &names("kubernetes.io"),
            &[
                ("shop/db", KUBERNETES, "TCP/443", "deny admin none"),
                ("shop/leaving", KUBERNETES, "TCP/443", "deny admin none"),
                ("shop/web", KUBERNETES, "TCP/443", "allow admin none"),
            ],
        )
        .check();
    let dns = "{action: Accept, to: [{pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}}], protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]}, ";
    Table::over("names_dns", &kube_dns)
        .text(
            "F-11",
            &names("kubernetes.io"),
            &[
                ("shop/web", "kube-system/dns", "UDP/53", "deny admin default"),
                ("shop/web", "kube-system/dns", "TCP/53", "deny admin default"),
            ],
        )
        .text(
            "F-11 G-5",
            &names("kubernetes.io").replace("egress: [", &format!("egress: [{dns}")),
            &[
                ("shop/web", "kube-system/dns", "UDP/53", "allow admin default"),
                ("shop/web", "kube-system/dns", "TCP/53", "allow admin default"),
                ("shop/web", "kube-system/dns", "TCP/80", "deny admin default"),
            ],
        )
        .check();
}

/// 30 seconds of grace are added to what an answer says.
#[test]
fn how_long_and_how_many() {
    let table = Table::of("names_time")
        .told("shop/web", "api.example.com", WORLD, 30)
        .told("shop/web", "api.example.com", "203.0.113.2", 300)
        .told("shop/web", "zero.example.com", "203.0.113.3", 0)
        .told("shop/web", "api.example.com", WORLD_6, 30)
        .told("shop/web", "again.example.com", "203.0.113.4", 10)
        .told("shop/web", "again.example.com", "203.0.113.4", 100);
    table
        .text(
            "F-15 G-4 TRAP-4 CASE-47",
            &names("api.example.com"),
            &[
                ("shop/web", WORLD, "TCP/443 at 0", "allow admin none"),
                ("shop/web", WORLD, "TCP/443 at 59", "allow admin none"),
                ("shop/web", WORLD, "TCP/443 at 60", "deny admin none"),
                ("shop/web", "203.0.113.2", "TCP/443 at 60", "allow admin none"),
                ("shop/web", "203.0.113.2", "TCP/443 at 329", "allow admin none"),
                ("shop/web", "203.0.113.2", "TCP/443 at 330", "deny admin none"),
                (
                    "shop/web",
                    r#"{"name":"api.example.com"}"#,
                    "TCP/443 at 60",
                    "allow admin none",
                ),
                (
                    "shop/web",
                    r#"{"name":"api.example.com"}"#,
                    "TCP/443 at 330",
                    "error",
                ),
            ],
        )
        .text(
            "TRAP-3 CASE-47 CASE-54",
            &names("api.example.com"),
            &[
                ("shop/web", WORLD_6, "TCP/443", "allow admin none"),
                ("shop/web", WORLD, "TCP/443", "allow admin none"),
            ],
        )
        .text(
            "TRAP-9",
            &names("zero.example.com"),
            &[
                ("shop/web", "203.0.113.3", "TCP/443 at 1", "allow admin none"),
                ("shop/web", "203.0.113.3", "TCP/443 at 31", "deny admin none"),
            ],
        )
        .text(
            "G-2",
            &names("again.example.com"),
            &[
                ("shop/web", "203.0.113.4", "TCP/443 at 129", "allow admin none"),
                ("shop/web", "203.0.113.4", "TCP/443 at 130", "deny admin none"),
            ],
        )
        .check();
    let mut table = Table::of("names_many");
    for last in 1..=110 {
        table = table
            .told(
                "shop/web",
                "docs.kubernetes.io",
                &format!("198.51.100.{}", 100 + last),
                60,
            )
            .told("shop/web", "blog.kubernetes.io", &format!("192.0.2.{last}"), 60)
            .told("shop/web", "v6.kubernetes.io", &format!("2001:db8::{last}"), 60);
    }
    table
        .text(
            "F-17 F-18 CASE-50 TRAP-13",
            &names("\"*.kubernetes.io\""),
            &[
                (
                    "shop/web",
                    r#"{"name":"docs.kubernetes.io"}"#,
                    "TCP/443",
                    "allow admin none",
                ),
                (
                    "shop/web",
                    r#"{"name":"blog.kubernetes.io"}"#,
                    "TCP/443",
                    "allow admin none",
                ),
                (
                    "shop/web",
                    r#"{"name":"v6.kubernetes.io"}"#,
                    "TCP/443",
                    "allow admin none",
                ),
                ("shop/web", "198.51.100.101", "TCP/443", "allow admin none"),
                ("shop/web", "198.51.100.210", "TCP/443", "allow admin none"),
                ("shop/web", "192.0.2.1", "TCP/443", "allow admin none"),
                ("shop/web", "192.0.2.110", "TCP/443", "allow admin none"),
                ("shop/web", "192.0.2.111", "TCP/443", "deny admin none"),
            ],
        )
        .text(
            "F-17",
            &names("v6.kubernetes.io"),
            &[
                ("shop/web", "2001:db8::1", "TCP/443", "allow admin none"),
                ("shop/web", "2001:db8::110", "TCP/443", "allow admin none"),
                ("shop/web", "198.51.100.101", "TCP/443", "deny admin none"),
            ],
        )
        .check();
}

#[test]
fn names_of_the_cluster_and_addresses_that_no_name_opens() {
    Table::of("names_cluster")
        .told("shop/web", "10-0-1-1.tools.pod.cluster.local", "10.0.1.1", 60)
        .told("shop/web", "jobs.tools.svc.cluster.local", "10.0.1.1", 60)
        .told("shop/web", "jobs.tools.svc.cluster.local", "10.0.1.2", 60)
        .told("shop/web", "db.shop.svc.cluster.local", "10.96.0.11", 60)
        .told("shop/web", "bad.example.com", "127.0.0.1", 60)
        .told("shop/web", "bad.example.com", "169.254.169.254", 60)
        .told("shop/web", "bad.example.com", "::ffff:127.0.0.2", 60)
        .told("shop/web", "bad.example.com", "198.51.100.1", 60)
        .told("shop/web", "half.example.com", WORLD, 60)
        .told("shop/web", "half.example.com", "fe80::1", 60)
        .told("shop/web", "half.example.com", "169.254.169.254", 60)
        .text(
            "F-20",
            &names("10-0-1-1.tools.pod.cluster.local"),
            &[
                ("shop/web", "tools/job", "TCP/80", "allow admin default"),
                ("shop/web", "tools/web", "TCP/80", "deny admin default"),
            ],
        )
        .text(
            "F-21",
            &names("jobs.tools.svc.cluster.local"),
            &[
                ("shop/web", "tools/job", "TCP/80", "allow admin default"),
                ("shop/web", "tools/web", "TCP/80", "allow admin default"),
                ("shop/web", "bare/pod", "TCP/80", "deny admin default"),
            ],
        )
        .text(
            "F-22 CASE-53",
            &names("db.shop.svc.cluster.local"),
            &[
                (
                    "shop/web",
                    r#"{"service":"shop/db"}"#,
                    "TCP/80",
                    "deny admin default",
                ),
                ("shop/web", "shop/db", "TCP/9000", "deny admin default"),
            ],
        )
        .text(
            "TRAP-14 DECIDE-9",
            &names("bad.example.com"),
            &[
                ("shop/web", "169.254.169.254", "TCP/80", "deny admin none"),
                ("shop/web", "127.0.0.1", "TCP/80", "deny admin none"),
                ("shop/web", "127.0.0.2", "TCP/80", "deny admin none"),
                // An address of a node.
                ("shop/web", "198.51.100.1", "TCP/80", "deny admin none"),
                (
                    "shop/web",
                    r#"{"name":"bad.example.com"}"#,
                    "TCP/80",
                    "deny admin none",
                ),
            ],
        )
        .text(
            "TRAP-14",
            &names("half.example.com"),
            &[
                (
                    "shop/web",
                    r#"{"name":"half.example.com"}"#,
                    "TCP/80",
                    "deny admin none",
                ),
                ("shop/web", WORLD, "TCP/80", "allow admin none"),
            ],
        )
        .text(
            "DECIDE-9",
            &names("jobs.tools.svc.cluster.local"),
            &[
                (
                    "shop/web",
                    r#"{"name":"jobs.tools.svc.cluster.local"}"#,
                    "TCP/80",
                    "allow admin default",
                ),
                (
                    "shop/web",
                    r#"{"name":"JOBS.tools.svc.cluster.local."}"#,
                    "TCP/80",
                    "allow admin default",
                ),
            ],
        )
        .check();
}
