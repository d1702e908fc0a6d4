//! The program: usage, configuration, start, serve, drain.

mod daemon;
mod host;

use std::process::ExitCode;

use clap::Parser;
use egret_dnsd::config::{Args, Config, Written};
use egret_dnsd::faults::{self, Fault};
use egret_dnsd::metrics::{BUCKETS, COREDNS_BUCKETS};
use egret_dnsd::node_cache::call::{USAGE as NODE_CACHE_USAGE, flags_of, plugins};
use egret_dnsd::node_cache::flags::{Wanted, read};
use egret_dnsd::node_cache::keeper::{Prepared, SetupErrors};
use egret_dnsd::node_cache::source::Source;
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry;

use daemon::Daemon;

/// Wrong usage or configuration (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let args = match arguments() {
        Ok(args) => args,
        Err(code) => return code,
    };
    if let Some(command) = &args.command {
        return command.run();
    }
    match start(args) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is wanted; or how the program ends, where that is already said.
fn arguments() -> Result<Args, ExitCode> {
    let command_line: Vec<_> = std::env::args_os().collect();
    match flags_of(&command_line) {
        Some(words) => node_cache(words),
        None => Args::try_parse_from(command_line).map_err(|error| tell_usage(&error)),
    }
}

fn node_cache(words: Vec<String>) -> Result<Args, ExitCode> {
    match read(words) {
        Ok(Wanted::Serve(flags)) => Ok(Args {
            config: flags.own.clone(),
            written: Written {
                corefile: Some(flags.corefile.clone()),
                ..Written::default()
            },
            command: None,
            node_cache: Some(flags),
        }),
        Ok(Wanted::Help) => Err(say(NODE_CACHE_USAGE)),
        Ok(Wanted::Version) => Err(say(concat!("dnsd ", env!("CARGO_PKG_VERSION"), "\n"))),
        Ok(Wanted::Plugins) => Err(say(&plugin_lines())),
        Err(error) => Err(refuse(&error)),
    }
}

fn plugin_lines() -> String {
    let lines = plugins().into_iter().map(|plugin| format!("dns.{plugin}\n"));
    lines.collect()
}

/// The Corefile of node-cache is made before it is read, and the host is set up before anything is bound.
fn start(args: Args) -> anyhow::Result<ExitCode> {
    faults::tell_to(Fault::log);
    let recorder = telemetry::Metrics::install(&BUCKETS, &COREDNS_BUCKETS)?;
    let errors = SetupErrors::default();
    let is_logged = args.node_cache.is_some();
    if is_logged {
        telemetry::start_log();
    }
    let source = args.node_cache.as_deref().map(|flags| {
        let mut source = Source::new(flags, |name| std::env::var(name).ok());
        let _is_new: bool = source.refresh(|error| errors.source(&error));
        if let (false, Some(text)) = (flags.quiet, source.text()) {
            tracing::info!(corefile = %flags.corefile.display(), "using this Corefile:\n{text}");
        }
        source
    });
    let config = match Config::load(&args) {
        Ok(config) => config,
        Err(error) => return Ok(refuse(&error)),
    };
    if !is_logged {
        telemetry::start_log();
    }
    let setup = config.fixed.host.clone();
    let prepared = setup.map(|setup| Prepared::new(setup, source, errors));
    serve(args, config, recorder, prepared)?;
    Ok(ExitCode::SUCCESS)
}

/// One thread serves: what a query needs is shared with nobody, and nothing is handed over.
fn serve(
    args: Args,
    config: Config,
    recorder: telemetry::Metrics,
    prepared: Option<Prepared>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        Daemon::start(args, config, recorder, prepared)
            .await?
            .run(signals)
            .await
    })
}

/// `--help` and `--version` are no errors.
fn tell_usage(error: &clap::Error) -> ExitCode {
    if let Err(error) = error.print() {
        eprintln!("dnsd: {error}");
    }
    ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
}

fn say(words: &str) -> ExitCode {
    print!("{words}");
    ExitCode::SUCCESS
}

fn refuse(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("dnsd: {error}");
    ExitCode::from(USAGE)
}
