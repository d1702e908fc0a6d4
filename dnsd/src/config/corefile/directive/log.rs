//! `log [NAMES…] [FORMAT] { class CLASS… }`.

use crate::config::model::{LogClass, LogFormat, QueryLog, Zone};

use super::super::syntax::{Directive, Token};
use super::BlockBuilder;
use crate::config::corefile::position::{Diagnostics, Error};

const CLASSES: &str = "success, denial, error or all";

/// The known placeholders.
const PLACEHOLDERS: &str = "type name class proto remote local size port duration rcode rsize >rflags >bufsize >do >id \
     >opcode common combined /log/class /log/type";

pub(super) fn read(
    directive: &Directive,
    block_builder: &mut BlockBuilder,
    diagnostics: &mut Diagnostics,
) -> Result<(), Error> {
    let (names, format) = split(&directive.head.args, diagnostics);
    let mut classes = Vec::new();
    for line in directive.options() {
        match line.name.text.as_str() {
            "class" => classes.extend(line.some("class CLASS...")?.iter().map(class)),
            _other => return Err(line.unknown("log")),
        }
    }
    let classes: Vec<LogClass> = classes.into_iter().collect::<Result<_, _>>()?;
    block_builder.block.log.push(QueryLog {
        zones: if names.is_empty() {
            vec![Zone::root()]
        } else {
            scopes(names)?
        },
        format,
        classes: if classes.is_empty() {
            vec![LogClass::All]
        } else {
            classes
        },
    });
    Ok(())
}

/// The last argument is a format if it contains a brace.
fn split<'t>(args: &'t [Token], diagnostics: &mut Diagnostics) -> (&'t [Token], LogFormat) {
    match args {
        [names @ .., format] if !names.is_empty() && format.text.contains('{') => {
            note_unknown(format, diagnostics);
            (names, LogFormat::from(format.text.clone()))
        }
        [only] if only.text.contains('{') => {
            let text = format!(
                "one word is a name, not a format: \"log . {}\" was meant?",
                only.text
            );
            diagnostics.warn(&only.position, text);
            (args, common())
        }
        _names => (args, common()),
    }
}

/// Warns of placeholders that stay as they are, and of metadata, which is always empty, as in CoreDNS.
fn note_unknown(format: &Token, diagnostics: &mut Diagnostics) {
    for part in format.text.split('{').skip(1) {
        let Some((placeholder, _)) = part.split_once('}') else {
            continue;
        };
        if PLACEHOLDERS.split_whitespace().any(|known| known == placeholder) {
            continue;
        }
        let text = if placeholder.starts_with('/') {
            format!("{{{placeholder}}} is always -: node-local-dns compiles no metadata in")
        } else {
            format!("{{{placeholder}}} is not filled in: there is no such placeholder")
        };
        diagnostics.warn(&format.position, text);
    }
}

/// Names, not reverse zones, as in CoreDNS.
fn scopes(names: &[Token]) -> Result<Vec<Zone>, Error> {
    names
        .iter()
        .map(|token| token.name("log").map(Zone::new))
        .collect()
}

fn common() -> LogFormat {
    LogFormat(LogFormat::COMMON.to_owned())
}

fn class(token: &Token) -> Result<LogClass, Error> {
    match token.text.as_str() {
        "success" => Ok(LogClass::Success),
        "denial" => Ok(LogClass::Denial),
        "error" => Ok(LogClass::Error),
        "all" => Ok(LogClass::All),
        other => Err(token.error(format!("class: {other:?}"), CLASSES)),
    }
}
