//! `prometheus [ADDRESS] { runtime_metrics; tls FILE }`.

use super::super::syntax::Directive;
use super::Draft;
use crate::config::corefile::position::{Error, Notes};

const USAGE: &str = "prometheus [ADDRESS:PORT]";

/// CoreDNS' `localhost:9153`.
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 9153);

pub(super) fn read(directive: &Directive, draft: &mut Draft, notes: &mut Notes) -> Result<(), Error> {
    let address = directive.head.at_most_one(USAGE)?;
    let address = address.map(|token| token.endpoint("prometheus")).transpose()?;
    for line in directive.options() {
        match line.name.text.as_str() {
            "runtime_metrics" => {
                line.none("runtime_metrics")?;
                let text = "runtime_metrics does nothing: there is no Go runtime to be measured";
                notes.warn(&line.name.place, text);
            }
            "tls" => {
                return Err(line
                    .name
                    .error("prometheus: metrics are not served over TLS", "no option tls"));
            }
            _other => return Err(line.unknown("prometheus")),
        }
    }
    draft.block.prometheus = true;
    draft.prometheus = Some(address.unwrap_or_else(|| ADDRESS.into()));
    Ok(())
}
