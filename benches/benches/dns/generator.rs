//! The generator: a closed loop of questions over UDP. So many are under way at any time; each answer makes the next.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// After so long without any answer, what is under way is lost.
const PATIENCE_MS: u16 = 1_000;

/// What one run saw.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Responses with NOERROR and at least one record.
    pub(crate) answered: usize,
    /// Everything else that came back: of an echo, all.
    pub(crate) others: usize,
    pub(crate) lost: usize,
    pub(crate) took: Duration,
    /// From question to response, sorted.
    latencies: Vec<Duration>,
}

impl Run {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn received(&self) -> usize {
        self.answered + self.others
    }
}

/// Asks each question once, `outstanding` at a time, over these connected sockets in turn.
pub(crate) fn ask(sockets: &[UdpSocket], outstanding: usize, questions: &[Vec<u8>]) -> io::Result<Run> {
    let mut asking = Asking {
        started: vec![None; 1 << 16],
        run: Run::default(),
    };
    let (begin, mut sent) = (Instant::now(), 0);
    while asking.done() < questions.len() {
        while sent < questions.len() && sent - asking.done() < outstanding {
            asking.send(&sockets[sent % sockets.len()], sent, &questions[sent])?;
            sent += 1;
        }
        let readable = wait(sockets)?;
        if readable.is_empty() {
            asking.give_up();
        }
        readable
            .into_iter()
            .try_for_each(|socket| asking.receive_all(socket))?;
    }
    asking.run.took = begin.elapsed();
    asking.run.latencies.sort_unstable();
    Ok(asking.run)
}

/// The sockets on which something has come; none when the time was over.
fn wait(sockets: &[UdpSocket]) -> io::Result<Vec<&UdpSocket>> {
    let watch = |socket| PollFd::new(socket, PollFlags::POLLIN);
    let mut watched: Vec<_> = sockets.iter().map(|socket| watch(socket.as_fd())).collect();
    poll(&mut watched, PollTimeout::from(PATIENCE_MS))?;
    let pairs = sockets.iter().zip(&watched);
    Ok(pairs
        .filter(|(_, watched)| watched.any().unwrap_or(false))
        .map(|(socket, _)| socket)
        .collect())
}

struct Asking {
    /// By id: when the question was sent whose answer is missing.
    started: Vec<Option<Instant>>,
    run: Run,
}

impl Asking {
    fn done(&self) -> usize {
        self.run.received() + self.run.lost
    }

    /// The id is the number of the question: far more than are under way.
    fn send(&mut self, socket: &UdpSocket, number: usize, question: &[u8]) -> io::Result<()> {
        let [.., high, low] = number.to_be_bytes();
        let mut octets = [0; 128];
        octets[..question.len()].copy_from_slice(question);
        octets[..2].copy_from_slice(&[high, low]);
        self.started[usize::from(u16::from_be_bytes([high, low]))] = Some(Instant::now());
        socket.send(&octets[..question.len()]).map(drop)
    }

    fn receive_all(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let mut octets = [0; 1500];
        loop {
            match socket.recv(&mut octets) {
                Ok(length) => self.take(&octets[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self, octets: &[u8]) {
        let Some(&[high, low, flags, code, _, _, _, records, ..]) =
            octets.first_chunk::<12>().map(|head| &head[..])
        else {
            return;
        };
        let id = usize::from(u16::from_be_bytes([high, low]));
        // One that was given up, or came twice, has no beginning.
        let Some(started) = self.started[id].take() else {
            return;
        };
        self.run.latencies.push(started.elapsed());
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

/// The questions for the addresses of `<first>.<zone>`, `<first + 1>.<zone>`, ….
pub(crate) fn questions(zone: &str, numbers: impl Iterator<Item = u32>) -> Vec<Vec<u8>> {
    numbers
        .map(|number| question(&format!("n{number}.{zone}")))
        .collect()
}

fn question(name: &str) -> Vec<u8> {
    // RFC 1035 section 4.1.1: an id, RD, one question.
    let mut octets = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        octets.push(u8::try_from(label.len()).expect("labels of a bench are short"));
        octets.extend_from_slice(label.as_bytes());
    }
    octets.extend_from_slice(&[0, 0, 1, 0, 1]);
    octets
}
