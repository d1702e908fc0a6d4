//! `trace` and `pprof`: accepted, and said to do nothing.

use super::super::place::{Error, Notes};
use super::super::syntax::Directive;

const TRACE_OPTIONS: [&str; 7] = [
    "every",
    "service",
    "client_server",
    "datadog_analytics_rate",
    "zipkin_max_backlog_size",
    "zipkin_max_batch_size",
    "zipkin_max_batch_interval",
];

pub(super) fn trace(directive: &Directive, notes: &mut Notes) -> Result<(), Error> {
    directive.head.between(0, 2, "trace [ENDPOINT-TYPE] [ENDPOINT]")?;
    for line in directive.options() {
        if !TRACE_OPTIONS.contains(&line.name.text.as_str()) {
            return Err(line.unknown("trace", &TRACE_OPTIONS.join(", ")));
        }
    }
    let text = "trace does nothing: dnsd sends no spans to a tracing service";
    notes.warn(&directive.head.name.place, text);
    Ok(())
}

pub(super) fn pprof(directive: &Directive, notes: &mut Notes) -> Result<(), Error> {
    directive.head.between(0, 1, "pprof [ADDRESS]")?;
    for line in directive.options() {
        if line.name.text != "block" {
            return Err(line.unknown("pprof", "block"));
        }
    }
    let text = "pprof does nothing: there is no Go runtime to be profiled";
    notes.warn(&directive.head.name.place, text);
    Ok(())
}
