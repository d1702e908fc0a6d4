//! The directives of node-local-dns, each with its options.

mod bind;
mod cache;
mod dns64;
mod errors;
mod forward;
mod health;
mod hosts;
pub(super) mod accepted;
mod loadbalance;
mod log;
mod ignored;
mod prometheus;
mod reload;
mod rewrite;
mod simple;
mod template;
mod timeouts;
mod tls;

use std::net::SocketAddr;

use crate::config::model::{Block, Health, Reload};

pub use accepted::ACCEPTED;

use super::syntax::{Directive, Token};
use crate::config::corefile::position::{Diagnostics, Error, Position};

/// A block while it is read, and what it says about the whole process.
pub(super) struct BlockBuilder {
    pub(super) block: Block,
    pub(super) reload: Option<Reload>,
    pub(super) health: Option<Health>,
    pub(super) prometheus: Option<SocketAddr>,
    /// The directives so far.
    seen: Vec<(String, Position)>,
}

impl BlockBuilder {
    pub(super) fn new(block: Block) -> Self {
        Self {
            block,
            reload: None,
            health: None,
            prometheus: None,
            seen: Vec::new(),
        }
    }
}

/// Adds a directive to the block_builder.
pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let name = &directive.head.name;
    match repetition(&name.text) {
        Repetition::Refused => block_builder.refuse_second(name)?,
        Repetition::Ignored if block_builder.was_seen(name) => {
            diagnostics.warn(
                &name.position,
                format!("the first {} of the block counts", name.text),
            );
            return Ok(());
        }
        Repetition::Ignored | Repetition::Adds => {}
    }
    block_builder
        .seen
        .push((name.text.clone(), name.position.clone()));
    match name.text.as_str() {
        "timeouts" => timeouts::read(directive, block_builder),
        "reload" => reload::read(directive, block_builder, diagnostics),
        "bufsize" => simple::bufsize(directive, block_builder),
        "bind" => bind::read(directive, block_builder),
        "tls" => tls::read(directive, block_builder),
        "debug" => simple::debug(directive, block_builder),
        "trace" => ignored::trace(directive, diagnostics),
        "health" => health::read(directive, block_builder),
        "pprof" => ignored::pprof(directive, diagnostics),
        "prometheus" => prometheus::read(directive, block_builder, diagnostics),
        "errors" => errors::read(directive, block_builder),
        "log" => log::read(directive, block_builder, diagnostics),
        "dns64" => dns64::read(directive, block_builder),
        "loadbalance" => loadbalance::read(directive, block_builder),
        "cache" => cache::read(directive, block_builder, diagnostics),
        "rewrite" => rewrite::read(directive, block_builder, diagnostics),
        "template" => template::read(directive, block_builder, diagnostics),
        "hosts" => hosts::read(directive, block_builder, diagnostics),
        "loop" => simple::detect_loop(directive, block_builder),
        "forward" => forward::read(directive, block_builder, diagnostics),
        "whoami" => simple::whoami(directive, block_builder),
        _other => Err(accepted::unknown(name)),
    }?;
    accepted::check(directive)
}

/// The effect of a repeated directive.
enum Repetition {
    Refused,
    Ignored,
    Adds,
}

/// As in CoreDNS.
fn repetition(name: &str) -> Repetition {
    match name {
        "cache" | "errors" | "hosts" | "loop" | "pprof" | "prometheus" | "tls" => Repetition::Refused,
        "bufsize" | "reload" | "whoami" => Repetition::Ignored,
        _other => Repetition::Adds,
    }
}

impl BlockBuilder {
    fn was_seen(&self, name: &Token) -> bool {
        self.seen.iter().any(|(seen, _)| *seen == name.text)
    }

    fn refuse_second(&self, name: &Token) -> Result<(), Error> {
        match self.seen.iter().find(|(seen, _)| *seen == name.text) {
            Some((_, position)) => Err(name.error(
                format!("{} is in this block already, at {position}", name.text),
                "it once in a server block",
            )),
            None => Ok(()),
        }
    }
}

impl Directive {
    /// Requires that there is no block.
    pub(super) fn plain(&self, usage: &str) -> Result<(), Error> {
        match self.body.as_deref().and_then(<[_]>::first) {
            Some(line) => Err(line
                .name
                .error(format!("{} has no options", self.head.name.text), usage)),
            None => Ok(()),
        }
    }

    /// The lines of its block.
    pub(super) fn options(&self) -> &[super::syntax::Line] {
        self.body.as_deref().unwrap_or_default()
    }
}
