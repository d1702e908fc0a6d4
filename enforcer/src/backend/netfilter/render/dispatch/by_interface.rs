//! Dispatch by interface in few comparisons, as a tree of name prefixes. Each line costs every packet behind
//! it some nanoseconds, and a node has a hundred pods.
//!
//! ```text
//!  EGRET-FROM ─ -i veth0+ ▸ EGRET-FROM-veth0 ─ -i veth0a1 ▸ EGRET-E-x
//!             │                              ├ -i veth0b2 ▸ EGRET-E-y
//!             │                              └ EGRET-REST-E
//!             ├ -i veth1+ ▸ EGRET-FROM-veth1 ─ …
//!             └ EGRET-REST-E: pods that are not known
//! ```
//!
//! Every branch ends with the same last lines, so an unknown interface meets them in any branch.

use std::collections::BTreeMap;

use egret_kernel::iptables::{ChainName, InterfaceName, InterfacePattern, Rule as Line, Target};
use egret_policies::rules::Direction;

use crate::backend::netfilter::names;
use crate::backend::netfilter::render::through;

/// The most interfaces that are compared one after the other.
const FEW: usize = 8;
/// The depth of the tree: each level is one more chain, and `nft` allows a packet 15.
pub(crate) const MOST_BRANCHES: usize = 2;
/// The least interfaces for which a tree pays.
const MANY: usize = 16;

/// Whether this many interfaces are dispatched by a tree of prefixes.
pub(super) const fn is_worth(interfaces: usize) -> bool {
    interfaces > MANY
}

/// A line for one interface.
pub(super) type InterfaceRule = (InterfaceName, Line);

/// The chains that dispatch these interfaces; `shared` are the first lines, about shared interfaces, `rest` the last lines, about
/// unknown ones.
pub(super) fn chains(
    direction: Direction,
    shared: Vec<Line>,
    mut own: Vec<InterfaceRule>,
    rest: Vec<Line>,
) -> BTreeMap<ChainName, Vec<Line>> {
    let root = names::pod_lookup(direction);
    if !is_worth(own.len()) {
        let own = own.into_iter().map(|(_, line)| line);
        return BTreeMap::from([(root, shared.into_iter().chain(own).chain(rest).collect())]);
    }
    own.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut tree = Tree {
        direction,
        chains: BTreeMap::new(),
    };
    let lines = tree.ask(&own, 1);
    let lines = shared.into_iter().chain(lines).collect();
    tree.chains.insert(root, lines);
    tree.chains.insert(names::unmatched(direction), rest);
    tree.chains
}

struct Tree {
    direction: Direction,
    chains: BTreeMap<ChainName, Vec<Line>>,
}

impl Tree {
    /// The lines for these, in the order of their names, and the chains that they lead to.
    fn ask(&mut self, own: &[InterfaceRule], depth: usize) -> Vec<Line> {
        let common = common_length(own);
        let mut lines = Vec::new();
        for group in own.chunk_by(|(one, _), (other, _)| next(one, common) == next(other, common)) {
            let beginning = match group {
                [(first, _), _, ..] => first.as_str().get(..=common),
                _ => None,
            };
            let Some(beginning) = beginning else {
                lines.extend(group.iter().map(|(_, line)| line.clone()));
                continue;
            };
            lines.push(self.lead(beginning));
            let behind = if group.len() <= FEW || depth == MOST_BRANCHES {
                let mut lines: Vec<Line> = group.iter().map(|(_, line)| line.clone()).collect();
                lines.push(self.leave());
                lines
            } else {
                self.ask(group, depth + 1)
            };
            self.chains
                .insert(names::lookup_branch(self.direction, beginning), behind);
        }
        lines.push(self.leave());
        lines
    }

    fn lead(&self, beginning: &str) -> Line {
        let pattern = InterfacePattern::new(format!("{beginning}+"))
            .expect("two names that begin so are longer together, so there is room for a sign");
        let line = Line::to(Target::Goto(names::lookup_branch(self.direction, beginning)));
        through(line, self.direction, pattern)
    }

    fn leave(&self) -> Line {
        Line::to(Target::Goto(names::unmatched(self.direction)))
    }
}

/// The length of their common prefix in octets.
fn common_length(own: &[InterfaceRule]) -> usize {
    let (Some((first, _)), Some((last, _))) = (own.first(), own.last()) else {
        return 0;
    };
    // They are sorted, so the prefix of the first and the last is the prefix of all.
    let pairs = first.as_str().bytes().zip(last.as_str().bytes());
    pairs.take_while(|(one, other)| one == other).count()
}

/// The octet after the common prefix; none for the name that ends there.
fn next(name: &InterfaceName, common: usize) -> Option<u8> {
    name.as_str().as_bytes().get(common).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn own(names: &[String]) -> Vec<InterfaceRule> {
        let line = |name: &String| {
            let name = InterfaceName::new(name.clone()).expect("the test's names are names");
            let chain = ChainName::new(format!("POD-{}", name.as_str())).expect("short enough");
            (
                name.clone(),
                through(Line::to(Target::Goto(chain)), Direction::Egress, name),
            )
        };
        names.iter().map(line).collect()
    }

    /// Where a packet of an interface comes out, and how many lines it was compared with.
    fn walk(chains: &BTreeMap<ChainName, Vec<Line>>, interface: &str) -> (String, usize) {
        let (mut chain, mut compared) = (names::pod_lookup(Direction::Egress).as_str().to_owned(), 0);
        loop {
            let Some(lines) = chains.iter().find(|(name, _)| name.as_str() == chain) else {
                return (chain, compared);
            };
            let texts = lines.1.iter().map(ToString::to_string);
            let mut found = None;
            for text in texts {
                compared += 1;
                let (pattern, target) =
                    match text.strip_prefix("-i ").and_then(|rest| rest.split_once(" -g ")) {
                        Some((pattern, target)) => (pattern.to_owned(), target.to_owned()),
                        None => (String::from("+"), text.trim_start_matches("-g ").to_owned()),
                    };
                let matches = match pattern.strip_suffix('+') {
                    Some(beginning) => interface.starts_with(beginning),
                    None => pattern == interface,
                };
                if matches {
                    found = Some(target);
                    break;
                }
            }
            match found {
                Some(next) => chain = next,
                None => return ("fell out".to_owned(), compared),
            }
        }
    }

    fn rest() -> Vec<Line> {
        let chain = ChainName::new("LAST").expect("a name");
        vec![Line::to(Target::Goto(chain))]
    }

    fn tree(names: &[String]) -> BTreeMap<ChainName, Vec<Line>> {
        chains(Direction::Egress, Vec::new(), own(names), rest())
    }

    fn name() -> impl Strategy<Value = String> {
        // Few letters, so that names begin alike, and one is the beginning of another.
        prop_oneof![
            "veth[0-9a-f]{1,11}",
            "[ab]{1,15}",
            "cali[0-3]{1,4}",
            "v[.:_-]?[a-c]{0,12}"
        ]
    }

    proptest! {
        #[test]
        fn every_interface_leads_to_its_pod_and_any_other_to_the_last_lines(
            names in prop::collection::btree_set(name(), 0..150), others in prop::collection::vec(name(), 20),
        ) {
            let list: Vec<String> = names.iter().cloned().collect();
            let chains = tree(&list);
            for name in &list {
                prop_assert_eq!(walk(&chains, name).0, format!("POD-{name}"));
            }
            for other in others.iter().filter(|other| !names.contains(*other)) {
                prop_assert_eq!(&walk(&chains, other).0, "LAST");
            }
            prop_assert_eq!(&walk(&chains, "eth0").0, "LAST");
        }
    }

    #[test]
    fn a_hundred_pods_cost_a_quarter_of_a_list() {
        // As the CNI plugins ptp and bridge, and Calico, call them.
        let digits = |number: u32| format!("{:08x}", number.wrapping_mul(2_654_435_761));
        for beginning in ["veth", "cali"] {
            let names: Vec<String> = (0..110)
                .map(|number| format!("{beginning}{}", digits(number)))
                .collect();
            let chains = tree(&names);
            let costs: Vec<usize> = names.iter().map(|name| walk(&chains, name).1).collect();
            let most = costs.iter().max().copied().unwrap_or_default();
            assert!(most <= 28, "{most}");
            assert!(costs.iter().sum::<usize>() / costs.len() <= 16);
        }
    }

    #[test]
    fn consecutive_interface_names_are_dispatched_in_few_steps() {
        let names: Vec<String> = (0..500).map(|number| format!("eth{number}")).collect();
        let chains = tree(&names);
        let most = names.iter().map(|name| walk(&chains, name).1).max();
        assert!(most.is_some_and(|most| most <= 36), "{most:?}");
    }

    #[test]
    fn few_interfaces_are_dispatched_by_a_list() {
        let names: Vec<String> = (0..MANY).map(|number| format!("veth{number}")).collect();
        assert_eq!(tree(&names).len(), 1);
    }

    #[test]
    fn a_branch_chain_has_a_name_of_ours_within_the_kernels_limit() {
        let names: BTreeSet<String> = (0..40)
            .map(|number| format!("vethabcdefghi{number:02}"))
            .collect();
        let chains = tree(&names.into_iter().collect::<Vec<_>>());
        assert!(chains.len() > 2);
        for chain in chains.keys() {
            assert!(
                names::is_own_chain(chain.as_str()) && names::is_shared(chain.as_str()),
                "{chain:?}"
            );
        }
    }
}
