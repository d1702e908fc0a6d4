//! Messages to a subsystem of nfnetlink that take effect together or not at all (`nfnetlink_rcv_batch` of net/netfilter/nfnetlink.c):
//! they go in one datagram, however long, and the kernel has done all of it, and queued what it refuses, when `send` returns.

use super::{ACKNOWLEDGE, Error, MESSAGE_ERROR, MalformedMessage, Messages, Request, Socket, verdict};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::os::fd::AsRawFd;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`.
const GENERATION: u16 = 1;

/// A transaction under construction.
#[derive(Debug)]
pub(crate) struct Transaction {
    asked: &'static str,
    subsystem: u8,
    /// The sequence number of its beginning; its messages follow.
    first: u32,
    messages: u32,
    /// Where the last message begins in the datagram.
    last: usize,
    datagram: Vec<u8>,
}

/// Why a transaction was not made: nothing of it was.
#[derive(Debug)]
pub(crate) struct TransactionError {
    /// The number of the first message that was refused, where it is one.
    pub(crate) message: Option<usize>,
    pub(crate) error: Error,
    /// The messages that were refused behind it, in their order: the kernel goes on behind one, so that these are all that it finds. Of
    /// thousands the last may be missing.
    pub(crate) others: Vec<(usize, Error)>,
}

impl TransactionError {
    pub(crate) const fn whole(error: Error) -> Self {
        Self {
            message: None,
            error,
            others: Vec::new(),
        }
    }
}

impl Transaction {
    /// `generation` is that of what it builds on: where there is another by now, the kernel refuses it with `ERESTART`.
    pub(crate) fn begin(
        asked: &'static str,
        subsystem: u8,
        generation: Option<u32>,
        socket: &Socket,
        room: usize,
    ) -> Self {
        let mut begun = Self {
            asked,
            subsystem,
            first: socket.sequence.wrapping_add(1),
            messages: 0,
            last: 0,
            datagram: Vec::with_capacity(room),
        };
        let begin = begun.frame(BATCH_BEGIN);
        let begin = match generation {
            Some(generation) => begin.plain_be32(GENERATION, generation),
            None => begin,
        };
        begin.put_into(&mut begun.datagram, begun.first, false);
        begun
    }

    pub(crate) fn push(&mut self, message: &Request) {
        self.messages += 1;
        self.last = self.datagram.len();
        let sequence = self.first.wrapping_add(self.messages);
        message.put_into(&mut self.datagram, sequence, false);
    }

    /// Only the last message is acknowledged. The kernel says what became of messages in their order, behind what became of the whole,
    /// so there is nothing to be read behind it.
    fn end(&mut self) {
        if self.messages > 0 {
            let flags = &mut self.datagram[self.last + 6..self.last + 8];
            let acknowledged = u16::from_ne_bytes([flags[0], flags[1]]) | ACKNOWLEDGE;
            flags.copy_from_slice(&acknowledged.to_ne_bytes());
        }
        let sequence = self.first.wrapping_add(self.messages).wrapping_add(1);
        self.frame(BATCH_END)
            .put_into(&mut self.datagram, sequence, false);
    }

    /// `struct nfgenmsg` with the subsystem as `res_id`.
    fn frame(&self, kind: u16) -> Request {
        Request::new(self.asked, kind, 0, &[0, 0, 0, self.subsystem])
    }

    /// Which message has this sequence number; one that is beyond all for the frame around them.
    fn number(&self, sequence: u32) -> Option<usize> {
        let number = sequence.wrapping_sub(self.first).checked_sub(1)?;
        (number < self.messages).then(|| usize::try_from(number).ok())?
    }

    const fn is_last(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) == self.messages
    }

    fn is_about(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) <= self.messages + 1
    }
}

impl Socket {
    /// Has a transaction done.
    pub(crate) fn commit(&mut self, mut transaction: Transaction) -> Result<(), TransactionError> {
        transaction.end();
        let asked = transaction.asked;
        self.sequence = transaction
            .first
            .wrapping_add(transaction.messages)
            .wrapping_add(1);
        self.let_pass(transaction.datagram.len())
            .map_err(TransactionError::whole)?;
        send(self.file.as_raw_fd(), &transaction.datagram, MsgFlags::empty())
            .map_err(|errno| TransactionError::whole(Error::Send { asked, errno }))?;
        // It can be some ten megabytes, and is not needed for the answer.
        transaction.datagram = Vec::new();
        self.outcome(&transaction)
    }

    /// A datagram may be as long as what the socket may have sent (`netlink_sendmsg`).
    fn let_pass(&mut self, octets: usize) -> Result<(), Error> {
        /// What most have.
        const LEAST: usize = 64 * 1024;
        if octets <= self.sends {
            return Ok(());
        }
        let octets = octets.max(LEAST);
        setsockopt(&self.file, sockopt::SndBufForce, &octets)
            .or_else(|_not_permitted| setsockopt(&self.file, sockopt::SndBuf, &octets))
            .map_err(Error::Open)?;
        self.sends = octets;
        Ok(())
    }

    /// Reads all that the kernel has to say: of thousands that it refuses, the last ones may be lost.
    fn outcome(&mut self, transaction: &Transaction) -> Result<(), TransactionError> {
        let asked = transaction.asked;
        let (mut is_acknowledged, mut failed) = (false, None);
        loop {
            match self.datagram_as(asked, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    if self.read_outcomes(length, transaction, &mut is_acknowledged, &mut failed) {
                        break;
                    }
                }
                Err(Error::Receive {
                    errno: Errno::EAGAIN, ..
                }) => break,
                Err(error @ Error::Overrun { .. }) => {
                    failed.get_or_insert_with(|| TransactionError::whole(error));
                }
                Err(error) => return Err(TransactionError::whole(error)),
            }
        }
        match failed {
            Some(failed) => Err(failed),
            None if is_acknowledged => Ok(()),
            None => Err(TransactionError::whole(Error::Malformed {
                asked,
                reason: "it says neither yes nor no",
            })),
        }
    }

    /// True when what became of the last message was among them.
    fn read_outcomes(
        &self,
        length: usize,
        transaction: &Transaction,
        is_acknowledged: &mut bool,
        failed: &mut Option<TransactionError>,
    ) -> bool {
        let asked = transaction.asked;
        let mut has_last = false;
        for message in Messages(&self.buffer[..length]) {
            let outcome = match message {
                Err(MalformedMessage(reason)) => {
                    Err(TransactionError::whole(Error::Malformed { asked, reason }))
                }
                Ok(message) if message.kind == MESSAGE_ERROR && transaction.is_about(message.sequence) => {
                    has_last |= transaction.is_last(message.sequence);
                    verdict(asked, &message).map_err(|error| TransactionError {
                        message: transaction.number(message.sequence),
                        ..TransactionError::whole(error)
                    })
                }
                Ok(_) => continue,
            };
            match outcome {
                Ok(()) => *is_acknowledged = true,
                Err(refused) => match (failed.as_mut(), refused.message) {
                    (None, _) => *failed = Some(refused),
                    (Some(first), Some(number)) => first.others.push((number, refused.error)),
                    (Some(_), None) => {}
                },
            }
        }
        has_last
    }
}
