//! Pods for the tests of the eBPF backend: each is a process of this test program, in a cgroup as the kubelet
//! would name it and in a network namespace of its own, in which all addresses of the tests are on `lo`.
//!
//! It is longer than 800 lines because both sides of a question, test and pod, are one protocol.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use egret_enforcer::backend::ebpf::{Behind, Ebpf, Options};
use egret_enforcer::backend::unknown_pods::Stance;
use egret_enforcer::backend::{Backend, Decider, SyncStatus};
use egret_kernel::bpf::Map;
use egret_policies::rules::{Action, Direction, Tier};
use egret_policies::rules::{
    Audit, Batch, Breadth, DefaultAction, DirectionRules, Member, MembersChanged, Origin, PeerMatch,
    PodRules, PortMatch, Rule, SetId, SetKind, SetSpec, TierRules,
};
use egret_shared::net::{PortRange, Transport};
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

/// Addresses that a pod can reach on its `lo`; the second is its own.
const ADDRESSES: [&str; 10] = [
    "198.18.2.2/32",
    "198.18.2.10/32",
    "198.18.2.11/32",
    "198.18.2.12/32",
    "198.18.2.13/32",
    "198.51.100.1/32",
    "2001:db8::2/128",
    "2001:db8::10/128",
    "2001:db8::11/128",
    "2001:db8::12/128",
];

/// Where a test happens: a subtree of cgroups and a directory for pins.
#[derive(Debug)]
pub(crate) struct World {
    options: Options,
    directory: PathBuf,
}

impl World {
    /// A world, or a loud skip (in CI a failure) where this kernel or user cannot make one.
    pub(crate) fn new(name: &str) -> Option<Self> {
        match Self::make(name) {
            Ok(world) => Some(world),
            Err(reason) if std::env::var("CI").as_deref() == Ok("true") => {
                panic!("cannot test eBPF here: {reason}")
            }
            Err(reason) => {
                // Past the harness, which would swallow it.
                let said = format!("SKIPPED {name}: cannot test eBPF here: {reason}\n");
                std::io::stderr().write_all(said.as_bytes()).unwrap();
                None
            }
        }
    }

    fn make(name: &str) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
        let cgroup2 = mounts.lines().map(|line| line.split(' ')).find_map(|mut words| {
            let path = words.nth(1)?;
            (words.next() == Some("cgroup2")).then(|| PathBuf::from(path))
        });
        let unique = format!("eg-ebpf-{}-{name}", std::process::id());
        let cgroup_root = cgroup2.ok_or("no cgroup2 file system is mounted")?.join(&unique);
        let directory = std::env::temp_dir().join(unique);
        fs::create_dir_all(cgroup_root.join("kubepods/burstable")).map_err(|error| error.to_string())?;
        let options = Options {
            cgroup_root,
            pin_path: directory.join("bpf"),
            unknown: Stance::DenyOncePolicies,
            events_per_second: Some(10),
            // The addresses of these pods are on their own loopback, where no node translates.
            behind: Behind::Nothing,
        };
        Ok(Self { options, directory })
    }

    /// A backend that has read what an earlier one left.
    pub(crate) fn backend(&self) -> Ebpf {
        let mut backend = Ebpf::new(self.options.clone());
        backend.adopt(self.now()).unwrap();
        backend
    }

    /// A backend with programs of another build, in which pods may connect to no port 8082; none where there is no clang.
    pub(crate) fn backend_of_another_build(&self) -> Option<Ebpf> {
        let first = "return verdict(ctx, v4(ctx->user_ip4)) ? 1 : 0;";
        let refusing = format!("if (ctx->user_port == bpf_htons(8082)) return 0; {first}");
        let mut backend = self.unread().with_programs(self.build((first, &refusing))?);
        backend.adopt(self.now()).unwrap();
        Some(backend)
    }

    /// A backend that has not touched the kernel.
    pub(crate) fn unread(&self) -> Ebpf {
        Ebpf::new(self.options.clone())
    }

    /// With somebody who judges behind the sockets.
    pub(crate) fn behind(mut self, behind: Behind) -> Self {
        self.options.behind = behind;
        self
    }

    /// The object of a source in which something stands for its first occurrence; none where there is no clang.
    pub(crate) fn build(&self, (first, instead): (&str, &str)) -> Option<Vec<u8>> {
        if Command::new("clang-14").arg("--version").output().is_err() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "clang-14 is missing");
            return None;
        }
        let build = self.directory.join("build");
        fs::create_dir_all(&build).unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
        for name in [
            "Makefile",
            "events.h",
            "judge.h",
            "maps.h",
            "match.h",
            "packet.h",
            "services.bpf.c",
        ] {
            fs::copy(sources.join(name), build.join(name)).unwrap();
        }
        let source = fs::read_to_string(sources.join("egress.bpf.c")).unwrap();
        let changed = source.replacen(first, instead, 1);
        assert_ne!(changed, source, "the source is another one");
        fs::write(build.join("egress.bpf.c"), changed).unwrap();
        let make = Command::new("make")
            .args(["-s", "-C"])
            .arg(&build)
            .output()
            .unwrap();
        assert!(make.status.success(), "{}", String::from_utf8_lossy(&make.stderr));
        Some(fs::read(build.join("egress.bpf.o")).unwrap())
    }

    /// Asserts that nothing is pending.
    pub(crate) fn settled(&self, standing: &SyncStatus) {
        assert_eq!(
            *standing,
            SyncStatus {
                repaired: standing.repaired.clone(),
                ..SyncStatus::default()
            }
        );
    }

    pub(crate) fn now(&self) -> Timestamp {
        egret_shared::rt::clock::now()
    }

    /// An address that the node of the test has, and that a pod can reach on its `lo`.
    pub(crate) fn address_of_the_node(&self) -> IpAddr {
        let addresses = egret_kernel::links::Links::open().unwrap().addresses().unwrap();
        let own = addresses.iter().map(|address| address.net.addr());
        own.into_iter()
            .find(|own| own.is_ipv4() && !own.is_loopback())
            .expect("the node has an IPv4 address")
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.pod_with_uid(name, &format!("5c6e1d0e-{name}"))
    }

    pub(crate) fn pod_with_uid(&self, name: &str, uid: &str) -> Pod {
        let cgroup = self
            .options
            .cgroup_root
            .join(format!("kubepods/burstable/pod{uid}"));
        fs::create_dir_all(cgroup.join("container")).unwrap();
        let mut pod = Pod::start(PodKey::new("default", name), uid, cgroup, None);
        let own = format!("{}/32", self.address_of_the_node());
        for address in ADDRESSES.iter().copied().chain([own.as_str()]) {
            assert_eq!(pod.ask(&format!("address {address}")), Answer::Ok);
        }
        assert_eq!(pod.ask("serve"), Answer::Ok);
        pod
    }

    /// A process that is in the network namespace of a pod, but in no pod.
    pub(crate) fn neighbour(&self, pod: &Pod) -> Pod {
        let cgroup = self.options.cgroup_root.join("outside");
        fs::create_dir_all(cgroup.join("container")).unwrap();
        Pod::start(
            PodKey::new("default", "outside"),
            "outside",
            cgroup,
            Some(pod.child.id()),
        )
    }

    /// What was counted in the egress direction.
    pub(crate) fn count(&self, backend: &Ebpf, tier: Option<Tier>, action: Action) -> u64 {
        self.count_in(backend, tier, action, Direction::Egress)
    }

    pub(crate) fn count_in(
        &self,
        backend: &Ebpf,
        tier: Option<Tier>,
        action: Action,
        direction: Direction,
    ) -> u64 {
        let counts = backend.counters().read().unwrap();
        let of_key = counts.iter().filter(|count| {
            let is_asked = match tier {
                Some(tier) => count.key.decider == Decider::Tier(tier),
                None => !matches!(count.key.decider, Decider::Tier(_)),
            };
            is_asked && count.key.action == action.into() && count.key.direction == direction
        });
        of_key.map(|count| count.packets).sum()
    }

    /// Whether there are pins that hold programs on the pod.
    pub(crate) fn is_attached(&self, pod: &Pod) -> bool {
        self.pinned_pods().contains(&pod.uid)
    }

    /// The directory of the one release that has pins.
    fn release(&self) -> String {
        let [release] = &self.names("")[..] else {
            panic!("not one release: {:?}", self.names(""))
        };
        release.clone()
    }

    /// Renames what is pinned, as if other programs had pinned it.
    pub(crate) fn pretend_another_release(&self) {
        fs::rename(
            self.options.pin_path.join(self.release()),
            self.options.pin_path.join("another"),
        )
        .unwrap();
    }

    /// Removes all counters from the kernel, as somebody else might; returns how many.
    pub(crate) fn remove_counters(&self) -> u64 {
        let pin = self.options.pin_path.join(self.release()).join("egret_counters");
        let processors = aya::util::nr_cpus().unwrap();
        let map = Map::open(&pin, (20, 8), processors).unwrap();
        let keys = map.keys().unwrap();
        keys.iter().for_each(|key| map.delete(key).unwrap());
        keys.len() as u64
    }

    /// How many releases have pins.
    pub(crate) fn releases(&self) -> usize {
        self.names("").len()
    }

    /// The pods that have pins of the one release.
    pub(crate) fn pinned_pods(&self) -> Vec<String> {
        self.names(&format!("{}/pods", self.release()))
    }

    fn names(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.options.pin_path.join(below)).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.contains('.'))
            .collect()
    }

    /// Ends what is left of the world of a process that lost sight of its cgroups.
    pub(crate) fn remove_other(&self, process: u32, name: &str) {
        let other = format!("eg-ebpf-{process}-{name}");
        remove_cgroups(&self.options.cgroup_root.with_file_name(other));
    }

    /// Ends a pod: its process and its cgroup.
    pub(crate) fn remove(&self, pod: Pod) {
        let cgroup = pod.cgroup.clone();
        drop(pod);
        remove_cgroups(&cgroup);
        assert!(!cgroup.exists());
    }

    /// Ends everything, and looks whether the kernel still holds something.
    pub(crate) fn end<const N: usize>(self, mut backend: Ebpf, mut pods: [Pod; N]) {
        backend.remove_everything().unwrap();
        for pod in &mut pods {
            assert_eq!(
                pod.ask("tcp 198.18.2.13:8080"),
                Answer::Ok,
                "a program is still attached to {}",
                pod.key
            );
        }
        assert!(!self.options.pin_path.exists(), "pins are left");
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(
            !mounts.contains(self.directory.to_str().unwrap()),
            "a mount is left"
        );
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(Ebpf::new(self.options.clone()).remove_everything());
        drop(fs::remove_dir_all(&self.directory));
        remove_cgroups(&self.options.cgroup_root);
    }
}

/// Removes a subtree of cgroups. A cgroup can be removed some time after its last process was reaped.
fn remove_cgroups(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&entry.path());
        }
    }
    let events = cgroup.join("cgroup.events");
    while fs::read_to_string(&events).is_ok_and(|events| events.contains("populated 1")) {
        std::thread::yield_now();
    }
    drop(fs::remove_dir(cgroup));
}

/// What a probe ended in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    /// EPERM.
    NotPermitted,
    Other(String),
}

/// A process in a cgroup and a network namespace.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) key: PodKey,
    pub(crate) uid: String,
    cgroup: PathBuf,
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pod {
    fn start(key: PodKey, uid: &str, cgroup: PathBuf, namespace_of: Option<u32>) -> Self {
        let procs = cgroup.join("container/cgroup.procs");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "ebpf_world::process_of_a_pod",
            "--exact",
            "--ignored",
            "--nocapture",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let namespace = namespace_of.map(|pid| fs::File::open(format!("/proc/{pid}/ns/net")).unwrap());
        #[allow(
            unsafe_code,
            reason = "a process enters its cgroup and namespace before it is a program"
        )]
        // SAFETY: between fork and exec only system calls are made; writing to a file does not allocate.
        unsafe {
            command.pre_exec(move || {
                fs::write(&procs, "0")?;
                match &namespace {
                    Some(namespace) => setns(namespace, CloneFlags::CLONE_NEWNET)?,
                    None => unshare(CloneFlags::CLONE_NEWNET)?,
                }
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let (questions, answers) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        Self {
            key,
            uid: uid.to_owned(),
            cgroup,
            child,
            questions,
            answers,
        }
    }

    /// Has the process do something.
    pub(crate) fn ask(&mut self, question: &str) -> Answer {
        writeln!(self.questions, "{question}").unwrap();
        let mut line = String::new();
        while self.answers.read_line(&mut line).unwrap() > 0 {
            match line.trim().strip_prefix("=> ") {
                Some("ok") => return Answer::Ok,
                Some("EPERM") => return Answer::NotPermitted,
                Some(other) => return Answer::Other(other.to_owned()),
                None => line.clear(),
            }
        }
        panic!("the process of {} has ended", self.key);
    }

    /// Moves the process into the cgroup of another pod.
    pub(crate) fn move_into(&self, other: &Self) {
        fs::write(
            other.cgroup.join("container/cgroup.procs"),
            self.child.id().to_string(),
        )
        .unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The other side of [`Pod::ask`].
#[test]
#[ignore = "the process of a pod: started by the other tests"]
fn process_of_a_pod() {
    let mut sockets = BTreeMap::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        // The first letters of the harness may stand on the line.
        match answer(&words, &mut sockets) {
            Ok(()) => println!("\n=> ok"),
            Err(error) if error.raw_os_error() == Some(nix::libc::EPERM) => println!("\n=> EPERM"),
            Err(error) => println!("\n=> {error}"),
        }
    }
}

fn answer(
    words: &[&str],
    sockets: &mut BTreeMap<String, (Socket, Option<SocketAddr>)>,
) -> std::io::Result<()> {
    let peer = |text: &str| text.parse::<SocketAddr>().map_err(std::io::Error::other);
    match words {
        ["address", address] => {
            run(&["link", "set", "lo", "up"])?;
            // An IPv6 address can be bound at once only where nobody looks for another that has it.
            let family = if address.contains(':') {
                &["nodad"][..]
            } else {
                &[]
            };
            run(&[&["address", "add", address, "dev", "lo"], family].concat())
        }
        // Packets to this network leave the pod; nobody is there.
        ["interface", network] => {
            run(&["link", "add", "out", "type", "veth", "peer", "name", "far"])?;
            run(&["address", "add", network, "dev", "out"])?;
            run(&["link", "set", "out", "up"])?;
            run(&["link", "set", "far", "up"])
        }
        ["serve"] => serve(),
        ["tcp", to] => TcpStream::connect(peer(to)?).map(drop),
        ["udp", to] => datagrams(peer(to)?)?.send_to(b"?", &peer(to)?.into()).map(drop),
        ["udp-connect", to] => datagrams(peer(to)?)?.connect(&peer(to)?.into()),
        ["socket-tcp", name] => {
            sockets.insert(
                (*name).to_owned(),
                (Socket::new(Domain::IPV4, Type::STREAM, None)?, None),
            );
            Ok(())
        }
        ["connect", name, to] => sockets[*name].0.connect(&peer(to)?.into()),
        ["open-tcp", name, to] => {
            let stream = TcpStream::connect(peer(to)?)?;
            sockets.insert((*name).to_owned(), (stream.into(), None));
            Ok(())
        }
        ["open-udp", name, to] => {
            let socket = datagrams(peer(to)?)?;
            socket.send_to(b"?", &peer(to)?.into())?;
            sockets.insert((*name).to_owned(), (socket, Some(peer(to)?)));
            Ok(())
        }
        ["send", name] => match &sockets[*name] {
            (socket, Some(to)) => socket.send_to(b"?", &(*to).into()).map(drop),
            (socket, None) => socket.send(b"?").map(drop),
        },
        // In fragments on the way.
        ["udp-large", to] => datagrams(peer(to)?)?
            .send_to(&[0; 65_000], &peer(to)?.into())
            .map(drop),
        // With hop-by-hop and destination options before the UDP header.
        ["udp-extended", to] => {
            let socket = datagrams(peer(to)?)?;
            for option in [nix::libc::IPV6_HOPOPTS, nix::libc::IPV6_DSTOPTS] {
                extend(&socket, option)?;
            }
            socket.send_to(b"?", &peer(to)?.into()).map(drop)
        }
        // In the name of another address.
        ["udp-transparent", from, to] => {
            let socket = datagrams(peer(to)?)?;
            socket.set_ip_transparent_v4(true)?;
            socket.bind(&peer(from)?.into())?;
            socket.send_to(b"?", &peer(to)?.into()).map(drop)
        }
        // A whole IPv4 packet, with its source, of a protocol: 17 is UDP, 4 and 47 are tunnels.
        ["raw", protocol, from, to] => {
            let parse = |text: &str| text.parse::<std::net::Ipv4Addr>().map_err(std::io::Error::other);
            let protocol: u8 = protocol.parse().map_err(std::io::Error::other)?;
            let socket = Socket::new(
                Domain::IPV4,
                Type::RAW,
                Some(Protocol::from(nix::libc::IPPROTO_RAW)),
            )?;
            let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0];
            packet.extend(parse(from)?.octets());
            packet.extend(parse(to)?.octets());
            packet.extend([0x27, 0x0f, 0x27, 0x0f, 0, 8, 0, 0]);
            socket
                .send_to(&packet, &SocketAddr::from((parse(to)?, 0)).into())
                .map(drop)
        }
        // A later fragment of a UDP datagram.
        ["raw-fragment", to] => {
            let to: std::net::Ipv4Addr = to.parse().map_err(std::io::Error::other)?;
            let socket = Socket::new(
                Domain::IPV4,
                Type::RAW,
                Some(Protocol::from(nix::libc::IPPROTO_RAW)),
            )?;
            let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 8, 64, 17, 0, 0, 198, 18, 2, 2];
            packet.extend(to.octets());
            packet.extend([0; 8]);
            socket
                .send_to(&packet, &SocketAddr::from((to, 0)).into())
                .map(drop)
        }
        ["ping", to] => {
            let to: IpAddr = to.parse().map_err(std::io::Error::other)?;
            let (domain, protocol, kind) = match to {
                IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8),
                IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128),
            };
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            let echo = [kind, 0, 0xf7, 0xff, 0, 0, 0, 0];
            socket.send_to(&echo, &SocketAddr::from((to, 0)).into()).map(drop)
        }
        ["tcp-from", from, to] => connect_from(from, peer(to)?).map(drop),
        ["open-tcp-from", name, from, to] => {
            let socket = connect_from(from, peer(to)?)?;
            sockets.insert((*name).to_owned(), (socket, None));
            Ok(())
        }
        ["udp-connected", name, to] => {
            let socket = datagrams(peer(to)?)?;
            socket.connect(&peer(to)?.into())?;
            sockets.insert((*name).to_owned(), (socket, None));
            Ok(())
        }
        ["udp-at", name, from] => {
            let socket = UdpSocket::bind(peer(from)?)?;
            sockets.insert((*name).to_owned(), (socket.into(), None));
            Ok(())
        }
        ["send-to", name, to] => sockets[*name].0.send_to(b"?", &peer(to)?.into()).map(drop),
        ["receive-datagram", name] => {
            let (socket, _) = &sockets[*name];
            socket.set_read_timeout(Some(std::time::Duration::from_secs(2)))?;
            socket.recv(&mut [std::mem::MaybeUninit::uninit(); 4]).map(drop)
        }
        // There and back again.
        ["exchange", name] => {
            let (socket, _) = &sockets[*name];
            socket.set_read_timeout(Some(std::time::Duration::from_secs(2)))?;
            socket.send(b"?")?;
            let mut octets = [std::mem::MaybeUninit::uninit(); 4];
            match socket.recv(&mut octets)? {
                1 => Ok(()),
                octets => Err(std::io::Error::other(format!("{octets} octets"))),
            }
        }
        ["receive", name] => {
            let (socket, _) = &sockets[*name];
            socket.set_read_timeout(Some(std::time::Duration::from_secs(2)))?;
            let mut octets = [std::mem::MaybeUninit::uninit(); 4];
            socket.recv(&mut octets).map(drop)
        }
        ["serve-echo", at] => serve_datagrams(UdpSocket::bind(peer(at)?)?),
        ["serve-stream", at] => serve_streams(TcpListener::bind(peer(at)?)?),
        ["pass", name, path] => pass_on(&sockets[*name].0, path),
        ["take", name, place] => {
            let passed = take(&sockets[*place].0)?;
            sockets.insert((*name).to_owned(), (passed, None));
            Ok(())
        }
        ["listen-for-sockets", name, path] => {
            let place = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
            place.bind(&socket2::SockAddr::unix(path)?)?;
            sockets.insert((*name).to_owned(), (place, None));
            Ok(())
        }
        ["udp-echo", server, from] => echoed(peer(server)?, peer(from)?),
        _ => Err(std::io::Error::other(format!("no such question: {words:?}"))),
    }
}

fn datagrams(to: SocketAddr) -> std::io::Result<Socket> {
    Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))
}

#[allow(unsafe_code, reason = "no safe wrapper sets these options")]
fn extend(socket: &Socket, option: i32) -> std::io::Result<()> {
    // Eight octets, of which six are one padding option (RFC 8200, section 4.2).
    let header: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
    // SAFETY: the option's value is the array, of its length.
    let set = unsafe {
        nix::libc::setsockopt(
            socket.as_raw_fd(),
            nix::libc::IPPROTO_IPV6,
            option,
            header.as_ptr().cast(),
            8,
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// By SCM_RIGHTS.
fn pass_on(socket: &Socket, path: &str) -> std::io::Result<()> {
    let way = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    way.connect(&socket2::SockAddr::unix(path)?)?;
    let sockets = [socket.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&sockets)];
    let words = [std::io::IoSlice::new(b"?")];
    sendmsg::<()>(way.as_raw_fd(), &words, &rights, MsgFlags::empty(), None)?;
    Ok(())
}

fn take(place: &Socket) -> std::io::Result<Socket> {
    let mut words = [0; 1];
    let mut words = [std::io::IoSliceMut::new(&mut words)];
    let mut room = nix::cmsg_space!([RawFd; 1]);
    let message = recvmsg::<()>(place.as_raw_fd(), &mut words, Some(&mut room), MsgFlags::empty())?;
    for rights in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(sockets) = rights {
            #[allow(unsafe_code, reason = "a number becomes the socket that it is")]
            // SAFETY: the kernel has just made it, and nobody else has it.
            return Ok(unsafe { Socket::from_raw_fd(sockets[0]) });
        }
    }
    Err(std::io::Error::other("no socket came"))
}

fn echoed(server: SocketAddr, from: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
    socket.send_to(b"hello", server)?;
    let mut answer = [0; 16];
    socket.recv(&mut answer).map(drop)
}

fn run(arguments: &[&str]) -> std::io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(std::io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }
}

fn connect_from(from: &str, to: SocketAddr) -> std::io::Result<Socket> {
    let from: IpAddr = from.parse().map_err(std::io::Error::other)?;
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    // Below the second after which the kernel repeats a SYN.
    socket.connect_timeout(&to.into(), std::time::Duration::from_millis(500))?;
    Ok(socket)
}

/// Accepts TCP on 8080 and 5353, echoes streams on 11 and 8081, and datagrams on port 7 of both families.
fn serve() -> std::io::Result<()> {
    for port in [8080, 5353] {
        let listener = TcpListener::bind(("::", port))?;
        std::thread::spawn(move || {
            let mut accepted = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                accepted.push(stream);
            }
        });
    }
    for port in [11, 8081] {
        serve_streams(TcpListener::bind(("::", port))?)?;
    }
    for own in ["198.18.2.2:7", "[2001:db8::2]:7"] {
        serve_datagrams(UdpSocket::bind(own)?)?;
    }
    Ok(())
}

#[allow(clippy::unnecessary_wraps, reason = "an answer of a pod")]
fn serve_datagrams(socket: UdpSocket) -> std::io::Result<()> {
    std::thread::spawn(move || {
        let mut octets = [0; 16];
        while let Ok((length, from)) = socket.recv_from(&mut octets) {
            // A refused answer concerns its peer alone.
            drop(socket.send_to(&octets[..length], from));
        }
    });
    Ok(())
}

#[allow(clippy::unnecessary_wraps, reason = "an answer of a pod")]
fn serve_streams(listener: TcpListener) -> std::io::Result<()> {
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut octets = [0; 16];
                while let Ok(length @ 1..) = stream.read(&mut octets) {
                    if stream.write_all(&octets[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(())
}

/// A batch in the making.
pub(crate) struct Made {
    pub(crate) batch: Batch,
}

pub(crate) fn batch(revision: u64) -> Made {
    let revision = (0..revision).fold(Revision::ZERO, |revision, _| revision.next());
    Made {
        batch: Batch::empty(revision),
    }
}

impl Made {
    /// A set of networks that a policy writes out.
    pub(crate) fn create_fixed(&mut self, id: SetId, network: &str) {
        self.create(id, SetKind::Networks, [Member::Network(network.parse().unwrap())]);
        let spec = self.batch.sets_created.last_mut().unwrap();
        spec.breadth = Breadth::Narrow;
    }

    pub(crate) fn create(&mut self, id: SetId, kind: SetKind, members: impl IntoIterator<Item = Member>) {
        self.batch.sets_created.push(SetSpec {
            id,
            kind,
            breadth: Breadth::Wide,
            description: "a set of the test".into(),
        });
        let added = members.into_iter().map(|member| (member, None)).collect();
        self.batch.members_changed.push(MembersChanged {
            set: id,
            added,
            removed: Vec::new(),
        });
    }

    pub(crate) fn rules(&mut self, pod: &Pod, egress: DirectionRules) {
        self.batch
            .rules_replaced
            .push(ruled(pod.key.name(), &pod.uid, egress));
    }
}

pub(crate) fn ruled(name: &str, uid: &str, egress: DirectionRules) -> PodRules {
    let addresses = ["198.18.2.2", "2001:db8::2"]
        .map(|text| text.parse().unwrap())
        .to_vec();
    PodRules {
        audit: Audit::default(),
        pod: PodKey::new("default", name),
        uid: Some(uid.into()),
        addresses,
        egress,
        ingress: DirectionRules::of(Vec::new()),
    }
}

pub(crate) fn record(revision: u64, set: SetId, address: &str, expires: Timestamp) -> Batch {
    let mut made = batch(revision);
    let added = vec![(Member::Address(address.parse().unwrap()), Some(expires))];
    made.batch.members_changed.push(MembersChanged {
        set,
        added,
        removed: Vec::new(),
    });
    made.batch
}

pub(crate) fn set(content: &str) -> SetId {
    SetId::of_content(content)
}

pub(crate) fn egress(tiers: Vec<TierRules>) -> DirectionRules {
    DirectionRules::of(tiers)
}

pub(crate) fn tier(tier: Tier, rules: Vec<Rule>, otherwise: DefaultAction) -> TierRules {
    TierRules {
        tier,
        rules: rules.into(),
        default_action: otherwise,
    }
}

pub(crate) fn allow(peer: PeerMatch, port: Option<u16>) -> Rule {
    rule(Action::Allow, peer, port)
}

pub(crate) fn deny(peer: PeerMatch, port: Option<u16>) -> Rule {
    rule(Action::Deny, peer, port)
}

pub(crate) fn pass(peer: PeerMatch, port: Option<u16>) -> Rule {
    rule(Action::Pass, peer, port)
}

fn rule(action: Action, peer: PeerMatch, port: Option<u16>) -> Rule {
    let port = port.map_or(PortMatch::Any, |port| {
        PortMatch::Range(Transport::Tcp, PortRange::single(port).unwrap())
    });
    Rule {
        action,
        peer,
        except: None,
        port,
        origin: Origin {
            policy: "NetworkPolicy/default/test".into(),
            rule: 0,
            name: None,
        },
        attribution: None,
    }
}
