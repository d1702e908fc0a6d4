//! Reads a Corefile: CoreDNS' text with the directives that node-local-dns compiles in, lowered to a `Plan`.
//!
//! ```text
//!  text ──▶ syntax (words, snippets, imports, variables) ──▶ server blocks ──▶ keys, directive/* ──▶ Plan
//! ```
//!
//! What CoreDNS refuses is refused, with file, line, column and what would be accepted; what CoreDNS accepts and
//! dnsd cannot do is refused, too, so that nothing is silently different. Everything that is wrong in the
//! directives is told at once; what is wrong with the syntax ends the reading.

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
pub use position::{Error, Place, Warning};

use builder::Drafts;
use position::Notes;
use syntax::{Block, Sources};

/// Reads the text of `file`.
///
/// Names of environment variables are looked up with `env`. `load` is given the path of an imported file and gives
/// its text; for a path with `*` or `?` it gives the paths that match, a line each, in order ([`from_disk`] does).
/// `default_port` is that of keys without one.
///
/// # Errors
/// All that is wrong with it.
pub fn read(
    text: &str,
    file: &str,
    env: &dyn Fn(&str) -> Option<String>,
    load: &dyn Fn(&Path) -> io::Result<String>,
    default_port: u16,
) -> Result<(Plan, Vec<Warning>), Vec<Error>> {
    let mut notes = Notes::default();
    let sources = Sources { file, env, load };
    let blocks = syntax::read(text, &sources, &mut notes).map_err(|error| vec![error])?;
    let plan = lower(&blocks, file, default_port, &mut notes);
    match plan {
        Some(plan) if notes.errors.is_empty() => Ok((plan, notes.warnings)),
        Some(_) | None => Err(notes.errors),
    }
}

/// The text with its imports, snippets and variables in their places, one option a line: what is read is the same.
///
/// # Errors
/// What is wrong with its syntax.
pub fn expand(
    text: &str,
    file: &str,
    env: &dyn Fn(&str) -> Option<String>,
    load: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<String, Error> {
    let sources = Sources { file, env, load };
    let blocks = syntax::read(text, &sources, &mut Notes::default())?;
    Ok(syntax::write(&blocks))
}

fn lower(blocks: &[Block], file: &str, default_port: u16, notes: &mut Notes) -> Option<Plan> {
    if blocks.is_empty() {
        notes.errors.push(Error {
            place: Place::start(file),
            wrong: "there is no server block".to_owned(),
            accepted: "at least one, as in \".:53 { forward . /etc/resolv.conf }\"".to_owned(),
        });
    }
    let mut drafts = Drafts::default();
    for block in blocks {
        drafts.add(block, default_port, notes);
    }
    drafts.finish(notes)
}
