//! Logs to stderr, metrics as Prometheus text.

mod log;
mod recorder;
mod page;

use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;

pub use page::MetricsPage;
use recorder::{Bounds, Recorder};

/// Starts the log: text on a terminal, JSON otherwise; `RUST_LOG` chooses what is written (default `info`).
pub fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    if std::io::stderr().is_terminal() {
        log.with_writer(std::io::stderr).fmt_fields(log::fields()).init();
    } else {
        log.with_writer(|| log::JsonWriter(std::io::stderr()))
            .json()
            .flatten_event(true)
            .init();
    }
}

/// What is recorded; renders what `/metrics` answers.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Recorder>);

/// Why metrics cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[error("metrics are recorded elsewhere already")]
pub struct AlreadyRecorded;

impl Metrics {
    /// Records what `metrics` is told from now on; histograms have `buckets`, in ascending order, but for those with `own`
    /// ones.
    ///
    /// # Errors
    /// A recorder is installed already.
    pub fn install(buckets: &[f64], own: &[(&str, &[f64])]) -> Result<Self, AlreadyRecorded> {
        let recorder = Arc::new(Recorder::new(Bounds::new(buckets, own)));
        metrics::set_global_recorder(Arc::clone(&recorder)).map_err(|_installed| AlreadyRecorded)?;
        Ok(Self(recorder))
    }

    /// The metrics now, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }
}
