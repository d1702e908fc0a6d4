//! `trace` and `pprof`: accepted with a warning that they do nothing.

use super::super::syntax::Directive;
use crate::config::corefile::position::{Diagnostics, Error};

pub(super) fn trace(directive: &Directive, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    directive.head.between(0, 2, "trace [ENDPOINT-TYPE] [ENDPOINT]")?;
    let text = "trace does nothing: dnsd sends no spans to a tracing service";
    diagnostics.warn(&directive.head.name.position, text);
    Ok(())
}

pub(super) fn pprof(directive: &Directive, diagnostics: &mut Diagnostics) -> Result<(), Error> {
    directive.head.between(0, 1, "pprof [ADDRESS]")?;
    let text = "pprof does nothing: there is no Go runtime to be profiled";
    diagnostics.warn(&directive.head.name.position, text);
    Ok(())
}
