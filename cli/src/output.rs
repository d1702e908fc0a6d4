//! How answers are printed: the same forms for every command, and colours only where somebody looks and wants them.

use std::borrow::Cow;
use std::cell;
use std::env;
use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Attribute, Cell, ContentArrangement, LineStyle, Table, TableStyle};
use egret_shared::escape;
use serde::Serialize;

/// The columns of a terminal that tables and sentences fit into.
pub(crate) const WIDTH: u16 = 100;

/// A line under the header and nothing else.
pub(crate) const PLAIN: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

thread_local! {
    /// Whether tables are rendered without colours, see [`TerminalWrite::write_table`].
    static IS_PLAIN: cell::Cell<bool> = const { cell::Cell::new(false) };
}

/// Where answers go.
pub trait TerminalWrite: Write {
    /// Writes text that may have colours of its own: only where nothing else in it is escaped, as a colour that came from a
    /// manifest looks like one of its own.
    ///
    /// # Errors
    /// It cannot be written.
    fn write_table(&mut self, render: impl Fn() -> String) -> io::Result<()>;
}

/// Escapes what terminals obey, a line at a time: names, comments and paths come from elsewhere.
#[derive(Debug)]
pub struct EscapingWriter<W: Write> {
    to: W,
    line: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    /// Writes to `to`.
    #[must_use]
    pub const fn new(to: W) -> Self {
        Self { to, line: Vec::new() }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        // A tab only moves on: texts of others, which are printed as they were, have them.
        for (place, part) in String::from_utf8_lossy(&line).split('\t').enumerate() {
            if place > 0 {
                self.to.write_all(b"\t")?;
            }
            self.to.write_all(escape::lines(part).as_bytes())?;
        }
        Ok(())
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(octets);
        if octets.contains(&b'\n') {
            self.write_line()?;
        }
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_line()?;
        self.to.flush()
    }
}

impl<W: Write> TerminalWrite for EscapingWriter<W> {
    fn write_table(&mut self, render: impl Fn() -> String) -> io::Result<()> {
        IS_PLAIN.set(true);
        let plain = render();
        IS_PLAIN.set(false);
        let has_colours = table().is_tty() && matches!(escape::lines(&plain), Cow::Borrowed(_));
        if has_colours {
            self.write_line()?;
            return self.to.write_all(render().as_bytes());
        }
        self.write_all(plain.as_bytes())
    }
}

/// The forms that every command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs: one object a line
    Json,
    /// The same as one list in YAML
    Yaml,
}

impl Format {
    /// Writes rows; as a table they are what `table` makes of them.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write<T: Serialize>(
        self,
        rows: &[T],
        table: impl Fn() -> String,
        out: &mut impl TerminalWrite,
    ) -> io::Result<()> {
        match self {
            Self::Table => out.write_table(table)?,
            Self::Json => write_json(rows, out)?,
            Self::Yaml => write_yaml(rows, out)?,
        }
        out.flush()
    }
}

/// Writes rows as JSON, one object a line.
///
/// # Errors
/// They cannot be written.
pub fn write_json<T: Serialize>(rows: impl IntoIterator<Item = T>, out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        writeln!(out, "{}", escape::json(&serde_json::to_string(&row)?))?;
    }
    Ok(())
}

/// Writes rows as a list in YAML.
///
/// # Errors
/// They cannot be written.
pub fn write_yaml<T: Serialize>(rows: &[T], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", yaml(&rows)?.trim_end())
}

/// A value as YAML: as JSON, which is YAML as well and can escape every character, where one is to be escaped.
///
/// # Errors
/// The library cannot write it.
pub fn yaml<T: Serialize>(value: &T) -> io::Result<String> {
    let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
    if matches!(escape::lines(&text), Cow::Borrowed(_)) {
        return Ok(text);
    }
    let text = serde_json::to_string_pretty(value)?;
    Ok(format!("{}\n", escape::json(&text)))
}

/// A table that is without colours where nobody wants them: on what is no terminal, on one that knows none, and
/// where `NO_COLOR` is set (<https://no-color.org>).
fn table() -> Table {
    let mut table = Table::new();
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    if IS_PLAIN.get() || is_set("NO_COLOR") || env::var_os("TERM").is_some_and(|terminal| terminal == "dumb")
    {
        table.force_no_tty();
    }
    table
}

/// An empty table, as wide as tables may be.
pub(crate) fn empty_table(style: TableStyle) -> Table {
    let mut table = table();
    table
        .load_style(style)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    table
}

/// The head of a column.
pub(crate) fn header(text: &str) -> Cell {
    Cell::new(text).add_attribute(Attribute::Bold)
}

/// The first of some items, and how many more there are.
pub(crate) fn first_of(items: &[String], shown: usize) -> String {
    let text = items.iter().take(shown).cloned().collect::<Vec<_>>().join(", ");
    match items.len().saturating_sub(shown) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// A number with its noun.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
