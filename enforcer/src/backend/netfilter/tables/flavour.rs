//! Switches from one flavour of iptables to the other, when the kubelet does. The kernel evaluates both, so
//! the rules are written to the new one before they are removed from the old one. Marks and generations are
//! the same in both, so open connections stay.

use egret_kernel::Family;
use egret_kernel::iptables::legacy::TableEntries;
use egret_kernel::iptables::{Flavour, IpTables, Table as Which};
use egret_kernel::nftables;
use egret_shared::time::Timestamp;

use super::counters::{self, Totals};
use super::family_table::{self, FamilyTable};
use crate::backend::BackendError;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::model::settings::JumpPosition;
use crate::backend::netfilter::names;
use crate::backend::netfilter::tables::ruleset::Ruleset;

/// The tables before a switch to another flavour.
#[derive(Debug)]
pub(in crate::backend::netfilter) struct Previous {
    tables: [FamilyTable; 2],
    programmed_totals: Option<Vec<(u64, String)>>,
}

impl Previous {
    pub(in crate::backend::netfilter) fn flavour(&self) -> Flavour {
        self.tables[0].programs().flavour()
    }
}

impl Ruleset {
    /// Goes over to the tables of another flavour; everything desired is pending there.
    pub(in crate::backend::netfilter) fn switch_to(
        &mut self,
        flavour: Flavour,
        position: JumpPosition,
        now: Timestamp,
    ) -> Result<Previous, BackendError> {
        let mut tables = Family::ALL.map(|family| FamilyTable::new(flavour, family));
        let listings = counters::list_both(programs(flavour))?;
        for (table, listing) in tables.iter_mut().zip(&listings) {
            table.set_jump_position(position);
            table.resync(listing, now);
        }
        let previous = Previous {
            tables: std::mem::replace(&mut self.tables, tables),
            programmed_totals: self.programmed_totals.take(),
        };
        self.counters.count_in(programs(flavour));
        Ok(previous)
    }

    /// Returns to the tables of before.
    pub(in crate::backend::netfilter) fn switch_back(&mut self, previous: Previous) {
        self.tables = previous.tables;
        self.programmed_totals = previous.programmed_totals;
        self.counters.count_in(self.programs());
    }

    /// Why the tables are not as desired: that nothing can be written, or why the first pod was refused.
    pub(in crate::backend::netfilter) fn first_failure(&self) -> Option<String> {
        let refused = || self.refused.values().next().cloned();
        self.broken.clone().or_else(refused)
    }

    /// Adopts counts and generations from the other flavour, where nothing of ours is in this one. Says whether there was
    /// anything.
    pub(in crate::backend::netfilter) fn adopt_from_other(
        &self,
        generations: &mut Generations,
    ) -> Result<bool, BackendError> {
        let other = other_than(self.flavour());
        if !self.is_empty() || !has_ours(other) {
            return Ok(false);
        }
        let listings = counters::list_both(programs(other))?;
        let mut table = FamilyTable::new(other, Family::V4);
        table.resync(&listings[0], Timestamp::from_millis(0));
        generations.adopt(table.connmarks());
        *self.counters.lock() = Totals::of_listing(&listings[0]);
        tracing::info!(
            flavour = other.name(),
            "rules of an earlier life are in the other flavour"
        );
        Ok(true)
    }

    /// The other flavour, where rules of ours are left in it although they are written here.
    pub(in crate::backend::netfilter) fn left_in_other(&self) -> Option<Flavour> {
        let other = other_than(self.flavour());
        (self.is_whole() && has_ours(other)).then_some(other)
    }

    /// Keeps what rules counted that are about to go.
    pub(in crate::backend::netfilter) fn keep_counts_of(&self, flavour: Flavour) -> Result<(), BackendError> {
        let mut totals = self.counters.lock();
        for listing in counters::list_both(programs(flavour))? {
            let counting =
                family_table::ours(&listing).filter(|chain| chain.name != names::totals().as_str());
            counting.for_each(|chain| totals.add_chain(chain));
        }
        Ok(())
    }
}

fn programs(flavour: Flavour) -> [IpTables; 2] {
    Family::ALL.map(|family| IpTables::new(flavour, family))
}

const fn other_than(flavour: Flavour) -> Flavour {
    match flavour {
        Flavour::Nft => Flavour::Legacy,
        Flavour::Legacy => Flavour::Nft,
    }
}

/// Whether a flavour holds rules of ours; starts no process. Who cannot be asked holds none that judge anything.
fn has_ours(flavour: Flavour) -> bool {
    let chains = [names::forward(), names::input()];
    Family::ALL.into_iter().any(|family| match flavour {
        Flavour::Nft => {
            let chains = chains.each_ref().map(|chain| chain.as_str());
            nftables::has_any_chain(family, Which::Filter.name(), &chains).unwrap_or(false)
        }
        Flavour::Legacy => {
            let entries = TableEntries::read(family, Which::Filter).ok().flatten();
            entries.is_some_and(|entries| chains.iter().any(|chain| entries.has_chain(chain.as_str())))
        }
    })
}
