//! A proxy in front of a real API server that breaks what the API server does not break by itself.
//!
//! `kubectl proxy` ends TLS; in front of it each request is a connection of its own, and HTTP/1.0 keeps answers free of chunks.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{Daemon, DaemonSpec, Kubernetes, World, WorldError};

const KUBECTL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
const PROXY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8002);
/// How often a stream looks what is to become of it.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// A request of a client.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// Path and query.
    pub target: String,
    /// Of the `Authorization` header.
    pub token: Option<String>,
    /// When it came.
    pub at: Instant,
}

impl ApiRequest {
    /// Whether it asks for objects of this kind.
    pub fn is_of(&self, plural: &str) -> bool {
        self.target
            .split('?')
            .next()
            .is_some_and(|path| path.rsplit('/').next() == Some(plural))
    }

    /// Whether it watches.
    pub fn is_watch(&self) -> bool {
        self.target.contains("watch=")
    }

    /// Whether it is a streaming list.
    pub fn is_streaming_list(&self) -> bool {
        self.target.contains("sendInitialEvents=true")
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Fate {
    /// The API server answers it.
    Pass,
    /// The same, and its answer is changed by this function.
    Rewrite(fn(String) -> String),
    /// It gets this answer.
    Answer {
        /// The status.
        status: u16,
        /// Further headers, each with its line end.
        headers: &'static str,
        /// The body, after which the connection ends.
        body: String,
    },
}

/// What becomes of answers that go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// They are passed on.
    Flow,
    /// What comes next is passed on in half, and the connection ends.
    CutNext,
    /// They end now.
    End,
    /// Those of now get nothing more and do not end. Later ones flow.
    Freeze,
}

type Decide = Box<dyn FnMut(&ApiRequest) -> Fate + Send>;

struct State {
    requests: Mutex<Vec<ApiRequest>>,
    decide: Mutex<Decide>,
    /// With the moment since which it holds.
    streams: Mutex<(Streams, Instant)>,
}

/// A proxy that runs in the node of a world.
pub struct ApiProxy {
    _kubectl: Daemon,
    state: Arc<State>,
    kubeconfig: PathBuf,
}

impl std::fmt::Debug for ApiProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiProxy").finish_non_exhaustive()
    }
}

impl ApiProxy {
    /// Starts it; everything passes.
    ///
    /// # Errors
    /// When `kubectl proxy` does not start or a port is taken.
    pub fn start(world: &World, kubernetes: &Kubernetes) -> Result<Self, Box<dyn std::error::Error>> {
        let spec = DaemonSpec {
            binary: kubernetes.kubectl_binary(),
            ..DaemonSpec::stock("kubectl-proxy", KUBECTL.port(), "/readyz")
        };
        let spec = spec
            .with(["proxy", "--address", "127.0.0.1"])
            .with(["--port".to_owned(), KUBECTL.port().to_string()])
            .with([
                "--kubeconfig".to_owned(),
                kubernetes.kubeconfig().display().to_string(),
            ]);
        let kubectl = world.start(spec)?;
        let state = Arc::new(State {
            requests: Mutex::default(),
            decide: Mutex::new(Box::new(|_request| Fate::Pass)),
            streams: Mutex::new((Streams::Flow, Instant::now())),
        });
        let shared = Arc::clone(&state);
        // Threads that are started in a namespace are in it.
        world.node().netns().within(move || -> io::Result<()> {
            let listener = TcpListener::bind(PROXY)?;
            std::thread::spawn(move || serve(&listener, &shared));
            Ok(())
        })?;
        let kubeconfig = world.files().join("proxy.kubeconfig");
        let proxy = Self {
            _kubectl: kubectl,
            state,
            kubeconfig,
        };
        proxy.write_kubeconfig("token: tests")?;
        Ok(proxy)
    }

    /// What the client is told of this proxy.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Has clients that start from now on authenticate themselves by this field of a kubeconfig's user.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig(&self, user: &str) -> Result<(), WorldError> {
        let text = format!(
            "apiVersion: v1
kind: Config
clusters: [{{name: here, cluster: {{server: \"http://{PROXY}\"}}}}]
users: [{{name: admin, user: {{{user}}}}}]
contexts: [{{name: here, context: {{cluster: here, user: admin}}}}]
current-context: here
"
        );
        std::fs::write(&self.kubeconfig, text).map_err(WorldError::file(&self.kubeconfig))
    }

    /// Decides about requests from now on.
    pub fn decide(&self, decide: impl FnMut(&ApiRequest) -> Fate + Send + 'static) {
        *held(&self.state.decide) = Box::new(decide);
    }

    /// Decides about answers that go on.
    pub fn streams(&self, streams: Streams) {
        *held(&self.state.streams) = (streams, Instant::now());
    }

    /// The requests for objects of a kind, as they came.
    pub fn requests(&self, plural: &str) -> Vec<ApiRequest> {
        let requests = held(&self.state.requests);
        requests
            .iter()
            .filter(|request| request.is_of(plural))
            .cloned()
            .collect()
    }

    /// Forgets the requests of now.
    pub fn forget_requests(&self) {
        held(&self.state.requests).clear();
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(listener: &TcpListener, state: &Arc<State>) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else { return };
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            // Whoever breaks a connection here is what the test is about.
            drop(answer(connection, &state));
        });
    }
}

fn answer(mut client: TcpStream, state: &State) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let header = |name: &str| {
        lines.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let length = header("content-length")
        .and_then(|length| length.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut first = lines[0].split(' ');
    let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let request = ApiRequest {
        target: target.to_owned(),
        token: header("authorization").map(|value| value.replace("Bearer ", "")),
        at: Instant::now(),
    };
    let fate = (held(&state.decide))(&request);
    held(&state.requests).push(request);
    let rewrite = match fate {
        Fate::Answer {
            status,
            headers,
            body,
        } => {
            write!(
                client,
                "HTTP/1.0 {status} Answer\r\nContent-Type: application/json\r\n{headers}\r\n{body}"
            )?;
            return client.shutdown(Shutdown::Both);
        }
        Fate::Pass => None,
        Fate::Rewrite(rewrite) => Some(rewrite),
    };
    let mut server = TcpStream::connect(KUBECTL)?;
    write!(server, "{method} {target} HTTP/1.0\r\n")?;
    let dropped = ["connection", "accept-encoding", "host", "authorization"];
    for line in &lines[1..] {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if !dropped.contains(&name.as_str()) {
            write!(server, "{line}\r\n")?;
        }
    }
    write!(server, "Host: 127.0.0.1\r\n\r\n")?;
    server.write_all(&body)?;
    match rewrite {
        None => pass(&mut server, &mut client, state),
        Some(rewrite) => {
            let mut text = String::new();
            server.read_to_string(&mut text)?;
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
            let head: Vec<&str> = head
                .lines()
                .filter(|line| !line.to_ascii_lowercase().starts_with("content-length"))
                .collect();
            write!(
                client,
                "{}\r\n\r\n{}",
                head.join("\r\n"),
                rewrite(body.to_owned())
            )?;
            client.shutdown(Shutdown::Both)
        }
    }
}

fn pass(server: &mut TcpStream, client: &mut TcpStream, state: &State) -> io::Result<()> {
    let begun = Instant::now();
    server.set_read_timeout(Some(LOOKS_EVERY))?;
    client.set_nonblocking(false)?;
    let mut octets = [0; 65536];
    let mut is_begun = false;
    loop {
        let read = match server.read(&mut octets) {
            Ok(0) => return client.shutdown(Shutdown::Both),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => 0,
            Err(error) => return Err(error),
        };
        let (streams, since) = *held(&state.streams);
        match streams {
            Streams::End if is_begun && begun < since => return client.shutdown(Shutdown::Both),
            Streams::Freeze if begun < since => std::thread::sleep(LOOKS_EVERY),
            Streams::CutNext if read > 0 && is_begun && begun < since => {
                client.write_all(&octets[..read / 2])?;
                return client.shutdown(Shutdown::Both);
            }
            _ => client.write_all(&octets[..read])?,
        }
        is_begun |= read > 0;
    }
}
