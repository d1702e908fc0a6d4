//! The name matching of rules.

use crate::config::model::{Expression, NameMatch};

use super::super::super::syntax::Token;
use crate::config::corefile::position::Error;

const HOW: &str = "exact, prefix, suffix, substring or regex";

/// The arguments of a rule after its field.
#[derive(Clone, Copy)]
pub(super) struct Words<'t> {
    pub(super) rule: &'t Token,
    pub(super) rest: &'t [&'t Token],
}

impl<'t> Words<'t> {
    pub(super) fn of(self, rule: &'t Token) -> Self {
        Self { rule, ..self }
    }

    pub(super) fn first(self, usage: &str) -> Result<(&'t Token, Self), Error> {
        match self.rest {
            [first, rest @ ..] => Ok((first, Self { rule: first, rest })),
            [] => Err(self.missing(usage)),
        }
    }

    pub(super) fn exactly<const N: usize>(self, usage: &str) -> Result<[&'t Token; N], Error> {
        if let Some(more) = self.rest.get(N) {
            return Err(more.error(
                format!("rewrite {}: {:?} is one word too many", self.rule.text, more.text),
                usage,
            ));
        }
        <[&Token; N]>::try_from(self.rest).map_err(|_fewer| self.missing(usage))
    }

    pub(super) fn missing(self, usage: &str) -> Error {
        self.rule
            .error(format!("{}: a word is missing behind it", self.rule.text), usage)
    }
}

/// `[HOW] NAME` and N more arguments.
pub(super) fn match_and_target<'t, const N: usize>(
    args: Words<'t>,
    usage: &str,
) -> Result<(NameMatch, [&'t Token; N]), Error> {
    let says_how = args.rest.len() == N + 2;
    let (of, rest) = match args.rest {
        [how, name, rest @ ..] if says_how => (read(how, name)?, rest),
        [name, rest @ ..] => (NameMatch::Exact(normal(&name.text)), rest),
        [] => return Err(args.missing(usage)),
    };
    let rest = Words { rest, ..args };
    Ok((of, rest.exactly(usage)?))
}

/// In lower case, with a final dot: a part of a name gets one as well, as in CoreDNS.
pub(super) fn read(how: &Token, name: &Token) -> Result<NameMatch, Error> {
    part_of_name(how, name, normal(&name.text))
}

/// Matches `part`, except for an expression, which stays as written.
pub(super) fn part_of_name(how: &Token, name: &Token, part: String) -> Result<NameMatch, Error> {
    match how.text.to_ascii_lowercase().as_str() {
        "exact" => Ok(NameMatch::Exact(part)),
        "prefix" => Ok(NameMatch::Prefix(part)),
        "suffix" => Ok(NameMatch::Suffix(part)),
        "substring" => Ok(NameMatch::Substring(part)),
        "regex" => name.expression("regex").map(NameMatch::Regex),
        other => Err(how.error(format!("rewrite: {other:?}"), HOW)),
    }
}

/// In lower case, with a final dot.
pub(super) fn normal(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let is_whole = name.ends_with('.') && !name.ends_with("\\.");
    if is_whole { name } else { name + "." }
}

/// Requires that the target uses no more groups than the expression has.
pub(super) fn check_groups(expression: &Expression, to: &Token) -> Result<(), Error> {
    if expression.has_groups_for(&to.text) {
        return Ok(());
    }
    Err(to.error(
        format!("rewrite: {:?} uses more groups than the expression has", to.text),
        "as many as it has, {1} for the first",
    ))
}
