//! Options and errors that several commands have in common.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::Args;
use egret_policies::api::UnknownFields;
use egret_policies::compiler::DnsStandIn;
use egret_shared::pod::PodKey;

use crate::manifests::unreadable::UnreadableManifests;

/// Which manifests.
#[derive(Args, Debug)]
pub struct ManifestOptions {
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
    pub dns: DnsOptions,
}

impl ManifestOptions {
    /// How unknown fields are read.
    #[must_use]
    pub const fn unknown_fields(&self) -> UnknownFields {
        unknown_fields(self.as_stored)
    }
}

/// How unknown fields are read with `--as-stored`, or without.
#[must_use]
pub const fn unknown_fields(as_stored: bool) -> UnknownFields {
    if as_stored {
        UnknownFields::AsStored
    } else {
        UnknownFields::AsWritten
    }
}

/// dnsd, as the nodes have it.
#[derive(Args, Debug)]
pub struct DnsOptions {
    /// An address at which dnsd answers pods on every node; may be repeated
    ///
    /// What policies say of the pods of the DNS Service at port 53, UDP and TCP, they say of this address as
    /// well. It is one of every pod's own node.
    #[arg(long = "dns-address", value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
    /// The Service in whose place dnsd answers [default: kube-system/kube-dns]
    #[arg(long = "dns-service", value_name = "NAMESPACE/NAME", requires = "addresses")]
    service: Option<PodKey>,
}

impl DnsOptions {
    /// What the compiler is to know of it.
    #[must_use]
    pub fn stand_in(&self) -> DnsStandIn {
        let usual = DnsStandIn::default();
        DnsStandIn {
            service: self.service.clone().unwrap_or(usual.service),
            addresses: self.addresses.iter().map(IpAddr::to_canonical).collect(),
        }
    }
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

/// Reads a port.
pub(crate) fn port(text: &str) -> Result<NonZeroU16, String> {
    text.parse()
        .map_err(|_invalid: std::num::ParseIntError| "a number from 1 to 65535 is expected".to_owned())
}
