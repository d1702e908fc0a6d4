//! One dnsd transfers its sockets to another: queued packets are not lost, whichever process dies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egret_dnsd::takeover::state::StateRecord;
use egret_dnsd::takeover::{SocketName, SocketPurpose, StateSource, TakeoverEvent, TakeoverSocket, take};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_queued_datagram_is_read_by_the_new_process() {
    let takeover = TakeoverPath::new("waits");
    let (socket, name) = socket();
    let mut events = takeover.offer();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let successor = {
        let path = takeover.path();
        std::thread::spawn(move || {
            let (taken, mut inheritance) = take(&path, PATIENCE).unwrap().unwrap();
            let inherited = UdpSocket::from(inheritance.socket(name).unwrap());
            assert_eq!(inheritance.left().count(), 0);
            let granted = taken.pause().unwrap();
            let mut buffer = [0; 16];
            inherited.set_read_timeout(Some(PATIENCE)).unwrap();
            let (length, _from) = inherited.recv_from(&mut buffer).unwrap();
            granted.serving();
            buffer[..length].to_vec()
        })
    };
    answer_sockets(&mut events, &socket, name);
    client.send_to(b"unread", name.address).unwrap();
    let Some(TakeoverEvent::Pause(stopped)) = events.blocking_recv() else {
        panic!("the successor stops its predecessor");
    };
    drop(socket);
    stopped.send(()).unwrap();
    assert_eq!(successor.join().unwrap(), b"unread");
    assert!(matches!(
        events.blocking_recv(),
        Some(TakeoverEvent::Leave(Some(_)))
    ));
    assert!(
        events.blocking_recv().is_none(),
        "nobody else takes over from who has gone"
    );
}

#[test]
fn the_takeover_socket_has_mode_0600() {
    use std::os::unix::fs::PermissionsExt;
    let takeover = TakeoverPath::new("mode");
    let _events = takeover.offer();
    let mode = std::fs::metadata(takeover.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

#[test]
fn a_new_process_that_dies_before_it_serves_changes_nothing() {
    let takeover = TakeoverPath::new("dies");
    let (socket, name) = socket();
    let mut events = takeover.offer();
    for pauses in [false, true] {
        let path = takeover.path();
        let successor = std::thread::spawn(move || {
            let (taken, _sockets) = take(&path, PATIENCE).unwrap().unwrap();
            if pauses {
                drop(taken.pause().unwrap());
            }
        });
        answer_sockets(&mut events, &socket, name);
        if pauses {
            let Some(TakeoverEvent::Pause(stopped)) = events.blocking_recv() else {
                panic!("the successor stops its predecessor");
            };
            stopped.send(()).unwrap();
        }
        assert!(matches!(events.blocking_recv(), Some(TakeoverEvent::Resume)));
        successor.join().unwrap();
    }
    let last = std::thread::spawn({
        let path = takeover.path();
        move || take(&path, PATIENCE).unwrap().is_some()
    });
    answer_sockets(&mut events, &socket, name);
    assert!(last.join().unwrap(), "the next one is served");
}

#[test]
fn of_two_simultaneous_takeovers_the_second_takes_over_from_the_first() {
    let takeover = TakeoverPath::new("two");
    let (socket, name) = socket();
    let mut of_predecessor = takeover.offer();
    let (path, after_first) = (takeover.path(), takeover.path());
    let first = std::thread::spawn(move || take(&path, PATIENCE).unwrap().unwrap().0);
    answer_sockets(&mut of_predecessor, &socket, name);
    let first = first.join().unwrap();
    let second = std::thread::spawn(move || take(&after_first, PATIENCE).map(|taken| taken.is_some()));
    // It is to wait for its turn at the predecessor; comes it later, it finds the first at once.
    std::thread::sleep(Duration::from_millis(100));
    let stopping = std::thread::spawn(move || first.pause().unwrap());
    let Some(TakeoverEvent::Pause(stopped)) = of_predecessor.blocking_recv() else {
        panic!("the successor stops its predecessor");
    };
    stopped.send(()).unwrap();
    let mut of_first = takeover.offer();
    stopping.join().unwrap().serving();
    std::thread::spawn(move || answer_sockets(&mut of_first, &socket, name));
    assert!(second.join().unwrap().unwrap(), "it is given the sockets");
}

#[test]
fn without_an_old_process_there_is_no_takeover() {
    let takeover = TakeoverPath::new("nobody");
    assert!(take(&takeover.path(), PATIENCE).unwrap().is_none(), "no file");
    drop(TakeoverSocket::at(&takeover.path()).unwrap());
    assert!(
        take(&takeover.path(), PATIENCE).unwrap().is_none(),
        "a file that somebody left"
    );
    drop(takeover.offer());
}

#[test]
fn sockets_of_another_network_namespace_are_not_taken() {
    let takeover = TakeoverPath::new("elsewhere");
    let mut events = takeover.offer();
    let elsewhere = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .ok()
            .map(|()| UdpSocket::bind("0.0.0.0:0").unwrap())
    });
    let Some(socket) = elsewhere.join().unwrap() else {
        assert!(
            std::env::var("CI").map_or(true, |ci| ci != "true"),
            "a network namespace is needed"
        );
        eprintln!("NOT TESTED: no network namespace; run as root");
        return;
    };
    let name = SocketName {
        purpose: SocketPurpose::Udp,
        address: socket.local_addr().unwrap(),
    };
    let path = takeover.path();
    let successor = std::thread::spawn(move || take(&path, PATIENCE).map(drop));
    answer_sockets(&mut events, &socket, name);
    let error = successor.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("another network namespace"), "{error}");
}

#[test]
fn a_client_that_breaks_the_protocol_gets_nothing() {
    let takeover = TakeoverPath::new("nonsense");
    let (socket, name) = socket();
    let mut events = takeover.offer();
    for words in [
        &b"hello"[..],
        b"{\"say\":\"stop\"}",
        b"{\"say\":\"sockets\",\"names\":[]}",
        b"\0",
        b"{}",
    ] {
        let connection = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).unwrap();
        connection
            .connect(&socket2::SockAddr::unix(takeover.path()).unwrap())
            .unwrap();
        connection.send(words).unwrap();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 16];
        assert_eq!(connection.recv(&mut buffer).unwrap(), 0, "{words:?}");
    }
    let last = std::thread::spawn({
        let path = takeover.path();
        move || take(&path, PATIENCE).unwrap().is_some()
    });
    answer_sockets(&mut events, &socket, name);
    assert!(last.join().unwrap());
}

fn answer_sockets(events: &mut UnboundedReceiver<TakeoverEvent>, socket: &UdpSocket, name: SocketName) {
    let Some(TakeoverEvent::Sockets(answer)) = events.blocking_recv() else {
        panic!("the successor asks for the sockets");
    };
    let duplicate = OwnedFd::from(socket.try_clone().unwrap());
    answer.send(vec![(name, duplicate)]).unwrap();
}

fn socket() -> (UdpSocket, SocketName) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = socket.local_addr().unwrap();
    (
        socket,
        SocketName {
            purpose: SocketPurpose::Udp,
            address,
        },
    )
}

/// Who knows nothing.
struct NoState;

impl StateSource for NoState {
    fn export(&self, emit: &mut dyn FnMut(&[StateRecord]) -> io::Result<()>) -> io::Result<()> {
        emit(&[StateRecord::End])
    }
}

/// A folder of its own.
struct TakeoverPath(PathBuf);

impl TakeoverPath {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("egret-handover-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("handover.sock")
    }

    fn offer(&self) -> UnboundedReceiver<TakeoverEvent> {
        let (sender, events) = unbounded_channel();
        let memory = Arc::new(NoState);
        TakeoverSocket::at(&self.path())
            .unwrap()
            .serve(sender, memory)
            .unwrap();
        events
    }
}

impl Drop for TakeoverPath {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
