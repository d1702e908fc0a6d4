//! The program: a CNI plugin where `CNI_COMMAND` is set, else the commands `install` and `uninstall`.
//!
//! ```text
//!  runtime ──▶ bridge, ptp, … ──▶ egret-cni ──▶ enforcer ──▶ kernel
//!                   result ──────────▶ └── the same result, once the pod's rules are in the kernel
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "a program that runs once waits by the clock and has no runtime"
)]

mod error;
mod parameters;
mod network_config;
mod host_interface;
mod store;
mod enforcer;
mod commands;
mod chain;
mod install;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};

use error::CniError;
use install::InstallError;
use parameters::Parameters;

/// A CNI plugin that a container runtime runs behind others (CNI_COMMAND is set): a pod starts when its rules are in the
/// kernel. Without CNI_COMMAND it installs itself. Exit codes: 0 done, 64 wrong usage, 1 anything else.
#[derive(Debug, clap::Parser)]
#[command(name = "egret-cni", version, verbatim_doc_comment)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// Both can be interrupted at any instant and run again.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Puts this program into the folder of plugins, and behind the other plugins of the first network configuration.
    Install {
        #[command(flatten)]
        folders: Folders,
        /// The enforcer's socket, as the plugin sees it [default: /run/egret/cni.sock]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// How long a pod's rules are waited for, in seconds: 1 to 100 [default: 5]
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1 ..= 100))]
        wait_seconds: Option<u64>,
        /// What happens to a pod whose rules are not in the kernel then: fail, the kubelet tries again; start, it starts
        /// as an unknown pod [default: fail]
        #[arg(long, value_name = "WHAT", value_parser = ["fail", "start"])]
        on_unknown_pod: Option<String>,
    },
    /// Takes it out of all network configurations and removes the program.
    Uninstall {
        #[command(flatten)]
        folders: Folders,
    },
}

#[derive(Debug, clap::Args)]
struct Folders {
    /// The folder of network configurations.
    #[arg(long, value_name = "PATH", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
    /// The folder of plugins.
    #[arg(long, value_name = "PATH", default_value = "/opt/cni/bin")]
    bin_dir: PathBuf,
}

fn main() -> ExitCode {
    if let Ok(command) = std::env::var("CNI_COMMAND") {
        return run_plugin(&command);
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    match run(args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("egret-cni: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), InstallError> {
    match command {
        Command::Install {
            folders,
            socket,
            wait_seconds,
            on_unknown_pod,
        } => {
            let fields = [
                ("type", Some(json!(chain::PLUGIN))),
                ("socket", socket.map(|path| json!(path))),
                ("waitSeconds", wait_seconds.map(|seconds| json!(seconds))),
                ("onUnknownPod", on_unknown_pod.map(|what| json!(what))),
            ];
            let entry = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            let entry = Value::Object(entry.collect());
            // The program that runs, whatever path it was called by.
            let program = Path::new("/proc/self/exe");
            let config = install::install(program, &folders.conf_dir, &folders.bin_dir, &entry)?;
            println!("{} ends with egret-cni", config.display());
        }
        Command::Uninstall { folders } => {
            for path in install::uninstall(&folders.conf_dir, &folders.bin_dir)? {
                println!("{}: removed or as it was before", path.display());
            }
        }
    }
    Ok(())
}

/// Writes the result, or the error, to the standard output, as the CNI specification has it (section 5).
fn run_plugin(command: &str) -> ExitCode {
    let mut config = Vec::new();
    let done = std::io::stdin()
        .read_to_end(&mut config)
        .map_err(|error| CniError::io("the network configuration cannot be read", &error))
        .and_then(|_length| commands::run(command, &Parameters::of_environment(), &config));
    match done {
        Ok(Some(result)) => println!("{result}"),
        Ok(None) => {}
        Err(error) => {
            println!("{}", error.to_json(&network_config::version_of(&config)));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
