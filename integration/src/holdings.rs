//! The enforcer's state in the node's kernel: sets with their members, and which of them a pod's rules match.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{Family, Node, Pod, WorldError};

mod nftables;

/// The prefix of the enforcer's chains, and a part of the names of its sets.
const CHAINS: &str = "EGRET-";
const SETS: &str = "-egret-";

/// A listing of sets and rules, taken at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Set, member, seconds that it has left; none for a member that stays.
    sets: BTreeMap<String, BTreeMap<String, Option<u64>>>,
    /// The rules of each family.
    rules: [Vec<String>; 2],
}

impl Node {
    /// Asks `ipset save`, both `iptables-save`, and `nft`.
    pub fn holdings(&self) -> Result<Holdings, WorldError> {
        let rules = |family| {
            let text = self.iptables_save(family)?;
            Ok::<_, WorldError>(text.lines().map(str::to_owned).collect())
        };
        let mut holdings = Holdings {
            sets: read_sets(&self.ipset_save()?),
            rules: [rules(Family::V4)?, rules(Family::V6)?],
        };
        if let Some(table) = self.nftables_list() {
            let (sets, rules) = nftables::read(&table);
            holdings.sets.extend(sets);
            holdings.rules[0].extend(rules);
        }
        Ok(holdings)
    }
}

impl Holdings {
    /// All rules, and the elements of verdict maps as rules.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().flatten().map(String::as_str)
    }

    /// The pod's records: addresses in sets with timeouts that its egress rules match, each with its remaining seconds.
    pub fn records_of(&self, pod: &Pod) -> BTreeMap<IpAddr, u64> {
        let sets = self
            .rules
            .iter()
            .flat_map(|rules| sets_asked(rules, pod.interface()));
        let members = sets
            .collect::<BTreeSet<_>>()
            .into_iter()
            .filter_map(|set| self.sets.get(set))
            .flatten();
        members
            .filter_map(|(member, left)| Some((member.parse().ok()?, (*left)?)))
            .collect()
    }

    /// Whether the kernel would let the pod open a connection to this address because of a record.
    pub fn holds(&self, pod: &Pod, address: IpAddr) -> bool {
        self.records_of(pod).contains_key(&address)
    }

    /// Names of sets, and rules in their order: what must not change when a daemon comes and goes. (Members that end
    /// by themselves are left out.)
    pub fn standing(&self) -> Vec<String> {
        let ours = |line: &&String| line.contains(CHAINS) || line.contains(SETS);
        let rules = self
            .rules
            .iter()
            .flatten()
            .filter(ours)
            .map(|line| without_counters(line));
        let sets = self.sets.iter().filter(|(name, _)| name.contains(SETS));
        let lasting = sets.map(|(name, members)| {
            let lasting = members.iter().filter(|(_, left)| left.is_none());
            let lasting: Vec<_> = lasting.map(|(member, _)| member.as_str()).collect();
            format!("{name}: {}", lasting.join(" "))
        });
        rules.chain(lasting).collect()
    }
}

/// The sets that the rules ask, directly or in the chains that they lead to, for packets that come in by `interface`.
fn sets_asked<'a>(rules: &'a [String], interface: &str) -> BTreeSet<&'a str> {
    let (mut sets, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let from_the_pod = format!("-i {interface} ");
    let dispatched = rules.iter().filter(|rule| rule.contains(&from_the_pod));
    let mut chains: Vec<&str> = dispatched.filter_map(|rule| target(rule)).collect();
    while let Some(chain) = chains.pop() {
        if !seen.insert(chain) {
            continue;
        }
        let own = format!("-A {chain} ");
        for rule in rules.iter().filter(|rule| rule.starts_with(&own)) {
            sets.extend(word_after(rule, "--match-set"));
            chains.extend(target(rule));
        }
    }
    sets
}

/// The chain of the enforcer's that a rule leads to.
fn target(rule: &str) -> Option<&str> {
    ["-j", "-g"]
        .into_iter()
        .find_map(|option| word_after(rule, option))
        .filter(|chain| chain.starts_with(CHAINS))
}

fn word_after<'a>(rule: &'a str, option: &str) -> Option<&'a str> {
    let mut words = rule.split(' ');
    words.find(|word| *word == option)?;
    words.next()
}

/// Reads `create NAME …` and `add NAME MEMBER [timeout SECONDS]`.
fn read_sets(text: &str) -> BTreeMap<String, BTreeMap<String, Option<u64>>> {
    let mut sets: BTreeMap<String, BTreeMap<_, _>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["create", name, ..] => drop(sets.entry(name.to_owned()).or_default()),
            ["add", name, member, ..] => {
                let left = word_after(line, "timeout").and_then(|seconds| seconds.parse().ok());
                sets.entry(name.to_owned())
                    .or_default()
                    .insert(member.to_owned(), left);
            }
            _ => {}
        }
    }
    sets
}

/// `:CHAIN - [3:180]` counts packets.
fn without_counters(line: &str) -> String {
    line.split(" [").next().unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_of_a_pod_are_those_behind_its_interface() {
        let rules: Vec<String> = [
            ":EGRET-E-a - [5:300]",
            "-A EGRET-FROM -i veth1 -g EGRET-E-a",
            "-A EGRET-FROM -i veth11 -g EGRET-E-b",
            "-A EGRET-E-a -m set --match-set one-egret-4 dst -g EGRET-EA-a",
            "-A EGRET-E-a -g EGRET-E3-a",
            "-A EGRET-E3-a -m set --match-set two-egret-4 dst -g EGRET-DENY",
            "-A EGRET-E-b -m set --match-set other-egret-4 dst -g EGRET-EA-b",
        ]
        .map(str::to_owned)
        .into();
        assert_eq!(
            sets_asked(&rules, "veth1"),
            BTreeSet::from(["one-egret-4", "two-egret-4"])
        );
        assert_eq!(sets_asked(&rules, "veth2"), BTreeSet::new());
    }

    #[test]
    fn members_are_read_with_the_time_that_they_have_left() {
        let sets = read_sets(
            "create one-egret-4 hash:ip family inet hashsize 64 timeout 0\nadd one-egret-4 203.0.113.7 timeout 29\n\
             create foreign hash:net family inet\nadd foreign 10.0.0.0/8\n",
        );
        assert_eq!(
            sets["one-egret-4"],
            BTreeMap::from([("203.0.113.7".to_owned(), Some(29))])
        );
        assert_eq!(sets["foreign"], BTreeMap::from([("10.0.0.0/8".to_owned(), None)]));
    }
}
