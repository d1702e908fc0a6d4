//! Values from elsewhere in the log: a terminal does not obey them, and none begins a line of the log.

use std::cell::Cell;
use std::io::{self, Write};

use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::escape;

/// Fields as text. Lines of a message that follow its first one are indented.
pub(super) fn fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    JsonFields
}

struct JsonFields;

impl<'a> FormatFields<'a> for JsonFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> std::fmt::Result {
        let is_first = Cell::new(true);
        debug_fn(move |writer: &mut Writer<'_>, field, value| {
            let between = if is_first.take() { "" } else { " " };
            let value = format!("{value:?}");
            match field.name() {
                "message" => write!(
                    writer,
                    "{between}{}",
                    escape::lines(&value).replace('\n', "\n    ")
                ),
                name => write!(writer, "{between}{name}={}", escape::line(&value)),
            }
        })
        .format_fields(writer, fields)
    }
}

/// Where lines of JSON go.
#[derive(Debug)]
pub(super) struct JsonWriter<W>(pub(super) W);

impl<W: Write> Write for JsonWriter<W> {
    /// The log writes an event at once.
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.0
            .write_all(escape::json(&String::from_utf8_lossy(octets)).as_bytes())?;
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<u8>>>);

    impl Write for Said {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(octets)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Said {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    const HOSTILE: &str = "pod\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\r\nERROR\u{7f}\u{feff}";

    fn say() {
        tracing::warn!(pod = HOSTILE, name = %HOSTILE, peer = ?HOSTILE, "ü 日本 {HOSTILE}");
    }

    #[test]
    fn a_log_for_people_has_nothing_that_a_terminal_obeys() {
        let said = Said::default();
        let writer = said.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .fmt_fields(fields())
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, say);
        let text = said.text();
        assert!(text.contains("ü 日本") && text.contains("\\u{202e}"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("ERROR")), "{text}");
        let raw = |letter: &char| {
            *letter != '\n' && escape::line(letter.encode_utf8(&mut [0; 4])).len() > letter.len_utf8()
        };
        assert_eq!(text.chars().find(raw), None, "{text:?}");
    }

    #[test]
    fn a_log_for_programs_says_the_same_in_ascii_escapes() {
        let said = Said::default();
        let writer = said.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || JsonWriter(writer.clone()))
            .json()
            .flatten_event(true)
            .finish();
        tracing::subscriber::with_default(log, say);
        let text = said.text();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["pod"], HOSTILE);
        assert!(text.contains("日本") && text.contains("\\u202e"), "{text}");
        assert!(
            matches!(escape::line(text.trim_end()), std::borrow::Cow::Borrowed(_)),
            "{text:?}"
        );
    }
}
