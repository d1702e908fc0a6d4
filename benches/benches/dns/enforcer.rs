//! The enforcer: what dnsd tells it, and what it costs.

use egret_benches::ruleset::Ruleset;
use egret_integration::{Daemon, World};
use egret_kernel::iptables::Flavour;

use crate::meter::{self, Meter};
use crate::servers::{ROOM, release_folder};

/// The enforcer.
#[derive(Debug)]
pub(crate) struct Enforcer {
    pub(crate) meter: Meter,
    daemon: Daemon,
}

impl Enforcer {
    /// Live records.
    pub(crate) fn records(&self) -> anyhow::Result<f64> {
        Ok(self.daemon.metrics()?.sum("egret_enforcer_records", &[]))
    }
}

/// Starts it, on the same CPU as dnsd, where it makes no difference by which rules it enforces.
pub(crate) fn start(world: &World) -> anyhow::Result<Enforcer> {
    start_with(world, Ruleset::Netfilter(Flavour::Nft))
}

/// The same with these rules.
pub(crate) fn start_with(world: &World, ruleset: Ruleset) -> anyhow::Result<Enforcer> {
    let spec = world.enforcer(ruleset.backend()).in_folder(release_folder()?);
    let spec =
        spec.with(ruleset.options().iter().copied())
            .with(["--names-per-pod", ROOM, "--records-total", ROOM]);
    let daemon = meter::on_the_servers_cpu(|| Ok(world.start(spec)?))?;
    let meter = Meter::Process(daemon.pid());
    Ok(Enforcer { meter, daemon })
}
