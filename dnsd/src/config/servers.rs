//! Server blocks of the YAML file: checks that concern several fields.

use std::net::SocketAddr;

use crate::config::model::{
    Block, Dns64, Fallthrough, Forward, Health, Hosts, NameMatch, Plan, Reload, Rewrite, RewriteRule,
    Template,
};
use crate::plugins::template::check;

use super::Invalid;

/// The fields of a file with server blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Servers {
    pub(super) servers: Vec<Block>,
    pub(super) reload: Option<Reload>,
    pub(super) health: Vec<Health>,
    pub(super) prometheus: Vec<SocketAddr>,
}

impl Servers {
    pub(super) fn plan(self) -> Result<Plan, Invalid> {
        let mut blocks = self.servers;
        if blocks.is_empty() {
            return Err(invalid("servers", "there is none", "one or more"));
        }
        for (index, block) in blocks.iter_mut().enumerate() {
            let path = format!("servers[{index}]");
            finish(block, &path)?;
            block.origin = path;
        }
        check_doubles(&blocks)?;
        Ok(Plan {
            blocks,
            reload: self.reload.map(checked_reload).transpose()?,
            health: self.health,
            prometheus: self.prometheus,
        })
    }
}

fn invalid(field: impl Into<String>, wrong: impl Into<String>, accepted: impl Into<String>) -> Invalid {
    Invalid::Block {
        field: field.into(),
        wrong: wrong.into(),
        accepted: accepted.into(),
    }
}

fn finish(block: &mut Block, path: &str) -> Result<(), Invalid> {
    if block.zones.is_empty() {
        return Err(invalid(
            format!("{path}.zones"),
            "there is none",
            "one or more, \".\" for all names",
        ));
    }
    if block.port == 0 {
        return Err(invalid(format!("{path}.port"), "0", "1 to 65535"));
    }
    if block.timeouts.queries_per_connection == Some(0) {
        let field = format!("{path}.timeouts.queriesPerConnection");
        return Err(invalid(field, "0", "1 or more, or nothing for any number"));
    }
    finish_tls(block, path)?;
    if let Some(index) = block.bind.iter().position(|bind| bind.to.is_empty()) {
        let field = format!("{path}.bind[{index}].to");
        return Err(invalid(field, "there is none", "addresses or interfaces"));
    }
    for (index, log) in block.log.iter().enumerate() {
        if log.zones.is_empty() || log.classes.is_empty() {
            let field = format!("{path}.log[{index}]");
            return Err(invalid(
                field,
                "no zone or no class",
                "one or more of both, or nothing for all",
            ));
        }
    }
    if let Some(dns64) = &block.dns64 {
        check_prefix(dns64, path)?;
    }
    if block
        .cache
        .as_ref()
        .and_then(|cache| cache.prefetch)
        .is_some_and(|prefetch| prefetch.amount == 0)
    {
        return Err(invalid(
            format!("{path}.cache.prefetch.amount"),
            "0",
            "1 or more, or no prefetch",
        ));
    }
    for (index, rewrite) in block.rewrite.iter_mut().enumerate() {
        finish_rewrite(rewrite, &format!("{path}.rewrite[{index}]"))?;
    }
    for (index, template) in block.template.iter_mut().enumerate() {
        finish_template(template, &format!("{path}.template[{index}]"))?;
    }
    if let Some(hosts) = &block.hosts {
        check_hosts(hosts, path)?;
    }
    for (index, forward) in block.forward.iter_mut().enumerate() {
        finish_forward(forward, &format!("{path}.forward[{index}]"))?;
    }
    Ok(())
}

/// An encrypted block needs a certificate; others have none.
fn finish_tls(block: &mut Block, path: &str) -> Result<(), Invalid> {
    let (field, scheme) = (format!("{path}.tls"), block.scheme);
    match &mut block.tls {
        None if scheme.is_encrypted() => {
            let wrong = format!("there is none, and the scheme is {}", scheme.name());
            Err(invalid(field, wrong, "certificate and key, each a file in PEM"))
        }
        Some(_) if !scheme.is_encrypted() => {
            let accepted = "it where the scheme is tls, https or quic; upstreams have a forward[].tls";
            Err(invalid(field, "the scheme is dns", accepted))
        }
        Some(tls) => {
            field.clone_into(&mut tls.origin);
            Ok(())
        }
        None => Ok(()),
    }
}

fn check_prefix(dns64: &Dns64, path: &str) -> Result<(), Invalid> {
    if dns64.has_usable_prefix() {
        return Ok(());
    }
    let field = format!("{path}.dns64.prefix");
    Err(invalid(field, dns64.prefix.to_string(), Dns64::PREFIXES))
}

fn check_hosts(hosts: &Hosts, path: &str) -> Result<(), Invalid> {
    if hosts.fallthrough_unsupported && hosts.fallthrough == Fallthrough::No {
        let field = format!("{path}.hosts.fallthroughUnsupported");
        return Err(invalid(field, "true without fallthrough", "both, or neither"));
    }
    Ok(())
}

fn finish_forward(forward: &mut Forward, path: &str) -> Result<(), Invalid> {
    if let Some((wrong, accepted)) = forward.contradiction() {
        return Err(invalid(path, wrong, accepted));
    }
    path.clone_into(&mut forward.origin);
    Ok(())
}

fn finish_template(template: &mut Template, path: &str) -> Result<(), Invalid> {
    let records = [&template.answer, &template.additional, &template.authority];
    for record in records.into_iter().flatten() {
        check(record, &template.matches).map_err(|error| {
            let accepted = "a record as in a zone file, with placeholders like {{ .Name }}";
            invalid(path, format!("{:?}: {error}", record.0), accepted)
        })?;
    }
    path.clone_into(&mut template.origin);
    Ok(())
}

/// Names are in lower case with a final dot; parts of names and expressions stay as written.
fn finish_rewrite(rewrite: &mut Rewrite, path: &str) -> Result<(), Invalid> {
    match &mut rewrite.rule {
        RewriteRule::Name(name) => {
            finish_match(&mut name.of);
            let is_whole = !matches!(name.of, NameMatch::Prefix(_) | NameMatch::Substring(_));
            name.to = lower(&name.to, is_whole);
            check_groups(&name.of, &name.to, path)
        }
        RewriteRule::Cname { of, to } => {
            finish_match(of);
            *to = lower(to, matches!(of, NameMatch::Exact(_)));
            Ok(())
        }
        RewriteRule::Ttl { of, to } => {
            finish_match(of);
            if to.at_least > to.at_most {
                return Err(invalid(path, "atLeast is above atMost", "it below"));
            }
            Ok(())
        }
        RewriteRule::Rcode { of, from: _, to: _ } => {
            finish_match(of);
            Ok(())
        }
        RewriteRule::Type { from: _, to: _ }
        | RewriteRule::Class { from: _, to: _ }
        | RewriteRule::Edns {
            field: _,
            action: _,
            revert: _,
        } => Ok(()),
    }
}

fn finish_match(of: &mut NameMatch) {
    match of {
        NameMatch::Exact(name) => *name = lower(name, true),
        NameMatch::Prefix(part) | NameMatch::Suffix(part) | NameMatch::Substring(part) => {
            *part = lower(part, false);
        }
        NameMatch::Regex(_) => {}
    }
}

fn lower(name: &str, is_whole: bool) -> String {
    let name = name.to_ascii_lowercase();
    if is_whole && !name.ends_with('.') {
        name + "."
    } else {
        name
    }
}

fn check_groups(of: &NameMatch, to: &str, path: &str) -> Result<(), Invalid> {
    match of {
        NameMatch::Regex(expression) if !expression.has_groups_for(to) => {
            let wrong = format!("{to:?} uses more groups than the expression has");
            Err(invalid(
                format!("{path}.rule.name.to"),
                wrong,
                "as many as it has, {1} for the first",
            ))
        }
        NameMatch::Regex(_)
        | NameMatch::Exact(_)
        | NameMatch::Prefix(_)
        | NameMatch::Suffix(_)
        | NameMatch::Substring(_) => Ok(()),
    }
}

fn checked_reload(reload: Reload) -> Result<Reload, Invalid> {
    let (interval, jitter) = Reload::SHORTEST;
    if reload.interval < interval {
        return Err(invalid("reload.interval", "too short", "2s or more"));
    }
    if !reload.jitter.is_zero() && reload.jitter < jitter {
        return Err(invalid("reload.jitter", "too short", "0s, or 1s or more"));
    }
    Ok(reload.bounded())
}

/// A zone that is served twice on a port and address.
fn check_doubles(blocks: &[Block]) -> Result<(), Invalid> {
    for (index, block) in blocks.iter().enumerate() {
        let other = blocks[..index]
            .iter()
            .position(|other| other.contradicts_tls(block));
        if let Some(other) = other {
            let wrong = format!("servers[{other}] has another on the same port and address");
            let accepted = "the same in all blocks of a port and an address";
            return Err(invalid(format!("servers[{index}].tls"), wrong, accepted));
        }
        for (at, zone) in block.zones.iter().enumerate() {
            let field = || format!("servers[{index}].zones[{at}]");
            if block.zones[..at].contains(zone) {
                return Err(invalid(field(), format!("{zone} is there twice"), "it once"));
            }
            let other = blocks[..index]
                .iter()
                .position(|other| other.shares_socket(block) && other.zones.contains(zone));
            if let Some(other) = other {
                let wrong = format!("{zone} is served by servers[{other}] on the same port and address");
                return Err(invalid(
                    field(),
                    wrong,
                    "each zone once for a port and an address",
                ));
            }
        }
    }
    Ok(())
}
