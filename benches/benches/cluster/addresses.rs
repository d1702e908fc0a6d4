//! How long it takes until an address that a node gets is in its NodeAddressReport.

use std::time::{Duration, Instant};

use anyhow::ensure;
use egret_integration::{World, node};
use kube::api::{Api, DynamicObject, GroupVersionKind};
use kube::core::ApiResource;

use crate::api;

const ADDRESS: &str = "198.51.100.77";
const PATIENCE: Duration = Duration::from_secs(10);

/// Median and most of so many additions and removals, as text.
pub(crate) fn measure(world: &World, api: &api::Api, changes: usize) -> anyhow::Result<String> {
    let mut times = Vec::new();
    for change in 0..changes {
        let is_added = change % 2 == 0;
        let verb = if is_added { "add" } else { "del" };
        let address = format!("{ADDRESS}/32");
        let begun = Instant::now();
        world
            .node()
            .run_well(&["ip", "address", verb, &address, "dev", "lo"])?;
        times.push(until(api, is_added, begun)?);
    }
    times.sort_unstable();
    let [median, most] =
        [times[times.len() / 2], times[times.len() - 1]].map(|time| time.as_secs_f64() * 1e3);
    Ok(format!("{median:.0} ms, {most:.0} ms at most"))
}

/// Until the API server has the report with the address, or without.
fn until(api: &api::Api, is_added: bool, begun: Instant) -> anyhow::Result<Duration> {
    api.with(|client| async move {
        let kind = GroupVersionKind::gvk("policy.egret.dev", "v1alpha1", "NodeAddressReport");
        let kind = ApiResource::from_gvk_with_plural(&kind, "nodeaddressreports");
        let reports = Api::<DynamicObject>::all_with(client, &kind);
        loop {
            let report = reports.get(node::NAME).await?;
            let has = report.data["addresses"]
                .as_array()
                .is_some_and(|addresses| addresses.iter().any(|address| address["ip"] == *ADDRESS));
            if has == is_added {
                return Ok(begun.elapsed());
            }
            ensure!(begun.elapsed() < PATIENCE, "the report stays as it is");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}
