//! `cache [TTL] [ZONES…] { success|denial …; prefetch …; serve_stale …; servfail …; disable …; keepttl }`.

mod stale;

use std::time::Duration;

use crate::config::model::{CacheRules, Capacity, Disabled, Prefetch, Zone};

use super::super::syntax::{Directive, Line, Token};
use super::super::value;
use super::BlockBuilder;
use crate::config::corefile::position::{Diagnostics, Error};

const PREFETCH: &str = "prefetch AMOUNT [DURATION] [PERCENTAGE%]";
const DISABLE: &str = "disable success|denial [ZONES...]";

/// The longest (RFC 2308 §7.1).
const LONGEST_FAILURE: Duration = Duration::from_secs(300);

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let mut rules = CacheRules::default();
    let zones = match directive.head.args.as_slice() {
        [ttl, zones @ ..] if ttl.text.parse::<i64>().is_ok() => {
            let ttl = ttl.seconds(1, "cache TTL")?;
            (rules.success.max_ttl, rules.denial.max_ttl) = (ttl, ttl);
            zones
        }
        zones => zones,
    };
    rules.zones = value::zones(zones, diagnostics)?;
    for line in directive.options() {
        option(line, &mut rules, diagnostics)?;
    }
    stale::policy(directive.options(), &mut rules)?;
    block_builder.block.cache = Some(rules);
    Ok(())
}

fn option(line: &Line, rules: &mut CacheRules, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    match line.name.text.as_str() {
        "success" => capacity(line, &mut rules.success, diagnostics)?,
        "denial" => capacity(line, &mut rules.denial, diagnostics)?,
        "prefetch" => rules.prefetch = prefetch(line, rules.prefetch)?,
        "serve_stale" => rules.serve_stale = Some(stale::read(line)?),
        // Needs serve_stale, which may follow.
        "serve_stale_policy" => {}
        "servfail" => {
            rules.servfail =
                line.one("servfail DURATION")?
                    .span_within("servfail", Duration::ZERO, LONGEST_FAILURE)?;
        }
        "disable" => disable(line, &mut rules.disabled)?,
        "keepttl" => {
            line.none("keepttl")?;
            rules.keep_ttl = true;
        }
        _other => return Err(line.unknown("cache")),
    }
    Ok(())
}

fn capacity(line: &Line, capacity: &mut Capacity, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    let args = line.between(1, 3, "success|denial CAPACITY [TTL] [MINTTL]")?;
    let most = i64::from(u32::MAX);
    capacity.entries = args[0].number(-most, most, "capacity").map(whole_shards)?;
    if let Some(ttl) = args.get(1) {
        capacity.max_ttl = ttl.seconds(1, "TTL")?;
    }
    if let Some(ttl) = args.get(2) {
        capacity.min_ttl = ttl.seconds(0, "minimum TTL")?;
        if capacity.min_ttl > capacity.max_ttl {
            diagnostics.warn(
                &ttl.position,
                "the minimum TTL is above the TTL: the minimum counts",
            );
        }
    }
    Ok(())
}

/// CoreDNS' cache has 256 shards of four answers or more.
fn whole_shards(entries: i64) -> usize {
    let shard = (entries / 256).max(4);
    usize::try_from(shard * 256).expect("it is 1024 or more, and no more than 2^32")
}

/// An amount of 0 turns prefetching off.
fn prefetch(line: &Line, said: Option<Prefetch>) -> Result<Option<Prefetch>, Error> {
    let args = line.between(1, 3, PREFETCH)?;
    let mut prefetch = said.unwrap_or_default();
    prefetch.amount = args[0].number(0, i64::from(u32::MAX), "prefetch")?;
    if let Some(within) = args.get(1) {
        prefetch.within = within.span("prefetch")?;
    }
    if let Some(token) = args.get(2) {
        prefetch.percentage = percentage(token)?;
    }
    Ok((prefetch.amount > 0).then_some(prefetch))
}

fn percentage(token: &Token) -> Result<u8, Error> {
    let number = token.text.strip_suffix('%');
    let number = number.and_then(|number| number.parse().ok());
    number
        .filter(|number| (10..=90).contains(number))
        .ok_or_else(|| token.error(format!("prefetch: {:?}", token.text), "10% to 90%"))
}

fn disable(line: &Line, disabled: &mut Disabled) -> Result<(), Error> {
    let (what, zones) = line
        .some(DISABLE)?
        .split_first()
        .ok_or_else(|| line.name.error("disable: a word is missing behind it", DISABLE))?;
    let zones: Result<Vec<Zone>, Error> = match zones {
        [] => Ok(vec![Zone::root()]),
        // Names, not reverse zones, as in CoreDNS.
        zones => zones
            .iter()
            .map(|zone| zone.name("disable").map(Zone::new))
            .collect(),
    };
    let of = match what.text.as_str() {
        "success" => &mut disabled.success,
        "denial" => &mut disabled.denial,
        other => return Err(what.error(format!("disable: {other:?}"), DISABLE)),
    };
    *of = Some(zones?);
    Ok(())
}
