//! The audit log of connections: one JSON object a line, when one is opened or refused, and when it is closed. Records that find
//! no room are counted and dropped: no connection waits for the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use egret_policies::rules::Origin;
use egret_shared::rt::clock;
use metrics::counter;
use serde_json::{Map, Value, json};

use super::first_octets::SeenName;
use super::gate::Judgement;

/// Records that wait to be written.
const QUEUE: usize = 4096;
/// Records that are written before it is looked whether the log was rotated.
const BURST: usize = 1024;

/// Where records go; nowhere without a path.
#[derive(Clone, Debug)]
pub(super) struct AuditLog(Option<SyncSender<Value>>);

/// What both records of a connection have.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Of this process.
    pub(super) id: u64,
    pub(super) selection: &'static str,
    pub(super) client: String,
    pub(super) destination: String,
    pub(super) judgement: Judgement,
    pub(super) agent: Option<String>,
    /// What the client asked for by TLS, when it closes.
    pub(super) server_name: Option<SeenName>,
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    pub(super) cause: String,
    /// The rule that ended it.
    pub(super) ended_by: Option<Origin>,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) duration: Duration,
}

impl AuditLog {
    /// Writes to a file, behind what is in it; to the standard output by `-`.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else {
            return Ok(Self(None));
        };
        let (sender, records) = sync_channel(QUEUE);
        if path == Path::new("-") {
            std::thread::spawn(move || write_all(&records, io::stdout()));
        } else {
            let file = LogFile::open(path)?;
            std::thread::spawn(move || write_all(&records, file));
        }
        Ok(Self(Some(sender)))
    }

    pub(super) fn connected(&self, subject: &Subject, dial: Duration) {
        self.send(
            subject,
            "open",
            || json!({"result": "connected", "dialMilliseconds": milliseconds(dial)}),
        );
    }

    pub(super) fn refused(&self, subject: &Subject, result: &str, error: &str) {
        self.send(subject, "open", || json!({"result": result, "error": error}));
    }

    pub(super) fn closed(&self, subject: &Subject, closing: &Closing) {
        self.send(subject, "close", || {
            let mut rest = json!({
                "cause": closing.cause,
                "octetsSent": closing.sent,
                "octetsReceived": closing.received,
                "milliseconds": milliseconds(closing.duration),
            });
            if let Some(rule) = &closing.ended_by {
                rest["endedBy"] = rule_of(rule);
            }
            rest
        });
    }

    fn send(&self, subject: &Subject, event: &str, rest: impl FnOnce() -> Value) {
        let Some(sender) = &self.0 else {
            return;
        };
        let mut record = subject.record(event);
        if let Value::Object(rest) = rest() {
            record.extend(rest);
        }
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            sender.try_send(Value::Object(record))
        {
            counter!("egret_konnectivity_audit_records_dropped_total").increment(1);
        }
    }
}

impl Subject {
    fn record(&self, event: &str) -> Map<String, Value> {
        let time = humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + clock::since_epoch());
        let Judgement {
            addresses,
            destination,
            rule,
            would_deny,
            awaits_server_name,
        } = &self.judgement;
        let (name, no_name) = match &self.server_name {
            Some(SeenName::Name(name)) => (Some(json!(name.to_string())), None),
            Some(SeenName::None(reason)) => (None, Some(json!(reason.to_string()))),
            None => (None, None),
        };
        let fields = [
            ("time", Some(json!(time.to_string()))),
            ("event", Some(json!(event))),
            ("connection", Some(json!(self.id))),
            ("selection", Some(json!(self.selection))),
            ("client", Some(json!(self.client))),
            ("destination", Some(json!(self.destination))),
            ("addresses", (!addresses.is_empty()).then(|| json!(addresses))),
            ("class", destination.as_ref().map(|it| json!(it.class()))),
            (
                "object",
                destination
                    .as_ref()
                    .and_then(|it| it.object())
                    .map(|it| json!(it)),
            ),
            ("rule", rule.as_ref().map(rule_of)),
            ("wouldDeny", would_deny.as_ref().map(rule_of)),
            ("awaits", awaits_server_name.then(|| json!("serverName"))),
            ("serverName", name),
            ("serverNameUnknown", no_name),
            ("agent", self.agent.as_ref().map(|agent| json!(agent))),
        ];
        let known = fields
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        known.collect()
    }
}

fn rule_of(origin: &Origin) -> Value {
    json!({"policy": *origin.policy, "index": origin.rule, "name": origin.name.as_deref()})
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Where records are written.
trait Destination: Write {
    /// Before a burst of records.
    fn prepare(&mut self) -> io::Result<()>;
}

impl Destination for io::Stdout {
    fn prepare(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is opened again when its path is another file, or none: it was rotated.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }
}

impl Destination for LogFile {
    fn prepare(&mut self) -> io::Result<()> {
        let own = self.file.metadata()?;
        let is_own = |there: &fs::Metadata| (there.dev(), there.ino()) == (own.dev(), own.ino());
        if !fs::metadata(&self.path).is_ok_and(|there| is_own(&there)) {
            *self = Self::open(&self.path)?;
        }
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.file.write(octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes what comes, and lets readers see it when nothing more is there.
fn write_all(records: &Receiver<Value>, to: impl Destination) {
    let mut to = BufWriter::new(to);
    while let Ok(record) = records.recv() {
        // Each burst is flushed, so nothing of the file before is written to the next one.
        if let Err(error) = to.get_mut().prepare() {
            tracing::error!(%error, "the audit log cannot be opened again");
        }
        if let Err(error) = write_burst(record, records, &mut to) {
            tracing::error!(%error, "a record of the audit log cannot be written");
            counter!("egret_konnectivity_audit_records_dropped_total").increment(1);
        }
    }
}

fn write_burst(first: Value, records: &Receiver<Value>, to: &mut impl Write) -> io::Result<()> {
    let more = records.try_iter().take(BURST);
    for record in std::iter::once(first).chain(more) {
        writeln!(to, "{record}")?;
    }
    to.flush()
}
