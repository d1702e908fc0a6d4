//! A socket that questions share, told apart by their ids: what is asked at once goes in one call, and what comes is read

//! in one.
//!
//! A response is matched by its id, and accepted only if it repeats the query in the case in which it was sent. All other
//! messages are counted and ignored; the response may still come.
//!
//! A socket takes a few dozen queries and closes when the last of them ends. It takes no more before that if one had no
//! response, or if responses are overdue: the backend behind a Service's address may be gone.

mod inflight;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::failure::Failure;
use super::io_error;
use super::pool_limits::PoolLimits;
use crate::dns::answer::TtlLimits;
use crate::net::batch::{self, BATCH, ReceiveBatch};
use crate::net::registered::register;
use crate::upstream::Metrics;
use crate::upstream::pending_query::{Mismatch, PendingQuery};
pub(super) use inflight::Datagram;
use inflight::{InflightIndex, InflightTable};

/// Queries per socket: with so many, the cost of opening it is small beside theirs.
const MAX_QUERIES: usize = 64;
/// A socket without any response for so long, while queries are outstanding, is given no more queries.
const OVERDUE: Duration = Duration::from_millis(50);

/// A shared socket.
#[derive(Debug)]
pub(super) struct SharedSocket {
    socket: AsyncFd<UdpSocket>,
    made: Timestamp,
    /// How long responses may still come after an ICMP error.
    grace: Duration,
    /// Locked for a few operations, and while queries are sent.
    state: Mutex<State>,
    /// Wakes the task: there are queries to send, or the socket closes.
    wake: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    inflight: InflightTable,
    /// When it was last used.
    used: Timestamp,
    /// Since when responses are outstanding and none came.
    silent_since: Timestamp,
    /// Whether it takes no more queries.
    is_closing: bool,
}

/// Whether a socket takes another query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// It does.
    Free {
        /// Whether no query is outstanding.
        is_idle: bool,
    },
    /// It does, and has unsent queries that it is sent together with.
    Batching,
    /// Not while responses are overdue.
    Stalled,
    /// It does not: it is closing.
    Closed,
}

/// One query in the in-flight table; dropping it removes the query.
#[derive(Debug)]
pub(super) struct InflightHandle {
    socket: Arc<SharedSocket>,
    index: InflightIndex,
}

impl SharedSocket {
    /// Shares a connected socket and starts its task.
    pub(super) fn open(
        socket: UdpSocket,
        grace: Duration,
        now: Timestamp,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Arc<Self>> {
        let socket = Arc::new(Self {
            // Writable events would wake the task after each sent datagram.
            socket: register(socket, Interest::READABLE | Interest::ERROR)?,
            made: now,
            grace,
            state: Mutex::new(State {
                inflight: InflightTable::reusing(SPARE.take()),
                used: now,
                silent_since: now,
                is_closing: false,
            }),
            wake: Notify::new(),
            metrics: Arc::clone(metrics),
        });
        drop(task::spawn_brief(Arc::clone(&socket).run()));
        Ok(socket)
    }

    /// Whether it takes another query. It closes if it is too old or idle for too long.
    pub(super) fn availability(&self, pool: &PoolLimits, now: Timestamp) -> Availability {
        let mut state = self.state();
        let is_idle = state.inflight.is_empty();
        let is_old = !pool.max_age.is_zero() && now.since(self.made) >= pool.max_age;
        if is_old || is_idle && now.since(state.used) >= pool.expire {
            state.is_closing = true;
            self.wake.notify_one();
        }
        if state.is_closing {
            Availability::Closed
        } else if !is_idle && now.since(state.silent_since) >= OVERDUE {
            Availability::Stalled
        } else if state.inflight.left_to_send() == 0 {
            Availability::Free { is_idle }
        } else {
            Availability::Batching
        }
    }

    /// Takes no more queries; outstanding ones go on.
    pub(super) fn close(&self) {
        self.state().is_closing = true;
        self.wake.notify_one();
    }

    /// Adds a query, which is sent with all that are added meanwhile.
    ///
    /// # Errors
    /// The query, where other threads have filled the socket since it was chosen.
    pub(super) fn ask(
        self: Arc<Self>,
        pending_query: PendingQuery,
        ttl: &TtlLimits,
        now: Timestamp,
    ) -> Result<InflightHandle, PendingQuery> {
        let mut state = self.state();
        // The task may have ended with the last query.
        if state.is_closing {
            return Err(pending_query);
        }
        if state.inflight.is_empty() {
            state.silent_since = now;
        }
        state.used = now;
        let index = state.inflight.add(pending_query, *ttl);
        state.is_closing |= state.inflight.asked() >= MAX_QUERIES;
        if state.inflight.left_to_send() == 1 {
            self.wake.notify_one();
        }
        drop(state);
        Ok(InflightHandle { socket: self, index })
    }

    /// Sends and receives until it is closing and the last query has ended.
    async fn run(self: Arc<Self>) {
        // After an ICMP error: until when responses may still come, and the failure of those that do not.
        let mut icmp_error: Option<(Instant, Failure)> = None;
        while !self.is_over() {
            let grace_over = async {
                match icmp_error {
                    Some((end, failure)) => {
                        sleep_until(end).await;
                        failure
                    }
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                biased;
                failure = grace_over => {
                    icmp_error = None;
                    self.fail(failure);
                    Ok(())
                }
                () = self.wake.notified() => Ok(()),
                ready = self.socket.ready(Interest::READABLE | Interest::ERROR) => match ready {
                    Ok(mut ready) if ready.ready().is_error() => {
                        ready.clear_ready_matching(Ready::ERROR);
                        Err(self.take_error())
                    }
                    Ok(mut ready) => {
                        ready.retain_ready();
                        self.read()
                    }
                    Err(error) => Err(error),
                },
            };
            match event.and_then(|()| self.send()) {
                Ok(true) => {}
                Ok(false) => self.wait_writable().await,
                Err(error) if io_error::is_soft(&error) => {
                    // New queries use another socket; unsent ones are sent now.
                    self.state().is_closing = true;
                    self.wake.notify_one();
                    icmp_error.get_or_insert_with(|| (Instant::now() + self.grace, io_error::of(&error)));
                }
                Err(error) => self.fail(io_error::of(&error)),
            }
        }
    }

    fn is_over(&self) -> bool {
        let state = self.state();
        state.is_closing && state.inflight.is_empty()
    }

    /// Sends unsent queries; returns whether all were sent.
    fn send(&self) -> io::Result<bool> {
        let inflight = &mut self.state().inflight;
        // Their clients may be gone.
        inflight.note_sent(0);
        while inflight.left_to_send() > 0 {
            match batch::send(self.socket.get_ref().as_fd(), inflight.unsent()) {
                Ok(sent) => inflight.note_sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits until the socket is writable.
    async fn wait_writable(&self) {
        let writable = self
            .socket
            .get_ref()
            .try_clone()
            .and_then(|socket| register(socket, Interest::WRITABLE));
        let waited = match writable {
            Ok(writable) => writable.writable().await.map(drop),
            Err(error) => Err(error),
        };
        match waited {
            Ok(()) => self.wake.notify_one(),
            Err(error) => self.fail(io_error::of(&error)),
        }
    }

    /// Receives a batch. If it is not full, nothing is left: reporting `WouldBlock` saves a system call.
    fn read(&self) -> io::Result<()> {
        let read = self.socket.try_io(Interest::READABLE, |socket| {
            let received = RECEIVE_BATCH.with_borrow_mut(|receive_batch| {
                let received = receive_batch.receive(socket.as_fd())?;
                self.receive((0..received).map(|index| receive_batch.octets(index)));
                Ok::<_, io::Error>(received)
            })?;
            if received < BATCH {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match read {
            Err(error) if io_error::is_nothing(&error) => Ok(()),
            read => read,
        }
    }

    /// The pending error of the socket, mostly an ICMP port unreachable.
    fn take_error(&self) -> io::Error {
        let pending = self.socket.get_ref().take_error();
        pending
            .unwrap_or_else(Some)
            .unwrap_or_else(|| io::Error::from_raw_os_error(libc::ECONNREFUSED))
    }

    fn receive<'a>(&self, messages: impl Iterator<Item = &'a [u8]>) {
        let now = clock::now();
        let mut state = self.state();
        (state.silent_since, state.used) = (now, now);
        for octets in messages {
            if let Err(mismatch) = state.take(octets, now) {
                self.metrics.mismatch(mismatch);
            }
        }
    }

    /// Fails all queries without an outcome.
    fn fail(&self, failure: Failure) {
        let mut state = self.state();
        state.is_closing = true;
        state.inflight.give_up_sending();
        for query in state.inflight.all() {
            if query.outcome.is_none() {
                query.end(Err(failure));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedSocket {
    fn drop(&mut self) {
        let inflight = std::mem::take(&mut self.state().inflight);
        // While the thread exits, there is no spare to set.
        let _thread_ends = SPARE.try_with(|spare| spare.set(inflight));
    }
}

impl State {
    /// Matches a message to its query.
    fn take(&mut self, octets: &[u8], now: Timestamp) -> Result<(), Mismatch> {
        let id = octets.first_chunk().map(|id| u16::from_be_bytes(*id));
        let query = id.and_then(|id| self.inflight.by_id(id));
        let query = query.filter(|query| query.outcome.is_none());
        let query = query.ok_or(Mismatch::Id)?;
        match query.pending_query.validate(octets, now, &query.ttl) {
            Ok(answer) => query.end(Ok(Datagram::Answer(answer))),
            Err(mismatch) => {
                match mismatch {
                    Mismatch::Case => query.end(Ok(Datagram::OtherCase)),
                    Mismatch::Bare => query.end(Ok(Datagram::Bare)),
                    Mismatch::Unreadable | Mismatch::Id | Mismatch::Question => {}
                }
                return Err(mismatch);
            }
        }
        Ok(())
    }
}

impl InflightHandle {
    /// Waits without a deadline.
    pub(super) async fn outcome(self) -> Result<Datagram, Failure> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<Datagram, Failure>> {
        let mut state = self.socket.state();
        let Some(query) = state.inflight.at(self.index) else {
            return Poll::Pending;
        };
        match query.outcome.take() {
            Some(outcome) => {
                state.inflight.remove(self.index);
                Poll::Ready(outcome)
            }
            None => {
                query.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for InflightHandle {
    fn drop(&mut self) {
        let mut state = self.socket.state();
        // A query without a response means that the backend may be gone.
        let is_unanswered = state.inflight.remove(self.index);
        state.is_closing |= is_unanswered;
        if state.is_closing && state.inflight.is_empty() {
            self.socket.wake.notify_one();
        }
    }
}

thread_local! {
/// Messages are read here and copied at their length: outstanding queries need no buffers.
static RECEIVE_BATCH : RefCell < ReceiveBatch > = RefCell::new(ReceiveBatch::new());
/// The table of a closed socket, for the next one: growing it is half a dozen allocations, and large ones make malloc
/// consolidate free chunks.
static SPARE : Cell < InflightTable > = Cell::default(); }

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::upstream::udp::tests::{TTL, question};

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    const PATIENCE: Duration = Duration::from_secs(20);

    fn connected(server: &UdpSocket) -> Arc<SharedSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(server.local_addr().unwrap()).unwrap();
        SharedSocket::open(socket, Duration::ZERO, NOW, &Arc::new(Metrics::register())).unwrap()
    }

    /// That nobody listens any more is told by ICMP for the last query alone; the others would wait for their time-out.
    #[tokio::test]
    async fn pending_queries_of_a_lost_upstream_fail_with_the_next_one() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let socket = connected(&server);
        let ask = || Arc::clone(&socket).ask(question(), &TTL, NOW).unwrap();
        let mut asked: Vec<_> = (0..10).map(|_| ask()).collect();
        let server = tokio::net::UdpSocket::from_std(server).unwrap();
        for _query in &asked {
            let received = timeout(PATIENCE, server.recv(&mut [0; 512])).await;
            received.expect("each is sent").unwrap();
        }
        drop(server);
        asked.push(ask());
        for query in asked {
            let outcome = timeout(PATIENCE, query.outcome())
                .await
                .expect("it does not wait on");
            assert!(matches!(outcome, Err(Failure::Unreachable)), "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_query_for_a_socket_that_filled_up_is_returned() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = connected(&server);
        let ask = || Arc::clone(&socket).ask(question(), &TTL, NOW);
        let asked: Vec<_> = (0..MAX_QUERIES).map(|_| ask().unwrap()).collect();
        assert!(ask().is_err(), "it is full");
        drop(asked);
        assert!(ask().is_err(), "and nobody sends on it any more");
    }
}
