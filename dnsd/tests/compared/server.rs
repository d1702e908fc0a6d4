//! dnsd or CoreDNS as a process, with addresses of its own on loopback and a Corefile.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) const PORT: u16 = 5_399;
const HTTP_WITHIN: Duration = Duration::from_secs(10);
const READY_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Dnsd,
    Coredns,
}

pub(crate) struct Server {
    pub(crate) address: Ipv4Addr,
    pub(crate) folder: PathBuf,
    child: Child,
}

impl Server {
    /// `text` is a Corefile with `FOLDER` where files are, and `HERE` for its address.
    pub(crate) fn start(
        which: Which,
        binary: &Path,
        address: Ipv4Addr,
        text: &str,
        files: &[(&str, &str)],
    ) -> Self {
        let folder = std::env::temp_dir().join(format!(
            "egret-compared-{}-{address}-{which:?}",
            std::process::id()
        ));
        fs::create_dir_all(&folder).unwrap();
        for (name, content) in files {
            fs::write(folder.join(name), content).unwrap();
        }
        let corefile = folder.join("Corefile");
        let text = text
            .replace("FOLDER", folder.to_str().unwrap())
            .replace("HERE", &address.to_string());
        fs::write(&corefile, text).unwrap();
        let log = File::create(folder.join("log")).unwrap();
        let mut command = Command::new(binary);
        match which {
            Which::Dnsd => command
                .arg("--corefile")
                .arg(&corefile)
                .arg("--link")
                .arg(folder.join("no-enforcer"))
                .arg("--admin")
                .arg(format!("{address}:9298")),
            Which::Coredns => command.arg("-conf").arg(&corefile),
        };
        command.current_dir(&folder).stdin(Stdio::null());
        let child = command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self {
            address,
            folder,
            child,
        };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(self.dns()).is_err() || !self.takes_datagrams() {
            let ended = self.child.try_wait().unwrap();
            // CoreDNS ends itself where it finds a loop, at times before it is asked whether it is ready.
            if ended.is_some() && self.log().contains("plugin/loop: Loop") {
                return;
            }
            assert!(
                ended.is_none() && start.elapsed() < READY_WITHIN,
                "{ended:?}: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What is no question is not answered, but where nobody listens it comes back.
    fn takes_datagrams(&self) -> bool {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.connect(self.dns()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        socket.send(&[0]).is_ok()
            && socket
                .recv(&mut [0])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    pub(crate) fn dns(&self) -> SocketAddr {
        (self.address, PORT).into()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        // In one step: nobody reads half of it.
        let beside = self.folder.join("beside");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.folder.join(name)).unwrap();
    }

    /// Status and body of a GET.
    pub(crate) fn get(&self, port: u16, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect((self.address, port)).ok()?;
        stream.set_read_timeout(Some(HTTP_WITHIN)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: here\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some(format!("{} {body}", head.split(' ').nth(1)?))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}
