//! The text of a change to our chains, as `iptables-restore --noflush --counters` takes it: first the table `raw`, so that sources
//! are checked before a pod's rules are open, then the table `filter`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use egret_kernel::iptables::{Hook, Table};

use super::hooks::{self, Jump, jumps};
use super::jump_position::JumpPlacement;
use crate::backend::netfilter::model::settings::JumpPosition;
use crate::backend::netfilter::names;

/// Chains that the kernel holds, or is to: what is wanted and what is there share their rules.
pub type ProgrammedChains = BTreeMap<String, Arc<[String]>>;

/// What is to change in the tables of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change<Rules = Arc<[String]>> {
    /// Chains that are made, or made anew.
    pub rewrite: BTreeMap<String, Rules>,
    /// Chains that go.
    pub remove: BTreeSet<String>,
    /// Hooks into which our jump is put.
    pub jumps: BTreeMap<Hook, JumpPlacement>,
    /// Hooks from which all copies of our jump are taken out, with their number.
    pub jumps_removed: BTreeMap<Hook, usize>,
    /// Lines of the chain that only keeps numbers, with what each has counted.
    pub totals: Option<Vec<(u64, String)>>,
}

impl<Rules: AsRef<[String]>> Change<Rules> {
    /// Whether nothing is to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rewrite.is_empty()
            && self.remove.is_empty()
            && self.jumps.is_empty()
            && self.jumps_removed.is_empty()
            && self.totals.is_none()
    }

    /// About how long the text is: a text of megabytes that grows is copied, and is left half empty.
    fn length(&self) -> usize {
        const AROUND: usize = "-A  \n".len();
        let chain = |name: &String| name.len() + ":- [0:0]\n-X \n".len();
        let rules = self
            .rewrite
            .iter()
            .flat_map(|(name, rules)| rules.as_ref().iter().map(|rule| name.len() + rule.len() + AROUND));
        let chains = self.rewrite.keys().chain(&self.remove).map(chain);
        let totals = self.totals.iter().flatten().map(|(_, rule)| rule.len() + 64);
        1024 + rules.sum::<usize>() + chains.sum::<usize>() + totals.sum::<usize>()
    }

    /// The text: in each table first all chains are empty, then filled, then the ones that go have nothing left that names them.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(self.length());
        for table in [Table::Raw, Table::Filter] {
            if self.concerns(table) {
                self.render_table(table, &mut text);
            }
        }
        text
    }

    fn concerns(&self, table: Table) -> bool {
        let mut chains = self.rewrite.keys().chain(&self.remove);
        let mut hooks = self.jumps.keys().chain(self.jumps_removed.keys());
        chains.any(|chain| names::table(chain) == table)
            || hooks.any(|hook| hooks::table(*hook) == table)
            || (table == Table::Filter && self.totals.is_some())
    }

    fn render_table(&self, table: Table, text: &mut String) {
        let totals = names::totals();
        let mut line =
            |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a String takes any text");
        let is_here = |chain: &str| names::table(chain) == table;
        line(format_args!("*{table}"));
        for chain in self
            .rewrite
            .keys()
            .chain(&self.remove)
            .map(String::as_str)
            .chain(self.totals.iter().map(|_| totals.as_str()))
            .filter(|chain| is_here(chain))
        {
            line(format_args!(":{chain} - [0:0]"));
        }
        for (chain, rules) in self.rewrite.iter().filter(|(chain, _)| is_here(chain)) {
            for rule in rules.as_ref() {
                line(format_args!("-A {chain} {rule}"));
            }
        }
        for (packets, rule) in self.totals.iter().flatten().filter(|_| is_here(totals.as_str())) {
            line(format_args!("[{packets}:0] -A {} {rule}", totals.as_str()));
        }
        let jumps = jumps()
            .into_iter()
            .filter(|jump| hooks::table(jump.hook) == table);
        for Jump { hook, text: jump, .. } in jumps {
            let (put, removed) = (self.jumps.get(&hook), self.jumps_removed.get(&hook));
            let copies = put.map(|put| put.copies).or_else(|| removed.copied());
            for _ in 0..copies.unwrap_or_default() {
                line(format_args!("-D {} {jump}", hook.name()));
            }
            match put.map(|put| put.place) {
                Some(JumpPosition::Insert) => line(format_args!("-I {} {jump}", hook.name())),
                Some(JumpPosition::Append) => line(format_args!("-A {} {jump}", hook.name())),
                None => {}
            }
        }
        for chain in self.remove.iter().filter(|chain| is_here(chain)) {
            line(format_args!("-X {chain}"));
        }
        line(format_args!("COMMIT"));
    }
}
