//! Writes the lines of `log` and `errors` to standard output, as CoreDNS does, in a thread of its own. Lines that the reader
//! does not take in time are dropped and counted; no query waits.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use metrics::{Counter, counter};

use crate::config::model::LogLevel;

/// Lines in the queue.
const QUEUE_LENGTH: usize = 8192;

/// The sender of lines.
#[derive(Clone)]
pub struct LogWriter {
    lines: SyncSender<String>,
    lost: Arc<Counter>,
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter").finish_non_exhaustive()
    }
}

impl LogWriter {
    /// To standard output.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn to_stdout() -> std::io::Result<Self> {
        Self::to(std::io::stdout())
    }

    /// To a writer.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn to(writer: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel(QUEUE_LENGTH);
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || write(writer, &waiting))?;
        Ok(Self {
            lines,
            lost: Arc::new(counter!("egret_dnsd_log_lines_lost_total")),
        })
    }

    /// Writes a line.
    pub fn write(&self, level: LogLevel, line: &str) {
        let level = match level {
            LogLevel::Error => "ERROR",
            LogLevel::Warning => "WARNING",
            LogLevel::Info => "INFO",
            LogLevel::Debug => "DEBUG",
        };
        if self.lines.try_send(format!("[{level}] {line}\n")).is_err() {
            self.lost.increment(1);
        }
    }
}

/// Writes the queued lines, many in one call.
fn write(mut writer: impl Write, waiting: &Receiver<String>) {
    while let Ok(first) = waiting.recv() {
        let mut text = first;
        text.extend(waiting.try_iter().take(255));
        // The reader is gone: lines are lost, queries are answered.
        if writer
            .write_all(text.as_bytes())
            .and_then(|()| writer.flush())
            .is_err()
        {
            tracing::debug!("the query log cannot be written");
        }
    }
}
