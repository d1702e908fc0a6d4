//! The program `egret`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match egret_cli::Arguments::read() {
        Ok(arguments) => arguments.run(),
        Err(code) => code,
    }
}
