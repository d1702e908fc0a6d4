//! `reload [INTERVAL] [JITTER]`.

use std::time::Duration;

use crate::config::model::Reload;

use super::super::syntax::{Directive, Token};
use super::BlockBuilder;
use crate::config::corefile::position::{Diagnostics, Error};

const USAGE: &str = "reload [INTERVAL] [JITTER]";

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    directive.plain(USAGE)?;
    let default = Reload::default();
    let args = directive.head.between(0, 2, USAGE)?;
    let interval = match args.first() {
        Some(token) => interval(token)?,
        None => default.interval,
    };
    let jitter = match args.get(1) {
        Some(token) => {
            let jitter = token.span("the jitter")?;
            if !jitter.is_zero() && jitter < Reload::SHORTEST.1 {
                return Err(token.error(format!("the jitter: {:?}", token.text), "0, or 1s or more"));
            }
            jitter
        }
        None => default.jitter,
    };
    if let Some(token) = args.get(1)
        && jitter > interval / 2
    {
        diagnostics.warn(
            &token.position,
            "more than half of the interval: half of it is taken",
        );
    }
    let reload = Reload { interval, jitter };
    block_builder.reload = Some(reload.bounded());
    Ok(())
}

fn interval(token: &Token) -> Result<Duration, Error> {
    let interval = token.span("the interval")?;
    if interval < Reload::SHORTEST.0 {
        return Err(token.error(format!("the interval: {:?}", token.text), "2s or more"));
    }
    Ok(interval)
}
