//! Rules under construction: chains by name, and what they deny.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_kernel::nftables::{NftRule, Statement, Verdict};
use egret_policies::rules::Digest;

use crate::backend::netfilter::denials::Denial;
use crate::backend::netfilter::denials::label::Label;

/// Rules of one chain.
pub(super) type Lines = Arc<Vec<NftRule>>;

/// Chains, and the denials that they lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) chains: BTreeMap<String, Lines>,
    pub(super) denials: BTreeSet<Denial>,
    /// Chains that others may lead to as well, by name, which says all that is in them.
    pub(super) shared: BTreeMap<String, Arc<SharedChain>>,
}

/// A chain that is not of one owner, and the denials that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedChain {
    pub(super) lines: Lines,
    pub(super) denials: BTreeSet<Denial>,
}

impl Rendered {
    pub(super) fn put(&mut self, chain: impl Into<String>, lines: Vec<NftRule>) {
        self.chains.insert(chain.into(), Arc::new(lines));
    }
}

/// A rule of these statements.
pub(super) fn rule(statements: impl Into<Vec<Statement>>) -> NftRule {
    NftRule {
        statements: statements.into(),
        comment: String::new(),
    }
}

/// A rule of these statements that ends in a verdict.
pub(super) fn to(verdict: Verdict, when: impl Into<Vec<Statement>>) -> NftRule {
    rule(ended(when.into(), [Statement::Verdict(verdict)]))
}

/// The same, counted for a label.
pub(super) fn labelled(verdict: Verdict, when: impl Into<Vec<Statement>>, label: &Label) -> NftRule {
    let mut comment = label.to_string();
    comment.shrink_to_fit();
    let counted = Statement::Count(counter(&comment));
    let statements = ended(when.into(), [counted, Statement::Verdict(verdict)]);
    NftRule { statements, comment }
}

/// Without room for more: a node with 10,000 policies remembers some 30,000 rules.
fn ended<const N: usize>(when: Vec<Statement>, end: [Statement; N]) -> Vec<Statement> {
    when.into_iter().chain(end).collect()
}

/// The counter of a comment.
pub(super) fn counter(comment: &str) -> String {
    format!("rule-{}", Digest::of(comment))
}

pub(super) fn goto(chain: impl Into<String>) -> Verdict {
    Verdict::Goto(chain.into())
}

pub(super) fn jump(chain: impl Into<String>) -> Verdict {
    Verdict::Jump(chain.into())
}
