//! `dnsd convert Corefile`: writes a Corefile as the YAML that `--config` takes.

pub(crate) mod without_defaults;
mod field_order;

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;

use egret_shared::escape;

use crate::config::check::corefile;
use crate::config::model::Plan;
use crate::exit::USAGE;

use field_order::Ordered;

/// The arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The Corefile
    #[arg(value_name = "COREFILE")]
    pub file: PathBuf,
    /// The port of keys without one
    #[arg(long, value_name = "PORT", default_value_t = 53, value_parser = clap::value_parser!(u16).range(1..))]
    pub dns_port: u16,
}

/// Prints the YAML, and warnings and errors to stderr.
#[must_use]
pub fn run(options: &Options) -> ExitCode {
    let (lines, code) = match corefile(&options.file, options.dns_port) {
        Ok(found) => match to_yaml(&found.plan) {
            Ok(text) => {
                print!("{text}");
                let warnings = found.warnings.iter().map(|warning| format!("warning: {warning}"));
                (warnings.collect(), ExitCode::SUCCESS)
            }
            Err(error) => (vec![format!("dnsd: {error}")], ExitCode::FAILURE),
        },
        Err(refused) => {
            let errors = refused.lines().into_iter().map(|error| format!("dnsd: {error}"));
            (errors.collect::<Vec<String>>(), ExitCode::from(USAGE))
        }
    };
    for line in lines {
        eprintln!("{}", escape::lines(&line));
    }
    code
}

/// The plan as YAML, without default values.
///
/// # Errors
/// When the serializer fails.
pub fn to_yaml(plan: &Plan) -> Result<String, serde_saphyr::SerializeError> {
    let mut text = String::new();
    serde_saphyr::to_fmt_writer(&mut text, &Ordered(&without_defaults::plan(plan)))?;
    if matches!(escape::lines(&text), Cow::Borrowed(_)) {
        return Ok(text);
    }
    // JSON is YAML too, and can escape every character.
    let plan = without_defaults::plan(plan);
    Ok(format!("{}\n", escape::json(&format!("{plan:#}"))))
}
