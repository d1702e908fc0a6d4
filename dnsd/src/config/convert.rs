//! `dnsd convert Corefile`: a Corefile as the YAML that `--config` takes.

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

/// What is asked.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The Corefile
    #[arg(value_name = "COREFILE")]
    pub file: PathBuf,
    /// The port of keys that say none
    #[arg(long, value_name = "PORT", default_value_t = 53, value_parser = clap::value_parser!(u16).range(1..))]
    pub dns_port: u16,
}

/// Writes it on the standard output, and warnings and errors on the other one.
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

/// The plan as YAML, without what is said by the defaults.
///
/// # Errors
/// When the library cannot write it.
pub fn to_yaml(plan: &Plan) -> Result<String, serde_saphyr::SerializeError> {
    let mut text = String::new();
    serde_saphyr::to_fmt_writer(&mut text, &Ordered(&without_defaults::plan(plan)))?;
    if matches!(escape::lines(&text), Cow::Borrowed(_)) {
        return Ok(text);
    }
    // JSON is YAML as well, and can escape every character.
    let plan = without_defaults::plan(plan);
    Ok(format!("{}\n", escape::json(&format!("{plan:#}"))))
}
