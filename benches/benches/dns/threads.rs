//! The threads of the bench beside the generator: the floor (an echo, no work at all) and an upstream that has its answers
//! at once, so that it is never what is waited for, and counts its queries.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use nix::unistd::gettid;

use crate::meter::{self, Meter};
use egret_dnsd::net::Transport;

use crate::upstream::answer;

/// Sends everything back, on the servers' CPU. The thread ends with the process.
pub(crate) fn echo(socket: UdpSocket) -> anyhow::Result<Meter> {
    on_a_thread(meter::SERVERS, move || {
        let mut octets = [0; 1500];
        while let Ok((length, asker)) = socket.recv_from(&mut octets) {
            tell(socket.send_to(&octets[..length], asker));
        }
    })
}

/// Queries that an upstream received.
pub(crate) type QueryCount = Arc<AtomicUsize>;

/// Answers over UDP and TCP, on the generator's CPU.
pub(crate) fn upstream(udp: UdpSocket, tcp: TcpListener) -> anyhow::Result<QueryCount> {
    let queries = QueryCount::default();
    let counts = Arc::clone(&queries);
    on_a_thread(meter::GENERATOR, move || {
        let mut octets = [0; 1500];
        while let Ok((length, asker)) = udp.recv_from(&mut octets) {
            counts.fetch_add(1, Ordering::Relaxed);
            if let Some(answer) = answer(&octets[..length], Transport::Udp) {
                tell(udp.send_to(&answer, asker));
            }
        }
    })?;
    let counts = Arc::clone(&queries);
    on_a_thread(meter::GENERATOR, move || {
        for stream in tcp.incoming().flatten() {
            let counts = Arc::clone(&counts);
            thread::spawn(move || converse(stream, &counts));
        }
    })?;
    Ok(queries)
}

fn on_a_thread(cpu: usize, work: impl FnOnce() + Send + 'static) -> anyhow::Result<Meter> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let begun = meter::pin_this_thread(cpu).map(|()| Meter::Thread(gettid()));
        let goes_on = begun.is_ok();
        drop(tell.send(begun));
        if goes_on {
            work();
        }
    });
    told.recv()?
}

fn tell(sent: io::Result<usize>) {
    if let Err(error) = sent {
        eprintln!("a responder cannot send: {error}");
    }
}

/// Until the other side ends it.
fn converse(mut stream: TcpStream, queries: &AtomicUsize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut octets = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut octets)?;
        queries.fetch_add(1, Ordering::Relaxed);
        if let Some(answer) = answer(&octets, Transport::Tcp) {
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())?;
        }
    }
}
