//! The program: usage, configuration, start, serve, drain.

mod daemon;

use std::borrow::Cow;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use egret_dnsd::command::{Command, CommandLine};
use egret_dnsd::config::{Args, Config, Invalid, Written};
use egret_dnsd::exit::USAGE;
use egret_dnsd::host::node_cache::flags::{self, read};
use egret_dnsd::host::node_cache::invocation::{USAGE as NODE_CACHE_USAGE, flags_of, plugins};
use egret_dnsd::host::node_cache::reconciler::{Prepared, SetupErrors};
use egret_dnsd::host::node_cache::source::Source;
use egret_dnsd::telemetry::faults::{self, Panic};
use egret_dnsd::telemetry::metrics::{BUCKETS, COREDNS_BUCKETS};
use egret_shared::escape;
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry;
use tokio::sync::oneshot;

use daemon::Daemon;

fn main() -> ExitCode {
    match wanted() {
        Ok(Wanted::Serve(args)) => start(*args).unwrap_or_else(|error| {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }),
        Ok(Wanted::Do(command)) => command.run(),
        Err(code) => code,
    }
}

enum Wanted {
    Serve(Box<Args>),
    Do(Command),
}

/// What is wanted; or how the program ends, where that is already said.
fn wanted() -> Result<Wanted, ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(flags) = flags_of(&words) {
        return Ok(Wanted::Serve(Box::new(node_cache(flags)?)));
    }
    let CommandLine { args, command } =
        CommandLine::try_parse_from(words).map_err(|error| tell_usage(&error))?;
    Ok(match command {
        Some(command) => Wanted::Do(command),
        None => Wanted::Serve(Box::new(args)),
    })
}

fn node_cache(words: Vec<String>) -> Result<Args, ExitCode> {
    match read(words) {
        Ok(flags::Wanted::Serve(flags)) => Ok(Args {
            config: flags.own.clone(),
            written: Written {
                corefile: Some(flags.corefile.clone()),
                ..Written::default()
            },
            node_cache: Some(flags),
        }),
        Ok(flags::Wanted::Help) => Err(say(NODE_CACHE_USAGE)),
        Ok(flags::Wanted::Version) => Err(say(concat!("dnsd ", env!("CARGO_PKG_VERSION"), "\n"))),
        Ok(flags::Wanted::Plugins) => Err(say(&plugin_lines())),
        Err(error) => Err(refuse(&error)),
    }
}

fn plugin_lines() -> String {
    let lines = plugins().into_iter().map(|plugin| format!("dns.{plugin}\n"));
    lines.collect()
}

/// The first thread serves, and has the tasks of which there is one; others help it where they are wanted.
fn start(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // First of all: a signal would end it with its interface left behind, or be lost on the first process of a container.
        let mut signals = Signals::listen()?;
        faults::set_panic_hook(Panic::log);
        let recorder = telemetry::Metrics::install(&BUCKETS, &COREDNS_BUCKETS)?;
        let read = tokio::select! {
            biased;
            () = signals.stop() => return Ok(ExitCode::SUCCESS),
            read = read_beside(args) => read?,
        };
        let Read {
            args,
            config,
            source,
            errors,
        } = match read {
            Ok(read) => read,
            Err(error) => return Ok(refuse(&error)),
        };
        let setup = config.fixed.host.clone();
        let prepared = setup.map(|setup| Prepared::new(setup, source, errors));
        let daemon = Daemon::start(args, config, recorder, prepared).await?;
        daemon.run(signals).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// What is there before anything is set up.
struct Read {
    args: Args,
    config: Config,
    source: Option<Source>,
    errors: SetupErrors,
}

/// In a thread that nobody waits for: a file may be where nothing answers.
async fn read_beside(args: Args) -> anyhow::Result<Result<Read, Invalid>> {
    let (sender, read) = oneshot::channel();
    let thread = std::thread::Builder::new().name("read".to_owned());
    // As deep as the thread that reads them again later.
    thread.stack_size(8 << 20).spawn(move || {
        // Nobody hears it who was asked to stop.
        drop(sender.send(read_files(args)));
    })?;
    read.await.context("the configuration could not be read")
}

/// The Corefile of node-cache is made before it is read.
fn read_files(args: Args) -> Result<Read, Invalid> {
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
    let config = Config::load(&args)?;
    if !is_logged {
        telemetry::start_log();
    }
    Ok(Read {
        args,
        config,
        source,
        errors,
    })
}

/// `--help` and `--version` are no errors.
fn tell_usage(error: &clap::Error) -> ExitCode {
    match escape::lines(&error.to_string()) {
        Cow::Owned(escaped) => eprint!("{escaped}"),
        Cow::Borrowed(_) => {
            if let Err(error) = error.print() {
                eprintln!("dnsd: {error}");
            }
        }
    }
    ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
}

fn say(words: &str) -> ExitCode {
    print!("{words}");
    ExitCode::SUCCESS
}

fn refuse(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("dnsd: {}", escape::lines(&error.to_string()));
    ExitCode::from(USAGE)
}
