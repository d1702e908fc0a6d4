//! The program: usage, configuration, start, serve, drain.

mod daemon;

use std::process::ExitCode;

use clap::Parser;
use egret_dnsd::config::{Args, Config};
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry;

use daemon::Daemon;

/// Wrong usage or configuration (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return tell_usage(&error),
    };
    if let Some(command) = &args.command {
        return command.run();
    }
    let config = match Config::load(&args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("dnsd: {error}");
            return ExitCode::from(USAGE);
        }
    };
    telemetry::start_log();
    match serve(args, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One thread serves: what a query needs is shared with nobody, and nothing is handed over.
fn serve(args: Args, config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        Daemon::start(args, config)?.run(signals).await
    })
}

/// `--help` and `--version` are no errors.
fn tell_usage(error: &clap::Error) -> ExitCode {
    if let Err(error) = error.print() {
        eprintln!("dnsd: {error}");
    }
    ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
}
