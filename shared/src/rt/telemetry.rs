//! Logs to stderr, metrics as Prometheus text.

use std::io::IsTerminal;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// Starts the log: text on a terminal, JSON otherwise; `RUST_LOG` chooses what is written (default `info`).
pub fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
}

/// The recorder's handle: renders what `/metrics` answers.
#[derive(Clone, Debug)]
pub struct Metrics(PrometheusHandle);

/// Why metrics cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be recorded: {0}")]
pub struct MetricsError(#[from] BuildError);

impl Metrics {
    /// Installs the recorder; histograms whose name ends in `_seconds` get `buckets`, in seconds, but for those with `own` ones.
    ///
    /// # Errors
    /// When a recorder is already installed, or there are no buckets.
    pub fn install(buckets: &[f64], own: &[(&str, &[f64])]) -> Result<Self, MetricsError> {
        let suffix = Matcher::Suffix("_seconds".to_owned());
        let mut builder = PrometheusBuilder::new().set_buckets_for_metric(suffix, buckets)?;
        for (name, buckets) in own {
            builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets)?;
        }
        Ok(Self(builder.install_recorder()?))
    }

    /// The metrics now, in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Folds the samples of histograms every 5 s: the recorder keeps each one until then.
    pub async fn keep_up(self) {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            self.0.run_upkeep();
        }
    }
}
