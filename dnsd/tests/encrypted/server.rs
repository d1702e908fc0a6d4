//! A dnsd process with fresh certificates.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// What the certificates are made for.
pub(crate) const NAME: &str = "dns.test";

/// An authority, and a folder for what it issues.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) folder: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("egret-encrypted-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        let authority = Self { issuer, folder };
        authority.issue("server", NAME);
        authority
    }

    /// Writes certificate and key.
    pub(crate) fn issue(&self, file: &str, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.put(&format!("{file}.pem"), &certificate.pem());
        self.put(&format!("{file}.key"), &key.serialize_pem());
    }

    /// Replaces a file as a whole, as the kubelet does.
    pub(crate) fn put(&self, file: &str, text: &str) {
        let beside = self.folder.join(format!("{file}.new"));
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.folder.join(file)).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The option of a block that shows the server's certificate.
    pub(crate) fn tls(&self) -> String {
        format!("tls {} {}", self.file("server.pem"), self.file("server.key"))
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// A port that nobody has, over UDP and TCP.
pub(crate) fn free_port() -> u16 {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        if UdpSocket::bind(address).is_ok() {
            return address.port();
        }
    }
}

pub(crate) const fn at(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}

/// A dnsd that runs.
pub(crate) struct Server {
    child: Child,
    log: Arc<Mutex<String>>,
    admin: SocketAddr,
}

impl Server {
    /// With this Corefile; it is ready then.
    pub(crate) fn start(authority: &Authority, corefile: &str, more: &[&str]) -> Self {
        let server = Self::launch(&authority.folder, corefile, more);
        server.logs("ready");
        server
    }

    pub(crate) fn launch(folder: &Path, corefile: &str, more: &[&str]) -> Self {
        let admin = at(free_port());
        let path = folder.join("Corefile");
        fs::write(&path, corefile).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_dnsd"))
            .args(["--corefile", path.to_str().unwrap()])
            .args(["--admin", &admin.to_string(), "--link", "/nonexistent/link.sock"])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (mut lines, written) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                written.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Self { child, log, admin }
    }

    /// Waits until it has logged this.
    #[track_caller]
    pub(crate) fn logs(&self, wanted: &str) {
        eventually(
            || self.log.lock().unwrap().contains(wanted),
            || {
                let log = self.log.lock().unwrap();
                format!("{wanted:?} is not in the log: {log}")
            },
        );
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn end(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// The sum of the series of a metric whose labels have all of these.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = get(self.admin, "/metrics");
        let lines = page.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with([' ', '{']))
                && labels.iter().all(|label| line.contains(label))
        });
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Waits until something is so, for twenty seconds.
#[track_caller]
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    for _ in 0..2_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{}", otherwise());
}

/// What kdig prints; it may fail.
pub(crate) fn kdig(arguments: &str) -> String {
    let output = Command::new("kdig")
        .args(arguments.split_whitespace())
        .output()
        .expect("kdig is installed (knot-dnsutils)");
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
}
