//! A client of `proxy-server`, as an API server is one: a connection of its own for each tunnel.

use std::future::poll_fn;
use std::path::Path;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use egret_konnectivity::proto::{Frames, Packet, encode};
use egret_shared::rt::task;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// How clients speak to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Grpc,
    HttpConnect,
}

/// A connection, or one that was asked for.
pub(crate) enum Tunnel {
    Http { stream: UnixStream, buffer: Vec<u8> },
    Grpc(Box<Grpc>),
}

/// One stream of one connection of HTTP/2, which ends with this.
pub(crate) struct Grpc {
    sender: SendStream<Bytes>,
    answer: Answer,
    frames: Frames,
    connection: i64,
}

enum Answer {
    /// The head, which upstream's server sends with its first packet.
    Expected(ResponseFuture),
    Begun(RecvStream),
}

impl Tunnel {
    pub(crate) async fn connect(mode: Mode, socket: &Path, address: &str) -> anyhow::Result<Self> {
        let mut tunnel = Self::ask(mode, socket, address).await?;
        match &mut tunnel {
            Self::Http { stream, .. } => {
                let mut head = Vec::with_capacity(256);
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await? == 0 {
                        bail!("{address}: {}", String::from_utf8_lossy(&head));
                    }
                }
                if !head.starts_with(b"HTTP/1.1 200") {
                    bail!("{address}: {}", String::from_utf8_lossy(&head));
                }
            }
            Self::Grpc(grpc) => match grpc.next().await?.context("no answer")? {
                Packet::DialResponse {
                    error, connection, ..
                } if error.is_empty() => grpc.connection = connection,
                other => bail!("{address}: {other:?}"),
            },
        }
        Ok(tunnel)
    }

    /// Does not wait for the answer.
    pub(crate) async fn ask(mode: Mode, socket: &Path, address: &str) -> anyhow::Result<Self> {
        let mut stream = UnixStream::connect(socket).await?;
        if mode == Mode::HttpConnect {
            let request = format!("CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            return Ok(Self::Http {
                stream,
                buffer: Vec::new(),
            });
        }
        let mut http = h2::client::Builder::new();
        http.initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 20);
        let (requests, connection) = http.handshake::<_, Bytes>(stream).await?;
        task::spawn_brief(async move {
            // It ends when nobody has a stream of it.
            drop(connection.await);
        });
        let request = Request::post("http://localhost/ProxyService/Proxy")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let (answer, sender) = requests.ready().await?.send_request(request, false)?;
        let mut grpc = Grpc {
            sender,
            answer: Answer::Expected(answer),
            frames: Frames::default(),
            connection: 0,
        };
        let dial = Packet::DialRequest {
            protocol: "tcp".to_owned(),
            address: address.to_owned(),
            random: 1,
        };
        grpc.send(&dial).await?;
        Ok(Self::Grpc(Box::new(grpc)))
    }

    pub(crate) async fn write(&mut self, octets: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Http { stream, .. } => Ok(stream.write_all(octets).await?),
            Self::Grpc(grpc) => {
                let (connection, data) = (grpc.connection, Bytes::copy_from_slice(octets));
                grpc.send(&Packet::Data { connection, data }).await
            }
        }
    }

    /// How many octets came.
    pub(crate) async fn read(&mut self) -> anyhow::Result<usize> {
        match self {
            Self::Http { stream, buffer } => {
                if buffer.is_empty() {
                    // One that is idle has had one octet.
                    let mut few = [0; 16];
                    let length = stream.read(&mut few).await?;
                    if length == few.len() {
                        buffer.resize(64 << 10, 0);
                    }
                    return at_least_one(length);
                }
                at_least_one(stream.read(buffer).await?)
            }
            Self::Grpc(grpc) => match grpc.next().await?.context("the stream ended")? {
                Packet::Data { data, .. } => Ok(data.len()),
                other => bail!("{other:?}"),
            },
        }
    }

    /// Asks for the close. HTTP CONNECT has none but the end of the connection.
    pub(crate) async fn begin_close(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Http { stream, .. } => Ok(stream.shutdown().await?),
            Self::Grpc(grpc) => {
                let connection = grpc.connection;
                grpc.send(&Packet::CloseRequest { connection }).await
            }
        }
    }

    /// With gRPC an API server waits until the close is confirmed.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        self.begin_close().await?;
        if let Self::Grpc(grpc) = &mut self {
            while let Some(packet) = grpc.next().await? {
                if matches!(packet, Packet::CloseResponse { .. }) {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn at_least_one(length: usize) -> anyhow::Result<usize> {
    if length == 0 {
        bail!("the connection ended");
    }
    Ok(length)
}

impl Grpc {
    async fn send(&mut self, packet: &Packet) -> anyhow::Result<()> {
        let mut frame = encode(packet)?;
        while !frame.is_empty() {
            self.sender.reserve_capacity(frame.len());
            let mut capacity = self.sender.capacity();
            if capacity == 0 {
                let more = poll_fn(|context| self.sender.poll_capacity(context)).await;
                capacity = more.context("the stream is closed")??;
            }
            let piece = frame.split_to(capacity.min(frame.len()));
            self.sender.send_data(piece, false)?;
        }
        Ok(())
    }

    async fn next(&mut self) -> anyhow::Result<Option<Packet>> {
        loop {
            while let Some(message) = self.frames.next_message()? {
                if let Some(packet) = Packet::decode(message)? {
                    return Ok(Some(packet));
                }
            }
            match &mut self.answer {
                Answer::Expected(answer) => self.answer = Answer::Begun(answer.await?.into_body()),
                Answer::Begun(body) => {
                    let Some(octets) = body.data().await else {
                        return Ok(None);
                    };
                    let octets = octets?;
                    body.flow_control().release_capacity(octets.len())?;
                    self.frames.push(octets);
                }
            }
        }
    }
}
