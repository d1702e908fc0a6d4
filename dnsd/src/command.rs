//! What dnsd does besides serving.

use std::process::ExitCode;

use crate::{check, convert};

/// Wrong usage or configuration (`EX_USAGE` of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// The subcommands; without one, dnsd serves.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Says what a Corefile or a YAML file means, or what is wrong with it (exit code 64).
    Check(check::Options),
    /// Writes a Corefile as the YAML that --config takes.
    Convert(convert::Options),
}

impl Command {
    /// Does it; the exit code is 0 or 64.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self {
            Self::Check(options) => check::run(options),
            Self::Convert(options) => convert::run(options),
        }
    }
}
