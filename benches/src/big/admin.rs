//! What the administrators of a big cluster write.

/// The first 60 are AdminNetworkPolicies, then come ClusterNetworkPolicies (the last two of tier Baseline), then the one
/// BaselineAdminNetworkPolicy. Every tenth is about all namespaces, the others about a team, some of them about some of
/// its pods.
pub(super) fn policy(number: usize) -> String {
    match number {
        0..60 => admin(number),
        60..97 => cluster(number, "Admin"),
        97 | 98 => cluster(number, "Baseline"),
        _ => baseline(),
    }
}

fn admin(number: usize) -> String {
    let rules = format!(
        "  - name: names\n    action: Allow\n    to: [{{domainNames: [api{number}.example.test, \"*.cdn{}.example.test\"]}}]\n    \
         ports: [{{portNumber: {{port: 443}}}}]\n  \
         - action: Deny\n    to: [{{networks: [169.254.169.254/32, 203.0.{number}.0/24]}}]\n  \
         - action: Pass\n    to: [{{namespaces: {{matchLabels: {{env: prod}}}}}}]\n    \
         ports: [{{portRange: {{start: 8000, end: 8999}}}}]\n  \
         - action: Deny\n    to: [{}]\n    ports: [{{namedPort: metrics}}]\n  ingress:\n  \
         - action: Deny\n    from: [{{namespaces: {{matchLabels: {{team: t{}}}}}}}]\n    ports: [{{portNumber: {{port: 22}}}}]\n",
        number % 5,
        pods((number + 1) % 7, number % 10),
        (number + 2) % 7,
    );
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {{name: admin-{number}}}\n\
         spec:\n  priority: {number}\n  subject: {{{}}}\n  egress:\n{rules}",
        subject(number)
    )
}

fn cluster(number: usize, tier: &str) -> String {
    let names = match tier {
        "Admin" => format!(
            "  - action: Accept\n    to: [{{domainNames: [api{number}.example.test, \"*.cdn{}.example.test\"]}}]\n    \
             protocols: [{{tcp: {{destinationPort: {{number: 443}}}}}}]\n",
            number % 5
        ),
        _ => String::new(),
    };
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: cluster-{number}}}\n\
         spec:\n  tier: {tier}\n  priority: {number}\n  subject: {{{}}}\n  egress:\n{names}  \
         - action: Accept\n    to: [{}]\n    protocols: [{{tcp: {{destinationPort: {{range: {{start: 9000, end: 9100}}}}}}}}]\n  \
         - action: Deny\n    to: [{{networks: [203.0.{number}.0/24]}}]\n  ingress:\n  \
         - action: Accept\n    from: [{{namespaces: {{matchLabels: {{team: t{}}}}}}}]\n    \
         protocols: [{{destinationNamedPort: metrics}}]\n",
        subject(number),
        pods((number + 3) % 7, number % 10),
        (number + 4) % 7,
    )
}

fn baseline() -> String {
    "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: BaselineAdminNetworkPolicy\nmetadata: {name: default}\n\
     spec:\n  subject: {namespaces: {}}\n  egress:\n  - action: Deny\n    to: [{networks: [192.0.2.0/24]}]\n  ingress:\n  \
     - action: Deny\n    from: [{namespaces: {matchLabels: {env: dev}}}]\n"
        .to_owned()
}

fn subject(number: usize) -> String {
    match (number % 10, number % 3) {
        (0, _) => "namespaces: {}".to_owned(),
        (_, 0) => format!(
            "pods: {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, podSelector: {{matchExpressions: \
             [{{key: app, operator: In, values: [a{}, a{}]}}]}}}}",
            number % 7,
            number % 10,
            (number + 1) % 10
        ),
        _ => format!("namespaces: {{matchLabels: {{team: t{}}}}}", number % 7),
    }
}

fn pods(team: usize, app: usize) -> String {
    format!(
        "{{pods: {{namespaceSelector: {{matchLabels: {{team: t{team}}}}}, podSelector: {{matchLabels: {{app: a{app}}}}}}}}}"
    )
}

/// ClusterEgressFirewalls: names, nodes and the world, over all pods.
pub(super) fn firewall(number: usize) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: firewall-{number}}}\n\
         spec:\n  priority: {}\n  services: {{exposure: Ignore}}\n  rules:\n  \
         - {{action: Allow, to: [{{domainNames: [\"*.fw{number}.example.test\"]}}]}}\n  \
         - {{action: Allow, to: [{{nodes: {{}}}}], protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}, {{tcp: {{destinationPort: {{number: 53}}}}}}]}}\n  \
         - {{action: Deny, to: [{{nodes: {{selector: {{matchLabels: {{pool: p{}}}}}}}}}], protocols: [{{tcp: {{destinationPort: {{range: {{start: 10250, end: 10259}}}}}}}}]}}\n  \
         - {{action: Deny, to: [{{external: {{}}}}], protocols: [{{tcp: {{destinationPort: {{number: {}}}}}}}]}}\n",
        100 + number,
        number % 5,
        6000 + number,
    )
}
