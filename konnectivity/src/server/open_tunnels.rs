//! The connections that rules allowed and that are still open: how many a rule has, and what ends them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use egret_policies::model::api_server::Selection;
use egret_policies::rules::Origin;
use egret_shared::name::DnsName;

/// The policy of a rule, and its index.
pub(super) type RuleKey = (Arc<str>, usize);

#[derive(Debug, Default)]
pub(super) struct OpenTunnels(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    tunnels: BTreeMap<u64, OpenTunnel>,
    by_rule: HashMap<RuleKey, u32>,
}

/// What was asked for, as far as it is judged.
#[derive(Clone, Debug)]
pub(super) struct OpenTunnel {
    pub(super) selection: Selection,
    pub(super) name: Option<DnsName>,
    /// All that the name has while it is dialled; then the one that is connected to.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) port: u16,
    pub(super) rule: Option<RuleKey>,
    revocation: Arc<Revocation>,
}

/// Whether a connection may go on.
#[derive(Default)]
pub(super) struct Revocation {
    revoked: OnceLock<Revoked>,
    cut: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Why it may not.
#[derive(Clone, Debug)]
pub(super) struct Revoked {
    pub(super) text: String,
    pub(super) rule: Option<Origin>,
}

impl std::fmt::Debug for Revocation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Revocation").field(&self.revoked).finish()
    }
}

impl Revocation {
    pub(super) fn revoked(&self) -> Option<&Revoked> {
        self.revoked.get()
    }

    /// Calls `cut` when it may go on no longer, and at once if that is so already.
    pub(super) fn cut_by(&self, cut: impl Fn() + Send + Sync + 'static) {
        let cut = self.cut.get_or_init(|| Box::new(cut));
        if self.revoked.get().is_some() {
            cut();
        }
    }

    pub(super) fn revoke(&self, revoked: Revoked) {
        self.revoked.get_or_init(|| revoked);
        if let Some(cut) = self.cut.get() {
            cut();
        }
    }
}

/// One of the open connections; dropped, it is one no more.
#[derive(Debug)]
pub(super) struct Permit {
    open: Arc<OpenTunnels>,
    number: u64,
    revocation: Arc<Revocation>,
}

impl Permit {
    pub(super) fn revocation(&self) -> &Arc<Revocation> {
        &self.revocation
    }

    /// Of the addresses of its name one has it now.
    pub(super) fn connected_to(&self, address: IpAddr) {
        if let Some(tunnel) = self.open.lock().tunnels.get_mut(&self.number) {
            tunnel.addresses = vec![address];
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.open.lock();
        let rule = state.tunnels.remove(&self.number).and_then(|tunnel| tunnel.rule);
        state.count_less(rule);
    }
}

impl OpenTunnels {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, unless its rule has as many as it allows.
    pub(super) fn add(
        self: &Arc<Self>,
        selection: Selection,
        name: Option<DnsName>,
        (addresses, port): (Vec<IpAddr>, u16),
        rule: Option<RuleKey>,
        most: Option<u32>,
    ) -> Option<Permit> {
        let mut state = self.lock();
        if let (Some(rule), Some(most)) = (&rule, most)
            && state.by_rule.get(rule).is_some_and(|count| *count >= most)
        {
            return None;
        }
        state.count_more(rule.clone());
        state.last += 1;
        let number = state.last;
        let revocation = Arc::new(Revocation::default());
        let tunnel = OpenTunnel {
            selection,
            name,
            addresses,
            port,
            rule,
            revocation: Arc::clone(&revocation),
        };
        state.tunnels.insert(number, tunnel);
        Some(Permit {
            open: Arc::clone(self),
            number,
            revocation,
        })
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.lock().tunnels.keys().copied().collect()
    }

    pub(super) fn get(&self, number: u64) -> Option<OpenTunnel> {
        self.lock().tunnels.get(&number).cloned()
    }

    /// It counts for this rule from now on.
    pub(super) fn allowed_by(&self, number: u64, rule: Option<RuleKey>) {
        let mut state = self.lock();
        let Some(tunnel) = state.tunnels.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut tunnel.rule, rule.clone());
        state.count_less(before);
        state.count_more(rule);
    }
}

impl OpenTunnel {
    pub(super) fn revocation(&self) -> &Revocation {
        &self.revocation
    }
}

impl State {
    fn count_more(&mut self, rule: Option<RuleKey>) {
        if let Some(rule) = rule {
            *self.by_rule.entry(rule).or_default() += 1;
        }
    }

    fn count_less(&mut self, rule: Option<RuleKey>) {
        if let Some(rule) = rule
            && let Some(count) = self.by_rule.get_mut(&rule)
        {
            *count -= 1;
            if *count == 0 {
                self.by_rule.remove(&rule);
            }
        }
    }
}
