//! The program: usage, configuration, start, run, stop.

mod daemon;

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use egret_enforcer::backend::ebpf;
use egret_enforcer::backend::netfilter::cleanup::{self, Mode};
use egret_enforcer::backend::nftables;
use egret_enforcer::config::{Args, Command, Config};
use egret_enforcer::controller;
use egret_enforcer::state;
use egret_enforcer::unix_socket::is_unused;
use egret_kernel::dns_permits;
use egret_shared::cni::network_folder;
use egret_shared::escape;
use egret_shared::rt::allocator;
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
            link,
            cni,
        } => run_cleanup(&Cleanup {
            mode: if *dry_run { Mode::Tell } else { Mode::Remove },
            bpf_pins,
            states: [state, state_objects],
            link,
            cni,
        }),
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

/// What is removed beside rules and sets.
struct Cleanup<'a> {
    mode: Mode,
    bpf_pins: &'a Path,
    states: [&'a Path; 2],
    link: &'a Path,
    cni: &'a Path,
}

fn run_cleanup(what: &Cleanup<'_>) -> ExitCode {
    match what.clean() {
        Ok(found) => {
            let verb = match what.mode {
                Mode::Tell => "would remove",
                Mode::Remove | Mode::Replace => "removed",
            };
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

impl Cleanup<'_> {
    fn clean(&self) -> anyhow::Result<Vec<String>> {
        let mut found = cleanup::everywhere(self.mode)?;
        found.extend(nftables::cleanup::remove(self.mode)?);
        found.extend(ebpf::cleanup::remove(self.bpf_pins, self.mode)?);
        self.clean_permits(&mut found)?;
        for state in self.states {
            let files = state::existing_files(state);
            found.extend(
                files
                    .iter()
                    .map(|file| format!("the state file {}", file.display())),
            );
            if self.mode == Mode::Remove {
                state::remove(state)?;
            }
        }
        self.clean_sockets(&mut found)?;
        Ok(found)
    }

    /// dnsd answers what the kernel answered.
    fn clean_permits(&self, found: &mut Vec<String>) -> anyhow::Result<()> {
        let directory = dns_permits::beside(self.bpf_pins);
        if dns_permits::Permits::open(&directory)?.is_some() {
            found.push(format!("the permits in {}", directory.display()));
            if self.mode == Mode::Remove {
                dns_permits::Permits::remove(&directory)?;
            }
        }
        Ok(())
    }

    /// Networks that the plugin has reported count for an enforcer that listens at the socket beside them.
    fn clean_sockets(&self, found: &mut Vec<String>) -> anyhow::Result<()> {
        let networks = network_folder(self.cni);
        let is_left = !self.cni.as_os_str().is_empty() && (!self.cni.exists() || is_unused(self.cni));
        if is_left && networks.is_dir() {
            found.push(format!("the networks in {}", networks.display()));
            if self.mode == Mode::Remove {
                let removed = std::fs::remove_dir_all(&networks);
                removed.with_context(|| format!("{} cannot be removed", networks.display()))?;
            }
        }
        for socket in [self.link, self.cni] {
            if is_unused(socket) {
                found.push(format!("the socket {}", socket.display()));
                if self.mode == Mode::Remove {
                    let removed = std::fs::remove_file(socket);
                    removed.with_context(|| format!("{} cannot be removed", socket.display()))?;
                }
            }
        }
        Ok(())
    }
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
