//! From octets to text. Manifests are UTF-8; what is not is an error at its line and column, and never a
//! reason to forget the objects around it.

use std::str::Utf8Error;
use std::sync::Arc;

use super::{Manifest, Problem, read};
use crate::api::yaml;
use crate::diagnostic::{Code, Position};

/// The longest text that is read: who reads a file need not read more than one octet behind it.
pub const MAX_BYTES: usize = yaml::MAX_BYTES;

/// The text that a file holds.
///
/// # Errors
/// It is too long, or not UTF-8.
pub fn text_of(octets: Vec<u8>, file: &str) -> Result<String, Box<Problem>> {
    if octets.len() > MAX_BYTES {
        return Err(Box::new(too_large(file)));
    }
    String::from_utf8(octets).map_err(|error| Box::new(problem(error.as_bytes(), error.utf8_error(), file)))
}

/// Reads a file's octets as [`read`] reads a text. Of what is not UTF-8 the objects are read as well as they can
/// be, and the manifest is not whole.
#[must_use]
pub fn read_octets(octets: &[u8], file: &str) -> Manifest {
    match std::str::from_utf8(octets) {
        _ if octets.len() > MAX_BYTES => Manifest {
            problems: vec![too_large(file)],
            ..Manifest::default()
        },
        Ok(text) => read(text, file),
        Err(error) => {
            let mut manifest = match encoding(octets) {
                Encoding::Unknown => read(&String::from_utf8_lossy(octets), file),
                Encoding::Utf16 => Manifest::default(),
            };
            manifest.problems.insert(0, problem(octets, error, file));
            manifest
        }
    }
}

enum Encoding {
    Utf16,
    Unknown,
}

/// UTF-16 begins with a byte order mark, wherever it was written by a program.
fn encoding(octets: &[u8]) -> Encoding {
    match octets {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Encoding::Utf16,
        _ => Encoding::Unknown,
    }
}

fn problem(octets: &[u8], error: Utf8Error, file: &str) -> Problem {
    let sound = String::from_utf8_lossy(&octets[..error.valid_up_to()]);
    let found = match encoding(octets) {
        Encoding::Utf16 => "UTF-16".to_owned(),
        Encoding::Unknown => format!(
            "the octet {:#04x}, which is not UTF-8",
            octets[error.valid_up_to()]
        ),
    };
    Problem {
        file: Arc::from(file),
        position: end_of(&sound),
        code: Code::Syntax,
        severity: Code::Syntax.severity(),
        field: String::new(),
        found,
        accepted: "text in UTF-8".to_owned(),
    }
}

fn too_large(file: &str) -> Problem {
    Problem {
        file: Arc::from(file),
        position: Position { line: 1, column: 1 },
        code: Code::TooLarge,
        severity: Code::TooLarge.severity(),
        field: String::new(),
        found: format!("more than {MAX_BYTES} octets"),
        accepted: "several smaller files".to_owned(),
    }
}

fn end_of(text: &str) -> Position {
    let last = text.rsplit('\n').next().unwrap_or_default();
    Position {
        line: text.matches('\n').count() + 1,
        column: last.chars().count() + 1,
    }
}
