//! The counters of the listeners.

use metrics::{Counter, counter};

/// The counters of all listeners.
#[derive(Clone)]
pub(super) struct Metrics {
    /// Datagrams read by further threads.
    pub(super) further_threads_datagrams: Counter,
    /// TCP connections closed at once because of a limit.
    pub(super) tcp_refused: Counter,
    /// TCP connections ended because of unread replies or another client's share.
    pub(super) tcp_cut: Counter,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Registers the counters.
    #[must_use]
    pub(super) fn register() -> Self {
        describe();
        Self {
            further_threads_datagrams: counter!("egret_dnsd_further_threads_datagrams_total"),
            tcp_refused: counter!("egret_dnsd_tcp_refused_total"),
            tcp_cut: counter!("egret_dnsd_tcp_cut_total"),
        }
    }
}

fn describe() {
    use metrics::describe_counter as total;
    total!(
        "egret_dnsd_further_threads_datagrams_total",
        "Datagrams that further threads read."
    );
    total!(
        "egret_dnsd_tcp_refused_total",
        "TCP connections closed at once, being over a limit."
    );
    total!(
        "egret_dnsd_tcp_cut_total",
        "TCP connections ended, their client having left too much unread."
    );
}
