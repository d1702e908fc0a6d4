//! Environment variables: `{%NAME%}`, then `{$NAME}`, replaced as in CoreDNS. An unset variable is empty.

use super::Token;
use crate::config::corefile::position::{Diagnostics, Error};

/// The most replacements in a word: a value may contain a variable, and one that contains itself never ends.
const MOST: usize = 64;

/// The longest word after replacement, in octets.
const LONGEST: usize = 64 * 1024;

/// The word with its variables replaced.
pub(super) fn replace(
    token: &Token,
    env: &dyn Fn(&str) -> Option<String>,
    diagnostics: &mut Diagnostics,
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
                diagnostics.warn(&token.position, format!("the variable {name} is not set: empty"));
                String::new()
            });
            replaced.text = replaced.text.replace(&format!("{open}{name}{close}"), &value);
        }
    }
    Ok(replaced)
}

/// The first name between the two; an empty one ends the replacement.
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
