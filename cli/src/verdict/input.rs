//! What is asked: probes and records, as JSON lines.

mod lines;
mod probe;
mod question;
mod record;

pub use lines::{Fields, LineProblem, ReadError, parse_lines, read_lines};
pub use probe::{Destination, Probe, Protocol, Source};
pub use question::{BadQuestion, Question};
pub use record::Record;
