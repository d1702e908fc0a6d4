//! Renders the chains of a pod.
//!
//! ```text
//!  FORWARD ─ EGRET-FORWARD ─ replies ▸ return
//!                          ├ EGRET-FROM ─ -i veth ▸ goto EGRET-E-x ─ same generation ▸ return
//!                          │            │                          └ goto the first tier … EGRET-E2-x
//!                          │            │                            ├ to a record of a name ▸ goto EGRET-E6-x, the same with names
//!                          │            │                            ├ rule ▸ goto EGRET-EA-x (asks EGRET-e-x, marks the flow) ▸ return
//!                          │            │                            ├ rule ▸ goto EGRET-DENY
//!                          │            │                            └ goto the next tier … EGRET-ED-x
//!                          │            └ a pod that nobody knows ▸ goto EGRET-UNKNOWN-E ▸ goto EGRET-DENY
//!                          └ EGRET-TO ─── -o veth ▸ goto EGRET-I-x ─ the same for ingress
//!  INPUT ─── EGRET-INPUT ─── EGRET-FROM                  (a pod to its own node)
//! ```
//!
//! The verdict is control flow. The mark is written only after an Allow and read only to skip the rules, so the same
//! chains judge a packet without a connection (`NOTRACK`). An allowed packet returns and is not accepted: the chains of
//! the other end and foreign rules still judge it.

use std::net::IpAddr;

use egret_kernel::iptables::{
    ChainName, Endpoint, InterfaceName, Match, Protocol, Rule as Line, SetLookup, Target,
};
use egret_kernel::{Family, Mark};
use egret_policies::rules::{
    Action, DefaultAction, Direction, DirectionRules, OWN_NODE, PeerMatch, PodRules, PortMatch, Rule, SetId,
    SetKind, Tier, TierRules,
};
use egret_shared::net::PortRange;

use ipnet::IpNet;

use super::chains::Chains;
use super::conn_state;
use super::encapsulation;
use super::nflog;
use crate::backend::netfilter::denials::label::{Label, RuleMode};
use crate::backend::netfilter::denials::{self, Denial};
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::{self, Decider, VerdictKey};

mod attribution;
mod audit;
mod external_clients;
mod port_groups;
pub(in crate::backend) mod shadowed_rules;
mod shared_denials;
mod tiers;

pub(in crate::backend::netfilter) use audit::why_not_audited;
pub use external_clients::exposed;

use crate::backend::netfilter::marks::PodMarks;
use attribution::Attributions;
use port_groups::{PortGroup, PortSplit};
use tiers::TierGroup;

/// What a pod's chains depend on besides its rules.
#[derive(Clone, Copy, Debug)]
pub struct RenderContext<'a> {
    /// The family of the table.
    pub family: Family,
    /// The sets that exist. A rule over a missing set closes: an Allow allows nothing, a Deny or Pass denies
    /// everything.
    pub sets: &'a AvailableSets,
    /// The known interfaces of the pod.
    pub interfaces: &'a [InterfaceName],
    /// Whether denied packets are logged.
    pub tells: bool,
}

/// All chains of a pod.
#[must_use]
pub fn pod(rules: &PodRules, marks: PodMarks, context: RenderContext<'_>) -> Chains {
    let each = |which| direction(rules, which, marks, context);
    Direction::ALL.into_iter().flat_map(each).collect()
}

/// The chains of a pod that contain its generation. The other chains do not depend on it.
#[must_use]
pub fn generation(rules: &PodRules, marks: PodMarks, context: RenderContext<'_>) -> Chains {
    let each = |which| {
        let mut pod = PodDirection::of(rules, which, context);
        pod.render_generation(&in_order(rules.direction(which)), marks.of(which));
        if audit::is_asked(rules, which, context.sets) {
            pod.ask_audit();
        }
        pod.out
    };
    Direction::ALL.into_iter().flat_map(each).collect()
}

/// The chains of a pod for one direction.
#[must_use]
pub fn direction(
    rules: &PodRules,
    direction: Direction,
    marks: PodMarks,
    context: RenderContext<'_>,
) -> Chains {
    let mut pod = PodDirection::of(rules, direction, context);
    pod.render(rules.direction(direction), marks.of(direction));
    if audit::is_asked(rules, direction, context.sets) {
        pod.ask_audit();
        pod.render_audit(rules.audit.direction(direction));
    }
    pod.out
}

/// A pod and a direction while its chains are written.
struct PodDirection<'a> {
    chains: PodChains,
    direction: Direction,
    /// The pod's own addresses in the family.
    own: Vec<IpNet>,
    context: RenderContext<'a>,
    mode: RuleMode,
    /// The name of a list's chain.
    tier_chain: fn(PodChains, Direction, Tier, usize) -> ChainName,
    /// The ports that every packet in the current chain has.
    ports: Option<PortGroup>,
    /// The number of further chains through which a packet may go.
    spare: usize,
    attributions: Attributions,
    out: Chains,
}

impl<'a> PodDirection<'a> {
    fn of(rules: &PodRules, direction: Direction, context: RenderContext<'a>) -> Self {
        Self {
            chains: PodChains::of(&rules.pod),
            direction,
            own: own_addresses(rules, context.family),
            context,
            mode: RuleMode::Enforced,
            tier_chain: PodChains::tier,
            ports: None,
            spare: audit::spare(rules, direction),
            attributions: Attributions::new(),
            out: Chains::new(),
        }
    }

    fn render(&mut self, rules: &DirectionRules, mark: Mark) {
        let tiers = in_order(rules);
        let (name, mut lines) = self.render_generation(&tiers, mark);
        self.render_unsolicited(&tiers);
        let Some((records, without)) = self.without_names(rules) else {
            return self.put_rules(&tiers, name, lines);
        };
        let spare = self.spare;
        self.tier_chain = PodChains::tier_with_names;
        let with_names = self.first(&tiers);
        self.put_rules(&tiers, with_names.clone(), Vec::new());
        self.tier_chain = PodChains::tier;
        self.spare = spare;
        lines.push(Line::to(Target::Goto(with_names)).when(records));
        self.put_rules(&without.iter().collect::<Vec<_>>(), name, lines);
    }

    /// Where names are said apart ([`egret_policies::rules::Names`]): to what they are asked, and the rules for all else.
    fn without_names<'r>(&self, rules: &'r DirectionRules) -> Option<(Match, &'r [TierRules])> {
        let names = rules.names.as_ref()?;
        let records = self.is_there(names.records).then(|| self.lookup(names.records))?;
        Some((records, names.without.as_deref()?))
    }

    /// Puts the rules of a direction from a chain on, which begins with these lines.
    fn put_rules(&mut self, tiers: &[&TierRules], first: ChainName, lines: Vec<Line>) {
        let (name, mut lines) = self.parts(&TierGroup::of(tiers), first, lines);
        let allow = Target::Goto(self.chains.allow(self.direction));
        let default = Label::of_no_policy(Decider::Default, backend::Action::Allow, self.direction);
        if self.direction == Direction::Egress {
            lines.extend(encapsulation::ask(self.context.family));
        }
        lines.push(self.labelled(Line::to(allow), &default));
        self.put(&name, lines);
    }

    /// The first chain of the rules, after the chains that contain the generation.
    fn first(&self, tiers: &[&TierRules]) -> ChainName {
        match tiers.first() {
            Some(first) => self.chain(first.tier, 0),
            None => self.chains.default(self.direction),
        }
    }

    fn chain(&self, tier: Tier, place: usize) -> ChainName {
        (self.tier_chain)(self.chains, self.direction, tier, place)
    }

    /// Renders the chain for ICMP errors and for packets without a connection.
    fn render_unsolicited(&mut self, tiers: &[&TierRules]) {
        let own: Vec<IpAddr> = self.own.iter().map(IpNet::addr).collect();
        let label = Label::of_no_policy(Decider::SpoofedError, backend::Action::Deny, self.direction);
        let spoofed = || Line::to(self.denial(&label)).comment(&label.to_string());
        let own = match self.direction {
            Direction::Egress => Some((own.as_slice(), spoofed())),
            // The kernel compares the receiver with the source of the quoted packet (`nf_conntrack_inet_error` of
            // net/netfilter/nf_conntrack_proto_icmp.c).
            Direction::Ingress => None,
        };
        let lines = conn_state::judge_unsolicited(self.context.family, own, Target::Goto(self.first(tiers)));
        self.put(&self.chains.related(self.direction), lines);
    }

    /// The lines before the rules: packets that open no connection, then connections of the current generation. The order matters: a
    /// connection that a conntrack helper expects has the mark of its master (`init_conntrack` of net/netfilter/nf_conntrack_core.c).
    fn head(&self, mark: Mark) -> Vec<Line> {
        let fast = Line::to(Target::Return).when(Match::Connmark(mark));
        let unsolicited = conn_state::unsolicited(self.chains.related(self.direction));
        vec![unsolicited, fast]
    }

    /// Renders the chains that contain the generation. Returns the first chain of the rules, and its first lines.
    fn render_generation(&mut self, tiers: &[&TierRules], mark: Mark) -> (ChainName, Vec<Line>) {
        self.put(
            &self.chains.allow(self.direction),
            vec![Line::to(Target::SetConnmark(mark))],
        );
        let (entry, mut lines) = (self.chains.entry(self.direction), self.head(mark));
        // The entry chain contains the generation alone, so a new generation rewrites no rules.
        let first = self.first(tiers);
        lines.push(Line::to(Target::Goto(first.clone())));
        self.put(&entry, lines);
        (first, Vec::new())
    }

    fn tier(&mut self, tier: &TierRules, next: &Target) -> Vec<Line> {
        let rules = shadowed_rules::without(tier.rules.iter(), self.context.sets, self.context.family);
        self.put_attributions(tier, &rules);
        if self.spare == 0 {
            return self.all_of(tier, &rules, next);
        }
        let split = PortSplit::of(&rules, |rule| rule.port);
        let mut lines = Vec::new();
        for (ports, rules) in &split.alike {
            let chain = self.next_of_ports();
            lines.push(self.port(Line::to(Target::Goto(chain.clone())), ports.wanted()));
            self.ports = Some(*ports);
            let behind = self.all_of(tier, rules, next);
            self.ports = None;
            self.put(&chain, behind);
        }
        self.spare -= usize::from(!split.alike.is_empty());
        lines.extend(self.all_of(tier, &split.rest, next));
        lines
    }

    fn next_of_ports(&self) -> ChainName {
        let chain = |place| self.chains.ports(self.direction, place);
        let mut free = (0..)
            .map(chain)
            .filter(|chain| !self.out.contains_key(chain.as_str()));
        free.next().expect("there are more numbers than lists")
    }

    /// The lines of these rules of a list, and of its default.
    fn all_of(&mut self, tier: &TierRules, rules: &[&Rule], next: &Target) -> Vec<Line> {
        let mut lines = self.lines_of(tier, rules, next);
        lines.push(match tier.default_action {
            DefaultAction::NextTier => Line::to(next.clone()),
            DefaultAction::Deny => self.isolation(tier),
        });
        lines
    }

    fn rules(&mut self, tier: &TierRules, next: &Target) -> Vec<Line> {
        let rules = shadowed_rules::without(tier.rules.iter(), self.context.sets, self.context.family);
        self.put_attributions(tier, &rules);
        let rules = rules.into_iter();
        rules.flat_map(|rule| self.lines(tier, rule, next)).collect()
    }

    fn isolation(&self, tier: &TierRules) -> Line {
        let label = Label {
            key: self.key(tier, Action::Deny),
            rule: 0,
            policy: denials::ISOLATION.into(),
        };
        self.labelled(Line::to(self.denial(&label)), &label)
    }

    fn lines(&self, tier: &TierRules, rule: &Rule, next: &Target) -> Vec<Line> {
        match rule.peer {
            PeerMatch::Itself => self.meeting_itself(tier, rule, next),
            PeerMatch::OwnNode if is_exemption(rule) && self.mode == RuleMode::Enforced => {
                let guard = Line::to(Target::Jump(names::encapsulation())).when(Match::ToThisHost);
                std::iter::once(guard)
                    .chain(self.rule(tier, rule, next))
                    .collect()
            }
            PeerMatch::Any | PeerMatch::In(_) | PeerMatch::OwnNode => {
                self.rule(tier, rule, next).into_iter().collect()
            }
        }
    }

    /// Hairpin traffic of a Service has the pod's address at both ends when it is forwarded: masquerading to the node's
    /// address comes after our chains. The input interface is the pod's, so another pod that uses the address gains
    /// nothing.
    fn meeting_itself(&self, tier: &TierRules, rule: &Rule, next: &Target) -> Vec<Line> {
        let back = |own: &IpNet| match self.direction {
            Direction::Egress => vec![Line::to(self.target(tier, rule, next)).destination(*own)],
            Direction::Ingress => {
                let through = |interface: &InterfaceName| {
                    let line = Line::to(self.target(tier, rule, next)).source(*own);
                    line.input(interface.clone())
                };
                self.context.interfaces.iter().map(through).collect()
            }
        };
        let lines = self.own.iter().flat_map(back);
        lines
            .map(|line| self.labelled(self.port(line, rule.port), &self.label(tier, rule, rule.action)))
            .collect()
    }

    /// The line of a rule; none for an Allow over a missing set.
    fn rule(&self, tier: &TierRules, rule: &Rule, next: &Target) -> Option<Line> {
        let is_whole = rule.except.is_none_or(|id| self.context.sets.contains_key(&id));
        let peer = if is_whole {
            self.peer(&rule.peer)
        } else {
            Peer::Missing
        };
        let peer = match (peer, rule.action) {
            (Peer::Missing, Action::Allow) => return None,
            (peer, Action::Allow | Action::Deny | Action::Pass) => peer,
        };
        let attribution = self.attribution(rule).filter(|_| !matches!(peer, Peer::Missing));
        let (action, line) = match peer {
            Peer::Missing => {
                let label = self.label(tier, rule, Action::Deny);
                (Action::Deny, Line::to(self.denial(&label)))
            }
            Peer::Any => (
                rule.action,
                self.excepting(
                    rule,
                    self.port(Line::to(self.target(tier, rule, next)), rule.port),
                ),
            ),
            Peer::Matching(condition) => {
                let line = self.port(Line::to(self.target(tier, rule, next)), rule.port);
                (rule.action, self.excepting(rule, line.when(condition)))
            }
        };
        Some(match attribution {
            // It is counted where it is known which rule it is.
            Some(_) => line,
            None => self.labelled(line, &self.label(tier, rule, action)),
        })
    }

    fn label(&self, tier: &TierRules, rule: &Rule, action: Action) -> Label {
        Label::of_policy(self.key(tier, action), &rule.origin)
    }

    fn key(&self, tier: &TierRules, action: Action) -> VerdictKey {
        self.mode.verdict(tier.tier, action, self.direction)
    }

    /// In audit mode only rules that would deny are counted.
    fn labelled(&self, line: Line, label: &Label) -> Line {
        if self.mode.is_labelled(label.key) {
            line.comment(&label.to_string())
        } else {
            line
        }
    }

    fn port(&self, line: Line, port: PortMatch) -> Line {
        match port {
            port if self.ports.is_some_and(|ports| ports.imply(port)) => line,
            PortMatch::Any => line,
            PortMatch::Icmp => line.protocol(conn_state::icmp(self.context.family)),
            PortMatch::Range(transport, range) if range == PortRange::ALL => {
                line.protocol(Protocol::any_port(transport))
            }
            PortMatch::Range(transport, range) => {
                line.protocol(Protocol::to_ports(transport, range.first()..=range.last()))
            }
        }
    }

    /// Excludes the exceptions of the rule.
    fn excepting(&self, rule: &Rule, line: Line) -> Line {
        match rule.except.filter(|id| self.is_there(*id)) {
            Some(id) => line.unless(self.lookup(id)),
            None => line,
        }
    }

    fn side(&self) -> Endpoint {
        match self.direction {
            Direction::Egress => Endpoint::Destination,
            Direction::Ingress => Endpoint::Source,
        }
    }

    /// Whether a set exists in the family of the table. One of the other family alone has no members here.
    fn is_there(&self, id: SetId) -> bool {
        let set = self.context.sets.get(&id);
        set.is_some_and(|set| set.families.has(self.context.family))
    }

    fn lookup(&self, id: SetId) -> Match {
        Match::Set(names::set(id, self.context.family), self.sides(id))
    }

    fn sides(&self, id: SetId) -> SetLookup {
        match self.context.sets.get(&id).map(|set| set.kind) {
            Some(SetKind::AddressPorts | SetKind::NetworkPorts) => {
                SetLookup::Two(self.side(), Endpoint::Destination)
            }
            Some(SetKind::Addresses | SetKind::Networks | SetKind::Records) | None => {
                SetLookup::One(self.side())
            }
        }
    }

    fn peer(&self, peer: &PeerMatch) -> Peer {
        match peer {
            PeerMatch::Any => Peer::Any,
            PeerMatch::OwnNode => Peer::Matching(Match::ToThisHost),
            PeerMatch::In(id) if self.is_there(*id) => Peer::Matching(self.lookup(*id)),
            PeerMatch::In(_) | PeerMatch::Itself => Peer::Missing,
        }
    }

    fn target(&self, tier: &TierRules, rule: &Rule, next: &Target) -> Target {
        match (rule.action, self.mode) {
            (Action::Allow, RuleMode::Enforced) => Target::Goto(self.chains.allow(self.direction)),
            (Action::Allow, RuleMode::Audit) => Target::Return,
            (Action::Deny, _) => match self.attribution(rule) {
                Some(chain) => Target::Goto(chain.clone()),
                None => self.denial(&self.label(tier, rule, rule.action)),
            },
            (Action::Pass, _) => next.clone(),
        }
    }

    /// The target that denies with the reason of the label, or logs it in audit mode.
    fn denial(&self, label: &Label) -> Target {
        let is_exposed = self.chains == PodChains::of_node();
        let denial = Denial::of_label(label, is_exposed);
        match self.mode {
            RuleMode::Enforced => nflog::target(denial, self.context.tells),
            RuleMode::Audit => nflog::would_target(denial, self.context.tells),
        }
    }

    fn put(&mut self, name: &ChainName, lines: Vec<Line>) {
        self.out.insert(
            name.as_str().to_owned(),
            lines.iter().map(Line::to_string).collect(),
        );
    }
}

fn in_order(rules: &DirectionRules) -> Vec<&TierRules> {
    rules.tiers.iter().collect()
}

fn own_addresses(rules: &PodRules, family: Family) -> Vec<IpNet> {
    let addresses = rules.addresses.iter();
    addresses
        .filter(|address| Family::of(**address) == family)
        .map(|address| IpNet::from(*address))
        .collect()
}

/// Whether a rule is the exemption of the pod's own node, which comes from no policy.
fn is_exemption(rule: &Rule) -> bool {
    rule.origin.policy.as_ref() == OWN_NODE && rule.port == PortMatch::Any
}

enum Peer {
    Any,
    Matching(Match),
    Missing,
}
