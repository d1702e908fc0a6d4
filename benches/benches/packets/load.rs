//! What is measured: one thread that is client and server at once. Sockets of both pods are its own, so nothing waits for another
//! thread to be scheduled: what a packet costs on its way is all there is besides the system calls, and all of it is this thread's time.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{self, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_integration::{Pod, cgroup2_root};
use nix::sched::{CloneFlags, setns};
use nix::time::{ClockId, clock_gettime};
use socket2::{Domain, Socket, Type};

use crate::cluster::{FORBIDDEN, PORT};
use crate::cpu;

/// Connections that are open at once, before they are taken in and ended.
const BATCH: usize = 100;
/// For what never comes.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `connect()` over TCP.
    Connect,
    /// A datagram and its answer, on a flow that has had answers.
    RoundTrip,
    /// A new socket, a datagram and its answer.
    NewFlow,
    /// A datagram of a flow that never has an answer.
    Unanswered,
    /// A gigabyte over an open connection.
    Bulk,
    /// `connect()` over TCP that is refused at the socket.
    Denied,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Connect,
        Self::RoundTrip,
        Self::NewFlow,
        Self::Unanswered,
        Self::Bulk,
    ];

    /// How many make a round: some hundredths of a second, for what else the machine does changes from second to second, and is to
    /// meet all rows alike. Fewer where a process is asked, and no more than its queue takes.
    const fn count(self, is_slow: bool) -> usize {
        match (self, is_slow) {
            (Self::Connect | Self::NewFlow | Self::Denied, false) => 600,
            (Self::RoundTrip, false) => 2_000,
            (Self::Unanswered, false) => 5_000,
            (Self::Bulk, false) => 300,
            (Self::Connect | Self::NewFlow | Self::Unanswered | Self::Bulk | Self::Denied, true) => 500,
            (Self::RoundTrip, true) => 3_000,
        }
    }
}

/// What one round saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Median and p99 of what was waited for, in µs.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// CPU time of the thread for each, in µs.
    pub(crate) cpu: f64,
}

/// Where the clients are, and the sockets of their server.
#[derive(Debug)]
pub(crate) struct Path {
    clients: Vec<File>,
    cgroups: Vec<Option<PathBuf>>,
    listener: TcpListener,
    echo: UdpSocket,
    mute: UdpSocket,
    server: IpAddr,
}

impl Path {
    pub(crate) fn new(clients: [&Pod; 2], server: &Pod) -> anyhow::Result<Self> {
        let namespace = namespace_of(server)?;
        let _in_cgroup = InCgroup::enter(server.cgroup())?;
        let (listener, echo, mute) = within(&namespace, || {
            let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            listener.set_reuse_address(true)?;
            listener.bind(&any(PORT).into())?;
            listener.listen(1024)?;
            let shared = |port| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
                socket.set_reuse_address(true)?;
                socket.bind(&any(port).into())?;
                std::io::Result::Ok(UdpSocket::from(socket))
            };
            std::io::Result::Ok((TcpListener::from(listener), shared(PORT)?, shared(PORT + 1)?))
        })??;
        echo.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            cgroups: clients.iter().map(|pod| pod.cgroup().map(Into::into)).collect(),
            clients: clients.into_iter().map(namespace_of).collect::<Result<_, _>>()?,
            listener,
            echo,
            mute,
            server: server.address(),
        })
    }

    /// One round of a client, by its number. The thread is in its namespace from then on. What a helper takes of a CPU counts too.
    pub(crate) fn measure(&self, client: usize, kind: Kind, helper: Option<u32>) -> anyhow::Result<Seen> {
        setns(&self.clients[client], CloneFlags::CLONE_NEWNET)?;
        let _in_cgroup = InCgroup::enter(self.cgroups[client].as_deref())?;
        let count = kind.count(helper.is_some());
        let helped = || helper.map_or(Ok(Duration::ZERO), cpu::when_idle);
        let before = helped()?;
        let mut seen = self.times(kind, count)?;
        seen.cpu += micros(helped()? - before) / f64::from(u32::try_from(count)?);
        Ok(seen)
    }

    fn times(&self, kind: Kind, count: usize) -> anyhow::Result<Seen> {
        match kind {
            Kind::Connect => self.connect(count),
            Kind::RoundTrip => self.round_trip(count),
            Kind::NewFlow => self.new_flow(count),
            Kind::Unanswered => self.unanswered(count),
            Kind::Bulk => self.bulk(count),
            Kind::Denied => self.denied(count),
        }
    }

    pub(crate) fn server(&self) -> IpAddr {
        self.server
    }

    /// The server's side of connections that were made.
    pub(crate) fn take_in(&self, connections: usize) -> anyhow::Result<Vec<TcpStream>> {
        let taken = (0..connections).map(|_| self.listener.accept().map(|(stream, _)| stream));
        Ok(taken.collect::<std::io::Result<_>>()?)
    }

    /// Whether a connection of the first client to a port gets no answer.
    pub(crate) fn is_closed(&self, port: u16) -> anyhow::Result<bool> {
        let to = SocketAddr::from((self.server, port));
        let _in_cgroup = InCgroup::enter(self.cgroups[0].as_deref())?;
        let outcome = within(&self.clients[0], || {
            TcpStream::connect_timeout(&to, Duration::from_millis(300))
        })?;
        if outcome.is_ok() {
            self.listener.accept()?;
        }
        Ok(outcome.is_err_and(|error| error.kind() == ErrorKind::TimedOut || is_refused_at_socket(error)))
    }

    fn connect(&self, count: usize) -> anyhow::Result<Seen> {
        let to = SocketAddr::from((self.server, PORT));
        let mut meter = Meter::start(count)?;
        for _ in 0..count / BATCH {
            let mut open = Vec::with_capacity(BATCH);
            for _ in 0..BATCH {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                // Ended by a reset: no port waits a minute for late packets.
                socket.set_linger(Some(Duration::ZERO))?;
                meter.time(|| {
                    socket
                        .connect(&to.into())
                        .with_context(|| format!("connect to {to}"))
                })?;
                open.push(socket);
            }
            for _ in 0..BATCH {
                self.listener
                    .accept()
                    .context("a connection that was made is there to be taken")?;
            }
        }
        meter.end()
    }

    fn denied(&self, count: usize) -> anyhow::Result<Seen> {
        let to = SocketAddr::from((self.server, FORBIDDEN)).into();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let mut meter = Meter::start(count)?;
        for _ in 0..count {
            meter.time(|| {
                let refused = socket.connect(&to).is_err_and(is_refused_at_socket);
                ensure!(refused, "it is not refused at the socket");
                Ok(())
            })?;
        }
        meter.end()
    }

    fn round_trip(&self, count: usize) -> anyhow::Result<Seen> {
        let socket = self.asking(PORT)?;
        self.exchange(&socket)?;
        let mut meter = Meter::start(count)?;
        for _ in 0..count {
            meter.time(|| self.exchange(&socket))?;
        }
        meter.end()
    }

    fn new_flow(&self, count: usize) -> anyhow::Result<Seen> {
        let mut meter = Meter::start(count)?;
        for _ in 0..count {
            meter.time(|| self.exchange(&self.asking(PORT)?))?;
        }
        meter.end()
    }

    fn unanswered(&self, count: usize) -> anyhow::Result<Seen> {
        let socket = self.asking(PORT + 1)?;
        ensure!(
            self.mute.local_addr()?.port() == PORT + 1,
            "the mute port is open"
        );
        let mut meter = Meter::start(count)?;
        for _ in 0..count {
            meter.time(|| Ok(socket.send(&[0; 32]).map(drop)?))?;
        }
        meter.end()
    }

    /// 64 KiB at a time, and read before the next.
    fn bulk(&self, count: usize) -> anyhow::Result<Seen> {
        let mut client = TcpStream::connect((self.server, PORT))?;
        let (mut server, _) = self.listener.accept()?;
        let (sent, mut received) = (vec![7; 1 << 16], vec![0; 1 << 16]);
        let mut meter = Meter::start(count)?;
        for _ in 0..count {
            meter.time(|| {
                client.write_all(&sent)?;
                Ok(server.read_exact(&mut received)?)
            })?;
        }
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
        meter.end()
    }

    fn asking(&self, port: u16) -> anyhow::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((self.server, port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    fn exchange(&self, socket: &UdpSocket) -> anyhow::Result<()> {
        let mut octets = [0; 32];
        socket.send(&octets)?;
        let (length, from) = self
            .echo
            .recv_from(&mut octets)
            .context("the question did not come")?;
        self.echo.send_to(&octets[..length], from)?;
        socket.recv(&mut octets).context("the answer did not come")?;
        Ok(())
    }
}

fn is_refused_at_socket(error: std::io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// This process is in the cgroup of a pod, in which its sockets are made then.
struct InCgroup {
    home: Option<PathBuf>,
}

impl InCgroup {
    fn enter(pod: Option<&path::Path>) -> anyhow::Result<Self> {
        let Some(pod) = pod else {
            return Ok(Self { home: None });
        };
        let own = std::fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let home = cgroup2_root()?.join(own.context("it is in a cgroup")?);
        std::fs::write(pod.join("cgroup.procs"), "0")?;
        Ok(Self { home: Some(home) })
    }
}

impl Drop for InCgroup {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            std::fs::write(home.join("cgroup.procs"), "0").expect("it came from there");
        }
    }
}

/// Each time that passed, and what the thread took of a CPU for all.
struct Meter {
    times: Vec<Duration>,
    cpu: Duration,
}

impl Meter {
    fn start(count: usize) -> anyhow::Result<Self> {
        Ok(Self {
            times: Vec::with_capacity(count),
            cpu: thread_time()?,
        })
    }

    fn time(&mut self, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let start = Instant::now();
        work()?;
        self.times.push(start.elapsed());
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<Seen> {
        let cpu = thread_time()? - self.cpu;
        self.times.sort_unstable();
        let at = |percent: usize| micros(self.times[(self.times.len() - 1) * percent / 100]);
        let count = u32::try_from(self.times.len())?;
        Ok(Seen {
            p50: at(50),
            p99: at(99),
            cpu: micros(cpu) / f64::from(count),
        })
    }
}

fn thread_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn namespace_of(pod: &Pod) -> anyhow::Result<File> {
    namespace(pod.netns_name())
}

pub(crate) fn namespace(name: &str) -> anyhow::Result<File> {
    let path = format!("/run/netns/{name}");
    File::open(&path).context(path)
}

/// Runs `make` on a thread in a namespace: a socket belongs to the one in which it was made.
pub(crate) fn within<T: Send>(namespace: &File, make: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let made = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            nix::Result::Ok(make())
        });
        thread.join().expect("making a socket does not panic")
    });
    Ok(made?)
}
