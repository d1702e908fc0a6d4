//! The nftables mode: a table `kube-proxy` in each family, with base chains of its own. Verdict maps find the Service;
//! `external-…`, `service-…`, `local-…` and `endpoint-…` do what the chains of the iptables mode do.

use std::{fmt::Write as _, net::SocketAddr};

use super::{Around, ServicePort};

/// The table of one family, for `nft -f`, instead of the one before; without Services there is none.
pub(super) fn table(services: Option<&[&ServicePort]>, around: &Around<'_>) -> String {
    let ip = if around.is_v4 { "ip" } else { "ip6" };
    let fresh = format!("add table {ip} kube-proxy\ndelete table {ip} kube-proxy\n");
    match services {
        None => fresh,
        Some(services) => fresh + &Table::new(ip, services, around).text(),
    }
}

struct Table<'a> {
    ip: &'static str,
    around: &'a Around<'a>,
    chains: String,
    cluster_ips: Vec<String>,
    service_ips: Vec<String>,
    node_ports: Vec<String>,
    no_endpoints: Vec<String>,
    no_endpoint_ports: Vec<String>,
}

impl<'a> Table<'a> {
    fn new(ip: &'static str, services: &[&ServicePort], around: &'a Around<'a>) -> Self {
        let mut table = Self {
            ip,
            around,
            chains: String::new(),
            cluster_ips: Vec::new(),
            service_ips: Vec::new(),
            node_ports: Vec::new(),
            no_endpoints: Vec::new(),
            no_endpoint_ports: Vec::new(),
        };
        services.iter().for_each(|service| table.add(service));
        table.cluster_ips.sort();
        table.cluster_ips.dedup();
        table
    }

    fn add(&mut self, service: &ServicePort) {
        let protocol = service.protocol;
        let key = |at: &SocketAddr| format!("{} . {protocol} . {}", at.ip(), at.port());
        self.cluster_ips
            .extend(service.cluster.map(|at| at.ip().to_string()));
        if service.endpoints.is_empty() {
            let refused = service.cluster.iter().chain(&service.outside);
            self.no_endpoints
                .extend(refused.map(|at| format!("{} : goto reject-chain", key(at))));
            return;
        }
        let base = format!("{}/{protocol}", service.name);
        let to_external = |at: &SocketAddr| format!("{} : goto external-{base}", key(at));
        self.service_ips.extend(
            service
                .cluster
                .map(|at| format!("{} : goto service-{base}", key(&at))),
        );
        self.service_ips.extend(service.outside.iter().map(to_external));
        let node_port = service.node_port.map(|port| format!("{protocol} . {port}"));
        self.node_ports.extend(
            node_port
                .iter()
                .map(|port| format!("{port} : goto external-{base}")),
        );
        if service.keeps_clients && !self.around.has_local(service) {
            self.no_endpoints
                .extend(service.outside.iter().map(|at| format!("{} : drop", key(at))));
            self.no_endpoint_ports
                .extend(node_port.iter().map(|port| format!("{port} : drop")));
        }
        self.add_chains(service, &base);
    }

    /// Endpoints first: nft knows no chain before it has read it.
    fn add_chains(&mut self, service: &ServicePort, base: &str) {
        let (ip, pods, protocol) = (self.ip, self.around.pods(), service.protocol);
        let named = |(place, endpoint, is_local): (usize, &SocketAddr, bool)| {
            (format!("endpoint-{base}__{place}"), *endpoint, is_local)
        };
        let endpoints: Vec<(String, SocketAddr, bool)> = self.around.endpoints(service).map(named).collect();
        for (chain, endpoint, _) in &endpoints {
            let rules = format!(
                "{ip} saddr {} jump mark-for-masquerade\nmeta l4proto {protocol} dnat to {endpoint}\n",
                endpoint.ip()
            );
            self.chain(chain, &rules);
        }
        let from_elsewhere = service.cluster.map_or_else(String::new, |at| {
            format!(
                "{ip} daddr {} {ip} saddr != {pods} jump mark-for-masquerade\n",
                at.ip()
            )
        });
        let all = choose(endpoints.iter().map(|(chain, ..)| chain));
        self.chain(&format!("service-{base}"), &(from_elsewhere + &all));
        if !service.is_exposed() {
            return;
        }
        if !service.keeps_clients {
            let rules = format!("jump mark-for-masquerade\ngoto service-{base}\n");
            self.chain(&format!("external-{base}"), &rules);
            return;
        }
        let mut rules = format!(
            "{ip} saddr {pods} goto service-{base}\nfib saddr type local jump mark-for-masquerade\n\
             fib saddr type local goto service-{base}\n"
        );
        if endpoints.iter().any(|(.., is_local)| *is_local) {
            let here = endpoints.iter().filter(|(.., is_local)| *is_local);
            self.chain(&format!("local-{base}"), &choose(here.map(|(chain, ..)| chain)));
            rules += &format!("goto local-{base}\n");
        }
        self.chain(&format!("external-{base}"), &rules);
    }

    fn chain(&mut self, name: &str, rules: &str) {
        writeln!(self.chains, "chain {name} {{\n{rules}}}").expect("a String takes any text");
    }

    fn text(&self) -> String {
        let ip = self.ip;
        let (address, no_loopback) = if self.around.is_v4 {
            ("ipv4_addr", "ip daddr != 127.0.0.0/8 ")
        } else {
            ("ipv6_addr", "ip6 daddr != ::1 ")
        };
        let [by_address, by_port] = [
            format!("{address} . inet_proto . inet_service : verdict"),
            "inet_proto . inet_service : verdict".into(),
        ];
        let of_node = format!("fib daddr type local {no_loopback}meta l4proto . th dport vmap");
        let whole = format!("{ip} daddr . meta l4proto . th dport vmap");
        format!(
            "table {ip} kube-proxy {{\n\
             chain mark-for-masquerade {{\nmark set mark or 0x4000\n}}\n\
             chain masquerading {{\nmark and 0x4000 == 0 return\nmark set mark xor 0x4000\nmasquerade fully-random\n}}\n\
             chain reject-chain {{\nreject\n}}\n{chains}\
             set cluster-ips {{ type {address}; {cluster_ips} }}\n\
             map service-ips {{ type {by_address}; {service_ips} }}\n\
             map service-nodeports {{ type {by_port}; {node_ports} }}\n\
             map no-endpoint-services {{ type {by_address}; {no_endpoints} }}\n\
             map no-endpoint-nodeports {{ type {by_port}; {no_endpoint_ports} }}\n\
             chain services {{\n{whole} @service-ips\n{of_node} @service-nodeports\n}}\n\
             chain service-endpoints-check {{\n{whole} @no-endpoint-services\n}}\n\
             chain nodeport-endpoints-check {{\n{of_node} @no-endpoint-nodeports\n}}\n\
             chain cluster-ips-check {{\n{ip} daddr @cluster-ips reject\n}}\n\
             chain filter-forward {{\ntype filter hook forward priority 0;\n\
             ct state new jump service-endpoints-check\nct state new jump cluster-ips-check\n}}\n\
             chain filter-input {{\ntype filter hook input priority 0;\n\
             ct state new jump nodeport-endpoints-check\nct state new jump service-endpoints-check\n}}\n\
             chain filter-output {{\ntype filter hook output priority 0;\n\
             ct state new jump service-endpoints-check\nct state new jump cluster-ips-check\n}}\n\
             chain nat-prerouting {{\ntype nat hook prerouting priority -100;\njump services\n}}\n\
             chain nat-output {{\ntype nat hook output priority -100;\njump services\n}}\n\
             chain nat-postrouting {{\ntype nat hook postrouting priority 100;\njump masquerading\n}}\n}}\n",
            chains = self.chains,
            cluster_ips = elements(&self.cluster_ips),
            service_ips = elements(&self.service_ips),
            node_ports = elements(&self.node_ports),
            no_endpoints = elements(&self.no_endpoints),
            no_endpoint_ports = elements(&self.no_endpoint_ports),
        )
    }
}

fn elements(members: &[String]) -> String {
    if members.is_empty() {
        return String::new();
    }
    format!("elements = {{ {} }};", members.join(", "))
}

/// One of several, each as likely.
fn choose<'s>(among: impl Iterator<Item = &'s String>) -> String {
    let goto: Vec<String> = among
        .enumerate()
        .map(|(place, chain)| format!("{place} : goto {chain}"))
        .collect();
    format!(
        "numgen random mod {} vmap {{ {} }}\n",
        goto.len(),
        goto.join(", ")
    )
}
