//! `dnsd check FILE`: what a Corefile or a YAML file means.

mod read;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use crate::exit::USAGE;

pub(crate) use read::{Found, Refused, corefile};

/// What is asked.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The file: a Corefile, or YAML as --config takes it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// It is a Corefile, whatever it looks like
    #[arg(long)]
    pub corefile: bool,
    /// The port of a Corefile's keys that say none
    #[arg(long, value_name = "PORT", default_value_t = 53, value_parser = clap::value_parser!(u16).range(1..))]
    pub dns_port: u16,
    /// A table for each block, all of it as JSON, or the Corefile with imports, snippets and variables in their places
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub output: Form,
}

/// How it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// As CoreDNS reads it.
    Corefile,
}

/// Says it on the standard output, and warnings and errors on the other one.
#[must_use]
pub fn run(options: &Options) -> ExitCode {
    match said(options) {
        Ok((text, warnings)) => {
            print!("{text}");
            for warning in warnings {
                eprintln!("warning: {warning}");
            }
            ExitCode::SUCCESS
        }
        Err(refused) => {
            if options.output == Form::Json {
                println!("{:#}", refused.to_json());
            }
            for error in refused.lines() {
                eprintln!("dnsd: {error}");
            }
            ExitCode::from(USAGE)
        }
    }
}

fn said(options: &Options) -> Result<(String, Vec<String>), Refused> {
    let found = read::read(options)?;
    let text = match options.output {
        Form::Table => table::table(&found),
        Form::Json => format!(
            "{:#}\n",
            json!({
                "file": found.file,
                "format": found.format.name(),
                "warnings": found.warnings,
                "plan": found.plan,
            })
        ),
        Form::Corefile => read::expanded(options, found.format)?,
    };
    Ok((text, found.warnings))
}
