//! The connections that rules allowed and that are still open: how many a rule has, and what ends them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use egret_policies::model::api_server::Selection;
use egret_policies::rules::Origin;
use egret_shared::name::DnsName;

use super::first_octets::SeenName;

/// The policy of a rule, and its index.
pub(super) type RuleKey = (Arc<str>, usize);

/// Why one may be opened.
#[derive(Debug)]
pub(super) enum Allowed {
    /// A rule allows it, and so many; without a rule it is allowed too.
    By(Option<RuleKey>, Option<u32>),
    /// It is judged when its server name is known.
    ByServerName,
}

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
    pub(super) server_name: ServerNameState,
    revocation: Arc<Revocation>,
}

/// What is known of the server name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerNameState {
    /// Nothing yet, and octets pass.
    Unread,
    /// Nothing yet, and nothing passes before.
    Awaited,
    Seen(SeenName),
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

    /// Its client asks for this server name; gives what was known before.
    pub(super) fn named(&self, name: SeenName) -> Option<ServerNameState> {
        let mut state = self.open.lock();
        let tunnel = state.tunnels.get_mut(&self.number)?;
        Some(std::mem::replace(
            &mut tunnel.server_name,
            ServerNameState::Seen(name),
        ))
    }

    /// What is judged.
    pub(super) fn tunnel(&self) -> Option<OpenTunnel> {
        self.open.get(self.number)
    }

    /// It counts for this rule from now on, unless the rule has as many others as it allows.
    pub(super) fn moved_to(&self, rule: Option<RuleKey>, most: Option<u32>) -> bool {
        let mut state = self.open.lock();
        let is_new = state.tunnels.get(&self.number).is_some_and(|it| it.rule != rule);
        if is_new && state.is_full(rule.as_ref(), most) {
            return false;
        }
        state.move_to(self.number, rule);
        true
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
        allowed: Allowed,
    ) -> Option<Permit> {
        let mut state = self.lock();
        let (rule, server_name) = match allowed {
            Allowed::By(rule, most) if state.is_full(rule.as_ref(), most) => return None,
            Allowed::By(rule, _) => (rule, ServerNameState::Unread),
            Allowed::ByServerName => (None, ServerNameState::Awaited),
        };
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
            server_name,
            revocation: Arc::clone(&revocation),
        };
        state.tunnels.insert(number, tunnel);
        Some(Permit {
            open: Arc::clone(self),
            number,
            revocation,
        })
    }

    /// How many there were.
    pub(super) fn opened(&self) -> u64 {
        self.lock().last
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.lock().tunnels.keys().copied().collect()
    }

    pub(super) fn get(&self, number: u64) -> Option<OpenTunnel> {
        self.lock().tunnels.get(&number).cloned()
    }

    /// It counts for this rule from now on.
    pub(super) fn allowed_by(&self, number: u64, rule: Option<RuleKey>) {
        self.lock().move_to(number, rule);
    }
}

impl OpenTunnel {
    /// As it was asked for.
    pub(super) fn destination(&self) -> String {
        match (&self.name, self.addresses.first()) {
            (Some(name), _) => format!("{name}:{}", self.port),
            (None, Some(address)) => SocketAddr::new(*address, self.port).to_string(),
            (None, None) => String::new(),
        }
    }

    pub(super) fn revocation(&self) -> &Revocation {
        &self.revocation
    }
}

impl State {
    fn is_full(&self, rule: Option<&RuleKey>, most: Option<u32>) -> bool {
        let count = rule
            .and_then(|rule| self.by_rule.get(rule))
            .copied()
            .unwrap_or_default();
        most.is_some_and(|most| count >= most)
    }

    fn move_to(&mut self, number: u64, rule: Option<RuleKey>) {
        let Some(tunnel) = self.tunnels.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut tunnel.rule, rule.clone());
        self.count_less(before);
        self.count_more(rule);
    }

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
