//! `template`: answers by pattern, from records with placeholders.
//!
//! The accepted part of Go's text/template is what the plugin's documentation uses: fields, `index`, `parseInt`,
//! strings, numbers, parentheses, pipes, comments and trimming. Anything else is refused when the file is read, with
//! its column, so that no record differs from CoreDNS'.

mod syntax;
mod placeholder;

use crate::config::model::{self, Expression, TemplateText, Zone};
use crate::dns::message::{
    ACCEPTED_TYPES, CLASS_IN, CLASSES, InvalidRecord, Query, ResourceRecord, Response, Sections, TYPES,
    WireName, is_known_type, kind, parse_record, rcode, ttl_of_text, type_number,
};

use super::{Outcome, QueryEndpoints, zone_of};
use placeholder::{MatchedQuery, Placeholder};
use syntax::Piece;

pub use syntax::Refused;

/// ANY, as a type and as a class.
const ANY: u16 = kind::ANY;

/// Why a template is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {reason}")]
pub struct InvalidTemplate {
    /// The character in the text, from 1.
    pub column: usize,
    /// What is wrong, and what is accepted.
    pub reason: Reason,
}

/// The error of a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// An invalid action.
    #[error(transparent)]
    Action(#[from] Refused),
    /// An invalid record without placeholders.
    #[error(transparent)]
    Record(#[from] InvalidRecord),
    /// A type that has no presentation format.
    #[error("{0:?} is no type of records that can be written here; {accepted}", accepted = ACCEPTED_TYPES)]
    Type(String),
}

/// Checks a record of a template; `matches` are its expressions.
///
/// # Errors
/// The error, with its column.
pub fn check(text: &TemplateText, matches: &[Expression]) -> Result<(), InvalidTemplate> {
    compile(text, matches).map(|_pieces| ())
}

/// The templates of a block.
#[derive(Debug)]
pub struct Templates {
    templates: Vec<Compiled>,
    block_zones: Vec<Zone>,
}

#[derive(Debug)]
struct Compiled {
    plan: model::Template,
    answer: Vec<Vec<Piece>>,
    additional: Vec<Vec<Piece>>,
    authority: Vec<Vec<Piece>>,
}

/// The result of the templates for a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateResult {
    /// The outcome.
    pub outcome: Outcome,
    /// The template that matched.
    pub matched: Option<MatchedTemplate>,
}

/// The labels by which a match is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedTemplate {
    /// The zone.
    pub zone: Zone,
    /// The class of the answer.
    pub class: u16,
    /// The type of the answer.
    pub kind: u16,
    /// The record that could not be made, if there is one.
    pub failure: Option<RecordFailure>,
}

/// A record that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFailure {
    /// Its section.
    pub section: &'static str,
    /// Its template in Go's spelling.
    pub template: String,
    /// Whether its placeholders were filled in, and the result is not a record.
    pub is_filled_in: bool,
}

/// Whether a template applies.
enum Verdict<'a> {
    Matches(MatchedQuery<'a>),
    NotThis,
    Ends,
}

impl Templates {
    /// From the plan of a block.
    ///
    /// # Errors
    /// The first invalid template.
    pub fn new(plan: &[model::Template], block_zones: &[Zone]) -> Result<Self, InvalidTemplate> {
        let templates = plan.iter().map(Compiled::new).collect::<Result<_, _>>()?;
        Ok(Self {
            templates,
            block_zones: block_zones.to_vec(),
        })
    }

    /// Whether a record contains data about the client (`.Remote`, `.Message.Id`): such an answer is for this client
    /// alone.
    #[must_use]
    pub fn depend_on_client(&self) -> bool {
        let tells = |pieces: &Vec<Piece>| pieces.iter().any(Piece::depends_on_client);
        self.templates.iter().any(|template| {
            let sections = [&template.answer, &template.additional, &template.authority];
            sections.into_iter().flatten().any(tells)
        })
    }

    /// Answers a query.
    #[must_use]
    pub fn answer(&self, query: &Query, endpoints: &QueryEndpoints, udp_size: u16) -> TemplateResult {
        let name = query.question.name.to_string();
        for template in &self.templates {
            match template.verdict(&self.block_zones, query, endpoints, &name) {
                Verdict::Matches(found) => {
                    let (outcome, failure) = match template.fill_in(&found, query, udp_size) {
                        Ok(outcome) => (outcome, None),
                        Err(failure) => (Outcome::Fail, Some(failure)),
                    };
                    return TemplateResult {
                        outcome,
                        matched: Some(found.counted(failure)),
                    };
                }
                Verdict::NotThis => {}
                Verdict::Ends => return TemplateResult::by_none(Outcome::Fail),
            }
        }
        TemplateResult::by_none(Outcome::Next)
    }
}

impl TemplateResult {
    const fn by_none(outcome: Outcome) -> Self {
        Self {
            outcome,
            matched: None,
        }
    }
}

impl Compiled {
    fn new(plan: &model::Template) -> Result<Self, InvalidTemplate> {
        let compile = |texts: &[TemplateText]| {
            let compiled = texts.iter().map(|text| compile(text, &plan.matches));
            compiled.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            answer: compile(&plan.answer)?,
            additional: compile(&plan.additional)?,
            authority: compile(&plan.authority)?,
            plan: plan.clone(),
        })
    }

    /// Class and type are compared as in CoreDNS: ANY in the query matches every template.
    fn verdict<'a>(
        &'a self,
        block_zones: &'a [Zone],
        query: &'a Query<'a>,
        endpoints: &'a QueryEndpoints,
        name: &'a str,
    ) -> Verdict<'a> {
        let (plan, question) = (&self.plan, &query.question);
        let Some(zone) = zone_of(&plan.zones, block_zones, &question.name) else {
            return Verdict::NotThis;
        };
        let is_asked = |wanted: u16, asked: u16| wanted == ANY || asked == ANY || wanted == asked;
        if !is_asked(plan.class, question.class) || !is_asked(plan.kind, question.kind) {
            return Verdict::NotThis;
        }
        let found = MatchedQuery {
            zone,
            name,
            class: if question.class == ANY {
                plan.class
            } else {
                question.class
            },
            kind: if question.kind == ANY {
                plan.kind
            } else {
                question.kind
            },
            query,
            endpoints,
            captured: None,
        };
        if plan.matches.is_empty() {
            return Verdict::Matches(found);
        }
        let captured = plan.matches.iter().find_map(|expression| {
            let groups = expression.regex().captures(name)?;
            Some((expression, groups))
        });
        match captured {
            Some(_) => Verdict::Matches(MatchedQuery { captured, ..found }),
            None if plan.fallthrough.takes(&question.name) => Verdict::NotThis,
            None => Verdict::Ends,
        }
    }

    fn fill_in(
        &self,
        found: &MatchedQuery<'_>,
        query: &Query,
        udp_size: u16,
    ) -> Result<Outcome, RecordFailure> {
        // CoreDNS writes no records into SERVFAIL.
        let is_failure = self.plan.rcode == rcode::SERVFAIL;
        let sections = if is_failure {
            Sections::default()
        } else {
            self.sections(found)?
        };
        let target = target(query, &sections.answer);
        let response = Response {
            rcode: self.plan.rcode.into(),
            sections,
            extended_error: self.plan.extended_error.clone(),
            ..Response::own(Vec::new())
        };
        Ok(match (response.write(query, udp_size), target) {
            (Ok(octets), Some(target)) => Outcome::Follow(octets, Box::new(target)),
            (Ok(octets), None) => Outcome::Answer(octets),
            (Err(_too_long), _) => Outcome::Fail,
        })
    }

    /// In CoreDNS' order: the first record that fails is counted.
    fn sections(&self, found: &MatchedQuery<'_>) -> Result<Sections, RecordFailure> {
        let section = |name, records: &[Vec<Piece>]| -> Result<Vec<ResourceRecord>, RecordFailure> {
            let failure = |pieces: &[Piece], is_filled_in| RecordFailure {
                section: name,
                template: syntax::rewritten(pieces),
                is_filled_in,
            };
            let record = |pieces: &Vec<Piece>| {
                let text = filled_in(pieces, found).ok_or_else(|| failure(pieces, false))?;
                parse_record(&text).map_err(|_no_record| failure(pieces, true))
            };
            records.iter().map(record).collect()
        };
        let (answer, additional) = (
            section("answer", &self.answer)?,
            section("additional", &self.additional)?,
        );
        Ok(Sections {
            answer,
            authority: section("authority", &self.authority)?,
            additional,
        })
    }
}

fn compile(text: &TemplateText, matches: &[Expression]) -> Result<Vec<Piece>, InvalidTemplate> {
    let text = text.0.as_str();
    let wrong = |at: usize, reason| InvalidTemplate {
        column: 1 + text.get(..at).unwrap_or(text).chars().count(),
        reason,
    };
    let pieces = syntax::parse(text, matches).map_err(|(at, refused)| wrong(at, refused.into()))?;
    match pieces.as_slice() {
        [Piece::Text(at, whole)] => {
            parse_record(whole).map_err(|invalid| wrong(at + invalid.at, invalid.into()))?;
        }
        [] => parse_record("")
            .map(drop)
            .map_err(|invalid| wrong(invalid.at, invalid.into()))?,
        _with_placeholders => check_type(&pieces).map_err(|(at, word)| wrong(at, Reason::Type(word)))?,
    }
    Ok(pieces)
}

/// Checks the type, if it is literal: the first token after the owner that is neither a TTL nor a class.
fn check_type(pieces: &[Piece]) -> Result<(), (usize, String)> {
    let words = syntax::words(pieces);
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match &word.text {
            _type if word.placeholder == Some(&Placeholder::Type) => return Ok(()),
            None => {}
            Some(text) if ttl_of_text(text).is_some() => {}
            Some(text) => match type_number(text).filter(|kind| *kind != ANY) {
                Some(kind) => {
                    let is_generic = rest
                        .next()
                        .is_some_and(|next| next.text.as_deref() == Some("\\#"));
                    let is_writable = is_known_type(kind) || is_generic;
                    return is_writable.then_some(()).ok_or_else(|| (word.at, text.clone()));
                }
                None if CLASSES.number(text).is_some() => {}
                None => return Err((word.at, text.clone())),
            },
        }
    }
    Ok(())
}

fn filled_in(pieces: &[Piece], found: &MatchedQuery<'_>) -> Option<String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(_, literal) => text.push_str(literal),
            Piece::Placeholder(_, placeholder, _) => text.push_str(&placeholder.value(found)?.to_string()),
        }
    }
    Some(text)
}

/// The target of an alias, if the query asks for another type.
fn target(query: &Query, answers: &[ResourceRecord]) -> Option<WireName> {
    let question = &query.question;
    let is_for_addresses = matches!(question.kind, kind::A | kind::AAAA) && question.class == CLASS_IN;
    let mut aliases = answers.iter().rev().filter(|record| record.kind == kind::CNAME);
    aliases
        .next()
        .filter(|_| is_for_addresses)
        .and_then(|alias| alias.data.first_name().copied())
}

fn type_name(kind: u16) -> String {
    TYPES.name(kind).unwrap_or_default().to_owned()
}

fn class_name(class: u16) -> String {
    CLASSES.name(class).unwrap_or_default().to_owned()
}
