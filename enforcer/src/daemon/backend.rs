//! Opens the backend.

use anyhow::Context;
use egret_enforcer::backend::both::Both;
use egret_enforcer::backend::dns_permits::DnsPermits;
use egret_enforcer::backend::ebpf::events::EventSource;
use egret_enforcer::backend::ebpf::{self, Behind, Ebpf};
use egret_enforcer::backend::memory::InMemory;
use egret_enforcer::backend::netfilter::bridges::BridgeNetfilter;
use egret_enforcer::backend::netfilter::cleanup::{self, Mode};
use egret_enforcer::backend::netfilter::denials::DenialRegistry;
use egret_enforcer::backend::netfilter::names::is_own_chain;
use egret_enforcer::backend::netfilter::tables::foreign_rules::{ForeignMarks, look_for_marks};
use egret_enforcer::backend::netfilter::{Coexistence, Netfilter, Settings};
use egret_enforcer::backend::nftables::{self, Nftables};
use egret_enforcer::backend::none::Unenforced;
use egret_enforcer::backend::{Backend, RemoveOther};
use egret_enforcer::config::{BackendKind, Config, StartupConfig};
use egret_enforcer::events;
use egret_enforcer::events::merged::Merged;
use egret_enforcer::events::nflog::Nflog;
use egret_enforcer::events::sink::Destination;
use egret_enforcer::node::{Node, ReportedInterfaces};
use egret_kernel::dns_permits::beside;
use egret_kernel::iptables::Flavour;

/// A backend, and where it tells of denied packets; none where it does not.
pub(super) type Opened = (Box<dyn Backend>, Option<Box<dyn events::Source>>);

pub(super) fn open(
    kind: BackendKind,
    config: &Config,
    interfaces: &ReportedInterfaces,
) -> anyhow::Result<Opened> {
    let startup = &config.startup;
    let is_each_alone = config.rule_metrics > 0;
    Ok(match kind {
        BackendKind::Netfilter => {
            let (netfilter, told) = open_netfilter(startup, is_each_alone, interfaces)?;
            let pins = startup.bpf_pins.clone();
            let bridges = mode(startup);
            let netfilter = netfilter.replacing(RemoveOther::by(move || {
                let mut found = nftables::cleanup::remove(bridges)?;
                found.extend(ebpf::cleanup::remove(&pins, Mode::Remove)?);
                Ok(found)
            }));
            (with_permits(config, netfilter), Some(Box::new(told)))
        }
        BackendKind::Both => {
            let (netfilter, dropped) = open_netfilter(startup, is_each_alone, interfaces)?;
            let bridges = mode(startup);
            let netfilter = netfilter.replacing(RemoveOther::by(move || nftables::cleanup::remove(bridges)));
            let (ebpf, refused) = open_ebpf(startup, is_each_alone, Behind::Filter);
            (
                Box::new(Both::new(with_permits(config, netfilter), ebpf)),
                Some(Box::new(Merged(vec![Box::new(dropped), Box::new(refused)]))),
            )
        }
        BackendKind::Nftables => {
            let denials = DenialRegistry::default();
            let nftables = open_nftables(startup, &denials, interfaces)?;
            let nftables = match is_each_alone {
                true => nftables.without_merged_sets(),
                false => nftables,
            };
            let group = startup.events.telling.group;
            (
                with_permits(config, nftables),
                Some(Box::new(Nflog { group, denials })),
            )
        }
        BackendKind::Ebpf => {
            let (ebpf, told) = open_ebpf(startup, is_each_alone, Behind::Services);
            let ebpf = ebpf.replacing(RemoveOther::by(|| {
                let mut found = cleanup::everywhere(Mode::Remove)?;
                found.extend(nftables::cleanup::remove(Mode::Remove)?);
                Ok(found)
            }));
            DnsPermits::revoke_all(&beside(&startup.bpf_pins))?;
            (Box::new(ebpf), Some(Box::new(told)))
        }
        BackendKind::Memory => (Box::new(InMemory::default()), None),
        BackendKind::None => {
            DnsPermits::revoke_all(&beside(&startup.bpf_pins))?;
            (Box::new(Unenforced), None)
        }
    })
}

/// A packet filter that tells dnsd whose queries the kernel may answer.
fn with_permits(config: &Config, filter: impl Backend + 'static) -> Box<dyn Backend> {
    let directory = beside(&config.startup.bpf_pins);
    Box::new(DnsPermits::new(
        Box::new(filter),
        directory,
        config.rule_metrics > 0,
    ))
}

fn open_ebpf(startup: &StartupConfig, is_each_alone: bool, behind: Behind) -> (Ebpf, EventSource) {
    let events = &startup.events;
    let ebpf = Ebpf::new(ebpf::Options {
        cgroup_root: startup.cgroup_root.clone(),
        pin_path: startup.bpf_pins.clone(),
        unknown: startup.unknown.stance,
        events_per_second: (events.to != Destination::Off).then_some(events.telling.per_second),
        behind,
    });
    let told = ebpf.events();
    match is_each_alone {
        true => (ebpf.without_merged_sets(), told),
        false => (ebpf, told),
    }
}

fn open_netfilter(
    startup: &StartupConfig,
    is_each_alone: bool,
    interfaces: &ReportedInterfaces,
) -> anyhow::Result<(Netfilter, Nflog)> {
    let denials = DenialRegistry::default();
    let flavour = choose_flavour(startup.flavour)?;
    let node = Node::open().context("the routing table cannot be asked")?;
    let node = node.with_reported(interfaces.clone());
    let logs_denied = startup.events.to != Destination::Off;
    let settings = Settings {
        flavour,
        marks: startup.marks,
        deny: startup.deny,
        telling: logs_denied.then_some(startup.events.telling),
    };
    let beside = check_foreign_marks(startup)?;
    let netfilter = Netfilter::open(settings, Box::new(node))?
        .with_unknown_pods(startup.unknown.clone())
        .with_coexistence(beside)
        .with_bridges(startup.bridges)
        .with_preallocation()
        .telling(denials.clone());
    let netfilter = match is_each_alone {
        true => netfilter.without_merged_sets(),
        false => netfilter,
    };
    let group = startup.events.telling.group;
    Ok((netfilter, Nflog { group, denials }))
}

fn open_nftables(
    startup: &StartupConfig,
    denials: &DenialRegistry,
    interfaces: &ReportedInterfaces,
) -> anyhow::Result<Nftables> {
    let node = Node::open().context("the routing table cannot be asked")?;
    let node = node.with_reported(interfaces.clone());
    let logs_denied = startup.events.to != Destination::Off;
    let settings = nftables::Settings {
        marks: startup.marks,
        deny: startup.deny,
        telling: logs_denied.then_some(startup.events.telling),
        unknown: startup.unknown.clone(),
        accepted_marks: check_foreign_marks(startup)?.accepted_marks,
        bridges: startup.bridges,
    };
    let (bridges, pins) = (mode(startup), startup.bpf_pins.clone());
    Ok(Nftables::open(settings, Box::new(node))?
        .replacing(RemoveOther::by(move || {
            let mut found = cleanup::everywhere(bridges)?;
            found.extend(ebpf::cleanup::remove(&pins, Mode::Remove)?);
            Ok(found)
        }))
        .telling(denials.clone()))
}

/// How what another packet filter left is removed: bridges that this one wants as well stay as they were turned on.
const fn mode(startup: &StartupConfig) -> Mode {
    match startup.bridges {
        BridgeNetfilter::Enable => Mode::Replace,
        BridgeNetfilter::Off => Mode::Remove,
    }
}

/// Fails when rules of others write our bits of the connection mark, unless the configuration allows it.
fn check_foreign_marks(startup: &StartupConfig) -> anyhow::Result<Coexistence> {
    let foreign = look_for_marks(startup.marks).err();
    if let Some(foreign) = &foreign {
        if !startup.allow_foreign_marks {
            return Err(foreign.clone().into());
        }
        tracing::warn!("{foreign}");
    }
    Ok(Coexistence {
        jump: startup.jump,
        follows_flavour: startup.flavour.is_none(),
        accepted_marks: foreign.map(ForeignMarks::into_rules).unwrap_or_default(),
    })
}

fn choose_flavour(chosen: Option<Flavour>) -> anyhow::Result<Flavour> {
    if let Some(flavour) = chosen {
        return Ok(flavour);
    }
    let detected = Flavour::detect(is_own_chain).context("no iptables can be used")?;
    tracing::info!(flavour = detected.flavour.name(), evidence = ?detected.evidence, "iptables found");
    Ok(detected.flavour)
}
