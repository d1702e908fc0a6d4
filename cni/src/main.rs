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

use std::io::Read;
use std::process::ExitCode;

use error::CniError;
use parameters::Parameters;

fn main() -> ExitCode {
    match std::env::var("CNI_COMMAND") {
        Ok(command) => run_plugin(&command),
        Err(_) => {
            eprintln!(
                "egret-cni {}: a CNI plugin; a container runtime runs it",
                env!("CARGO_PKG_VERSION")
            );
            ExitCode::from(64)
        }
    }
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
