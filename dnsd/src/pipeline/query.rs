//! A query in the pipeline, with its client and the zone that answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::time::Timestamp;
use tokio::time::Instant;

use crate::cache::Key;
use crate::dns::answer::{AnswerView, Ttls};
use crate::dns::message::Query;
use crate::enforcement::client::{Client, ClientId};
use crate::limits::quota_key::QuotaKey;
use crate::net::Transport;
use crate::pipeline::counters::BatchedCounters;
use crate::upstream::CompletionCount;
use crate::zones::{PacketInfo, QueryContext, ZoneBinding, ZoneTable};

/// A pending query: it owns what it needs.
#[derive(Debug)]
pub(super) struct WaitingQuery {
    pub(super) query: Query<'static>,
    pub(super) key: Option<Key>,
    client: Client,
    pub(super) quota_key: QuotaKey,
    pub(super) packet: PacketInfo,
    pub(super) binding: Arc<ZoneBinding>,
    pub(super) table: Arc<ZoneTable>,
    pub(super) chosen_resolver: Option<IpAddr>,
    query_octets: usize,
    received: Instant,
    pub(super) missed_at: Option<CompletionCount>,
}

/// A query while it is looked at: one that is answered at once owns nothing.
#[derive(Clone, Copy)]
pub(super) struct QueryView<'a> {
    pub(super) query: &'a Query<'a>,
    pub(super) client: Client,
    pub(super) quota_key: QuotaKey,
    pub(super) packet: &'a PacketInfo,
    pub(super) binding: &'a Arc<ZoneBinding>,
    pub(super) table: &'a Arc<ZoneTable>,
    /// The resolver that the client asked, where intercepted queries go to it.
    pub(super) chosen_resolver: Option<IpAddr>,
    pub(super) query_octets: usize,
    pub(super) received: Instant,
    /// The completion count at the cache miss, if the cache was searched.
    pub(super) missed_at: Option<CompletionCount>,
    /// The counters of its batch; none for a pending query.
    pub(super) counters: Option<&'a BatchedCounters<'a>>,
    /// Whether the kernel may answer the next one; never for a pending query.
    pub(super) learnable: Option<Learnable<'a>>,
}

/// A query whose answer the kernel may learn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learnable<'a> {
    /// Its octets.
    pub(super) octets: &'a [u8],
    /// The generation before anything was looked up.
    pub(super) generation: u64,
    /// How long its sender is believed to be the pod.
    pub(super) until: Timestamp,
}

impl WaitingQuery {
    pub(super) fn view(&self) -> QueryView<'_> {
        QueryView {
            query: &self.query,
            client: self.client,
            quota_key: self.quota_key,
            packet: &self.packet,
            binding: &self.binding,
            table: &self.table,
            chosen_resolver: self.chosen_resolver,
            query_octets: self.query_octets,
            received: self.received,
            missed_at: self.missed_at,
            counters: None,
            learnable: None,
        }
    }
}

impl QueryView<'_> {
    /// The query as a pending one.
    pub(super) fn owned(self, key: Option<Key>) -> Box<WaitingQuery> {
        Box::new(WaitingQuery {
            query: self.query.owned(),
            key,
            client: self.client,
            quota_key: self.quota_key,
            packet: *self.packet,
            binding: Arc::clone(self.binding),
            table: Arc::clone(self.table),
            chosen_resolver: self.chosen_resolver,
            query_octets: self.query_octets,
            received: self.received,
            missed_at: self.missed_at,
        })
    }

    /// The reply, and whether it has all of the answer.
    pub(super) fn reply(self, answer: &AnswerView<'_>, ttls: Ttls) -> (Vec<u8>, bool) {
        let (udp_size, limit) = (self.udp_size(), self.datagram_limit());
        let (reply, is_whole) = answer.reply_within(self.query, ttls, limit, udp_size);
        (self.binding.block.balance(reply, self.query, udp_size), is_whole)
    }

    /// The client that learns addresses from a reply; none where the client is unknown, or no address fits. A client uses the
    /// addresses of a truncated reply, and learns the others over TCP.
    pub(super) fn observer(self, reply: &[u8], is_whole: bool) -> Option<ClientId> {
        match self.client {
            Client::Identified(client_id) if is_whole || reply[6..8] != [0, 0] => Some(client_id),
            Client::Identified(_) | Client::Unidentified(_) => None,
        }
    }

    /// The longest reply.
    pub(super) fn datagram_limit(self) -> usize {
        match self.packet.transport {
            Transport::Udp => self.query.datagram_limit(self.udp_size()),
            Transport::Tcp | Transport::Quic => usize::from(u16::MAX),
        }
    }

    /// The largest UDP message, to clients and from upstreams.
    pub(super) fn udp_size(self) -> u16 {
        let of_block = self.binding.block.plan().bufsize;
        of_block.unwrap_or(self.table.config.max_udp_size)
    }

    pub(super) fn context(self) -> QueryContext {
        QueryContext {
            table: Arc::clone(self.table),
            arrival: *self.packet,
            quota_key: self.quota_key,
            may_ask_outside: self.binding.may_ask_outside,
            may_forward: self.binding.block.may_forward(self.query),
            zone: self.binding.zone,
            depth: 0,
            waited: Duration::ZERO,
        }
    }
}
