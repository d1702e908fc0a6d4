//! Runs: rules of a list that may be one table, and those that are asked behind it.

use std::num::NonZeroU16;

use egret_shared::net::{PortRange, Transport};

use super::*;

/// The most ports of a range that are written out as single ports.
const MOST_PORTS: u16 = 8;

/// Consecutive rules of a list. The table is asked first, then the rules that are in none.
///
/// A rule that is in no table may wait until behind it if all rules of the table that stand behind the rule have its action: which of
/// them decides changes no verdict.
#[derive(Debug)]
pub(super) struct Run<'a> {
    /// All of them, in their order.
    all: Vec<&'a Rule>,
    /// Those in the table.
    table: Vec<&'a Rule>,
    /// Those that are walked.
    walked: Vec<&'a Rule>,
    /// The ports that all of the table is about.
    base: PortMatch,
}

/// A rule in a table.
pub(super) struct Entry<'a> {
    pub(super) action: Action,
    pub(super) set: SetId,
    pub(super) content: Content<'a>,
    pub(super) ports: Ports,
}

/// The ports of a rule in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// All that the table is about.
    Base,
    /// These.
    Listed(Vec<(Transport, NonZeroU16)>),
}

impl<'a> Run<'a> {
    /// The runs of a list, in order.
    pub(super) fn all_of<'b>(
        rules: &[&'a Rule],
        content: &impl Fn(SetId) -> Option<Content<'b>>,
    ) -> Vec<Self> {
        let rules = rules.iter().map(|rule| (*rule, base_of(rule, content)));
        let rules: Vec<(&Rule, Option<PortMatch>)> = rules.collect();
        let is_any = |base: &PortMatch| *base == PortMatch::Any;
        let bases = || rules.iter().filter_map(|(_, base)| *base);
        let base = bases()
            .find(is_any)
            .or_else(|| bases().next())
            .unwrap_or(PortMatch::Any);
        let mut runs: Vec<Self> = Vec::new();
        for (rule, of_rule) in rules {
            let is_in_table = of_rule == Some(base);
            match runs.last_mut() {
                Some(run) if !is_in_table || run.has_only_walked(rule.action) => run.push(rule, is_in_table),
                Some(_) | None => runs.push(Self::starting_with(rule, is_in_table, base)),
            }
        }
        runs
    }

    fn starting_with(rule: &'a Rule, is_in_table: bool, base: PortMatch) -> Self {
        let mut run = Self {
            all: Vec::new(),
            table: Vec::new(),
            walked: Vec::new(),
            base,
        };
        run.push(rule, is_in_table);
        run
    }

    /// Whether all that is walked has this action: then it may wait until behind a rule of the table with the same.
    fn has_only_walked(&self, action: Action) -> bool {
        self.walked.iter().all(|walked| walked.action == action)
    }

    fn push(&mut self, rule: &'a Rule, is_in_table: bool) {
        self.all.push(rule);
        match is_in_table {
            true => self.table.push(rule),
            false => self.walked.push(rule),
        }
    }

    pub(super) const fn is_worth_a_table(&self) -> bool {
        self.count() >= FEW
    }

    /// How many rules are in the table.
    pub(super) const fn count(&self) -> usize {
        self.table.len()
    }

    /// The rules as they are.
    pub(super) fn walked(&self) -> Vec<Rule> {
        self.all.iter().copied().cloned().collect()
    }

    /// The ports that all of the table is about.
    pub(super) const fn base(&self) -> PortMatch {
        self.base
    }

    /// All of them, in their order.
    pub(super) fn rules(&self) -> &[&'a Rule] {
        &self.all
    }

    /// The name of the table: what makes its keys, and nothing else.
    pub(super) fn table_id(&self) -> Digest {
        let mut text = format!("table {:?}", self.base());
        for rule in &self.table {
            let set = peer_set(rule).map(SetId::digest);
            let set = set.as_ref().map_or("", Digest::as_str);
            write!(text, "\n{} {set} {:?}", word(rule.action), rule.port).expect("a String takes all text");
        }
        Digest::of(&text)
    }

    pub(super) fn entries<'b>(&self, content: &impl Fn(SetId) -> Option<Content<'b>>) -> Vec<Entry<'b>> {
        let entry = |rule: &&Rule| {
            let set = peer_set(rule)?;
            let ports = match rule.port {
                port if port == self.base() => Ports::Base,
                port => Ports::Listed(listed(port)?),
            };
            Some(Entry {
                action: rule.action,
                set,
                content: content(set)?,
                ports,
            })
        };
        self.table.iter().filter_map(entry).collect()
    }

    /// The lookups in a table, and behind them the rules that are in none.
    pub(super) fn looked_up(&self, table: &DecisionTable) -> Vec<Rule> {
        let denials = self.denials();
        let lookups = table.lookups().iter().map(|lookup| self.lookup(lookup, &denials));
        lookups.chain(self.walked.iter().copied().cloned()).collect()
    }

    fn lookup(&self, lookup: &Lookup, denials: &Arc<[Rule]>) -> Rule {
        // What is asked behind the table may be the first that matches.
        let mut alike = self.all.iter().filter(|rule| rule.action == lookup.action);
        let first = alike.next().map(|rule| &rule.origin);
        let origin = match first {
            Some(origin) if alike.all(|rule| rule.origin == *origin) => origin.clone(),
            Some(_) | None => Origin {
                policy: SEVERAL.into(),
                rule: 0,
                name: None,
            },
        };
        let is_several = origin.policy.as_ref() == SEVERAL;
        Rule {
            action: lookup.action,
            peer: PeerMatch::In(lookup.set),
            except: None,
            port: lookup.port,
            attribution: (lookup.action == Action::Deny && is_several).then(|| Arc::clone(denials)),
            origin,
        }
    }

    /// All that deny, also those that are asked behind the table: they may be the first.
    fn denials(&self) -> Arc<[Rule]> {
        let denials = self.all.iter().filter(|rule| rule.action == Action::Deny);
        denials.copied().cloned().collect()
    }
}

fn peer_set(rule: &Rule) -> Option<SetId> {
    match rule.peer {
        PeerMatch::In(set) => Some(set),
        PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => None,
    }
}

/// What a table is about that may have this rule; none where the rule is walked.
fn base_of<'b>(rule: &Rule, content: &impl Fn(SetId) -> Option<Content<'b>>) -> Option<PortMatch> {
    let set = peer_set(rule).filter(|_| rule.except.is_none())?;
    let is_plain = rule.port == PortMatch::Any || listed(rule.port).is_some();
    match content(set)? {
        Content::Fixed(_) | Content::Changing(SetKind::Addresses) => {
            Some(if is_plain { PortMatch::Any } else { rule.port })
        }
        Content::Changing(SetKind::AddressPorts) => is_plain.then_some(PortMatch::Any),
        Content::Changing(SetKind::Networks | SetKind::NetworkPorts | SetKind::Records) => None,
    }
}

/// The single ports of a rule, if they are few.
fn listed(port: PortMatch) -> Option<Vec<(Transport, NonZeroU16)>> {
    match port {
        PortMatch::Any | PortMatch::Icmp => None,
        PortMatch::Range(transport, range) => {
            let is_short = range.last() - range.first() < MOST_PORTS;
            is_short.then(|| single(range).map(|port| (transport, port)).collect())
        }
    }
}

fn single(range: PortRange) -> impl Iterator<Item = NonZeroU16> {
    (range.first()..=range.last()).filter_map(NonZeroU16::new)
}
