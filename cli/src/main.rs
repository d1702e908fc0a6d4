//! The program `egret`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    egret_cli::Arguments::parse().run()
}
