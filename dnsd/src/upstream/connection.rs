//! One connection to an upstream (RFC 7766): queries are pipelined, and responses are matched by their ids in any order. One
//! task owns it. It ends when it was idle for long, when it is dropped, when the upstream closes it, or when responses are
//! outstanding and none comes.

use std::collections::hash_map::Entry;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use super::dial::{Dial, Wire};
use super::failure::Failure;
use crate::hash::HashMap;

/// Queries that wait to be written.
const QUEUED: usize = 64;
/// Queries in the table: outstanding ones, and those that nobody waits for any more.
const MAX_WAITERS: usize = 4_096;
/// Unwritten octets above which no more queries are taken.
const UNWRITTEN: usize = 16 << 10;
/// The minimum size of a read.
const AT_ONCE: usize = 4 << 10;
/// The largest capacity of an idle read buffer: a response of 64 KiB is rare.
const KEPT: usize = 16 << 10;
/// A connection with a response outstanding for so long is given no more queries.
const OVERDUE: Duration = Duration::from_millis(250);
/// No response is outstanding.
const NONE_OUTSTANDING: u64 = 0;

/// The handle of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    questions: mpsc::Sender<Question>,
    state: Arc<State>,
    due: Duration,
}

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    /// While it is idle.
    pub(super) idle: Duration,
    /// While responses are outstanding and none comes.
    pub(super) silent: Duration,
}

/// The state shared with its task.
#[derive(Debug)]
struct State {
    made: Timestamp,
    under_way: AtomicUsize,
    /// Since when a response is outstanding and none came; milliseconds.
    outstanding_since: AtomicU64,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Question {
    octets: Vec<u8>,
    waiter: oneshot::Sender<Result<RawResponse, ConnectionError>>,
}

/// A message that was matched to a query by its id.
#[derive(Debug)]
pub(super) struct RawResponse {
    /// The id of the query.
    pub(super) id: u16,
    /// The message.
    pub(super) octets: Vec<u8>,
}

/// Why there is no response on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionError {
    /// It could not be opened.
    Unconnected(Failure),
    /// It ended.
    Ended,
}

impl Connection {
    /// Connects in a task of its own; queries may be sent at once.
    pub(super) fn open(dial: Arc<Dial>, lifetime: Lifetime) -> Self {
        let (questions, receiver) = mpsc::channel(QUEUED);
        let state = Arc::new(State {
            made: clock::now(),
            under_way: AtomicUsize::new(0),
            outstanding_since: AtomicU64::new(NONE_OUTSTANDING),
            is_over: AtomicBool::new(false),
        });
        let over = CloseGuard(Arc::clone(&state));
        drop(task::spawn_brief(async move {
            run(&dial, receiver, lifetime, &over.0).await;
        }));
        Self {
            questions,
            state,
            due: OVERDUE.min(lifetime.silent / 2),
        }
    }

    /// Sends a query and waits without a deadline.
    pub(super) async fn ask(&self, octets: Vec<u8>) -> Result<RawResponse, ConnectionError> {
        let _counted = InflightGuard::new(&self.state.under_way);
        let (waiter, response) = oneshot::channel();
        let sent = self.questions.send(Question { octets, waiter }).await;
        match sent {
            Ok(()) => response.await.unwrap_or(Err(ConnectionError::Ended)),
            Err(_ended) => Err(ConnectionError::Ended),
        }
    }

    /// The number of outstanding queries.
    pub(super) fn under_way(&self) -> usize {
        self.state.under_way.load(Ordering::Relaxed)
    }

    /// Whether it takes another query.
    pub(super) fn is_usable(&self, now: Timestamp) -> bool {
        let outstanding_since = self.state.outstanding_since.load(Ordering::Relaxed);
        let is_late = outstanding_since != NONE_OUTSTANDING
            && now.since(Timestamp::from_millis(outstanding_since)) >= self.due;
        !is_late && !self.is_over()
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state.is_over.load(Ordering::Relaxed)
    }

    /// When it was opened.
    pub(super) fn made(&self) -> Timestamp {
        self.state.made
    }
}

/// Marks the connection as over when dropped.
struct CloseGuard(Arc<State>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Counts an outstanding query until it is dropped.
struct InflightGuard<'a>(&'a AtomicUsize);

impl<'a> InflightGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InflightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn run(dial: &Dial, questions: mpsc::Receiver<Question>, lifetime: Lifetime, state: &State) {
    let connected = tokio::time::timeout(lifetime.silent, dial.connect()).await;
    match connected.unwrap_or(Err(Failure::Timeout)) {
        Ok(Wire::Plain(stream)) => {
            ConnectionTask::new(stream, questions, lifetime, state)
                .run()
                .await
        }
        Ok(Wire::Tls(stream)) => {
            ConnectionTask::new(*stream, questions, lifetime, state)
                .run()
                .await
        }
        Err(failure) => refuse(questions, failure),
    }
}

fn refuse(mut questions: mpsc::Receiver<Question>, failure: Failure) {
    questions.close();
    while let Ok(question) = questions.try_recv() {
        drop(question.waiter.send(Err(ConnectionError::Unconnected(failure))));
    }
}

/// The task of an established connection.
struct ConnectionTask<'a, S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    questions: mpsc::Receiver<Question>,
    /// Whether more queries may come.
    is_open: bool,
    waiters: HashMap<u16, oneshot::Sender<Result<RawResponse, ConnectionError>>>,
    outbound: Vec<u8>,
    needs_flush: bool,
    inbound: Vec<u8>,
    lifetime: Lifetime,
    state: &'a State,
}

/// An event of the connection.
enum Event {
    Question(Option<Question>),
    Written(io::Result<usize>),
    Flushed(io::Result<()>),
    Read(io::Result<usize>),
    /// A timeout.
    Quiet,
}

impl<'a, S: AsyncRead + AsyncWrite> ConnectionTask<'a, S> {
    fn new(stream: S, questions: mpsc::Receiver<Question>, lifetime: Lifetime, state: &'a State) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader,
            writer,
            questions,
            is_open: true,
            waiters: HashMap::default(),
            outbound: Vec::new(),
            needs_flush: false,
            inbound: Vec::new(),
            lifetime,
            state,
        }
    }

    /// Runs until the end; waiters see their channels close.
    async fn run(mut self) {
        let quiet = tokio::time::sleep(self.lifetime.idle);
        tokio::pin!(quiet);
        while self.is_open || !self.waiters.is_empty() {
            let event = self.event(quiet.as_mut()).await;
            if let Err(error) = self.take(event, quiet.as_mut()) {
                tracing::debug!(%error, "a connection to an upstream ended");
                return;
            }
        }
    }

    async fn event(&mut self, quiet: Pin<&mut Sleep>) -> Event {
        let takes = self.is_open && self.outbound.len() < UNWRITTEN;
        let writes = self.needs_flush || !self.outbound.is_empty();
        self.inbound.reserve(AT_ONCE);
        tokio::select! {
            biased;
            read = self.reader.read_buf(&mut self.inbound) => Event::Read(read),
            question = self.questions.recv(), if takes => Event::Question(question),
            event = push(&mut self.writer, &self.outbound), if writes => event,
            () = quiet => Event::Quiet,
        }
    }

    fn take(&mut self, event: Event, quiet: Pin<&mut Sleep>) -> io::Result<()> {
        match event {
            Event::Question(Some(question)) => {
                if self.waiters.is_empty() {
                    self.await_response(quiet);
                }
                self.send(question)
            }
            Event::Question(None) => {
                self.is_open = false;
                Ok(())
            }
            Event::Written(written) => {
                let written = written?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.outbound.drain(..written);
                self.needs_flush = true;
                Ok(())
            }
            Event::Flushed(flushed) => {
                self.needs_flush = false;
                flushed
            }
            Event::Read(read) => {
                if read? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                match self.deliver() {
                    true if self.waiters.is_empty() => self.become_idle(quiet),
                    true => self.await_response(quiet),
                    false => {}
                }
                Ok(())
            }
            Event::Quiet => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// A response arrived, or the first query was sent: restarts the `silent` timeout.
    fn await_response(&self, quiet: Pin<&mut Sleep>) {
        quiet.reset(Instant::now() + self.lifetime.silent);
        self.state
            .outstanding_since
            .store(clock::now().as_millis().max(1), Ordering::Relaxed);
    }

    /// All queries are answered: starts the `idle` timeout.
    fn become_idle(&self, quiet: Pin<&mut Sleep>) {
        quiet.reset(Instant::now() + self.lifetime.idle);
        self.state
            .outstanding_since
            .store(NONE_OUTSTANDING, Ordering::Relaxed);
    }

    /// Queues a query, under an id that no other outstanding one has.
    fn send(&mut self, question: Question) -> io::Result<()> {
        let mut octets = question.octets;
        let length = u16::try_from(octets.len()).map_err(io::Error::other)?;
        let mut id = u16::from_be_bytes([octets[0], octets[1]]);
        if self.waiters.len() >= MAX_WAITERS {
            self.waiters.retain(|_, waiter| !waiter.is_closed());
        }
        if self.waiters.len() >= MAX_WAITERS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        // There are far more ids than entries.
        loop {
            match self.waiters.entry(id) {
                Entry::Vacant(vacant) => {
                    vacant.insert(question.waiter);
                    break;
                }
                Entry::Occupied(_) => id = rand::random(),
            }
        }
        octets[..2].copy_from_slice(&id.to_be_bytes());
        self.outbound.extend_from_slice(&length.to_be_bytes());
        self.outbound.extend_from_slice(&octets);
        Ok(())
    }

    /// Gives complete messages to their waiters; others are ignored. Returns whether there was a response.
    fn deliver(&mut self) -> bool {
        let (mut at, mut is_answered) = (0, false);
        while let Some(message) = message_at(&self.inbound, at) {
            at += 2 + message.len();
            let id = message.first_chunk::<2>().map(|id| u16::from_be_bytes(*id));
            let waiter = id.and_then(|id| Some((id, self.waiters.remove(&id)?)));
            if let Some((id, waiter)) = waiter {
                let octets = message.to_vec();
                is_answered = true;
                drop(waiter.send(Ok(RawResponse { id, octets })));
            }
        }
        self.inbound.drain(..at);
        if self.inbound.is_empty() && self.inbound.capacity() > KEPT {
            self.inbound = Vec::new();
        }
        is_answered
    }
}

/// Writes queued octets, then flushes what TLS buffers.
async fn push<S: AsyncRead + AsyncWrite>(writer: &mut WriteHalf<S>, outbound: &[u8]) -> Event {
    if outbound.is_empty() {
        Event::Flushed(writer.flush().await)
    } else {
        Event::Written(writer.write(outbound).await)
    }
}

/// The complete message at an offset.
fn message_at(octets: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = octets[at..].split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}
