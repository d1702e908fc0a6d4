//! The counters of the listeners.

use metrics::{Counter, counter};

/// The counters of all listeners.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Datagrams read by further threads.
    pub(super) further_threads_datagrams: Counter,
    /// TCP connections closed at once because of a limit.
    pub(super) tcp_refused: Counter,
    /// TCP connections ended because of unread replies or another client's share.
    pub(super) tcp_cut: Counter,
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
    describe! {
        counter "egret_dnsd_further_threads_datagrams_total": "Datagrams that further threads read.";
        counter "egret_dnsd_tcp_refused_total": "TCP connections closed at once because of a limit.";
        counter "egret_dnsd_tcp_cut_total": "TCP connections ended because of unread replies or another client's share.";
    }
}
