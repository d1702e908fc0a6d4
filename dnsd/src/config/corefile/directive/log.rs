//! `log [NAMES…] [FORMAT] { class CLASS… }`.

use crate::config::model::{LogClass, LogFormat, QueryLog, Zone};

use super::super::syntax::{Directive, Token};
use super::Draft;
use crate::config::corefile::position::{Error, Notes};

const CLASSES: &str = "success, denial, error or all";

/// Places that are filled in.
const PLACES: &str = "type name class proto remote local size port duration rcode rsize >rflags >bufsize >do >id \
     >opcode common combined /log/class /log/type";

pub(super) fn read(directive: &Directive, draft: &mut Draft, notes: &mut Notes) -> Result<(), Error> {
    let (names, format) = split(&directive.head.args, notes);
    let mut classes = Vec::new();
    for line in directive.options() {
        match line.name.text.as_str() {
            "class" => classes.extend(line.some("class CLASS...")?.iter().map(class)),
            _other => return Err(line.unknown("log")),
        }
    }
    let classes: Vec<LogClass> = classes.into_iter().collect::<Result<_, _>>()?;
    draft.block.log.push(QueryLog {
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

/// The last of several words is a format if there is a brace in it.
fn split<'t>(args: &'t [Token], notes: &mut Notes) -> (&'t [Token], LogFormat) {
    match args {
        [names @ .., format] if !names.is_empty() && format.text.contains('{') => {
            note_unknown(format, notes);
            (names, LogFormat::from(format.text.clone()))
        }
        [only] if only.text.contains('{') => {
            let text = format!(
                "one word is a name, not a format: \"log . {}\" was meant?",
                only.text
            );
            notes.warn(&only.place, text);
            (args, common())
        }
        _names => (args, common()),
    }
}

/// What is not known stays as it is, as in CoreDNS; labels of metadata are always empty.
fn note_unknown(format: &Token, notes: &mut Notes) {
    for part in format.text.split('{').skip(1) {
        let Some((place, _)) = part.split_once('}') else {
            continue;
        };
        if PLACES.split_whitespace().any(|known| known == place) {
            continue;
        }
        let text = if place.starts_with('/') {
            format!("{{{place}}} is always -: node-local-dns compiles no metadata in")
        } else {
            format!("{{{place}}} is not filled in: there is no such place")
        };
        notes.warn(&format.place, text);
    }
}

/// Names, not reverse zones: CoreDNS takes them as they stand.
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
