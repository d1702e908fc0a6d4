//! Ends of denied packets: logged below a rate, then dropped or rejected.

use egret_kernel::nftables::{NftRule, Statement, Verdict};
use egret_policies::rules::Direction;

use super::rules::{Rendered, TCP, goto, rule, to};
use crate::backend::netfilter::denials::{Denial, Outcome};
use crate::backend::netfilter::model::settings::{DenyAction, NflogSettings};
use crate::backend::netfilter::names;

/// How denied packets end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) deny: DenyAction,
    /// How they are logged; none where they are not.
    pub(super) telling: Option<NflogSettings>,
}

impl Ends {
    /// Where a packet goes that is denied for this reason.
    pub(super) fn target(self, denial: Option<Denial>, out: &mut Rendered) -> Verdict {
        self.reason(denial, out).unwrap_or_else(|| self.denied())
    }

    /// Where a packet goes that policies in audit would deny.
    pub(super) fn would_target(self, denial: Option<Denial>, out: &mut Rendered) -> Verdict {
        self.reason(denial, out).unwrap_or(Verdict::Accept)
    }

    /// The end of all denied packets: no chain where it is one verdict, since the kernel checks a chain once for each rule that leads
    /// to it.
    pub(super) fn denied(self) -> Verdict {
        match self.deny {
            DenyAction::Drop => Verdict::Drop,
            DenyAction::Reject => goto(names::deny().as_str()),
        }
    }

    /// The chain that [`Self::denied`] may lead to.
    pub(super) fn put(self, out: &mut Rendered) {
        match self.deny {
            DenyAction::Drop => {}
            DenyAction::Reject => out.put(names::deny().as_str(), deny(self.deny)),
        }
    }

    /// The chain of a reason.
    fn reason(self, denial: Option<Denial>, out: &mut Rendered) -> Option<Verdict> {
        let denial = denial.filter(|_| self.telling.is_some())?;
        let chain = goto(denial.chain().as_str());
        out.denials.insert(denial);
        Some(chain)
    }

    /// What is in the chain of a reason; none where nothing is logged.
    pub(super) fn lines(self, denial: &Denial) -> Option<Vec<NftRule>> {
        let end = match denial.outcome {
            Outcome::Denied => self.denied(),
            Outcome::WouldBeDenied => Verdict::Accept,
        };
        let [_, all] = counters(denial);
        let all = NftRule {
            comment: "all".into(),
            ..to(end, [Statement::Count(all)])
        };
        Some(vec![tell(denial, self.telling?), all])
    }
}

/// The end of all denied packets, as a chain.
pub(super) fn deny(action: DenyAction) -> Vec<NftRule> {
    match action {
        DenyAction::Drop => vec![to(Verdict::Drop, [])],
        DenyAction::Reject => vec![
            rule([Statement::Protocol(TCP), Statement::Reset]),
            rule([Statement::Prohibit]),
        ],
    }
}

/// Logs a packet, below the rate limit.
pub(super) fn tell(denial: &Denial, telling: NflogSettings) -> NftRule {
    let burst = telling.per_second.saturating_mul(2).min(u32::from(u16::MAX));
    let rate = u64::from(telling.per_second);
    let (prefix, group) = (denial.prefix(), telling.group);
    let [told, _] = counters(denial);
    NftRule {
        comment: "told".into(),
        ..rule([
            Statement::Limit { rate, burst },
            Statement::Count(told),
            Statement::Log { prefix, group },
        ])
    }
}

/// What counts the packets of a reason that were logged, and all of them.
pub(in crate::backend) fn counters(denial: &Denial) -> [String; 2] {
    let chain = denial.chain();
    ["told", "all"].map(|what| format!("{what}-{}", chain.as_str()))
}

/// The chain that unknown pods are led to.
pub(super) fn unknown_chain(direction: Direction) -> String {
    names::unknown(direction).as_str().to_owned()
}
