//! What is asked: probes and records, as JSON lines.

mod lines;
mod probe;
mod question;
mod record;

pub use lines::{Fields, LineProblem, ReadError, parse_lines, read_lines};
pub use probe::{Destination, Probe, ProbeProtocol, Source};
pub use question::{InvalidQuestion, QuestionOptions};
pub use record::Record;
