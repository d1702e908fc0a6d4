//! Flags as upstream's programs have them: pflag's booleans and Go's durations, and the flags of its log library.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::HeaderValue;
use http::header::InvalidHeaderValue;

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

/// Reads a duration as Go writes them: `30s`, `1m30s`, `0`. It has whole units.
///
/// # Errors
/// With what is accepted.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    let refused = || format!("{text:?} is no duration such as 30s, 1m30s or 500ms");
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|it: char| it.is_ascii_digit()).len();
        let (number, behind) = rest.split_at(digits);
        let letters = behind.len()
            - behind
                .trim_start_matches(|it: char| it.is_ascii_alphabetic())
                .len();
        let (unit, behind) = behind.split_at(letters);
        let number: u64 = number.parse().map_err(|_none| refused())?;
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(refused()),
        };
        let piece = number.checked_mul(milliseconds).map(Duration::from_millis);
        total = piece
            .and_then(|piece| total.checked_add(piece))
            .ok_or_else(refused)?;
        rest = behind;
    }
    if text.is_empty() {
        Err(refused())
    } else {
        Ok(total)
    }
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
