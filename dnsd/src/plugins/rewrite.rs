//! `rewrite`: changes queries, and reverts the changes in their answers.
//!
//! Rules are tried in order. A rule that applies is the last one unless it has `continue`; later rules see the changed
//! query. Answers are reverted in the opposite order.

mod edns;
mod revert;
mod options;

use super::QueryEndpoints;
use crate::config::model::{AnswerRewrite, EdnsAction, NameMatch, NameRewrite, Rewrite, RewriteRule};
use crate::dns::message::{Query, WireName};
use crate::plugins::name_text::{NameRevert, matches, replaced};

pub use edns::{VARIABLES, is_variable};
pub use revert::Revert;

use revert::Change;

/// The rules of a block.
#[derive(Clone, Debug)]
pub struct Rules(Vec<Rewrite>);

/// A rule made an invalid name: the client gets SERVFAIL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}, which a rule made, is no name")]
pub struct NoName(pub String);

impl Rules {
    /// From the plan of a block.
    #[must_use]
    pub fn new(plan: &[Rewrite]) -> Self {
        Self(plan.to_vec())
    }

    /// Whether a rule adds data about the client to queries: their answers are for this client alone.
    #[must_use]
    pub fn depend_on_client(&self) -> bool {
        self.0.iter().any(|rewrite| match &rewrite.rule {
            RewriteRule::Edns { field, action, .. } => {
                *action != EdnsAction::Unset && edns::depends_on_client(field)
            }
            RewriteRule::Name(_)
            | RewriteRule::Type { .. }
            | RewriteRule::Class { .. }
            | RewriteRule::Ttl { .. }
            | RewriteRule::Cname { .. }
            | RewriteRule::Rcode { .. } => false,
        })
    }

    /// The query to send, and the reversal for its answer.
    ///
    /// # Errors
    /// When a rule makes an invalid name.
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

/// Applies a rule; returns whether it matched.
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
    // An exact rule is always reverted, as in CoreDNS.
    let is_exact = matches!(rule.of, NameMatch::Exact(_));
    if is_exact || rule.answers.contains(&AnswerRewrite::Auto) {
        let back = match &rule.of {
            NameMatch::Suffix(from) => NameRevert::Suffix(rule.to.clone(), from.clone()),
            NameMatch::Exact(_) | NameMatch::Prefix(_) | NameMatch::Substring(_) | NameMatch::Regex(_) => {
                NameRevert::Name(name.to_string(), before)
            }
        };
        revert.push(Change::Owner(back.clone()));
        revert.push(Change::Value(back));
    }
    for answer in &rule.answers {
        match answer {
            AnswerRewrite::Auto => {}
            AnswerRewrite::Name(of, to) => {
                revert.push(Change::Owner(NameRevert::Matching(of.clone(), to.clone())))
            }
            AnswerRewrite::Value(of, to) => {
                revert.push(Change::Value(NameRevert::Matching(of.clone(), to.clone())))
            }
        }
    }
    Ok(true)
}
