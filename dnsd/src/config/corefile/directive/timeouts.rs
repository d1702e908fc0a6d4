//! `timeouts { read|write|idle DURATION; maxtcpqueries MAXIMUM }`.

use std::time::Duration;

use crate::config::model::go_duration::{self, parse_duration};

use super::super::syntax::{Directive, Line, Token};
use super::BlockBuilder;
use crate::config::corefile::position::Error;

const USAGE: &str = "timeouts { read DURATION | write DURATION | idle DURATION | maxtcpqueries MAXIMUM }";

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    directive.head.none(USAGE)?;
    if directive.options().is_empty() {
        return Err(directive.head.name.error("timeouts: no timeout is said", USAGE));
    }
    for line in directive.options() {
        option(line, block_builder)?;
    }
    Ok(())
}

fn option(line: &Line, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    let timeouts = &mut block_builder.block.timeouts;
    match line.name.text.as_str() {
        "read" => timeouts.read = timeout(line.one("read DURATION")?)?,
        "write" => timeouts.write = timeout(line.one("write DURATION")?)?,
        "idle" => timeouts.idle = timeout(line.one("idle DURATION")?)?,
        "maxtcpqueries" => timeouts.queries_per_connection = queries(line.one("maxtcpqueries MAXIMUM")?)?,
        _other => return Err(line.unknown("timeouts")),
    }
    Ok(())
}

/// A number without unit is in seconds.
fn timeout(token: &Token) -> Result<Duration, Error> {
    let is_number = token.text.parse::<i64>().is_ok();
    let text = if is_number {
        format!("{}s", token.text)
    } else {
        token.text.clone()
    };
    let span = parse_duration(&text)
        .ok_or_else(|| token.error(format!("timeouts: {:?}", token.text), go_duration::ACCEPTED))?;
    if (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&span) {
        return Ok(span);
    }
    Err(token.error(format!("timeouts: {:?}", token.text), "1s to 24h"))
}

fn queries(token: &Token) -> Result<Option<u32>, Error> {
    if token.text == "-1" {
        return Ok(None);
    }
    token
        .number(1, i64::from(u32::MAX), "maxtcpqueries (-1 for any number)")
        .map(Some)
}
