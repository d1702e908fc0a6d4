//! The UDP socket of QUIC: it reports the interface of a new connection, answers from the address that was queried, and
//! can be paused for a takeover.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::udp_socket::{inlet, send};
use crate::net::batch::ReceiveBatch;
use crate::net::registered::register;

/// New connections whose interface is remembered until they are accepted. Above the limit all are forgotten, and those
/// connections belong to no client.
const MAX_BEGINNING: usize = 4_096;
/// The bit of a long header (RFC 9000 §17.2), which begins a connection.
const LONG_HEADER: u8 = 0x80;

/// The socket.
pub(super) struct QuicSocket {
    socket: AsyncFd<UdpSocket>,
    bound: SocketAddr,
    is_paused: AtomicBool,
    /// Held while datagrams are read.
    state: Mutex<State>,
}

struct State {
    inbox: ReceiveBatch,
    /// The datagrams that are already delivered.
    given: usize,
    read: usize,
    beginning: HashMap<SocketAddr, u32>,
    /// The waker of the reader while paused.
    waker: Option<Waker>,
}

impl fmt::Debug for QuicSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicSocket")
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

/// Binds.
pub(super) fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    inlet(address).map(OwnedFd::from)
}

impl QuicSocket {
    /// A bound socket, perhaps of another process. It is paused.
    pub(super) fn inherit(socket: OwnedFd) -> io::Result<Arc<Self>> {
        let socket = UdpSocket::from(socket);
        Ok(Arc::new(Self {
            bound: socket.local_addr()?,
            socket: register(socket, Interest::READABLE | Interest::WRITABLE)?,
            is_paused: AtomicBool::new(true),
            state: Mutex::new(State {
                inbox: ReceiveBatch::new(),
                given: 0,
                read: 0,
                beginning: HashMap::new(),
                waker: None,
            }),
        }))
    }

    /// A duplicated descriptor.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.get_ref().as_fd().try_clone_to_owned()
    }

    /// Stops reading; datagrams wait in the socket.
    pub(super) fn pause(&self) {
        self.is_paused.store(true, Ordering::Release);
    }

    /// Reads again.
    pub(super) fn resume(&self) {
        self.is_paused.store(false, Ordering::Release);
        if let Some(waker) = self.lock().waker.take() {
            waker.wake();
        }
    }

    /// The interface of the last packet with which this client began a connection.
    pub(super) fn interface(&self, client: SocketAddr) -> Option<u32> {
        self.lock().beginning.remove(&client)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Delivers the datagrams that fit; returns their number.
    fn give(&mut self, rooms: &mut [IoSliceMut<'_>], about: &mut [RecvMeta]) -> usize {
        let mut count = 0;
        for (room, about) in rooms.iter_mut().zip(about) {
            let datagram = loop {
                if self.given == self.read {
                    return count;
                }
                self.given += 1;
                if let Some((octets, envelope)) = self.inbox.get(self.given - 1)
                    && octets.len() <= room.len()
                    && envelope.from.port() != 0
                {
                    break (octets, envelope);
                }
            };
            let (octets, envelope) = datagram;
            room[..octets.len()].copy_from_slice(octets);
            *about = RecvMeta {
                addr: envelope.from,
                len: octets.len(),
                stride: octets.len(),
                ecn: None,
                dst_ip: envelope.to,
            };
            let begins = octets.first().is_some_and(|first| first & LONG_HEADER != 0);
            if let Some(interface) = envelope.interface.filter(|_| begins) {
                if self.beginning.len() >= MAX_BEGINNING {
                    self.beginning.clear();
                }
                self.beginning.insert(envelope.from, interface);
            }
            count += 1;
        }
        count
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller {
            socket: self,
            waiting: None,
        })
    }

    /// A datagram that cannot be sent is lost, and QUIC sends it again.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let from = transmit.src_ip.filter(|from| *from != self.bound.ip());
        let sent = self.socket.try_io(Interest::WRITABLE, |socket| {
            send(socket.as_raw_fd(), transmit.contents, transmit.destination, from)
        });
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                tracing::debug!(%error, client = %transmit.destination, "a packet of QUIC cannot be sent");
                Ok(())
            }
            sent => sent,
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        rooms: &mut [IoSliceMut<'_>],
        about: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        loop {
            let given = state.give(rooms, about);
            if given > 0 {
                return Poll::Ready(Ok(given));
            }
            state.waker = Some(cx.waker().clone());
            if self.is_paused.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let inbox = &mut state.inbox;
            match ready.try_io(|socket| inbox.receive(socket.get_ref().as_fd())) {
                Ok(read) => (state.given, state.read) = (0, read?),
                Err(_would_block) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.bound)
    }
}

/// Waits until the socket is writable; each connection has one.
struct Poller {
    socket: Arc<QuicSocket>,
    waiting: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Arc::clone(&self.socket);
        let waiting = self.waiting.get_or_insert_with(|| {
            Box::pin(async move {
                socket.socket.writable().await?.retain_ready();
                Ok(())
            })
        });
        let room = ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(room)
    }
}
