//! The audit log of connections: one JSON object a line, when one is opened or refused, and when it is closed. Records that find
//! no room are counted and dropped: no connection waits for the log.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use egret_policies::rules::Origin;
use egret_shared::rt::clock;
use metrics::counter;
use serde_json::{Map, Value, json};

use super::gate::Judgement;

/// Records that wait to be written.
const QUEUE: usize = 4096;

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
            let file = OpenOptions::new().create(true).append(true).open(path)?;
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
        } = &self.judgement;
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

/// Writes what comes, and lets readers see it when nothing more is there.
fn write_all(records: &Receiver<Value>, to: impl Write) {
    let mut to = BufWriter::new(to);
    while let Ok(record) = records.recv() {
        if let Err(error) = write_burst(record, records, &mut to) {
            tracing::error!(%error, "a record of the audit log cannot be written");
            counter!("egret_konnectivity_audit_records_dropped_total").increment(1);
        }
    }
}

fn write_burst(first: Value, records: &Receiver<Value>, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "{first}")?;
    loop {
        match records.try_recv() {
            Ok(record) => writeln!(to, "{record}")?,
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return to.flush(),
        }
    }
}
