//! Chains that are rendered while their sets are made. A first sync makes thousands of sets, and the kernel waits for each 64th until
//! nobody uses its list of sets any more (`ip_set_create` of net/netfilter/ipset/ip_set_core.c): a second in which nothing is computed.
//!
//! So it is expected meanwhile that all of them come to be. That is compared before anything is written; where one set is
//! missing, all pods are rendered again over those that are there.

use std::collections::BTreeSet;

use egret_policies::rules::SetId;
use egret_shared::time::Timestamp;

use super::Netfilter;

impl Netfilter {
    /// Makes the sets of a first batch, in this order, and has them hold what they should; returns those from which members went.
    pub(crate) fn make_sets(&mut self, order: Vec<SetId>, now: Timestamp) -> BTreeSet<SetId> {
        let (sets, room) = (self.sets.clone(), self.room.end());
        let make = || {
            drop(room);
            sets.lock().make_in_order(&order);
            sets.lock().settle(now)
        };
        // What an earlier life left is compared with what would be rendered: that decides which marks are rendered.
        if !self.generations.is_empty() {
            return make();
        }
        let expected = self.sets.lock().expected();
        let shrunk = std::thread::scope(|scope| {
            let making = scope.spawn(make);
            self.renew(&BTreeSet::new());
            self.want_chains_over(&expected, &BTreeSet::new());
            making
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        self.sets.lock().compare(&expected);
        shrunk
    }
}
