//! Whether a change is written by netlink or by the programs of iptables. What netlink does not write is for the programs, and what they say
//! counts: they know more, and they say by name what is refused.

use egret_kernel::Family;
use egret_kernel::iptables::netlink_writer::{Error, TransactionWriter};
use nix::errno::Errno;

/// What writes rules in the flavour `nft`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NftWriter {
    /// The enforcer itself, and the programs where it cannot.
    #[default]
    Netlink,
    /// The programs of iptables.
    Programs,
}

/// How changes fared by netlink of late.
#[derive(Debug, Default)]
pub(in crate::backend::netfilter) struct Wire {
    by: NftWriter,
    writer: TransactionWriter,
    /// Refused one after the other.
    refused: u32,
    /// So many next ones are not tried: where it is always refused, it costs each change another walk over the tables.
    left_out: u32,
}

/// What became of a change.
#[derive(Debug)]
pub(in crate::backend::netfilter) enum Tried {
    Done,
    /// Nothing was changed.
    ForThePrograms,
    /// Nothing was changed, and the programs are not to change anything either.
    NotBegun(Errno),
}

/// At most 2 to the power of this many are left out.
const MOST_DOUBLED: u32 = 6;

impl Wire {
    /// Has rules of the flavour `nft` written by this. Without it they are written by netlink.
    pub(super) const fn set_writer(&mut self, writer: NftWriter) {
        self.by = writer;
    }

    /// Tries to write all of these in one transaction.
    pub(in crate::backend::netfilter) fn write(&mut self, batches: &[(Family, &str)]) -> Tried {
        if batches.is_empty() {
            return Tried::Done;
        }
        if self.by == NftWriter::Programs {
            return Tried::ForThePrograms;
        }
        if self.left_out > 0 {
            self.left_out -= 1;
            return Tried::ForThePrograms;
        }
        match self.writer.write(batches) {
            Ok(()) => {
                self.refused = 0;
                Tried::Done
            }
            Err(Error::NotBegun(errno)) => Tried::NotBegun(errno),
            Err(
                error @ (Error::Unknown { .. }
                | Error::Refused { .. }
                | Error::Netlink(_)
                | Error::Sets(_)
                | Error::OtherSet { .. }
                | Error::Overtaken),
            ) => {
                self.leave_some_out();
                tracing::warn!(%error, left_to_programs = self.left_out + 1, "a change of rules is left to the programs of iptables");
                Tried::ForThePrograms
            }
        }
    }

    /// Waits until sets that no rule names any more can be destroyed.
    pub(in crate::backend::netfilter) fn let_go(&mut self) {
        self.writer.let_go();
    }

    fn leave_some_out(&mut self) {
        self.left_out = (1 << self.refused.min(MOST_DOUBLED)) - 1;
        self.refused += 1;
    }
}
