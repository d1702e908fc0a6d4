//! Queries over UDP: read in batches; those that can be answered at once are answered without a task.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;

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

/// Datagrams read at once after which more are expected.
const FEW: usize = 2;
/// Datagrams after which other tasks run.
const MAX_PER_TURN: usize = 64;
/// Datagrams read from a socket before it is closed: more than its buffer holds.
const MAX_AT_CLOSE: usize = 16_384;

/// Reads from a socket on one thread, and answers there.
pub(super) struct UdpReader {
    datagrams: Arc<ListenSocket>,
    port: Arc<Listener>,
    service: Service,
    /// Wakes further threads in a burst, if there are any.
    burst: Option<Arc<Burst>>,
    /// Replies of pending queries.
    replies: Arc<Replies>,
    /// The tasks that wait with them.
    workers: Workers<Job>,
    /// An empty list, reused.
    taken: Vec<Reply>,
    receive_batch: ReceiveBatch,
    send_batch: SendBatch,
}

impl UdpReader {
    pub(super) fn new(
        datagrams: Arc<ListenSocket>,
        port: Arc<Listener>,
        service: Service,
        burst: Option<Arc<Burst>>,
    ) -> Self {
        Self {
            datagrams,
            port,
            service,
            burst,
            replies: Arc::default(),
            workers: Workers::new(),
            taken: Vec::new(),
            receive_batch: ReceiveBatch::new(),
            send_batch: SendBatch::new(),
        }
    }

    /// A reader of the same socket, for another thread.
    pub(super) fn for_further_thread(&self) -> Self {
        let (datagrams, port) = (Arc::clone(&self.datagrams), Arc::clone(&self.port));
        Self::new(datagrams, port, self.service.clone(), self.burst.clone())
    }

    /// Reads until the socket is closed.
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
                self.release_held_first().await;
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
        self.finish();
    }

    /// Reads in bursts, until the socket is closed.
    pub(super) async fn help(mut self, burst: Arc<Burst>, close: CancellationToken) {
        let mut closed = pin!(close.cancelled());
        while !close.is_cancelled() {
            tokio::select! {
                biased;
                () = self.replies.ready() => self.send_replies(),
                () = burst.next() => self.read_what_is_left(&close).await,
                () = &mut closed => break,
            }
        }
        self.finish();
    }

    /// Answers what is left in the socket. With several threads, each reads until it is empty.
    fn finish(&mut self) {
        self.read_rest();
        self.replies.close();
        self.send_replies();
    }

    async fn read_what_is_left(&mut self, close: &CancellationToken) {
        // Errors are the first thread's: it is registered for them.
        while let Ok(received) = self.datagrams.receive_now(&mut self.receive_batch) {
            self.service
                .metrics
                .further_threads_datagrams
                .increment(received as u64);
            self.answer_burst(received);
            tokio::task::yield_now().await;
            self.send_replies();
            if close.is_cancelled() {
                return;
            }
        }
    }

    /// Reads what is queued: it would be lost with the socket.
    fn read_rest(&mut self) {
        for _ in 0..MAX_AT_CLOSE / BATCH {
            match self.datagrams.receive_now(&mut self.receive_batch) {
                Ok(received) => self.answer_all(received),
                Err(_nothing_left) => return,
            }
        }
    }

    /// Lets the link task run first while answers are held: the enforcer's message may have arrived together with these
    /// queries, and the held answers are older.
    async fn release_held_first(&mut self) {
        if self.service.resolver.is_holding() {
            tokio::task::yield_now().await;
            self.send_replies();
        }
    }

    /// Reads and answers what is queued. After several datagrams more have usually arrived meanwhile: those are read without
    /// polling first.
    fn read_batch(&mut self) -> io::Result<usize> {
        let mut received = self.datagrams.try_receive(&mut self.receive_batch)?;
        self.answer_burst(received);
        let mut all = received;
        while (FEW..BATCH).contains(&received) && all < MAX_PER_TURN && !self.service.resolver.is_holding() {
            received = match self.datagrams.receive_now(&mut self.receive_batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => received?,
            };
            self.answer_burst(received);
            all += received;
        }
        Ok(received)
    }

    /// Answers what was read; wakes another thread first if it is a burst.
    fn answer_burst(&mut self, received: usize) {
        if let Some(burst) = &self.burst {
            burst.read(received);
        }
        self.answer_all(received);
    }

    /// Answers what was read; the immediate replies are sent together.
    fn answer_all(&mut self, received: usize) {
        let (table, when) = (self.port.table(), ReceivedAt::now());
        let batch = self.service.resolver.batch(&table, when);
        for index in 0..received {
            if let Some((octets, meta)) = self.receive_batch.get(index) {
                match batch.answer(octets, arrival(&meta)) {
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

    /// Sends the replies of pending queries that are ready, together.
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
        self.workers.run(job, move |job| {
            answer(job, Arc::clone(&datagrams), Arc::clone(&replies))
        });
    }
}

/// A pending query.
struct Job {
    meta: DatagramMeta,
    pending: Pending,
    /// Shutdown waits for it.
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
        tracing::debug!(client = %meta.from, %error, "a reply cannot be sent");
    }
}
