//! `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`.

use crate::plan::{Bind, BindTo};

use super::super::place::Error;
use super::super::syntax::{Directive, Token};
use super::Draft;

const USAGE: &str = "bind ADDRESS|INTERFACE... { except ADDRESS|INTERFACE... }";

pub(super) fn read(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    let to = places(directive.head.some(USAGE)?)?;
    let mut except = Vec::new();
    for line in directive.options() {
        match line.name.text.as_str() {
            // Each replaces what was said above it, as in CoreDNS.
            "except" => except = places(line.some("except ADDRESS|INTERFACE...")?)?,
            _other => return Err(line.unknown("bind", "except")),
        }
    }
    draft.block.bind.push(Bind { to, except });
    Ok(())
}

fn places(tokens: &[Token]) -> Result<Vec<BindTo>, Error> {
    tokens.iter().map(place).collect()
}

/// What is no address names an interface: 1 to 15 octets, no slash and no white space (net/core/dev.c,
/// dev_valid_name).
fn place(token: &Token) -> Result<BindTo, Error> {
    if let Ok(address) = token.text.parse() {
        return Ok(BindTo::Address(address));
    }
    let may_be_interface = (1..=15).contains(&token.text.len())
        && !matches!(token.text.as_str(), "." | "..")
        && !token
            .text
            .contains(|character: char| matches!(character, '/' | ':') || character.is_whitespace());
    if may_be_interface {
        return Ok(BindTo::Interface(token.text.clone()));
    }
    Err(token.error(
        format!(
            "bind: {:?} is neither an address nor the name of an interface",
            token.text
        ),
        USAGE,
    ))
}
