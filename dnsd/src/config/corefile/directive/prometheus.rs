//! `prometheus [ADDRESS] { runtime_metrics; tls FILE }`.

use super::super::syntax::Directive;
use super::BlockBuilder;
use crate::config::corefile::position::{Diagnostics, Error};

const USAGE: &str = "prometheus [ADDRESS:PORT]";

/// CoreDNS' `localhost:9153`.
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 9153);

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let address = directive.head.at_most_one(USAGE)?;
    let address = address.map(|token| token.endpoint("prometheus")).transpose()?;
    for line in directive.options() {
        match line.name.text.as_str() {
            "runtime_metrics" => {
                line.none("runtime_metrics")?;
                let text = "runtime_metrics does nothing: there is no Go runtime to be measured";
                diagnostics.warn(&line.name.position, text);
            }
            "tls" => {
                return Err(line
                    .name
                    .error("prometheus: metrics are not served over TLS", "no option tls"));
            }
            _other => return Err(line.unknown("prometheus")),
        }
    }
    block_builder.block.prometheus = true;
    block_builder.prometheus = Some(address.unwrap_or_else(|| ADDRESS.into()));
    Ok(())
}
