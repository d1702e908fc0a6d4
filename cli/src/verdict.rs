//! `egret verdict`: what the policies in manifests say of connections, without a cluster.
//!
//! ```text
//!  manifests ──▶ api, lower ──▶ compiler ──▶ memory ──┐
//!  records ───────────────────────┘                   ├──▶ rows
//!  probes ──▶ route (addresses, endpoints, ports) ────┘
//! ```
//!
//! The answer comes from the rules that a node would have, for every pod. What is done here is what no node
//! does: addresses are made up for pods without one, names and Services are resolved.

use std::io::{self, Write};

use clap::Args;

pub mod answer;
pub mod questions;
pub mod input;
pub mod judge;
pub mod route;
pub mod row;
pub mod table;

use crate::output::{Format, TerminalWrite};

use answer::ProbeAnswerer;
use input::Probe;
use questions::{QuestionArguments, QuestionError, write_remarks};
use row::{Row, VerdictWord};

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    ask: QuestionArguments,
    /// How to print the answers
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(crate) const AFTER_HELP: &str = "\
Probes:
  {\"id\": \"1\", \"from\": \"shop/client\", \"to\": \"tools/worker\", \"protocol\": \"TCP\", \"port\": 80}

  id        a string, given back in the row
  from      \"namespace/pod\", {\"ip\": \"192.0.2.1\"}, {\"node\": \"node-1\"}, or for what the API server connects to by
            its network proxy {\"apiserver\": \"cluster\"} (or controlplane, etcd)
  to        as from, or {\"service\": \"namespace/name\"}, or {\"name\": \"api.example.com\"}
  protocol  TCP (where it is left out), UDP, SCTP or ICMP (which has no port)
  port      the destination port; with a service, the port of the Service
  family    IPv4 or IPv6; otherwise the first that both ends have
  at        seconds after the records were learned; 0 where it is left out

  The same on the command line:
    --from shop/client --to api.example.com --port 443
    --from node:node-1 --to service:tools/worker --port 80 --protocol UDP
    --from apiserver:cluster --to node:node-1 --port 10250

Records:
  {\"pod\": \"shop/client\", \"name\": \"api.example.com\", \"address\": \"203.0.113.7\", \"ttl\": 30}
  With \"pod\": \"(api-server)/cluster\" (or controlplane, etcd) they say what the proxy resolves a name to.

Exit status:
  0  every probe has a verdict; of a question on the command line: allow
  1  a question on the command line: deny
  2  bad usage, input that cannot be read, or a probe that cannot be judged (its row says why)";

/// Why there are no answers at all.
#[derive(Debug, thiserror::Error)]
pub enum VerdictError {
    /// What was asked cannot be read.
    #[error(transparent)]
    Ask(#[from] QuestionError),
    /// The answers cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Whether all was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStatus {
    /// Every probe has a verdict; the one of a single question is allow.
    Answered,
    /// The verdict of a single question is deny.
    Denied,
    /// Some probe could not be judged.
    Unanswered,
}

impl AnswerStatus {
    pub(crate) fn of(verdicts: impl IntoIterator<Item = VerdictWord>, is_single: bool) -> Self {
        verdicts
            .into_iter()
            .fold(Self::Answered, |outcome, word| match (word, outcome) {
                (VerdictWord::Error, _) => Self::Unanswered,
                (VerdictWord::Deny, Self::Answered) if is_single => Self::Denied,
                (VerdictWord::Deny | VerdictWord::Allow, outcome) => outcome,
            })
    }
}

impl Arguments {
    /// Answers the probes: rows go to `out`, all that belongs to no row to `remarks`.
    ///
    /// # Errors
    /// Why there are no answers at all.
    pub fn run(
        &self,
        out: &mut impl TerminalWrite,
        remarks: &mut impl Write,
    ) -> Result<AnswerStatus, VerdictError> {
        let asked = self.ask.read()?;
        let mut answerers = Vec::from_iter(asked.parts().into_iter().map(ProbeAnswerer::new));
        let answers: Vec<(&Probe, Row)> = asked
            .probes
            .iter()
            .map(|probe| (probe, answerers[asked.part_of(probe)].answer(probe)))
            .collect();
        let carried = answerers
            .iter()
            .flat_map(ProbeAnswerer::carried)
            .cloned()
            .collect();
        write_remarks(&asked, &carried, remarks)?;
        let rows: Vec<&Row> = answers.iter().map(|(_, row)| row).collect();
        self.output.write(&rows, || table::render(&answers), out)?;
        let verdicts = answers.iter().map(|(_, row)| row.verdict);
        Ok(AnswerStatus::of(verdicts, asked.is_single))
    }
}
