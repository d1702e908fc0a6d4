//! etcd, kube-apiserver, proxy-server, kube-controller-manager, kube-scheduler; beside them what stands for the internet: a resolver and two servers.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use egret_shared::net::Family;

use crate::{demo::Stop, kubernetes};

use super::{
    Failure, NODES,
    kubectl::Kubectl,
    machine::Machine,
    network::{Network, record_type},
    objects::{ALLOWED, REFUSED},
    preconditions::Programs,
    proxy_server, until,
};

const BRIDGE: &str = "cluster";
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Who asks the API server beside the nodes, each with the groups.
const USERS: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("kube-proxy", "system:kube-proxy", ""),
    ("proxy-server", proxy_server::USER, ""),
];

/// The machine that it runs on.
pub(super) struct ControlPlane {
    machine: Machine,
    network: Network,
    folder: PathBuf,
    kubectl: String,
    helm: String,
}

impl ControlPlane {
    pub(super) fn start(
        programs: &Programs,
        network: Network,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let machine = Machine::start("control-plane", folder)?;
        let folder = folder.join("kubernetes");
        fs::create_dir_all(&folder)?;
        let mut control_plane = Self {
            machine,
            network,
            folder,
            kubectl: programs.kubectl.clone(),
            helm: programs.helm.clone(),
        };
        control_plane.write_keys()?;
        control_plane.make_network()?;
        control_plane.start_internet(programs)?;
        control_plane.start_kubernetes(programs, stop)?;
        Ok(control_plane)
    }

    pub(super) fn kubectl(&self) -> Kubectl {
        Kubectl {
            net: format!("--net=/proc/{}/ns/net", self.machine.init_process()),
            kubectl: self.kubectl.clone(),
            helm: self.helm.clone(),
            kubeconfig: self.kubeconfig("admin"),
            folder: self.folder.clone(),
        }
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// A cable from a machine to the bridge.
    pub(super) fn connect(&self, other: &Machine, name: &str, addresses: &[IpAddr]) -> Result<(), Failure> {
        let ip = |arguments: &str| self.machine.ip(&arguments.split(' ').collect::<Vec<_>>());
        ip(&format!(
            "link add {name} type veth peer name eth0 netns {}",
            other.init_process()
        ))?;
        ip(&format!("link set {name} master {BRIDGE} up"))?;
        add_addresses(other, "eth0", addresses)?;
        other.ip(&["link", "set", "eth0", "up"])?;
        for (everything, gateway) in self.network.everything().iter().zip(self.network.control_plane()) {
            other.ip(&["route", "add", everything, "via", &gateway.to_string()])?;
        }
        Ok(())
    }

    pub(super) fn kubeconfig(&self, user: &str) -> String {
        self.folder
            .join(format!("{user}.kubeconfig"))
            .display()
            .to_string()
    }

    fn make_network(&self) -> Result<(), Failure> {
        let ip = |arguments: &str| self.machine.ip(&arguments.split(' ').collect::<Vec<_>>());
        ip(&format!("link add {BRIDGE} type bridge"))?;
        let network = self.network;
        for addresses in [
            network.control_plane(),
            network.allowed(),
            network.refused(),
            network.direct(),
        ] {
            add_addresses(&self.machine, BRIDGE, &addresses)?;
        }
        ip(&format!("link set {BRIDGE} up"))?;
        proxy_server::partition(&self.machine, BRIDGE)
    }

    fn start_internet(&mut self, programs: &Programs) -> Result<(), Failure> {
        let corefile = self.folder.join("Corefile");
        fs::write(&corefile, zones(self.network))?;
        self.machine
            .spawn(&programs.coredns, &format!("-conf {}", corefile.display()))?;
        let pages = self.folder.join("pages");
        fs::create_dir_all(&pages)?;
        fs::write(pages.join("index.html"), "hello\n")?;
        self.machine
            .spawn("busybox", &format!("httpd -f -p [::]:80 -h {}", pages.display()))
    }

    fn start_kubernetes(&mut self, programs: &Programs, stop: &Stop) -> Result<(), Failure> {
        let folder = self.folder.display().to_string();
        let address = self.network.control_plane()[0];
        proxy_server::write_files(&self.machine, &self.kubeconfig("proxy-server"))?;
        self.machine.spawn(
            "etcd",
            &format!("--data-dir {folder}/etcd --unsafe-no-fsync --log-level warn"),
        )?;
        self.machine.spawn(
            &programs.api_server,
            &format!(
                "--etcd-servers http://127.0.0.1:2379 --secure-port 6443 --bind-address {address} --advertise-address {address} \
                 --cert-dir {folder}/certificates --service-account-key-file {folder}/tokens.pub \
                 --service-account-signing-key-file {folder}/tokens.key --service-account-issuer https://kubernetes.default.svc \
                 --service-cluster-ip-range {} --token-auth-file {folder}/tokens.csv --authorization-mode Node,RBAC \
                 --enable-admission-plugins NodeRestriction --allow-privileged --kubelet-preferred-address-types InternalIP \
                 --egress-selector-config-file {}",
                self.network.services().join(","),
                proxy_server::SELECTOR
            ),
        )?;
        // It makes the certificate that the kubeconfigs of the others trust.
        let kubectl = self.kubectl();
        until(stop, "the API server is ready", READY_WITHIN, || {
            kubectl.get(&["--raw", "/readyz"]).map(|_| true)
        })
        .map_err(|error| format!("{error}\n{}", self.machine.logs()))?;
        proxy_server::start_server(&mut self.machine, &self.folder.join("certificates"))?;
        let controllers = self.kubeconfig("controller-manager");
        self.machine.spawn(
            &programs.controller_manager,
            &format!(
                "--kubeconfig {controllers} --authentication-kubeconfig {controllers} --authorization-kubeconfig {controllers} \
                 --service-account-private-key-file {folder}/tokens.key --root-ca-file {folder}/certificates/apiserver.crt \
                 --use-service-account-credentials --leader-elect=false --cert-dir {folder}/controller-manager"
            ),
        )?;
        let scheduler = self.kubeconfig("scheduler");
        self.machine.spawn(
            &programs.scheduler,
            &format!(
                "--kubeconfig {scheduler} --authentication-kubeconfig {scheduler} --authorization-kubeconfig {scheduler} \
                 --leader-elect=false"
            ),
        )
    }

    /// The API server makes its own certificate, which the kubeconfigs trust.
    fn write_keys(&self) -> Result<(), Failure> {
        kubernetes::write_token_keys(&self.folder)?;
        let server = SocketAddr::new(self.network.control_plane()[0], 6443);
        let mut tokens = String::new();
        let users = USERS.map(|(file, user, group)| (file.to_owned(), user.to_owned(), group));
        let nodes = NODES.map(|number| {
            let name = format!("node-{number}");
            (name.clone(), format!("system:node:{name}"), "system:nodes")
        });
        for (file, user, group) in users.into_iter().chain(nodes) {
            // A letter first, or YAML could take it for a number.
            let token = format!("t{:032x}", rand::random::<u128>());
            tokens += &format!("{token},{user},{user},\"{group}\"\n");
            let kubeconfig = kubernetes::kubeconfig(server, &self.folder, &token);
            fs::write(self.kubeconfig(&file), kubeconfig)?;
        }
        fs::write(self.folder.join("tokens.csv"), tokens)?;
        Ok(())
    }
}

/// The Corefile of the resolver that stands for the internet's.
fn zones(network: Network) -> String {
    let addresses = network.control_plane();
    let addresses = addresses.iter().map(|address| format!(" {address}"));
    let bind = format!(" bind{}\n", addresses.collect::<String>());
    let mut zones = format!("many.example.test:53 {{\n{bind}");
    for allowed in network.allowed() {
        let record_type = record_type(allowed);
        zones += &format!(
            " template IN {record_type} {{\n  answer \"{{{{ .Name }}}} 30 IN {record_type} {allowed}\"\n }}\n"
        );
    }
    // A name that has no address of a family exists nevertheless.
    zones += " template ANY ANY {\n  rcode NOERROR\n }\n";
    zones += &format!("}}\n.:53 {{\n{bind} hosts {{\n");
    for (name, addresses) in [(ALLOWED, network.allowed()), (REFUSED, network.refused())] {
        for address in addresses {
            zones += &format!("  {address} {name}\n");
        }
    }
    zones + "  ttl 30\n }\n}\n"
}

/// Without the second in which the kernel looks whether an address of IPv6 is another machine's.
fn add_addresses(machine: &Machine, link: &str, addresses: &[IpAddr]) -> Result<(), Failure> {
    for address in addresses {
        let (length, flags) = match Family::of(*address) {
            Family::V4 => (24, &[][..]),
            Family::V6 => (64, &["nodad"][..]),
        };
        let address = format!("{address}/{length}");
        machine.ip(&[&["address", "add", &*address, "dev", link], flags].concat())?;
    }
    Ok(())
}
