//! Scripted upstreams, and plans that name them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_dnsd::config::model::{self, Forward, Policy, Protocol, UpstreamHost};
use egret_dnsd::dns::answer::{Answer, TtlLimits};
use egret_dnsd::dns::message::{Query, WireName};
pub(crate) use egret_dnsd::net::Transport;
use egret_dnsd::upstream::Metrics;
use egret_dnsd::upstream::pending_query::ValidatedResponse;
use egret_dnsd::upstream::{Failure, Forwarder, Limits};
use egret_shared::rt::task;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::support::same_port;
pub(crate) use crate::support::{address, query, response, with_code};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Long enough that a test which waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What an upstream does, one after the other.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Reply(Vec<u8>),
    /// These octets, as they are, on a connection.
    Raw(Vec<u8>),
    /// In a datagram from another port.
    ReplyFromOtherPort(Vec<u8>),
    Wait(Duration),
    /// Ends the connection.
    Close,
}

/// A question as it came.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedQuery {
    pub(crate) octets: Vec<u8>,
    pub(crate) over: Transport,
    pub(crate) from: SocketAddr,
}

impl ReceivedQuery {
    pub(crate) fn name(&self) -> String {
        let message = Message::from_vec(&self.octets).unwrap();
        message.queries[0].name.to_lowercase().to_ascii()
    }

    pub(crate) fn message(&self) -> Message {
        Message::from_vec(&self.octets).unwrap()
    }

    pub(crate) fn is_check(&self) -> bool {
        self.message().queries[0].query_type() == RecordType::NS
    }

    /// An answer to it with these records.
    pub(crate) fn answer(&self, records: Vec<Record>) -> Vec<u8> {
        response(&self.octets, records).to_vec().unwrap()
    }

    /// An answer with one address, of the name that was asked for.
    pub(crate) fn one(&self) -> Vec<u8> {
        self.answer(vec![address(&self.name(), 60, "192.0.2.1")])
    }

    pub(crate) fn code(&self, code: ResponseCode) -> Vec<u8> {
        with_code(response(&self.octets, Vec::new()), code)
            .to_vec()
            .unwrap()
    }

    pub(crate) fn cut(&self) -> Vec<u8> {
        let mut message = response(&self.octets, Vec::new());
        message.metadata.truncation = true;
        message.to_vec().unwrap()
    }
}

type Behaviour = Arc<dyn Fn(&ReceivedQuery) -> Vec<Action> + Send + Sync>;

/// An upstream that does whatever its behaviour makes of a question.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) accepted: Arc<AtomicUsize>,
    pub(crate) open: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<ReceivedQuery>>>,
}

impl Upstream {
    pub(crate) async fn start(
        behaviour: impl Fn(&ReceivedQuery) -> Vec<Action> + Send + Sync + 'static,
    ) -> Self {
        Self::at(LOOPBACK, behaviour).await
    }

    pub(crate) async fn at(
        ip: IpAddr,
        behaviour: impl Fn(&ReceivedQuery) -> Vec<Action> + Send + Sync + 'static,
    ) -> Self {
        let (udp, tcp) = same_port(ip).await;
        let address = udp.local_addr().unwrap();
        let upstream = Self {
            address,
            accepted: Arc::default(),
            open: Arc::default(),
            received: Arc::default(),
        };
        let behaviour: Behaviour = Arc::new(behaviour);
        drop(task::spawn_brief(
            upstream.clone().over_udp(udp, Arc::clone(&behaviour)),
        ));
        drop(task::spawn_brief(upstream.clone().over_tcp(tcp, behaviour)));
        upstream
    }

    /// Answers each question with one address.
    pub(crate) async fn honest() -> Self {
        Self::start(|asked| vec![Action::Reply(asked.one())]).await
    }

    /// Answers nothing.
    pub(crate) async fn dead() -> Self {
        Self::start(|_| Vec::new()).await
    }

    /// The questions that came, checks of health left out.
    pub(crate) fn received(&self) -> Vec<ReceivedQuery> {
        let received = self.received.lock().unwrap();
        received
            .iter()
            .filter(|asked| !asked.is_check())
            .cloned()
            .collect()
    }

    pub(crate) fn asked(&self) -> usize {
        self.received().len()
    }

    pub(crate) fn checks(&self) -> Vec<ReceivedQuery> {
        let received = self.received.lock().unwrap();
        received
            .iter()
            .filter(|asked| asked.is_check())
            .cloned()
            .collect()
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn hear(&self, octets: &[u8], over: Transport, from: SocketAddr) -> ReceivedQuery {
        let asked = ReceivedQuery {
            octets: octets.to_vec(),
            over,
            from,
        };
        self.received.lock().unwrap().push(asked.clone());
        asked
    }

    async fn over_udp(self, socket: UdpSocket, behaviour: Behaviour) {
        let (socket, mut buffer) = (Arc::new(socket), vec![0; 4096]);
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let deeds = behaviour(&self.hear(&buffer[..length], Transport::Udp, from));
            let socket = Arc::clone(&socket);
            drop(task::spawn_brief(async move {
                for deed in deeds {
                    match deed {
                        Action::Reply(octets) | Action::Raw(octets) => {
                            drop(socket.send_to(&octets, from).await);
                        }
                        Action::ReplyFromOtherPort(octets) => {
                            let other = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
                            drop(other.send_to(&octets, from).await);
                        }
                        Action::Wait(span) => tokio::time::sleep(span).await,
                        Action::Close => {}
                    }
                }
            }));
        }
    }

    async fn over_tcp(self, listener: TcpListener, behaviour: Behaviour) {
        loop {
            let (stream, from) = listener.accept().await.unwrap();
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.open.fetch_add(1, Ordering::Relaxed);
            let (upstream, behaviour) = (self.clone(), Arc::clone(&behaviour));
            drop(task::spawn_brief(async move {
                upstream.talk(stream, from, behaviour).await;
                upstream.open.fetch_sub(1, Ordering::Relaxed);
            }));
        }
    }

    async fn talk(&self, stream: TcpStream, from: SocketAddr, behaviour: Behaviour) {
        let (mut reader, writer) = stream.into_split();
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        loop {
            let octets = tokio::select! { octets = read_framed(& mut reader) => octets, _hung_up = ended.recv() => return, };
            let Some(octets) = octets else { return };
            let deeds = behaviour(&self.hear(&octets, Transport::Tcp, from));
            drop(task::spawn_brief(act(deeds, Arc::clone(&writer), end.clone())));
        }
    }
}

async fn act(
    deeds: Vec<Action>,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    end: tokio::sync::mpsc::Sender<()>,
) {
    for deed in deeds {
        match deed {
            Action::Reply(octets) => drop(writer.lock().await.write_all(&framed(&octets)).await),
            Action::Raw(octets) => drop(writer.lock().await.write_all(&octets).await),
            Action::Wait(span) => tokio::time::sleep(span).await,
            Action::ReplyFromOtherPort(_) => {}
            Action::Close => drop(end.send(()).await),
        }
    }
}

pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = u16::try_from(message.len()).unwrap().to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    framed
}

pub(crate) async fn read_framed(reader: &mut (impl AsyncReadExt + Unpin)) -> Option<Vec<u8>> {
    let length = reader.read_u16().await.ok()?;
    let mut octets = vec![0; length.into()];
    reader.read_exact(&mut octets).await.ok()?;
    Some(octets)
}

/// A port at which nobody is.
pub(crate) async fn nobody() -> SocketAddr {
    let socket = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    socket.local_addr().unwrap()
}

pub(crate) fn wire_name(text: &str) -> WireName {
    WireName::parse(text).unwrap()
}

/// What CoreDNS does where nothing is written, but in the order of the upstreams.
pub(crate) fn plan(upstreams: &[SocketAddr]) -> Forward {
    let to = upstreams.iter().map(|address| model::Upstream {
        host: UpstreamHost::Address(*address),
        protocol: Protocol::Dns,
        server_name: None,
    });
    Forward {
        origin: "test:1".to_owned(),
        to: to.collect(),
        policy: Policy::Sequential,
        ..Forward::default()
    }
}

pub(crate) fn forwarder(plan: &Forward) -> Forwarder {
    Forwarder::new(plan, Arc::new(Metrics::register())).unwrap()
}

pub(crate) fn question(name: &str) -> Query<'static> {
    Query::read(&query(name, RecordType::A, Some(1232)))
        .unwrap()
        .owned()
}

pub(crate) fn limits(patience: Duration) -> Limits {
    Limits {
        patience,
        udp_size: 1232,
        ttl: TtlLimits {
            at_least: 0,
            at_most: u32::MAX,
        },
        quota_key: LOOPBACK.into(),
    }
}

/// Asks as a client does that came over UDP.
pub(crate) async fn ask(forwarder: &Forwarder, name: &str) -> Result<ValidatedResponse<Answer>, Failure> {
    ask_over(forwarder, name, Transport::Udp).await
}

/// Asks as a client does that waits so long.
pub(crate) async fn ask_for(
    forwarder: &Forwarder,
    name: &str,
    patience: Duration,
) -> Result<ValidatedResponse<Answer>, Failure> {
    forwarder
        .ask(&question(name), Transport::Udp, &limits(patience))
        .await
}

pub(crate) async fn ask_over(
    forwarder: &Forwarder,
    name: &str,
    client: Transport,
) -> Result<ValidatedResponse<Answer>, Failure> {
    forwarder.ask(&question(name), client, &limits(PATIENCE)).await
}

/// What an answer says, as the second opinion reads it.
pub(crate) fn read(answer: &ValidatedResponse<Answer>) -> Message {
    Message::from_vec(answer.get().message().octets()).unwrap()
}

/// The owner of the first record.
pub(crate) fn owner(answer: &ValidatedResponse<Answer>) -> String {
    read(answer).answers[0].name.to_ascii()
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

/// All at once, in the order in which they were given.
pub(crate) async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut pinned: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in pinned.iter_mut().zip(&mut results) {
            if result.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
