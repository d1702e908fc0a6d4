//! The command line: what dnsd serves, or what it does besides.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{Args, DEFAULT_HANDOVER};
use crate::config::{check, convert};
use crate::takeover::is_served_from_here;

/// Answers the pods' DNS queries, records which pod was given which addresses, and holds an answer until the kernel
/// lets the pod connect.
///
/// Every option but --config is also a field of the YAML file, in camelCase (--stall-deadline is stallDeadline,
/// --upstream is upstreams); the command line goes before the file. SIGHUP and SIGUSR1 read the files again; link, admin,
/// cacheSize and threads need a restart. SIGTERM answers what is under way and exits. Exit codes: 0 stopped by a
/// signal, 64 wrong usage or configuration, 1 anything else.
#[derive(Clone, Debug, clap::Parser)]
#[command(
    name = "dnsd",
    version,
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true
)]
pub struct CommandLine {
    #[command(flatten)]
    pub args: Args,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The subcommands; without one, dnsd serves.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Says what a Corefile or a YAML file means, or what is wrong with it (exit code 64).
    Check(check::Options),
    /// Writes a Corefile as the YAML that --config takes.
    Convert(convert::Options),
    /// Succeeds if the dnsd that answers is in this container: for a startup probe, since a new pod has the address of the
    /// old one's pages. Exit codes: 0, or 1 while another dnsd answers, or none.
    Probe(ProbeOptions),
}

/// The arguments of `dnsd probe`.
#[derive(Clone, Debug, clap::Args)]
pub struct ProbeOptions {
    /// The Unix socket where a new process requests the sockets
    #[arg(long, value_name = "PATH", default_value = DEFAULT_HANDOVER)]
    pub handover: PathBuf,
}

impl Command {
    /// Does it; the exit code is 0 or 64, of the probe 0 or 1.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self {
            Self::Check(options) => check::run(options),
            Self::Convert(options) => convert::run(options),
            Self::Probe(options) => match is_served_from_here(&options.handover) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => {
                    eprintln!("dnsd: {}: {why}", options.handover.display());
                    ExitCode::FAILURE
                }
            },
        }
    }
}
