//! Draws stories: from few names, labels, addresses and ports, so that things collide.

use std::net::IpAddr;

use egret_policies::compiler::PodToOwnNode;
use serde_json::Value;

mod objects;
mod network_policies;
mod cluster_policies;
mod parts;
mod events;
mod flows;

use crate::scenario::{Scenario, Setting, Step};

/// Numbers that look drawn, from a seed (splitmix64: Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    state: u64,
    theme: Theme,
}

/// What a story is mostly about: with everything at once, little of it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    Everything,
    Names,
    Ports,
    /// The form of 2016.
    Old,
    Firewalls,
}

impl Draw {
    fn new(seed: u64) -> Self {
        let theme = Theme::Everything;
        let mut draw = Self { state: seed, theme };
        draw.theme = draw.pick(&[
            Theme::Everything,
            Theme::Names,
            Theme::Names,
            Theme::Ports,
            Theme::Ports,
            Theme::Old,
            Theme::Old,
            Theme::Firewalls,
        ]);
        draw
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// So often in a hundred.
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// Some of them, in their order.
    fn some<T: Clone>(&mut self, items: &[T], percent: usize) -> Vec<T> {
        items.iter().filter(|_| self.chance(percent)).cloned().collect()
    }

    fn list<T>(&mut self, least: usize, most: usize, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = least + self.below(most - least + 1);
        (0..length).map(|_| item(self)).collect()
    }
}

/// The story of a seed.
pub(crate) fn story(seed: u64) -> Scenario {
    let mut draw = Draw::new(seed);
    let setting = draw.setting();
    let mut objects = draw.cluster();
    let mut policies = draw.policies();
    let later = policies.pop_if(|_| draw.theme == Theme::Names && draw.chance(25));
    objects.extend(policies);
    let mut events = draw.events(&objects);
    events.extend(later.map(Step::Apply));
    let mut steps: Vec<Step> = objects.into_iter().map(Step::Apply).collect();
    // What is there from the beginning is told in any order.
    for place in (1..steps.len()).rev() {
        let other = draw.below(place + 1);
        steps.swap(place, other);
    }
    steps.extend(events);
    let mut story = Scenario {
        setting,
        steps,
        flows: Vec::new(),
    };
    story.flows = draw.flows(&story);
    story
}

impl Draw {
    fn setting(&mut self) -> Setting {
        Setting {
            everywhere: self.chance(50),
            pod_to_own_node: match self.below(10) {
                0 => PodToOwnNode::Enforce,
                1 => PodToOwnNode::Dns,
                _ => PodToOwnNode::Allow,
            },
            dnsd: self.chance(30).then(|| ip(objects::DNSD)),
            min_ttl: self.pick(&[0, 0, 60]),
            grace: self.pick(&[0, 30]),
        }
    }

    fn policies(&mut self) -> Vec<Value> {
        let most = if self.theme == Theme::Everything { 5 } else { 2 };
        let kinds = self.list(1, most, |draw| draw.below(100));
        let mut policies = Vec::new();
        for kind in kinds {
            let is_other = self.chance(15);
            policies.push(match kind {
                _ if self.theme == Theme::Names && !is_other => self.policy_with_names(),
                0..60 if self.theme == Theme::Ports && !is_other => self.policy_about_ports(),
                60.. if self.theme == Theme::Ports && !is_other => self.cluster_policy_about_ports(),
                _ if self.theme == Theme::Firewalls && !is_other => self.firewall(),
                _ if self.theme == Theme::Old && !is_other => self.old_network_policy(),
                0..35 => self.network_policy(),
                35..50 => self.old_network_policy(),
                50..60 => self.admin_policy(),
                60..76 => self.cluster_policy(),
                76..82 => self.baseline_policy(),
                _ => self.firewall(),
            });
        }
        for policy in &mut policies {
            self.try_out(policy, 6);
        }
        policies
    }

    /// Puts an object in audit, or says something else of that.
    fn try_out(&mut self, object: &mut Value, percent: usize) {
        if self.chance(percent) {
            let said = self.pick(&["audit", "audit", "audit", "enforce", "Audit"]);
            object["metadata"]["annotations"]["policy.egret.dev/enforcement"] = said.into();
        }
    }
}

/// An address by its text.
fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
