//! Ends of denied packets: logged below a rate, then dropped or rejected.

use egret_kernel::Family;
use egret_kernel::nftables::{NftRule, Statement, Verdict};
use egret_policies::rules::Direction;

use super::rules::{Rendered, goto, rule, to};
use crate::backend::netfilter::denials::{Denial, Outcome};
use crate::backend::netfilter::model::settings::{DenyAction, NflogSettings};
use crate::backend::netfilter::names;

/// IP protocol numbers.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP_V6: u8 = 58;
pub(super) const SCTP: u8 = 132;

/// Where a packet goes that is denied for this reason.
pub(super) fn target(denial: Option<Denial>, tells: bool, out: &mut Rendered) -> Verdict {
    match denial.filter(|_| tells) {
        Some(denial) => {
            let chain = goto(denial.chain().as_str());
            out.denials.insert(denial);
            chain
        }
        None => goto(names::deny().as_str()),
    }
}

/// Where a packet goes that policies in audit would deny.
pub(super) fn would_target(denial: Option<Denial>, tells: bool, out: &mut Rendered) -> Verdict {
    match denial.filter(|_| tells) {
        Some(denial) => {
            let chain = goto(denial.chain().as_str());
            out.denials.insert(denial);
            chain
        }
        None => Verdict::Accept,
    }
}

/// The end of all denied packets.
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
        statements: vec![
            Statement::Limit { rate, burst },
            Statement::Count(told),
            Statement::Log { prefix, group },
        ],
        comment: "told".to_owned(),
    }
}

/// The chain of a reason.
pub(super) fn chain(denial: &Denial, telling: NflogSettings) -> Vec<NftRule> {
    let end = match denial.outcome {
        Outcome::Denied => goto(names::deny().as_str()),
        Outcome::WouldBeDenied => Verdict::Accept,
    };
    let [_, all] = counters(denial);
    let all = NftRule {
        statements: vec![Statement::Count(all), Statement::Verdict(end)],
        comment: "all".to_owned(),
    };
    vec![tell(denial, telling), all]
}

/// What counts the packets of a reason that were logged, and all of them.
pub(in crate::backend) fn counters(denial: &Denial) -> [String; 2] {
    let chain = denial.chain();
    ["told", "all"].map(|what| format!("{what}-{}", chain.as_str()))
}

/// The ICMP of a family.
pub(super) const fn icmp(family: Family) -> u8 {
    match family {
        Family::V4 => ICMP,
        Family::V6 => ICMP_V6,
    }
}

/// The chain that unknown pods are led to.
pub(super) fn unknown_chain(direction: Direction) -> String {
    names::unknown(direction).as_str().to_owned()
}
