//! Keeping, apart from the engine: it puts what changed into a mailbox and goes on; a thread writes. What waits is
//! at most every pod once.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use egret_policies::records::Remembered;
use egret_shared::pod::PodKey;
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use super::file::StateFile;
use super::format::Problem;
use crate::metrics;

/// From the beginning of one file to that of the next: at most four a second.
const SPACING: Duration = Duration::from_millis(250);
/// Of the time, writing takes at most one part in so many.
const SHARE: u32 = 10;
/// When a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Takes what is to be kept. When it is dropped, the last file is written.
#[derive(Debug)]
pub struct Keeper {
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    waiting: Mutex<Waiting>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    pods: BTreeMap<PodKey, Remembered>,
    is_due: bool,
    is_over: bool,
}

impl Keeper {
    /// These pods were told this and nothing else; of all others, what was kept before.
    pub fn keep(&self, pods: Vec<Remembered>) {
        let mut waiting = self.mailbox.lock();
        waiting.is_due = true;
        waiting
            .pods
            .extend(pods.into_iter().map(|pod| (pod.pod.clone(), pod)));
        drop(waiting);
        self.mailbox.rung.notify_one();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.mailbox.lock().is_over = true;
        self.mailbox.rung.notify_one();
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that is done under the lock leaves it half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is to write, not before `earliest` unless it is the last; none when that was taken.
    fn take(&self, earliest: Timestamp) -> Option<BTreeMap<PodKey, Remembered>> {
        let mut waiting = self.lock();
        loop {
            let left = earliest.since(clock::now());
            let is_time = left.is_zero() || waiting.is_over;
            if waiting.is_due && is_time {
                waiting.is_due = false;
                return Some(std::mem::take(&mut waiting.pods));
            }
            if waiting.is_over {
                return None;
            }
            waiting = if waiting.is_due {
                let woken = self.rung.wait_timeout(waiting, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.rung.wait(waiting).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// What was taken is still to be written, unless nobody would come back for it.
    fn is_due_again(&self) {
        let mut waiting = self.lock();
        waiting.is_due = !waiting.is_over;
    }
}

/// Starts the thread that writes.
///
/// # Errors
/// When there can be none.
pub(super) fn start(file: StateFile) -> io::Result<(Keeper, JoinHandle<()>)> {
    let mailbox = Arc::<Mailbox>::default();
    let keeper = Keeper {
        mailbox: Arc::clone(&mailbox),
    };
    let mut writer = Writer {
        file,
        kept: BTreeMap::new(),
        trouble: None,
    };
    let thread = std::thread::Builder::new().name("state".to_owned());
    Ok((keeper, thread.spawn(move || writer.work(&mailbox))?))
}

struct Writer {
    file: StateFile,
    kept: BTreeMap<PodKey, Remembered>,
    /// Why the last file could not be written.
    trouble: Option<String>,
}

impl Writer {
    fn work(&mut self, mailbox: &Mailbox) {
        let mut earliest = Timestamp::from_millis(0);
        while let Some(changed) = mailbox.take(earliest) {
            for (key, pod) in changed {
                if pod.records.is_empty() {
                    self.kept.remove(&key);
                } else {
                    self.kept.insert(key, pod);
                }
            }
            let begun = clock::now();
            let written = self.file.write(&self.kept.values().collect::<Vec<_>>());
            earliest = begun.after(SPACING.max(clock::now().since(begun) * SHARE));
            if let Err(problem) = &written {
                metrics::state_problem(problem.reason());
                mailbox.is_due_again();
                earliest = begun.after(RETRY);
            }
            self.say(written);
        }
    }

    /// Once, not every time.
    fn say(&mut self, written: Result<(), Problem>) {
        let path = self.file.path().display();
        let trouble = written.err().map(|problem| problem.to_string());
        match &trouble {
            Some(problem) if self.trouble != trouble => {
                tracing::warn!(%path, problem, "the state file stays as it is, and is tried again every second");
            }
            None if self.trouble.is_some() => tracing::info!(%path, "the state file is written again"),
            Some(_) | None => {}
        }
        self.trouble = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::BootId;
    use egret_policies::records::RememberedRecord;

    fn pod(key: &str, records: usize) -> Remembered {
        let record = RememberedRecord {
            name: Arc::new("api.example.test".parse().unwrap()),
            address: "203.0.113.7".parse().unwrap(),
            expires: Timestamp::from_millis(1),
        };
        Remembered {
            pod: key.parse().unwrap(),
            uid: None,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            records: vec![record; records],
        }
    }

    #[test]
    fn when_the_keeper_is_dropped_all_that_it_was_given_is_in_the_file() {
        let folder = std::env::temp_dir().join(format!("egret-keeper-{}", std::process::id()));
        let file = StateFile::new(&folder.join("state"), BootId::read().unwrap(), 10);
        let (keeper, writer) = start(file.clone()).unwrap();
        keeper.keep(vec![
            pod("default/a", 1),
            pod("default/b", 1),
            pod("default/c", 1),
        ]);
        keeper.keep(vec![pod("default/a", 2)]);
        keeper.keep(vec![pod("default/b", 0)]);
        drop(keeper);
        writer.join().unwrap();
        let kept = file.read().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(kept, [pod("default/a", 2), pod("default/c", 1)]);
    }

    #[test]
    fn an_engine_that_was_told_nothing_leaves_the_file_alone() {
        let folder = std::env::temp_dir().join(format!("egret-no-keeper-{}", std::process::id()));
        let file = StateFile::new(&folder.join("state"), BootId::read().unwrap(), 10);
        let (keeper, writer) = start(file).unwrap();
        drop(keeper);
        writer.join().unwrap();
        assert!(!folder.exists());
    }
}
