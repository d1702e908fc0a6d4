//! The program: usage, configuration, start, run, stop.

mod daemon;

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use egret_enforcer::backend::Backend;
use egret_enforcer::backend::ebpf::{self, Ebpf};
use egret_enforcer::backend::netfilter::cleanup::{self, Mode};
use egret_enforcer::config::{Args, Command, Config};
use egret_enforcer::controller;
use egret_enforcer::state;
use egret_kernel::allocator;
use egret_shared::escape;
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::telemetry;

use daemon::Daemon;

/// Wrong usage or configuration (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return print_usage(&error),
    };
    if let Some(command) = &args.command {
        return run(command);
    }
    let config = match Config::load(&args) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("enforcer: {}", escape::lines(&error.to_string()));
            return ExitCode::from(USAGE);
        }
    };
    telemetry::start_log();
    allocator::keep_little();
    match serve(args, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: Args, config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        match Daemon::start(args, config, &mut signals).await? {
            Some(daemon) => daemon.run(signals).await,
            None => Ok(()),
        }
    })
}

fn run(command: &Command) -> ExitCode {
    match command {
        Command::Cleanup {
            dry_run,
            bpf_pins,
            state,
            state_objects,
        } => run_cleanup(*dry_run, bpf_pins, [state, state_objects]),
        Command::Controller { kubeconfig, admin } => run_controller(controller::Setup {
            kubeconfig: kubeconfig.clone(),
            admin: *admin,
        }),
    }
}

fn run_controller(setup: controller::Setup) -> ExitCode {
    telemetry::start_log();
    allocator::keep_little();
    let run = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async { controller::run(setup, Signals::listen()?).await })
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_cleanup(dry_run: bool, bpf_pins: &Path, states: [&Path; 2]) -> ExitCode {
    match clean(dry_run, bpf_pins, states) {
        Ok(found) => {
            let verb = if dry_run { "would remove" } else { "removed" };
            for what in &found {
                println!("{verb} {}", escape::line(what));
            }
            if found.is_empty() {
                println!("nothing of the enforcer is there");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("enforcer: {}", escape::lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn clean(dry_run: bool, bpf_pins: &Path, states: [&Path; 2]) -> anyhow::Result<Vec<String>> {
    let mode = if dry_run { Mode::Tell } else { Mode::Remove };
    let mut found = cleanup::everywhere(mode)?;
    if bpf_pins.exists() {
        found.push(format!("the pins in {}", bpf_pins.display()));
        if mode == Mode::Remove {
            let options = ebpf::Options {
                cgroup_root: "/sys/fs/cgroup".into(),
                pin_path: bpf_pins.to_owned(),
            };
            Ebpf::new(options).remove_everything()?;
        }
    }
    for state in states {
        let files = state::existing_files(state);
        found.extend(
            files
                .iter()
                .map(|file| format!("the state file {}", file.display())),
        );
        if mode == Mode::Remove {
            state::remove(state)?;
        }
    }
    Ok(found)
}

/// `--help` and `--version` are no errors.
fn print_usage(error: &clap::Error) -> ExitCode {
    match escape::lines(&error.to_string()) {
        Cow::Owned(escaped) => eprint!("{escaped}"),
        Cow::Borrowed(_) => {
            if let Err(error) = error.print() {
                eprintln!("enforcer: {error}");
            }
        }
    }
    ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
}
