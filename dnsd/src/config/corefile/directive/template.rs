//! `template CLASS TYPE [ZONES…] { match…; answer…; additional…; authority…; rcode; ederror; fallthrough }`.

use crate::config::model::{Fallthrough, Template, TemplateText};
use crate::plugins::template::check;

use super::super::syntax::{Directive, Line};
use super::super::value::{self, CLASSES, RCODES, TYPES};
use super::{BlockBuilder, accepted, hosts};
use crate::config::corefile::position::{Diagnostics, Error};

const USAGE: &str = "template CLASS TYPE [ZONES...]";
const RECORD: &str = "a record as in a zone file, with placeholders like {{ .Name }}";

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let args = directive.head.between(2, usize::MAX, USAGE)?;
    let mut template = Template {
        origin: directive.head.name.position.origin(),
        class: args[0].code("class", &CLASSES)?,
        kind: args[1].code("type", &TYPES)?,
        zones: value::zones(&args[2..], diagnostics)?,
        matches: Vec::new(),
        answer: Vec::new(),
        additional: Vec::new(),
        authority: Vec::new(),
        rcode: 0,
        extended_error: None,
        fallthrough: Fallthrough::No,
    };
    for line in directive.options() {
        option(line, &mut template, diagnostics)?;
    }
    check_records(directive.options(), &template)?;
    block_builder.block.template.push(template);
    Ok(())
}

fn option(line: &Line, template: &mut Template, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    match line.name.text.as_str() {
        "match" => {
            for token in line.some("match REGEXP...")? {
                template.matches.push(token.expression("match")?);
            }
        }
        "answer" => records(line, &mut template.answer)?,
        "additional" => records(line, &mut template.additional)?,
        "authority" => records(line, &mut template.authority)?,
        "rcode" => template.rcode = line.one("rcode CODE")?.code("rcode", &RCODES)?,
        "ederror" => template.extended_error = Some(extended_error(line)?),
        "fallthrough" => template.fallthrough = hosts::fallthrough(&line.args, diagnostics)?,
        "upstream" => diagnostics.warn(&line.name.position, "upstream does nothing, as in CoreDNS"),
        "var" | "expr" => {
            return Err(line.name.error(
                format!(
                    "template: {}: expressions of expr-lang are not evaluated",
                    line.name.text
                ),
                accepted::options("template"),
            ));
        }
        _other => return Err(line.unknown("template")),
    }
    Ok(())
}

fn records(line: &Line, records: &mut Vec<TemplateText>) -> Result<(), Error> {
    for token in line.some("answer|additional|authority RECORD...")? {
        records.push(TemplateText(token.text.clone()));
    }
    Ok(())
}

/// Checked last: a record may use groups of a later expression.
fn check_records(options: &[Line], template: &Template) -> Result<(), Error> {
    let lines = options
        .iter()
        .filter(|line| matches!(line.name.text.as_str(), "answer" | "additional" | "authority"));
    for token in lines.flat_map(|line| &line.args) {
        check(&TemplateText(token.text.clone()), &template.matches)
            .map_err(|error| token.error(format!("template: {error}"), RECORD))?;
    }
    Ok(())
}

fn extended_error(line: &Line) -> Result<(u16, String), Error> {
    let args = line.between(1, 2, "ederror CODE [TEXT]")?;
    let code = args[0].number(0, i64::from(u16::MAX), "ederror")?;
    let text = args.get(1).map(|token| token.text.clone());
    Ok((code, text.unwrap_or_default()))
}
