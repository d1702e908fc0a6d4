//! What operators are answered. It runs on a thread of its own: the heart that `/healthz` looks at is that of the
//! threads which serve.

mod process;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egret_shared::rt::admin::Admin;
use egret_shared::rt::clock;
use egret_shared::rt::telemetry::{self, Page};
use egret_shared::time::Timestamp;

use crate::enforcement::gated::Holder;
use crate::listener::Service;
use crate::listener::threads::Threads;
use crate::telemetry::metrics::Metrics;
use crate::zones::{Counts, Serving};

/// How often the heart beats.
const BEAT: Duration = Duration::from_millis(100);
/// How old a beat may be.
const DEAD: Duration = Duration::from_secs(2);

/// Beats while each serving thread has turns to give.
#[derive(Debug)]
pub struct Heart(AtomicU64);

impl Heart {
    /// A heart that has just beaten.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.as_millis()))
    }

    /// Beats until the runtime ends.
    pub async fn beat(self: Arc<Self>, threads: Arc<Threads>) {
        loop {
            threads.turn().await;
            self.0.store(clock::now().as_millis(), Ordering::Relaxed);
            tokio::time::sleep(BEAT).await;
        }
    }

    fn silence(&self, now: Timestamp) -> Duration {
        now.since(Timestamp::from_millis(self.0.load(Ordering::Relaxed)))
    }
}

/// The operators' view.
#[derive(Debug)]
pub struct Operators {
    /// Whether the serving threads live.
    pub heart: Arc<Heart>,
    /// Who serves.
    pub service: Service,
    /// What is held.
    pub holder: Arc<Holder>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What CoreDNS counts.
    pub counts: Arc<Counts>,
    /// How it is rendered.
    pub recorder: telemetry::Metrics,
    /// What was counted of the ledger's evictions so far; `Hold` has no handles.
    pub seen_evictions: Mutex<u64>,
}

impl Admin for Operators {
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
        if self.holder.waits_for_interest() {
            return Err(
                "waiting for the enforcer's first interest: each answer is held up to the deadline"
                    .to_owned(),
            );
        }
        let figures = self.holder.figures();
        Ok(match (figures.is_connected, figures.is_interest_known) {
            (true, true) => format!(
                "ready; {} pod addresses have interest in names",
                figures.clients_with_interest
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
        let mut page = Page::default();
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

impl Operators {
    /// Whether only how setting up goes is shown there.
    pub(crate) fn shows_setup_at(&self, address: SocketAddr) -> bool {
        self.service.resolver.serving().config.fixed.setup_metrics == Some(address)
    }

    fn refresh(&self) {
        let (resolver, metrics) = (&self.service.resolver, &self.metrics);
        let (serving, held) = (resolver.serving(), self.holder.figures());
        let (config, (entries, octets)) = (&serving.config, serving.cache_figures());
        let (names, most_names) = serving.cut_figures();
        for (gauge, value) in [
            (&metrics.cache_entries, entries),
            (&metrics.cache_bytes, octets),
            (&metrics.cache_limit_bytes, config.fixed.cache_size),
            (&metrics.cut_names, names),
            (&metrics.cut_limit_names, most_names),
            (&metrics.waiting_queries, resolver.waiting()),
            (&metrics.waiting_limit, config.waiting.total),
            (&metrics.held_answers, held.held),
            (&metrics.held_limit, config.hold.total),
            (&metrics.ledger_entries, held.told),
            (&metrics.ledger_limit_entries, config.hold.ledger.total),
            (&metrics.link_connected, usize::from(held.is_connected)),
            (&metrics.interested_clients, held.clients_with_interest),
            (&metrics.tcp_connections, self.service.connections.taken()),
        ] {
            gauge.set(u32::try_from(value).map_or(f64::MAX, f64::from));
        }
        let mut seen = self.seen_evictions.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.ledger_evictions.increment(held.evictions - *seen);
        *seen = held.evictions;
    }
}

/// What is in force, as CoreDNS tells it.
fn about(serving: &Serving, page: &mut Page) {
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
