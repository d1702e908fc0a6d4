//! Threads that watch the node: its links and addresses, and what other programs do to the packet filter.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use egret_enforcer::address_report::{AddressReporter, NodeAddresses};
use egret_enforcer::admin::EngineAdmin;
use egret_enforcer::backend::netfilter::monitor::ruleset_events::ChangeMonitor;
use egret_enforcer::config::StartupConfig;
use egret_enforcer::engine::Input;
use egret_enforcer::node::link_monitor::NetworkMonitor;
use egret_shared::rt::clock;
use tokio::sync::mpsc;

/// How long after a failure it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A first sync that takes longer does not end soon.
const FIRST_SYNC: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

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

/// Reports to the engine what other programs change of ours in the nft flavour, until the engine ends. It listens from the first sync
/// on: while anybody listens, the kernel makes a message of each element that is written (`nf_tables_setelem_notify`), which is a third of
/// a large sync. What others change before, a poll finds.
pub(super) fn watch_other_programs(
    engine: mpsc::Sender<Input>,
    admin: Arc<EngineAdmin>,
) -> anyhow::Result<()> {
    let watch = move || {
        let begun = clock::now();
        while !admin.is_in_force() && clock::now().since(begun) < FIRST_SYNC {
            thread::sleep(POLL);
        }
        while let Err(error) = hear_other_programs(&engine) {
            tracing::warn!(%error, "changes of the packet filter are not heard for a second");
            thread::sleep(RETRY_AFTER);
        }
    };
    thread::Builder::new().name("others".to_owned()).spawn(watch)?;
    Ok(())
}

/// Until the engine ends.
fn hear_other_programs(engine: &mpsc::Sender<Input>) -> io::Result<()> {
    let mut monitor = ChangeMonitor::listen()?;
    loop {
        let by = monitor.wait()?;
        if engine.blocking_send(Input::ChangedByOthers(by)).is_err() {
            return Ok(());
        }
    }
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
