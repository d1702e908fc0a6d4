//! etcd, kube-apiserver, proxy-server, kube-controller-manager, kube-scheduler; beside them what stands for the internet: a resolver and two servers.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{demo::Stop, kubernetes};

use super::{
    Failure, NODES, konnectivity, kubectl::Kubectl, machine::Machine, preconditions::Programs, until,
};

/// Of IPv4, of IPv6.
pub(super) type Addresses = [IpAddr; 2];

pub(super) const ADDRESSES: Addresses = of_nodes_network(1, 0x1);
pub(super) const ALLOWED_ADDRESSES: Addresses = of_nodes_network(201, 0x201);
pub(super) const REFUSED_ADDRESSES: Addresses = of_nodes_network(202, 0x202);
/// Allowed as addresses.
pub(super) const DIRECT_ADDRESSES: Addresses = of_nodes_network(203, 0x203);
/// Those of the Service kube-dns.
pub(super) const DNS_ADDRESSES: Addresses = [
    IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0xa)),
];
/// Of the network of the nodes.
const PREFIX_LENGTHS: [u8; 2] = [24, 64];
const BRIDGE: &str = "cluster";
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Who asks the API server beside the nodes, each with the groups.
const USERS: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("kube-proxy", "system:kube-proxy", ""),
    ("proxy-server", konnectivity::USER, ""),
];

/// The machine that it runs on.
pub(super) struct ControlPlane {
    machine: Machine,
    folder: PathBuf,
    kubectl: String,
    helm: String,
}

impl ControlPlane {
    pub(super) fn start(programs: &Programs, folder: &Path, stop: &Stop) -> Result<Self, Failure> {
        let machine = Machine::start("control-plane", folder)?;
        let folder = folder.join("kubernetes");
        fs::create_dir_all(&folder)?;
        let mut control_plane = Self {
            machine,
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
    pub(super) fn connect(&self, other: &Machine, name: &str, addresses: Addresses) -> Result<(), Failure> {
        let ip = |arguments: &str| self.machine.ip(&arguments.split(' ').collect::<Vec<_>>());
        ip(&format!(
            "link add {name} type veth peer name eth0 netns {}",
            other.init_process()
        ))?;
        ip(&format!("link set {name} master {BRIDGE} up"))?;
        add_addresses(other, "eth0", addresses)?;
        other.ip(&["link", "set", "eth0", "up"])?;
        for (family, gateway) in ["-4", "-6"].into_iter().zip(ADDRESSES) {
            other.ip(&[family, "route", "add", "default", "via", &gateway.to_string()])?;
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
        for addresses in [ADDRESSES, ALLOWED_ADDRESSES, REFUSED_ADDRESSES, DIRECT_ADDRESSES] {
            add_addresses(&self.machine, BRIDGE, addresses)?;
        }
        ip(&format!("link set {BRIDGE} up"))?;
        konnectivity::partition(&self.machine, BRIDGE)
    }

    fn start_internet(&mut self, programs: &Programs) -> Result<(), Failure> {
        let corefile = self.folder.join("Corefile");
        let [address, address_6] = ADDRESSES;
        let [allowed, allowed_6] = ALLOWED_ADDRESSES;
        let [refused, refused_6] = REFUSED_ADDRESSES;
        let text = format!(
            "many.example.test:53 {{
 bind {address} {address_6}
 template IN A {{
  answer \"{{{{ .Name }}}} 30 IN A {allowed}\"
 }}
 template IN AAAA {{
  answer \"{{{{ .Name }}}} 30 IN AAAA {allowed_6}\"
 }}
}}
.:53 {{
 bind {address} {address_6}
 hosts {{
  {allowed} allowed.example.test
  {allowed_6} allowed.example.test
  {refused} refused.example.test
  {refused_6} refused.example.test
  ttl 30
 }}
}}
"
        );
        fs::write(&corefile, text)?;
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
        let [address, _] = ADDRESSES;
        konnectivity::write_files(&self.machine, &self.kubeconfig("proxy-server"))?;
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
                 --service-cluster-ip-range 10.96.0.0/16,fd00:10:96::/112 --token-auth-file {folder}/tokens.csv --authorization-mode Node,RBAC \
                 --enable-admission-plugins NodeRestriction --allow-privileged --kubelet-preferred-address-types InternalIP \
                 --egress-selector-config-file {}",
                konnectivity::SELECTOR
            ),
        )?;
        // It makes the certificate that the kubeconfigs of the others trust.
        let kubectl = self.kubectl();
        until(stop, "the API server is ready", READY_WITHIN, || {
            kubectl.get(&["--raw", "/readyz"]).map(|_| true)
        })
        .map_err(|error| format!("{error}\n{}", self.machine.logs()))?;
        konnectivity::start_server(&mut self.machine, &self.folder.join("certificates"))?;
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
        let server = SocketAddr::new(ADDRESSES[0], 6443);
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

/// 10.100.0.`last` and fd00:100::`last_6`.
pub(super) const fn of_nodes_network(last: u8, last_6: u16) -> Addresses {
    [
        IpAddr::V4(Ipv4Addr::new(10, 100, 0, last)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0, last_6)),
    ]
}

/// Without the second in which the kernel looks whether an address of IPv6 is another machine's.
fn add_addresses(machine: &Machine, link: &str, addresses: Addresses) -> Result<(), Failure> {
    for ((address, length), flags) in addresses
        .into_iter()
        .zip(PREFIX_LENGTHS)
        .zip([&[][..], &["nodad"]])
    {
        let address = format!("{address}/{length}");
        machine.ip(&[&["address", "add", &*address, "dev", link], flags].concat())?;
    }
    Ok(())
}
