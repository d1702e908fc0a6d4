//! Reads the file to check, a Corefile or YAML.

use std::path::Path;

use egret_shared::rt::config::load;
use serde_json::{Value, json};

use crate::config::corefile::{self, Error, from_disk};
use crate::config::model::Plan;
use crate::config::{Invalid, RawConfig};
use crate::encryption::server_config;

use super::Options;

/// The plan of a file.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) file: String,
    pub(crate) format: Format,
    pub(crate) plan: Plan,
    pub(crate) warnings: Vec<String>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Corefile,
    Yaml,
}

impl Format {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Corefile => "Corefile",
            Self::Yaml => "YAML",
        }
    }
}

/// Why a file is refused.
#[derive(Debug)]
pub(crate) enum Refused {
    Corefile(Vec<Error>),
    Other(String),
}

impl Refused {
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            Self::Corefile(errors) => errors.iter().map(ToString::to_string).collect(),
            Self::Other(error) => vec![error.clone()],
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let errors = match self {
            Self::Corefile(errors) => errors.iter().map(one).collect(),
            Self::Other(error) => vec![json!({ "wrong": error })],
        };
        json!({ "errors": errors })
    }
}

fn one(error: &Error) -> Value {
    json!({
        "file": &*error.position.file,
        "line": error.position.line,
        "column": error.position.column,
        "wrong": error.wrong,
        "accepted": error.accepted,
    })
}

pub(super) fn read(options: &Options) -> Result<Found, Refused> {
    let text = text(&options.file)?;
    let mut found = match format(options, &text) {
        Format::Corefile => corefile(&options.file, options.dns_port)?,
        Format::Yaml => yaml(&options.file)?,
    };
    let unusable = unusable_certificates(&found.plan);
    found.warnings.extend(unusable);
    Ok(found)
}

/// Certificates that cannot be loaded. The path may exist only where dnsd runs, so these are warnings.
fn unusable_certificates(plan: &Plan) -> Vec<String> {
    let mut unusable = Vec::new();
    for block in &plan.blocks {
        let Some(tls) = &block.tls else {
            continue;
        };
        let warning = server_config(tls, block.scheme)
            .err()
            .map(|error| format!("{}: tls: {error}", tls.origin));
        unusable.extend(warning.filter(|warning| !unusable.contains(warning)));
    }
    unusable
}

/// The plan of a Corefile.
pub(crate) fn corefile(path: &Path, dns_port: u16) -> Result<Found, Refused> {
    let file = path.display().to_string();
    let (plan, warnings) =
        corefile::read(&text(path)?, &file, &variable, &from_disk, dns_port).map_err(Refused::Corefile)?;
    Ok(Found {
        file,
        format: Format::Corefile,
        plan,
        warnings: warnings.iter().map(ToString::to_string).collect(),
    })
}

fn yaml(path: &Path) -> Result<Found, Refused> {
    let config = load::<RawConfig>(path)
        .map_err(Invalid::from)
        .and_then(RawConfig::validate)
        .map_err(|error| Refused::Other(in_file(path, &error)))?;
    Ok(Found {
        file: path.display().to_string(),
        format: Format::Yaml,
        plan: config.plan,
        warnings: Vec::new(),
    })
}

/// Errors of the file name it themselves; errors of fields do not.
fn in_file(path: &Path, error: &Invalid) -> String {
    match error {
        Invalid::File(error) => error.to_string(),
        other => format!("{}: {other}", path.display()),
    }
}

/// The Corefile, expanded.
pub(super) fn expanded(options: &Options, format: Format) -> Result<String, Refused> {
    if format == Format::Yaml {
        let error = format!(
            "{}: it is no Corefile; accepted: -o table or json",
            options.file.display()
        );
        return Err(Refused::Other(error));
    }
    let file = options.file.display().to_string();
    corefile::expand(&text(&options.file)?, &file, &variable, &from_disk)
        .map_err(|error| Refused::Corefile(vec![error]))
}

fn text(path: &Path) -> Result<String, Refused> {
    std::fs::read_to_string(path).map_err(|error| Refused::Other(format!("{}: {error}", path.display())))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// By the option, the file's name, and then whether a line ends with an open brace.
fn format(options: &Options, text: &str) -> Format {
    let extension = options.file.extension().unwrap_or_default();
    if options.corefile {
        Format::Corefile
    } else if ["yaml", "yml", "json"].iter().any(|yaml| extension == *yaml) {
        Format::Yaml
    } else if names_corefile(&options.file) || opens_block(text) {
        Format::Corefile
    } else {
        Format::Yaml
    }
}

fn names_corefile(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("Corefile")
}

/// Whether a word precedes the brace; JSON has quotes, a colon or nothing there.
fn opens_block(text: &str) -> bool {
    let before_brace = |line: &str| {
        line.trim_end()
            .strip_suffix('{')
            .map(|before| before.trim().to_owned())
    };
    text.lines()
        .filter_map(before_brace)
        .any(|before| !before.is_empty() && !before.ends_with([':', ',', '[', '"']))
}
