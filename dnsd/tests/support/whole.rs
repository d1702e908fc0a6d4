//! A whole dnsd on loopback: real sockets, and upstreams that do as they are told.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_dnsd::config::{Config, RawConfig};
use egret_dnsd::enforcement::client::{ClientLookup, InterfaceRole, Route, Routes};
use egret_dnsd::enforcement::gated::ResponseGate;
use egret_dnsd::enforcement::link;
use egret_dnsd::listener::threads::Threads;
use egret_dnsd::listener::{BoundListeners, Listeners, Service};
pub(crate) use egret_dnsd::net::Transport;
use egret_dnsd::pipeline::{Disposition, Metrics, Pending, ReceivedAt, Resolver};
use egret_dnsd::takeover::InheritedSockets;
use egret_dnsd::zones::{ActiveConfig, LogWriter, PacketInfo, Telemetry, host_interfaces};
use egret_kernel::links::Attachment;
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::{clock, task};
use hickory_proto::op::Message;
use hickory_proto::rr::{Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::support::{query, response, same_port};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Long enough that a test which waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Loopback as if pods were behind it, one at each address.
pub(crate) struct Loopback;

impl Routes for Loopback {
    fn route_to(&mut self, _address: IpAddr) -> io::Result<Route> {
        Ok(Route::Interface(1))
    }

    fn attachment(&mut self, interface: u32, _address: IpAddr) -> io::Result<Option<Attachment>> {
        Ok(Some(Attachment::to(&interface)))
    }

    fn role(&mut self, _interface: u32) -> io::Result<InterfaceRole> {
        Ok(InterfaceRole::Other)
    }
}

pub(crate) type Behaviour = Arc<dyn Fn(&[u8], Transport) -> Vec<Vec<u8>> + Send + Sync>;

/// An upstream that sends whatever its behaviour makes of a query.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    pub(crate) async fn start(
        behaviour: impl Fn(&[u8], Transport) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let (udp, tcp) = same_port(LOOPBACK).await;
        let address = udp.local_addr().unwrap();
        let (behaviour, asked): (Behaviour, _) = (Arc::new(behaviour), Arc::new(AtomicUsize::new(0)));
        drop(task::spawn(
            "upstream",
            Self::over_udp(udp, Arc::clone(&behaviour), Arc::clone(&asked)),
        ));
        drop(task::spawn("upstream", Self::over_tcp(tcp, behaviour)));
        Self { address, asked }
    }

    /// Answers each question with these records.
    pub(crate) async fn with(records: fn() -> Vec<Record>) -> Self {
        Self::start(move |query, _| vec![response(query, records()).to_vec().unwrap()]).await
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    async fn over_udp(socket: UdpSocket, behaviour: Behaviour, asked: Arc<AtomicUsize>) {
        let mut buffer = vec![0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap(); // Checks of its health ask for the root: they are nobody's question.
            asked.fetch_add(usize::from(buffer[12] != 0), Ordering::Relaxed);
            for reply in behaviour(&buffer[..length], Transport::Udp) {
                socket.send_to(&reply, from).await.unwrap();
            }
        }
    }

    async fn over_tcp(listener: TcpListener, behaviour: Behaviour) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let query = read_framed(&mut stream).await;
            for reply in behaviour(&query, Transport::Tcp) {
                stream.write_all(&framed(&reply)).await.unwrap();
            }
        }
    }
}

pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = u16::try_from(message.len()).unwrap().to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    framed
}

pub(crate) async fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let length = stream.read_u16().await.unwrap();
    let mut octets = vec![0; length.into()];
    stream.read_exact(&mut octets).await.unwrap();
    octets
}

/// A dnsd in this process.
pub(crate) struct Dnsd {
    pub(crate) address: SocketAddr,
    /// All of its addresses, in order.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) socket: PathBuf,
    pub(crate) gate: Arc<ResponseGate>,
    pub(crate) service: Service,
    pub(crate) telemetry: Telemetry,
    listening: Listeners,
    /// What it wrote about queries.
    pub(crate) lines: Lines,
}

/// Lines that were written.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut *self.0.lock().unwrap(), octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Waits until one of them has this.
    pub(crate) async fn has(&self, wanted: &str) -> String {
        let found = async {
            loop {
                let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
                if let Some(line) = text.lines().find(|line| line.contains(wanted)) {
                    return line.to_owned();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, found).await.unwrap_or_else(|_elapsed| {
            panic!("{wanted:?} was not written, but {:?}", self.text());
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn socket_of(name: &str) -> PathBuf {
    let socket = std::env::temp_dir().join(format!("egret-dnsd-{name}-{}.sock", std::process::id()));
    drop(std::fs::remove_file(&socket));
    socket
}

/// The configuration with the blocks of a Corefile in the place of the simple form; keys without a port draw one.
pub(crate) fn with_blocks(corefile: &str, options: &str) -> Result<Config, String> {
    let yaml =
        format!("listen: [\"127.0.0.1:0\"]\nupstreams: [\"192.0.2.1:53\"]\nlink: /nonexistent\n{options}");
    let written: RawConfig = serde_saphyr::from_str(&yaml).unwrap();
    let read = egret_dnsd::config::corefile::read(corefile, "Corefile", &|_| None, &|_| unreachable!(), 0);
    let (plan, _warnings) = read.map_err(|errors| format!("{errors:?}"))?;
    Ok(Config {
        plan,
        ..written.validate().unwrap()
    })
}

impl Dnsd {
    pub(crate) fn start(name: &str, upstreams: &[&Upstream], options: &str) -> Self {
        let socket = socket_of(name);
        let upstreams: Vec<String> = upstreams.iter().map(|it| format!("\"{}\"", it.address)).collect();
        let yaml = format!(
            "listen: [\"127.0.0.1:0\"]\nupstreams: [{}]\nlink: {}\n{options}",
            upstreams.join(", "),
            socket.display()
        );
        let written: RawConfig = serde_saphyr::from_str(&yaml).unwrap();
        Self::run(written.validate().unwrap(), socket)
    }

    /// With the blocks of a Corefile.
    pub(crate) fn with(name: &str, corefile: &str) -> Self {
        Self::run(with_blocks(corefile, "").unwrap(), socket_of(name))
    }

    pub(crate) fn run(config: Config, socket: PathBuf) -> Self {
        let metrics = Arc::new(Metrics::register());
        let lines = Lines::default();
        let telemetry = Telemetry {
            metrics: Arc::clone(&metrics.zones),
            upstream: Arc::clone(&metrics.upstream),
            counts: Arc::default(),
            log_writer: LogWriter::to(lines.clone()).unwrap(),
            kernel_answers: Arc::default(),
        };
        let hold = config.hold;
        let threads = Arc::new(Threads::start(config.fixed.threads).unwrap());
        let serving = ActiveConfig::new(config, None, &host_interfaces, &telemetry).unwrap();
        let listeners = bind(&serving);
        let addresses = listeners.addresses().unwrap();
        let client_lookup = Arc::new(ClientLookup::new(Box::new(Loopback)));
        let gate = Arc::new(ResponseGate::new(
            hold,
            clock::now(),
            Arc::clone(&client_lookup),
            Arc::clone(&metrics.gate),
        ));
        let gate_metrics = Arc::clone(&metrics.gate);
        let resolver = Resolver::new(serving, client_lookup, Arc::clone(&gate), metrics);
        let service = Service::new(Arc::new(resolver), threads);
        drop(task::spawn("deadlines", Arc::clone(&gate).keep_time()));
        let path = socket.as_path().into();
        let instance = DnsdInstance::from_random(1);
        drop(task::spawn(
            "link",
            link::keep(path, instance, Arc::clone(&gate), gate_metrics),
        ));
        Self {
            address: addresses[0],
            addresses,
            socket,
            gate,
            listening: listeners.serve(&service),
            service,
            telemetry,
            lines,
        }
    }

    /// Puts other blocks in force.
    pub(crate) fn put_in_force(&mut self, corefile: &str) -> Result<(), String> {
        let resolver = &self.service.resolver;
        let current = resolver.serving();
        let config = with_blocks(corefile, "")?;
        let serving = ActiveConfig::new(config, Some(&current), &host_interfaces, &self.telemetry)
            .map_err(|error| error.to_string())?;
        let new = self.listening.bind(&serving.tables);
        let new = new.map_err(|error| error.to_string())?;
        self.listening.adopt(&serving.tables, new);
        resolver.put_in_force(serving);
        Ok(())
    }

    /// A question that was read, and is not in the cache; it has not had its turn yet.
    pub(crate) fn missed(&self, question: &[u8]) -> Pending {
        let arrival = PacketInfo {
            source: (LOOPBACK, 5353).into(),
            asked: None,
            interface: None,
            transport: Transport::Udp,
        };
        let resolver = &self.service.resolver;
        let serving = resolver.serving();
        let (_, table) = serving.tables.first_key_value().unwrap();
        match resolver.answer(question, arrival, table, ReceivedAt::now()) {
            Disposition::Pending(pending) => pending,
            Disposition::Reply(_) | Disposition::NoReply => panic!("it is in the cache"),
        }
    }

    /// What an answer says in short: its code, and its addresses in the order in which they stand.
    pub(crate) async fn says(&self, name: &str) -> String {
        in_short(&self.ask(name).await.expect("an answer"))
    }

    /// Asks at one of its addresses.
    pub(crate) async fn ask_at(&self, address: SocketAddr, asked: &[u8]) -> Option<Message> {
        let client = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
        client.connect(address).await.unwrap();
        client.send(asked).await.unwrap();
        let mut buffer = vec![0; 65_535];
        let length = timeout(PATIENCE, client.recv(&mut buffer)).await.ok()?.unwrap();
        assert_eq!(buffer[..2], asked[..2]);
        Some(Message::from_vec(&buffer[..length]).unwrap())
    }

    /// Waits until an enforcer is connected and its interest known.
    pub(crate) async fn is_linked(&self) {
        let linked = async {
            while !self.gate.stats().is_interest_known {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, linked).await.expect("the link is up");
    }

    pub(crate) async fn ask(&self, name: &str) -> Option<Message> {
        self.ask_at(self.address, &query(name, RecordType::A, Some(1232)))
            .await
    }
}

/// A port that was drawn for one transport may be in use over the other: then another is drawn.
fn bind(serving: &ActiveConfig) -> BoundListeners {
    loop {
        match BoundListeners::bind(&serving.tables, &mut InheritedSockets::none()) {
            Ok(listeners) => return listeners,
            Err(error) => assert!(error.to_string().contains("in use"), "{error}"),
        }
    }
}

/// A message in short.
pub(crate) fn in_short(message: &Message) -> String {
    let code = format!("{:?}", message.metadata.response_code);
    let addresses = message.answers.iter().map(|record| record.data.to_string());
    std::iter::once(code)
        .chain(addresses)
        .collect::<Vec<_>>()
        .join(" ")
}

impl Drop for Dnsd {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.socket));
    }
}
