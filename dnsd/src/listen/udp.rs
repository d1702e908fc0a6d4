//! Datagrams: what is there is read in one go; what can be answered at once is answered without a task.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;

use super::Service;
use super::datagram::{Datagrams, Envelope};
use crate::metrics::Transport;
use crate::resolve::{Arrival, Step};

/// Datagrams that are read before other tasks have their turn.
const BURST: usize = 64;

pub(super) async fn serve(datagrams: Datagrams, service: Service) {
    let datagrams = Arc::new(datagrams);
    let mut buffer = vec![0; 65_535];
    while !service.stop.is_cancelled() {
        let readable = tokio::select! {
            readable = datagrams.readable() => readable,
            () = service.stop.cancelled() => return,
        };
        let read = readable.and_then(|()| read_burst(&datagrams, &service, &mut buffer));
        if let Err(error) = read {
            tracing::debug!(%error, "a datagram cannot be received");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::yield_now().await;
    }
}

fn read_burst(datagrams: &Arc<Datagrams>, service: &Service, buffer: &mut [u8]) -> io::Result<()> {
    for _ in 0..BURST {
        match datagrams.try_receive(buffer) {
            Ok(envelope) => take(datagrams, service, &buffer[..envelope.length], envelope),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn take(datagrams: &Arc<Datagrams>, service: &Service, octets: &[u8], envelope: Envelope) {
    let arrival = Arrival {
        source: envelope.from.ip(),
        interface: envelope.interface,
        transport: Transport::Udp,
    };
    match service.resolver.take(octets, arrival) {
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
