//! `trace` and `pprof`: accepted, and said to do nothing.

use super::super::syntax::Directive;
use crate::config::corefile::position::{Error, Notes};

pub(super) fn trace(directive: &Directive, notes: &mut Notes) -> Result<(), Error> {
    directive.head.between(0, 2, "trace [ENDPOINT-TYPE] [ENDPOINT]")?;
    let text = "trace does nothing: dnsd sends no spans to a tracing service";
    notes.warn(&directive.head.name.place, text);
    Ok(())
}

pub(super) fn pprof(directive: &Directive, notes: &mut Notes) -> Result<(), Error> {
    directive.head.between(0, 1, "pprof [ADDRESS]")?;
    let text = "pprof does nothing: there is no Go runtime to be profiled";
    notes.warn(&directive.head.name.place, text);
    Ok(())
}
