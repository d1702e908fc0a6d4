//! `edns0 local|nsid|subnet set|append|replace|unset … [revert]`.

use crate::config::model::{EdnsAction, EdnsField, RewriteRule};
use crate::plugins::rewrite::{VARIABLES, is_variable};

use super::super::super::syntax::Token;
use super::matching::Words;
use crate::config::corefile::position::Error;

const USAGE: &str = "edns0 local ACTION CODE DATA|{VARIABLE} [revert], edns0 nsid ACTION [revert], edns0 subnet \
     ACTION IPV4-BITS IPV6-BITS [revert], or with the action unset, local its code alone and the others nothing";
const ACTIONS: &str = "set, append, replace or unset";

pub(super) fn read(args: Words<'_>) -> Result<RewriteRule, Error> {
    let (kind, behind) = args.first(USAGE)?;
    let (action, behind) = behind.first(USAGE)?;
    let action = match action.text.to_ascii_lowercase().as_str() {
        "set" => EdnsAction::Set,
        "append" => EdnsAction::Append,
        "replace" => EdnsAction::Replace,
        "unset" => EdnsAction::Unset,
        other => return Err(action.error(format!("edns0: {other:?}"), ACTIONS)),
    };
    let (rest, revert) = match behind.rest {
        [rest @ .., last] if last.text == "revert" && action != EdnsAction::Unset => (rest, true),
        rest => (rest, false),
    };
    let rest = Words { rest, ..behind };
    Ok(RewriteRule::Edns {
        field: field(kind, action, rest)?,
        action,
        revert,
    })
}

fn field(kind: &Token, action: EdnsAction, rest: Words<'_>) -> Result<EdnsField, Error> {
    match (kind.text.to_ascii_lowercase().as_str(), action) {
        ("local", EdnsAction::Unset) => {
            let [number] = rest.exactly(USAGE)?;
            Ok(EdnsField::Local(code(number)?, String::new()))
        }
        ("local", EdnsAction::Set | EdnsAction::Append | EdnsAction::Replace) => {
            let [number, data] = rest.exactly(USAGE)?;
            Ok(EdnsField::Local(code(number)?, checked(data)?))
        }
        ("nsid", _) => {
            let [] = rest.exactly(USAGE)?;
            Ok(EdnsField::Nsid)
        }
        ("subnet", EdnsAction::Unset) => {
            let [] = rest.exactly(USAGE)?;
            Ok(EdnsField::Subnet(0, 0))
        }
        ("subnet", EdnsAction::Set | EdnsAction::Append | EdnsAction::Replace) => {
            let [v4, v6] = rest.exactly(USAGE)?;
            let bits = |token: &Token, most| token.number(0, most, "edns0 subnet");
            Ok(EdnsField::Subnet(bits(v4, 32)?, bits(v6, 128)?))
        }
        (other, _) => Err(kind.error(format!("edns0: {other:?}"), "local, nsid or subnet")),
    }
}

/// In any base that Go accepts: 0xffee, 0o177, 0b1, 65.
fn code(token: &Token) -> Result<u16, Error> {
    let text = token.text.to_ascii_lowercase();
    let parsed = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)]
        .into_iter()
        .find_map(|(prefix, base)| {
            let digits = text.strip_prefix(prefix).filter(|digits| !digits.is_empty())?;
            Some(u16::from_str_radix(digits, base))
        })
        .unwrap_or_else(|| text.parse());
    parsed.map_err(|_not_a_number| token.error(format!("edns0: {:?}", token.text), "a code from 0 to 0xffff"))
}

/// Hexadecimal octets after 0x, a variable in braces, or text.
fn checked(token: &Token) -> Result<String, Error> {
    let text = &token.text;
    if let Some(digits) = text.strip_prefix("0x") {
        let is_hex = digits.len().is_multiple_of(2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_hex {
            return Err(token.error(
                format!("edns0: {text:?}"),
                "two hexadecimal digits for each octet behind 0x",
            ));
        }
    }
    let is_meant = text.starts_with('{') && text.ends_with('}');
    if is_meant && !is_variable(text) {
        let why = if text.contains('/') {
            "node-local-dns compiles no metadata in"
        } else {
            "there is no such variable"
        };
        return Err(token.error(format!("edns0: {text:?}: {why}"), VARIABLES.join(", ")));
    }
    Ok(text.clone())
}
