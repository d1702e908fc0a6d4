//! Another configuration while the daemon runs.

use std::sync::Arc;
use std::time::Duration;

use egret_dnsd::config::model::Reload;
use egret_dnsd::config::{Config, file_name};
use egret_dnsd::telemetry::faults;
use egret_dnsd::zones::{ActiveConfig, host_interfaces};
use metrics::{Counter, counter, describe_counter};

use super::Daemon;

impl Daemon {
    /// Reloads the files if they have changed (`reload`). An error is logged once.
    pub(super) async fn reload_if_changed(&mut self) {
        let applied = match Config::load(&self.args) {
            Ok(config) if config == self.loaded => {
                self.reload_timer.last_error = None;
                return;
            }
            Ok(config) => self.apply(config).await,
            Err(error) => Err(error.into()),
        };
        let error = applied.as_ref().err().map(|error| format!("{error:#}"));
        if error.is_none() || error != self.reload_timer.last_error {
            self.report(&applied);
        }
        self.reload_timer.last_error = error;
    }

    /// Reloads the files, as SIGHUP asks.
    pub(super) async fn reload(&mut self) {
        let applied = match Config::load(&self.args) {
            Ok(config) => self.apply(config).await,
            Err(error) => Err(error.into()),
        };
        self.report(&applied);
    }

    fn report(&self, applied: &anyhow::Result<()>) {
        let file = file_name(&self.args).display().to_string();
        match applied {
            Ok(()) => tracing::info!(%file, "the configuration was read again"),
            Err(error) => {
                self.reload_failures.increment(1);
                tracing::error!(%file, error = format!("{error:#}"), "the configuration stays as it is");
            }
        }
    }

    /// Puts a configuration in force; a failure changes nothing.
    async fn apply(&mut self, loaded: Config) -> anyhow::Result<()> {
        let resolver = Arc::clone(&self.service.resolver);
        let current = resolver.serving();
        let mut config = ActiveConfig::look_up(loaded.clone(), &self.telemetry.upstream).await?;
        let fields = current.config.needs_restart(&config);
        if !fields.is_empty() {
            tracing::warn!(?fields, "these fields need a restart and stay as they are");
            config.fixed = current.config.fixed.clone();
        }
        let serving = ActiveConfig::new(config, Some(&current), &host_interfaces, &self.telemetry)?;
        let new = self.listeners.bind(&serving.tables)?;
        let encrypted = self.listeners.bind_encrypted(&serving.encrypted)?;
        self.admin.adopt(&serving.config)?;
        self.listeners.adopt(&serving.tables, new);
        self.listeners.adopt_encrypted(&serving.encrypted, encrypted);
        self.reload_timer = ReloadTimer::new(serving.config.plan.reload);
        self.loaded = loaded;
        faults::follow(&serving.config.plan);
        warn(&serving.config);
        serving.look_for_loops(|address| address);
        resolver.put_in_force(serving);
        Ok(())
    }
}

/// The interval of `reload`.
#[derive(Debug)]
pub(super) struct ReloadTimer {
    interval: Option<Duration>,
    /// The error of the last attempt, which was logged.
    last_error: Option<String>,
}

impl ReloadTimer {
    /// The jitter is drawn once, so that the nodes of a cluster do not reload at the same time.
    pub(super) fn new(reload: Option<Reload>) -> Self {
        let interval = reload.map(|reload| reload.interval + reload.jitter.mul_f64(rand::random::<f64>()));
        Self {
            interval,
            last_error: None,
        }
    }

    pub(super) async fn next(&self) {
        match self.interval {
            Some(interval) => tokio::time::sleep(interval).await,
            None => std::future::pending().await,
        }
    }
}

pub(super) fn reload_failures() -> Counter {
    describe_counter!(
        "coredns_reload_failed_total",
        "Counter of the number of failed reload attempts."
    );
    counter!("coredns_reload_failed_total")
}

pub(super) fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}
