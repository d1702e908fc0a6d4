//! The directives that node-local-dns compiles in, each with its options.

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

use std::net::SocketAddr;

use crate::config::model::{Block, Health, Reload};

pub use accepted::ACCEPTED;

use super::syntax::{Directive, Token};
use crate::config::corefile::position::{Error, Notes, Place};

/// A block while it is read, and what it says about the whole.
pub(super) struct Draft {
    pub(super) block: Block,
    pub(super) reload: Option<Reload>,
    pub(super) health: Option<Health>,
    pub(super) prometheus: Option<SocketAddr>,
    /// Directives that were there already.
    seen: Vec<(String, Place)>,
}

impl Draft {
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

/// Takes one directive into the draft.
pub(super) fn read(directive: &Directive, draft: &mut Draft, notes: &mut Notes) -> Result<(), Error> {
    let name = &directive.head.name;
    match repetition(&name.text) {
        Repetition::Refused => draft.refuse_second(name)?,
        Repetition::Ignored if draft.was_seen(name) => {
            notes.warn(
                &name.place,
                format!("the first {} of the block counts", name.text),
            );
            return Ok(());
        }
        Repetition::Ignored | Repetition::Adds => {}
    }
    draft.seen.push((name.text.clone(), name.place.clone()));
    match name.text.as_str() {
        "timeouts" => timeouts::read(directive, draft),
        "reload" => reload::read(directive, draft, notes),
        "bufsize" => simple::bufsize(directive, draft),
        "bind" => bind::read(directive, draft),
        "debug" => simple::debug(directive, draft),
        "trace" => ignored::trace(directive, notes),
        "health" => health::read(directive, draft),
        "pprof" => ignored::pprof(directive, notes),
        "prometheus" => prometheus::read(directive, draft, notes),
        "errors" => errors::read(directive, draft),
        "log" => log::read(directive, draft, notes),
        "dns64" => dns64::read(directive, draft),
        "loadbalance" => loadbalance::read(directive, draft),
        "cache" => cache::read(directive, draft, notes),
        "rewrite" => rewrite::read(directive, draft, notes),
        "template" => template::read(directive, draft, notes),
        "hosts" => hosts::read(directive, draft, notes),
        "loop" => simple::detect_loop(directive, draft),
        "forward" => forward::read(directive, draft, notes),
        "whoami" => simple::whoami(directive, draft),
        _other => Err(accepted::unknown(name)),
    }?;
    accepted::check(directive)
}

/// What becomes of a directive that a block has already.
enum Repetition {
    Refused,
    Ignored,
    Adds,
}

/// As CoreDNS has it.
fn repetition(name: &str) -> Repetition {
    match name {
        "cache" | "errors" | "hosts" | "loop" | "pprof" | "prometheus" => Repetition::Refused,
        "bufsize" | "reload" | "whoami" => Repetition::Ignored,
        _other => Repetition::Adds,
    }
}

impl Draft {
    fn was_seen(&self, name: &Token) -> bool {
        self.seen.iter().any(|(seen, _)| *seen == name.text)
    }

    fn refuse_second(&self, name: &Token) -> Result<(), Error> {
        match self.seen.iter().find(|(seen, _)| *seen == name.text) {
            Some((_, place)) => Err(name.error(
                format!("{} is in this block already, at {place}", name.text),
                "it once in a server block",
            )),
            None => Ok(()),
        }
    }
}

impl Directive {
    /// Has no block.
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
