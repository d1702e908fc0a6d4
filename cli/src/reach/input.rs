//! Options and errors that the commands about all connections have in common.

use std::io;
use std::path::PathBuf;

use clap::Args;

use crate::verdict::dns::Dns;
use crate::verdict::unreadable::UnreadableManifests;

/// Which manifests.
#[derive(Args, Debug)]
pub struct From {
    /// Files or folders (with all below them) of YAML or JSON manifests; "-" is standard input
    ///
    /// What is read is the same as for `egret verdict`.
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    pub manifests: Vec<PathBuf>,
    /// Read policies as an API server would have stored them
    ///
    /// Unknown fields are dropped with a warning. Without this, a rule with a field that nobody knows is
    /// taken for a mistake and fails closed.
    #[arg(long)]
    pub as_stored: bool,
    /// Take policies in audit for policies in force
    ///
    /// What the annotation policy.egret.dev/enforcement says, on policies and on Namespaces, does not count then.
    #[arg(long)]
    pub as_enforced: bool,
    #[command(flatten)]
    pub dns: Dns,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The options do not go together.
    #[error("{0}")]
    Usage(String),
    /// The manifests cannot be read.
    #[error(transparent)]
    Manifests(#[from] UnreadableManifests),
    /// The answer cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}
