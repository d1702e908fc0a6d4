//! Changes of the answer: `answer auto`, `answer name FROM TO`, `answer value FROM TO`.

use crate::config::model::{AnswerRewrite, Expression, NameMatch};

use super::super::super::syntax::Token;
use super::matching::{Words, check_groups, normal};
use crate::config::corefile::position::Error;

const USAGE: &str = "answer auto, answer name FROM TO or answer value FROM TO";

/// The rules of these arguments. An exact name is always reverted.
pub(super) fn answers(
    of: &NameMatch,
    rule: Words<'_>,
    words: &[&Token],
) -> Result<Vec<AnswerRewrite>, Error> {
    let mut rules = Vec::new();
    let mut rest = words;
    while let [first, behind @ ..] = rest {
        let follows_answer = first.text == "answer";
        if rules.is_empty() && !follows_answer {
            return Err(first.error(format!("rewrite name: {:?}", first.text), USAGE));
        }
        let (kind, behind) = if follows_answer {
            let words = Words {
                rule: first,
                rest: behind,
            };
            let (kind, rest) = words.first(USAGE)?;
            (kind, rest.rest)
        } else {
            (*first, behind)
        };
        let (rule, behind) = one(kind, behind)?;
        rules.push(rule);
        rest = behind;
    }
    check(&rules, rule.rule)?;
    let is_auto = matches!(of, NameMatch::Exact(_)) || rules.contains(&AnswerRewrite::Auto);
    rules.retain(|rule| *rule != AnswerRewrite::Auto);
    if is_auto {
        rules.insert(0, AnswerRewrite::Auto);
    }
    Ok(rules)
}

fn one<'w, 't>(kind: &'t Token, words: &'w [&'t Token]) -> Result<(AnswerRewrite, &'w [&'t Token]), Error> {
    match (kind.text.as_str(), words) {
        ("auto", rest) => Ok((AnswerRewrite::Auto, rest)),
        ("name", [from, to, rest @ ..]) => {
            let (from, to) = pair(from, to)?;
            Ok((AnswerRewrite::Name(from, to), rest))
        }
        ("value", [from, to, rest @ ..]) => {
            let (from, to) = pair(from, to)?;
            Ok((AnswerRewrite::Value(from, to), rest))
        }
        ("name" | "value", _fewer) => Err(kind.error(
            format!("answer {}: a word is missing behind it", kind.text),
            USAGE,
        )),
        (other, _) => Err(kind.error(format!("answer: {other:?}"), USAGE)),
    }
}

fn pair(from: &Token, to: &Token) -> Result<(Expression, String), Error> {
    let expression = from.expression("answer")?;
    check_groups(&expression, to)?;
    Ok((expression, normal(&to.text)))
}

fn check(rules: &[AnswerRewrite], to: &Token) -> Result<(), Error> {
    let names = rules.iter().any(|rule| matches!(rule, AnswerRewrite::Name(_, _)));
    if names && rules.contains(&AnswerRewrite::Auto) {
        return Err(to.error("rewrite name: answer auto and answer name", "one of the two"));
    }
    Ok(())
}
