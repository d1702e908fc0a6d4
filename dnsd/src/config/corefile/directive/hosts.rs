//! `hosts [FILE [ZONES…]] { ADDRESS NAME…; ttl; no_reverse; reload; fallthrough; fallthrough_unsupported }`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::model::{Fallthrough, Hosts};
use crate::dns::message::WireName;

use super::super::syntax::{Directive, Line, Token};
use super::super::value;
use super::{BlockBuilder, accepted};
use crate::config::corefile::position::{Diagnostics, Error};

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let mut hosts = Hosts::default();
    if let Some((file, zones)) = directive.head.args.split_first() {
        hosts.file = PathBuf::from(&file.text);
        hosts.zones = value::zones(zones, diagnostics)?;
    }
    for line in directive.options() {
        option(line, &mut hosts, diagnostics)?;
    }
    if hosts.fallthrough_unsupported && hosts.fallthrough == Fallthrough::No {
        return Err(directive.head.name.error(
            "hosts: fallthrough_unsupported stands without fallthrough",
            "both, or neither",
        ));
    }
    block_builder.block.hosts = Some(hosts);
    Ok(())
}

fn option(line: &Line, hosts: &mut Hosts, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    match line.name.text.as_str() {
        "fallthrough" => hosts.fallthrough = fallthrough(&line.args, diagnostics)?,
        "fallthrough_unsupported" => {
            line.none("fallthrough_unsupported")?;
            hosts.fallthrough_unsupported = true;
        }
        "no_reverse" => {
            line.none("no_reverse")?;
            hosts.reverse = false;
        }
        "ttl" => {
            let seconds = line.one("ttl SECONDS")?.number(1, 65_535, "ttl")?;
            hosts.ttl = Duration::from_secs(seconds);
        }
        "reload" => hosts.reload = line.one("reload DURATION")?.span("reload")?,
        _inline if hosts.fallthrough == Fallthrough::No => hosts.inline.extend(inline(line, diagnostics)?),
        _other => {
            return Err(line.name.error(
                format!("hosts: there is no option {:?}", line.name.text),
                format!(
                    "{}; above fallthrough also lines of an address and names",
                    accepted::options("hosts")
                ),
            ));
        }
    }
    Ok(())
}

/// Without zones: all.
pub(super) fn fallthrough(zones: &[Token], diagnostics: &mut Diagnostics) -> Result<Fallthrough, Error> {
    if zones.is_empty() {
        return Ok(Fallthrough::All);
    }
    value::zones(zones, diagnostics).map(Fallthrough::In)
}

/// An address and its names, as in /etc/hosts. CoreDNS skips a line that is neither this nor an option.
fn inline(line: &Line, diagnostics: &mut Diagnostics) -> Result<Option<(IpAddr, Vec<WireName>)>, Error> {
    let address = line.name.text.split('%').next().unwrap_or_default();
    let Ok(address) = address.parse::<IpAddr>() else {
        let text = format!(
            "hosts: {:?} is neither an address nor an option: skipped",
            line.name.text
        );
        diagnostics.warn(&line.name.position, text);
        return Ok(None);
    };
    if line.args.is_empty() {
        diagnostics.warn(
            &line.name.position,
            format!("hosts: {address} has no names: skipped"),
        );
        return Ok(None);
    }
    let names: Result<Vec<WireName>, Error> = line.args.iter().map(|token| token.name("hosts")).collect();
    names.map(|names| Some((address, names)))
}
