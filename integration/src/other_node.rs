//! Another node of the cluster, behind the upstream network, with pods of its own: all in one namespace, for what the enforcer
//! sees of them is their addresses.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Client, Daemon, DaemonSpec, ProxyMode, Service, ServicePort, World, WorldError, netns::Netns,
    services::ProxyHost, sockets::SocketMaker, upstream_network::Servers, world::ENFORCER_ADMIN,
};

/// What the manifests call it.
pub const NAME: &str = "node-2";
/// Its addresses in its Node object.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 76, 2, 2);
pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd76, 0, 0, 2, 0, 0, 0, 2);
/// One that its Node object does not name.
pub const UNREPORTED: Ipv4Addr = Ipv4Addr::new(10, 76, 2, 3);

const SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/forwarding", "1"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// The node; it ends when this is dropped.
#[derive(Debug)]
pub struct OtherNode {
    netns: Arc<Netns>,
    folder: PathBuf,
    servers: Servers,
}

/// The addresses of its pods: 1 to 254.
pub fn pod_addresses(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(10, 77, 200, number).into(),
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0xc8, number.into()).into(),
    ]
}

impl World {
    /// Lays another node, reached by way of the upstream network.
    pub fn lay_other_node(&self) -> Result<OtherNode, WorldError> {
        let netns = Arc::new(Netns::create(self.name(), "node-2", SYSCTLS)?);
        let upstream_network = self.upstream_network().netns();
        upstream_network.sysctl("ipv4/ip_forward", "1")?;
        upstream_network.sysctl("ipv6/conf/all/forwarding", "1")?;
        upstream_network.ip(&format!(
            "link add node-2 type veth peer name uplink netns {}\n\
             link set node-2 up\n\
             address add 10.76.2.1/24 dev node-2\n\
             address add fd76:0:0:2::1/64 dev node-2 nodad\n\
             route add 10.77.200.0/24 via {ADDRESS}\n\
             route add fd77::c8:0/112 via {ADDRESS_V6}\n",
            netns.name()
        ))?;
        netns.ip(&format!(
            "link set lo up\n\
             link set uplink up\n\
             address add {ADDRESS}/24 dev uplink\n\
             address add {UNREPORTED}/24 dev uplink\n\
             address add {ADDRESS_V6}/64 dev uplink nodad\n\
             route add local 10.77.200.0/24 dev lo\n\
             route add local fd77::c8:0/112 dev lo\n\
             route add default via 10.76.2.1\n\
             route add default via fd76:0:0:2::1\n"
        ))?;
        let folder = self.files().join("node-2");
        std::fs::create_dir_all(&folder).map_err(WorldError::file(&folder))?;
        self.manifests().write("node-2.yaml", &node_document())?;
        Ok(OtherNode {
            netns,
            folder,
            servers: self.servers().clone(),
        })
    }
}

impl OtherNode {
    /// A program of the node, or of one of its pods.
    pub fn client(&self) -> Client {
        Client::within(&self.netns)
    }

    /// Serves a port on the node and on all of its pods.
    pub fn serve(&self, port: u16, service: Service) -> Result<(), WorldError> {
        let sockets = SocketMaker::Thread(Arc::clone(&self.netns));
        let socket = sockets.listener(service.socket_type(), port);
        self.servers.serve(
            socket.map_err(|source| WorldError::Serve { port, source })?,
            service,
        );
        Ok(())
    }

    /// Has this node lead Services on, as [`World::proxy`] does for the first one.
    pub fn proxy(&self, mode: ProxyMode, services: &[ServicePort]) -> Result<(), WorldError> {
        let local: BTreeSet<IpAddr> = (1..=u8::MAX).flat_map(pod_addresses).collect();
        let host = ProxyHost {
            netns: &self.netns,
            folder: &self.folder,
            local,
        };
        host.write(mode, services)
    }

    /// Where a port of the node is reached.
    pub fn at(port: u16) -> [SocketAddr; 2] {
        [
            SocketAddr::new(ADDRESS.into(), port),
            SocketAddr::new(ADDRESS_V6.into(), port),
        ]
    }

    /// Starts a daemon there, without waiting for it.
    pub fn launch(&self, spec: DaemonSpec) -> Result<Daemon, WorldError> {
        Daemon::start(spec, Arc::clone(&self.netns), &self.folder)
    }

    /// An enforcer of this node, on the world's manifests, that enforces nothing.
    pub fn enforcer(&self, world: &World) -> DaemonSpec {
        let file = |name: &str| self.folder.join(name).display().to_string();
        DaemonSpec::enforcer(ENFORCER_ADMIN)
            .with(["--node", NAME, "--backend", "none"])
            .with([
                "--source".into(),
                format!("dir:{}", world.manifests().folder().display()),
            ])
            .with(["--link".into(), file("link.sock")])
            .with([
                "--state".into(),
                file("state"),
                "--state-objects".into(),
                file("objects"),
            ])
    }

    /// Gives its card one more address, or takes it away: `add`, `del`.
    pub fn address(&self, verb: &str, address: Ipv4Addr) -> Result<(), WorldError> {
        self.netns
            .ip(&format!("address {verb} {address}/24 dev uplink\n"))
    }

    /// Where it keeps files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn node_document() -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {NAME}\n  labels:\n    kubernetes.io/hostname: {NAME}\n\
         status:\n  addresses:\n  - type: InternalIP\n    address: {ADDRESS}\n\
         \x20 - type: InternalIP\n    address: \"{ADDRESS_V6}\"\n"
    )
}

/// The manifest of a pod that runs there; of the node's network it has the node's addresses.
pub fn pod_document(name: &str, addresses: [IpAddr; 2], is_host_network: bool) -> String {
    let [v4, v6] = addresses;
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: default\n  uid: {name}\n\
         \x20 labels:\n    app: \"{name}\"\n\
         spec:\n  nodeName: {NAME}\n  hostNetwork: {is_host_network}\n\
         \x20 containers:\n  - name: main\n    image: none.example/none\n\
         status:\n  phase: Running\n  hostIP: {ADDRESS}\n  podIP: {v4}\n  podIPs:\n  - ip: {v4}\n  - ip: \"{v6}\"\n"
    )
}
