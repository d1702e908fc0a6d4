//! The operators' pages. They have a thread of their own; `/healthz` reports the progress of the
//! serving threads.

mod process;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::clock;
use egret_shared::rt::telemetry::{self, MetricsPage};
use egret_shared::time::Timestamp;

use crate::enforcement::gated::ResponseGate;
use crate::listener::Service;
use crate::listener::threads::Threads;
use crate::telemetry::metrics::Gauges;
use crate::zones::{ActiveConfig, CoreDnsCounters};

/// How often progress is checked.
const BEAT: Duration = Duration::from_millis(100);
/// The age at which progress counts as stopped.
const DEAD: Duration = Duration::from_secs(2);

/// The time at which all serving threads last made progress.
#[derive(Debug)]
pub struct ThreadWatch(AtomicU64);

impl ThreadWatch {
    /// Progress at this time.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_millis()))
    }

    /// Updates it until the runtime ends.
    pub async fn beat(self: Arc<Self>, threads: Arc<Threads>) {
        loop {
            threads.respond().await;
            self.0.store(clock::now().as_millis(), Ordering::Relaxed);
            tokio::time::sleep(BEAT).await;
        }
    }

    fn silence(&self, now: Timestamp) -> Duration {
        now.since(Timestamp::from_millis(self.0.load(Ordering::Relaxed)))
    }
}

/// What is missing before dnsd is ready: its own start, and what it sets up on its host. What was there once is not missed
/// again: it is put back within seconds.
#[derive(Debug)]
pub struct Startup {
    /// By name, with why. Held for one operation.
    missing: Mutex<BTreeMap<&'static str, String>>,
}

impl Startup {
    /// Waits for these parts.
    #[must_use]
    pub fn of(parts: impl IntoIterator<Item = &'static str>) -> Self {
        let missing = parts.into_iter().map(|part| (part, "not yet".to_owned()));
        Self {
            missing: Mutex::new(missing.collect()),
        }
    }

    /// A part could not be set up; it is tried again.
    pub fn failed(&self, part: &'static str, why: &dyn fmt::Display) {
        if let Some(reason) = self.lock().get_mut(part) {
            *reason = why.to_string();
        }
    }

    /// A part is there. The last one makes dnsd ready.
    pub fn done(&self, part: &'static str) {
        let mut missing = self.lock();
        if missing.remove(part).is_some() && missing.is_empty() {
            tracing::info!("ready");
        }
    }

    fn readiness(&self) -> Result<(), String> {
        let missing = self.lock();
        if missing.is_empty() {
            return Ok(());
        }
        let parts: Vec<String> = missing
            .iter()
            .map(|(part, why)| format!("{part}: {why}"))
            .collect();
        Err(format!("starting; {}", parts.join("; ")))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state behind the pages.
#[derive(Debug)]
pub struct AdminState {
    /// What is missing at the start.
    pub startup: Arc<Startup>,
    /// Progress of the serving threads.
    pub heart: Arc<ThreadWatch>,
    /// The listeners' service.
    pub service: Service,
    /// The response gate.
    pub gate: Arc<ResponseGate>,
    /// Gauges of other rooms.
    pub gauges: Gauges,
    /// CoreDNS' counters.
    pub counts: Arc<CoreDnsCounters>,
    /// The recorder.
    pub recorder: telemetry::Metrics,
    /// Record evictions counted so far; `Gate` has no metric handles.
    pub seen_evictions: Mutex<u64>,
}

impl AdminHandler for AdminState {
    fn health(&self) -> Result<(), String> {
        let silence = self.heart.silence(clock::now());
        if silence > DEAD {
            return Err(format!(
                "a serving thread has not had a turn for {} ms",
                silence.as_millis()
            ));
        }
        Ok(())
    }

    fn readiness(&self) -> Result<String, String> {
        self.health()?;
        if self.service.stop.is_cancelled() {
            return Err("stopping".to_owned());
        }
        self.startup.readiness()?;
        if self.gate.waits_for_interest() {
            return Err(
                "waiting for the enforcer's first interest: each answer is held up to the deadline"
                    .to_owned(),
            );
        }
        let stats = self.gate.stats();
        Ok(match (stats.is_connected, stats.is_interest_known) {
            (true, true) => format!(
                "ready; {} pod addresses have interest in names",
                stats.clients_with_interest
            ),
            (true, false) => "ready; the enforcer has not told its interest yet: nothing is held".to_owned(),
            (false, true) => {
                "ready; the enforcer is away: interesting answers are held up to the deadline".to_owned()
            }
            (false, false) => "ready; no enforcer was ever there: nothing is held".to_owned(),
        })
    }

    fn metrics(&self) -> String {
        self.refresh();
        let mut page = MetricsPage::default();
        self.service.resolver.count_kernel_answers();
        let serving = self.service.resolver.serving();
        serving.count_caches();
        self.counts.sweep();
        self.counts.write(&mut page);
        about(&serving, &mut page);
        process::write(&mut page);
        self.recorder.render() + &page.text()
    }

    fn page(&self, _path: &str) -> Option<String> {
        None
    }
}

impl AdminState {
    /// Whether this address shows the setup metrics only.
    pub(crate) fn shows_setup_at(&self, address: SocketAddr) -> bool {
        self.service.resolver.serving().config.fixed.setup_metrics == Some(address)
    }

    fn refresh(&self) {
        let (resolver, gauges) = (&self.service.resolver, &self.gauges);
        let (serving, held) = (resolver.serving(), self.gate.stats());
        let (config, (entries, octets)) = (&serving.config, serving.cache_figures());
        let (names, most_names) = serving.cut_figures();
        for (gauge, value) in [
            (&gauges.cache_entries, entries),
            (&gauges.cache_bytes, octets),
            (&gauges.cache_limit_bytes, config.fixed.cache_size),
            (&gauges.cut_names, names),
            (&gauges.cut_limit_names, most_names),
            (&gauges.waiting_queries, resolver.waiting()),
            (&gauges.waiting_limit, config.waiting.total),
            (&gauges.held_answers, held.held),
            (&gauges.held_limit, config.hold.total),
            (&gauges.recorded_addresses, held.recorded),
            (&gauges.recorded_limit, config.hold.records.total),
            (&gauges.link_connected, usize::from(held.is_connected)),
            (&gauges.interested_clients, held.clients_with_interest),
            (&gauges.tcp_connections, self.service.connections.taken()),
        ] {
            gauge.set(u32::try_from(value).map_or(f64::MAX, f64::from));
        }
        let mut seen = self.seen_evictions.lock().unwrap_or_else(PoisonError::into_inner);
        let evictions = &resolver.metrics().gate.record_evictions;
        evictions.increment(held.evictions - *seen);
        *seen = held.evictions;
    }
}

/// The plan in force, in CoreDNS' metrics.
fn about(serving: &ActiveConfig, page: &mut MetricsPage) {
    let name = "coredns_build_info";
    page.family(name, "gauge", "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.");
    let version = concat!("egret-dnsd-", env!("CARGO_PKG_VERSION"));
    page.series(
        name,
        &[("version", version), ("revision", ""), ("goversion", "")],
        1.0,
    );
    let name = "coredns_reload_version_info";
    page.family(
        name,
        "gauge",
        "A metric with a constant '1' value labeled by hash, and value which type of hash generated.",
    );
    page.series(name, &[("hash", "sha512"), ("value", &serving.version())], 1.0);
    let name = "coredns_plugin_enabled";
    page.family(
        name,
        "gauge",
        "A metric that indicates whether a plugin is enabled on per server and zone basis.",
    );
    for table in serving.all_tables() {
        for (zone, plugin) in table.plugins() {
            let labels = [
                ("server", &*table.server()),
                ("zone", &zone),
                ("view", ""),
                ("name", plugin),
            ];
            page.series(name, &labels, 1.0);
        }
    }
}
