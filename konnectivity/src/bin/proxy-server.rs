//! The program: usage, start, serve until it is told to stop, take back what others see.

use std::process::ExitCode;

use clap::Parser as _;
use egret_konnectivity::raise_limit;
use egret_konnectivity::server::{self, BUCKETS, Options};
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry::{self, Metrics};

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
    let running = server::start(options, Metrics::install(BUCKETS, &[])?)?;
    signals.stop().await;
    tokio::select! {
        () = running.stop() => {}
        () = signals.stop() => tracing::warn!("connections are cut: told to stop twice"),
    }
    Ok(())
}
