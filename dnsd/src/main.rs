//! The program: usage, configuration, start, serve, drain.

mod daemon;

use std::borrow::Cow;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use egret_dnsd::command::{Command, CommandLine};
use egret_dnsd::config::node_cache::flags::{self, read};
use egret_dnsd::config::node_cache::usage::{USAGE as NODE_CACHE_USAGE, flags_of, plugins};
use egret_dnsd::config::{Args, Config, Invalid, RawConfig};
use egret_dnsd::exit::USAGE;
use egret_dnsd::host::node_cache::kernel::NetworkError;
use egret_dnsd::host::node_cache::reconciler::{PreparedHost, SetupErrors};
use egret_dnsd::host::node_cache::source::Source;
use egret_dnsd::takeover::is_served;
use egret_dnsd::telemetry::faults::{self, Panic};
use egret_dnsd::telemetry::metrics::{BUCKETS, COREDNS_BUCKETS};
use egret_shared::escape;
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry;
use tokio::sync::oneshot;

use daemon::{Daemon, End};

fn main() -> ExitCode {
    match action() {
        Ok(Action::Serve(args)) => start(*args).unwrap_or_else(|error| {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }),
        Ok(Action::Run(command)) => command.run(),
        Err(code) => code,
    }
}

/// What the command line asks for.
enum Action {
    Serve(Box<Args>),
    Run(Command),
}

/// Reads the command line. The error is the exit code of a program that has already printed why it ends.
fn action() -> Result<Action, ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(flags) = flags_of(&words) {
        return Ok(Action::Serve(Box::new(node_cache(flags)?)));
    }
    let CommandLine { args, command } =
        CommandLine::try_parse_from(words).map_err(|error| print_usage(&error))?;
    Ok(match command {
        Some(command) => Action::Run(command),
        None => Action::Serve(Box::new(args)),
    })
}

fn node_cache(words: Vec<String>) -> Result<Args, ExitCode> {
    match read(words) {
        Ok(flags::Invocation::Serve(flags)) => Ok(Args {
            config: flags.own.clone(),
            raw: RawConfig {
                corefile: Some(flags.corefile.clone()),
                ..RawConfig::default()
            },
            node_cache: Some(flags),
        }),
        Ok(flags::Invocation::Help) => Err(print(NODE_CACHE_USAGE)),
        Ok(flags::Invocation::Version) => Err(print(concat!("dnsd ", env!("CARGO_PKG_VERSION"), "\n"))),
        Ok(flags::Invocation::Plugins) => Err(print(&plugin_lines())),
        Err(error) => Err(refuse(&error)),
    }
}

fn plugin_lines() -> String {
    let lines = plugins().into_iter().map(|plugin| format!("dns.{plugin}\n"));
    lines.collect()
}

/// Serves on this thread, with further threads for UDP where they are configured.
fn start(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // First: a signal would otherwise end dnsd with its interface left behind, or be ignored by process 1 of a container.
        let mut signals = Signals::listen()?;
        faults::set_panic_hook(Panic::log);
        let recorder = telemetry::Metrics::install(&BUCKETS, &COREDNS_BUCKETS)?;
        let loaded = tokio::select! {
            biased;
            () = signals.stop() => return Ok(ExitCode::SUCCESS),
            loaded = load_in_thread(args) => loaded?,
        };
        let Loaded {
            args,
            config,
            source,
            errors,
        } = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return Ok(refuse(&error)),
        };
        let setup = config.fixed.host.clone();
        let host = setup.map(|setup| PreparedHost::new(setup, source, errors));
        let undo = host.as_ref().map(PreparedHost::undo);
        let handover = config.fixed.handover.clone();
        let started = tokio::select! {
            biased;
            started = Daemon::start(args, config, recorder, host) => started,
            () = signals.stop() => {
                let is_alone = handover.is_none_or(|path| !is_served(&path));
                undo.iter().for_each(|undo| take_back(if is_alone { undo.everything() } else { undo.made() }));
                return Ok(ExitCode::SUCCESS);
            }
        };
        let daemon = started.inspect_err(|_failed| undo.iter().for_each(|undo| take_back(undo.made())))?;
        Ok(match daemon.run(signals).await? {
            End::Stopped => ExitCode::SUCCESS,
            End::Again => return Err(start_again().into()),
        })
    })
}

/// Replaces this process by the same program with the same arguments; returns why that failed. Whoever supervises it would
/// start it with a delay.
fn start_again() -> std::io::Error {
    let mut words = std::env::args_os();
    let mut command = std::process::Command::new("/proc/self/exe");
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command.args(words).exec()
}

/// Of a start that did not succeed nothing stays.
fn take_back(removed: Result<(), NetworkError>) {
    if let Err(error) = removed {
        tracing::error!(%error, "what the start made stays on this host");
    }
}

/// The configuration, and what the Corefile was made from.
struct Loaded {
    args: Args,
    config: Config,
    source: Option<Source>,
    errors: SetupErrors,
}

/// Loads the configuration in a thread of its own: reading a file may hang.
async fn load_in_thread(args: Args) -> anyhow::Result<Result<Loaded, Invalid>> {
    let (sender, loaded) = oneshot::channel();
    let thread = std::thread::Builder::new().name("read".to_owned());
    // The stack of the main thread, which reads the files again later.
    thread.stack_size(8 << 20).spawn(move || {
        // A daemon that was told to stop has dropped the receiver.
        drop(sender.send(load(args)));
    })?;
    loaded.await.context("the configuration could not be read")
}

/// With node-cache's flags, the Corefile is written first.
fn load(args: Args) -> Result<Loaded, Invalid> {
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
    Ok(Loaded {
        args,
        config,
        source,
        errors,
    })
}

/// Prints what clap says. `--help` and `--version` are no errors.
fn print_usage(error: &clap::Error) -> ExitCode {
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

fn print(text: &str) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}

fn refuse(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("dnsd: {}", escape::lines(&error.to_string()));
    ExitCode::from(USAGE)
}
