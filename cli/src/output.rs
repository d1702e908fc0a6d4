//! How answers are printed: the same forms for every command, and colours only where somebody looks and wants them.

use std::env;
use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::Table;
use serde::Serialize;

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
        table: impl FnOnce() -> String,
        out: &mut impl Write,
    ) -> io::Result<()> {
        match self {
            Self::Table => out.write_all(table().as_bytes())?,
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
        serde_json::to_writer(&mut *out, &row)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Writes rows as a list in YAML.
///
/// # Errors
/// They cannot be written.
pub fn write_yaml<T: Serialize>(rows: &[T], out: &mut impl Write) -> io::Result<()> {
    let text = serde_saphyr::to_string(&rows).map_err(io::Error::other)?;
    writeln!(out, "{}", text.trim_end())
}

/// A table that is without colours where nobody wants them: on what is no terminal, on one that knows none, and
/// where `NO_COLOR` is set (<https://no-color.org>).
#[must_use]
pub fn table() -> Table {
    let mut table = Table::new();
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("NO_COLOR") || env::var_os("TERM").is_some_and(|terminal| terminal == "dumb") {
        table.force_no_tty();
    }
    table
}
