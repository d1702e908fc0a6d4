//! The connection to the enforcer: reconnects when it ends, and finds a restarted enforcer within milliseconds.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::link::{CodecError, Frame, FrameDecoder, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::frame_stream::FrameStream;
use tokio::net::UnixStream;
use tokio::time::{Interval, MissedTickBehavior};

use crate::enforcement::Metrics;
use crate::enforcement::gated::ResponseGate;

/// How often a connection is attempted: a few microseconds each time, and records made while the enforcer was away are
/// realized that much sooner.
const RETRY: Duration = Duration::from_millis(20);
/// Messages per write.
const BATCH: usize = 256;
/// How often the number of held responses is sent, if it changed.
const HELD_INTERVAL: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("the enforcer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Keeps the link up until the runtime ends.
pub async fn keep(path: Arc<Path>, instance: DnsdInstance, gate: Arc<ResponseGate>, metrics: Arc<Metrics>) {
    let mut is_known_absent = false;
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                is_known_absent = false;
                metrics.link_connections.increment(1);
                tracing::info!(path = %path.display(), "connected to the enforcer");
                let Err(end) = converse(stream, instance, &gate, &metrics).await;
                gate.disconnected();
                tracing::warn!(%end, "the link is down; responses to clients with interest are held up to the deadline");
            }
            Err(error) if !is_known_absent => {
                is_known_absent = true;
                tracing::warn!(path = %path.display(), %error, "no enforcer yet");
            }
            Err(_still_absent) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn converse(
    stream: UnixStream,
    instance: DnsdInstance,
    gate: &ResponseGate,
    metrics: &Metrics,
) -> Result<std::convert::Infallible, LinkEnd> {
    let wire = FrameStream::new(stream)?;
    tokio::select! {
        end = read(&wire, gate) => end,
        end = write(&wire, instance, gate, metrics) => end,
    }
}

async fn read(wire: &FrameStream, gate: &ResponseGate) -> Result<std::convert::Infallible, LinkEnd> {
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; 1 << 16];
    let mut has_spoken = false;
    loop {
        let length = wire.read(&mut buffer).await?;
        if length == 0 {
            return Err(LinkEnd::Closed);
        }
        // Not before: who connects just when an enforcer ends may be connected to nobody, and what it had realized stays in force.
        if !std::mem::replace(&mut has_spoken, true) {
            gate.connected();
        }
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next_frame::<ToDnsd>()? {
            match frame {
                Frame::Message(_, ToDnsd::Hello(hello)) => {
                    tracing::info!(program = hello.program, "the enforcer says hello")
                }
                Frame::Message(_, message) => gate.receive(message),
                Frame::Unknown(kind) => tracing::debug!(kind, "a frame of an unknown kind was skipped"),
            }
        }
    }
}

async fn write(
    wire: &FrameStream,
    instance: DnsdInstance,
    gate: &ResponseGate,
    metrics: &Metrics,
) -> Result<std::convert::Infallible, LinkEnd> {
    let hello = ToEnforcer::Hello(Hello {
        program: concat!("dnsd ", env!("CARGO_PKG_VERSION")).to_owned(),
    });
    let mut frames = Vec::new();
    encode(instance, &hello, &mut frames);
    let mut held_count = HeldCount::new();
    loop {
        wire.write_all(&frames).await?;
        gate.written();
        frames.clear();
        tokio::select! {
            () = gate.has_outgoing() => {
                for message in &gate.outgoing(BATCH) {
                    count(message, metrics);
                    encode(instance, message, &mut frames);
                }
            }
            held = held_count.changed(gate) => encode(instance, &held, &mut frames),
        }
    }
}

/// The number of held responses as sent last.
struct HeldCount {
    ticks: Interval,
    sent: u32,
}

impl HeldCount {
    fn new() -> Self {
        let mut ticks = tokio::time::interval(HELD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, sent: 0 }
    }

    /// Waits until the number has changed.
    async fn changed(&mut self, gate: &ResponseGate) -> ToEnforcer {
        loop {
            self.ticks.tick().await;
            let answers = u32::try_from(gate.stats().held).unwrap_or(u32::MAX);
            if answers != self.sent {
                self.sent = answers;
                return ToEnforcer::Holding { answers };
            }
        }
    }
}

fn count(message: &ToEnforcer, metrics: &Metrics) {
    match message {
        ToEnforcer::Observed { .. } => metrics.link_observations_sent.increment(1),
        ToEnforcer::ResyncStarted => metrics.link_resyncs.increment(1),
        ToEnforcer::Hello(_) | ToEnforcer::ResyncEnded { .. } | ToEnforcer::Holding { .. } => {}
    }
}
