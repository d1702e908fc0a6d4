//! The program: usage, start, serve until it is told to stop, drain.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use egret_konnectivity::agent::{Agent, BUCKETS, Options};
use egret_konnectivity::raise_limit;
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry::{self, Metrics};

/// How long connections may last after the first signal; a kubelet kills after 30 s unless told otherwise.
const DRAIN_WITHIN: Duration = Duration::from_secs(25);

fn main() -> ExitCode {
    let options = Options::parse();
    telemetry::start_log();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(options: Options) -> anyhow::Result<()> {
    raise_limit();
    let mut signals = Signals::listen()?;
    let agent = Agent::start(options, Metrics::install(BUCKETS, &[])?)?;
    signals.stop().await;
    tokio::select! {
        () = agent.drain() => {}
        () = tokio::time::sleep(DRAIN_WITHIN) => tracing::warn!("connections are cut: they take too long"),
        () = signals.stop() => tracing::warn!("connections are cut: told to stop twice"),
    }
    Ok(())
}
