//! Threads that watch the node: its links and addresses, and what other programs do to the packet filter.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use egret_enforcer::address_report::{AddressReporter, NodeAddresses};
use egret_enforcer::backend::netfilter::monitor::ruleset_events::ChangeMonitor;
use egret_enforcer::config::StartupConfig;
use egret_enforcer::engine::Input;
use egret_enforcer::node::link_monitor::NetworkMonitor;
use tokio::sync::mpsc;

/// How long after a failure it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Reports changes of links and of the node's addresses to the engine, until the engine ends. The addresses of now are
/// the first input. The subscription is older than the first list: no change is missed.
pub(super) fn watch_links(engine: mpsc::Sender<Input>) -> anyhow::Result<()> {
    let mut monitor = NetworkMonitor::listen().context("changes of links cannot be heard")?;
    let unlisted = "the node's addresses cannot be listed";
    let mut addresses = NodeAddresses::open().context(unlisted)?;
    let first = addresses.changed().context(unlisted)?;
    engine
        .try_send(Input::Cluster(first.into_iter().collect()))
        .map_err(|_full| anyhow::anyhow!("the engine takes nothing in"))?;
    let watch = move || {
        // After a failed listing it is listed again although nothing is reported.
        let mut is_listed = true;
        loop {
            let waited = if is_listed {
                monitor.wait()
            } else {
                monitor.wait_timeout(RETRY_AFTER)
            };
            if let Err(error) = waited {
                tracing::warn!(%error, "changes of links are not heard for a second");
                thread::sleep(RETRY_AFTER);
                continue;
            }
            let changed = addresses.changed();
            is_listed = changed.is_ok();
            let event = changed.unwrap_or_else(|error| {
                tracing::warn!(%error, "the node's addresses cannot be listed; those known before stay protected");
                None
            });
            let events = event.map(|event| Input::Cluster(vec![event]));
            let mut inputs = events.into_iter().chain([Input::LinksChanged]);
            if inputs.any(|input| engine.blocking_send(input).is_err()) {
                return;
            }
        }
    };
    thread::Builder::new().name("links".to_owned()).spawn(watch)?;
    Ok(())
}

/// Reports to the engine what other programs change of ours in the nft flavour, until the engine ends.
pub(super) fn watch_other_programs(engine: mpsc::Sender<Input>) -> anyhow::Result<()> {
    let mut monitor = ChangeMonitor::listen().context("changes of the packet filter cannot be heard")?;
    let watch = move || loop {
        match monitor.wait() {
            Ok(by) => {
                if engine.blocking_send(Input::ChangedByOthers(by)).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "changes of the packet filter are not heard for a second");
                thread::sleep(RETRY_AFTER);
            }
        }
    };
    thread::Builder::new().name("others".to_owned()).spawn(watch)?;
    Ok(())
}

/// Reports this node's addresses to other nodes, if `reportDir` is set.
pub(super) fn report_addresses(startup: &StartupConfig) -> anyhow::Result<()> {
    match &startup.report_dir {
        Some(folder) => AddressReporter::open(folder.clone(), startup.node_name())
            .and_then(AddressReporter::start)
            .context("the node's addresses cannot be reported"),
        None => Ok(()),
    }
}
