//! What is told of a fault of dnsd's own. It ends one answer, not dnsd (`resolve`); who reads the log learns where it was, in a
//! line like others, and with `errors { stacktrace }` also how it came there.

use std::backtrace::Backtrace;
use std::panic::{PanicHookInfo, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::model::Plan;

/// Whether a block of the plan in force wants to know how it came there.
static WITH_BACKTRACE: AtomicBool = AtomicBool::new(false);

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    /// File, line and column.
    pub place: String,
    /// What was found to be wrong.
    pub message: String,
    /// The calls that led there, where somebody wants to know.
    pub stack: Option<String>,
}

impl Panic {
    /// Writes it into the log.
    pub fn log(&self) {
        let Self {
            place,
            message,
            stack,
        } = self;
        tracing::error!(place, message, stack, "a fault of dnsd's own");
    }
}

/// Has every fault from now on told to `tell`.
pub fn set_panic_hook(tell: impl Fn(&Panic) + Send + Sync + 'static) {
    set_hook(Box::new(move |panic| tell(&read(panic))));
}

/// As this plan wants it.
pub fn follow(plan: &Plan) {
    let wants =
        |block: &crate::config::model::Block| block.errors.as_ref().is_some_and(|errors| errors.stacktrace);
    WITH_BACKTRACE.store(plan.blocks.iter().any(wants), Ordering::Relaxed);
}

fn read(panic: &PanicHookInfo<'_>) -> Panic {
    let stack = || Backtrace::force_capture().to_string();
    Panic {
        place: panic
            .location()
            .map_or_else(|| "unknown".to_owned(), ToString::to_string),
        message: panic.payload_as_str().unwrap_or("it says nothing").to_owned(),
        stack: WITH_BACKTRACE.load(Ordering::Relaxed).then(stack),
    }
}
