//! A socket that questions share, told apart by their ids: what is asked at once goes in one call, and what comes is read

//! in one.
//!
//! An answer is taken for the question that has its id, and only if it repeats that question in the case in which it was
//! asked. Everything else that arrives is passed over and counted; the true answer may still come.
//!
//! A lane takes a few dozen questions and is closed when the last of them ends. It takes no more before that if one had
//! no answer, or if it owes answers for so long that it may lead nowhere: what a Service's address stood for when the
//! lane was made may be gone.

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
use super::udp::{Datagram, Keeping};
use crate::dns::answer::TtlLimits;
use crate::net::batch::{self, BATCH, ReceiveBatch};
use crate::net::registered::register;
use crate::upstream::Metrics;
use crate::upstream::pending_query::{Exchange, Mismatch};
use inflight::{Place, Questions};

/// Questions of one lane: with so many, what it costs to make is small beside what they cost.
const USES: usize = 64;
/// An answer is due so soon, usually: a lane that owes one for longer, and was told nothing, is given no more questions.
const DUE: Duration = Duration::from_millis(50);

/// A lane, as those who ask know it.
#[derive(Debug)]
pub(super) struct Lane {
    socket: AsyncFd<UdpSocket>,
    made: Timestamp,
    /// How long answers may still come once the kernel was told that nobody answers.
    grace: Duration,
    /// Held for a few operations, and while questions are sent.
    state: Mutex<State>,
    /// There is something to send, or nothing more to wait for.
    news: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    questions: Questions,
    /// When it was last used.
    used: Timestamp,
    /// Since when answers are owed and none came.
    silent_since: Timestamp,
    /// Whether it takes no more questions.
    is_closing: bool,
}

/// Whether a lane takes another question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It does.
    Free {
        /// Whether nobody waits on it.
        is_idle: bool,
    },
    /// It does, and others were asked just now with which it would go.
    Boarding,
    /// Not while it owes answers and says nothing.
    NotNow,
    /// It closes.
    Never,
}

/// A question of one's own: it is off the lane when this is dropped.
#[derive(Debug)]
pub(super) struct Asked {
    lane: Arc<Lane>,
    place: Place,
}

impl Lane {
    /// Of a socket that takes messages of one server and port.
    pub(super) fn open(
        socket: UdpSocket,
        grace: Duration,
        now: Timestamp,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Arc<Self>> {
        let lane = Arc::new(Self {
            // Of room to send it would be told after each datagram that left, and there nearly always is some.
            socket: register(socket, Interest::READABLE | Interest::ERROR)?,
            made: now,
            grace,
            state: Mutex::new(State {
                questions: Questions::in_place_of(SPARE.take()),
                used: now,
                silent_since: now,
                is_closing: false,
            }),
            news: Notify::new(),
            metrics: Arc::clone(metrics),
        });
        drop(task::spawn_brief(Arc::clone(&lane).run()));
        Ok(lane)
    }

    /// Whether it takes another question. If it was kept for long enough, it closes.
    pub(super) fn room(&self, keeping: &Keeping, now: Timestamp) -> Room {
        let mut state = self.state();
        let is_idle = state.questions.are_over();
        let is_old = !keeping.max_age.is_zero() && now.since(self.made) >= keeping.max_age;
        if is_old || is_idle && now.since(state.used) >= keeping.expire {
            state.is_closing = true;
            self.news.notify_one();
        }
        if state.is_closing {
            Room::Never
        } else if !is_idle && now.since(state.silent_since) >= DUE {
            Room::NotNow
        } else if state.questions.left_to_send() == 0 {
            Room::Free { is_idle }
        } else {
            Room::Boarding
        }
    }

    /// Takes no more questions; those under way go on.
    pub(super) fn close(&self) {
        self.state().is_closing = true;
        self.news.notify_one();
    }

    /// Asks now; where other threads have filled it since it was drawn, the question comes back.
    pub(super) fn ask(
        self: Arc<Self>,
        exchange: Exchange,
        ttl: &TtlLimits,
        now: Timestamp,
    ) -> Result<Asked, Exchange> {
        let place = self.board(exchange, *ttl, now)?;
        Ok(Asked { lane: self, place })
    }

    /// Notes a question; it is sent with all that are asked meanwhile.
    fn board(&self, exchange: Exchange, ttl: TtlLimits, now: Timestamp) -> Result<Place, Exchange> {
        let mut state = self.state();
        // Who sends may have gone with the last question.
        if state.is_closing {
            return Err(exchange);
        }
        if state.questions.are_over() {
            state.silent_since = now;
        }
        state.used = now;
        let place = state.questions.add(exchange, ttl);
        state.is_closing |= state.questions.asked() >= USES;
        if state.questions.left_to_send() == 1 {
            self.news.notify_one();
        }
        Ok(place)
    }

    /// Sends and reads, until the last question has ended and no more are taken.
    async fn run(self: Arc<Self>) {
        // Until when answers may still come, and what is said of those that do not.
        let mut doubt: Option<(Instant, Failure)> = None;
        while !self.is_over() {
            let end_of_doubt = async {
                match doubt {
                    Some((end, failure)) => {
                        sleep_until(end).await;
                        failure
                    }
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                biased;
                failure = end_of_doubt => {
                    doubt = None;
                    self.fail(failure);
                    Ok(())
                }
                () = self.news.notified() => Ok(()),
                ready = self.socket.ready(Interest::READABLE | Interest::ERROR) => match ready {
                    Ok(mut ready) if ready.ready().is_error() => {
                        ready.clear_ready_matching(Ready::ERROR);
                        Err(self.error())
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
                Ok(false) => self.wait_for_room().await,
                Err(error) if io_error::is_hint(&error) => {
                    // Others are asked elsewhere, and what was not sent is sent now.
                    self.state().is_closing = true;
                    self.news.notify_one();
                    doubt.get_or_insert_with(|| (Instant::now() + self.grace, io_error::of(&error)));
                }
                Err(error) => self.fail(io_error::of(&error)),
            }
        }
    }

    fn is_over(&self) -> bool {
        let state = self.state();
        state.is_closing && state.questions.are_over()
    }

    /// Sends what there is to send; whether all of it went.
    fn send(&self) -> io::Result<bool> {
        let questions = &mut self.state().questions;
        // Who asked may have gone.
        questions.note_sent(0);
        while questions.left_to_send() > 0 {
            match batch::send(self.socket.get_ref().as_fd(), questions.unsent()) {
                Ok(sent) => questions.note_sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits until the socket takes more.
    async fn wait_for_room(&self) {
        let room = self
            .socket
            .get_ref()
            .try_clone()
            .and_then(|socket| register(socket, Interest::WRITABLE));
        let waited = match room {
            Ok(room) => room.writable().await.map(drop),
            Err(error) => Err(error),
        };
        match waited {
            Ok(()) => self.news.notify_one(),
            Err(error) => self.fail(io_error::of(&error)),
        }
    }

    /// Reads what is there. Fewer messages than there is room for are all that there were: the runtime is told so, and
    /// need not ask the kernel again.
    fn read(&self) -> io::Result<()> {
        let read = self.socket.try_io(Interest::READABLE, |socket| {
            let received = RECEIVE_BATCH.with_borrow_mut(|receive_batch| {
                let received = receive_batch.receive(socket.as_fd())?;
                self.hear((0..received).map(|place| receive_batch.octets(place)));
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

    /// What the kernel heard of the upstream: that nobody listens there, mostly.
    fn error(&self) -> io::Error {
        let told = self.socket.get_ref().take_error();
        told.unwrap_or_else(Some)
            .unwrap_or_else(|| io::Error::from_raw_os_error(libc::ECONNREFUSED))
    }

    fn hear<'a>(&self, messages: impl Iterator<Item = &'a [u8]>) {
        let now = clock::now();
        let mut state = self.state();
        (state.silent_since, state.used) = (now, now);
        for octets in messages {
            if let Err(mismatch) = state.take(octets, now) {
                self.metrics.mismatch(mismatch);
            }
        }
    }

    /// Nothing comes of any question that has no outcome yet.
    fn fail(&self, failure: Failure) {
        let mut state = self.state();
        state.is_closing = true;
        state.questions.give_up_sending();
        for question in state.questions.all() {
            if question.outcome.is_none() {
                question.end(Err(failure));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let questions = std::mem::take(&mut self.state().questions);
        // Where the thread ends, there is no next one.
        let _thread_ends = SPARE.try_with(|spare| spare.set(questions));
    }
}

impl State {
    /// Takes a message for who waits for it.
    fn take(&mut self, octets: &[u8], now: Timestamp) -> Result<(), Mismatch> {
        let id = octets.first_chunk().map(|id| u16::from_be_bytes(*id));
        let question = id.and_then(|id| self.questions.by_id(id));
        let question = question.filter(|question| question.outcome.is_none());
        let question = question.ok_or(Mismatch::Id)?;
        match question.exchange.take(octets, now, &question.ttl) {
            Ok(answer) => question.end(Ok(Datagram::Answer(answer))),
            Err(mismatch) => {
                match mismatch {
                    Mismatch::Case => question.end(Ok(Datagram::OtherCase)),
                    Mismatch::Bare => question.end(Ok(Datagram::Bare)),
                    Mismatch::Unreadable | Mismatch::Id | Mismatch::Question => {}
                }
                return Err(mismatch);
            }
        }
        Ok(())
    }
}

impl Asked {
    /// Waits for ever.
    pub(super) async fn outcome(self) -> Result<Datagram, Failure> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<Datagram, Failure>> {
        let mut state = self.lane.state();
        let Some(question) = state.questions.at(self.place) else {
            return Poll::Pending;
        };
        match question.outcome.take() {
            Some(outcome) => {
                state.questions.remove(self.place);
                Poll::Ready(outcome)
            }
            None => {
                question.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        // Whoever had no answer found out that the lane may lead nowhere.
        let is_unanswered = state.questions.remove(self.place);
        state.is_closing |= is_unanswered;
        if state.is_closing && state.questions.are_over() {
            self.lane.news.notify_one();
        }
    }
}

thread_local! {
/// What arrives is read here and copied at its length: questions under way need no buffers of their own.
static RECEIVE_BATCH : RefCell < ReceiveBatch > = RefCell::new(ReceiveBatch::new());
/// The memory of a lane that has ended, for the next one: to grow it is half a dozen pieces, and large ones make the
/// allocator tidy up all that was given back.
static SPARE : Cell < Questions > = Cell::default(); }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::udp::tests::{TTL, question};

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    #[tokio::test]
    async fn what_is_asked_of_a_lane_that_others_filled_since_it_was_drawn_comes_back() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.connect(server.local_addr().unwrap()).unwrap();
        let lane = Lane::open(socket, Duration::ZERO, NOW, &Arc::new(Metrics::register())).unwrap();
        let ask = || Arc::clone(&lane).ask(question(), &TTL, NOW);
        let asked: Vec<_> = (0..USES).map(|_| ask().unwrap()).collect();
        assert!(ask().is_err(), "it is full");
        drop(asked);
        assert!(ask().is_err(), "and nobody sends on it any more");
    }
}
