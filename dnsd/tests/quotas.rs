//! Limits of all clients: when a total is used up, the largest client gives up its oldest use.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use support::{address, query, response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use whole::{Dnsd, PATIENCE, Upstream, framed, in_short, read_framed};

/// A client with an address of its own.
struct Client(UdpSocket);

impl Client {
    async fn at(last: u8, dnsd: &Dnsd) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0))
            .await
            .unwrap();
        socket.connect(dnsd.address).await.unwrap();
        Self(socket)
    }

    async fn asks(&self, name: &str) {
        let question = query(name, RecordType::A, Some(1232));
        self.0.send(&question).await.unwrap();
    }

    /// The name and the content of its next answer.
    async fn hears(&self) -> (String, String) {
        let mut buffer = [0; 2048];
        let length = timeout(PATIENCE, self.0.recv(&mut buffer)).await;
        let reply = Message::from_vec(&buffer[..length.expect("a reply").unwrap()]).unwrap();
        (reply.queries[0].name.to_ascii(), in_short(&reply))
    }
}

fn heard(name: &str, content: &str) -> (String, String) {
    (name.to_owned(), content.to_owned())
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect(what);
}

/// Says nothing of names that begin with `slow`, nor of `both.test` before it is told to.
async fn upstream() -> (Upstream, Arc<AtomicBool>) {
    let may_tell = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&may_tell);
    let up = Upstream::start(move |query, _| {
        let name = Message::from_vec(query).unwrap().queries[0].name.to_ascii();
        let name = name.to_ascii_lowercase();
        let is_told = !name.starts_with("slow") && (name != "both.test." || told.load(Ordering::Relaxed));
        let answer = || response(query, vec![address(&name, 60, "192.0.2.1")]);
        is_told.then(|| answer().to_vec().unwrap()).into_iter().collect()
    })
    .await;
    (up, may_tell)
}

const SIX: &str =
    "waitingPerClient: 4\nwaitingTotal: 6\ntryTimeout: 30s\ntotalTimeout: 60s\nstallDeadline: 1ms";

#[tokio::test]
async fn above_waiting_total_the_largest_client_gives_up_its_oldest_query() {
    let (up, _) = upstream().await;
    let dnsd = Dnsd::start("waiting-total", &[&up], SIX);
    let waiting = || dnsd.service.resolver.waiting();
    let [large, second, newcomer] = [2, 3, 4].map(|last| Client::at(last, &dnsd));
    let (large, second, newcomer) = tokio::join!(large, second, newcomer);
    for number in 0..4 {
        large.asks(&format!("slow-large{number}.test.")).await;
        until("it waits", || waiting() == number + 1).await;
    }
    second.asks("slow-second0.test.").await;
    second.asks("slow-second1.test.").await;
    until("all places are taken", || waiting() == 6).await;
    newcomer.asks("quick.test.").await;
    assert_eq!(newcomer.hears().await, heard("quick.test.", "NoError 192.0.2.1"));
    assert_eq!(
        large.hears().await,
        heard("slow-large0.test.", "ServFail"),
        "its oldest"
    );
    newcomer.asks("slow-newcomer0.test.").await;
    until("all places are taken", || waiting() == 6).await;
    // Who has as many as the largest but one is refused, and takes nothing from anybody.
    large.asks("slow-large4.test.").await;
    assert_eq!(large.hears().await, heard("slow-large4.test.", "ServFail"));
    assert_eq!(waiting(), 6);
}

#[tokio::test]
async fn a_waiter_behind_a_revoked_query_is_answered() {
    let (up, may_tell) = upstream().await;
    let dnsd = Dnsd::start("waiting-behind", &[&up], SIX);
    let waiting = || dnsd.service.resolver.waiting();
    let [large, second, newcomer] = [2, 3, 4].map(|last| Client::at(last, &dnsd));
    let (large, second, newcomer) = tokio::join!(large, second, newcomer);
    large.asks("both.test.").await;
    until("it is asked", || up.asked() == 1).await;
    second.asks("both.test.").await;
    until("both wait", || waiting() == 2).await;
    for number in 0..3 {
        large.asks(&format!("slow-large{number}.test.")).await;
    }
    second.asks("slow-second.test.").await;
    until("all places are taken", || waiting() == 6).await;
    may_tell.store(true, Ordering::Relaxed);
    newcomer.asks("quick.test.").await;
    assert_eq!(newcomer.hears().await, heard("quick.test.", "NoError 192.0.2.1"));
    assert_eq!(large.hears().await, heard("both.test.", "ServFail"));
    assert_eq!(second.hears().await, heard("both.test.", "NoError 192.0.2.1"));
}

async fn connect(last: u8, dnsd: &Dnsd) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    socket.connect(dnsd.address).await.unwrap()
}

async fn is_served(stream: &mut TcpStream) -> bool {
    let question = framed(&query("quick.test.", RecordType::A, None));
    if stream.write_all(&question).await.is_err() {
        return false;
    }
    let mut first = [0; 1];
    if stream.peek(&mut first).await.unwrap_or(0) == 0 {
        return false;
    }
    timeout(PATIENCE, read_framed(stream)).await.is_ok()
}

#[tokio::test]
async fn above_tcp_connections_the_largest_client_loses_its_oldest() {
    let (up, _) = upstream().await;
    let options = "tcpConnectionsPerClient: 3\ntcpConnections: 5\ntcpIdle: 60s\nstallDeadline: 1ms";
    let dnsd = Dnsd::start("tcp-total", &[&up], options);
    let mut large = Vec::new();
    for _ in 0..3 {
        large.push(connect(2, &dnsd).await);
        assert!(is_served(large.last_mut().unwrap()).await);
    }
    let mut second = [connect(3, &dnsd).await, connect(3, &dnsd).await];
    for stream in &mut second {
        assert!(is_served(stream).await);
    }
    let mut newcomer = connect(4, &dnsd).await;
    assert!(is_served(&mut newcomer).await, "it has none yet");
    let end = timeout(PATIENCE, large[0].read_u8()).await.expect("it ends");
    assert!(end.is_err(), "the oldest of the largest");
    for stream in large[1..].iter_mut().chain(&mut second) {
        assert!(is_served(stream).await, "the others go on");
    }
    // Now nobody has two more than another one would have.
    let mut refused = connect(3, &dnsd).await;
    assert!(!is_served(&mut refused).await);
    assert!(is_served(&mut newcomer).await);
}
