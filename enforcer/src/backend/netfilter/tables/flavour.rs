//! From one flavour of iptables to the other, when the kubelet goes. Packets are judged by the rules of both, so ours are
//! written to the new one first, and then taken out of the old one: there is no moment without. Marks and generations are
//! the same in both, so whatever is open goes on.

use egret_kernel::Family;
use egret_kernel::iptables::legacy::Entries;
use egret_kernel::iptables::{Flavour, IpTables, Table as Which};
use egret_kernel::nftables;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;

use super::cleanup;
use super::counters::{self, Totals};
use super::family_table::{self, Table};
use crate::backend::BackendError;
use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::names;

impl Netfilter {
    /// The flavour that the kubelet went to, where it is followed.
    pub(crate) fn flavour_moved(&self) -> Option<Flavour> {
        if !self.beside.follows_flavour || self.stranded.is_some() || is_off(Switch::FollowFlavour) {
            return None;
        }
        // Who cannot be asked has gone nowhere.
        let hinted = Flavour::hinted().ok().flatten();
        hinted.filter(|flavour| *flavour != self.settings.flavour)
    }

    /// Follows the kubelet, and removes what is left in the flavour that is not ours. What fails is tried again.
    pub(crate) fn follow_flavour(&mut self, now: Timestamp) {
        self.stranded = None;
        let moved = self
            .flavour_moved()
            .map_or(Ok(()), |flavour| self.move_to(flavour, now));
        self.stranded = moved.err();
    }

    /// Takes what was ours out of the other flavour, once ours is written here.
    pub(crate) fn leave_the_other(&mut self) {
        let other = other_than(self.settings.flavour);
        if self.broken.is_some() || !self.refused.is_empty() || !has_ours(other) {
            return;
        }
        if let Err(error) = self
            .keep_counts_of(other)
            .and_then(|()| cleanup::remove_rules_of(other))
        {
            self.stranded = Some(format!(
                "rules of ours are still in iptables-{}: {error}",
                other.name()
            ));
        } else {
            tracing::info!(
                flavour = other.name(),
                "the rules that were in the other flavour are gone"
            );
        }
    }

    /// Before the first batch: where nothing is in this flavour and something in the other, that is the earlier life.
    pub(crate) fn adopt_from_the_other(&mut self) -> Result<bool, BackendError> {
        let other = other_than(self.settings.flavour);
        let is_here = self
            .tables
            .iter()
            .any(|table| !table.chains.programmed().is_empty());
        if is_here || !has_ours(other) {
            return Ok(false);
        }
        let listings = counters::both(programs(other))?;
        let mut elsewhere = Table::new(other, Family::V4);
        elsewhere.resync(&listings[0], Timestamp::from_millis(0));
        self.generations.adopt(elsewhere.chains.programmed());
        *self.counters.lock() = Totals::of_listing(&listings[0]);
        tracing::info!(
            flavour = other.name(),
            "rules of an earlier life are in the other flavour"
        );
        Ok(true)
    }

    fn move_to(&mut self, flavour: Flavour, now: Timestamp) -> Result<(), String> {
        let failed = |why: String| {
            format!(
                "the kubelet uses iptables-{} now, where our rules cannot be written: {why}",
                flavour.name()
            )
        };
        let mut tables = Family::BOTH.map(|family| Table::new(flavour, family));
        let listings = counters::both(programs(flavour)).map_err(|error| failed(error.to_string()))?;
        for (table, listing) in tables.iter_mut().zip(&listings) {
            table.place = self.beside.jump;
            table.resync(listing, now);
        }
        let before = (std::mem::replace(&mut self.tables, tables), self.settings.flavour);
        self.settings.flavour = flavour;
        let written = self.written_totals.take();
        self.counters.count_in(programs(flavour));
        self.program();
        let why = self
            .broken
            .clone()
            .or_else(|| self.refused.values().next().cloned());
        if let Some(why) = why {
            (self.tables, self.settings.flavour) = before;
            self.written_totals = written;
            self.counters.count_in(programs(self.settings.flavour));
            return Err(failed(why));
        }
        tracing::warn!(
            from = before.1.name(),
            to = flavour.name(),
            "the kubelet uses the other iptables now, and so do we"
        );
        Ok(())
    }

    /// What rules counted that are about to go.
    fn keep_counts_of(&self, flavour: Flavour) -> Result<(), BackendError> {
        let mut totals = self.counters.lock();
        for listing in counters::both(programs(flavour))? {
            let counting =
                family_table::ours(&listing).filter(|chain| chain.name != names::totals().as_str());
            counting.for_each(|chain| totals.add_chain(chain));
        }
        Ok(())
    }
}

fn programs(flavour: Flavour) -> [IpTables; 2] {
    Family::BOTH.map(|family| IpTables::new(flavour, family))
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
    Family::BOTH.into_iter().any(|family| match flavour {
        Flavour::Nft => {
            let chains = chains.each_ref().map(|chain| chain.as_str());
            nftables::has_any_chain(family, Which::Filter.name(), &chains).unwrap_or(false)
        }
        Flavour::Legacy => {
            let entries = Entries::read(family, Which::Filter).ok().flatten();
            entries.is_some_and(|entries| chains.iter().any(|chain| entries.has_chain(chain.as_str())))
        }
    })
}
