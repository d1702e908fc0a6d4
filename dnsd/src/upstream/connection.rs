//! One connection to an upstream (RFC 7766): questions are sent as they come, answers are told apart by their ids and
//! may come in any order. One task owns it; it ends when nobody used it for a while, when nobody will, when the
//! upstream ends it, or when the upstream owes answers and gives none.

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

/// Questions that wait to be written.
const QUEUED: usize = 64;
/// Questions that are remembered: those under way, and those that nobody waits for any more.
const KNOWN: usize = 4_096;
/// Octets that wait to be written; beyond, no more questions are taken.
const UNWRITTEN: usize = 16 << 10;
/// Octets that are read at once, at least.
const AT_ONCE: usize = 4 << 10;
/// Octets of a buffer that are kept while nothing is read: an answer of 64 KiB is rare.
const KEPT: usize = 16 << 10;
/// An answer is due so soon, usually: a connection that owes one for longer is given no more questions.
const DUE: Duration = Duration::from_millis(250);
/// Nothing is owed.
const NOTHING: u64 = 0;

/// A connection, as those who ask know it.
#[derive(Debug)]
pub(super) struct Connection {
    questions: mpsc::Sender<Question>,
    state: Arc<State>,
    due: Duration,
}

/// How long a connection lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    /// While nobody uses it.
    pub(super) idle: Duration,
    /// While answers are owed and none comes.
    pub(super) silent: Duration,
}

/// What those who ask may know.
#[derive(Debug)]
struct State {
    made: Timestamp,
    under_way: AtomicUsize,
    /// Since when an answer is owed and none came.
    owes_since: AtomicU64,
    is_over: AtomicBool,
}

#[derive(Debug)]
struct Question {
    octets: Vec<u8>,
    asker: oneshot::Sender<Result<Told, Lost>>,
}

/// A message with an id that was asked by.
#[derive(Debug)]
pub(super) struct Told {
    /// The id by which it was asked.
    pub(super) id: u16,
    /// The message.
    pub(super) octets: Vec<u8>,
}

/// There will be no answer on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// It never came about.
    Unconnected(Failure),
    /// It ended.
    Ended,
}

impl Connection {
    /// Connects, in a task of its own; questions may come at once.
    pub(super) fn open(dial: Arc<Dial>, lifetime: Lifetime) -> Self {
        let (questions, receiver) = mpsc::channel(QUEUED);
        let state = Arc::new(State {
            made: clock::now(),
            under_way: AtomicUsize::new(0),
            owes_since: AtomicU64::new(NOTHING),
            is_over: AtomicBool::new(false),
        });
        let over = Over(Arc::clone(&state));
        drop(task::spawn_brief(async move {
            converse(&dial, receiver, lifetime, &over.0).await;
        }));
        Self {
            questions,
            state,
            due: DUE.min(lifetime.silent / 2),
        }
    }

    /// Asks, and waits for ever.
    pub(super) async fn ask(&self, octets: Vec<u8>) -> Result<Told, Lost> {
        let _counted = Counted::new(&self.state.under_way);
        let (asker, told) = oneshot::channel();
        let sent = self.questions.send(Question { octets, asker }).await;
        match sent {
            Ok(()) => told.await.unwrap_or(Err(Lost::Ended)),
            Err(_ended) => Err(Lost::Ended),
        }
    }

    /// Questions under way on it.
    pub(super) fn under_way(&self) -> usize {
        self.state.under_way.load(Ordering::Relaxed)
    }

    /// Whether another question may be sent on it.
    pub(super) fn is_usable(&self, now: Timestamp) -> bool {
        let owes_since = self.state.owes_since.load(Ordering::Relaxed);
        let is_late = owes_since != NOTHING && now.since(Timestamp::from_millis(owes_since)) >= self.due;
        !is_late && !self.is_over()
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state.is_over.load(Ordering::Relaxed)
    }

    /// Since when it is there.
    pub(super) fn made(&self) -> Timestamp {
        self.state.made
    }
}

/// Says at its end that there is no connection any longer.
struct Over(Arc<State>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// One more, as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn converse(dial: &Dial, questions: mpsc::Receiver<Question>, lifetime: Lifetime, state: &State) {
    let connected = tokio::time::timeout(lifetime.silent, dial.connect()).await;
    match connected.unwrap_or(Err(Failure::Timeout)) {
        Ok(Wire::Plain(stream)) => Talk::new(stream, questions, lifetime, state).run().await,
        Ok(Wire::Tls(stream)) => Talk::new(*stream, questions, lifetime, state).run().await,
        Err(failure) => refuse(questions, failure),
    }
}

fn refuse(mut questions: mpsc::Receiver<Question>, failure: Failure) {
    questions.close();
    while let Ok(question) = questions.try_recv() {
        drop(question.asker.send(Err(Lost::Unconnected(failure))));
    }
}

/// A connection that is there.
struct Talk<'a, S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    questions: mpsc::Receiver<Question>,
    /// Whether questions may still come.
    is_open: bool,
    askers: HashMap<u16, oneshot::Sender<Result<Told, Lost>>>,
    outbound: Vec<u8>,
    needs_flush: bool,
    inbound: Vec<u8>,
    lifetime: Lifetime,
    state: &'a State,
}

/// What happened.
enum Event {
    Question(Option<Question>),
    Written(io::Result<usize>),
    Flushed(io::Result<()>),
    Read(io::Result<usize>),
    /// Nothing, for as long as it may be.
    Quiet,
}

impl<'a, S: AsyncRead + AsyncWrite> Talk<'a, S> {
    fn new(stream: S, questions: mpsc::Receiver<Question>, lifetime: Lifetime, state: &'a State) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader,
            writer,
            questions,
            is_open: true,
            askers: HashMap::default(),
            outbound: Vec::new(),
            needs_flush: false,
            inbound: Vec::new(),
            lifetime,
            state,
        }
    }

    /// Until the end; those who still wait are told by the end of their channels.
    async fn run(mut self) {
        let quiet = tokio::time::sleep(self.lifetime.idle);
        tokio::pin!(quiet);
        while self.is_open || !self.askers.is_empty() {
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
                if self.askers.is_empty() {
                    self.owes(quiet);
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
                    true if self.askers.is_empty() => self.owes_nothing(quiet),
                    true => self.owes(quiet),
                    false => {}
                }
                Ok(())
            }
            Event::Quiet => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// An answer came, or the first question went: from now on it is counted how long nothing comes.
    fn owes(&self, quiet: Pin<&mut Sleep>) {
        quiet.reset(Instant::now() + self.lifetime.silent);
        self.state
            .owes_since
            .store(clock::now().as_millis().max(1), Ordering::Relaxed);
    }

    /// All was answered: now it is idle.
    fn owes_nothing(&self, quiet: Pin<&mut Sleep>) {
        quiet.reset(Instant::now() + self.lifetime.idle);
        self.state.owes_since.store(NOTHING, Ordering::Relaxed);
    }

    /// Writes a question, by an id that no other has that is under way.
    fn send(&mut self, question: Question) -> io::Result<()> {
        let mut octets = question.octets;
        let length = u16::try_from(octets.len()).map_err(io::Error::other)?;
        let mut id = u16::from_be_bytes([octets[0], octets[1]]);
        if self.askers.len() >= KNOWN {
            self.askers.retain(|_, asker| !asker.is_closed());
        }
        if self.askers.len() >= KNOWN {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        // There are far more ids than questions that are remembered.
        loop {
            match self.askers.entry(id) {
                Entry::Vacant(vacant) => {
                    vacant.insert(question.asker);
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

    /// Gives whole messages to those who asked; what nobody asked for, or nobody waits for any more, is passed over.
    /// Whether there was an answer.
    fn deliver(&mut self) -> bool {
        let (mut at, mut is_answered) = (0, false);
        while let Some(message) = message_at(&self.inbound, at) {
            at += 2 + message.len();
            let id = message.first_chunk::<2>().map(|id| u16::from_be_bytes(*id));
            let asker = id.and_then(|id| Some((id, self.askers.remove(&id)?)));
            if let Some((id, asker)) = asker {
                let octets = message.to_vec();
                is_answered = true;
                drop(asker.send(Ok(Told { id, octets })));
            }
        }
        self.inbound.drain(..at);
        if self.inbound.is_empty() && self.inbound.capacity() > KEPT {
            self.inbound = Vec::new();
        }
        is_answered
    }
}

/// Writes some of what there is to write; then lets go of what TLS holds back.
async fn push<S: AsyncRead + AsyncWrite>(writer: &mut WriteHalf<S>, outbound: &[u8]) -> Event {
    if outbound.is_empty() {
        Event::Flushed(writer.flush().await)
    } else {
        Event::Written(writer.write(outbound).await)
    }
}

/// The whole message that begins here.
fn message_at(octets: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = octets[at..].split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}
