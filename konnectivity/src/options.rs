//! Flags as upstream's programs have them: pflag's booleans and Go's durations, and the flags of its log library.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use egret_shared::go_duration::{ACCEPTED, parse_duration};
use http::HeaderValue;
use http::header::InvalidHeaderValue;

use crate::api_server::LeasePlace;

/// Flags of klog, which stand in every manifest. They are taken and have no effect: the log goes to the standard error, `RUST_LOG` chooses
/// what is written.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub struct LogFlags {
    #[arg(short = 'v', long = "v", hide = true)]
    verbosity: Option<String>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    logtostderr: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    alsologtostderr: Option<Option<String>>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    log_file: Option<String>,
    #[arg(long, hide = true)]
    log_file_max_size: Option<String>,
    #[arg(long, hide = true)]
    log_dir: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    one_output: Option<Option<String>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    skip_headers: Option<Option<String>>,
}

/// Flags of upstream's profiling, which is not here: they are taken where they turn it off, as manifests that list every flag do.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub(crate) struct ProfilingFlags {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = off)]
    enable_profiling: Option<()>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = off)]
    enable_contention_profiling: Option<()>,
}

fn off(text: &str) -> Result<(), &'static str> {
    // As Go's strconv.ParseBool has it.
    match text {
        "false" | "False" | "FALSE" | "f" | "F" | "0" => Ok(()),
        _ => Err("there is no profiling; false is accepted"),
    }
}

/// Which Leases (coordination.k8s.io) are those of servers.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct LeaseFlags {
    /// Namespace of the servers' Leases.
    #[arg(long, default_value = "kube-system")]
    lease_namespace: String,
    /// Labels of the servers' Leases: key=value, with commas between.
    #[arg(long, default_value = "k8s-app=konnectivity-server")]
    lease_label: String,
}

impl LeaseFlags {
    pub(crate) fn place(&self) -> Result<LeasePlace, String> {
        if self.lease_namespace.is_empty() {
            return Err("--lease-namespace: it is empty".to_owned());
        }
        let pair = |text: &str| {
            let (key, value) = text.split_once('=').filter(|(_, value)| !value.contains('='))?;
            let (key, value) = (key.trim(), value.trim());
            (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
        };
        let labels = self.lease_label.split(',').map(pair).collect::<Option<Vec<_>>>();
        let invalid = || {
            format!(
                "--lease-label: {:?} is not key=value, with commas between",
                self.lease_label
            )
        };
        Ok(LeasePlace {
            namespace: self.lease_namespace.clone(),
            labels: labels.ok_or_else(invalid)?,
        })
    }
}

/// Reads a duration as Go writes them: `30s`, `1m30s`, `1.5s`, `0`.
///
/// # Errors
/// With what is accepted.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} is not {ACCEPTED}"))
}

/// Reads a path, which manifests leave empty for none.
///
/// # Errors
/// Never.
pub fn path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text))
}

/// An address to listen on, by the flag of its host: nothing is every interface, as Go has it.
///
/// # Errors
/// With the flag, and what is accepted.
pub fn listen_address(flag: &str, host: &str, port: u16) -> Result<SocketAddr, String> {
    let ip = match host {
        "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host
            .parse()
            .map_err(|_name| format!("{flag}: {host:?} is no address to listen on"))?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// What a program is told apart by, in a header; random where nothing is given.
///
/// # Errors
/// When it is not of printable ASCII.
pub fn identity(given: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    match given {
        "" => HeaderValue::from_str(&format!("{:032x}", rand::random::<u128>())),
        given => HeaderValue::from_str(given),
    }
}
