//! `rewrite`: other questions than were asked, and answers that fit the question that was.
//!
//! Rules are tried in order; a rule that took ends it unless it says `continue`, and later rules see the question as
//! it is by then. What they do to the answer is done in the opposite order.

mod edns;
mod revert;
mod options;

use super::QueryEndpoints;
use crate::config::model::{AnswerRewrite, EdnsAction, NameMatch, NameRewrite, Rewrite, RewriteRule};
use crate::dns::message::{Query, WireName};
use crate::plugins::name_text::{Back, matches, replaced};

pub use edns::{VARIABLES, is_variable};
pub use revert::Revert;

use revert::Change;

/// The rules of a block.
#[derive(Clone, Debug)]
pub struct Rules(Vec<Rewrite>);

/// A rule made no name: the query is answered with SERVFAIL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}, which a rule made, is no name")]
pub struct NoName(pub String);

impl Rules {
    /// Of a plan.
    #[must_use]
    pub fn new(plan: &[Rewrite]) -> Self {
        Self(plan.to_vec())
    }

    /// Whether a question may be changed to one that tells who asks: such answers are for one client alone.
    #[must_use]
    pub fn tell_clients_apart(&self) -> bool {
        self.0.iter().any(|rewrite| match &rewrite.rule {
            RewriteRule::Edns { field, action, .. } => {
                *action != EdnsAction::Unset && edns::tells_the_client(field)
            }
            RewriteRule::Name(_)
            | RewriteRule::Type { .. }
            | RewriteRule::Class { .. }
            | RewriteRule::Ttl { .. }
            | RewriteRule::Cname { .. }
            | RewriteRule::Rcode { .. } => false,
        })
    }

    /// The query that is to be asked, and what takes that back in the answer.
    ///
    /// # Errors
    /// When a rule makes no name of the name.
    pub fn apply(
        &self,
        query: Query<'static>,
        endpoints: &QueryEndpoints,
    ) -> Result<(Query<'static>, Revert), NoName> {
        let mut asked = query.clone();
        let mut revert = Revert::new(query);
        for rewrite in &self.0 {
            if apply(&rewrite.rule, &mut asked, &mut revert, endpoints)? && !rewrite.goes_on {
                break;
            }
        }
        revert.note_asked(&asked);
        Ok((asked, revert))
    }
}

/// Applies a rule; tells whether it took.
fn apply(
    rule: &RewriteRule,
    asked: &mut Query,
    revert: &mut Revert,
    endpoints: &QueryEndpoints,
) -> Result<bool, NoName> {
    let (name, kind, class) = {
        let question = &asked.question;
        (question.name, question.kind, question.class)
    };
    let is_for = |of: &NameMatch| matches(of, &name.to_string());
    Ok(match rule {
        RewriteRule::Name(rule) => return rename(rule, asked, revert),
        RewriteRule::Type { from, to } => {
            let takes = *from == kind;
            if takes {
                *asked = asked.asking(&name, *to, class);
            }
            takes
        }
        RewriteRule::Class { from, to } => {
            let takes = *from == class;
            if takes {
                *asked = asked.asking(&name, kind, *to);
            }
            takes
        }
        RewriteRule::Edns {
            field,
            action,
            revert: reverts,
        } => edns::apply(field, *action, *reverts, asked, revert, endpoints),
        RewriteRule::Ttl { of, to } => revert.push_if(is_for(of), || Change::Ttl(*to)),
        RewriteRule::Cname { of, to } => revert.push_if(true, || Change::Cname(of.clone(), to.clone())),
        RewriteRule::Rcode { of, from, to } => {
            revert.push_if(is_for(of), || Change::Rcode((*from).into(), (*to).into()))
        }
    })
}

fn rename(rule: &NameRewrite, asked: &mut Query, revert: &mut Revert) -> Result<bool, NoName> {
    let before = asked.question.name.to_string();
    let Some(text) = replaced(&rule.of, &rule.to, &before) else {
        return Ok(false);
    };
    let name = WireName::parse(&text).map_err(|_invalid| NoName(text))?;
    *asked = asked.asking(&name, asked.question.kind, asked.question.class);
    // A rule for one name always takes itself back, as in CoreDNS.
    let is_exact = matches!(rule.of, NameMatch::Exact(_));
    if is_exact || rule.answers.contains(&AnswerRewrite::Auto) {
        let back = match &rule.of {
            NameMatch::Suffix(from) => Back::End(rule.to.clone(), from.clone()),
            NameMatch::Exact(_) | NameMatch::Prefix(_) | NameMatch::Substring(_) | NameMatch::Regex(_) => {
                Back::Name(name.to_string(), before)
            }
        };
        revert.push(Change::Owner(back.clone()));
        revert.push(Change::Value(back));
    }
    for answer in &rule.answers {
        match answer {
            AnswerRewrite::Auto => {}
            AnswerRewrite::Name(of, to) => revert.push(Change::Owner(Back::Matching(of.clone(), to.clone()))),
            AnswerRewrite::Value(of, to) => {
                revert.push(Change::Value(Back::Matching(of.clone(), to.clone())))
            }
        }
    }
    Ok(true)
}
