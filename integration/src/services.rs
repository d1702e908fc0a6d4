//! Services, as kube-proxy's iptables mode writes them: chains, marks and masquerading as in
//! pkg/proxy/iptables/proxier.go, cut down to one endpoint each.

use std::{fmt::Write as _, fs, net::SocketAddr};

use crate::{World, WorldError};

/// Where the node takes connections for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// A cluster IP: reached from pods and from the node.
    Cluster(SocketAddr),
    /// An external IP, or a load balancer's: whoever sends a packet there.
    External(SocketAddr),
    /// A port of every address of the node.
    NodePort(u16),
}

/// A Service: TCP, and one endpoint, whose family is the Service's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Where it is reached.
    pub front: Front,
    /// Where it leads.
    pub endpoint: SocketAddr,
}

impl World {
    /// Has the node forward to endpoints, instead of what it forwarded before.
    pub fn forward(&self, services: &[Forwarding]) -> Result<(), WorldError> {
        for (program, is_v4) in [("iptables-restore", true), ("ip6tables-restore", false)] {
            let of_family = services
                .iter()
                .filter(|service| service.endpoint.is_ipv4() == is_v4);
            let path = self.files().join(program);
            fs::write(&path, nat_table(of_family)).map_err(WorldError::file(&path))?;
            self.node().run_well(&[program, &path.display().to_string()])?;
        }
        Ok(())
    }
}

const MASQUERADED: &str = "0x4000/0x4000";

fn nat_table<'a>(services: impl Iterator<Item = &'a Forwarding>) -> String {
    let mut chains = String::from(
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n",
    );
    let mut rules = format!(
        "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark {MASQUERADED}\n\
         -A KUBE-POSTROUTING -m mark ! --mark {MASQUERADED} -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
         -A KUBE-POSTROUTING -j MASQUERADE\n"
    );
    for (number, Forwarding { front, endpoint }) in services.enumerate() {
        let chain = format!("KUBE-SVC-{number:016}");
        let mut add = |text: std::fmt::Arguments<'_>| {
            writeln!(rules, "{text}").expect("a String takes any text");
        };
        chains += &format!(":{chain} - [0:0]\n");
        match front {
            Front::Cluster(at) | Front::External(at) => add(format_args!(
                "-A KUBE-SERVICES -d {} -p tcp -m tcp --dport {} -j {chain}",
                at.ip(),
                at.port()
            )),
            Front::NodePort(port) => {
                add(format_args!(
                    "-A KUBE-NODEPORTS -p tcp -m tcp --dport {port} -j {chain}"
                ));
            }
        }
        // Answers must come back by this node, whoever asked.
        if !matches!(front, Front::Cluster(_)) {
            add(format_args!("-A {chain} -j KUBE-MARK-MASQ"));
        }
        add(format_args!(
            "-A {chain} -p tcp -m tcp -j DNAT --to-destination {endpoint}"
        ));
    }
    rules += "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n";
    chains + &rules + "COMMIT\n"
}
