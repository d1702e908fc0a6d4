//! The whole: a node, its pods, an upstream network, the manifests and the daemons, under one name that nothing else has.

use std::{
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use socket2::Type;

use crate::{
    Client, Daemon, DaemonSpec, Load, LoadPlan, Node, Pod, PodSpec, Service, Upstream, WorldError,
    cgroup::CgroupRoot,
    leftovers::{self, Machine},
    manifests::Manifests,
    node,
    sockets::SocketMaker,
    upstream,
    upstream_network::{Servers, UpstreamNetwork},
};

/// Admin ports of the first daemon of each kind.
pub const DNSD_ADMIN: u16 = 9253;
pub const ENFORCER_ADMIN: u16 = 9254;

static WORLDS: AtomicU32 = AtomicU32::new(0);

/// A node, its pods and an upstream network. Fields are dropped in this order: pods before the node that has the other ends of their veth pairs,
/// files last.
#[derive(Debug)]
pub struct World {
    pods: Vec<Arc<Pod>>,
    /// Pods that there ever were.
    made: u16,
    /// The cgroup of pods that are in cgroups.
    cgroups: Option<CgroupRoot>,
    bpf_pins: BpfPins,
    upstream: Upstream,
    upstream_network: UpstreamNetwork,
    node: Node,
    manifests: Manifests,
    servers: Servers,
    name: String,
    before: Machine,
    files: Files,
}

/// The addresses and the cable that a pod had.
#[derive(Debug)]
pub struct PodSeat(u16);

impl World {
    /// A node and an upstream network, and no pods yet.
    pub fn new() -> Result<Self, WorldError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(WorldError::NotRoot);
        }
        let before = Machine::look();
        leftovers::sweep_dead_worlds();
        let name = format!(
            "eg-{}-{}",
            std::process::id(),
            WORLDS.fetch_add(1, Ordering::Relaxed)
        );
        let files = Files::create(&name)?;
        let manifests = Manifests::create(&files.0)?;
        let servers = Servers::start()?;
        let node = Node::create(&name)?;
        let upstream_network = UpstreamNetwork::create(&name, &node, servers.clone())?;
        let upstream = Upstream::start(&upstream_network, &servers)?;
        let world = Self {
            pods: Vec::new(),
            made: 0,
            cgroups: None,
            bpf_pins: BpfPins(Path::new(leftovers::BPF_PINS).join(&name)),
            upstream,
            upstream_network,
            node,
            manifests,
            servers,
            name,
            before,
            files,
        };
        world.manifests.describe([].into_iter())?;
        Ok(world)
    }

    /// For tests that may be run without root: says loudly that the test was not run, unless `CI` is `true`.
    ///
    /// # Panics
    /// When the world cannot be made for any other reason than missing root, or under `CI=true`.
    pub fn or_skip() -> Option<Self> {
        match Self::new() {
            Ok(world) => Some(world),
            Err(WorldError::NotRoot) if std::env::var("CI").as_deref() != Ok("true") => {
                eprintln!("*** NOT TESTED: {} ***", WorldError::NotRoot);
                None
            }
            Err(error) => panic!("no world: {error}"),
        }
    }

    /// Adds a pod in the namespace `default`, labelled `app: <name>`.
    pub fn with_pod(self, name: &str) -> Result<Self, WorldError> {
        self.with(PodSpec::new(name))
    }

    pub fn with(mut self, spec: PodSpec) -> Result<Self, WorldError> {
        self.add(spec)?;
        Ok(self)
    }

    /// Adds a pod, its cable, and its manifest.
    pub fn add(&mut self, spec: PodSpec) -> Result<&Pod, WorldError> {
        self.place(PodSeat(self.made + 1), spec)
    }

    /// Writes the manifest of a pod that has none yet.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn announce(&self, name: &str) -> Result<(), WorldError> {
        self.find(name).announce();
        self.manifests.describe(self.pods.iter().map(Arc::as_ref))
    }

    /// Ends a pod: its programs' sockets lose their network, its cable goes, and no manifest names it. What it leaves
    /// is its seat, with its addresses, for another pod.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn remove(&mut self, name: &str) -> Result<PodSeat, WorldError> {
        let place = self.pods.iter().position(|pod| pod.name() == name);
        let pod = self
            .pods
            .remove(place.unwrap_or_else(|| panic!("this world has no pod {name}")));
        self.node
            .netns()
            .ip(&format!("link delete {}\n", pod.interface()))?;
        self.manifests.describe(self.pods.iter().map(Arc::as_ref))?;
        Ok(PodSeat(pod.number()))
    }

    /// Adds a pod at the addresses of one that was removed.
    pub fn add_at(&mut self, seat: PodSeat, spec: PodSpec) -> Result<&Pod, WorldError> {
        self.place(seat, spec)
    }

    /// Puts another pod in the place of one that goes, and says neither: the manifests are as they were until a pod is
    /// announced, added or removed.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn succeed_unsaid(&mut self, name: &str, spec: PodSpec) -> Result<&Pod, WorldError> {
        let number = self.find(name).number();
        let cable = self.find(name).interface().to_owned();
        // In this order: with the pod its namespace goes, and the cable some time after.
        self.node.netns().ip(&format!("link delete {cable}\n"))?;
        self.pods.retain(|pod| pod.name() != name);
        self.create(PodSeat(number), spec)
    }

    fn place(&mut self, seat: PodSeat, spec: PodSpec) -> Result<&Pod, WorldError> {
        self.create(seat, spec)?;
        self.manifests.describe(self.pods.iter().map(Arc::as_ref))?;
        Ok(self.pods.last().expect("one was just pushed"))
    }

    /// Every pod that is added from now on is in a cgroup of its own: what the eBPF backend judges by.
    ///
    /// # Errors
    /// When no cgroup2 file system is mounted.
    pub fn put_pods_in_cgroups(&mut self) -> Result<(), WorldError> {
        self.cgroups = Some(CgroupRoot::create(&self.name)?);
        Ok(())
    }

    /// The cgroup below which its pods are, if they are in cgroups.
    pub fn cgroup_root(&self) -> Option<&Path> {
        self.cgroups.as_ref().map(CgroupRoot::path)
    }

    fn create(&mut self, PodSeat(number): PodSeat, spec: PodSpec) -> Result<&Pod, WorldError> {
        self.made += 1;
        let pod = Pod::create(
            &self.name,
            (number, self.made),
            spec,
            self.node.netns(),
            &self.files.0,
            self.servers.clone(),
            self.cgroups.as_ref(),
        )?;
        self.pods.push(Arc::new(pod));
        Ok(self.pods.last().expect("one was just pushed"))
    }

    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn pod(&self, name: &str) -> &Pod {
        self.find(name)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().map(Arc::as_ref)
    }

    /// Lets a pod look up and connect in the background, until the load is stopped.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn load(&self, pod: &str, plan: LoadPlan) -> Load {
        Load::start(Arc::clone(self.find(pod)), plan)
    }

    pub fn node(&self) -> &Node {
        &self.node
    }

    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    pub fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// Unique to this world, and part of the name of everything in it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A folder that goes with the world.
    pub fn files(&self) -> &Path {
        &self.files.0
    }

    /// Serves another port on every address of the upstream network.
    pub fn serve(&self, port: u16, service: Service) -> Result<(), WorldError> {
        self.upstream_network.serve(port, service)
    }

    /// Serves a port on the node, as a program of its own network would.
    pub fn serve_on_node(&self, port: u16, service: Service) -> Result<(), WorldError> {
        let sockets = SocketMaker::Thread(Arc::clone(self.node.netns()));
        let socket = sockets.listener(service.socket_type(), port);
        self.servers.serve(
            socket.map_err(|source| WorldError::Serve { port, source })?,
            service,
        );
        Ok(())
    }

    /// Somebody outside the cluster, with addresses of their own beside the node.
    pub fn client_outside(&self) -> Client {
        Client::within(self.upstream_network.netns())
    }

    /// A program of the node, or a pod on its network.
    pub fn client_on_node(&self) -> Client {
        Client::within(self.node.netns())
    }

    pub(crate) fn upstream_network(&self) -> &UpstreamNetwork {
        &self.upstream_network
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// A UDP socket on every address of the upstream network that answers nothing, unless the test does.
    pub fn mute_on_upstream_network(&self, port: u16) -> Result<UdpSocket, WorldError> {
        let socket = self.upstream_network.sockets().listener(Type::DGRAM, port);
        let socket = socket.map_err(|source| WorldError::Serve { port, source })?;
        socket
            .set_nonblocking(false)
            .map_err(|source| WorldError::Serve { port, source })?;
        Ok(socket.into())
    }

    /// The upstream network's namespace, for `ip netns exec`.
    pub fn upstream_network_namespace(&self) -> &str {
        self.upstream_network.netns().name()
    }

    /// dnsd on the node's DNS addresses, forwarding to the upstream, joined to the enforcer.
    pub fn dnsd(&self) -> DaemonSpec {
        DaemonSpec::dnsd(DNSD_ADMIN)
            .with(["--listen".into(), format!("{}:53", node::DNS)])
            .with(["--listen".into(), format!("[{}]:53", node::DNS_V6)])
            .with([
                "--upstream".into(),
                format!("{}:{}", upstream::ADDRESS, upstream::PORT),
            ])
            .with(["--link".into(), self.link().display().to_string()])
    }

    /// The enforcer on this world's manifests, with a backend.
    pub fn enforcer(&self, backend: &str) -> DaemonSpec {
        DaemonSpec::enforcer(ENFORCER_ADMIN)
            .with([
                "--source".into(),
                format!("dir:{}", self.manifests.folder().display()),
            ])
            .with(["--node", node::NAME, "--backend", backend])
            .with(["--link".into(), self.link().display().to_string()])
            .with(["--cni".into(), self.cni().display().to_string()])
            .with(["--state".into(), self.state().display().to_string()])
            .with([
                "--state-objects".into(),
                self.state_objects().display().to_string(),
            ])
    }

    /// As `enforcer`, where pods are in cgroups: with these, and with the world's own pins.
    ///
    /// # Panics
    /// Where they are not.
    pub fn enforcer_at_cgroups(&self, backend: &str) -> DaemonSpec {
        let root = self.cgroup_root().expect("the pods are in cgroups");
        let [pins, root] = [self.bpf_pins(), root].map(|path| path.display().to_string());
        self.enforcer(backend)
            .with(["--bpf-pins", &pins, "--cgroup-root", &root])
    }

    /// Where the programs of an enforcer at cgroups are pinned. They end with the world.
    pub fn bpf_pins(&self) -> &Path {
        &self.bpf_pins.0
    }

    /// Where permits for answers of the kernel are pinned, by an enforcer with these pins.
    pub fn dns_permits(&self) -> PathBuf {
        self.bpf_pins.permits()
    }

    /// The socket that joins the two daemons.
    pub fn link(&self) -> PathBuf {
        self.files.0.join("link.sock")
    }

    /// The socket for the CNI plugin.
    pub fn cni(&self) -> PathBuf {
        self.files.0.join("cni.sock")
    }

    /// Where the enforcer keeps what pods were told.
    pub fn state(&self) -> PathBuf {
        self.files.0.join("state")
    }

    /// Where the enforcer keeps what its source said last.
    pub fn state_objects(&self) -> PathBuf {
        self.files.0.join("objects")
    }

    /// Starts a daemon in the node, without waiting for it.
    pub fn launch(&self, spec: DaemonSpec) -> Result<Daemon, WorldError> {
        Daemon::start(spec, self.node.netns().clone(), &self.files.0)
    }

    /// Starts a daemon in the node and waits until it is ready.
    pub fn start(&self, spec: DaemonSpec) -> Result<Daemon, WorldError> {
        let mut daemon = self.launch(spec)?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// Takes the world down, after its daemons and loads were dropped, and looks whether it left anything, here or in the machine's own namespace.
    ///
    /// # Panics
    /// When it did.
    #[track_caller]
    pub fn assert_nothing_left(self) {
        let (name, before, files) = (self.name.clone(), self.before.clone(), self.files.0.clone());
        drop(self);
        let mut left = leftovers::of_world(&name);
        left.extend(files.exists().then(|| format!("folder {}", files.display())));
        left.extend(before.differences(&Machine::look()));
        assert!(left.is_empty(), "{name} left behind:\n{}", left.join("\n"));
    }
}

impl World {
    #[track_caller]
    fn find(&self, pod: &str) -> &Arc<Pod> {
        self.pods
            .iter()
            .find(|known| known.name() == pod)
            .unwrap_or_else(|| panic!("this world has no pod {pod}"))
    }
}

/// The pins of a world's eBPF programs.
#[derive(Debug)]
struct BpfPins(PathBuf);

impl BpfPins {
    fn permits(&self) -> PathBuf {
        let mut path = self.0.as_os_str().to_owned();
        path.push("-dns");
        path.into()
    }
}

impl Drop for BpfPins {
    fn drop(&mut self) {
        for pins in [self.0.clone(), self.permits()] {
            if pins.exists()
                && let Err(error) = fs::remove_dir_all(&pins)
            {
                eprintln!("{}: {error}", pins.display());
            }
        }
    }
}

/// The temporary folder of a world.
#[derive(Debug)]
struct Files(PathBuf);

impl Files {
    fn create(world: &str) -> Result<Self, WorldError> {
        let folder = std::env::temp_dir().join(world);
        // A folder of this name can only be of a dead process that had our pid.
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).map_err(WorldError::file(&folder))?;
        Ok(Self(folder))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
