//! `rewrite [continue|stop] name|type|class|edns0|ttl|cname|rcode …`.

mod answers;
mod edns;
mod matching;

use crate::config::model::{NameMatch, NameRewrite, Rewrite, RewriteRule, TtlRange};

use super::super::syntax::{Directive, Token};
use super::super::value::{CLASSES, RCODES, TYPES};
use super::BlockBuilder;
use crate::config::corefile::position::{Diagnostics, Error};

use answers::answers;
use matching::{Words, match_and_target, normal};

const FIELDS: &str = "rewrite [continue|stop] name|type|class|edns0|ttl|cname|rcode ...";

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let mut words: Vec<&Token> = directive.head.args.iter().collect();
    let lines = directive.options();
    if words.len() < 2 {
        // The whole block is one rule.
        words.extend(
            lines
                .iter()
                .flat_map(|line| std::iter::once(&line.name).chain(&line.args)),
        );
    } else {
        directive.plain("a rule on its line, or in a block")?;
    }
    let words = Words {
        rule: &directive.head.name,
        rest: &words,
    };
    block_builder.block.rewrite.push(rule(words, diagnostics)?);
    Ok(())
}

fn rule(words: Words<'_>, diagnostics: &mut Diagnostics) -> Result<Rewrite, Error> {
    let (first, behind) = words.first(FIELDS)?;
    let (goes_on, kind, args) = match first.text.to_ascii_lowercase().as_str() {
        "continue" => part(behind, true)?,
        "stop" => part(behind, false)?,
        _kind => (false, first, behind),
    };
    let args = args.of(kind);
    let rule = match kind.text.to_ascii_lowercase().as_str() {
        "name" => name(args, diagnostics)?,
        "type" => {
            let [from, to] = args.exactly("type FROM TO")?;
            RewriteRule::Type {
                from: from.code("type", &TYPES)?,
                to: to.code("type", &TYPES)?,
            }
        }
        "class" => {
            let [from, to] = args.exactly("class FROM TO")?;
            RewriteRule::Class {
                from: from.code("class", &CLASSES)?,
                to: to.code("class", &CLASSES)?,
            }
        }
        "edns0" => edns::read(args)?,
        "ttl" => ttl(args)?,
        "cname" => cname(args)?,
        "rcode" => rcode(args)?,
        "answer" => return Err(kind.error("rewrite: answer stands alone", "it behind name FROM TO")),
        other => return Err(kind.error(format!("rewrite: {other:?}"), FIELDS)),
    };
    Ok(Rewrite { goes_on, rule })
}

fn part(words: Words<'_>, goes_on: bool) -> Result<(bool, &Token, Words<'_>), Error> {
    let (kind, args) = words.first(FIELDS)?;
    Ok((goes_on, kind, args))
}

/// `name [exact|prefix|suffix|substring|regex] FROM TO [answer …]`.
fn name(args: Words<'_>, diagnostics: &mut Diagnostics) -> Result<RewriteRule, Error> {
    const USAGE: &str =
        "name [exact|prefix|suffix|substring|regex] FROM TO [answer auto | answer name|value FROM TO]";
    let (of, to, rest) = match args.rest {
        [from, to] => (NameMatch::Exact(normal(&from.text)), to, &[][..]),
        [how, from, to, rest @ ..] => (matching::read(how, from)?, to, rest),
        _fewer => return Err(args.missing(USAGE)),
    };
    if let NameMatch::Regex(expression) = &of {
        matching::check_groups(expression, to)?;
    }
    if let NameMatch::Prefix(part) | NameMatch::Substring(part) = &of
        && let [_, from, ..] = args.rest
        && !from.text.ends_with('.')
    {
        let text = format!("a dot is added, as in CoreDNS: {part:?} is looked for");
        diagnostics.warn(&from.position, text);
    }
    let answers = answers(&of, args.of(to), rest)?;
    Ok(RewriteRule::Name(NameRewrite {
        of,
        to: normal(&to.text),
        answers,
    }))
}

fn ttl(args: Words<'_>) -> Result<RewriteRule, Error> {
    const USAGE: &str = "ttl [exact|prefix|suffix|substring|regex] NAME SECONDS|[SECONDS]-[SECONDS]";
    let (of, [to]) = match_and_target(args, USAGE)?;
    Ok(RewriteRule::Ttl { of, to: range(to)? })
}

fn range(token: &Token) -> Result<TtlRange, Error> {
    let wrong = || {
        token.error(
            format!("ttl: {:?}", token.text),
            "SECONDS, SECONDS-SECONDS, SECONDS- or -SECONDS, the lower first",
        )
    };
    let (least, most) = match token.text.split_once('-') {
        None => (token.text.as_str(), token.text.as_str()),
        Some(("", "")) => return Err(wrong()),
        Some((least, "")) => (least, "2147483647"),
        Some(("", most)) => ("0", most),
        Some(both) => both,
    };
    match (digits(least), digits(most)) {
        (Some(at_least), Some(at_most)) if at_least <= at_most => Ok(TtlRange { at_least, at_most }),
        (Some(_) | None, Some(_) | None) => Err(wrong()),
    }
}

fn digits(text: &str) -> Option<u32> {
    text.bytes()
        .all(|octet| octet.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// Here parts of names stay as they are, and the target too.
fn cname(args: Words<'_>) -> Result<RewriteRule, Error> {
    const USAGE: &str = "cname [exact|prefix|suffix|substring|regex] FROM TO";
    let lower = |token: &Token| token.text.to_ascii_lowercase();
    let exact = |from: &Token, to: &Token| RewriteRule::Cname {
        of: NameMatch::Exact(normal(&from.text)),
        to: normal(&to.text),
    };
    match args.rest {
        [from, to] => Ok(exact(from, to)),
        [how, from, to] if how.text.eq_ignore_ascii_case("exact") => Ok(exact(from, to)),
        [how, from, to] => Ok(RewriteRule::Cname {
            of: matching::part_of_name(how, from, lower(from))?,
            to: lower(to),
        }),
        [_, _, _, more, ..] => Err(more.error("cname: one word too many", USAGE)),
        _fewer => Err(args.missing(USAGE)),
    }
}

fn rcode(args: Words<'_>) -> Result<RewriteRule, Error> {
    const USAGE: &str = "rcode [exact|prefix|suffix|substring|regex] NAME FROM TO";
    let (of, [from, to]) = match_and_target(args, USAGE)?;
    Ok(RewriteRule::Rcode {
        of,
        from: code(from)?,
        to: code(to)?,
    })
}

/// A name, or a number up to 23.
fn code(token: &Token) -> Result<u8, Error> {
    match digits(&token.text) {
        Some(_) => token.number(0, 23, "rcode"),
        None => token.code("rcode", &RCODES),
    }
}
