//! What may change, one story for each field of a batch and each way in which what opens meets what closes.

use crate::cluster::{Cluster, cluster_policy, firewall, network_policy, nodes, pod};
use crate::node::Probe;
use crate::tun::What;

/// A cluster before and after a change.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) name: &'static str,
    pub(crate) old: Cluster,
    pub(crate) new: Cluster,
    /// Seconds between them.
    pub(crate) after: u64,
    /// Opened under the old policy, to go on under the new one although that would not open it.
    pub(crate) outlasting: Option<Probe>,
    /// Addresses whose pod goes: what is open there ends.
    pub(crate) gone: &'static [&'static str],
}

impl Story {
    pub(crate) fn has_records(&self) -> bool {
        self.new.has_records()
    }
}

const WEB: &str = "app: web";

/// A pod that may reach its peers alone, and be reached by them.
pub(crate) fn isolated() -> Cluster {
    Cluster::of(&[
        &nodes(),
        &pod("a", WEB, "here", 1),
        &pod("r", "app: r, role: peer", "there", 5),
        &network_policy(
            "web",
            WEB,
            "policyTypes: [Ingress, Egress], \
             ingress: [{from: [{podSelector: {matchLabels: {role: peer}}}], ports: [{port: 80}]}], \
             egress: [{to: [{podSelector: {matchLabels: {role: peer}}}]}]",
        ),
    ])
}

/// And one of which nothing is said.
pub(crate) fn isolated_beside_another() -> Cluster {
    isolated().and(&[&pod("b", "app: db", "here", 2)])
}

/// A pod that may reach everybody but so many peers, and one of which nothing is said.
pub(crate) fn denied_by_a_list(peers: u8) -> Cluster {
    let peer = |last| pod(&format!("r{last}"), "app: r", "there", last);
    let peers: Vec<String> = (1..=peers).map(peer).collect();
    let deny = "egress: [{action: Deny, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: r}}}}]}]";
    let objects = [
        nodes(),
        pod("a", WEB, "here", 1),
        pod("b", "app: db", "here", 2),
        cluster_policy("admin", "Admin", WEB, deny),
    ];
    let all: Vec<&str> = objects.iter().chain(&peers).map(String::as_str).collect();
    Cluster::of(&all)
}

/// A node without pods, whose clients outside are refused these networks.
pub(crate) fn denied_to_clients_outside(networks: &str) -> Cluster {
    let deny = format!("[{{action: Deny, to: [{{networks: [{networks}]}}]}}]");
    Cluster::of(&[&nodes(), &firewall("f", &deny)])
}

pub(crate) fn all() -> Vec<Story> {
    let base = || {
        Cluster::of(&[
            &nodes(),
            &pod("a", WEB, "here", 1),
            &pod("r", "app: r, role: peer", "there", 5),
            &pod("s", "app: s", "there", 6),
        ])
    };
    let b = pod("b", "app: db", "here", 2);
    let isolated = network_policy(
        "web",
        WEB,
        "policyTypes: [Ingress, Egress], \
         ingress: [{from: [{podSelector: {matchLabels: {role: peer}}}], ports: [{port: 80}]}], \
         egress: [{to: [{podSelector: {matchLabels: {role: peer}}}]}, {to: [{ipBlock: {cidr: 203.0.113.0/25}}, {ipBlock: {cidr: \"2001:db8:1::/64\"}}]}]",
    );
    let db = network_policy(
        "db",
        "app: db",
        "policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]",
    );
    let to_app = |name: &str, app: &str| {
        network_policy(
            name,
            WEB,
            &format!(
                "policyTypes: [Egress], egress: [{{to: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]"
            ),
        )
    };
    let to_web_of = |app: &str| {
        network_policy(
            app,
            WEB,
            &format!(
                "policyTypes: [Egress], egress: [{{to: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}], ports: [{{port: 80}}]}}]"
            ),
        )
    };
    let relabelled = |labels: &str| {
        Cluster::of(&[
            &nodes(),
            &pod("a", WEB, "here", 1),
            &pod("r", labels, "there", 5),
            &pod("s", "app: s", "there", 6),
        ])
    };
    let admin = |rules: &str| cluster_policy("admin", "Admin", WEB, &format!("egress: {rules}"));
    let towards = |app: &str, action: &str| {
        format!(
            "{{action: {action}, to: [{{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: {app}}}}}}}}}]}}"
        )
    };
    let networks =
        |action: &str, networks: &str| format!("{{action: {action}, to: [{{networks: [{networks}]}}]}}");
    let list = |rules: &[String]| admin(&format!("[{}]", rules.join(", ")));
    let (wide, narrow) = (
        "203.0.113.0/24, \"2001:db8:1::/64\"",
        "203.0.113.9/32, \"2001:db8:1::9/128\"",
    );
    let everywhere = "0.0.0.0/0, \"::/0\"";
    let names = |domains: &str| format!("{{action: Accept, to: [{{domainNames: [{domains}]}}]}}");
    let story = |name, old: Cluster, new: Cluster| Story {
        name,
        old,
        new,
        after: 0,
        outlasting: None,
        gone: &[],
    };
    vec![
        story(
            "a pod comes",
            base().and(&[&isolated, &db]),
            base().and(&[&isolated, &db, &b]),
        ),
        Story {
            gone: &["10.0.0.2", "fd00::2"],
            ..story(
                "a pod goes",
                base().and(&[&isolated, &db, &b]),
                base().and(&[&isolated, &db]),
            )
        },
        story("the first policy comes", base(), base().and(&[&isolated])),
        story(
            "the last policy goes, and its sets",
            base().and(&[&isolated]),
            base(),
        ),
        story(
            "a peer loses its label",
            base().and(&[&isolated]),
            relabelled("app: r").and(&[&isolated]),
        ),
        story(
            "a peer goes from one allowed set to another",
            base().and(&[&to_app("r", "r"), &to_web_of("s")]),
            relabelled("app: s").and(&[&to_app("r", "r"), &to_web_of("s")]),
        ),
        story(
            "a peer leaves a merged set",
            base().and(&[&to_app("r", "r"), &to_app("s", "s")]),
            relabelled("app: x").and(&[&to_app("r", "r"), &to_app("s", "s")]),
        ),
        story(
            "a set is joined with another",
            base().and(&[&to_app("r", "r")]),
            base().and(&[&to_app("r", "r"), &to_app("s", "s")]),
        ),
        story(
            "a merged set loses a part",
            base().and(&[&to_app("r", "r"), &to_app("s", "s"), &to_app("x", "x")]),
            base().and(&[&to_app("s", "s"), &to_app("x", "x")]),
        ),
        story(
            "a peer enters what is allowed and what is denied",
            base().and(&[&list(&[towards("x", "Deny")]), &to_app("s", "s")]),
            relabelled("app: s, x: y").and(&[&list(&[towards("x", "Deny")]), &to_app("s", "s")]),
        ),
        story(
            "a network is cut in half",
            base().and(&[&isolated]),
            base().and(&[&isolated.replace("203.0.113.0/25", "203.0.113.0/30")]),
        ),
        story(
            "a rule is added",
            base().and(&[&list(&[networks("Accept", narrow)])]),
            base().and(&[&list(&[networks("Accept", narrow), networks("Deny", wide)])]),
        ),
        story(
            "a rule is removed",
            base().and(&[&list(&[networks("Accept", narrow), networks("Deny", wide)])]),
            base().and(&[&list(&[networks("Deny", wide)])]),
        ),
        story(
            "rules change places",
            base().and(&[&list(&[networks("Accept", narrow), networks("Deny", wide)])]),
            base().and(&[&list(&[networks("Deny", wide), networks("Accept", narrow)])]),
        ),
        story(
            "a tier is added",
            base().and(&[&isolated]),
            base().and(&[
                &isolated,
                &list(&[towards("r", "Deny"), networks("Accept", everywhere)]),
            ]),
        ),
        story(
            "what was allowed to a peer is denied",
            base().and(&[&list(&[towards("r", "Accept"), networks("Deny", everywhere)])]),
            base().and(&[&list(&[towards("r", "Deny"), networks("Deny", wide)])]),
        ),
        story(
            "what was allowed to a peer is denied while another becomes that peer",
            base().and(&[&list(&[towards("r", "Accept"), networks("Deny", everywhere)])]),
            Cluster::of(&[
                &nodes(),
                &pod("a", WEB, "here", 1),
                &pod("r", "app: x", "there", 5),
                &pod("s", "app: r", "there", 6),
                &list(&[
                    towards("r", "Deny"),
                    networks("Accept", narrow),
                    networks("Deny", everywhere),
                ]),
            ]),
        ),
        story(
            "a peer is passed on while the next tier changes its mind",
            base().and(&[
                &list(&[towards("r", "Pass"), networks("Deny", everywhere)]),
                &to_app("r", "r"),
            ]),
            Cluster::of(&[
                &nodes(),
                &pod("a", WEB, "here", 1),
                &pod("r", "app: r", "there", 5),
                &pod("s", "app: r", "there", 6),
                &list(&[towards("r", "Pass"), networks("Deny", everywhere)]),
                &to_app("r", "x"),
            ]),
        ),
        story(
            "rules for clients outside come",
            base(),
            base().and(&[&firewall(
                "f",
                &format!("[{}]", networks("Deny", "203.0.113.64/26")),
            )]),
        ),
        story(
            "rules for clients outside go",
            base().and(&[&firewall(
                "f",
                &format!("[{}]", networks("Deny", "203.0.113.64/26")),
            )]),
            base(),
        ),
        story(
            "a pod is told addresses",
            base().and(&[&list(&[names("api.example.test"), networks("Deny", everywhere)])]),
            base()
                .and(&[&list(&[names("api.example.test"), networks("Deny", everywhere)])])
                .with_answer(
                    "10.0.0.1",
                    "api.example.test",
                    &["203.0.113.9", "2001:db8:1::9"],
                    300,
                ),
        ),
        Story {
            after: 10,
            outlasting: Some(to_outside("203.0.113.9")),
            ..story(
                "what a pod was told is over when a policy names it",
                base()
                    .and(&[&list(&[networks("Accept", narrow), networks("Deny", everywhere)])])
                    .with_answer(
                        "10.0.0.1",
                        "api.example.test",
                        &["203.0.113.9", "2001:db8:1::9"],
                        1,
                    ),
                base()
                    .and(&[&list(&[names("api.example.test"), networks("Deny", everywhere)])])
                    .with_answer(
                        "10.0.0.1",
                        "api.example.test",
                        &["203.0.113.9", "2001:db8:1::9"],
                        1,
                    ),
            )
        },
    ]
}

const fn to_outside(to: &'static str) -> Probe {
    Probe {
        through: "veth-1",
        from: "10.0.0.1",
        to,
        what: What::Tcp(80),
    }
}

/// What is asked after each step: pods to pods of both nodes, outside, their node, themselves asked by all of them, and a
/// client outside.
pub(crate) fn probes() -> Vec<Probe> {
    let mut all = Vec::new();
    let mut add = |through, from, to, whats: &[What]| {
        all.extend(whats.iter().map(|what| Probe {
            through,
            from,
            to,
            what: *what,
        }));
    };
    let (tcp, both) = ([What::Tcp(80)], [What::Tcp(80), What::Udp(53)]);
    let every = [What::Tcp(80), What::Tcp(443), What::Udp(53), What::Ping];
    for to in ["10.0.1.5", "10.0.1.6"] {
        add("veth-1", "10.0.0.1", to, &every);
        add("eth0", to, "10.0.0.1", &both);
        add("eth0", to, "10.0.0.2", &tcp);
        add("veth-2", "10.0.0.2", to, &tcp);
    }
    for to in ["fd00:1::5", "fd00:1::6"] {
        add("veth-1", "fd00::1", to, &every);
        add("eth0", to, "fd00::1", &both);
    }
    for to in ["203.0.113.2", "203.0.113.9", "203.0.113.66", "198.51.100.7"] {
        add("veth-1", "10.0.0.1", to, &both);
        add("veth-2", "10.0.0.2", to, &tcp);
    }
    for to in ["2001:db8:1::2", "2001:db8:1::9", "2001:db8:2::9"] {
        add("veth-1", "fd00::1", to, &both);
    }
    add("veth-1", "10.0.0.1", "10.0.0.2", &every);
    add("veth-1", "fd00::1", "fd00::2", &both);
    add("veth-2", "10.0.0.2", "10.0.0.1", &both);
    add(
        "veth-1",
        "10.0.0.1",
        "192.0.2.1",
        &[What::Udp(53), What::Tcp(80), What::Ping],
    );
    add("veth-1", "fd00::1", "2001:db8:f::1", &tcp);
    add("eth0", "198.51.100.1", "192.0.2.1", &[What::Tcp(30080)]);
    add("eth0", "198.51.100.1", "10.0.0.1", &tcp);
    all
}
