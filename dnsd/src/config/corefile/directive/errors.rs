//! `errors [stdout] { stacktrace; consolidate DURATION REGEXP [LEVEL] [show_first] }`.

use crate::config::model::{Consolidate, ErrorLog, LogLevel};

use super::super::syntax::{Directive, Line, Token};
use super::BlockBuilder;
use crate::config::corefile::position::Error;

const CONSOLIDATE: &str = "consolidate DURATION REGEXP [warning|error|info|debug] [show_first]";

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    if let Some(file) = directive.head.at_most_one("errors [stdout]")?
        && file.text != "stdout"
    {
        return Err(file.error(format!("errors: {:?}", file.text), "stdout"));
    }
    let mut log = ErrorLog::default();
    for line in directive.options() {
        match line.name.text.as_str() {
            "stacktrace" => {
                line.none("stacktrace")?;
                log.stacktrace = true;
            }
            "consolidate" => log.consolidate.push(consolidate(line)?),
            _other => return Err(line.unknown("errors")),
        }
    }
    block_builder.block.errors = Some(log);
    Ok(())
}

fn consolidate(line: &Line) -> Result<Consolidate, Error> {
    let [every, errors, rest @ ..] = line.between(2, 4, CONSOLIDATE)? else {
        return Err(line.name.error("consolidate: a word is missing", CONSOLIDATE));
    };
    let mut consolidate = Consolidate {
        every: every.span("consolidate")?,
        errors: errors.expression("consolidate")?,
        level: LogLevel::Error,
        show_first: false,
    };
    let mut level_said = false;
    for word in rest {
        match level(word) {
            Some(_) if level_said => return Err(word.error("consolidate: a second level", CONSOLIDATE)),
            Some(_) if consolidate.show_first => {
                return Err(word.error("consolidate: the level stands behind show_first", CONSOLIDATE));
            }
            Some(level) => (consolidate.level, level_said) = (level, true),
            None if word.text == "show_first" => consolidate.show_first = true,
            None => return Err(word.error(format!("consolidate: {:?}", word.text), CONSOLIDATE)),
        }
    }
    Ok(consolidate)
}

fn level(token: &Token) -> Option<LogLevel> {
    match token.text.as_str() {
        "warning" => Some(LogLevel::Warning),
        "error" => Some(LogLevel::Error),
        "info" => Some(LogLevel::Info),
        "debug" => Some(LogLevel::Debug),
        _other => None,
    }
}
