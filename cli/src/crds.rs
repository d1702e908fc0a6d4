//! `egret crds`: what tells an API server of Egret's own kinds.

use std::io::{self, Write};

use clap::Args;
use egret_policies::schema::{Definition, definitions};

/// What is asked for.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {}

const AFTER_HELP: &str = "\
egret crds | kubectl apply --server-side -f -";

impl Arguments {
    /// Writes all definitions, a document each.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn run(&self, out: &mut impl Write) -> io::Result<()> {
        for (index, definition) in definitions().iter().enumerate() {
            if index > 0 {
                writeln!(out, "---")?;
            }
            write!(out, "{}", render(definition)?)?;
        }
        out.flush()
    }
}

/// A definition as a document of YAML.
///
/// # Errors
/// It cannot be written.
pub fn render(definition: &Definition) -> io::Result<String> {
    serde_saphyr::to_string(&definition.object()).map_err(io::Error::other)
}
