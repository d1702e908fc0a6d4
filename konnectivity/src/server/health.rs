//! What the server tells its operators.

use std::sync::Arc;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::telemetry::Metrics;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};

use super::hub::Hub;
use crate::admin::count;
use crate::core::Strategy;

/// Of `dial_duration_seconds`, as upstream's.
pub const BUCKETS: &[f64] = &[0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5];

pub(super) struct Health {
    hub: Arc<Hub>,
    strategies: Vec<Strategy>,
    metrics: Metrics,
}

impl Health {
    pub(super) fn new(hub: Arc<Hub>, strategies: &[Strategy], metrics: Metrics) -> Self {
        describe();
        Self {
            hub,
            strategies: strategies.to_vec(),
            metrics,
        }
    }
}

impl AdminHandler for Health {
    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    fn readiness(&self) -> Result<String, String> {
        match self.hub.with(|server| server.agents()) {
            0 => Err("no connection to any proxy agent".to_owned()),
            _ => Ok("ok".to_owned()),
        }
    }

    fn metrics(&self) -> String {
        let (agents, streams, dials, connections) = self.hub.with(|server| {
            (
                server.agents(),
                server.streams(),
                server.pending_dials(),
                server.connections(),
            )
        });
        gauge!("konnectivity_network_proxy_server_ready_backend_connections").set(count(agents));
        for strategy in &self.strategies {
            let backends = self.hub.with(|server| server.agents_for(*strategy));
            gauge!(
                "konnectivity_network_proxy_server_ready_backends",
                "proxy_strategy" => strategy.name()
            )
            .set(count(backends));
        }
        gauge!("konnectivity_network_proxy_server_grpc_connections", "service_method" => "Connect")
            .set(count(streams));
        gauge!("konnectivity_network_proxy_server_pending_backend_dials").set(count(dials));
        gauge!("konnectivity_network_proxy_server_established_connections").set(count(connections));
        self.metrics.render()
    }

    fn page(&self, path: &str) -> Option<String> {
        // Upstream's other name.
        (path == "/ready").then(|| self.readiness().unwrap_or_else(|reason| reason))
    }
}

/// The texts are upstream's: dashboards and tests match them.
fn describe() {
    let gauges = [
        (
            "grpc_connections",
            "Number of current grpc connections, partitioned by service method.",
        ),
        ("http_connections", "Number of current HTTP CONNECT connections"),
        (
            "ready_backend_connections",
            "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends",
        ),
        (
            "ready_backends",
            "Number of konnectivity agent connected to the proxy server",
        ),
        (
            "pending_backend_dials",
            "Current number of pending backend dial requests",
        ),
        (
            "established_connections",
            "Current number of established end-to-end connections (post-dial).",
        ),
    ];
    for (name, text) in gauges {
        describe_gauge!(format!("konnectivity_network_proxy_server_{name}"), text);
    }
    describe_counter!(
        "konnectivity_network_proxy_server_dial_failure_count",
        "Number of dial failures observed. Multiple failures can occur for a single dial request."
    );
    describe_histogram!(
        "konnectivity_network_proxy_server_dial_duration_seconds",
        Unit::Seconds,
        "Latency of dial to the remote endpoint in seconds"
    );
}
