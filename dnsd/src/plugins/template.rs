//! `template`: answers by pattern, in records with places to fill in.
//!
//! Of Go's text/template there is what the plugin's documentation uses: fields, `index`, `parseInt`, strings,
//! numbers, parentheses, pipes, comments and trimming. Anything else is refused when the file is read, with its
//! column: a record that would come out otherwise than in CoreDNS must not come out at all.

mod syntax;
mod placeholder;

use crate::config::model::{self, Expression, TemplateText, Zone};
use crate::dns::message::{
    ACCEPTED_TYPES, CLASS_IN, CLASSES, InvalidRecord, Query, ResourceRecord, Response, Sections, TYPES,
    WireName, is_known_type, kind, parse_record, rcode, ttl_of_text, type_number,
};

use super::{Outcome, QueryEndpoints, zone_of};
use placeholder::{Found, Place};
use syntax::Piece;

pub use syntax::Refused;

/// The class and the type that stand for any.
const ANY: u16 = kind::ANY;

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {reason}")]
pub struct InvalidTemplate {
    /// The character in the text, from 1.
    pub column: usize,
    /// What, and what would be accepted.
    pub reason: Reason,
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// In an action.
    #[error(transparent)]
    Action(#[from] Refused),
    /// In a record without places to fill in.
    #[error(transparent)]
    Record(#[from] InvalidRecord),
    /// A type that cannot be written.
    #[error("{0:?} is no type of records that can be written here; {accepted}", accepted = ACCEPTED_TYPES)]
    Type(String),
}

/// Checks a record of a template whose expressions are these.
///
/// # Errors
/// What is wrong, and where.
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

/// What the templates of a block make of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What it comes to.
    pub outcome: Outcome,
    /// The template that matched.
    pub matched: Option<MatchedTemplate>,
}

/// A template that matched: how it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedTemplate {
    /// Its zone.
    pub zone: Zone,
    /// The class of its answer.
    pub class: u16,
    /// The type of its answer.
    pub kind: u16,
    /// The record that could not be made.
    pub misfit: Option<Misfit>,
}

/// A record that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Where it belongs.
    pub section: &'static str,
    /// Its template as Go writes it.
    pub template: String,
    /// Whether its places were filled in: then it is no record.
    pub is_filled_in: bool,
}

/// Whether a template answers.
enum Verdict<'a> {
    Matches(Found<'a>),
    NotThis,
    Ends,
}

impl Templates {
    /// Of a plan.
    ///
    /// # Errors
    /// What is wrong with the first template that is wrong.
    pub fn new(plan: &[model::Template], block_zones: &[Zone]) -> Result<Self, InvalidTemplate> {
        let templates = plan.iter().map(Compiled::new).collect::<Result<_, _>>()?;
        Ok(Self {
            templates,
            block_zones: block_zones.to_vec(),
        })
    }

    /// Whether a record tells who asked (`.Remote`, `.Message.Id`): such an answer is for one client alone.
    #[must_use]
    pub fn tell_clients_apart(&self) -> bool {
        let tells = |pieces: &Vec<Piece>| pieces.iter().any(Piece::tells_the_client);
        self.templates.iter().any(|template| {
            let sections = [&template.answer, &template.additional, &template.authority];
            sections.into_iter().flatten().any(tells)
        })
    }

    /// Answers a query.
    #[must_use]
    pub fn answer(&self, query: &Query, endpoints: &QueryEndpoints, udp_size: u16) -> Answered {
        let name = query.question.name.to_string();
        for template in &self.templates {
            match template.verdict(&self.block_zones, query, endpoints, &name) {
                Verdict::Matches(found) => {
                    let (outcome, misfit) = match template.fill_in(&found, query, udp_size) {
                        Ok(outcome) => (outcome, None),
                        Err(misfit) => (Outcome::Fail, Some(misfit)),
                    };
                    return Answered {
                        outcome,
                        matched: Some(found.counted(misfit)),
                    };
                }
                Verdict::NotThis => {}
                Verdict::Ends => return Answered::by_none(Outcome::Fail),
            }
        }
        Answered::by_none(Outcome::Next)
    }
}

impl Answered {
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

    /// Class and type are asked of the query as CoreDNS does: one that asks for any matches each.
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
        let found = Found {
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
            Some(_) => Verdict::Matches(Found { captured, ..found }),
            None if plan.fallthrough.takes(&question.name) => Verdict::NotThis,
            None => Verdict::Ends,
        }
    }

    fn fill_in(&self, found: &Found<'_>, query: &Query, udp_size: u16) -> Result<Outcome, Misfit> {
        // CoreDNS writes no records into a failure.
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

    /// In the order in which CoreDNS makes them: the first that is none is counted.
    fn sections(&self, found: &Found<'_>) -> Result<Sections, Misfit> {
        let section = |name, records: &[Vec<Piece>]| -> Result<Vec<ResourceRecord>, Misfit> {
            let misfit = |pieces: &[Piece], is_filled_in| Misfit {
                section: name,
                template: syntax::rewritten(pieces),
                is_filled_in,
            };
            let record = |pieces: &Vec<Piece>| {
                let text = filled_in(pieces, found).ok_or_else(|| misfit(pieces, false))?;
                parse_record(&text).map_err(|_no_record| misfit(pieces, true))
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
        _places => check_type(&pieces).map_err(|(at, word)| wrong(at, Reason::Type(word)))?,
    }
    Ok(pieces)
}

/// Whether the type, if it is written out, is one that can be written: the first word behind the owner that is
/// neither a TTL nor a class.
fn check_type(pieces: &[Piece]) -> Result<(), (usize, String)> {
    let words = syntax::words(pieces);
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        match &word.text {
            _type if word.place == Some(&Place::Type) => return Ok(()),
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

fn filled_in(pieces: &[Piece], found: &Found<'_>) -> Option<String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(_, literal) => text.push_str(literal),
            Piece::Place(_, place, _) => text.push_str(&place.value(found)?.to_string()),
        }
    }
    Some(text)
}

/// Where an alias leads, for questions that want what is there.
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
