//! Directives with one value: `bufsize`, `debug`, `loop`, `whoami`.

use super::super::syntax::Directive;
use super::BlockBuilder;
use crate::config::corefile::position::Error;

/// The value of DNS flag day 2020.
const BUFSIZE: u16 = 1232;

pub(super) fn bufsize(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    let usage = "bufsize [SIZE]";
    directive.plain(usage)?;
    let size = directive.head.at_most_one(usage)?;
    block_builder.block.bufsize = Some(match size {
        Some(size) => size.number(512, 4096, "bufsize")?,
        None => BUFSIZE,
    });
    Ok(())
}

pub(super) fn debug(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    alone(directive, "debug")?;
    block_builder.block.debug = true;
    Ok(())
}

pub(super) fn detect_loop(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    alone(directive, "loop")?;
    block_builder.block.detects_loop = true;
    Ok(())
}

pub(super) fn whoami(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    alone(directive, "whoami")?;
    block_builder.block.whoami = true;
    Ok(())
}

fn alone(directive: &Directive, usage: &str) -> Result<(), Error> {
    directive.plain(usage)?;
    directive.head.none(usage)
}
