//! The generator: questions over UDP from many sockets, so many under way at any time, or so many a second.
//!
//! It runs on another CPU than the servers. What it does itself costs them nothing, but it has to be faster than they are.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg};

use crate::meter;

/// After so long without any answer, what is under way is lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Datagrams of one call.
const AT_ONCE: usize = 32;
const LARGEST: usize = 4_096;

/// How questions follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// So many are under way; an answer makes the next.
    Window(usize),
    /// So many a second, whether they are answered or not; the times between them are as chance would have it (Poisson).
    PerSecond(f64),
}

/// What one run saw.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Responses with NOERROR and at least one record.
    pub(crate) answered: usize,
    /// Everything else that came back: of an echo, all.
    pub(crate) others: usize,
    pub(crate) lost: usize,
    pub(crate) took: Duration,
    /// From question to response, and the socket; sorted; at a pace, from when it should have been sent.
    latencies: Vec<(Duration, usize)>,
}

impl Run {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        percentile(self.latencies.iter(), percent)
    }

    /// Of what the first so many sockets asked.
    pub(crate) fn percentile_of(&self, sockets: usize, percent: usize) -> Duration {
        let own = self.latencies.iter().filter(|(_, socket)| *socket < sockets);
        percentile(own, percent)
    }

    pub(crate) fn received(&self) -> usize {
        self.answered + self.others
    }
}

fn percentile<'a>(sorted: impl Iterator<Item = &'a (Duration, usize)>, percent: usize) -> Duration {
    let sorted: Vec<Duration> = sorted.map(|(latency, _)| *latency).collect();
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or_default()
}

/// The CPU that is not the servers', and pauses that are as short as they are meant.
pub(crate) fn prepare_this_thread() -> anyhow::Result<()> {
    set_timerslack(1)?;
    meter::pin_this_thread(meter::GENERATOR)
}

/// Asks each question once over these connected sockets: the n-th is asked by the n-th socket, and so on in turn.
pub(crate) fn ask(sockets: &[UdpSocket], pace: Pace, questions: &[Vec<u8>]) -> io::Result<Run> {
    let begin = Instant::now();
    let mut asking = Asking {
        sockets,
        questions,
        started: vec![None; 1 << 16],
        waiting: vec![Vec::new(); sockets.len()],
        sent: 0,
        buffers: vec![[0; LARGEST]; AT_ONCE],
        headers: MultiHeaders::preallocate(AT_ONCE, None),
        outgoing: MultiHeaders::preallocate(AT_ONCE, None),
        run: Run::default(),
    };
    let mut schedule = Schedule::new(pace, begin);
    let mut last = begin;
    while asking.done() < questions.len() {
        let until = asking.send_due(&mut schedule)?;
        let wait = until.map_or(PATIENCE, |until| until.saturating_duration_since(Instant::now()));
        let before = asking.run.received();
        for place in readable(sockets, wait.min(PATIENCE))? {
            asking.receive_all(place)?;
        }
        if asking.run.received() > before {
            last = Instant::now();
            asking.run.took = begin.elapsed();
        } else if last.elapsed() > PATIENCE && (asking.sent == questions.len() || until.is_none()) {
            asking.give_up();
            last = Instant::now();
        }
    }
    asking.run.latencies.sort_unstable();
    Ok(asking.run)
}

/// When which question is due.
struct Schedule {
    pace: Pace,
    next: Instant,
    chance: u64,
}

impl Schedule {
    fn new(pace: Pace, begin: Instant) -> Self {
        Self {
            pace,
            next: begin,
            chance: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// An exponentially distributed pause: what has no memory.
    fn pause(&mut self, rate: f64) -> Duration {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let [.., a, b, c, d] = self.chance.to_be_bytes();
        let even = (f64::from(u32::from_be_bytes([a, b, c, d])) + 1.0) / (f64::from(u32::MAX) + 1.0);
        Duration::from_secs_f64(-even.ln() / rate)
    }
}

struct Asking<'a> {
    sockets: &'a [UdpSocket],
    questions: &'a [Vec<u8>],
    /// By id: when the question was sent, or due, whose answer is missing, and by which socket.
    started: Vec<Option<(Instant, usize)>>,
    /// By socket: the questions that are to be sent together.
    waiting: Vec<Vec<usize>>,
    sent: usize,
    buffers: Vec<[u8; LARGEST]>,
    headers: MultiHeaders<SockaddrIn>,
    outgoing: MultiHeaders<SockaddrIn>,
    run: Run,
}

impl Asking<'_> {
    fn done(&self) -> usize {
        self.run.received() + self.run.lost
    }

    /// Sends what is due; tells when something will be, if that does not depend on answers.
    fn send_due(&mut self, schedule: &mut Schedule) -> io::Result<Option<Instant>> {
        let now = Instant::now();
        let mut until = None;
        while self.sent < self.questions.len() {
            match schedule.pace {
                Pace::Window(most) if self.sent - self.done() >= most => break,
                Pace::Window(_) => self.put(now),
                Pace::PerSecond(_) if schedule.next > now => {
                    until = Some(schedule.next);
                    break;
                }
                Pace::PerSecond(rate) => {
                    self.put(schedule.next);
                    let pause = schedule.pause(rate);
                    schedule.next += pause;
                }
            }
        }
        (0..self.sockets.len()).try_for_each(|place| self.flush(place))?;
        Ok(until)
    }

    /// One whose id comes again is lost: far more have been asked since than can be under way.
    fn put(&mut self, due: Instant) {
        let place = self.sent % self.sockets.len();
        let forgotten = self.started[usize::from(id_of(self.sent))].replace((due, place));
        self.run.lost += usize::from(forgotten.is_some());
        self.waiting[place].push(self.sent);
        self.sent += 1;
    }

    /// What is not sent is lost, and will be counted so.
    fn flush(&mut self, place: usize) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting[place]);
        for numbers in waiting.chunks(AT_ONCE) {
            let ids: Vec<[u8; 2]> = numbers
                .iter()
                .map(|number| id_of(*number).to_be_bytes())
                .collect();
            let pairs = ids.iter().zip(numbers);
            let slices: Vec<[IoSlice<'_>; 2]> = pairs
                .map(|(id, number)| [IoSlice::new(id), IoSlice::new(&self.questions[*number][2..])])
                .collect();
            let nowhere = [None::<SockaddrIn>; AT_ONCE];
            let socket = self.sockets[place].as_raw_fd();
            let _unsent = sendmmsg(
                socket,
                &mut self.outgoing,
                &slices,
                nowhere,
                [],
                MsgFlags::empty(),
            )?;
        }
        Ok(())
    }

    fn receive_all(&mut self, place: usize) -> io::Result<()> {
        loop {
            let mut buffers = std::mem::take(&mut self.buffers);
            let received = self.receive(place, &mut buffers);
            self.buffers = buffers;
            match received {
                Ok(AT_ONCE) => {}
                Ok(_all) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self, place: usize, buffers: &mut [[u8; LARGEST]]) -> io::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> = buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(buffer)])
            .collect();
        let socket = self.sockets[place].as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmmsg(socket, &mut self.headers, slices.iter_mut(), flags, None)?;
        let lengths: Vec<usize> = received.map(|message| message.bytes).collect();
        for (length, buffer) in lengths.iter().zip(buffers.iter()) {
            self.take(&buffer[..*length]);
        }
        Ok(lengths.len())
    }

    fn take(&mut self, octets: &[u8]) {
        let Some(&[high, low, flags, code, _, _, _, records, ..]) =
            octets.first_chunk::<12>().map(|head| &head[..])
        else {
            return;
        };
        let id = usize::from(u16::from_be_bytes([high, low]));
        // One that was given up, or came twice, has no beginning.
        let Some((started, place)) = self.started[id].take() else {
            return;
        };
        self.run.latencies.push((started.elapsed(), place));
        if flags & 0x80 > 0 && code & 0x0f == 0 && records > 0 {
            self.run.answered += 1;
        } else {
            self.run.others += 1;
        }
    }

    fn give_up(&mut self) {
        self.run.lost += self.started.iter_mut().filter_map(Option::take).count();
    }
}

/// The id of a question is its number.
const fn id_of(number: usize) -> u16 {
    let [.., high, low] = number.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// The sockets on which something has come; none when the time was over.
fn readable(sockets: &[UdpSocket], wait: Duration) -> io::Result<Vec<usize>> {
    let watch = |socket| PollFd::new(socket, PollFlags::POLLIN);
    let mut watched: Vec<_> = sockets.iter().map(|socket| watch(socket.as_fd())).collect();
    match ppoll(&mut watched, Some(wait.into()), None) {
        Err(Errno::EINTR) | Ok(0) => return Ok(Vec::new()),
        other => drop(other?),
    }
    let places = watched.iter().enumerate();
    Ok(places
        .filter(|(_, watched)| watched.any().unwrap_or(false))
        .map(|(place, _)| place)
        .collect())
}
