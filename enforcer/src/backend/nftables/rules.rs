//! Rules under construction: chains by name, and what they deny.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use egret_kernel::Family;
use egret_kernel::nftables::{NftRule, Statement, Verdict};
use egret_policies::rules::{Digest, PortMatch};
use egret_shared::net::PortRange;

use crate::backend::netfilter::denials::Denial;
use crate::backend::netfilter::denials::label::Label;

/// IP protocol numbers.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP_V6: u8 = 58;
pub(super) const SCTP: u8 = 132;

/// Rules of one chain.
pub(super) type Lines = Arc<[NftRule]>;

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
        self.chains.insert(chain.into(), lines.into());
    }
}

/// What rules have alike, in memory once: a node with 10,000 policies remembers some 30,000 rules, and most of them are those of other
/// pods but for where they lead.
#[derive(Debug, Default)]
pub(super) struct AlikeParts {
    statements: HashSet<Arc<[Statement]>>,
    /// Comments and names of chains.
    texts: HashSet<Arc<str>>,
    /// How many parts there were when those that no rule has any more went last.
    kept: usize,
}

impl AlikeParts {
    /// Has the rules take what is there already.
    pub(super) fn share(&mut self, rendered: &mut Rendered) {
        let shared = rendered.shared.values_mut().filter_map(Arc::get_mut);
        let lines = rendered
            .chains
            .values_mut()
            .chain(shared.map(|shared| &mut shared.lines));
        for lines in lines {
            // Others have them besides: they went through here.
            for rule in Arc::get_mut(lines).into_iter().flatten() {
                share(&mut self.statements, &mut rule.statements);
                share(&mut self.texts, &mut rule.comment);
                if let Some(Verdict::Goto(chain) | Verdict::Jump(chain)) = &mut rule.verdict {
                    share(&mut self.texts, chain);
                }
            }
        }
        let parts = |all: &Self| all.statements.len() + all.texts.len();
        if parts(self) > 2 * self.kept {
            self.statements.retain(|one| Arc::strong_count(one) > 1);
            self.texts.retain(|one| Arc::strong_count(one) > 1);
            self.kept = parts(self);
        }
    }
}

fn share<T: ?Sized + Eq + Hash>(known: &mut HashSet<Arc<T>>, part: &mut Arc<T>) {
    match known.get(part) {
        Some(same) => *part = Arc::clone(same),
        None => drop(known.insert(Arc::clone(part))),
    }
}

/// A rule of these statements.
pub(super) fn rule(statements: impl Into<Arc<[Statement]>>) -> NftRule {
    NftRule {
        statements: statements.into(),
        verdict: None,
        comment: "".into(),
    }
}

/// A rule of these statements that ends in a verdict.
pub(super) fn to(verdict: Verdict, when: impl Into<Arc<[Statement]>>) -> NftRule {
    NftRule {
        verdict: Some(verdict),
        ..rule(when)
    }
}

/// The rule, where these hold as well.
pub(super) fn behind(when: &[Statement], rule: &NftRule) -> NftRule {
    NftRule {
        statements: [when, &rule.statements].concat().into(),
        ..rule.clone()
    }
}

/// The same, counted for a label.
pub(super) fn labelled(verdict: Verdict, when: impl Into<Vec<Statement>>, label: &Label) -> NftRule {
    let comment = label.to_string();
    let mut when = when.into();
    when.push(Statement::Count(counter(&comment)));
    NftRule {
        comment: comment.into(),
        ..to(verdict, when)
    }
}

/// The ICMP of a family.
pub(super) const fn icmp(family: Family) -> u8 {
    match family {
        Family::V4 => ICMP,
        Family::V6 => ICMP_V6,
    }
}

/// The port of a rule.
pub(super) fn port(port: PortMatch, family: Family) -> Vec<Statement> {
    match port {
        PortMatch::Any => Vec::new(),
        PortMatch::Icmp => vec![Statement::Protocol(icmp(family))],
        PortMatch::Range(transport, range) if range == PortRange::ALL => {
            vec![Statement::Protocol(transport.number())]
        }
        PortMatch::Range(transport, range) => vec![
            Statement::Protocol(transport.number()),
            Statement::Ports(range.first(), range.last()),
        ],
    }
}

/// The counter of a comment.
pub(super) fn counter(comment: &str) -> String {
    format!("rule-{}", Digest::of(comment))
}

pub(super) fn goto(chain: impl Into<Arc<str>>) -> Verdict {
    Verdict::Goto(chain.into())
}

pub(super) fn jump(chain: impl Into<Arc<str>>) -> Verdict {
    Verdict::Jump(chain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(name: &str, leads_to: &str) -> Rendered {
        let mut rendered = Rendered::default();
        rendered.put(name, vec![to(goto(leads_to), [Statement::Protocol(TCP)])]);
        rendered
    }

    fn statements(rendered: &Rendered) -> Vec<&Arc<[Statement]>> {
        let rules = rendered.chains.values().flat_map(|lines| lines.iter());
        rules.map(|rule| &rule.statements).collect()
    }

    #[test]
    fn what_rules_of_two_pods_have_alike_is_there_once_and_goes_with_them() {
        let mut parts = AlikeParts::default();
        let (mut one, mut other) = (chain("one", "allow-one"), chain("other", "allow-other"));
        parts.share(&mut one);
        parts.share(&mut other);
        assert_eq!(other, chain("other", "allow-other"));
        assert!(Arc::ptr_eq(statements(&one)[0], statements(&other)[0]));
        drop((one, other));
        for number in 0..100 {
            parts.share(&mut chain("one", &format!("allow-{number}")));
        }
        assert!(parts.texts.len() < 20, "{} texts", parts.texts.len());
    }

    #[test]
    fn a_shared_chain_takes_what_is_there_already() {
        let mut parts = AlikeParts::default();
        let mut own = chain("one", "allow-one");
        parts.share(&mut own);
        let lines: Lines = vec![to(Verdict::Drop, [Statement::Protocol(TCP)])].into();
        let shared = SharedChain {
            lines,
            denials: BTreeSet::new(),
        };
        let mut rendered = Rendered::default();
        rendered.shared.insert("shared".to_owned(), Arc::new(shared));
        parts.share(&mut rendered);
        let of_shared = &rendered.shared["shared"].lines[0].statements;
        assert!(Arc::ptr_eq(of_shared, statements(&own)[0]));
    }
}
