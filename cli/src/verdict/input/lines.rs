//! JSON lines, read so that whatever is wrong is named by file, line and field.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

/// A line that was read, or a file that could not be.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read to its end.
    #[error("{file}: {cause}")]
    File {
        /// Its path, `-` for standard input.
        file: String,
        /// What the system said.
        cause: io::Error,
    },
    /// A line is not what it should be.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The path, `-` for standard input.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        problem: LineProblem,
    },
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum LineProblem {
    /// No JSON.
    #[error("not JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// No UTF-8.
    #[error("not UTF-8: {0}")]
    Encoding(#[from] std::str::Utf8Error),
    /// Nobody writes so much.
    #[error("a line of more than {MAX_LINE} octets; one JSON object a line is expected")]
    TooLong,
    /// JSON, but no object.
    #[error("one JSON object is expected on a line, found {0}")]
    NoObject(&'static str),
    /// A field is missing, unknown, or has a value that cannot be understood.
    #[error("field {field:?}: {problem}")]
    Field {
        /// Its name.
        field: String,
        /// What is wrong with it, and what would be accepted.
        problem: String,
    },
}

impl LineProblem {
    pub(crate) fn field(field: &str, problem: impl Into<String>) -> Self {
        Self::Field {
            field: field.to_owned(),
            problem: problem.into(),
        }
    }
}

/// Reads a file of JSON objects, one a line; empty lines are left out, `-` is standard input.
///
/// # Errors
/// The first line that is not as `parse` wants it.
pub fn read_lines<T>(
    path: &Path,
    parse: fn(&mut Fields) -> Result<T, LineProblem>,
) -> Result<Vec<T>, ReadError> {
    let file = path.display().to_string();
    let reader = open(path).map_err(|cause| ReadError::File {
        file: file.clone(),
        cause,
    })?;
    parse_lines(&file, reader, parse)
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(BufReader::new(File::open(path)?)))
}

/// Reads JSON objects, one a line, as [`read_lines`] does; the file's name is for messages.
///
/// # Errors
/// The first line that is not as `parse` wants it.
pub fn parse_lines<T>(
    file: &str,
    mut reader: impl BufRead,
    parse: fn(&mut Fields) -> Result<T, LineProblem>,
) -> Result<Vec<T>, ReadError> {
    let (mut parsed, mut octets) = (Vec::new(), Vec::new());
    for line in 1.. {
        octets.clear();
        // A device without line ends never ends: one octet behind the limit shows that it was passed.
        let mut limited = reader.by_ref().take(MAX_LINE + 1);
        let length = limited
            .read_until(b'\n', &mut octets)
            .map_err(|cause| ReadError::File {
                file: file.to_owned(),
                cause,
            })?;
        if length == 0 {
            break;
        }
        let object = parse_octets(&octets, parse).map_err(|problem| ReadError::Line {
            file: file.to_owned(),
            line,
            problem,
        })?;
        parsed.extend(object);
    }
    Ok(parsed)
}

/// The longest line: no probe and no record comes near.
const MAX_LINE: u64 = 1 << 20;

fn parse_octets<T>(
    octets: &[u8],
    parse: fn(&mut Fields) -> Result<T, LineProblem>,
) -> Result<Option<T>, LineProblem> {
    if u64::try_from(octets.len()).is_ok_and(|length| length > MAX_LINE) {
        return Err(LineProblem::TooLong);
    }
    match std::str::from_utf8(octets)?.trim() {
        "" => Ok(None),
        text => parse_line(text, parse).map(Some),
    }
}

pub(crate) fn parse_line<T>(
    text: &str,
    parse: fn(&mut Fields) -> Result<T, LineProblem>,
) -> Result<T, LineProblem> {
    match serde_json::from_str(text)? {
        Value::Object(map) => parse_object(map, parse),
        other => Err(LineProblem::NoObject(kind_of(&other))),
    }
}

/// Reads an object, every field of which must mean something.
pub(crate) fn parse_object<T>(
    map: Map<String, Value>,
    parse: fn(&mut Fields) -> Result<T, LineProblem>,
) -> Result<T, LineProblem> {
    let mut fields = Fields(map);
    let parsed = parse(&mut fields)?;
    match fields.0.keys().next() {
        Some(unknown) => Err(LineProblem::field(unknown, "unknown here")),
        None => Ok(parsed),
    }
}

/// The fields of a line that nobody took yet. `null` is absent, as it is in the Kubernetes API.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Takes a field that may be absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.0.remove(field).filter(|value| !value.is_null())
    }

    /// Takes a field that must be there.
    ///
    /// # Errors
    /// It is absent.
    pub fn require(&mut self, field: &str) -> Result<Value, LineProblem> {
        self.take(field)
            .ok_or_else(|| LineProblem::field(field, "missing"))
    }

    /// Takes a text that must be there, and reads it.
    ///
    /// # Errors
    /// It is absent, no string, or not a text of `T`.
    pub fn require_text<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        field: &str,
    ) -> Result<T, LineProblem> {
        let value = self.require(field)?;
        parse_text(field, &value)
    }
}

/// Reads a string field.
pub(crate) fn parse_text<T: std::str::FromStr<Err: std::fmt::Display>>(
    field: &str,
    value: &Value,
) -> Result<T, LineProblem> {
    let text = value.as_str().ok_or_else(|| {
        LineProblem::field(field, format!("a string is expected, found {}", kind_of(value)))
    })?;
    text.parse()
        .map_err(|problem| LineProblem::field(field, format!("{text:?}: {problem}")))
}

/// What people call a JSON value.
pub(crate) const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Result<Vec<u64>, String> {
        let parse = |fields: &mut Fields| {
            let value = fields.require("n")?;
            value.as_u64().ok_or_else(|| LineProblem::field("n", "no number"))
        };
        parse_lines("in.jsonl", text.as_bytes(), parse).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_lines_are_left_out() {
        assert_eq!(numbers("{\"n\":1}\n\n  \n{\"n\":2}\n"), Ok(vec![1, 2]));
    }

    #[test]
    fn what_is_wrong_is_named_by_file_line_and_field() {
        for (text, message) in [
            ("{\"n\":1}\n{\"n\":\"x\"}", "in.jsonl:2: field \"n\": no number"),
            ("{}", "in.jsonl:1: field \"n\": missing"),
            ("{\"n\":null}", "in.jsonl:1: field \"n\": missing"),
            ("{\"n\":1,\"m\":2}", "in.jsonl:1: field \"m\": unknown here"),
            (
                "[1]",
                "in.jsonl:1: one JSON object is expected on a line, found a list",
            ),
        ] {
            assert_eq!(numbers(text), Err(message.to_owned()), "{text}");
        }
        let long = format!("\n{{\"n\":\"{}\"}}", "x".repeat(2 << 20));
        assert_eq!(
            numbers(&long),
            Err(
                "in.jsonl:2: a line of more than 1048576 octets; one JSON object a line is expected"
                    .to_owned()
            )
        );
        let octets = b"{\"n\":1}\n\xff\n".as_slice();
        let problem = parse_lines("in.jsonl", octets, |fields: &mut Fields| fields.require("n")).unwrap_err();
        assert!(
            problem.to_string().starts_with("in.jsonl:2: not UTF-8: "),
            "{problem}"
        );
        assert!(
            numbers("{\"n\":1")
                .unwrap_err()
                .starts_with("in.jsonl:1: not JSON: ")
        );
    }
}
