//! The iptables mode: `KUBE-SERVICES` finds the Service, `KUBE-EXT-…` who comes from outside, `KUBE-SVC-…` and
//! `KUBE-SVL-…` one of its endpoints, `KUBE-SEP-…` rewrites. What is to be masqueraded bears 0x4000 until it leaves.

use std::{fmt::Write as _, net::SocketAddr};

use super::{Around, ServicePort};

const FILTER_CHAINS: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
];
const NAT_CHAINS: [&str; 4] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-MARK-MASQ",
    "KUBE-POSTROUTING",
];
const NEW: &str = "-m conntrack --ctstate NEW ";
/// Hook, condition, remark, chain; each is put in front of the one before.
const FILTER_JUMPS: [(&str, &str, &str, &str); 9] = [
    (
        "INPUT",
        NEW,
        "kubernetes externally-visible service portals",
        "KUBE-EXTERNAL-SERVICES",
    ),
    (
        "FORWARD",
        NEW,
        "kubernetes externally-visible service portals",
        "KUBE-EXTERNAL-SERVICES",
    ),
    (
        "INPUT",
        "",
        "kubernetes health check service ports",
        "KUBE-NODEPORTS",
    ),
    ("FORWARD", NEW, "kubernetes service portals", "KUBE-SERVICES"),
    ("OUTPUT", NEW, "kubernetes service portals", "KUBE-SERVICES"),
    ("FORWARD", "", "kubernetes forwarding rules", "KUBE-FORWARD"),
    (
        "INPUT",
        NEW,
        "kubernetes load balancer firewall",
        "KUBE-PROXY-FIREWALL",
    ),
    (
        "OUTPUT",
        NEW,
        "kubernetes load balancer firewall",
        "KUBE-PROXY-FIREWALL",
    ),
    (
        "FORWARD",
        NEW,
        "kubernetes load balancer firewall",
        "KUBE-PROXY-FIREWALL",
    ),
];
const NAT_JUMPS: [(&str, &str, &str, &str); 3] = [
    ("OUTPUT", "", "kubernetes service portals", "KUBE-SERVICES"),
    ("PREROUTING", "", "kubernetes service portals", "KUBE-SERVICES"),
    (
        "POSTROUTING",
        "",
        "kubernetes postrouting rules",
        "KUBE-POSTROUTING",
    ),
];

/// Both tables, for `iptables-restore --noflush`; `present` is what `iptables-save` says.
pub(super) fn tables(services: &[&ServicePort], around: &Around<'_>, present: &str) -> String {
    let mut filter = Text::of("filter", &FILTER_CHAINS);
    filter.jumps(&FILTER_JUMPS, present_in("filter", present));
    filter.rule(format_args!(
        "KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP"
    ));
    filter.rule(format_args!(
        "KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT"
    ));
    filter.rule(format_args!(
        "KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    ));
    for service in services {
        filter.refuse(service, around);
    }
    filter.finish() + &nat(services, around, present_in("nat", present))
}

/// The table `nat`.
pub(super) fn nat(services: &[&ServicePort], around: &Around<'_>, present: &str) -> String {
    let mut nat = Text::of("nat", &NAT_CHAINS);
    nat.jumps(&NAT_JUMPS, present);
    nat.rule(format_args!("KUBE-MARK-MASQ -j MARK --or-mark 0x4000"));
    nat.rule(format_args!(
        "KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN"
    ));
    nat.rule(format_args!("KUBE-POSTROUTING -j MARK --xor-mark 0x4000"));
    nat.rule(format_args!(
        "KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully"
    ));
    for (number, service) in services.iter().enumerate() {
        nat.lead_on(number, service, around);
    }
    nat.rule(format_args!(
        "KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
    ));
    nat.finish()
}

/// All chains without their rules.
pub(super) fn emptied() -> String {
    Text::of("filter", &FILTER_CHAINS).finish() + &Text::of("nat", &NAT_CHAINS).finish()
}

/// One table as `iptables-restore` reads it: chains before rules.
struct Text {
    table: &'static str,
    chains: String,
    rules: String,
}

impl Text {
    fn of(table: &'static str, chains: &[&str]) -> Self {
        let mut text = Self {
            table,
            chains: String::new(),
            rules: String::new(),
        };
        chains.iter().for_each(|chain| text.chain(chain));
        text
    }

    fn finish(self) -> String {
        format!("*{}\n{}{}COMMIT\n", self.table, self.chains, self.rules)
    }

    fn chain(&mut self, name: &str) {
        self.chains += &format!(":{name} - [0:0]\n");
    }

    fn rule(&mut self, rule: std::fmt::Arguments<'_>) {
        writeln!(self.rules, "-A {rule}").expect("a String takes any text");
    }

    /// Those that are there stay where they are.
    fn jumps(&mut self, jumps: &[(&str, &str, &str, &str)], present: &str) {
        for (hook, condition, remark, chain) in jumps {
            let rule = format!("{hook} {condition}-m comment --comment \"{remark}\" -j {chain}");
            if !present.contains(&format!("-A {rule}\n")) {
                writeln!(self.rules, "-I {rule}").expect("a String takes any text");
            }
        }
    }

    /// What has no endpoints, or none that the policy admits.
    fn refuse(&mut self, service: &ServicePort, around: &Around<'_>) {
        let (name, protocol) = (&service.name, service.protocol);
        if service.endpoints.is_empty()
            && let Some(at) = &service.cluster
        {
            let to = destination(protocol, at);
            self.rule(format_args!(
                "KUBE-SERVICES -m comment --comment \"{name} has no endpoints\" {to} -j REJECT"
            ));
        }
        if service.keeps_clients && !around.has_local(service) {
            let remark = format!("-m comment --comment \"{name} has no local endpoints\"");
            for at in &service.outside {
                let to = destination(protocol, at);
                self.rule(format_args!("KUBE-EXTERNAL-SERVICES {remark} {to} -j DROP"));
            }
            if let Some(port) = service.node_port {
                self.rule(format_args!(
                    "KUBE-EXTERNAL-SERVICES {remark} -m addrtype --dst-type LOCAL -p {protocol} -m {protocol} --dport {port} -j DROP"
                ));
            }
        }
    }

    fn lead_on(&mut self, number: usize, service: &ServicePort, around: &Around<'_>) {
        if service.endpoints.is_empty() {
            return;
        }
        let (name, protocol) = (&service.name, service.protocol);
        let [svc, svl, ext] = ["SVC", "SVL", "EXT"].map(|kind| format!("KUBE-{kind}-{number:016}"));
        self.chain(&svc);
        if let Some(at) = &service.cluster {
            let (to, pods) = (destination(protocol, at), around.pods());
            self.rule(format_args!(
                "KUBE-SERVICES -m comment --comment \"{name} cluster IP\" {to} -j {svc}"
            ));
            self.rule(format_args!(
                "{svc} -m comment --comment \"{name} cluster IP\" {to} ! -s {pods} -j KUBE-MARK-MASQ"
            ));
        }
        let separate = |place: usize| format!("KUBE-SEP-{number:08}{place:08}");
        for (place, endpoint, _) in around.endpoints(service) {
            let chain = separate(place);
            self.chain(&chain);
            self.rule(format_args!(
                "{chain} -m comment --comment {name} -s {} -j KUBE-MARK-MASQ",
                endpoint.ip()
            ));
            self.rule(format_args!(
                "{chain} -m comment --comment {name} -m {protocol} -p {protocol} -j DNAT --to-destination {endpoint}"
            ));
        }
        let all = around.endpoints(service).map(|(place, _, _)| separate(place));
        self.choose(&svc, all.collect());
        if !service.is_exposed() {
            return;
        }
        self.chain(&ext);
        for at in &service.outside {
            let to = destination(protocol, at);
            self.rule(format_args!(
                "KUBE-SERVICES -m comment --comment \"{name} external IP\" {to} -j {ext}"
            ));
        }
        if let Some(port) = service.node_port {
            self.rule(format_args!(
                "KUBE-NODEPORTS -m comment --comment {name} -m {protocol} -p {protocol} --dport {port} -j {ext}"
            ));
        }
        if !service.keeps_clients {
            self.rule(format_args!(
                "{ext} -m comment --comment \"masquerade traffic for {name} external destinations\" -j KUBE-MARK-MASQ"
            ));
            self.rule(format_args!("{ext} -j {svc}"));
            return;
        }
        let local = "-m addrtype --src-type LOCAL";
        self.rule(format_args!("{ext} -s {} -j {svc}", around.pods()));
        self.rule(format_args!("{ext} {local} -j KUBE-MARK-MASQ"));
        self.rule(format_args!("{ext} {local} -j {svc}"));
        if around.has_local(service) {
            self.chain(&svl);
            self.rule(format_args!("{ext} -j {svl}"));
            let here = around.endpoints(service).filter(|(_, _, is_local)| *is_local);
            self.choose(&svl, here.map(|(place, _, _)| separate(place)).collect());
        }
    }

    /// One of several, each as likely.
    fn choose(&mut self, chain: &str, among: Vec<String>) {
        for (place, one) in among.iter().enumerate() {
            match among.len() - place {
                1 => self.rule(format_args!("{chain} -j {one}")),
                left => {
                    let number = u32::try_from(left).expect("few endpoints");
                    self.rule(format_args!(
                        "{chain} -m statistic --mode random --probability {:.10} -j {one}",
                        1.0 / f64::from(number)
                    ));
                }
            }
        }
    }
}

fn destination(protocol: &str, at: &SocketAddr) -> String {
    format!("-m {protocol} -p {protocol} -d {} --dport {}", at.ip(), at.port())
}

/// What `iptables-save` says about one table.
fn present_in<'a>(table: &str, present: &'a str) -> &'a str {
    let text = present
        .split_once(&format!("*{table}\n"))
        .map_or("", |(_, text)| text);
    text.split_once("COMMIT\n").map_or(text, |(text, _)| text)
}
