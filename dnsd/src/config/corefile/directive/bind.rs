//! `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`.

use crate::config::model::{Bind, BindTo};

use super::super::syntax::{Directive, Token};
use super::BlockBuilder;
use crate::config::corefile::position::Error;

const USAGE: &str = "bind ADDRESS|INTERFACE... { except ADDRESS|INTERFACE... }";

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    let to = targets(directive.head.some(USAGE)?)?;
    let mut except = Vec::new();
    for line in directive.options() {
        match line.name.text.as_str() {
            // A later one replaces an earlier one, as in CoreDNS.
            "except" => except = targets(line.some("except ADDRESS|INTERFACE...")?)?,
            _other => return Err(line.unknown("bind")),
        }
    }
    block_builder.block.bind.push(Bind { to, except });
    Ok(())
}

fn targets(tokens: &[Token]) -> Result<Vec<BindTo>, Error> {
    tokens.iter().map(target).collect()
}

fn target(token: &Token) -> Result<BindTo, Error> {
    BindTo::try_from(token.text.clone()).map_err(|error| token.error(format!("bind: {error}"), USAGE))
}
