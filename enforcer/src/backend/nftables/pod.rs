//! Renders the chains of a pod.
//!
//! ```text
//!  egress ─ iifname vmap ▸ goto EGRET-E-x ─ same generation ▸ accept
//!                                         ├ invalid or related ▸ jump EGRET-ER-x ▸ return
//!                                         └ by family, goto EGRET-E-x-4
//!                                           ├ to a record of a name ▸ goto EGRET-E5-x-4, the same with the rules over names
//!                                           ├ rule ▸ goto EGRET-EA-x ─ marks the flow ▸ accept
//!                                           ├ rule ▸ goto EGRET-D-r ▸ drop
//!                                           ├ jump EGRET-E1-x-4, a list in which rules pass ▸ return
//!                                           └ goto EGRET-EA-x
//! ```
//!
//! Egress and ingress have base chains of their own, so an allowed packet is accepted there: other base chains, ours and those of
//! others, go on judging. Pass is the return from a list's own chain, so the depth does not grow with the number of lists.

use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::iptables::{ChainName, InterfaceName, InterfacePattern};
use egret_kernel::nftables::{ConnState, Key, NftRule, Statement, Verdict};
use egret_kernel::{Family, Mark};
use egret_policies::rules::{
    Action, DefaultAction, Digest, Direction, DirectionRules, Names, NodeRules, OWN_NODE, PeerMatch,
    PodRules, PortMatch, Rule, SetId, SetKind, Tier, TierRules,
};
use egret_shared::net::IpNet;

use super::denial::Ends;
use super::rules::{Rendered, SharedChain, goto, icmp, jump, labelled, port, rule, to};
use super::sets::KernelSet;
use crate::backend::netfilter::denials::label::{Label, RuleMode};
use crate::backend::netfilter::denials::{Denial, ISOLATION};
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::netfilter::render::shadowed_rules;
use crate::backend::{self, Decider, VerdictKey};

/// What a pod's chains depend on besides its rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenderContext<'a> {
    /// The sets that exist. A rule over a missing set closes: an Allow allows nothing, a Deny or Pass denies everything.
    pub(super) sets: &'a AvailableSets,
    /// The known interfaces of the pod.
    pub(super) interfaces: &'a [InterfaceName],
    pub(super) ends: Ends,
}

/// The beginning of the comment that says with which mark a chain compares.
const MARK: &str = "mark ";
/// The beginning of the comment that says what the rules of a direction are.
const RULES: &str = "rules ";

/// All chains of a pod.
pub(super) fn pod(rules: &PodRules, marks: PodMarks, context: RenderContext<'_>) -> Rendered {
    let mut out = Rendered::default();
    for direction in Direction::ALL {
        let one = direction_chains(rules, direction, context);
        put_generation(rules, direction, marks.of(direction), &digest(&one), &mut out);
        out.chains.extend(one.chains);
        out.denials.extend(one.denials);
        out.shared.extend(one.shared);
    }
    out
}

/// Renders anew the chains that contain the generation, of a pod whose rules are the same.
pub(super) fn renew_generation(rules: &PodRules, marks: PodMarks, out: &mut Rendered) {
    for direction in Direction::ALL {
        let entry = out
            .chains
            .get(PodChains::of(&rules.pod).entry(direction).as_str());
        let comments = entry.into_iter().flat_map(|lines| lines.iter());
        let digest = comments.filter_map(|line| digest_in(&line.comment)).next();
        let digest = digest.unwrap_or_default().to_owned();
        put_generation(rules, direction, marks.of(direction), &digest, out);
    }
}

/// What the rules of a direction are, whatever generation they have.
pub(super) fn digest_of(rules: &PodRules, direction: Direction, context: RenderContext<'_>) -> String {
    digest(&direction_chains(rules, direction, context))
}

/// The mark in the comment of an entry chain's rule, as value and mask.
pub(super) fn mark_in(comment: &str) -> Option<(u32, u32)> {
    let (value, mask) = comment.strip_prefix(MARK)?.split_once('/')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    number(value).zip(number(mask))
}

/// The digest in the comment of an entry chain's rule.
pub(super) fn digest_in(comment: &str) -> Option<&str> {
    comment.strip_prefix(RULES)
}

fn digest(rendered: &Rendered) -> String {
    Digest::of(&format!("{:?}", rendered.chains)).to_string()
}

/// The name of a chain's part for a family.
pub(super) fn of_family(chain: &str, family: Family) -> String {
    let digit = match family {
        Family::V4 => '4',
        Family::V6 => '6',
    };
    format!("{chain}-{digit}")
}

/// The first chain of a pod's rules of a family, behind the look at marks.
pub(super) fn rules_chain(chains: PodChains, direction: Direction, family: Family) -> String {
    of_family(chains.entry(direction).as_str(), family)
}

fn put_generation(rules: &PodRules, direction: Direction, mark: Mark, digest: &str, out: &mut Rendered) {
    let chains = PodChains::of(&rules.pod);
    let related = chains.related(direction);
    let mut entry = vec![
        // A connection that a conntrack helper expects has the mark of its master, so that one is not looked at.
        NftRule {
            comment: format!("{MARK}{:x}/{:x}", mark.value(), mark.mask()).into(),
            ..to(
                Verdict::Accept,
                [Statement::Mark(mark, true), Statement::State(UNSOLICITED, false)],
            )
        },
        // It comes back here, and does not lead on to the rules itself: the kernel checks all that a chain leads to once for each way
        // to it.
        to(jump(related.as_str()), [Statement::State(UNSOLICITED, true)]),
    ];
    entry.extend(by_family(chains.entry(direction).as_str()));
    if let Some(last) = entry.last_mut() {
        last.comment = format!("{RULES}{digest}").into();
    }
    out.put(chains.entry(direction).as_str(), entry);
    let audit = !rules.audit.direction(direction).tiers.is_empty();
    let end = match audit {
        true => goto(chains.audit(direction).as_str()),
        false => Verdict::Accept,
    };
    out.put(
        chains.allow(direction).as_str(),
        // Two rules: what has no connection has no mark to set, and is allowed all the same.
        vec![rule([Statement::SetMark(mark)]), to(end, [])],
    );
}

fn by_family(chain: &str) -> Vec<NftRule> {
    let each = |family| to(goto(of_family(chain, family)), [Statement::Family(family)]);
    Family::ALL.map(each).into()
}

/// The chains of a direction without those that contain the generation.
fn direction_chains(rules: &PodRules, direction: Direction, context: RenderContext<'_>) -> Rendered {
    let chains = PodChains::of(&rules.pod);
    let mut out = Rendered::default();
    let related = unsolicited(rules, direction, context, &mut out);
    out.put(chains.related(direction).as_str(), related);
    for family in Family::ALL {
        let renderer = Renderer {
            chains,
            direction,
            family,
            own: own_addresses(rules, family),
            mode: RuleMode::Enforced,
            tier_chain: PodChains::tier,
            context,
        };
        let mut end = Vec::new();
        if direction == Direction::Egress {
            end.extend(encapsulated(family));
        }
        let label = Label::of_no_policy(Decider::Default, backend::Action::Allow, direction);
        let allow = goto(chains.allow(direction).as_str());
        end.push(labelled(allow, [], &label));
        renderer.put_rules(rules.direction(direction), end, &mut out);
    }
    let audit = rules.audit.direction(direction);
    if !audit.tiers.is_empty() {
        put_audit(rules, direction, audit, context, &mut out);
    }
    out
}

/// What the mark of a connection says nothing of.
const UNSOLICITED: &[ConnState] = &[ConnState::Invalid, ConnState::Related];

/// Packets of no connection, and ICMP errors: invalid ones are denied, since conntrack could neither translate nor answer them. An
/// error of a pod quotes a packet of a connection of that pod. All else is judged by the rules.
fn unsolicited(
    rules: &PodRules,
    direction: Direction,
    context: RenderContext<'_>,
    out: &mut Rendered,
) -> Vec<NftRule> {
    let mut lines = vec![to(Verdict::Drop, [Statement::State(&[ConnState::Invalid], true)])];
    for family in Family::ALL {
        let is_icmp = [Statement::Family(family), Statement::Protocol(icmp(family))];
        match direction {
            Direction::Ingress => lines.push(to(Verdict::Accept, is_icmp)),
            Direction::Egress => {
                for address in own_addresses(rules, family) {
                    let about = |end| {
                        let related = Statement::State(&[ConnState::Related], true);
                        to(Verdict::Accept, [&is_icmp[..], &[related, end]].concat())
                    };
                    lines.push(about(Statement::OpenedFrom(address)));
                    lines.push(about(Statement::AnsweredFrom(address)));
                }
                let label = Label::of_no_policy(Decider::SpoofedError, backend::Action::Deny, direction);
                let end = context.ends.target(Denial::of_label(&label, false), out);
                lines.push(labelled(end, is_icmp, &label));
            }
        }
    }
    lines
}

/// Packets to the node, by unicast or multicast, are asked whether something else is inside. In IPv6 the type UNICAST includes
/// addresses of this host (`match_type6` of net/netfilter/xt_addrtype.c).
fn encapsulated(family: Family) -> Vec<NftRule> {
    let ask = || jump(names::encapsulation().as_str());
    match family {
        Family::V4 => vec![to(ask(), [Statement::IsToAnotherHost(false)])],
        Family::V6 => {
            let groups: IpNet = "ff00::/8".parse().expect("it is a network");
            vec![
                to(ask(), [Statement::IsToThisHost(true)]),
                to(ask(), [Statement::Destination(groups)]),
            ]
        }
    }
}

/// What policies in audit would do; they drop nothing.
fn put_audit(
    rules: &PodRules,
    direction: Direction,
    audit: &DirectionRules,
    context: RenderContext<'_>,
    out: &mut Rendered,
) {
    let chains = PodChains::of(&rules.pod);
    let name = chains.audit(direction).as_str().to_owned();
    // Packets that an Allow over a missing set allows would be logged as denied, so then nothing is evaluated.
    if audit.sets().any(|id| !context.sets.contains_key(&id)) {
        out.put(name, vec![to(Verdict::Accept, [])]);
        return;
    }
    out.put(name.clone(), by_family(&name));
    for family in Family::ALL {
        let renderer = Renderer {
            chains,
            direction,
            family,
            own: own_addresses(rules, family),
            mode: RuleMode::Audit,
            tier_chain: PodChains::audit_tier,
            context,
        };
        let mut lines = renderer.lists(&audit.tiers, out);
        lines.push(to(Verdict::Accept, []));
        out.put(of_family(&name, family), lines);
    }
}

/// The chains of the node's rules, for clients outside whom a Service leads on. Every packet is judged and none is marked.
pub(super) fn exposed(rules: &NodeRules, context: RenderContext<'_>) -> Rendered {
    let chains = PodChains::of_node();
    let direction = Direction::Egress;
    let mut out = Rendered::default();
    let name = chains.entry(direction).as_str().to_owned();
    let loopback = InterfaceName::new("lo").expect("two letters are a name");
    // Packets from the node to its own address pass here too.
    let mut entry = vec![to(
        Verdict::Accept,
        [Statement::Input(InterfacePattern::from(loopback))],
    )];
    for family in Family::ALL {
        let related = [
            Statement::Family(family),
            Statement::Protocol(icmp(family)),
            Statement::State(&[ConnState::Related], true),
        ];
        entry.push(to(Verdict::Accept, related));
    }
    entry.extend(by_family(&name));
    out.put(name.clone(), entry);
    out.put(chains.allow(direction).as_str(), vec![to(Verdict::Accept, [])]);
    for family in Family::ALL {
        let renderer = Renderer {
            chains,
            direction,
            family,
            own: Vec::new(),
            mode: RuleMode::Enforced,
            tier_chain: PodChains::tier,
            context,
        };
        let lines = renderer.lists(&rules.exposed.tiers, &mut out);
        out.put(of_family(&name, family), lines);
    }
    out
}

struct Renderer<'a> {
    chains: PodChains,
    direction: Direction,
    family: Family,
    /// The pod's own addresses in the family.
    own: Vec<IpAddr>,
    mode: RuleMode,
    /// The name of a list's own chain.
    tier_chain: fn(PodChains, Direction, Tier, usize) -> ChainName,
    context: RenderContext<'a>,
}

impl Renderer<'_> {
    /// Puts the rules of a direction: for addresses in no record of a name those without names, if they are said apart.
    fn put_rules(&self, rules: &DirectionRules, end: Vec<NftRule>, out: &mut Rendered) {
        let mut lines = match (&rules.names, rules.tiers.first()) {
            (
                Some(Names {
                    records,
                    without: Some(without),
                }),
                Some(first),
            ) if self.is_there(*records) => {
                let with_names = Self {
                    own: self.own.clone(),
                    tier_chain: PodChains::tier_with_names,
                    ..*self
                };
                let chain = with_names.chain(first.tier, 0);
                let mut asked = with_names.lists(&rules.tiers, out);
                asked.extend(end.iter().cloned());
                out.put(chain.clone(), asked);
                let mut lines = vec![to(goto(chain), [self.lookup(*records, true)])];
                lines.extend(self.lists(without, out));
                lines
            }
            _ => self.lists(&rules.tiers, out),
        };
        lines.extend(end);
        out.put(rules_chain(self.chains, self.direction, self.family), lines);
    }

    /// The lines of all lists, in order. A list in which rules pass has a chain of its own.
    fn lists(&self, tiers: &[TierRules], out: &mut Rendered) -> Vec<NftRule> {
        let mut lines = Vec::new();
        for (place, tier) in tiers.iter().enumerate() {
            let of_list = self.list(tier, out);
            if tier.rules.iter().all(|rule| rule.action != Action::Pass) {
                lines.extend(of_list);
                continue;
            }
            let chain = self.chain(tier.tier, place + 1);
            out.put(chain.clone(), of_list);
            lines.push(to(jump(chain), []));
        }
        lines
    }

    fn chain(&self, tier: Tier, place: usize) -> String {
        let chain = (self.tier_chain)(self.chains, self.direction, tier, place);
        of_family(chain.as_str(), self.family)
    }

    fn list(&self, tier: &TierRules, out: &mut Rendered) -> Vec<NftRule> {
        let mut lines = Vec::new();
        for rule in shadowed_rules::without(tier.rules.iter(), self.context.sets, self.family) {
            self.rule(tier, rule, out, &mut lines);
        }
        match tier.default_action {
            DefaultAction::NextTier => {}
            DefaultAction::Deny => {
                let label = Label {
                    key: self.key(tier, Action::Deny),
                    rule: 0,
                    policy: ISOLATION.into(),
                };
                let end = self.denial(&label, out);
                lines.push(self.labelled(end, Vec::new(), &label));
            }
        }
        lines
    }

    /// Which rule denies a packet that a decision table denies ([`egret_policies::decision`]): a chain of the Deny rules in their order,
    /// which allowed packets do not enter. It names nothing of a single pod, so all pods with the same rules share it. Its last line
    /// denies.
    ///
    /// ```text
    ///  EGRET-E-x-4 ─ in the denied keys ▸ goto EGRET-S-d ─ deny rule ▸ goto EGRET-D-r
    ///              │                                     └ several   ▸ goto EGRET-D-t
    ///              └ in the allowed keys ▸ goto EGRET-EA-x
    /// ```
    fn attribution(&self, tier: &TierRules, rule: &Rule, rules: &[Rule], out: &mut Rendered) -> Verdict {
        let mut of_chain = Rendered::default();
        let mut lines = Vec::new();
        for rule in shadowed_rules::without(rules, self.context.sets, self.family) {
            self.rule(tier, rule, &mut of_chain, &mut lines);
        }
        let label = self.label(tier, rule, Action::Deny);
        let end = self.denial(&label, &mut of_chain);
        lines.push(self.labelled(end, Vec::new(), &label));
        let chain = names::shared_denials(Digest::of(&format!("{lines:?}")))
            .as_str()
            .to_owned();
        let shared = SharedChain {
            lines: lines.into(),
            denials: of_chain.denials,
        };
        out.shared.insert(chain.clone(), Arc::new(shared));
        goto(chain)
    }

    fn rule(&self, tier: &TierRules, rule: &Rule, out: &mut Rendered, lines: &mut Vec<NftRule>) {
        let is_missing = rule.own_sets().any(|id| !self.context.sets.contains_key(&id));
        match (&rule.peer, rule.action) {
            (_, Action::Allow) if is_missing => {}
            (_, Action::Deny | Action::Pass) if is_missing => {
                let label = self.label(tier, rule, Action::Deny);
                let end = self.denial(&label, out);
                lines.push(self.labelled(end, Vec::new(), &label));
            }
            (PeerMatch::Itself, _) => {
                for peer in self.itself() {
                    self.push(tier, rule, peer, out, lines);
                }
            }
            (PeerMatch::Any, _) => self.push(tier, rule, Vec::new(), out, lines),
            (PeerMatch::In(id), _) => self.push(tier, rule, vec![self.lookup(*id, true)], out, lines),
            (PeerMatch::OwnNode, _) => {
                let peer = Statement::IsToThisHost(true);
                if self.mode == RuleMode::Enforced
                    && rule.origin.policy.as_ref() == OWN_NODE
                    && rule.port == PortMatch::Any
                {
                    lines.push(to(jump(names::encapsulation().as_str()), [peer.clone()]));
                }
                self.push(tier, rule, vec![peer], out, lines);
            }
        }
    }

    fn push(
        &self,
        tier: &TierRules,
        rule: &Rule,
        peer: Vec<Statement>,
        out: &mut Rendered,
        lines: &mut Vec<NftRule>,
    ) {
        let label = self.label(tier, rule, rule.action);
        let end = match (rule.action, &rule.attribution, self.mode) {
            (Action::Allow, _, RuleMode::Enforced) => goto(self.chains.allow(self.direction).as_str()),
            (Action::Allow, _, RuleMode::Audit) => Verdict::Accept,
            (Action::Deny, Some(rules), _) => self.attribution(tier, rule, rules, out),
            (Action::Deny, None, _) => self.denial(&label, out),
            (Action::Pass, _, _) => Verdict::Return,
        };
        let mut when = port(rule.port, self.family);
        when.extend(peer);
        let except = rule.except.filter(|id| self.is_there(*id));
        when.extend(except.map(|id| self.lookup(id, false)));
        lines.push(match rule.attribution {
            // It is counted where it is known which rule it is.
            Some(_) => to(end, when),
            None => self.labelled(end, when, &label),
        });
    }

    /// A pod that a Service leads back to itself has its own address at both ends: masquerading comes after our chains. The input
    /// interface is the pod's, so another pod that uses the address gains nothing.
    fn itself(&self) -> Vec<Vec<Statement>> {
        let back = |own: &IpAddr| match self.direction {
            Direction::Egress => vec![vec![Statement::Destination(IpNet::from(*own))]],
            Direction::Ingress => {
                let through = |interface: &InterfaceName| {
                    let input = Statement::Input(InterfacePattern::from(interface.clone()));
                    vec![Statement::Source(IpNet::from(*own), true), input]
                };
                self.context.interfaces.iter().map(through).collect()
            }
        };
        self.own.iter().flat_map(back).collect()
    }

    /// Whether a set is there; one without members of this family is not.
    fn is_there(&self, id: SetId) -> bool {
        let set = self.context.sets.get(&id);
        set.is_some_and(|set| set.families.has(self.family))
    }

    fn lookup(&self, id: SetId, holds: bool) -> Statement {
        let address = match self.direction {
            Direction::Egress => Key::Destination(self.family),
            Direction::Ingress => Key::Source(self.family),
        };
        // A set that is not there has no lookup.
        let kind = self
            .context
            .sets
            .get(&id)
            .map_or(SetKind::Addresses, |set| set.kind);
        KernelSet::of(kind, id, self.family).lookup(kind, address, holds)
    }

    fn label(&self, tier: &TierRules, rule: &Rule, action: Action) -> Label {
        Label::of_policy(self.key(tier, action), &rule.origin)
    }

    fn key(&self, tier: &TierRules, action: Action) -> VerdictKey {
        self.mode.verdict(tier.tier, action, self.direction)
    }

    /// In audit only rules that would deny are counted.
    fn labelled(&self, verdict: Verdict, when: Vec<Statement>, label: &Label) -> NftRule {
        if self.mode.is_labelled(label.key) {
            labelled(verdict, when, label)
        } else {
            to(verdict, when)
        }
    }

    fn denial(&self, label: &Label, out: &mut Rendered) -> Verdict {
        let is_exposed = self.chains == PodChains::of_node();
        let denial = Denial::of_label(label, is_exposed);
        match self.mode {
            RuleMode::Enforced => self.context.ends.target(denial, out),
            RuleMode::Audit => self.context.ends.would_target(denial, out),
        }
    }
}

fn own_addresses(rules: &PodRules, family: Family) -> Vec<IpAddr> {
    let addresses = rules.addresses.iter().copied();
    addresses
        .filter(|address| Family::of(*address) == family)
        .collect()
}
