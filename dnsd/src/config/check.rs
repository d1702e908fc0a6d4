//! `dnsd check FILE`: prints what a Corefile or a YAML file means.

mod read;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use egret_shared::escape;
use serde_json::json;

use crate::exit::USAGE;

pub(crate) use read::{Found, Refused, corefile};

/// The arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The file: a Corefile, or YAML as for --config
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Read the file as a Corefile, whatever it looks like
    #[arg(long)]
    pub corefile: bool,
    /// The port of a Corefile's keys without one
    #[arg(long, value_name = "PORT", default_value_t = 53, value_parser = clap::value_parser!(u16).range(1..))]
    pub dns_port: u16,
    /// A table for each block, the plan as JSON, or the Corefile with imports, snippets and variables expanded
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub output: Form,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// As CoreDNS reads it.
    Corefile,
}

/// Prints the output, and warnings and errors to stderr.
#[must_use]
pub fn run(options: &Options) -> ExitCode {
    match said(options) {
        Ok((text, warnings)) => {
            print!("{text}");
            for warning in warnings {
                eprintln!("warning: {}", escape::lines(&warning));
            }
            ExitCode::SUCCESS
        }
        Err(refused) => {
            if options.output == Form::Json {
                println!("{}", escape::json(&format!("{:#}", refused.to_json())));
            }
            for error in refused.lines() {
                eprintln!("dnsd: {}", escape::lines(&error));
            }
            ExitCode::from(USAGE)
        }
    }
}

fn said(options: &Options) -> Result<(String, Vec<String>), Refused> {
    let mut found = read::read(options)?;
    let text = match options.output {
        Form::Table => escape::lines(&table::table(&found)).into_owned(),
        Form::Json => {
            let said = json!({
                "file": found.file,
                "format": found.format.name(),
                "warnings": found.warnings,
                "plan": found.plan,
            });
            format!("{}\n", escape::json(&format!("{said:#}")))
        }
        Form::Corefile => {
            let text = read::expanded(options, found.format)?;
            // To terminals and between tokens a tab is a space.
            let parts: Vec<_> = text.split('\t').map(escape::lines).collect();
            let escaped = parts.join("\t");
            if escaped != text {
                let warning = "the Corefile has control or format characters: they are escaped here, which a Corefile cannot be";
                found.warnings.push(warning.to_owned());
            }
            escaped
        }
    };
    Ok((text, found.warnings))
}
