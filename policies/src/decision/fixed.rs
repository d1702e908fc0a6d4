//! Networks that never change, each with the first rule that has it.

use ipnet::IpNet;

use super::*;

/// A rule's position in its table, and what it does.
pub(super) type Verdict = (usize, Action);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FixedNetworks {
    first: BTreeMap<IpNet, Verdict>,
    /// The prefix lengths of IPv4 and of IPv6.
    lengths: [BTreeSet<u8>; 2],
}

impl FixedNetworks {
    /// Adds the network of a rule; rules come in order.
    pub(super) fn add(&mut self, network: IpNet, verdict: Verdict) {
        self.lengths[family(&network)].insert(network.prefix_len());
        self.first.entry(network).or_insert(verdict);
    }

    pub(super) fn networks(&self) -> impl Iterator<Item = &IpNet> {
        self.first.keys()
    }

    /// The first rule that matches all of a network.
    pub(super) fn verdict(&self, network: IpNet) -> Option<Verdict> {
        let lengths = self.lengths[family(&network)].range(..=network.prefix_len());
        let covering = lengths.filter_map(|length| IpNet::new(network.addr(), *length).ok());
        let found = covering.filter_map(|covering| self.first.get(&covering.trunc()));
        found.copied().min()
    }

    /// The networks inside of another one, itself included.
    pub(super) fn inside(&self, network: IpNet) -> impl Iterator<Item = &IpNet> {
        let from = self.first.range(network..).map(|(inside, _)| inside);
        from.take_while(move |inside| network.contains(*inside))
    }
}

fn family(network: &IpNet) -> usize {
    match network {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 1,
    }
}

/// Keys of which the narrowest decides, as layers to be asked in order: a key stands in an earlier layer than a wider one with
/// another action. Those with the action of the next wider one are left out.
pub(super) fn layers(keys: &BTreeMap<IpNet, Action>) -> Vec<BTreeMap<IpNet, Action>> {
    // In order of addresses, each wider one before those inside of it.
    let mut kept: Vec<(IpNet, Action, Option<usize>)> = Vec::new();
    let mut around: Vec<usize> = Vec::new();
    for (network, action) in keys {
        while around.last().is_some_and(|last| !kept[*last].0.contains(network)) {
            around.pop();
        }
        let wider = around.last().copied();
        if wider.is_some_and(|wider| kept[wider].1 == *action) {
            continue;
        }
        around.push(kept.len());
        kept.push((*network, *action, wider));
    }
    let mut heights = vec![0; kept.len()];
    for place in (0..kept.len()).rev() {
        if let Some(wider) = kept[place].2 {
            heights[wider] = heights[wider].max(heights[place] + 1);
        }
    }
    let mut layers = vec![BTreeMap::new(); heights.iter().max().map_or(0, |highest| highest + 1)];
    for ((network, action, _), height) in kept.into_iter().zip(heights) {
        layers[height].insert(network, action);
    }
    layers
}
