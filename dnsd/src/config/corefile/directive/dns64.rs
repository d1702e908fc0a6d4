//! `dns64 [PREFIX] { prefix PREFIX; translate_all; allow_ipv4 }`.

use egret_shared::net::IpNet;

use crate::config::model::Dns64;

use super::super::syntax::{Directive, Line, Token};
use super::BlockBuilder;
use crate::config::corefile::position::Error;

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    let mut dns64 = block_builder.block.dns64.clone().unwrap_or_default();
    if let Some(token) = directive.head.at_most_one("dns64 [PREFIX]")? {
        // CoreDNS ignores the block after a prefix.
        directive.plain("dns64 PREFIX, or dns64 { prefix PREFIX ... }")?;
        dns64.prefix = prefix(token)?;
    }
    for line in directive.options() {
        option(line, &mut dns64)?;
    }
    block_builder.block.dns64 = Some(dns64);
    Ok(())
}

fn option(line: &Line, dns64: &mut Dns64) -> Result<(), Error> {
    match line.name.text.as_str() {
        "prefix" => dns64.prefix = prefix(line.one("prefix PREFIX")?)?,
        "translate_all" => {
            line.none("translate_all")?;
            dns64.translate_all = true;
        }
        "allow_ipv4" => {
            line.none("allow_ipv4")?;
            dns64.allow_ipv4 = true;
        }
        _other => return Err(line.unknown("dns64")),
    }
    Ok(())
}

fn prefix(token: &Token) -> Result<IpNet, Error> {
    let wrong = || token.error(format!("prefix: {:?}", token.text), Dns64::PREFIXES);
    let network = token.text.parse::<IpNet>().map_err(|_not_a_network| wrong())?;
    let dns64 = Dns64 {
        prefix: network.trunc(),
        ..Dns64::default()
    };
    if dns64.has_usable_prefix() {
        return Ok(dns64.prefix);
    }
    Err(wrong())
}
