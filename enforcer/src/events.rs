//! Logs denied packets: one line of JSON for a packet, and a summary for a second with too many.
//!
//! ```text
//!  kernel ─ NFLOG, ring buffer ─▶ reader ─ endpoint lookup ─▶ engine
//!                                   │   ◀── pods, names ─────┘
//!                                   └─▶ lines ─▶ file, stdout
//! ```
//!
//! The reader has a thread of its own. It looks up many packets at once, a few times a second, and goes on without a
//! reply if the engine is busy. So it delays nothing. What it cannot log it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use crate::backend::netfilter::denials::Denial;
use crate::engine::{EndpointLookup, Endpoints, Input, PacketEnds};

mod metrics;
pub mod packet;
pub mod denied;
mod channel;
pub mod nflog;
mod ring;
pub mod merged;
pub mod window;
pub mod line;
pub mod sink;

pub use channel::{Channel, ReadPackets, Source};
use denied::DeniedPacket;
pub use metrics::register_metrics;
use sink::Sink;
use window::{Summary, Window};

/// How long the engine may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// How long packets are collected, so that one lookup serves many.
const COLLECT_FOR: Duration = Duration::from_millis(20);
/// How often it is tried again to bind the NFLOG group.
const REBIND_AFTER: Duration = Duration::from_secs(1);
/// Lines a second for all reasons together, as a multiple of the packets a second of one reason.
const REASONS: u32 = 10;
/// The most reasons whose counters are read at the end of a second.
const MAX_COUNTED: usize = 4;

/// What the log needs.
#[derive(Debug)]
pub struct Setup {
    /// The name of this node.
    pub node: String,
    /// How many packets of one reason the kernel tells in a second.
    pub per_second: u32,
    /// The kernel.
    pub source: Box<dyn Source>,
    /// Resolves pods and names.
    pub engine: mpsc::Sender<Input>,
    /// Receives the lines.
    pub sink: Sink,
}

/// Starts the thread, which ends with the engine.
///
/// # Errors
///
/// When no thread can be started.
pub fn start(setup: Setup) -> std::io::Result<()> {
    let mut reader = Reader {
        setup,
        window: None,
        busy_before: BTreeSet::new(),
        suppressed: BTreeMap::new(),
    };
    let thread = std::thread::Builder::new().name("events".to_owned());
    thread.spawn(move || reader.run()).map(drop)
}

#[derive(Debug)]
struct Reader {
    setup: Setup,
    /// The current second, if something was denied in it.
    window: Option<Window>,
    busy_before: BTreeSet<Denial>,
    /// Packets of each reason that the kernel did not log, as its counters were read last.
    suppressed: BTreeMap<Denial, u64>,
}

impl Reader {
    fn run(&mut self) {
        let mut was_refused = false;
        while !self.setup.engine.is_closed() {
            match self.setup.source.listen() {
                Ok(mut channel) => {
                    was_refused = false;
                    metrics::set_listening(true);
                    self.listen(channel.as_mut());
                    metrics::set_listening(false);
                }
                Err(error) => {
                    if !was_refused {
                        tracing::error!(error, "denied packets are not told; they are denied all the same");
                    }
                    was_refused = true;
                }
            }
            std::thread::sleep(REBIND_AFTER);
        }
    }

    /// Reads until the channel fails or the engine ends.
    fn listen(&mut self, channel: &mut dyn Channel) {
        while !self.setup.engine.is_closed() {
            if let Err(errno) = self.wait(channel) {
                tracing::warn!(%errno, "denied packets are not told for a second");
                return;
            }
            match channel.read() {
                Ok(read) => self.handle(read, channel, clock::now()),
                Err(error) => {
                    tracing::warn!(error, "denied packets are not told for a second");
                    return;
                }
            }
        }
    }

    /// Waits for packets or the end of the window.
    fn wait(&self, channel: &dyn Channel) -> Result<(), Errno> {
        let until = self
            .window
            .as_ref()
            .map(|window| window.end().since(clock::now()));
        let patience = until.unwrap_or(REBIND_AFTER).as_millis();
        let fds = channel.as_fds().into_iter();
        let mut waits: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(
            &mut waits,
            PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(0) | Err(Errno::EINTR) => Ok(()),
            Ok(_) => {
                std::thread::sleep(COLLECT_FOR);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    fn handle(&mut self, read: ReadPackets, channel: &mut dyn Channel, now: Timestamp) {
        let is_over = |window: &mut Window| window.end() <= now;
        if let Some(window) = self.window.take_if(is_over) {
            self.close(window, channel, now);
        }
        metrics::count("foreign", read.foreign);
        if read.denied.is_empty() && read.lost == 0 {
            return;
        }
        let window = self.window.get_or_insert_with(|| Window::open(now));
        window.lose(read.lost);
        let most = self.setup.per_second.saturating_mul(REASONS);
        let (lines, withheld): (Vec<_>, Vec<_>) = read
            .denied
            .into_iter()
            .partition(|denied| window.take(denied, most));
        metrics::count("lost", read.lost);
        metrics::count("withheld", count(withheld.len()));
        self.log(&lines);
    }

    fn log(&mut self, denied: &[DeniedPacket]) {
        if denied.is_empty() {
            return;
        }
        let known = self.look_up(denied.iter().map(|denied| denied.ends.clone()).collect());
        let at = clock::since_epoch();
        let lines: Vec<String> = denied
            .iter()
            .enumerate()
            .map(|(place, denied)| line::denied(denied, known.get(place), &self.setup.node, at))
            .collect();
        let unwritten = self.write(&lines);
        metrics::count("told", count(lines.len()) - unwritten);
        metrics::count("unwritten", unwritten);
    }

    /// Ends a second: writes a summary unless all packets were logged.
    fn close(&mut self, window: Window, channel: &mut dyn Channel, now: Timestamp) {
        channel.end_window();
        let summary = window.close(now, self.setup.per_second);
        let suppressed = self.suppressed_of(&summary, channel);
        let is_whole =
            summary.withheld.is_empty() && summary.others == 0 && summary.lost == 0 && suppressed.is_empty();
        if is_whole {
            return;
        }
        metrics::count("suppressed", suppressed.iter().map(|(_, packets)| packets).sum());
        let asked: Vec<PacketEnds> = summary.withheld.iter().map(|(who, _)| who.ends()).collect();
        let pods = self.look_up(asked);
        let line = line::summary(
            &summary,
            &pods,
            &suppressed,
            &self.setup.node,
            clock::since_epoch(),
        );
        self.write(&[line]);
    }

    /// Packets that the kernel did not log because there were too many, by its counters. They are read for reasons that
    /// reached the limit in this second or the last one.
    fn suppressed_of(&mut self, summary: &Summary, channel: &dyn Channel) -> Vec<(Denial, u64)> {
        let before = std::mem::replace(&mut self.busy_before, summary.busy.clone());
        let counted: Vec<Denial> = summary.busy.union(&before).take(MAX_COUNTED).cloned().collect();
        // Rules of other reasons are gone.
        self.suppressed.retain(|denial, _| channel.has(denial));
        let mut news = Vec::new();
        for denial in counted {
            let Some(suppressed) = channel.suppressed(&denial) else {
                continue;
            };
            let known = self.suppressed.insert(denial.clone(), suppressed).unwrap_or(0);
            // The counter of a new chain begins at 0.
            let new = suppressed.checked_sub(known).unwrap_or(suppressed);
            if new > 0 {
                news.push((denial, new));
            }
        }
        news
    }

    /// Nothing if the engine is busy.
    fn look_up(&self, packets: Vec<PacketEnds>) -> Vec<Endpoints> {
        if packets.is_empty() {
            return Vec::new();
        }
        let (reply, replied) = sync_channel(1);
        match self
            .setup
            .engine
            .try_send(Input::LookUpEndpoints(EndpointLookup { packets, reply }))
        {
            Ok(()) => replied.recv_timeout(REPLY_TIMEOUT).unwrap_or_default(),
            Err(_full) => Vec::new(),
        }
    }

    /// Returns how many lines were lost.
    fn write(&mut self, lines: &[String]) -> u64 {
        self.setup.sink.write(lines)
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
