//! What the agent tells its operators.

use std::sync::Arc;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::telemetry::Metrics;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};

use super::servers::Servers;
use crate::admin::count;

/// Of `dial_duration_seconds`, as upstream's.
pub const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

pub(super) struct Health {
    servers: Arc<Servers>,
    metrics: Metrics,
}

impl Health {
    pub(super) fn new(servers: Arc<Servers>, metrics: Metrics) -> Self {
        describe();
        Self { servers, metrics }
    }
}

impl AdminHandler for Health {
    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    /// In upstream's words.
    fn readiness(&self) -> Result<String, String> {
        match self.servers.connected() {
            0 => Err("[+]ping ok\n[-]server-connected failed: no connection to a proxy server".to_owned()),
            _ => Ok("ok".to_owned()),
        }
    }

    fn metrics(&self) -> String {
        gauge!("konnectivity_network_proxy_agent_open_server_connections")
            .set(count(self.servers.connected()));
        gauge!("konnectivity_network_proxy_agent_known_server_count").set(count(self.servers.known()));
        self.metrics.render()
    }

    fn page(&self, _path: &str) -> Option<String> {
        None
    }
}

/// The texts are upstream's: dashboards and tests match them.
fn describe() {
    let gauges = [
        (
            "open_server_connections",
            "Current number of open server connections.",
        ),
        (
            "known_server_count",
            "Current number of servers agent is trying to connect to.",
        ),
        (
            "open_endpoint_connections",
            "Current number of open endpoint connections.",
        ),
    ];
    for (name, text) in gauges {
        describe_gauge!(format!("konnectivity_network_proxy_agent_{name}"), text);
    }
    describe_counter!(
        "konnectivity_network_proxy_agent_endpoint_dial_failure_total",
        "Number of failures dialing the remote endpoint, by reason (example: timeout)."
    );
    describe_histogram!(
        "konnectivity_network_proxy_agent_dial_duration_seconds",
        Unit::Seconds,
        "Latency of dial to the remote endpoint in seconds"
    );
}
