//! Tasks with names, which tell when they die. `tokio::spawn` is used nowhere else.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument;

/// Spawns a task; its name is in the log lines that it writes.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[allow(clippy::disallowed_methods, reason = "this is the place")]
    tokio::spawn(future.instrument(tracing::info_span!("run", task = name)))
}

/// Spawns a task on the runtime of another thread, without a name.
pub fn spawn_on<F>(runtime: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(future)
}

/// Spawns a task that is one of thousands a second: it has no name, since a span for each costs microseconds.
pub fn spawn_brief<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[allow(clippy::disallowed_methods, reason = "this is the place")]
    tokio::spawn(future)
}
