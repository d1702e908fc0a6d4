//! Where our jumps stand among the rules of others, and how often we insist on it.
//!
//! Others want to be first as well, and some put themselves back whenever they are not. Two that both insist write rules for
//! ever, so a place that was taken again and again is left, for a while, to who wants it more. A jump that is gone is
//! another thing: it is always put back.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::netfilter::model::settings::JumpPosition;
use egret_kernel::iptables::Hook;
use egret_shared::time::Timestamp;

/// A jump that is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JumpPlacement {
    /// So many copies are taken out before.
    pub copies: usize,
    /// Where it comes.
    pub place: JumpPosition,
}

/// How often a place is taken back at once …
const MOVES: u32 = 3;
/// … and how long it takes until it may be once more.
const REGAINED_IN: Duration = Duration::from_secs(600);

/// The moves that were made lately.
#[derive(Clone, Debug, Default)]
pub(super) struct PositionContest(BTreeMap<Hook, Moves>);

#[derive(Clone, Copy, Debug)]
struct Moves {
    left: u32,
    /// From when on the next one is being regained.
    since: Timestamp,
}

impl PositionContest {
    /// Whether a jump that somebody pushed down is to be put back; if so, that counts.
    pub(super) fn may_move(&mut self, hook: Hook, now: Timestamp) -> bool {
        let moves = self.0.entry(hook).or_insert(Moves {
            left: MOVES,
            since: now,
        });
        while moves.left < MOVES && moves.since.after(REGAINED_IN) <= now {
            moves.left += 1;
            moves.since = moves.since.after(REGAINED_IN);
        }
        if moves.left == MOVES {
            moves.since = now;
        }
        let may = moves.left > 0;
        moves.left = moves.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_position_is_retaken_three_times_and_then_once_in_ten_minutes() {
        let mut contest = PositionContest::default();
        let mut moved = Vec::new();
        for second in 0..1_300 {
            let now = Timestamp::from_millis(second * 1_000);
            if contest.may_move(Hook::Forward, now) {
                moved.push(second);
            }
        }
        assert_eq!(moved, [0, 1, 2, 600, 1_200]);
        let late = Timestamp::from_millis(9_000_000);
        let again = (0..5).filter(|_| contest.may_move(Hook::Forward, late)).count();
        assert_eq!(again, 3, "who has given up starts anew");
        assert!(contest.may_move(Hook::Input, late), "each hook for itself");
    }
}
