//! Reads a Corefile: CoreDNS' syntax, with the directives of node-local-dns, lowered to a `Plan`.
//!
//! ```text
//!  text ──▶ syntax (words, snippets, imports, variables) ──▶ server blocks ──▶ keys, directive/* ──▶ Plan
//! ```
//!
//! What CoreDNS refuses is refused, with file, line, column and what is accepted. What CoreDNS accepts and dnsd cannot
//! do is refused as well, so that nothing differs silently. All errors in directives are reported at once; a syntax
//! error ends the reading.

mod directive;
mod import_files;
mod builder;
mod keys;
mod position;
mod syntax;
mod value;
mod arguments;

use std::io;
use std::path::Path;

use crate::config::model::Plan;

pub use directive::ACCEPTED;
pub use import_files::from_disk;
pub use position::{Error, Position, Warning};

use builder::PlanBuilder;
use position::Diagnostics;
use syntax::{Block, Sources};

/// Reads the text of `file`.
///
/// `env` looks up environment variables. `load` returns the text of an imported file; for a path with `*` or `?` the
/// paths that match, one a line, in order ([`from_disk`] does). `default_port` is the port of keys without one.
///
/// # Errors
/// All errors.
pub fn read(
    text: &str,
    file: &str,
    env: &dyn Fn(&str) -> Option<String>,
    load: &dyn Fn(&Path) -> io::Result<String>,
    default_port: u16,
) -> Result<(Plan, Vec<Warning>), Vec<Error>> {
    let mut diagnostics = Diagnostics::default();
    let sources = Sources { file, env, load };
    let blocks = syntax::read(text, &sources, &mut diagnostics).map_err(|error| vec![error])?;
    let plan = lower(&blocks, file, default_port, &mut diagnostics);
    match plan {
        Some(plan) if diagnostics.errors.is_empty() => Ok((plan, diagnostics.warnings)),
        Some(_) | None => Err(diagnostics.errors),
    }
}

/// The text with imports, snippets and variables expanded, one option a line. It has the same plan.
///
/// # Errors
/// Syntax errors.
pub fn expand(
    text: &str,
    file: &str,
    env: &dyn Fn(&str) -> Option<String>,
    load: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<String, Error> {
    let sources = Sources { file, env, load };
    let blocks = syntax::read(text, &sources, &mut Diagnostics::default())?;
    Ok(syntax::write(&blocks))
}

fn lower(blocks: &[Block], file: &str, default_port: u16, diagnostics: &mut Diagnostics) -> Option<Plan> {
    if blocks.is_empty() {
        diagnostics.errors.push(Error {
            position: Position::start(file),
            wrong: "there is no server block".to_owned(),
            accepted: "at least one, as in \".:53 { forward . /etc/resolv.conf }\"".to_owned(),
        });
    }
    let mut builder = PlanBuilder::default();
    for block in blocks {
        builder.add(block, default_port, diagnostics);
    }
    builder.finish(diagnostics)
}
