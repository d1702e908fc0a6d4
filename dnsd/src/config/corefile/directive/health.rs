//! `health [ADDRESS] { lameduck DURATION }`.

use super::super::syntax::Directive;
use super::Draft;
use crate::config::corefile::position::Error;

const USAGE: &str = "health [ADDRESS:PORT] { lameduck DURATION }";

pub(super) fn read(directive: &Directive, draft: &mut Draft) -> Result<(), Error> {
    // Said again, it changes what was said above it.
    let mut health = draft.health.unwrap_or_default();
    if let Some(address) = directive.head.at_most_one(USAGE)? {
        health.address = address.endpoint("health")?;
    }
    for line in directive.options() {
        match line.name.text.as_str() {
            "lameduck" => health.lameduck = line.one("lameduck DURATION")?.span("lameduck")?,
            _other => return Err(line.unknown("health")),
        }
    }
    draft.health = Some(health);
    Ok(())
}
