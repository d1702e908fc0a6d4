//! Which upstreams said nothing lately: they are asked last, so that a dead one does not cost every query its patience.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::time::Timestamp;

use crate::config::Upstream;

/// How long an upstream that said nothing is asked last.
const SHUNNED: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Health {
    /// Held for one map operation.
    shunned: Mutex<HashMap<SocketAddr, Timestamp>>,
}

impl Health {
    /// The upstreams as configured, those behind the others that said nothing lately.
    pub(super) fn order(&self, upstreams: &[Upstream], now: Timestamp) -> Vec<Upstream> {
        let shunned = self.lock();
        let is_shunned =
            |upstream: &Upstream| shunned.get(&upstream.address).is_some_and(|until| now < *until);
        let mut order = upstreams.to_vec();
        order.sort_by_key(is_shunned);
        order
    }

    /// Notes whether an upstream said something.
    pub(super) fn note(&self, upstream: Upstream, answered: bool, now: Timestamp) {
        let mut shunned = self.lock();
        if answered {
            shunned.remove(&upstream.address);
        } else {
            shunned.insert(upstream.address, now.after(SHUNNED));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Timestamp>> {
        self.shunned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_that_says_nothing_is_asked_last_for_a_while() {
        let upstreams: Vec<Upstream> = ["192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let (health, now) = (Health::default(), Timestamp::from_millis(1_000));
        let order = |now| {
            health
                .order(&upstreams, now)
                .iter()
                .map(|it| it.address.to_string())
                .collect::<Vec<_>>()
        };
        health.note(upstreams[0], false, now);
        assert_eq!(order(now), ["192.0.2.2:53", "192.0.2.3:53", "192.0.2.1:53"]);
        assert_eq!(
            order(now.after(SHUNNED)),
            ["192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"]
        );
        health.note(upstreams[0], true, now);
        assert_eq!(order(now)[0], "192.0.2.1:53");
    }
}
