//! The program `egret`: ask, offline, what policies mean; `egret preflight` alone looks at a machine.
//!
//! Commands print answers to standard output and everything else to standard error; they end with 2 for bad
//! usage, input that cannot be read, and questions that have no answer.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use egret_shared::escape;

// Read.
pub mod options;
pub mod manifests;
// Who is there, and what the rules of all pods say.
pub mod cluster;
pub mod reach;
pub mod output;
// The commands.
mod completion;
pub mod convert;
pub mod crds;
pub mod explain;
pub mod diff;
pub mod lint;
pub mod list;
pub mod matrix;
pub mod preflight;
pub mod verdict;

use convert::ConvertError;
use diff::Difference;
use lint::LintResult;
use options::ReachError;
use output::EscapingWriter;
use preflight::Readiness;
use verdict::{AnswerStatus, VerdictError};

/// Ask, offline, what network policies mean
#[derive(Debug, Parser)]
#[command(name = "egret", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge connections by the policies in manifests, without a cluster
    Verdict(verdict::Arguments),
    /// Explain verdicts: the way of a connection, tier by tier, and what to change
    Explain(explain::Arguments),
    /// Print what makes a shell complete the options of egret
    Completion(completion::Arguments),
    /// Print the CustomResourceDefinitions of Egret's own kinds
    Crds(crds::Arguments),
    /// List all connections that the policies in manifests allow
    List(list::Arguments),
    /// Show which pods reach which at a port
    Matrix(matrix::Arguments),
    /// Show which connections appear, vanish or change from some manifests to others
    Diff(diff::Arguments),
    /// Find mistakes in policies, each with its fix
    Lint(lint::Arguments),
    /// Convert AdminNetworkPolicies, and the form of 2016, to what is proved to mean the same
    Convert(convert::Arguments),
    /// Look at this node: what is there, what Egret uses of it, what must change
    Preflight(preflight::Arguments),
}

/// What a single question ends in when the answer is no.
const DENIED: u8 = 1;
/// What a comparison ends in when there is a difference.
const DIFFERS: u8 = 1;
/// What a look at a node ends in when something must change.
const MUST_CHANGE: u8 = 1;
/// What a search for mistakes ends in when there is one.
const FOUND: u8 = 1;
/// What ends in 2, as with every usage error.
const UNANSWERED: u8 = 2;

impl Arguments {
    /// Reads the command line; `--help` and what is wrong with it are said here.
    ///
    /// # Errors
    /// What to end with.
    pub fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| {
            // What can be said of an error on standard error is said; the exit status says it as well.
            match escape::lines(&error.to_string()) {
                Cow::Borrowed(_) => drop(error.print()),
                Cow::Owned(text) => drop(io::stderr().write_all(text.as_bytes())),
            }
            ExitCode::from(if error.use_stderr() { UNANSWERED } else { 0 })
        })
    }

    /// Runs the command.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let mut out = EscapingWriter::new(BufWriter::new(io::stdout().lock()));
        let mut remarks = EscapingWriter::new(io::stderr().lock());
        let outcome = match &self.command {
            Command::Verdict(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(status)
                .map_err(Failure::from),
            Command::Explain(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(status)
                .map_err(Failure::from),
            Command::Completion(arguments) => arguments
                .run(&mut out)
                .map(|()| ExitCode::SUCCESS)
                .map_err(|error| Failure::from(VerdictError::Output(error))),
            Command::Crds(arguments) => arguments
                .run(&mut out)
                .map(|()| ExitCode::SUCCESS)
                .map_err(|error| Failure::from(VerdictError::Output(error))),
            Command::List(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(|()| ExitCode::SUCCESS)
                .map_err(Failure::from),
            Command::Matrix(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(|()| ExitCode::SUCCESS)
                .map_err(Failure::from),
            Command::Diff(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(|difference| match difference {
                    Difference::None => ExitCode::SUCCESS,
                    Difference::Some => ExitCode::from(DIFFERS),
                })
                .map_err(Failure::from),
            Command::Lint(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(|cleanness| match cleanness {
                    LintResult::Clean => ExitCode::SUCCESS,
                    LintResult::Found => ExitCode::from(FOUND),
                })
                .map_err(Failure::from),
            Command::Convert(arguments) => arguments
                .run(&mut out, &mut remarks)
                .map(|()| ExitCode::SUCCESS)
                .map_err(Failure::from),
            Command::Preflight(arguments) => arguments
                .run(&mut out)
                .map(|readiness| match readiness {
                    Readiness::Ready => ExitCode::SUCCESS,
                    Readiness::MustChange => ExitCode::from(MUST_CHANGE),
                })
                .map_err(|error| Failure::from(VerdictError::Output(error))),
        };
        // Where remarks cannot be written, the exit status still says how it ended.
        drop(remarks.flush());
        drop(remarks);
        let outcome = outcome.and_then(|status| {
            out.flush()
                .map(|()| status)
                .map_err(|error| Failure::from(VerdictError::Output(error)))
        });
        match outcome {
            Ok(status) => status,
            // Whoever read the answers has seen enough of them, as `head` does.
            Err(
                Failure::Verdict(VerdictError::Output(error))
                | Failure::Reach(ReachError::Output(error))
                | Failure::Convert(ConvertError::Output(error)),
            ) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => complain(&error),
        }
    }
}

/// Why a command gives no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Verdict(#[from] VerdictError),
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error(transparent)]
    Convert(#[from] ConvertError),
}

fn status(outcome: AnswerStatus) -> ExitCode {
    match outcome {
        AnswerStatus::Answered => ExitCode::SUCCESS,
        AnswerStatus::Denied => ExitCode::from(DENIED),
        AnswerStatus::Unanswered => ExitCode::from(UNANSWERED),
    }
}

fn complain(error: &Failure) -> ExitCode {
    // Where even this cannot be written, the exit status still says it.
    drop(writeln!(
        io::stderr(),
        "{}",
        escape::lines(&format!("egret: {error}"))
    ));
    ExitCode::from(UNANSWERED)
}
