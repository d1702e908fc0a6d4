//! `make demo`: shows on this machine, step by step, what Egret does. `KEEP=1` leaves it running.

use std::process::ExitCode;

use egret_integration::demo::{self, Ending};

fn main() -> ExitCode {
    let keep = std::env::var("KEEP").is_ok_and(|value| !value.is_empty() && value != "0");
    match demo::run(keep) {
        Ok(Ending::AsExpected) => ExitCode::SUCCESS,
        Ok(Ending::Differs) => ExitCode::from(1),
        Ok(Ending::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(1)
        }
    }
}
