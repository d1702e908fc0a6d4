//! Directives that say one thing: `bufsize`, `debug`, `loop`, `whoami`.

use super::super::syntax::Directive;
use super::Draft;
use crate::config::corefile::position::Error;

/// What dnsflagday.net proposed in 2020.
const BUFSIZE: u16 = 1232;

pub(super) fn bufsize(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    let usage = "bufsize [SIZE]";
    directive.plain(usage)?;
    let size = directive.head.at_most_one(usage)?;
    draft.block.bufsize = Some(match size {
        Some(size) => size.number(512, 4096, "bufsize")?,
        None => BUFSIZE,
    });
    Ok(())
}

pub(super) fn debug(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    alone(directive, "debug")?;
    draft.block.debug = true;
    Ok(())
}

pub(super) fn detect_loop(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    alone(directive, "loop")?;
    draft.block.detects_loop = true;
    Ok(())
}

pub(super) fn whoami(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    alone(directive, "whoami")?;
    draft.block.whoami = true;
    Ok(())
}

fn alone(directive: &Directive, usage: &str) -> Result<(), Error> {
    directive.plain(usage)?;
    directive.head.none(usage)
}
