//! `forward FROM TO… { … }`.

mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use crate::config::model::{Forward, HealthCheck, Policy, Tls, Zone};

use super::super::syntax::{Directive, Line};
use super::super::value::{self, RCODES};
use super::{BlockBuilder, accepted};
use crate::config::corefile::position::{Diagnostics, Error};

const USAGE: &str = "forward FROM TO...";
const HEALTH_CHECK: &str = "health_check DURATION [no_rec] [domain FQDN]";

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let head = &directive.head;
    let [from, to @ ..] = head.between(2, usize::MAX, USAGE)? else {
        return Err(head.name.error("forward: a word is missing behind it", USAGE));
    };
    let zones = from.zones(diagnostics)?;
    if zones.len() > 1 {
        let text = format!(
            "{} is {} zones: the first counts, {}",
            from.text,
            zones.len(),
            zones[0]
        );
        diagnostics.warn(&from.position, text);
    }
    let mut forward = Forward {
        origin: head.name.position.origin(),
        from: zones[0],
        ..Forward::default()
    };
    for line in directive.options() {
        option(line, &mut forward, diagnostics)?;
    }
    for token in to {
        let upstream = upstream::read(token)?;
        if !forward.to.iter().any(|other| other.host == upstream.host) {
            forward.to.push(upstream);
        }
    }
    check(head, to.len(), &forward)?;
    block_builder.block.forward.push(forward);
    Ok(())
}

fn option(line: &Line, forward: &mut Forward, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    match line.name.text.as_str() {
        "except" => forward
            .except
            .extend(value::zones(line.some("except NAME...")?, diagnostics)?),
        "force_tcp" => forward.force_tcp = flag(line)?,
        "prefer_udp" => forward.prefer_udp = flag(line)?,
        "expire" => forward.expire = line.one("expire DURATION")?.span("expire")?,
        "max_age" => forward.max_age = line.one("max_age DURATION")?.span("max_age")?,
        "max_idle_conns" => forward.max_idle_connections = count(line)?,
        "read_timeout" => forward.read_timeout = read_timeout(line)?,
        "max_fails" => forward.max_fails = small_count(line)?,
        "max_connect_attempts" => forward.max_connect_attempts = Some(small_count(line)?),
        "tls" => tls(line, &mut forward.tls)?,
        "tls_servername" => {
            forward.tls.server_name = Some(line.one("tls_servername NAME")?.text.clone());
        }
        "policy" => forward.policy = policy(line)?,
        "health_check" => health_check(line, &mut forward.health_check)?,
        "max_concurrent" => forward.max_concurrent = count(line)?,
        "next" => forward.next.extend(codes(line)?),
        "next_on_nodata" => forward.next_on_nodata = flag(line)?,
        "failfast_all_unhealthy_upstreams" => forward.fails_fast = flag(line)?,
        "failover" => forward.failover.extend(failover(line)?),
        "source_address" => {
            forward.source = Some(line.one("source_address IP")?.address("source_address")?);
        }
        "resolver" => forward.resolver = upstream::resolvers(line.some("resolver IP[:PORT]...")?)?,
        "doh_method" => {
            return Err(line.name.error(
                "forward: doh_method: upstreams are not asked over HTTPS",
                accepted::options("forward"),
            ));
        }
        _other => return Err(line.unknown("forward")),
    }
    Ok(())
}

fn flag(line: &Line) -> Result<bool, Error> {
    line.none(&line.name.text)?;
    Ok(true)
}

fn count(line: &Line) -> Result<usize, Error> {
    line.one(&format!("{} NUMBER", line.name.text))?
        .number(0, i64::MAX, &line.name.text)
}

fn small_count(line: &Line) -> Result<u32, Error> {
    line.one(&format!("{} NUMBER", line.name.text))?
        .number(0, i64::from(u32::MAX), &line.name.text)
}

fn read_timeout(line: &Line) -> Result<Duration, Error> {
    let token = line.one("read_timeout DURATION")?;
    let span = token.span("read_timeout")?;
    if span.is_zero() {
        return Err(token.error("read_timeout: nothing", "more than nothing, as in \"2s\""));
    }
    Ok(span)
}

fn tls(line: &Line, tls: &mut Tls) -> Result<(), Error> {
    let paths: Vec<PathBuf> = line
        .between(0, 3, "tls [CERT KEY] [CA]")?
        .iter()
        .map(|token| PathBuf::from(&token.text))
        .collect();
    (tls.identity, tls.authorities) = match paths.as_slice() {
        [] => (None, None),
        [authorities] => (None, Some(authorities.clone())),
        [certificate, key, rest @ ..] => (Some((certificate.clone(), key.clone())), rest.first().cloned()),
    };
    Ok(())
}

fn policy(line: &Line) -> Result<Policy, Error> {
    let token = line.one("policy random|round_robin|sequential")?;
    match token.text.as_str() {
        "random" => Ok(Policy::Random),
        "round_robin" => Ok(Policy::RoundRobin),
        "sequential" => Ok(Policy::Sequential),
        other => Err(token.error(format!("policy: {other:?}"), "random, round_robin or sequential")),
    }
}

fn health_check(line: &Line, check: &mut HealthCheck) -> Result<(), Error> {
    let (interval, words) = line
        .some(HEALTH_CHECK)?
        .split_first()
        .ok_or_else(|| line.name.error("health_check: a word is missing", HEALTH_CHECK))?;
    check.interval = interval.span("health_check")?;
    check.domain = *Zone::root().apex();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.text.as_str() {
            "no_rec" => check.recursion = false,
            "domain" => {
                let name = words
                    .next()
                    .ok_or_else(|| word.error("health_check: domain names nothing", HEALTH_CHECK))?;
                check.domain = name.name("health_check")?;
            }
            other => return Err(word.error(format!("health_check: {other:?}"), HEALTH_CHECK)),
        }
    }
    Ok(())
}

fn codes(line: &Line) -> Result<Vec<u8>, Error> {
    let usage = format!("{} RCODE...", line.name.text);
    line.some(&usage)?
        .iter()
        .map(|token| token.code(&line.name.text, &RCODES))
        .collect()
}

fn failover(line: &Line) -> Result<Vec<u8>, Error> {
    let codes = codes(line)?;
    if codes.contains(&0) {
        return Err(line.name.error("failover: NOERROR is an answer", "other codes"));
    }
    Ok(codes)
}

fn check(head: &Line, written: usize, forward: &Forward) -> Result<(), Error> {
    if written > Forward::MOST_UPSTREAMS {
        return Err(head.name.error(
            format!("forward: {written} upstreams"),
            format!("{} at most", Forward::MOST_UPSTREAMS),
        ));
    }
    match forward.contradiction() {
        Some((wrong, accepted)) => Err(head.name.error(format!("forward: {wrong}"), accepted)),
        None => Ok(()),
    }
}
