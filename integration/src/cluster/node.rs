//! A node: containerd, kubelet, kube-proxy, and a network of routed veth pairs (the plugin `ptp`).

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::{
    Failure, NODES,
    control_plane::ControlPlane,
    image::{Images, TOOLS},
    machine::{Machine, output},
    network::Network,
    objects::list,
    preconditions::{CNI_PLUGINS, Programs},
};

const CNI_CONFIG: &str = "/etc/cni/net.d/10-cluster.conflist";
/// Below the folder of the machine.
const STATIC_PODS: &str = "static-pods";
const SOCKET: &str = "/run/containerd/containerd.sock";

/// A machine that runs pods.
pub(super) struct Node {
    number: u8,
    network: Network,
    machine: Machine,
}

impl Node {
    pub(super) fn start(
        number: u8,
        programs: &Programs,
        network: Network,
        control_plane: &ControlPlane,
        folder: &Path,
        images: &Images,
    ) -> Result<Self, Failure> {
        let name = format!("node-{number}");
        let machine = Machine::start(&name, folder)?;
        let mut node = Self {
            number,
            network,
            machine,
        };
        control_plane.connect(&node.machine, &name, &node.addresses())?;
        node.write_files()?;
        node.start_containerd(images)?;
        node.start_kubelet(programs, control_plane)?;
        node.start_kube_proxy(programs, control_plane)?;
        Ok(node)
    }

    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.network.node(self.number)
    }

    /// The networks of its pods.
    pub(super) fn pods(&self) -> Vec<String> {
        self.network.pods_of_node(self.number)
    }

    /// Whether the chart has put the plugin behind `ptp`.
    pub(super) fn chains_egret(&self) -> Result<bool, Failure> {
        let config = self.machine.run(&["cat", CNI_CONFIG])?;
        Ok(config.contains("egret-cni"))
    }

    /// What a server of the node answers to programs of the node.
    pub(super) fn get(&self, url: &str) -> Result<String, Failure> {
        self.machine.run(&["busybox", "wget", "-q", "-O", "-", url])
    }

    /// The file of the network namespace of the pod with this address.
    pub(super) fn pod_netns(&self, address: &str) -> Option<PathBuf> {
        let files = fs::read_dir(self.machine.path("/run/netns")).ok()?;
        let mut files = files.flatten().map(|entry| entry.path());
        files.find(|file| {
            let net = format!("--net={}", file.display());
            let argv = ["nsenter", &net, "ip", "-o", "address"];
            let said = output(Command::new(argv[0]).args(&argv[1..]), &argv);
            said.is_ok_and(|said| said.contains(&format!(" {address}/")))
        })
    }

    pub(super) fn write_static_pod(&self, file: &str, text: &str) -> Result<(), Failure> {
        self.write(&format!("{STATIC_PODS}/{file}"), text)
    }

    pub(super) fn remove_static_pod(&self, file: &str) -> Result<(), Failure> {
        Ok(fs::remove_file(
            self.machine.folder().join(STATIC_PODS).join(file),
        )?)
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Written from inside, for folders of the machine are covered there.
    fn write_files(&self) -> Result<(), Failure> {
        self.machine
            .run(&["mkdir", "-p", "/etc/cni/net.d", "/opt/cni/bin", "/run/netns"])?;
        self.machine.run(&["cp", "-rT", CNI_PLUGINS, "/opt/cni/bin"])?;
        let ranges = self.pods().into_iter().map(|pods| json!([{"subnet": pods}]));
        let routes = self.network.everything().into_iter().map(|to| json!({"dst": to}));
        let ipam = json!({"type": "host-local", "ranges": ranges.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>()});
        let cni =
            json!({"cniVersion": "1.0.0", "name": "cluster", "plugins": [{"type": "ptp", "ipam": ipam}]});
        self.write("cni.conflist", &cni.to_string())?;
        let cni = self.path("cni.conflist");
        self.machine.run(&["cp", &cni, CNI_CONFIG])?;
        self.write(
            "containerd.toml",
            &format!(
                r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{TOOLS}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
conf_dir = "/etc/cni/net.d"
"#
            ),
        )?;
        let resolvers = self.network.control_plane();
        let resolvers = resolvers.iter().map(|address| format!("nameserver {address}\n"));
        self.write("resolv.conf", &resolvers.collect::<String>())?;
        let kubelet = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: {}
clusterDomain: cluster.local
staticPodPath: {}
containerRuntimeEndpoint: unix://{SOCKET}
resolvConf: {}
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}}
",
            list(self.network.dns()),
            self.path(STATIC_PODS),
            self.path("resolv.conf")
        );
        fs::create_dir(self.machine.folder().join(STATIC_PODS))?;
        self.write("kubelet.yaml", &kubelet)
    }

    fn start_containerd(&mut self, images: &Images) -> Result<(), Failure> {
        let config = self.path("containerd.toml");
        self.machine.spawn("containerd", &format!("--config {config}"))?;
        let machine = &self.machine;
        let answers = || machine.run(&["ctr", "--address", SOCKET, "version"]).is_ok();
        if !crate::is_soon(std::time::Duration::from_secs(30), answers) {
            return Err(format!("containerd does not answer:\n{}", machine.logs()).into());
        }
        for archive in images.archives() {
            machine.run(&[
                "ctr",
                "--address",
                SOCKET,
                "-n",
                "k8s.io",
                "images",
                "import",
                archive,
            ])?;
        }
        if let Some([name, second]) = Images::second_name() {
            machine.run(&[
                "ctr",
                "--address",
                SOCKET,
                "-n",
                "k8s.io",
                "images",
                "tag",
                &name,
                &second,
            ])?;
        }
        Ok(())
    }

    fn start_kubelet(&mut self, programs: &Programs, control_plane: &ControlPlane) -> Result<(), Failure> {
        let name = format!("node-{}", self.number);
        let arguments = format!(
            "--config {} --kubeconfig {} --hostname-override {name} --node-ip {} --root-dir /var/lib/kubelet --cert-dir /var/lib/kubelet/pki",
            self.path("kubelet.yaml"),
            control_plane.kubeconfig(&name),
            self.addresses()
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
                .join(",")
        );
        self.machine.spawn(&programs.kubelet, &arguments)
    }

    /// In mode iptables, on the last node in mode nftables.
    fn start_kube_proxy(&mut self, programs: &Programs, control_plane: &ControlPlane) -> Result<(), Failure> {
        let mode = if NODES.last() == Some(&self.number) {
            "nftables"
        } else {
            "iptables"
        };
        let arguments = format!(
            "--kubeconfig {} --hostname-override node-{} --proxy-mode {mode} --cluster-cidr {} \
             --conntrack-max-per-core 0 --conntrack-min 0 --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0",
            control_plane.kubeconfig("kube-proxy"),
            self.number,
            self.network.pods().join(",")
        );
        self.machine.spawn(&programs.kube_proxy, &arguments)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        Ok(fs::write(self.machine.folder().join(name), text)?)
    }

    fn path(&self, name: &str) -> String {
        self.machine.folder().join(name).display().to_string()
    }
}
