//! The connection to the enforcer: kept up, begun anew when it ends, quick to find an enforcer that comes back.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::link::{CodecError, Frame, FrameDecoder, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::frame_stream::FrameStream;
use tokio::net::UnixStream;
use tokio::time::{Interval, MissedTickBehavior};

use crate::metrics::Metrics;
use crate::release::Holder;

/// How often an enforcer is looked for: a few microseconds each time, and what was told while it was away is
/// realized that much sooner.
const RETRY: Duration = Duration::from_millis(20);
/// Messages that are written at once.
const BATCH: usize = 256;
/// How often the number of held answers is told, if it changed.
const FIGURES: Duration = Duration::from_secs(1);

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
pub async fn keep(path: Arc<Path>, instance: DnsdInstance, holder: Arc<Holder>, metrics: Arc<Metrics>) {
    let mut is_known_absent = false;
    loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => {
                is_known_absent = false;
                metrics.link_connections.increment(1);
                tracing::info!(path = %path.display(), "connected to the enforcer");
                let Err(end) = converse(stream, instance, &holder, &metrics).await;
                holder.disconnected();
                tracing::warn!(%end, "the link is down; interesting answers are held up to the deadline");
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
    holder: &Holder,
    metrics: &Metrics,
) -> Result<std::convert::Infallible, LinkEnd> {
    let wire = FrameStream::new(stream)?;
    holder.connected();
    tokio::select! {
        end = read(&wire, holder) => end,
        end = write(&wire, instance, holder, metrics) => end,
    }
}

async fn read(wire: &FrameStream, holder: &Holder) -> Result<std::convert::Infallible, LinkEnd> {
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = wire.read(&mut buffer).await?;
        if length == 0 {
            return Err(LinkEnd::Closed);
        }
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next_frame::<ToDnsd>()? {
            match frame {
                Frame::Message(_, ToDnsd::Hello(hello)) => {
                    tracing::info!(program = hello.program, "the enforcer says hello")
                }
                Frame::Message(_, message) => holder.receive(message),
                Frame::Unknown(kind) => tracing::debug!(kind, "a frame of an unknown kind was skipped"),
            }
        }
    }
}

async fn write(
    wire: &FrameStream,
    instance: DnsdInstance,
    holder: &Holder,
    metrics: &Metrics,
) -> Result<std::convert::Infallible, LinkEnd> {
    let hello = ToEnforcer::Hello(Hello {
        program: concat!("dnsd ", env!("CARGO_PKG_VERSION")).to_owned(),
    });
    let mut frames = Vec::new();
    encode(instance, &hello, &mut frames);
    let mut figures = Figures::new();
    loop {
        wire.write_all(&frames).await?;
        holder.written();
        frames.clear();
        tokio::select! {
            () = holder.has_outgoing() => {
                for message in &holder.outgoing(BATCH) {
                    count(message, metrics);
                    encode(instance, message, &mut frames);
                }
            }
            held = figures.changed(holder) => encode(instance, &held, &mut frames),
        }
    }
}

/// How many answers are held, as the enforcer knows it.
struct Figures {
    ticks: Interval,
    told: u32,
}

impl Figures {
    fn new() -> Self {
        let mut ticks = tokio::time::interval(FIGURES);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, told: 0 }
    }

    /// Waits until there is something else to tell.
    async fn changed(&mut self, holder: &Holder) -> ToEnforcer {
        loop {
            self.ticks.tick().await;
            let answers = u32::try_from(holder.figures().held).unwrap_or(u32::MAX);
            if answers != self.told {
                self.told = answers;
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
