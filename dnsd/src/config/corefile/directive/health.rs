//! `health [ADDRESS] { lameduck DURATION }`.

use super::super::syntax::Directive;
use super::BlockBuilder;
use crate::config::corefile::position::Error;

const USAGE: &str = "health [ADDRESS:PORT] { lameduck DURATION }";

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    // A repeated directive changes the earlier one.
    let mut health = block_builder.health.unwrap_or_default();
    if let Some(address) = directive.head.at_most_one(USAGE)? {
        health.address = address.endpoint("health")?;
    }
    for line in directive.options() {
        match line.name.text.as_str() {
            "lameduck" => health.lameduck = line.one("lameduck DURATION")?.span("lameduck")?,
            _other => return Err(line.unknown("health")),
        }
    }
    block_builder.health = Some(health);
    Ok(())
}
