//! `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`.

use crate::config::model::{Bind, BindTo};

use super::super::syntax::{Directive, Token};
use super::Draft;
use crate::config::corefile::position::Error;

const USAGE: &str = "bind ADDRESS|INTERFACE... { except ADDRESS|INTERFACE... }";

pub(super) fn read(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    let to = places(directive.head.some(USAGE)?)?;
    let mut except = Vec::new();
    for line in directive.options() {
        match line.name.text.as_str() {
            // Each replaces what was said above it, as in CoreDNS.
            "except" => except = places(line.some("except ADDRESS|INTERFACE...")?)?,
            _other => return Err(line.unknown("bind")),
        }
    }
    draft.block.bind.push(Bind { to, except });
    Ok(())
}

fn places(tokens: &[Token]) -> Result<Vec<BindTo>, Error> {
    tokens.iter().map(place).collect()
}

fn place(token: &Token) -> Result<BindTo, Error> {
    BindTo::try_from(token.text.clone()).map_err(|error| token.error(format!("bind: {error}"), USAGE))
}
