//! Environment variables: `{%NAME%}`, then `{$NAME}`, as CoreDNS replaces them. One that is not set is empty.

use super::Token;
use crate::config::corefile::position::{Error, Notes};

/// Replacements in one word: a value may name others, and one that names itself would have no end.
const MOST: usize = 64;

/// The longest word that variables may make.
const LONGEST: usize = 64 * 1024;

/// The word with its variables replaced.
pub(super) fn replace(
    token: &Token,
    env: &dyn Fn(&str) -> Option<String>,
    notes: &mut Notes,
) -> Result<Token, Error> {
    let mut replaced = token.clone();
    for (open, close) in [("{%", "%}"), ("{$", "}")] {
        let mut rounds = 0;
        while let Some(name) = reference(&replaced.text, open, close) {
            if rounds == MOST || replaced.text.len() > LONGEST {
                return Err(endless(token));
            }
            rounds += 1;
            let value = env(&name).unwrap_or_else(|| {
                notes.warn(&token.place, format!("the variable {name} is not set: empty"));
                String::new()
            });
            replaced.text = replaced.text.replace(&format!("{open}{name}{close}"), &value);
        }
    }
    Ok(replaced)
}

/// The first name between the two; an empty one ends the search.
fn reference(text: &str, open: &str, close: &str) -> Option<String> {
    let (_, rest) = text.split_once(open)?;
    let (name, _) = rest.split_once(close)?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn endless(token: &Token) -> Error {
    token.error(
        "the variables in this word name each other without an end",
        format!("at most {MOST} replacements and {LONGEST} octets"),
    )
}
