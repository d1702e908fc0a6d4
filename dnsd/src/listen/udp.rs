//! Datagrams: what is there is read in one go; what can be answered at once is answered without a task.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;

use super::Service;
use super::datagram::{Datagrams, Envelope};
use crate::metrics::Transport;
use crate::resolve::Step;
use crate::server::{Arrival, Port};
use tokio_util::sync::CancellationToken;

/// Datagrams that are read before other tasks have their turn.
const BURST: usize = 64;
/// Datagrams that are read from a socket before it goes: more than its buffer holds.
const MOST_AT_END: usize = 16_384;

pub(super) async fn serve(datagrams: Datagrams, port: Arc<Port>, service: Service, close: CancellationToken) {
    let listener = Listener {
        datagrams: Arc::new(datagrams),
        port,
        service,
    };
    let mut buffer = vec![0; 65_535];
    while !close.is_cancelled() {
        let readable = tokio::select! {
            readable = listener.datagrams.readable() => readable,
            () = close.cancelled() => break,
        };
        let read = readable.and_then(|()| listener.read_burst(&mut buffer));
        if let Err(error) = read {
            tracing::debug!(%error, "a datagram cannot be received");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::yield_now().await;
    }
    listener.read_rest(&mut buffer);
}

struct Listener {
    datagrams: Arc<Datagrams>,
    port: Arc<Port>,
    service: Service,
}

impl Listener {
    /// Reads what has come before the end: it would be lost with the socket.
    fn read_rest(&self, buffer: &mut [u8]) {
        for _ in 0..MOST_AT_END {
            match self.datagrams.receive_now(buffer) {
                Ok(envelope) => self.take(&buffer[..envelope.length], envelope),
                Err(_nothing_left) => return,
            }
        }
    }

    fn read_burst(&self, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..BURST {
            match self.datagrams.try_receive(buffer) {
                Ok(envelope) => self.take(&buffer[..envelope.length], envelope),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&self, octets: &[u8], envelope: Envelope) {
        let arrival = Arrival {
            source: envelope.from,
            asked: envelope.to,
            interface: envelope.interface,
            transport: Transport::Udp,
        };
        let (datagrams, service) = (&self.datagrams, &self.service);
        match service.resolver.take(octets, arrival, &self.port) {
            Step::Silence => {}
            Step::Reply(reply) => match datagrams.try_send(&reply, &envelope) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    spawn(datagrams, service, envelope, async move { Some(reply) });
                }
                sent => report(sent, &envelope),
            },
            Step::Later(pending) => spawn(datagrams, service, envelope, pending.reply()),
        }
    }
}

fn spawn(
    datagrams: &Arc<Datagrams>,
    service: &Service,
    envelope: Envelope,
    reply: impl Future<Output = Option<Vec<u8>>> + Send + 'static,
) {
    let datagrams = Arc::clone(datagrams);
    let answering = async move {
        if let Some(reply) = reply.await {
            report(datagrams.send(&reply, &envelope).await, &envelope);
        }
    };
    drop(task::spawn_brief(service.under_way.track_future(answering)));
}

fn report(sent: io::Result<()>, envelope: &Envelope) {
    if let Err(error) = sent {
        tracing::debug!(client = %envelope.from, %error, "a reply cannot be sent");
    }
}
