//! Writes the lines. A line that cannot be written is lost and counted; nothing waits for disk space.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

/// Where denied packets are logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Destination {
    /// Nowhere: the kernel only counts them.
    Off,
    /// Standard output; the daemon's own log is on standard error.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

/// A text that names no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no place for events; write off, stdout, or a path with a slash, as in \"/var/log/egret/events.jsonl\""
)]
pub struct InvalidDestination(String);

impl FromStr for Destination {
    type Err = InvalidDestination;

    /// A path has a slash, so that a misspelt word makes no file.
    fn from_str(text: &str) -> Result<Self, InvalidDestination> {
        match text {
            "off" => Ok(Self::Off),
            "stdout" => Ok(Self::Stdout),
            path if path.contains('/') && !path.ends_with('/') => Ok(Self::File(path.into())),
            other => Err(InvalidDestination(other.to_owned())),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

egret_shared::as_text!(Destination);

/// Where lines are written.
#[derive(Debug)]
pub struct Sink {
    output: Output,
    /// Whether the last line was written in part: the next one starts on a new line.
    is_torn: bool,
    is_failing: bool,
    reopen: ReopenRequest,
}

#[derive(Debug)]
enum Output {
    Stdout,
    File { path: PathBuf, file: Option<File> },
}

/// Asks for the log file to be opened again, after a rotation. From any thread.
#[derive(Clone, Debug, Default)]
pub struct ReopenRequest(Arc<AtomicBool>);

impl ReopenRequest {
    /// Takes effect before the next line.
    pub fn send(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Sink {
    /// Opens the destination; none for `Off`.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open(to: &Destination) -> io::Result<Option<Self>> {
        let output = match to {
            Destination::Off => return Ok(None),
            Destination::Stdout => Output::Stdout,
            Destination::File(path) => Output::File {
                path: path.clone(),
                file: Some(open(path)?),
            },
        };
        Ok(Some(Self {
            output,
            is_torn: false,
            is_failing: false,
            reopen: ReopenRequest::default(),
        }))
    }

    /// A handle that has the file opened again.
    #[must_use]
    pub fn reopen_request(&self) -> ReopenRequest {
        self.reopen.clone()
    }

    /// Writes lines. Returns how many were lost.
    pub fn write(&mut self, lines: &[String]) -> u64 {
        if self.reopen.0.swap(false, Ordering::Relaxed)
            && let Output::File { file, .. } = &mut self.output
        {
            *file = None;
            self.is_torn = false;
        }
        let mut unwritten = 0;
        for line in lines {
            let written = self.write_one(line);
            unwritten += u64::from(written.is_err());
            self.log_change(written);
        }
        unwritten
    }

    fn write_one(&mut self, line: &str) -> io::Result<()> {
        let start = if self.is_torn { "\n" } else { "" };
        let text = format!("{start}{line}\n");
        let written = match &mut self.output {
            Output::Stdout => write_at_once(&mut io::stdout().lock(), text.as_bytes()),
            Output::File { path, file } => {
                let file = match file {
                    Some(file) => file,
                    None => file.insert(open(path)?),
                };
                write_at_once(file, text.as_bytes())
            }
        };
        self.is_torn = match &written {
            Ok(()) => false,
            Err((_, octets)) => self.is_torn || *octets > 0,
        };
        written.map_err(|(error, _)| error)
    }

    /// Logs the first failure, and the first success after it.
    fn log_change(&mut self, written: io::Result<()>) {
        let is_failing = written.is_err();
        if is_failing == self.is_failing {
            return;
        }
        self.is_failing = is_failing;
        let output = match &self.output {
            Output::Stdout => "stdout".to_owned(),
            Output::File { path, .. } => path.display().to_string(),
        };
        match written {
            Ok(()) => tracing::info!(output, "events are written again"),
            Err(error) => tracing::warn!(output, %error, "events cannot be written, and are lost"),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// On an error, also how many octets were written before.
fn write_at_once(output: &mut impl Write, text: &[u8]) -> Result<(), (io::Error, usize)> {
    let mut written = 0;
    while written < text.len() {
        match output.write(&text[written..]) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), written)),
            Ok(octets) => written += octets,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((error, written)),
        }
    }
    output.flush().map_err(|error| (error, written))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("egret-events-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_rotated_file_is_reopened_on_request() {
        let (path, old) = (scratch("rotated"), scratch("rotated.1"));
        let mut sink = Sink::open(&Destination::File(path.clone())).unwrap().unwrap();
        assert_eq!(sink.write(&["one".into(), "two".into()]), 0);
        std::fs::rename(&path, &old).unwrap();
        assert_eq!(sink.write(&["three".into()]), 0);
        sink.reopen_request().send();
        assert_eq!(sink.write(&["four".into()]), 0);
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(
            (read(&old), read(&path)),
            ("one\ntwo\nthree\n".into(), "four\n".into())
        );
        std::fs::remove_file(old).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_loses_lines_and_blocks_nothing() {
        let mut sink = Sink::open(&Destination::File("/dev/full".into()))
            .unwrap()
            .unwrap();
        assert_eq!(sink.write(&["one".into(), "two".into()]), 2);
    }

    #[test]
    fn after_a_partial_line_the_next_starts_on_a_new_line() {
        let path = scratch("torn");
        let mut sink = Sink::open(&Destination::File(path.clone())).unwrap().unwrap();
        sink.is_torn = true;
        assert_eq!(sink.write(&["one".into(), "two".into()]), 0);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\none\ntwo\n");
        std::fs::remove_file(path).unwrap();
    }
}
