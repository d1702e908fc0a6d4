//! A server with its agents, either ours or upstream's.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use egret_integration::{Peer, daemon};
use tempfile::TempDir;

use super::keys;
use super::process::{PATIENCE, Process, command_in, free_port, within};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Ours,
    Upstream,
}

/// How clients come to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    HttpConnectUds,
    HttpConnectTls,
    GrpcUds,
}

pub(crate) struct Pair {
    // In this order: the agents end before their server, which says so of each otherwise.
    agents: Vec<(Process, u16)>,
    server: Process,
    command: (PathBuf, Vec<String>),
    folder: TempDir,
    agent_host: String,
    agent_port: u16,
    health_port: u16,
    front_port: u16,
    namespaces: Namespaces,
}

/// Network namespaces of the server and of its agents; none is the test's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaces {
    pub(crate) server: Option<String>,
    pub(crate) agents: Option<String>,
}

impl Pair {
    /// Both, when they are connected; none where upstream's cannot be built, which is said.
    pub(crate) fn start(server: Program, agent: Program, front: Front) -> Option<Self> {
        let mut pair = Self::server(server, front)?;
        pair.start_agent(agent, "")?;
        pair.wait_for_agents(1);
        Some(pair)
    }

    /// A server without agents.
    pub(crate) fn server(program: Program, front: Front) -> Option<Self> {
        Self::server_at(program, front, "127.0.0.1", free_port(), &[])
    }

    /// The same with another address for agents, and further arguments.
    pub(crate) fn server_at(
        program: Program,
        front: Front,
        agent_host: &str,
        agent_port: u16,
        further: &[&str],
    ) -> Option<Self> {
        let namespaces = Namespaces::default();
        Self::server_in(namespaces, program, front, (agent_host, agent_port), further)
    }

    pub(crate) fn server_in(
        namespaces: Namespaces,
        program: Program,
        front: Front,
        (agent_host, agent_port): (&str, u16),
        further: &[&str],
    ) -> Option<Self> {
        let binary = binary(program, "proxy-server", Peer::KONNECTIVITY_SERVER)?;
        let folder = tempfile::tempdir().unwrap();
        keys::write(folder.path());
        let (health_port, front_port) = (free_port(), free_port());
        let mut arguments: Vec<String> = [
            "--health-bind-address=127.0.0.1",
            "--cluster-cert=server.crt",
            "--cluster-key=server.key",
            "--cluster-ca-cert=ca.crt",
            "--proxy-strategies=destHost,default",
            "--delete-existing-uds-file=true",
            "--logtostderr=true",
            "-v=2",
            "--kubeconfig=",
        ]
        .map(str::to_owned)
        .to_vec();
        arguments.extend(further.iter().map(|it| (*it).to_owned()));
        arguments.push(format!("--agent-bind-address={agent_host}"));
        arguments.push(format!("--agent-port={agent_port}"));
        arguments.push(format!("--health-port={health_port}"));
        arguments.push(format!("--admin-port={}", free_port()));
        let mode = if front == Front::GrpcUds {
            "grpc"
        } else {
            "http-connect"
        };
        arguments.push(format!("--mode={mode}"));
        if front == Front::HttpConnectTls {
            arguments.extend([
                format!("--server-port={front_port}"),
                "--server-bind-address=127.0.0.1".to_owned(),
            ]);
            let files = [
                "--server-cert=server.crt",
                "--server-key=server.key",
                "--server-ca-cert=ca.crt",
            ];
            arguments.extend(files.map(str::to_owned));
        } else {
            let socket = folder.path().join("front.sock");
            arguments.extend([
                format!("--uds-name={}", socket.display()),
                "--server-port=0".to_owned(),
            ]);
        }
        let inside = namespaces.server.as_deref();
        let server = Process::start_in(inside, "server", folder.path(), &binary, &arguments);
        let pair = Self {
            agents: Vec::new(),
            server,
            command: (binary, arguments),
            folder,
            agent_host: agent_host.to_owned(),
            agent_port,
            health_port,
            front_port,
            namespaces,
        };
        within("the server answers", || pair.ask_server("/healthz").is_some());
        Some(pair)
    }

    pub(crate) fn start_agent(&mut self, program: Program, identifiers: &str) -> Option<()> {
        let mut arguments = vec![format!("--agent-identifiers={identifiers}")];
        if program == Program::Ours {
            arguments.push("--allow-destinations=127.0.0.0/8".to_owned());
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        self.start_agent_with(program, &arguments)
    }

    pub(crate) fn start_agent_with(&mut self, program: Program, arguments: &[&str]) -> Option<()> {
        let shown = ["--agent-cert=client.crt", "--agent-key=client.key"];
        self.launch_agent(program, &[arguments, &shown].concat())
    }

    pub(crate) fn start_agent_without_certificate(&mut self) -> Option<()> {
        self.launch_agent(Program::Ours, &[])
    }

    pub(crate) fn launch_agent(&mut self, program: Program, arguments: &[&str]) -> Option<()> {
        let binary = binary(program, "proxy-agent", Peer::KONNECTIVITY_AGENT)?;
        let health = free_port();
        let names_port = arguments.iter().any(|it| it.starts_with("--proxy-server-port"));
        let port = (!names_port).then(|| format!("--proxy-server-port={}", self.agent_port));
        let own = [
            format!("--health-server-port={health}"),
            format!("--admin-server-port={}", free_port()),
        ];
        let common = [
            "--ca-cert=ca.crt",
            "--sync-interval=100ms",
            "--sync-interval-cap=1s",
            "--logtostderr=true",
        ];
        let names_host = arguments.iter().any(|it| it.starts_with("--proxy-server-host"));
        let host = (!names_host).then(|| format!("--proxy-server-host={}", self.agent_host));
        let arguments = arguments.iter().chain(&common).map(|it| (*it).to_owned());
        let arguments: Vec<_> = arguments.chain(host).chain(port).chain(own).collect();
        let name = format!("agent-{}", self.agents.len());
        let inside = self.namespaces.agents.as_deref();
        let agent = Process::start_in(inside, &name, self.folder.path(), &binary, &arguments);
        self.agents.push((agent, health));
        Some(())
    }

    pub(crate) fn wait_for_agents(&self, count: u32) {
        within("the agents are connected", || {
            self.ready_agents() == Some(f64::from(count))
        });
    }

    pub(crate) fn ready_agents(&self) -> Option<f64> {
        self.server_metric("konnectivity_network_proxy_server_ready_backends{proxy_strategy=\"default\"}")
    }

    pub(crate) fn server_process(&self) -> &Process {
        &self.server
    }

    pub(crate) fn agent_port(&self) -> u16 {
        self.agent_port
    }

    /// Agents that are started from now on connect there.
    pub(crate) fn send_agents_to(&mut self, port: u16) {
        self.agent_port = port;
    }

    /// Open files of the server and of the agent that was started last.
    pub(crate) fn open_files(&self) -> [usize; 2] {
        [self.server.open_files(), self.agent().open_files()]
    }

    pub(crate) fn server_log(&self) -> String {
        self.server.log()
    }

    pub(crate) fn agents(&self) -> usize {
        self.agents.len()
    }

    pub(crate) fn agent_at(&self, index: usize) -> &Process {
        &self.agents[index].0
    }

    /// The one that was started last.
    pub(crate) fn agent(&self) -> &Process {
        &self.agents.last().unwrap().0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("front.sock")
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn proxy_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.front_port)
    }

    /// The first two are the server's authority, the rest is the client's certificate.
    pub(crate) fn curl_identity(&self) -> Vec<String> {
        let words = [
            "--proxy-cacert",
            &self.file("ca.crt"),
            "--proxy-cert",
            &self.file("client.crt"),
            "--proxy-key",
            &self.file("client.key"),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// The first line of the answer to CONNECT, and the tunnel where it is one.
    pub(crate) fn connect(&self, address: &str) -> (String, Option<UnixStream>) {
        connect(&self.socket(), address)
    }

    /// The same at another socket of the server.
    pub(crate) fn connect_at(&self, socket: &str, address: &str) -> (String, Option<UnixStream>) {
        connect(&self.folder.path().join(socket), address)
    }

    /// The same, while the test goes on.
    pub(crate) fn start_connect(&self, address: &str) -> JoinHandle<String> {
        let (socket, address) = (self.socket(), address.to_owned());
        std::thread::spawn(move || connect(&socket, &address).0)
    }

    pub(crate) fn server_metric(&self, name: &str) -> Option<f64> {
        value(&self.ask_server("/metrics")?, name)
    }

    pub(crate) fn agent_metric(&self, name: &str) -> Option<f64> {
        let (_, port) = self.agents.last()?;
        let page = get(self.namespaces.agents.as_deref(), *port, "/metrics")?;
        value(&page, name)
    }

    /// From the next start on the server has this soft limit of open files, and a hard one that is enough.
    pub(crate) fn limit_open_files(&mut self, soft: u32) {
        let (binary, arguments) = &mut self.command;
        arguments.splice(
            0..0,
            [format!("--nofile={soft}:4096"), binary.display().to_string()],
        );
        *binary = PathBuf::from("prlimit");
    }

    /// The same server again, where it ended.
    pub(crate) fn restart_server(&mut self) {
        let (binary, arguments) = &self.command;
        let inside = self.namespaces.server.as_deref();
        self.server = Process::start_in(inside, "server", self.folder.path(), binary, arguments);
        within("the server answers", || self.ask_server("/healthz").is_some());
    }

    pub(crate) fn readiness(&self) -> u16 {
        let url = format!("http://127.0.0.1:{}/readyz", self.health_port);
        let curl = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url])
            .output();
        String::from_utf8(curl.unwrap().stdout).unwrap().parse().unwrap()
    }

    fn ask_server(&self, path: &str) -> Option<String> {
        get(self.namespaces.server.as_deref(), self.health_port, path)
    }
}

fn get(namespace: Option<&str>, port: u16, path: &str) -> Option<String> {
    let url = format!("http://127.0.0.1:{port}{path}");
    let curl = command_in(namespace, Path::new("curl"))
        .args(["-sf", "--max-time", "5", &url])
        .output();
    let curl = curl.unwrap();
    curl.status
        .success()
        .then(|| String::from_utf8_lossy(&curl.stdout).into_owned())
}

fn binary(program: Program, ours: &str, upstream: Peer) -> Option<PathBuf> {
    match program {
        Program::Ours => Some(daemon::binary(ours).unwrap()),
        Program::Upstream => upstream.build().unwrap(),
    }
}

fn value(page: &str, name: &str) -> Option<f64> {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

fn connect(socket: &Path, address: &str) -> (String, Option<UnixStream>) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(PATIENCE + Duration::from_secs(10)))
        .unwrap();
    // As an API server writes it.
    let request = format!("CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let (mut head, mut octet) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut octet).unwrap();
        head.extend(octet);
    }
    let head = String::from_utf8(head).unwrap();
    let line = head.lines().next().unwrap().to_owned();
    let tunnel = line.starts_with("HTTP/1.1 200").then_some(stream);
    (line, tunnel)
}
