//! A server and an agent, both ours or both upstream's.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use egret_benches::process;
use egret_integration::{Peer, daemon};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::client::Mode;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Programs {
    Ours,
    Upstream,
}

pub(crate) struct Pair {
    // In this order: the agent ends before the server.
    agent: Program,
    server: Program,
    health_port: u16,
    folder: TempDir,
}

struct Program(Child);

impl Pair {
    /// Returns when the agent is connected.
    pub(crate) fn start(programs: Programs, mode: Mode) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        write_keys(folder.path())?;
        let (agent_port, health_port) = (free_port()?, free_port()?);
        let mode = match mode {
            Mode::Grpc => "grpc",
            Mode::HttpConnect => "http-connect",
        };
        let server = [
            format!("--mode={mode}"),
            format!("--uds-name={}", folder.path().join("front.sock").display()),
            "--server-port=0".to_owned(),
            "--agent-bind-address=127.0.0.1".to_owned(),
            format!("--agent-port={agent_port}"),
            "--health-bind-address=127.0.0.1".to_owned(),
            format!("--health-port={health_port}"),
            format!("--admin-port={}", free_port()?),
            "--cluster-cert=server.crt".to_owned(),
            "--cluster-key=server.key".to_owned(),
            "--cluster-ca-cert=ca.crt".to_owned(),
            "--proxy-strategies=default".to_owned(),
            "--kubeconfig=".to_owned(),
        ];
        let mut agent = vec![
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={agent_port}"),
            format!("--health-server-port={}", free_port()?),
            format!("--admin-server-port={}", free_port()?),
            "--ca-cert=ca.crt".to_owned(),
            "--agent-cert=client.crt".to_owned(),
            "--agent-key=client.key".to_owned(),
            "--sync-interval=100ms".to_owned(),
        ];
        let [server_binary, agent_binary] = binaries(programs)?;
        if programs == Programs::Ours {
            agent.push("--allow-destinations=127.0.0.0/8".to_owned());
        }
        let pair = Self {
            server: Program::start(&server_binary, folder.path(), "server", &server)?,
            agent: Program::start(&agent_binary, folder.path(), "agent", &agent)?,
            health_port,
            folder,
        };
        let began = Instant::now();
        while !get(health_port, "/readyz").is_ok_and(|page| page.starts_with("HTTP/1.1 200")) {
            ensure!(began.elapsed() < PATIENCE, "{programs:?}: no agent connects");
            std::thread::sleep(Duration::from_millis(50));
        }
        // What a start takes is over.
        std::thread::sleep(Duration::from_millis(300));
        Ok(pair)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("front.sock")
    }

    /// Of the server and of the agent, as everything below.
    pub(crate) fn cpu(&self) -> anyhow::Result<[Duration; 2]> {
        Ok([
            super::cpu_of(self.server.pid())?,
            super::cpu_of(self.agent.pid())?,
        ])
    }

    /// RSS in MiB.
    pub(crate) fn memory(&self) -> anyhow::Result<[f64; 2]> {
        let of = |program: &Program| process::memory(&program.pid().to_string(), "VmRSS");
        Ok([of(&self.server)?, of(&self.agent)?])
    }

    pub(crate) fn files(&self) -> anyhow::Result<[usize; 2]> {
        Ok([self.server.entries("fd")?, self.agent.entries("fd")?])
    }

    pub(crate) fn threads(&self) -> anyhow::Result<[usize; 2]> {
        Ok([self.server.entries("task")?, self.agent.entries("task")?])
    }

    /// Connections and dials that the server knows of.
    pub(crate) fn open_connections(&self) -> anyhow::Result<f64> {
        let page = get(self.health_port, "/metrics")?;
        let names = [
            "established_connections",
            "pending_backend_dials",
            "http_connections",
        ];
        let mut sum = 0.0;
        for name in names {
            let name = format!("konnectivity_network_proxy_server_{name} ");
            let value = page.lines().find_map(|line| line.strip_prefix(&name));
            sum += value.map_or(Ok(0.0), str::parse::<f64>)?;
        }
        Ok(sum)
    }

    /// Waits until no connection is left, and a moment longer.
    pub(crate) async fn wait_until_unused(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.open_connections()? > 0.0 {
            ensure!(
                began.elapsed() < Duration::from_secs(60),
                "{} connections are left",
                self.open_connections()?
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }
}

impl Program {
    fn start(binary: &Path, folder: &Path, name: &str, arguments: &[String]) -> anyhow::Result<Self> {
        let log = File::create(folder.join(format!("{name}.log")))?;
        let child = Command::new(binary)
            .args(arguments)
            .current_dir(folder)
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        child.map(Self).with_context(|| binary.display().to_string())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Of a folder of proc(5).
    fn entries(&self, folder: &str) -> anyhow::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/{folder}", self.pid()))?.count())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // One that ended has no more to be ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn binaries(programs: Programs) -> anyhow::Result<[PathBuf; 2]> {
    if programs == Programs::Ours {
        return Ok([daemon::binary("proxy-server")?, daemon::binary("proxy-agent")?]);
    }
    match (
        Peer::KONNECTIVITY_SERVER.build()?,
        Peer::KONNECTIVITY_AGENT.build()?,
    ) {
        (Some(server), Some(agent)) => Ok([server, agent]),
        _ => bail!("there is no Go to build upstream's programs with"),
    }
}

/// Upstream takes none above 49151.
fn free_port() -> anyhow::Result<u16> {
    use std::sync::atomic::{AtomicU16, Ordering};
    static LAST: AtomicU16 = AtomicU16::new(21_000);
    for _ in 0..10_000 {
        let port = LAST.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}

fn get(port: u16, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn write_keys(folder: &Path) -> anyhow::Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    fs::write(folder.join("ca.crt"), authority.pem())?;
    for name in ["server", "client"] {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        fs::write(
            folder.join(format!("{name}.crt")),
            params.signed_by(&key, &authority)?.pem(),
        )?;
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}
