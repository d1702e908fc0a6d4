//! Faults on purpose, at the border to the kernel: whoever changes the kernel passes here before each step, so that a test
//! can stop between any two of them, have one refused, and read what was done.
//!
//! Without the feature `faults` (every build that anybody installs) there is nothing here but a constant. With it, a plan
//! holds for a network namespace, hence for all threads that work on it and for no other test; and a process whose environment
//! has `EGRET_KILL_BEFORE_STEP=n` kills itself before its n-th step.

use crate::Family;
use nix::errno::Errno;

/// One change of the kernel that cannot be done by half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A message to ipset.
    Sets,
    /// A transaction of a family's rules.
    Rules(Family),
    /// A change of a tracked flow.
    Flow,
    /// The end of a socket.
    Socket,
}

/// Of a transaction of rules: what is in it is refused, by netlink as by the programs. Any other error is about whatever is written.
pub(crate) const REFUSED: Errno = Errno::EINVAL;

/// Says that a step is about to be taken, and what it is; an error is instead of it.
#[cfg(not(feature = "faults"))]
pub(crate) fn before(_step: Step, _what: impl FnOnce() -> String) -> Result<(), Errno> {
    Ok(())
}

/// Whether the kernel is to refuse a message of a transaction of `nf_tables`: it gets one that it does not know in its place.
#[cfg(not(feature = "faults"))]
pub(crate) fn has_refused_message(_words: impl FnOnce() -> String) -> bool {
    false
}

/// Says that a transaction of rules is about to be handed over by netlink, and how often it was before; an error is instead of that.
#[cfg(not(feature = "faults"))]
pub(crate) fn before_handing_over(_attempts: usize) -> Result<(), Errno> {
    Ok(())
}

#[cfg(feature = "faults")]
pub use planned::{Plan, Planned, Taken};
#[cfg(feature = "faults")]
pub(crate) use planned::{before_handing_over, has_refused_message};

/// Says that a step is about to be taken, and what it is; an error is instead of it.
#[cfg(feature = "faults")]
pub(crate) fn before(step: Step, what: impl FnOnce() -> String) -> Result<(), Errno> {
    planned::die_if_told();
    planned::pass(step, what)
}

#[cfg(feature = "faults")]
mod planned {
    use super::Step;
    use nix::errno::Errno;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::collections::BTreeMap;
    use std::os::linux::fs::MetadataExt as _;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

    /// A step that was taken.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Taken {
        pub step: Step,
        /// The message in words, or the text of the transaction.
        pub what: String,
    }

    /// What is to go wrong.
    #[derive(Clone, Debug)]
    pub enum Plan {
        /// Nothing.
        Nothing,
        /// The life ends when so many steps of each kind were taken: whatever it still tries changes nothing.
        EndAfter(BTreeMap<Step, usize>),
        /// The kernel refuses every step of which the words say yes; a transaction of rules because of what is in it where they say EINVAL.
        Refuse(fn(&Taken) -> Option<Errno>),
        /// The kernel refuses those messages of a transaction of `nf_tables` of which the words say yes.
        RefuseMessages(fn(&str) -> bool),
        /// Somebody has a turn each time that a transaction of rules is about to be handed over by netlink, and is told how often it
        /// was before; an error is instead of that.
        HandingOver(fn(usize) -> Result<(), Errno>),
    }

    /// A plan for the network namespace of the thread that makes it, as long as this lives.
    #[derive(Debug)]
    pub struct Planned {
        namespace: u64,
    }

    impl Planned {
        /// Forgets what was planned there before.
        pub fn here(plan: Plan) -> Self {
            let namespace = namespace();
            let course = Course {
                plan,
                taken: Vec::new(),
                refused: false,
            };
            courses().insert(namespace, course);
            Self { namespace }
        }

        /// The steps that were taken so far.
        pub fn taken(&self) -> Vec<Taken> {
            courses()
                .get(&self.namespace)
                .map_or_else(Vec::new, |course| course.taken.clone())
        }

        /// Whether a step was refused.
        pub fn has_ended(&self) -> bool {
            courses()
                .get(&self.namespace)
                .is_some_and(|course| course.refused)
        }
    }

    impl Drop for Planned {
        fn drop(&mut self) {
            courses().remove(&self.namespace);
        }
    }

    struct Course {
        plan: Plan,
        taken: Vec<Taken>,
        refused: bool,
    }

    impl Course {
        fn refusal(&self, next: &Taken) -> Option<Errno> {
            match &self.plan {
                Plan::Nothing | Plan::HandingOver(_) | Plan::RefuseMessages(_) => None,
                Plan::EndAfter(most) => {
                    let so_far = self.taken.iter().filter(|taken| taken.step == next.step).count();
                    (so_far >= most.get(&next.step).copied().unwrap_or_default()).then_some(Errno::EOWNERDEAD)
                }
                Plan::Refuse(refusal) => refusal(next),
            }
        }
    }

    static COURSES: LazyLock<Mutex<BTreeMap<u64, Course>>> = LazyLock::new(Mutex::default);

    fn courses() -> MutexGuard<'static, BTreeMap<u64, Course>> {
        COURSES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pass(step: Step, what: impl FnOnce() -> String) -> Result<(), Errno> {
        if courses().is_empty() {
            return Ok(());
        }
        let namespace = namespace();
        let mut courses = courses();
        let Some(course) = courses.get_mut(&namespace) else {
            return Ok(());
        };
        let next = Taken { step, what: what() };
        match course.refusal(&next) {
            Some(errno) => {
                course.refused = true;
                Err(errno)
            }
            None => {
                course.taken.push(next);
                Ok(())
            }
        }
    }

    /// Whoever has the turn may change the kernel, so nothing is locked meanwhile.
    pub(crate) fn before_handing_over(attempts: usize) -> Result<(), Errno> {
        let turn = courses().get(&namespace()).and_then(|course| match course.plan {
            Plan::HandingOver(turn) => Some(turn),
            Plan::Nothing | Plan::EndAfter(_) | Plan::Refuse(_) | Plan::RefuseMessages(_) => None,
        });
        turn.map_or(Ok(()), |turn| turn(attempts))
    }

    pub(crate) fn has_refused_message(words: impl FnOnce() -> String) -> bool {
        if courses().is_empty() {
            return false;
        }
        let chosen = courses().get(&namespace()).and_then(|course| match course.plan {
            Plan::RefuseMessages(chosen) => Some(chosen),
            Plan::Nothing | Plan::EndAfter(_) | Plan::Refuse(_) | Plan::HandingOver(_) => None,
        });
        chosen.is_some_and(|chosen| chosen(&words()))
    }

    fn namespace() -> u64 {
        std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.st_ino())
    }

    pub(super) fn die_if_told() {
        static LAST: LazyLock<Option<usize>> =
            LazyLock::new(|| std::env::var("EGRET_KILL_BEFORE_STEP").ok()?.parse().ok());
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
        if LAST.is_some_and(|last| number >= last) {
            kill(Pid::this(), Signal::SIGKILL).expect("a process may kill itself");
            // The signal comes before this returns, on whatever thread.
            loop {
                std::thread::park();
            }
        }
    }
}
