//! What was denied, told: one line of JSON for a packet, and one for a second in which there were too many.
//!
//! ```text
//!  kernel ─ NFLOG ─▶ reader ─ who met? ─▶ engine
//!                      │   ◀── pods, names ──┘
//!                      └─▶ lines ─▶ file, stdout
//! ```
//!
//! The reader has a thread of its own. It asks the engine in bulk and at most some times a second, and does without the
//! answer where the engine is busy; it never holds anybody up. What it cannot tell it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use egret_kernel::nflog::{Listener, Told};
use egret_shared::rt::clock;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;
use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use crate::backend::netfilter::denials::{Denial, DenialRegistry};
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::engine::{Input, Known, Meeting, Meetings};
use crate::metrics;

pub mod packet;
pub mod denied;
pub mod window;
pub mod line;
pub mod sink;

use denied::Denied;
use sink::Sink;
use window::{Summary, Window};

/// How long the engine may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the kernel may collect before it is read again, so that one question is asked for many packets.
const COLLECTED_FOR: Duration = Duration::from_millis(20);
/// How often a group is asked for that another program has.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// As many lines are written a second of all reasons together, for each that the kernel tells of one.
const REASONS: u32 = 10;
/// The most reasons whose counters are read at the end of a second.
const MOST_COUNTED: usize = 4;

/// What is told, from where to where.
#[derive(Debug)]
pub struct Setup {
    /// The name of this node.
    pub node: String,
    /// How the kernel tells.
    pub telling: NflogSettings,
    /// Why packets are denied.
    pub denials: DenialRegistry,
    /// Who knows pods and names.
    pub engine: mpsc::Sender<Input>,
    /// Where the lines go.
    pub sink: Sink,
}

/// Tells, in a thread of its own and for as long as there is an engine.
///
/// # Errors
/// When there can be no thread.
pub fn start(setup: Setup) -> std::io::Result<()> {
    let mut reader = Reader {
        setup,
        window: None,
        busy_before: BTreeSet::new(),
        suppressed: BTreeMap::new(),
        interfaces: BTreeMap::new(),
    };
    let thread = std::thread::Builder::new().name("events".to_owned());
    thread.spawn(move || reader.run()).map(drop)
}

#[derive(Debug)]
struct Reader {
    setup: Setup,
    /// The present second, if something was denied in it.
    window: Option<Window>,
    busy_before: BTreeSet<Denial>,
    /// What the kernel had not told of a reason when its counters were read last.
    suppressed: BTreeMap<Denial, u64>,
    /// Names of interfaces that were asked for in this second: a number may be another's in the next.
    interfaces: BTreeMap<u32, Option<String>>,
}

impl Reader {
    fn run(&mut self) {
        let mut was_refused = false;
        while !self.setup.engine.is_closed() {
            match Listener::bind(self.setup.telling.group) {
                Ok(listener) => {
                    was_refused = false;
                    metrics::events_listen(true);
                    tracing::info!(group = self.setup.telling.group, "denied packets are told");
                    self.listen(listener);
                    metrics::events_listen(false);
                }
                Err(error) => {
                    if !was_refused {
                        tracing::error!(%error, "denied packets are not told; they are denied all the same");
                    }
                    was_refused = true;
                }
            }
            std::thread::sleep(ASKED_AGAIN_AFTER);
        }
    }

    /// Until the socket breaks, or the engine is gone.
    fn listen(&mut self, mut listener: Listener) {
        while !self.setup.engine.is_closed() {
            if let Err(errno) = self.wait(&listener) {
                tracing::warn!(%errno, "denied packets are not told for a second");
                return;
            }
            match listener.read() {
                Ok(told) => self.take(&told, clock::now()),
                Err(error) => {
                    tracing::warn!(%error, "denied packets are not told for a second");
                    return;
                }
            }
        }
    }

    /// Until packets come, or the window is to be closed.
    fn wait(&self, listener: &Listener) -> Result<(), Errno> {
        let until = self
            .window
            .as_ref()
            .map(|window| window.end().since(clock::now()));
        let patience = until.unwrap_or(ASKED_AGAIN_AFTER).as_millis();
        let mut waits = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(
            &mut waits,
            PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(0) | Err(Errno::EINTR) => Ok(()),
            Ok(_) => {
                std::thread::sleep(COLLECTED_FOR);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    fn take(&mut self, told: &Told, now: Timestamp) {
        let is_over = |window: &mut Window| window.end() <= now;
        if let Some(window) = self.window.take_if(is_over) {
            self.close(window, now);
        }
        if told.packets.is_empty() && told.lost == 0 {
            return;
        }
        let denied = self.read(told);
        let window = self.window.get_or_insert_with(|| Window::open(now));
        window.lose(told.lost);
        let most = if is_off(Switch::LimitTelling) {
            u32::MAX
        } else {
            self.setup.telling.per_second.saturating_mul(REASONS)
        };
        let (lines, withheld): (Vec<_>, Vec<_>) =
            denied.into_iter().partition(|denied| window.take(denied, most));
        metrics::events("lost", told.lost);
        metrics::events("withheld", count(withheld.len()));
        self.tell(&lines);
    }

    /// What is ours of it.
    fn read(&mut self, told: &Told) -> Vec<Denied> {
        let (interfaces, denials) = (&mut self.interfaces, &self.setup.denials);
        let mut name_of = |index: u32| interfaces.entry(index).or_insert_with(|| name_of(index)).clone();
        let denied: Vec<Denied> = told
            .packets
            .iter()
            .filter_map(|logged| Denied::read(logged, denials, &mut name_of))
            .collect();
        metrics::events("foreign", count(told.packets.len() - denied.len()));
        denied
    }

    fn tell(&mut self, denied: &[Denied]) {
        if denied.is_empty() {
            return;
        }
        let known = self.ask(denied.iter().map(|denied| denied.meeting.clone()).collect());
        let at = clock::since_epoch();
        let lines: Vec<String> = denied
            .iter()
            .enumerate()
            .map(|(place, denied)| line::denied(denied, known.get(place), &self.setup.node, at))
            .collect();
        let unwritten = self.write(&lines);
        metrics::events("told", count(lines.len()) - unwritten);
        metrics::events("unwritten", unwritten);
    }

    /// The end of a second: one line where not all was told.
    fn close(&mut self, window: Window, now: Timestamp) {
        self.interfaces.clear();
        let summary = window.close(now, self.setup.telling.per_second);
        let suppressed = self.suppressed_of(&summary);
        let is_whole =
            summary.withheld.is_empty() && summary.others == 0 && summary.lost == 0 && suppressed.is_empty();
        if is_whole {
            return;
        }
        metrics::events("suppressed", suppressed.iter().map(|(_, packets)| packets).sum());
        let asked: Vec<Meeting> = summary.withheld.iter().map(|(who, _)| who.meeting()).collect();
        let pods = self.ask(asked);
        let line = line::summary(
            &summary,
            &pods,
            &suppressed,
            &self.setup.node,
            clock::since_epoch(),
        );
        self.write(&[line]);
    }

    /// Packets of which the kernel did not tell, there being too many: by its counters, which are read only where as many
    /// came as it tells, and once more in the second behind that.
    fn suppressed_of(&mut self, summary: &Summary) -> Vec<(Denial, u64)> {
        let before = std::mem::replace(&mut self.busy_before, summary.busy.clone());
        let counted: Vec<Denial> = summary.busy.union(&before).take(MOST_COUNTED).cloned().collect();
        // Of what is not wanted any more nothing is kept.
        self.suppressed.retain(|denial, _| self.setup.denials.has(denial));
        let mut news = Vec::new();
        for denial in counted {
            let Some(suppressed) = self.count(&denial) else {
                continue;
            };
            let known = self.suppressed.insert(denial.clone(), suppressed).unwrap_or(0);
            // A chain that was made anew begins at zero.
            let new = suppressed.checked_sub(known).unwrap_or(suppressed);
            if new > 0 {
                news.push((denial, new));
            }
        }
        news
    }

    /// How many packets of a reason were denied and not told since its chains were made.
    fn count(&self, denial: &Denial) -> Option<u64> {
        let chain = denial.chain();
        let mut suppressed = 0;
        for table in self.setup.denials.tables() {
            match table.count_chain(&chain) {
                Ok(Some(counts)) => {
                    if let [told, denied] = counts.as_slice() {
                        suppressed += denied.saturating_sub(*told);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "it is not known how many packets were not told");
                    return None;
                }
            }
        }
        Some(suppressed)
    }

    /// Nothing where the engine is busy.
    fn ask(&self, asked: Vec<Meeting>) -> Vec<Known> {
        if asked.is_empty() {
            return Vec::new();
        }
        let (answer, answered) = sync_channel(1);
        match self
            .setup
            .engine
            .try_send(Input::Meet(Meetings { asked, answer }))
        {
            Ok(()) => answered.recv_timeout(PATIENCE).unwrap_or_default(),
            Err(_full) => Vec::new(),
        }
    }

    /// How many could not be written.
    fn write(&mut self, lines: &[String]) -> u64 {
        self.setup.sink.write(lines)
    }
}

fn name_of(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
