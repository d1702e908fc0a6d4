//! Where lines about queries go: standard output, as CoreDNS' do, by a thread of its own. A reader that does not keep
//! up costs lines, which are counted, and no query its time.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use metrics::{Counter, counter};

use crate::config::model::LogLevel;

/// Lines that wait to be written.
const MOST_WAITING: usize = 8192;

/// The way there.
#[derive(Clone)]
pub struct LogWriter {
    lines: SyncSender<String>,
    lost: Arc<Counter>,
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
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
        let (lines, waiting) = sync_channel(MOST_WAITING);
        std::thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || write(writer, &waiting))?;
        Ok(Self {
            lines,
            lost: Arc::new(counter!("egret_dnsd_log_lines_lost_total")),
        })
    }

    /// Says a line.
    pub fn say(&self, level: LogLevel, line: &str) {
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

/// Writes what there is in one go.
fn write(mut writer: impl Write, waiting: &Receiver<String>) {
    while let Ok(first) = waiting.recv() {
        let mut text = first;
        text.extend(waiting.try_iter().take(255));
        // Nobody reads any more: lines go nowhere, queries are answered.
        if writer
            .write_all(text.as_bytes())
            .and_then(|()| writer.flush())
            .is_err()
        {
            tracing::debug!("lines about queries cannot be written");
        }
    }
}
