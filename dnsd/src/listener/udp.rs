//! Datagrams: what is there is read in one go; what can be answered at once is answered without a task.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;
use egret_shared::switch::{Switch, is_off};

use super::Service;
use super::workers::Workers;
use crate::listener::burst::Burst;
use crate::listener::reply_queue::{Replies, Reply};
use crate::listener::udp_socket::ListenSocket;
use crate::net::Transport;
use crate::net::batch::{BATCH, DatagramMeta, ReceiveBatch, SendBatch};
use crate::pipeline::{Disposition, Pending, ReceivedAt};
use crate::zones::{Listener, PacketInfo};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// So many at once are not alone: more come.
const FEW: usize = 2;
/// When so many were read, all else has a turn.
const TURN: usize = 64;
/// Datagrams that are read from a socket before it goes: more than its buffer holds.
const MOST_AT_END: usize = 16_384;

/// Who reads from a socket on one thread, and answers there what it has read.
pub(super) struct UdpReader {
    datagrams: Arc<ListenSocket>,
    port: Arc<Listener>,
    service: Service,
    /// Whom it calls when much comes at once, if there is anybody.
    crowd: Option<Arc<Burst>>,
    /// Replies to queries that had to wait.
    replies: Arc<Replies>,
    /// Who waits with them.
    workers: Workers<Job>,
    /// Room for the next of them.
    taken: Vec<Reply>,
    receive_batch: ReceiveBatch,
    send_batch: SendBatch,
}

impl UdpReader {
    pub(super) fn new(
        datagrams: Arc<ListenSocket>,
        port: Arc<Listener>,
        service: Service,
        crowd: Option<Arc<Burst>>,
    ) -> Self {
        Self {
            datagrams,
            port,
            service,
            crowd,
            replies: Arc::default(),
            workers: Workers::new(),
            taken: Vec::new(),
            receive_batch: ReceiveBatch::new(),
            send_batch: SendBatch::new(),
        }
    }

    /// One for the same socket, for another thread.
    pub(super) fn of_a_further_thread(&self) -> Self {
        let (datagrams, port) = (Arc::clone(&self.datagrams), Arc::clone(&self.port));
        Self::new(datagrams, port, self.service.clone(), self.crowd.clone())
    }

    /// Hears of what comes, until it is closed.
    pub(super) async fn serve(mut self, close: CancellationToken) {
        let mut closed = pin!(close.cancelled());
        while !close.is_cancelled() {
            let readable = tokio::select! {
                biased;
                () = self.replies.ready() => {
                    self.send_replies();
                    continue;
                }
                readable = self.datagrams.readable() => readable,
                () = &mut closed => break,
            };
            if readable.is_ok() {
                self.let_held_go_first().await;
            }
            match readable.and_then(|()| self.read_batch()) {
                Ok(BATCH) => tokio::task::yield_now().await,
                Ok(_all_there_were) => {}
                Err(error) => {
                    tracing::debug!(%error, "a datagram cannot be received");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        self.end();
    }

    /// Reads when it is called, until it is closed.
    pub(super) async fn help(mut self, crowd: Arc<Burst>, close: CancellationToken) {
        let mut closed = pin!(close.cancelled());
        while !close.is_cancelled() {
            tokio::select! {
                biased;
                () = self.replies.ready() => self.send_replies(),
                () = crowd.called() => self.read_what_is_left(&close).await,
                () = &mut closed => break,
            }
        }
        if !is_off(Switch::DrainThreads) {
            self.end();
        }
    }

    /// What came before the end is answered. Of several threads each reads until there is nothing left.
    fn end(&mut self) {
        self.read_rest();
        self.replies.close();
        self.send_replies();
    }

    async fn read_what_is_left(&mut self, close: &CancellationToken) {
        // Whatever else is wrong, the first thread hears of it.
        while let Ok(received) = self.datagrams.receive_now(&mut self.receive_batch) {
            self.service
                .metrics
                .further_threads_datagrams
                .increment(received as u64);
            self.take_crowd(received);
            tokio::task::yield_now().await;
            self.send_replies();
            if close.is_cancelled() {
                return;
            }
        }
    }

    /// Reads what has come before the end: it would be lost with the socket.
    fn read_rest(&mut self) {
        for _ in 0..MOST_AT_END / BATCH {
            match self.datagrams.receive_now(&mut self.receive_batch) {
                Ok(received) => self.take_all(received),
                Err(_nothing_left) => return,
            }
        }
    }

    /// Who waits for the enforcer asked before those who ask now, and its word has perhaps come beside their questions: then
    /// the link, whose turn is after this, would be read when all of them are answered.
    async fn let_held_go_first(&mut self) {
        if self.service.resolver.is_holding() {
            tokio::task::yield_now().await;
            self.send_replies();
        }
    }

    /// Reads what has come. Where several came at once there are more by the time that they are answered: those are read
    /// without asking the runtime, that is the kernel, whether they are there.
    fn read_batch(&mut self) -> io::Result<usize> {
        let mut received = self.datagrams.try_receive(&mut self.receive_batch)?;
        self.take_crowd(received);
        let mut all = received;
        while (FEW..BATCH).contains(&received) && all < TURN && !self.service.resolver.is_holding() {
            received = match self.datagrams.receive_now(&mut self.receive_batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => received?,
            };
            self.take_crowd(received);
            all += received;
        }
        Ok(received)
    }

    /// Calls another thread first, if these are many.
    fn take_crowd(&mut self, received: usize) {
        if let Some(crowd) = &self.crowd {
            crowd.read(received);
        }
        self.take_all(received);
    }

    /// What can be answered at once goes out together.
    fn take_all(&mut self, received: usize) {
        let (table, when) = (self.port.table(), ReceivedAt::now());
        let batch = self.service.resolver.batch(&table, when);
        for place in 0..received {
            if let Some((octets, meta)) = self.receive_batch.get(place) {
                match batch.take(octets, arrival(&meta)) {
                    Disposition::NoReply => {}
                    Disposition::Reply(reply) => {
                        let from = self.datagrams.source(&meta);
                        self.send_batch.push(reply, meta, from);
                    }
                    Disposition::Pending(pending) => self.answer_later(meta, pending),
                }
            }
        }
        drop(batch);
        self.flush();
    }

    /// What became ready meanwhile goes out together, too.
    fn send_replies(&mut self) {
        let mut replies = self.replies.take(std::mem::take(&mut self.taken));
        let mut left = replies.drain(..).peekable();
        while left.peek().is_some() {
            for (reply, meta) in left.by_ref().take(BATCH) {
                let from = self.datagrams.source(&meta);
                self.send_batch.push(reply, meta, from);
            }
            self.flush();
        }
        drop(left);
        self.taken = replies;
    }

    fn flush(&mut self) {
        let (datagrams, service) = (&self.datagrams, &self.service);
        self.send_batch.flush(datagrams.way_out(), |reply, meta, error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                let datagrams = Arc::clone(datagrams);
                let sending = async move { report(datagrams.send(&reply, &meta).await, &meta) };
                drop(task::spawn_brief(service.under_way.track_future(sending)));
            } else {
                report(Err(error), &meta);
            }
        });
    }

    fn answer_later(&self, meta: DatagramMeta, pending: Pending) {
        let job = Job {
            meta,
            pending,
            _under_way: self.service.under_way.token(),
        };
        let (datagrams, replies) = (Arc::clone(&self.datagrams), Arc::clone(&self.replies));
        self.workers.give(job, move |job| {
            answer(job, Arc::clone(&datagrams), Arc::clone(&replies))
        });
    }
}

/// A query that waits.
struct Job {
    meta: DatagramMeta,
    pending: Pending,
    /// It is waited for at the end.
    _under_way: TaskTrackerToken,
}

async fn answer(job: Job, datagrams: Arc<ListenSocket>, replies: Arc<Replies>) {
    let Job {
        meta,
        pending,
        _under_way,
    } = job;
    if let Some(reply) = pending.reply().await
        && let Err((reply, meta)) = replies.put(reply, meta)
    {
        report(datagrams.send(&reply, &meta).await, &meta);
    }
}

const fn arrival(meta: &DatagramMeta) -> PacketInfo {
    PacketInfo {
        source: meta.from,
        asked: meta.to,
        interface: meta.interface,
        transport: Transport::Udp,
    }
}

fn report(sent: io::Result<()>, meta: &DatagramMeta) {
    if let Err(error) = sent {
        tracing::debug!(client = % meta.from, %error, "a reply cannot be sent");
    }
}
