//! Logs to stderr, metrics as Prometheus text.

mod log;
mod page;

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

pub use page::MetricsPage;

/// How often recorded samples are folded into the buckets of their histograms.
const UPKEEP: Duration = Duration::from_secs(5);

/// Starts the log: text on a terminal, JSON otherwise; `RUST_LOG` chooses what is written (default `info`).
pub fn start_log() {
    // Each attempt that fails is a line of kube's client; the source of objects says it once, with the reason.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    if std::io::stderr().is_terminal() {
        log.with_writer(std::io::stderr).fmt_fields(log::fields()).init();
    } else {
        log.with_writer(|| log::JsonWriter(std::io::stderr()))
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .init();
    }
}

/// The recorder behind the `metrics` facade; renders what `/metrics` answers.
#[derive(Clone, Debug)]
pub struct Metrics(PrometheusHandle);

/// Why metrics cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A histogram has no buckets, or another recorder is installed.
    #[error("metrics cannot be recorded")]
    Recorder(#[from] BuildError),
    /// The system refuses the thread that folds samples.
    #[error("the thread of the metrics cannot be started")]
    Thread(#[from] std::io::Error),
}

impl Metrics {
    /// Records what `metrics` is given from now on. Histograms have `buckets`, in ascending order, except those that are named in
    /// `own`. A thread folds samples every 5 seconds, whether anybody reads them or not.
    ///
    /// # Errors
    /// A recorder is installed already, a list of buckets is empty, or the thread cannot be started.
    pub fn install(buckets: &[f64], own: &[(&str, &[f64])]) -> Result<Self, InstallError> {
        let mut builder = PrometheusBuilder::new().set_buckets(buckets)?;
        for (name, buckets) in own {
            builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)?;
        }
        let handle = builder.install_recorder()?;
        let upkeep = handle.clone();
        thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            loop {
                thread::sleep(UPKEEP);
                upkeep.run_upkeep();
            }
        })?;
        Ok(Self(handle))
    }

    /// The metrics now, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }
}
