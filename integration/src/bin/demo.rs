//! `make demo`: shows on this machine, step by step, what Egret does. `KEEP=1` leaves it running, `BACKEND=nftables` needs no programs of
//! iptables and ipset.

use std::process::ExitCode;

use egret_integration::demo::{self, Ending};

fn main() -> ExitCode {
    let keep = std::env::var("KEEP").is_ok_and(|value| !value.is_empty() && value != "0");
    let backend = std::env::var("BACKEND").unwrap_or_default();
    let backend = if backend.is_empty() { "auto" } else { &backend };
    match demo::run(keep, backend) {
        Ok(Ending::AsExpected) => ExitCode::SUCCESS,
        Ok(Ending::Differs) => ExitCode::from(1),
        Ok(Ending::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(1)
        }
    }
}
