//! The text of one atomic change to one table, as `iptables-restore --noflush` takes it.

use super::{ChainName, ChainRef, Rule, Table};
use std::fmt::Write as _;

/// `*table … COMMIT`. Lines act in the order they are written; the whole is one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    table: Table,
    declared: Vec<ChainName>,
    commands: String,
}

impl Batch {
    pub fn new(table: Table) -> Self {
        Self {
            table,
            declared: Vec::new(),
            commands: String::new(),
        }
    }

    pub fn table(&self) -> Table {
        self.table
    }

    /// Nothing in it would change the table.
    pub fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.commands.is_empty()
    }

    /// Creates a chain; one already there is emptied, which also zeroes its rules' counters.
    pub fn declare(&mut self, chain: &ChainName) -> &mut Self {
        self.declared.push(chain.clone());
        self
    }

    pub fn append(&mut self, place: impl Into<ChainRef>, rule: &Rule) -> &mut Self {
        self.command("-A", place.into().as_str(), &rule.to_string())
    }

    /// Puts a rule at the head.
    pub fn insert(&mut self, place: impl Into<ChainRef>, rule: &Rule) -> &mut Self {
        self.command("-I", place.into().as_str(), &rule.to_string())
    }

    /// Puts a rule where the rule of this number stands, counted from 1; that one and what follows come behind it.
    pub fn insert_at(&mut self, place: impl Into<ChainRef>, number: usize, rule: &Rule) -> &mut Self {
        self.command("-I", place.into().as_str(), &format!("{number} {rule}"))
    }

    /// Deletes the first rule that reads so; the batch fails if there is none.
    pub fn delete(&mut self, place: impl Into<ChainRef>, text: &str) -> &mut Self {
        self.command("-D", place.into().as_str(), text)
    }

    /// Empties a chain that exists; other than declaring it, this fails if it does not.
    pub fn flush(&mut self, chain: &ChainName) -> &mut Self {
        self.command("-F", chain.as_str(), "")
    }

    /// Removes an empty chain that nothing jumps to.
    pub fn remove(&mut self, chain: &ChainName) -> &mut Self {
        self.command("-X", chain.as_str(), "")
    }

    /// The text for [`super::IpTables::restore`].
    pub fn render(&self) -> String {
        let mut text = format!("*{}\n", self.table);
        for chain in &self.declared {
            writeln!(text, ":{} - [0:0]", chain.as_str()).expect("a String takes any text");
        }
        text + &self.commands + "COMMIT\n"
    }

    fn command(&mut self, verb: &str, chain: &str, rule: &str) -> &mut Self {
        let gap = if rule.is_empty() { "" } else { " " };
        writeln!(self.commands, "{verb} {chain}{gap}{rule}").expect("a String takes any text");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iptables::{Hook, Target};

    #[test]
    fn chains_are_declared_before_any_rule_may_jump_to_them() {
        let (a, b) = (ChainName::new("A").unwrap(), ChainName::new("B").unwrap());
        let mut batch = Batch::new(Table::Filter);
        assert!(batch.is_empty());
        batch
            .declare(&a)
            .insert(Hook::Forward, &Rule::to(Target::Jump(a.clone())));
        batch
            .append(&a, &Rule::to(Target::Goto(b.clone())))
            .declare(&b)
            .delete(Hook::Input, "-j C")
            .flush(&b)
            .remove(&b);
        let expected = "*filter\n:A - [0:0]\n:B - [0:0]\n-I FORWARD -j A\n-A A -g B\n-D INPUT -j C\n-F B\n-X B\nCOMMIT\n";
        assert_eq!(batch.render(), expected);
    }
}
