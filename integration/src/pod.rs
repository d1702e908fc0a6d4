//! A pod: a namespace of its own, joined to the node as [`attachment`](crate::attachment) says, by default by a routed veth pair.

#![allow(
    unsafe_code,
    reason = "a pod's program gets its mounts and its cgroup between fork and exec"
)]

use std::{
    ffi::{CStr, CString},
    fs, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    fcntl::{OFlag, open},
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::stat::Mode,
    unistd::write,
};
use socket2::Type;

use crate::{
    Attachment, Output, SecondInterface, Service, WorldError,
    cgroup::{Cgroup, CgroupRoot},
    command,
    netns::Netns,
    node,
    sockets::SocketMaker,
    upstream_network::Servers,
};

const SYSCTLS: &[(&str, &str)] = &[
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    // As containerd and CRI-O set it: whoever is in the pod may send echo requests.
    ("ipv4/ping_group_range", "0 2147483647"),
];

/// What a pod shall be; the rest is numbered by the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpec {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) ports: Vec<(String, u16)>,
    pub(crate) attachment: Attachment,
    pub(crate) second: Option<SecondInterface>,
    pub(crate) announced: bool,
    pub(crate) in_status: bool,
    pub(crate) mirrored: bool,
}

impl PodSpec {
    /// A pod in the namespace `default`, with the label `app: <name>`.
    pub fn new(name: &str) -> Self {
        let labels = vec![("app".to_owned(), name.to_owned())];
        Self {
            name: name.into(),
            namespace: "default".into(),
            labels,
            ports: Vec::new(),
            attachment: Attachment::Routed,
            second: None,
            announced: true,
            in_status: true,
            mirrored: false,
        }
    }

    /// It has its network, as a CNI plugin makes it, and no manifest before [`World::announce`](crate::World::announce).
    #[must_use]
    pub fn unannounced(self) -> Self {
        Self {
            announced: false,
            ..self
        }
    }

    /// Its manifest has no status, as the kubelet writes none before all of the pod's network is made.
    #[must_use]
    pub fn without_status(self) -> Self {
        Self {
            in_status: false,
            ..self
        }
    }

    /// A static pod: its manifest is the mirror that the kubelet makes, which has another UID.
    #[must_use]
    pub fn mirrored(self) -> Self {
        Self {
            mirrored: true,
            ..self
        }
    }

    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self {
            namespace: namespace.into(),
            ..self
        }
    }

    #[must_use]
    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        self.labels.push((key.into(), value.into()));
        self
    }

    /// Its container has this TCP port in `ports`.
    #[must_use]
    pub fn with_named_port(mut self, name: &str, port: u16) -> Self {
        self.ports.push((name.into(), port));
        self
    }

    #[must_use]
    pub fn attached(self, attachment: Attachment) -> Self {
        Self { attachment, ..self }
    }

    #[must_use]
    pub fn with_second(self, interface: SecondInterface) -> Self {
        Self {
            second: Some(interface),
            ..self
        }
    }
}

/// A running pod.
#[derive(Debug)]
pub struct Pod {
    spec: PodSpec,
    is_announced: AtomicBool,
    uid: String,
    number: u16,
    addresses: [IpAddr; 2],
    interface: String,
    files: PathBuf,
    sockets: SocketMaker,
    cgroup: Option<Arc<Cgroup>>,
    servers: Servers,
    netns: Arc<Netns>,
}

impl Pod {
    pub(crate) fn create(
        world: &str,
        (number, run): (u16, u16),
        spec: PodSpec,
        node: &Netns,
        files: &Path,
        servers: Servers,
        cgroups: Option<&CgroupRoot>,
    ) -> Result<Self, WorldError> {
        let uid = format!("{:08x}-{run:04x}-4000-8000-{number:012x}", std::process::id());
        let role = format!("pod-{}-{run}", spec.name);
        let netns = Arc::new(Netns::create(world, &role, SYSCTLS)?);
        let addresses = spec.attachment.addresses(number);
        // No CNI plugin gives the cable of a pod the name that another's had.
        let interface = if run == number {
            format!("veth{number}")
        } else {
            format!("veth{number}-{run}")
        };
        spec.attachment.lay(node, &netns, &interface, addresses)?;
        if let Some(second) = spec.second {
            second.lay(node, &netns, number)?;
        }
        let cgroup = cgroups.map(|root| Cgroup::create(root, &format!("pod{uid}"), &netns));
        let cgroup = cgroup.transpose()?.map(Arc::new);
        let sockets = match &cgroup {
            Some(cgroup) => SocketMaker::Child(Arc::clone(cgroup)),
            None => SocketMaker::Thread(Arc::clone(&netns)),
        };
        let files = files.join(&spec.name);
        let pod = Self {
            is_announced: AtomicBool::new(spec.announced),
            spec,
            uid,
            number,
            addresses,
            interface,
            files,
            sockets,
            cgroup,
            servers,
            netns,
        };
        pod.write_file("nsswitch.conf", "hosts: files dns\n")?;
        pod.use_name_servers(&[node::DNS.into()])?;
        Ok(pod)
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The Kubernetes namespace that its manifest names.
    pub fn namespace(&self) -> &str {
        &self.spec.namespace
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Whether there is a manifest of it.
    pub(crate) fn is_announced(&self) -> bool {
        self.is_announced.load(Ordering::Relaxed)
    }

    pub(crate) fn announce(&self) {
        self.is_announced.store(true, Ordering::Relaxed);
    }

    pub(crate) fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    pub(crate) fn spec(&self) -> &PodSpec {
        &self.spec
    }

    /// The name of its network namespace, for `ip netns exec`.
    pub fn netns_name(&self) -> &str {
        self.netns.name()
    }

    /// IPv4, then IPv6.
    pub fn addresses(&self) -> [IpAddr; 2] {
        self.addresses
    }

    pub fn address(&self) -> IpAddr {
        self.addresses[0]
    }

    pub fn address_v6(&self) -> IpAddr {
        self.addresses[1]
    }

    /// The addresses of its second interface, if it has one: IPv4, then IPv6.
    pub fn second_addresses(&self) -> Option<[IpAddr; 2]> {
        self.spec.second.map(|second| second.addresses(self.number))
    }

    /// The host side of its veth pair, as the node sees it.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Its cgroup2 directory, if it was made with one.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(|cgroup| cgroup.path())
    }

    /// A shell line that enters the pod as [`Pod::run`] does.
    pub fn entrance(&self) -> String {
        let files = self.files.display();
        format!(
            "nsenter --net={} unshare --mount sh -c 'mount --bind {files}/resolv.conf /etc/resolv.conf; \
             mount --bind {files}/nsswitch.conf /etc/nsswitch.conf; exec sh'",
            self.netns.path().display()
        )
    }

    /// Names the servers in the pod's resolv.conf. At first it is dnsd alone.
    pub fn use_name_servers(&self, servers: &[IpAddr]) -> Result<(), WorldError> {
        let lines: String = servers
            .iter()
            .map(|server| format!("nameserver {server}\n"))
            .collect();
        self.use_resolv_conf(&format!("{lines}options timeout:2 attempts:2\n"))
    }

    /// The pod's resolv.conf, as the kubelet would write it.
    pub fn use_resolv_conf(&self, text: &str) -> Result<(), WorldError> {
        self.write_file("resolv.conf", text)
    }

    /// Runs a stock program in the pod: its network, its resolv.conf, its cgroup; ten seconds at most.
    pub fn run(&self, argv: &[&str]) -> Result<Output, WorldError> {
        self.run_for(argv, command::PROGRAM_TIME)
    }

    pub fn run_for(&self, argv: &[&str], deadline: Duration) -> Result<Output, WorldError> {
        let mut command = Command::new(argv.first().expect("a command has a program"));
        command.args(&argv[1..]);
        let rooms = Rooms {
            resolv: path_of(&self.files.join("resolv.conf")),
            nsswitch: path_of(&self.files.join("nsswitch.conf")),
            cgroup_procs: self.cgroup().map(|cgroup| path_of(&cgroup.join("cgroup.procs"))),
        };
        // SAFETY: `enter` makes bare system calls on strings that were allocated before the fork.
        unsafe {
            command.pre_exec(move || rooms.enter());
        }
        command::run_within(&self.netns, command, deadline)
    }

    /// The pod itself serves on a port, on all its addresses, until the world ends.
    pub fn serve(&self, port: u16, service: Service) -> Result<(), WorldError> {
        let socket = self.sockets.listener(service.socket_type(), port);
        self.servers.serve(
            socket.map_err(|source| WorldError::Serve { port, source })?,
            service,
        );
        Ok(())
    }

    pub(crate) fn sockets(&self) -> &SocketMaker {
        &self.sockets
    }

    /// A UDP socket at a port of this pod.
    pub fn udp_socket_at(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(at.ip(), Type::DGRAM)?;
        socket.bind(&at.into())?;
        Ok(socket.into())
    }

    pub(crate) fn socket(&self, towards: IpAddr, kind: Type) -> io::Result<socket2::Socket> {
        self.sockets.socket(towards, kind)
    }

    fn write_file(&self, name: &str, text: &str) -> Result<(), WorldError> {
        fs::create_dir_all(&self.files).map_err(WorldError::file(&self.files))?;
        let path = self.files.join(name);
        fs::write(&path, text).map_err(WorldError::file(&path))
    }
}

/// The private mounts and the cgroup of a program: entered in the child, so that nothing has to be taken down again.
/// `ip netns exec` would need files under /etc/netns, and hides /sys/fs/cgroup.
#[derive(Debug)]
struct Rooms {
    resolv: CString,
    nsswitch: CString,
    cgroup_procs: Option<CString>,
}

impl Rooms {
    fn enter(&self) -> io::Result<()> {
        if let Some(procs) = &self.cgroup_procs {
            let file = open(
                procs.as_c_str(),
                OFlag::O_WRONLY | OFlag::O_CLOEXEC,
                Mode::empty(),
            )?;
            write(&file, b"0")?;
        }
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Slave, not private: what is unmounted outside (a pinned namespace) must go from here too.
        mount(
            None::<&CStr>,
            c"/",
            None::<&CStr>,
            MsFlags::MS_REC | MsFlags::MS_SLAVE,
            None::<&CStr>,
        )?;
        bind(&self.resolv, c"/etc/resolv.conf")?;
        bind(&self.nsswitch, c"/etc/nsswitch.conf")
    }
}

fn bind(source: &CStr, target: &CStr) -> io::Result<()> {
    mount(
        Some(source),
        target,
        None::<&CStr>,
        MsFlags::MS_BIND,
        None::<&CStr>,
    )
    .map_err(io::Error::from)
}

fn path_of(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path has no NUL")
}
