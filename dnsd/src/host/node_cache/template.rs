//! Renders the Corefile from the template and the `kube-dns` ConfigMap, octet for octet as node-cache does.

use std::fmt::Write;
use std::net::IpAddr;

use super::KubeDns;

/// The value of `__PILLAR__UPSTREAM__SERVERS__` if the ConfigMap names no upstream.
const HOST_RESOLVERS: &str = "/etc/resolv.conf";

/// The text of the template that is replaced if the ConfigMap names upstreams: node-cache queries those over UDP. It
/// matches only with exactly this white space, as in node-cache.
const OVER_TCP: &str = "
    forward . __PILLAR__UPSTREAM__SERVERS__ {
            force_tcp
    }
";
const OVER_UDP: &str = "
    forward . __PILLAR__UPSTREAM__SERVERS__
";

/// The values for the template.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The local addresses.
    pub local_ips: &'a [IpAddr],
    /// The port of stub domains.
    pub dns_port: u16,
    /// The address of the upstream Service, if the environment has it.
    pub cluster_dns: Option<IpAddr>,
    /// The value of `__PROMETHEUS__ENDPOINT__`.
    pub prometheus_address: &'a str,
    /// Stub domains and upstreams.
    pub kube_dns: &'a KubeDns,
}

/// Renders the Corefile.
#[must_use]
pub fn render(template: &str, inputs: &Inputs<'_>) -> String {
    let listed: Vec<String> = inputs.local_ips.iter().map(IpAddr::to_string).collect();
    let local = listed.join(" ");
    let upstreams = inputs.kube_dns.upstream_nameservers.join(" ");
    let (template, upstreams) = if upstreams.is_empty() {
        (template.to_owned(), HOST_RESOLVERS)
    } else {
        (template.replace(OVER_TCP, OVER_UDP), upstreams.as_str())
    };
    // Go prints a missing address as `<nil>`; the reader of the Corefile refuses it with its position.
    let cluster_dns = inputs
        .cluster_dns
        .map_or_else(|| "<nil>".to_owned(), |address| address.to_string());
    template
        .replace("__PILLAR__UPSTREAM__SERVERS__", upstreams)
        .replace("__PILLAR__CLUSTER__DNS__", &cluster_dns)
        .replace("__PILLAR__LOCAL__DNS__", &local)
        .replace("__PILLAR__DNS__SERVER__", "")
        .replace("__PROMETHEUS__ENDPOINT__", inputs.prometheus_address)
        + &stub_domains(inputs, &local)
}

/// A block for each stub domain, sorted by name; node-cache's order is random.
fn stub_domains(inputs: &Inputs<'_>, local: &str) -> String {
    let mut text = String::new();
    for (domain, servers) in &inputs.kube_dns.stub_domains {
        write!(
            text,
            "\n{domain}:{port} {{\n    errors\n    cache 30\n    bind {local}\n    forward . {servers}\n}}\n",
            port = inputs.dns_port,
            servers = servers.join(" "),
        )
        .expect("a String takes any text");
    }
    text
}

/// The environment variable with a Service's address: of `kube-dns-upstream` it is `KUBE_DNS_UPSTREAM_SERVICE_HOST`.
#[must_use]
pub fn service_variable(service: &str) -> String {
    format!("{}_SERVICE_HOST", service.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const TEMPLATE: &str = "cluster.local:53 {
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus __PROMETHEUS__ENDPOINT__
}
.:53 {
    forward . __PILLAR__UPSTREAM__SERVERS__ {
            force_tcp
    }
}
";

    fn rendered(template: &str, kube_dns: &KubeDns, cluster_dns: Option<&str>) -> String {
        let local_ips = ["169.254.20.10", "fd00::a"].map(|text| text.parse().unwrap());
        let inputs = Inputs {
            local_ips: &local_ips,
            dns_port: 53,
            cluster_dns: cluster_dns.map(|text| text.parse().unwrap()),
            prometheus_address: ":9253",
            kube_dns,
        };
        render(template, &inputs)
    }

    #[test]
    fn every_variable_is_replaced_and_host_resolvers_are_asked_over_tcp() {
        let text = rendered(TEMPLATE, &KubeDns::default(), Some("10.96.7.7"));
        assert_eq!(
            text,
            "cluster.local:53 {
    bind 169.254.20.10 fd00::a 
    forward . 10.96.7.7 {
            force_tcp
    }
    prometheus :9253
}
.:53 {
    forward . /etc/resolv.conf {
            force_tcp
    }
}
"
        );
    }

    #[test]
    fn upstreams_of_the_config_map_are_asked_over_udp_where_the_white_space_is_the_usual_one() {
        let kube_dns = KubeDns {
            upstream_nameservers: vec!["9.9.9.9".to_owned(), "tls://1.1.1.1:853".to_owned()],
            ..KubeDns::default()
        };
        let text = rendered(TEMPLATE, &kube_dns, Some("10.96.7.7"));
        assert!(
            text.ends_with(".:53 {\n    forward . 9.9.9.9 tls://1.1.1.1:853\n}\n"),
            "{text}"
        );
        let other = TEMPLATE.replace("            force_tcp", "        force_tcp");
        let text = rendered(&other, &kube_dns, Some("10.96.7.7"));
        assert!(
            text.contains("forward . 9.9.9.9 tls://1.1.1.1:853 {\n        force_tcp\n    }"),
            "{text}"
        );
    }

    #[test]
    fn stub_domains_follow_sorted_by_name() {
        let domain = |name: &str, servers: &[&str]| {
            (
                name.to_owned(),
                servers.iter().map(|it| (*it).to_owned()).collect(),
            )
        };
        let kube_dns = KubeDns {
            stub_domains: BTreeMap::from([
                domain("corp", &["10.1.0.1:5353"]),
                domain("acme.local", &["1.2.3.4", "::1"]),
            ]),
            ..KubeDns::default()
        };
        assert_eq!(
            rendered("", &kube_dns, None),
            "
acme.local:53 {
    errors
    cache 30
    bind 169.254.20.10 fd00::a
    forward . 1.2.3.4 ::1
}

corp:53 {
    errors
    cache 30
    bind 169.254.20.10 fd00::a
    forward . 10.1.0.1:5353
}
"
        );
    }

    #[test]
    fn a_missing_service_address_is_rendered_as_in_go() {
        assert!(rendered(TEMPLATE, &KubeDns::default(), None).contains("forward . <nil> {"));
        assert_eq!(
            service_variable("kube-dns-upstream"),
            "KUBE_DNS_UPSTREAM_SERVICE_HOST"
        );
    }
}
