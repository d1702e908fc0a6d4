//! dnsd and the enforcer as users run them: processes in the node, asked over their admin listeners.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    marker::PhantomData,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        ptrace,
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use socket2::Type;

use crate::{Metrics, WorldError, netns::Netns, sockets::SocketMaker};

const READY_WITHIN: Duration = Duration::from_secs(10);
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);

/// How a daemon is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSpec {
    pub name: String,
    pub binary: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Where it answers HTTP inside the node.
    pub admin: SocketAddr,
    /// What answers 200 once it is ready.
    pub ready: String,
}

impl DaemonSpec {
    /// `dnsd` of this build, with its admin listener on this port of the node's loopback.
    pub fn dnsd(admin_port: u16) -> Self {
        Self::ours("dnsd", admin_port)
    }

    pub fn enforcer(admin_port: u16) -> Self {
        Self::ours("enforcer", admin_port)
    }

    /// A program of the host that answers HTTP on `port`, and 200 on the path `ready` once it is ready.
    pub fn stock(name: &str, port: u16, ready: &str) -> Self {
        Self {
            name: name.into(),
            binary: name.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            ready: ready.into(),
        }
    }

    fn ours(name: &str, port: u16) -> Self {
        let spec = Self {
            binary: binary_folder().join(name),
            ..Self::stock(name, port, "/readyz")
        };
        let admin = spec.admin.to_string();
        spec.with(["--admin".into(), admin])
    }

    #[must_use]
    pub fn with<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Takes the binary from this folder, e.g. of another build.
    #[must_use]
    pub fn in_folder(self, folder: impl AsRef<Path>) -> Self {
        Self {
            binary: folder.as_ref().join(&self.name),
            ..self
        }
    }

    /// Sets a variable of its environment, e.g. `EGRET_SWITCH_OFF`.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

/// A daemon of a world. Dropped, it is killed; when the test panics, its log is printed.
#[derive(Debug)]
pub struct Daemon {
    spec: DaemonSpec,
    log: PathBuf,
    netns: Arc<Netns>,
    child: Child,
}

impl Daemon {
    pub(crate) fn start(spec: DaemonSpec, netns: Arc<Netns>, logs: &Path) -> Result<Self, WorldError> {
        // A bare name is looked for on the PATH.
        if spec.binary.components().count() > 1 && !spec.binary.exists() {
            return Err(WorldError::NoBinary { path: spec.binary });
        }
        let log = logs.join(format!("{}-{}.log", spec.name, spec.admin.port()));
        let child = spawn(&spec, &log, &netns)?;
        Ok(Self {
            spec,
            log,
            netns,
            child,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn spec(&self) -> &DaemonSpec {
        &self.spec
    }

    /// Waits until it says that it is ready.
    pub fn wait_until_ready(&mut self) -> Result<Duration, WorldError> {
        let started = Instant::now();
        loop {
            let state = match self.get(&self.spec.ready) {
                Ok((200, _)) => return Ok(started.elapsed()),
                Ok((code, body)) => format!("{code}: {}", body.trim_end()),
                Err(error) => error.to_string(),
            };
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || started.elapsed() > READY_WITHIN {
                return Err(self.not_ready(
                    started.elapsed(),
                    ended.map_or(state, |status| status.to_string()),
                ));
            }
            std::thread::sleep(POLL);
        }
    }

    /// SIGKILL, and its end is awaited.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }

    /// SIGTERM, and its end is awaited; it is killed when that takes more than ten seconds.
    pub fn terminate(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + ENDS_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
        self.kill()
    }

    /// SIGSTOP: it hangs, with its sockets open. The signal goes to one of its threads, and the others run on until that
    /// one has had its turn: they are waited for.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let deadline = Instant::now() + ENDS_WITHIN;
        while !is_stopped(self.pid())? {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not stop"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// SIGCONT.
    pub fn cont(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Has one of its threads hang, as a debugger does, while the others go on.
    pub fn stop_thread(&self, name: &str) -> io::Result<StoppedThread> {
        let thread = thread_of(self.pid(), name)?;
        ptrace::seize(thread, ptrace::Options::empty())?;
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(StoppedThread(thread, PhantomData))
    }

    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).map_err(io::Error::from)
    }

    /// Starts it again with the same arguments after its end; killed first if it still runs.
    pub fn restart(&mut self) -> Result<(), WorldError> {
        let argv = self.spec.name.clone();
        if self.is_running() {
            self.kill().map_err(|source| WorldError::Spawn { argv, source })?;
        }
        self.child = spawn(&self.spec, &self.log, &self.netns)?;
        Ok(())
    }

    /// The same for one life with this variable in its environment.
    pub fn restart_with_variable(&mut self, name: &str, value: &str) -> Result<(), WorldError> {
        let usual = self.spec.clone();
        self.spec = usual.clone().with_variable(name, value);
        let restarted = self.restart();
        self.spec = usual;
        restarted
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Status and body of a GET on its admin listener.
    pub fn get(&self, path: &str) -> Result<(u16, String), WorldError> {
        get(
            &SocketMaker::Thread(Arc::clone(&self.netns)),
            self.spec.admin,
            path,
        )
        .map_err(|source| WorldError::Admin {
            admin: self.spec.admin,
            path: path.into(),
            source,
        })
    }

    pub fn metrics(&self) -> Result<Metrics, WorldError> {
        let (_, text) = self.get("/metrics")?;
        Metrics::parse(&text).map_err(|error| WorldError::Admin {
            admin: self.spec.admin,
            path: "/metrics".into(),
            source: io::Error::other(error),
        })
    }

    /// Where it writes stdout and stderr.
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// Everything that it wrote to stdout and stderr, over all its starts.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|error| format!("({}: {error})", self.log.display()))
    }

    fn not_ready(&self, waited: Duration, state: String) -> WorldError {
        let log = self.log();
        let tail = log.lines().rev().take(20).collect::<Vec<_>>();
        WorldError::NotReady {
            program: self.spec.name.clone(),
            waited_ms: waited.as_millis(),
            state,
            log: tail.into_iter().rev().collect::<Vec<_>>().join("\n"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process too; an error means that it has been waited for already.
        drop(self.kill());
        if std::thread::panicking() {
            eprintln!(
                "--- {} (pid {}) said:\n{}---",
                self.spec.name,
                self.pid(),
                self.log()
            );
        }
    }
}

/// Says how a process ended, for the table of a demo or the message of a test.
pub fn describe_end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended".into(),
    }
}

/// A program of this build, for who starts it without a world.
///
/// # Errors
/// When it was not built.
pub fn binary(name: &str) -> Result<PathBuf, WorldError> {
    let path = binary_folder().join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(WorldError::NoBinary { path })
    }
}

/// `EGRET_BIN_DIR`, or the folder of the profile that this program was built with: tests run in `<profile>/deps`.
fn binary_folder() -> PathBuf {
    if let Some(folder) = env::var_os("EGRET_BIN_DIR") {
        return folder.into();
    }
    let beside = env::current_exe()
        .ok()
        .and_then(|own| own.parent().map(Path::to_owned));
    let profile = beside.map(|folder| match folder.file_name() {
        Some(name) if name == "deps" => folder.join(".."),
        Some(_) | None => folder,
    });
    let here = |folder: &PathBuf| folder.join("dnsd").exists();
    profile
        .filter(here)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug"))
}

/// A thread that hangs until this is dropped, where it was made: a tracer is one thread.
#[derive(Debug)]
pub struct StoppedThread(Pid, PhantomData<*const ()>);

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // Where its process has ended, that one's end is told to nobody before this thread's is taken.
        if ptrace::detach(self.0, None).is_err()
            && let Err(error) = waitpid(self.0, Some(WaitPidFlag::__WALL))
        {
            eprintln!("a stopped thread does not go on: {error}");
        }
    }
}

fn thread_of(pid: u32, name: &str) -> io::Result<Pid> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = thread?.path();
        let own = fs::read_to_string(path.join("comm"))?;
        let id = path.file_name().and_then(|id| id.to_str()?.parse().ok());
        if let Some(id) = id.filter(|_| own.trim_end() == name) {
            return Ok(Pid::from_raw(id));
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("no thread {name}"),
    ))
}

/// Whether every thread is stopped (state `T` of proc(5)); one that is gone meanwhile does not run either.
fn is_stopped(pid: u32) -> io::Result<bool> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
        // The name stands in parentheses and may have anything in it.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state.is_some_and(|state| !"TtZX".contains(state)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn spawn(spec: &DaemonSpec, log: &Path, netns: &Netns) -> Result<Child, WorldError> {
    let file = fs::File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(WorldError::file(log))?;
    let both = file.try_clone().map_err(WorldError::file(log))?;
    let mut command = Command::new(&spec.binary);
    command.args(&spec.arguments).stdout(file).stderr(both);
    command.envs(spec.environment.iter().map(|(name, value)| (name, value)));
    let argv = format!("{} {}", spec.name, spec.arguments.join(" "));
    netns
        .spawn(command)
        .map_err(|source| WorldError::Spawn { argv, source })
}

/// A GET without any client library: the admin listener is inside the node's namespace.
fn get(sockets: &SocketMaker, admin: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let socket = sockets.socket(admin.ip(), Type::STREAM)?;
    socket.connect_timeout(&admin.into(), ANSWERS_WITHIN)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    // HTTP/1.0: no chunks, and the end of the stream is the end of the body.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {admin}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let code = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok((code, body.to_owned()))
}
