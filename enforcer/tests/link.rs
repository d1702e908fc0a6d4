//! The socket as dnsd finds it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::{Read as _, Write as _};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use egret_enforcer::engine::{Input, PeerId, SendQueueFull};
use egret_enforcer::link;
use egret_shared::link::{Frame, FrameDecoder, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::{DnsdInstance, Sequence};
use egret_shared::rt::task;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

const DNSD: DnsdInstance = DnsdInstance::from_random(7);

/// Where the socket is; its folder goes with it, however the test ends.
struct SocketPath {
    folder: PathBuf,
    socket: PathBuf,
}

fn path(name: &str) -> SocketPath {
    let folder = std::env::temp_dir().join(format!("egret-link-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    let socket = folder.join("run/link.sock");
    SocketPath { folder, socket }
}

impl Deref for SocketPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.socket
    }
}

impl AsRef<Path> for SocketPath {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Where nothing was made, there is nothing to remove.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn serve(path: &Path) -> mpsc::Receiver<Input> {
    serve_at(link::bind(path).unwrap(), path)
}

fn serve_at(listener: UnixListener, path: &Path) -> mpsc::Receiver<Input> {
    let (engine, inputs) = mpsc::channel(64);
    drop(task::spawn(
        "link",
        link::serve(listener, path.to_owned(), DnsdInstance::from_random(1), engine),
    ));
    inputs
}

async fn next(inputs: &mut mpsc::Receiver<Input>) -> Input {
    let input = tokio::time::timeout(Duration::from_secs(5), inputs.recv()).await;
    input.expect("something happens within 5 s").unwrap()
}

async fn say(stream: &mut UnixStream, instance: DnsdInstance, message: &ToEnforcer) {
    let mut wire = Vec::new();
    encode(instance, message, &mut wire);
    stream.write_all(&wire).await.unwrap();
}

async fn hear(stream: &mut UnixStream, decoder: &mut FrameDecoder) -> ToDnsd {
    let mut buffer = [0; 4096];
    loop {
        if let Some(Frame::Message(_, message)) = decoder.next_frame().unwrap() {
            return message;
        }
        let length = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert_ne!(length, 0, "the connection ended");
        decoder.push(&buffer[..length]);
    }
}

#[tokio::test]
async fn frames_pass_in_both_directions_and_the_disconnect_is_reported() {
    let path = path("frames");
    let mut inputs = serve(&path);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let mut decoder = FrameDecoder::default();
    assert!(matches!(hear(&mut stream, &mut decoder).await, ToDnsd::Hello(_)));
    let Input::PeerJoined { peer, mut out, .. } = next(&mut inputs).await else {
        panic!("nobody joined")
    };
    say(
        &mut stream,
        DNSD,
        &ToEnforcer::Hello(Hello {
            program: "dnsd".to_owned(),
        }),
    )
    .await;
    assert!(
        matches!(next(&mut inputs).await, Input::PeerMessage(from, ToEnforcer::Hello(_)) if from == peer)
    );
    let realized = ToDnsd::Realized {
        through: Sequence::ZERO.next(),
        failed: Vec::new(),
    };
    out.send(vec![ToDnsd::InterestComplete, realized.clone()])
        .unwrap();
    assert_eq!(hear(&mut stream, &mut decoder).await, ToDnsd::InterestComplete);
    assert_eq!(hear(&mut stream, &mut decoder).await, realized);
    drop(stream);
    assert!(matches!(next(&mut inputs).await, Input::PeerLeft(gone) if gone == peer));
}

#[tokio::test]
async fn frames_that_a_dnsd_does_not_read_are_queued_in_order() {
    let path = path("full");
    let mut inputs = serve(&path);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let Input::PeerJoined { mut out, .. } = next(&mut inputs).await else {
        panic!("nobody joined")
    };
    let number = |number: u64| ToDnsd::Realized {
        through: (0..number).fold(Sequence::ZERO, |last, _| last.next()),
        failed: vec![Sequence::ZERO; 10_000],
    };
    for told in 0..100 {
        out.send(vec![number(told)]).unwrap();
    }
    let mut decoder = FrameDecoder::default();
    assert!(matches!(hear(&mut stream, &mut decoder).await, ToDnsd::Hello(_)));
    for told in 0..100 {
        assert_eq!(hear(&mut stream, &mut decoder).await, number(told));
        if told == 50 {
            out.send(vec![number(100)]).unwrap();
        }
    }
    assert_eq!(hear(&mut stream, &mut decoder).await, number(100));
    let refused = std::iter::repeat_with(|| out.send(vec![number(0)])).find(Result::is_err);
    assert_eq!(
        refused,
        Some(Err(SendQueueFull)),
        "it is not waited for without end"
    );
}

/// As of one that is stopped: it is told something when it is gone, and most of what it said is still to be read.
#[tokio::test]
async fn what_a_dnsd_sent_before_it_disconnected_is_received_completely() {
    const SAID: usize = 2_000;
    let path = path("gone");
    let mut inputs = serve(&path);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let Input::PeerJoined { mut out, .. } = next(&mut inputs).await else {
        panic!("nobody joined")
    };
    let mut wire = Vec::new();
    for _ in 0..SAID {
        encode(DNSD, &ToEnforcer::ResyncStarted, &mut wire);
    }
    stream.write_all(&wire).await.unwrap();
    drop(stream);
    for number in 0..SAID {
        assert_eq!(out.send(vec![ToDnsd::InterestComplete]), Ok(()), "{number}");
        let heard = next(&mut inputs).await;
        assert!(
            matches!(heard, Input::PeerMessage(_, ToEnforcer::ResyncStarted)),
            "{number}: {heard:?}"
        );
    }
    assert!(matches!(next(&mut inputs).await, Input::PeerLeft(_)));
}

/// It went before its connection was looked at.
#[tokio::test]
async fn what_was_said_by_one_that_is_gone_already_is_heard() {
    let path = path("early");
    let listener = link::bind(&path).unwrap();
    let mut stream = UnixStream::connect(&path).await.unwrap();
    say(&mut stream, DNSD, &ToEnforcer::ResyncStarted).await;
    drop(stream);
    let mut inputs = serve_at(listener, &path);
    let Input::PeerJoined { out: _out, .. } = next(&mut inputs).await else {
        panic!("nobody joined")
    };
    assert!(matches!(next(&mut inputs).await, Input::PeerMessage(..)));
    assert!(matches!(next(&mut inputs).await, Input::PeerLeft(_)));
}

#[tokio::test]
async fn reading_dnsds_wake_no_task() {
    const ROUNDS: u64 = 200;
    let path = path("wakes");
    let mut inputs = serve(&path);
    let socket = path.to_path_buf();
    let dnsd = std::thread::spawn(move || {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        let mut wire = Vec::new();
        encode(DNSD, &ToEnforcer::ResyncStarted, &mut wire);
        for _ in 0..ROUNDS {
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            // As who has an answer to give first.
            std::thread::sleep(Duration::from_millis(1));
            stream.write_all(&wire).unwrap();
        }
        stream
    });
    let Input::PeerJoined { mut out, .. } = next(&mut inputs).await else {
        panic!("nobody joined")
    };
    let waits = || tokio::runtime::Handle::current().metrics().worker_park_count(0);
    let before = waits();
    for _ in 0..ROUNDS {
        assert!(matches!(next(&mut inputs).await, Input::PeerMessage(..)));
        out.send(vec![ToDnsd::InterestComplete]).unwrap();
    }
    let waited = waits() - before;
    assert!(
        waited < ROUNDS * 3 / 2,
        "woken {waited} times for {ROUNDS} messages"
    );
    drop(dnsd.join().unwrap());
}

#[tokio::test]
async fn a_peer_with_malformed_frames_or_another_instance_is_disconnected_alone() {
    let path = path("nonsense");
    let mut inputs = serve(&path);
    let mut good = UnixStream::connect(&path).await.unwrap();
    let mut bad = UnixStream::connect(&path).await.unwrap();
    let mut joined = Vec::new();
    for _ in 0..2 {
        let Input::PeerJoined { peer, out, .. } = next(&mut inputs).await else {
            panic!("nobody joined")
        };
        joined.push((peer, out));
    }
    bad.write_all(&[0xff; 64]).await.unwrap();
    assert!(matches!(next(&mut inputs).await, Input::PeerLeft(PeerId(2))));
    say(&mut good, DNSD, &ToEnforcer::ResyncStarted).await;
    assert!(matches!(
        next(&mut inputs).await,
        Input::PeerMessage(PeerId(1), ToEnforcer::ResyncStarted)
    ));
    say(
        &mut good,
        DnsdInstance::from_random(8),
        &ToEnforcer::ResyncStarted,
    )
    .await;
    assert!(matches!(next(&mut inputs).await, Input::PeerLeft(PeerId(1))));
}

#[tokio::test]
async fn a_connection_ends_when_the_engine_drops_it() {
    let path = path("dropped");
    let mut inputs = serve(&path);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let Input::PeerJoined { out, .. } = next(&mut inputs).await else {
        panic!("nobody joined")
    };
    drop(out);
    assert!(matches!(next(&mut inputs).await, Input::PeerLeft(_)));
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_socket_that_nobody_listens_on_is_replaced_and_nothing_else_is() {
    let path = path("stale");
    drop(link::bind(&path).unwrap());
    let second = link::bind(&path).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o660
    );
    assert!(
        link::bind(&path)
            .unwrap_err()
            .to_string()
            .contains("another enforcer listens there")
    );
    drop(second);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(link::bind(&path).unwrap_err().to_string().contains("no socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}
