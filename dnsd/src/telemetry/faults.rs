//! Reports panics. A panic ends one answer, not dnsd (`resolve`). It is logged with its position, and with `errors {
//! stacktrace }` with its backtrace.

use std::backtrace::Backtrace;
use std::panic::{PanicHookInfo, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::model::Plan;

/// Whether a block of the plan has `stacktrace`.
static WITH_BACKTRACE: AtomicBool = AtomicBool::new(false);

/// A panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    /// File, line and column.
    pub location: String,
    /// The message.
    pub message: String,
    /// The backtrace, if it is wanted.
    pub stack: Option<String>,
}

impl Panic {
    /// Logs it.
    pub fn log(&self) {
        let Self {
            location,
            message,
            stack,
        } = self;
        tracing::error!(location, message, stack, "a fault of dnsd's own");
    }
}

/// Reports every panic from now on to `tell`.
pub fn set_panic_hook(tell: impl Fn(&Panic) + Send + Sync + 'static) {
    set_hook(Box::new(move |panic| tell(&read(panic))));
}

/// Applies the plan's `stacktrace`.
pub fn follow(plan: &Plan) {
    let wants =
        |block: &crate::config::model::Block| block.errors.as_ref().is_some_and(|errors| errors.stacktrace);
    WITH_BACKTRACE.store(plan.blocks.iter().any(wants), Ordering::Relaxed);
}

fn read(panic: &PanicHookInfo<'_>) -> Panic {
    let stack = || Backtrace::force_capture().to_string();
    Panic {
        location: panic
            .location()
            .map_or_else(|| "unknown".to_owned(), ToString::to_string),
        message: panic.payload_as_str().unwrap_or("it says nothing").to_owned(),
        stack: WITH_BACKTRACE.load(Ordering::Relaxed).then(stack),
    }
}
