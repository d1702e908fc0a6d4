//! The position of dnsd's rules among other rules.
//!
//! node-cache puts its rules for the filter table at the head of their chain, before the rules that judge pods. Here
//! they follow the jumps of Egret's enforcer, so that policies apply to DNS as well.

use egret_kernel::iptables::{Batch, ChainRef, Hook, Rule, Table, TableListing};

use super::rules::{COUNTED, TRANSLATED};
use crate::host::interception;
use crate::host::rule::DesiredRule;

/// The change after which a table has each desired rule once and in its position, and no obsolete one. It is one
/// transaction, so that the rules are never absent. `None` if the table is correct.
#[must_use]
pub fn changes(
    listing: &TableListing,
    desired: &[DesiredRule],
    obsolete: &[DesiredRule],
    table: Table,
) -> Option<Batch> {
    let mut batch = Batch::new(table);
    for hook in hooks(table) {
        let of_chain = |rules: &[DesiredRule]| -> Vec<Rule> {
            let here = rules
                .iter()
                .filter(|rule| (rule.table, rule.hook) == (table, *hook));
            here.map(|rule| rule.rule.clone()).collect()
        };
        let present: Vec<&str> = listing
            .chain(hook.name())
            .map_or_else(Vec::new, |chain| chain.texts().collect());
        Chain {
            table,
            hook: *hook,
            present: &present,
            desired: &of_chain(desired),
            obsolete: &of_chain(obsolete),
        }
        .change(&mut batch);
    }
    (!batch.is_empty()).then_some(batch)
}

fn hooks(table: Table) -> &'static [Hook] {
    match table {
        Table::Filter => &[Hook::Input, Hook::Output],
        Table::Nat | Table::Raw => &[Hook::Prerouting, Hook::Output],
        Table::Mangle => &[Hook::Prerouting],
    }
}

struct Chain<'a> {
    table: Table,
    hook: Hook,
    present: &'a [&'a str],
    desired: &'a [Rule],
    obsolete: &'a [Rule],
}

impl Chain<'_> {
    fn change(&self, batch: &mut Batch) {
        let desired: Vec<String> = self.desired.iter().map(Rule::to_string).collect();
        let obsolete: Vec<String> = self.obsolete.iter().map(Rule::to_string).collect();
        if self.is_right(&desired, &obsolete) {
            return;
        }
        let is_ours =
            |text: &&&str| is_left_over(text) || desired.iter().chain(&obsolete).any(|ours| ours == **text);
        for text in self.present.iter().filter(is_ours) {
            batch.delete(self.hook, text);
        }
        let left: Vec<&str> = self
            .present
            .iter()
            .filter(|text| !is_ours(text))
            .copied()
            .collect();
        let place = ChainRef::from(self.hook);
        for (number, rule) in (self.first_free(&left)..).zip(self.desired) {
            batch.insert_at(place.clone(), number, rule);
        }
    }

    fn is_right(&self, desired: &[String], obsolete: &[String]) -> bool {
        let count = |text: &String| self.present.iter().filter(|present| *present == text).count();
        let at = |text: &String| self.present.iter().position(|present| present == text);
        let policy = last_policy(self.present);
        let stands = |text: &String| match standing(self.table) {
            Standing::BehindPolicy => at(text) >= policy.map(|policy| policy + 1),
            Standing::First | Standing::Last => true,
        };
        let is_odd = |present: &&str| is_left_over(present) && !desired.iter().any(|text| text == present);
        desired.iter().all(|text| count(text) == 1 && stands(text))
            && obsolete.iter().all(|text| count(text) == 0)
            && !self.present.iter().any(is_odd)
    }

    /// The index, from 1, of the first of our rules among the others.
    fn first_free(&self, others: &[&str]) -> usize {
        1 + match standing(self.table) {
            Standing::First => 0,
            Standing::BehindPolicy => last_policy(others).map_or(0, |policy| policy + 1),
            Standing::Last => others.len(),
        }
    }
}

/// The position of a table's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// At the head.
    First,
    /// After the jumps to Egret's chains; at the head if there are none.
    BehindPolicy,
    /// At the end: kube-proxy translates the addresses of Services first.
    Last,
}

fn standing(table: Table) -> Standing {
    match table {
        Table::Filter => Standing::BehindPolicy,
        Table::Nat => Standing::Last,
        Table::Raw | Table::Mangle => Standing::First,
    }
}

/// Whether a rule is a translation, counter or interception of an earlier dnsd.
fn is_left_over(text: &str) -> bool {
    text.contains(TRANSLATED) || text.contains(COUNTED) || text.contains(interception::REMARK)
}

/// The index of the last jump to a chain of Egret.
fn last_policy(rules: &[&str]) -> Option<usize> {
    rules
        .iter()
        .rposition(|text| text.contains("-j EGRET-") || text.contains("-g EGRET-"))
}

#[cfg(test)]
mod tests {
    use egret_kernel::Family;

    use super::super::rules::tests::settings;
    use super::*;
    use crate::config::host_setup::{Fallback, RuleSettings};

    fn listing(table: Table, hook: Hook, rules: &[&str]) -> TableListing {
        let rules: Vec<String> = rules
            .iter()
            .map(|rule| format!("-A {} {rule}", hook.name()))
            .collect();
        let text = format!(
            "*{table}\n:{} ACCEPT\n{}\nCOMMIT\n",
            hook.name(),
            rules.join("\n")
        );
        egret_kernel::iptables::parse(&text).remove(0)
    }

    /// Whether the enforcer's jump or these rules were first, or node-cache left its rules at the head.
    #[test]
    fn accept_rules_follow_the_enforcers_jumps_in_any_order_of_start() {
        let settings = settings(&["10.0.0.1"], Fallback::None);
        let desired = settings.desired(Family::V4);
        let ours: Vec<String> = desired
            .iter()
            .filter(|rule| (rule.table, rule.hook) == (Table::Filter, Hook::Input))
            .map(|rule| rule.rule.to_string())
            .collect();
        let [tcp, udp] = [ours[0].as_str(), ours[1].as_str()];
        let (policy, foreign) = ("-m comment --comment x -j EGRET-INPUT", "-j KUBE-FIREWALL");
        let batch = |rules: &[&str]| {
            let listing = listing(Table::Filter, Hook::Input, rules);
            let only_input: Vec<DesiredRule> = desired
                .iter()
                .filter(|rule| rule.hook == Hook::Input)
                .cloned()
                .collect();
            changes(&listing, &only_input, &[], Table::Filter).map(|batch| batch.render())
        };
        for right in [
            &[policy, tcp, udp, foreign][..],
            &[policy, foreign, tcp, udp],
            &[tcp, udp, foreign],
            &[foreign, udp, tcp],
        ] {
            assert_eq!(batch(right), None, "{right:?}");
        }
        for (wrong, deleted, first) in [
            (&[tcp, udp, policy, foreign][..], 2, 2),
            (&[foreign, tcp, policy, udp], 2, 3),
            (&[policy, tcp, foreign], 1, 2),
            (&[policy, tcp, udp, tcp], 3, 2),
            (&[foreign], 0, 1),
            (&[], 0, 1),
        ] {
            let text = batch(wrong).unwrap();
            assert_eq!(text.matches("-D INPUT").count(), deleted, "{wrong:?}: {text}");
            assert!(
                text.contains(&format!("-I INPUT {first} {tcp}\n-I INPUT {} {udp}\n", first + 1)),
                "{wrong:?}: {text}"
            );
        }
    }

    #[test]
    fn servers_of_an_earlier_process_are_replaced() {
        let some = |server: &str| {
            settings(
                &["10.0.0.1"],
                Fallback::ClusterDns {
                    servers: vec![server.parse().unwrap()],
                },
            )
        };
        let of_hook = |settings: &RuleSettings| -> Vec<DesiredRule> {
            let all = settings.desired(Family::V4).into_iter();
            all.filter(|rule| (rule.table, rule.hook) == (Table::Nat, Hook::Prerouting))
                .collect()
        };
        let old: Vec<String> = of_hook(&some("10.0.0.8:53"))
            .iter()
            .map(|rule| rule.rule.to_string())
            .collect();
        let present: Vec<&str> = ["-j KUBE-SERVICES"]
            .into_iter()
            .chain(old.iter().map(String::as_str))
            .collect();
        let listing = listing(Table::Nat, Hook::Prerouting, &present);
        let text =
            |desired: &[DesiredRule]| changes(&listing, desired, &[], Table::Nat).map(|batch| batch.render());
        let changed = text(&of_hook(&some("10.0.0.9:53"))).unwrap();
        assert_eq!(changed.matches("-D PREROUTING").count(), 2, "{changed}");
        assert!(
            changed.contains("-I PREROUTING 2 ") && changed.contains("-I PREROUTING 3 "),
            "{changed}"
        );
        assert_eq!(text(&of_hook(&some("10.0.0.8:53"))), None);
        assert_eq!(text(&[]).unwrap().matches("-D PREROUTING").count(), 2);
    }

    #[test]
    fn rules_of_another_fallback_are_replaced_in_the_same_transaction() {
        let servers = vec!["10.0.0.9:53".parse().unwrap()];
        let (none, some) = (
            settings(&["10.0.0.1"], Fallback::None),
            settings(&["10.0.0.1"], Fallback::ClusterDns { servers }),
        );
        let old = none.desired(Family::V4);
        let old: Vec<String> = old
            .iter()
            .filter(|rule| (rule.table, rule.hook) == (Table::Raw, Hook::Prerouting))
            .map(|rule| rule.rule.to_string())
            .collect();
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        let listing = listing(Table::Raw, Hook::Prerouting, &old);
        let text = changes(
            &listing,
            &some.desired(Family::V4),
            &some.obsolete(Family::V4),
            Table::Raw,
        )
        .unwrap()
        .render();
        assert_eq!(text.matches("-D PREROUTING").count(), 2, "{text}");
        assert_eq!(
            text.matches("-I PREROUTING").count(),
            4,
            "with what counts: {text}"
        );
        let probes = some
            .desired(Family::V4)
            .into_iter()
            .filter(|rule| rule.rule.to_string().contains("8080"));
        assert!(
            probes
                .into_iter()
                .all(|rule| !some.obsolete(Family::V4).contains(&rule)),
            "probes are untracked either way"
        );
    }
}
