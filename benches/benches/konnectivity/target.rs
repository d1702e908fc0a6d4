//! What the agent connects to: a process of its own, since it has as many open files as the clients.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener as StdTcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use egret_shared::rt::task;

/// Makes this program a target.
pub(crate) const WORD: &str = "serve-as-target";
const BUFFER: usize = 256 << 10;

/// What a client wants of the target: the first nine octets of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Echo,
    /// So many octets, and the close.
    Send(u64),
    /// Takes so many octets, and answers one.
    Take(u64),
}

impl Order {
    pub(crate) fn octets(self) -> [u8; 9] {
        let (kind, length) = match self {
            Self::Echo => (b'e', 0),
            Self::Send(length) => (b's', length),
            Self::Take(length) => (b't', length),
        };
        let mut octets = [kind; 9];
        octets[1..].copy_from_slice(&length.to_le_bytes());
        octets
    }
}

pub(crate) struct Target {
    process: Child,
    port: u16,
    closed: u16,
}

impl Target {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(WORD)
            .stdout(Stdio::piped())
            .spawn()?;
        let output: ChildStdout = process.stdout.take().context("it has an output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let closed = StdTcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
        let port = line.trim().parse().context("the target tells its port")?;
        Ok(Self {
            process,
            port,
            closed,
        })
    }

    /// One of 200 addresses: ports of connections that ended are not used again at once.
    pub(crate) fn address(&self, number: usize) -> String {
        format!("127.0.0.{}:{}", number % 200 + 1, self.port)
    }

    /// Where nobody listens.
    pub(crate) fn closed_address(&self, number: usize) -> String {
        format!("127.0.0.{}:{}", number % 200 + 1, self.closed)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It ends with this; one that ended before is none to be ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        task::spawn_brief(async move {
            // The client may be gone at any moment.
            drop(serve_one(stream).await);
        });
    }
}

async fn serve_one(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let kind = stream.read_u8().await?;
    let mut left = stream.read_u64_le().await?;
    match kind {
        b's' => {
            let piece = vec![0xa5; BUFFER];
            while left > 0 {
                let length = left.min(BUFFER as u64);
                stream
                    .write_all(&piece[..usize::try_from(length).unwrap_or(BUFFER)])
                    .await?;
                left -= length;
            }
            Ok(())
        }
        b't' => {
            let mut buffer = vec![0; BUFFER];
            while left > 0 {
                let length = stream.read(&mut buffer).await?;
                if length == 0 {
                    return Ok(());
                }
                left = left.saturating_sub(length as u64);
            }
            stream.write_all(b"!").await
        }
        _ => loop {
            let mut few = [0; 64];
            let length = stream.read(&mut few).await?;
            if length == 0 {
                return Ok(());
            }
            stream.write_all(&few[..length]).await?;
        },
    }
}
