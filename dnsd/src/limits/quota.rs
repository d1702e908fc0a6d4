//! Fair shares of a limited amount: a limit per client and one for all clients together. When the total is used up, a client
//! below its share pre-empts the oldest use of the largest user: no client can have others refused.
//!
//! Shares are compared interface by interface first, then network by network (an IPv4 address, or the /64 of an IPv6 one),
//! then client by client: a client that spoofs many addresses takes from others behind its own interface alone, and a /64
//! counts there as one IPv4 address.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

use crate::hash::HashMap;
use crate::limits::quota_key::QuotaKey;

/// The limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitLimits {
    /// Of one client.
    pub per_client: usize,
    /// Of all clients.
    pub total: usize,
}

/// The amounts in use. `H` is a handle to end one use.
#[derive(Debug)]
pub struct Quota<H> {
    interfaces: HashMap<Option<u32>, Usage>,
    networks: HashMap<Network, Usage>,
    clients: HashMap<QuotaKey, Client<H>>,
    total: usize,
    last: u64,
}

/// An interface and a network behind it; none where the interface is one client's.
type Network = (Option<u32>, Option<IpAddr>);

/// The amount that a group of clients uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    amount: usize,
    /// The number of its first use: of equal amounts the older one is pre-empted.
    since: u64,
}

#[derive(Debug)]
struct Client<H> {
    share: Usage,
    /// By number, which is their order in time.
    allocations: BTreeMap<u64, Allocation<H>>,
}

#[derive(Debug)]
struct Allocation<H> {
    amount: usize,
    handle: H,
}

impl<H> Default for Quota<H> {
    fn default() -> Self {
        Self {
            interfaces: HashMap::default(),
            networks: HashMap::default(),
            clients: HashMap::default(),
            total: 0,
            last: 0,
        }
    }
}

impl<H> Quota<H> {
    /// The amount in use.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.total
    }

    /// Takes an amount for a client; returns its number. `None` where the client's limit is reached, or the total is used up
    /// and no other use can be pre-empted. `revoke` gets the handles of pre-empted uses.
    pub fn take(
        &mut self,
        quota_key: QuotaKey,
        amount: usize,
        limits: PermitLimits,
        handle: H,
        mut revoke: impl FnMut(H),
    ) -> Option<u64> {
        let own = self
            .clients
            .get(&quota_key)
            .map_or(0, |client| client.share.amount);
        let is_over = own.saturating_add(amount) > limits.per_client;
        if is_over || amount > limits.total {
            return None;
        }
        while self.total.saturating_add(amount) > limits.total {
            revoke(self.preempt(quota_key, amount)?);
        }
        self.add(quota_key, amount, handle)
    }

    /// Returns what was taken under this number, unless it was pre-empted.
    pub fn give_back(&mut self, quota_key: QuotaKey, number: u64) {
        let client = self.clients.get_mut(&quota_key);
        let ended = client.and_then(|client| client.allocations.remove(&number));
        if let Some(ended) = ended {
            self.subtract(quota_key, ended.amount);
        }
    }

    /// Pre-empts the oldest use of the largest user, if that user has more than this client would have then.
    fn preempt(&mut self, quota_key: QuotaKey, amount: usize) -> Option<H> {
        // Where the largest group is not large enough, a client in the own group may still be pre-empted.
        let needs = |own: usize, largest: &Usage| own.saturating_add(amount) < largest.amount;
        let own_interface = quota_key.interface();
        let interface = match largest(self.interfaces.iter()) {
            Some((interface, share)) if needs(amount_of(&self.interfaces, &own_interface), share) => {
                *interface
            }
            Some(_) | None => own_interface,
        };
        let own_network = network_of(quota_key);
        let is_own = interface == own_interface;
        let networks = self.networks.iter().filter(|((of, _), _)| *of == interface);
        let network = match largest(networks) {
            Some((network, share)) if !is_own || needs(amount_of(&self.networks, &own_network), share) => {
                *network
            }
            Some(_) | None => own_network,
        };
        let is_own = network == own_network;
        let own = self
            .clients
            .get(&quota_key)
            .map_or(0, |client| client.share.amount);
        let clients = self
            .clients
            .iter()
            .map(|(quota_key, client)| (quota_key, &client.share));
        let clients = clients.filter(|(quota_key, _)| network_of(**quota_key) == network);
        let (client, share) = largest(clients)?;
        if is_own && !needs(own, share) {
            return None;
        }
        let client = *client;
        let (_, oldest) = self.clients.get_mut(&client)?.allocations.pop_first()?;
        self.subtract(client, oldest.amount);
        Some(oldest.handle)
    }

    fn add(&mut self, quota_key: QuotaKey, amount: usize, handle: H) -> Option<u64> {
        self.last += 1;
        let (number, begun) = (
            self.last,
            Usage {
                amount: 0,
                since: self.last,
            },
        );
        self.total += amount;
        self.interfaces
            .entry(quota_key.interface())
            .or_insert(begun)
            .amount += amount;
        self.networks.entry(network_of(quota_key)).or_insert(begun).amount += amount;
        let client = self.clients.entry(quota_key).or_insert_with(|| Client {
            share: begun,
            allocations: BTreeMap::new(),
        });
        client.share.amount += amount;
        client.allocations.insert(number, Allocation { amount, handle });
        Some(number)
    }

    fn subtract(&mut self, quota_key: QuotaKey, amount: usize) {
        self.total -= amount;
        subtract(&mut self.interfaces, quota_key.interface(), amount);
        subtract(&mut self.networks, network_of(quota_key), amount);
        if let Entry::Occupied(mut client) = self.clients.entry(quota_key) {
            client.get_mut().share.amount -= amount;
            if client.get().allocations.is_empty() {
                client.remove();
            }
        }
    }
}

fn subtract<K: Eq + Hash>(shares: &mut HashMap<K, Usage>, of: K, amount: usize) {
    if let Entry::Occupied(mut share) = shares.entry(of) {
        share.get_mut().amount -= amount;
        if share.get().amount == 0 {
            share.remove();
        }
    }
}

fn amount_of<K: Eq + Hash>(shares: &HashMap<K, Usage>, of: &K) -> usize {
    shares.get(of).map_or(0, |share| share.amount)
}

fn largest<'a, K>(shares: impl Iterator<Item = (&'a K, &'a Usage)>) -> Option<(&'a K, &'a Usage)> {
    shares.max_by_key(|(_, share)| (share.amount, Reverse(share.since)))
}

/// A host with one IPv6 address of a /64 can mostly use all of them.
fn network_of(quota_key: QuotaKey) -> Network {
    let network = quota_key.address().map(|address| match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    });
    (quota_key.interface(), network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: u8) -> QuotaKey {
        IpAddr::from([10, 0, 0, client]).into()
    }

    const fn limits(total: usize) -> PermitLimits {
        PermitLimits {
            per_client: usize::MAX,
            total,
        }
    }

    /// Each takes one in its turn. What became of each at the end: it has its place (`+`), had it and lost it (`-`), or was
    /// given none (`.`).
    fn play(total: usize, asked: impl IntoIterator<Item = QuotaKey>) -> String {
        let (mut quota, mut fates, mut allocations) = (Quota::default(), Vec::new(), Vec::new());
        for (place, quota_key) in asked.into_iter().enumerate() {
            let mut lost = Vec::new();
            let number = quota.take(quota_key, 1, limits(total), place, |other: usize| {
                lost.push(other)
            });
            fates.push(if number.is_some() { '+' } else { '.' });
            for other in lost {
                fates[other] = '-';
            }
            allocations.push((quota_key, number));
            assert!(quota.taken() <= total);
        }
        for (quota_key, number) in allocations {
            if let Some(number) = number {
                quota.give_back(quota_key, number);
            }
        }
        assert_eq!(quota.taken(), 0);
        assert!(quota.clients.is_empty() && quota.networks.is_empty() && quota.interfaces.is_empty());
        fates.into_iter().collect()
    }

    #[test]
    fn the_largest_client_gives_up_its_oldest_to_one_with_two_fewer() {
        for (most, asked, told) in [
            // Alone as if there were nobody to think of.
            (1, "aaa", "+.."),
            (4, "aaaaaa", "++++.."),
            // Nobody is refused for a flood of another's.
            (4, "aaaab", "-++++"),
            (4, "aaaabb", "--++++"),
            // More than the same is taken from nobody, and nobody takes it back.
            (4, "aaaabbb", "--++++."),
            (4, "aaaabbba", "--++++.."),
            (1, "ab", "+."),
            (2, "ab", "++"),
            (2, "aab", "-++"),
            (3, "aabc", "-+++"),
            // Two that flood together have no more of others' than one.
            (4, "aabbc", "-++++"),
            (6, "aaabbbc", "-++++++"),
            (6, "aaabbbcd", "-++-++++"),
            (6, "aaabbbcc", "-++-++++"),
            (6, "aaabbbccc", "-++-++++."),
        ] {
            assert_eq!(play(most, asked.bytes().map(of)), told, "{asked} of {most}");
        }
    }

    #[test]
    fn many_addresses_behind_one_interface_take_nothing_from_other_interfaces() {
        let spoofed = |number: u8| QuotaKey::behind(7, Some([10, 0, 0, number].into()));
        let other = QuotaKey::behind(8, None);
        let flood = (1..=6).map(spoofed);
        assert_eq!(play(6, flood.clone().chain([other, other, other])), "---++++++");
        // Two more behind the other one, and both have the same.
        assert_eq!(play(6, flood.chain([other; 4])), "---++++++.");
    }

    #[test]
    fn behind_one_interface_a_network_of_ipv6_counts_as_one_address_of_ipv4() {
        let in_v6 = |network: u16, last: u16| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, last);
            QuotaKey::behind(7, Some(address.into()))
        };
        let in_v4 = |last: u8| QuotaKey::behind(7, Some([10, 0, 0, last].into()));
        let flood = (1..=6).map(|last| in_v6(0, last));
        assert_eq!(play(6, flood.clone().chain([in_v4(1), in_v4(2)])), "--++++++");
        assert_eq!(play(6, flood.clone().chain([in_v6(1, 1)])), "-++++++");
        // In the same network each address is a client, and nobody has two more than another.
        assert_eq!(play(6, flood.chain([in_v6(0, 7)])), "++++++.");
        let one = std::iter::repeat_n(in_v6(0, 1), 6);
        assert_eq!(play(6, one.chain([in_v6(0, 2)])), "-++++++");
    }

    #[test]
    fn a_client_stays_within_its_own_limit() {
        let mut quota = Quota::default();
        let limits = PermitLimits {
            per_client: 2,
            total: 3,
        };
        let mut take =
            |client, amount| quota.take(of(client), amount, limits, (), |()| panic!("nobody gives way"));
        let first = take(1, 1).unwrap();
        assert!(take(1, 1).is_some() && take(1, 1).is_none());
        assert!(take(2, 1).is_some() && take(3, 4).is_none());
        quota.give_back(of(1), first);
        assert_eq!(quota.taken(), 2);
    }

    #[test]
    fn a_large_amount_revokes_as_many_as_it_needs() {
        let mut quota = Quota::default();
        let mut lost = Vec::new();
        for (name, amount) in [("a", 3), ("b", 3), ("c", 4)] {
            let taken = quota.take(of(1), amount, limits(10), name, |_| panic!("there is room"));
            assert!(taken.is_some());
        }
        let taken = quota.take(of(2), 5, limits(10), "d", |other| lost.push(other));
        assert!(taken.is_some());
        assert_eq!((lost, quota.taken()), (vec!["a", "b"], 9));
    }
}
