//! NFLOG of denied packets. Each reason to deny has a chain, shared by all pods, between the rule that denies
//! and the chain that drops:
//!
//! ```text
//!  EGRET-E-x ─ rule ▸ goto EGRET-D-r ─ at most so often a second ▸ NFLOG "egret-r"
//!                                    └ goto EGRET-DENY
//! ```
//!
//! Pods' chains and their counters do not change with logging. Without a listener the kernel only counts. `r` is a digest of the
//! reason: the NFLOG reader finds the reason by it in the registry of desired denials.

use std::collections::BTreeMap;

use egret_kernel::iptables::{Limit, Rule as Line, Target};
use egret_policies::rules::Direction;

use super::chains::Chains;
use super::conn_state;
use crate::backend::netfilter::denials::label::Label;
use crate::backend::netfilter::denials::{Cause, Denial, Outcome, prefix_of};
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::names;

/// The target of a rule that denies.
pub(in crate::backend::netfilter) fn target(denial: Option<Denial>, tells: bool) -> Target {
    Target::Goto(match denial {
        Some(denial) if tells => denial.chain(),
        Some(_) | None => names::deny(),
    })
}

/// The target of a rule that would deny, for policies in audit.
pub(super) fn would_target(denial: Option<Denial>, tells: bool) -> Target {
    match denial {
        Some(denial) if tells => Target::Goto(denial.chain()),
        Some(_) | None => Target::Return,
    }
}

/// Adds logging to the chains that all pods share: revoked connections and unknown pods.
pub(in crate::backend::netfilter) fn tell_of_shared(shared: &mut Chains, marks: Marks) {
    let revoked: BTreeMap<String, Denial> = Direction::ALL
        .into_iter()
        .map(|direction| {
            let cause = Cause::Revoked;
            let line = conn_state::revoked(marks, direction).to_string();
            let outcome = Outcome::Denied;
            (
                line,
                Denial {
                    outcome,
                    cause,
                    direction,
                },
            )
        })
        .collect();
    let end = format!(" -g {}", names::deny().as_str());
    for rule in shared.values_mut().flatten() {
        let of_label = || Denial::of_label(&Label::of_rule(rule)?, false);
        let denial = revoked.get(rule.as_str()).cloned().or_else(of_label);
        if let (Some(denial), Some(condition)) = (denial, rule.strip_suffix(&end)) {
            *rule = format!("{condition} -g {}", denial.chain().as_str());
        }
    }
}

/// The line that logs a packet, below the rate limit.
pub(in crate::backend::netfilter) fn tell(prefix: String, telling: NflogSettings) -> Line {
    let group = telling.group;
    let line = Line::to(Target::Nflog { prefix, group });
    let burst = u16::try_from(telling.per_second.saturating_mul(2)).unwrap_or(u16::MAX);
    line.limit(Limit::per_second(telling.per_second, burst))
}

/// The lines of a denial chain.
pub(in crate::backend::netfilter) fn lines(chain: &str, telling: NflogSettings) -> Vec<String> {
    let tell = tell(prefix_of(chain), telling);
    let end = match names::is_audit_denial(chain) {
        true => Target::Return,
        false => Target::Goto(names::deny()),
    };
    [tell, Line::to(end)].map(|line| line.to_string()).into()
}

/// The denial chain that a rule leads to. Runs for every rule of every pod, so it compares the end of the text.
pub(in crate::backend::netfilter) fn told_by(rule: &str) -> Option<&str> {
    const LENGTH: usize = "EGRET-D-".len() + 16;
    let (condition, chain) = rule.split_at_checked(rule.len().checked_sub(LENGTH)?)?;
    (condition.ends_with("-g ") && names::is_denial(chain)).then_some(chain)
}

#[cfg(test)]
mod tests {
    use egret_policies::rules::Digest;

    use super::*;

    const TELLING: NflogSettings = NflogSettings {
        group: 9254,
        per_second: 10,
    };

    #[test]
    fn a_rule_goes_to_a_chain_that_tells_or_it_does_not() {
        let chain = names::denial(Digest::of("why"));
        let rows = [
            (
                format!("-p tcp -m comment --comment \"x\" -g {}", chain.as_str()),
                true,
            ),
            (format!("-g {}", chain.as_str()), true),
            (format!("-j {}", chain.as_str()), false),
            ("-g EGRET-DENY".to_owned(), false),
            (
                "-m comment --comment \"ä -g EGRET-D-aaaaaaaaaaaaaaa\"".to_owned(),
                false,
            ),
            (String::new(), false),
        ];
        for (rule, tells) in rows {
            assert_eq!(told_by(&rule), tells.then_some(chain.as_str()), "{rule}");
        }
    }

    #[test]
    fn a_logging_chain_limits_its_log_and_denies_every_packet() {
        let denial = Denial {
            outcome: Outcome::Denied,
            cause: Cause::Isolation,
            direction: Direction::Egress,
        };
        let name = denial.chain();
        let told = denial.prefix();
        let expected = [
            format!(
                "-m limit --limit 10/sec --limit-burst 20 -j NFLOG --nflog-prefix {told} --nflog-group 9254"
            ),
            "-g EGRET-DENY".to_owned(),
        ];
        assert_eq!(lines(name.as_str(), TELLING), expected);
        assert_eq!(target(Some(denial.clone()), true), Target::Goto(name), "told");
        assert_eq!(
            target(Some(denial), false),
            Target::Goto(names::deny()),
            "not told"
        );
    }
}
