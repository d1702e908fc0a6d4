//! `serve_stale [DURATION] [immediate [RESPONSE_TTL [FAILURE_RECHECK]] | verify [VERIFY_TIMEOUT [RESPONSE_TTL
//! [FAILURE_RECHECK]]]]` and `serve_stale_policy prefer_positive`.

use std::time::Duration;

use crate::config::model::{CacheRules, Refresh, ServeStale};

use super::super::super::syntax::{Line, Token};
use crate::config::corefile::position::Error;

const USAGE: &str = "serve_stale [DURATION] [immediate [RESPONSE_TTL [FAILURE_RECHECK]] | verify [VERIFY_TIMEOUT \
     [RESPONSE_TTL [FAILURE_RECHECK]]]]";
const POLICY: &str = "serve_stale_policy prefer_positive";

pub(super) fn read(line: &Line) -> Result<ServeStale, Error> {
    let mut args = line.between(0, 5, USAGE)?.iter();
    let up_to = args.next().map(|token| token.span("serve_stale")).transpose()?;
    let mode = args.next();
    let refresh = match mode.map(|mode| mode.text.to_ascii_lowercase()).as_deref() {
        None | Some("immediate") => Refresh::Immediate,
        Some("verify") => Refresh::Verify {
            timeout: args.next().map(timeout).transpose()?.flatten(),
        },
        Some(other) => {
            let token = mode.unwrap_or(&line.name);
            return Err(token.error(format!("serve_stale: {other:?}"), "immediate or verify"));
        }
    };
    let stale = ServeStale {
        up_to: up_to.unwrap_or(Duration::from_secs(3_600)),
        refresh,
        response_ttl: args.next().map(response_ttl).transpose()?.unwrap_or_default(),
        failure_recheck: args.next().map(recheck).transpose()?.unwrap_or_default(),
        prefers_positive: false,
    };
    match args.next() {
        None => Ok(stale),
        Some(more) => Err(more.error(
            format!("serve_stale: {:?} is one word too many", more.text),
            USAGE,
        )),
    }
}

/// 0 means the timeout of the upstream.
fn timeout(token: &Token) -> Result<Option<Duration>, Error> {
    let span = token.span("serve_stale verify")?;
    Ok((!span.is_zero()).then_some(span))
}

fn response_ttl(token: &Token) -> Result<Duration, Error> {
    let span = token.span("the TTL of stale answers")?;
    if span.subsec_nanos() == 0 && span.as_secs() <= u64::from(u32::MAX) {
        return Ok(span);
    }
    Err(token.error(
        format!("the TTL of stale answers: {:?}", token.text),
        "whole seconds, fewer than 2^32",
    ))
}

/// The limit of RFC 8767 §5.
fn recheck(token: &Token) -> Result<Duration, Error> {
    token.span_within("failure recheck", Duration::ZERO, Duration::from_secs(300))
}

/// Applied last: it may precede `serve_stale`.
pub(super) fn policy(options: &[Line], rules: &mut CacheRules) -> Result<(), Error> {
    let mut policies = options
        .iter()
        .filter(|line| line.name.text == "serve_stale_policy");
    let Some(line) = policies.next() else {
        return Ok(());
    };
    if let Some(second) = policies.next() {
        return Err(second
            .name
            .error("serve_stale_policy is in this block already", "it once"));
    }
    let policy = line.one(POLICY)?;
    if !policy.text.eq_ignore_ascii_case("prefer_positive") {
        return Err(policy.error(
            format!("serve_stale_policy: {:?}", policy.text),
            "prefer_positive",
        ));
    }
    match &mut rules.serve_stale {
        Some(stale) => stale.prefers_positive = true,
        None => {
            return Err(line.name.error(
                "serve_stale_policy: nothing stale is served",
                "it beside serve_stale",
            ));
        }
    }
    Ok(())
}
