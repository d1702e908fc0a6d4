//! A probe on the command line: one question, without a file.

use std::num::NonZeroU16;

use clap::Args;
use serde_json::{Map, Value};

use super::lines::{LineProblem, parse_object};
use super::probe::Probe;
use crate::options::port;

/// What a question's answer is known by.
const ID: &str = "1";

const SOURCES: &str = "namespace/pod, an address, node:NAME or apiserver:SELECTION";
const DESTINATIONS: &str =
    "namespace/pod, an address, node:NAME, service:namespace/name or a DNS name (with a dot, or name:NAME)";

/// One connection.
#[derive(Args, Clone, Debug)]
pub struct QuestionOptions {
    /// Who connects: namespace/pod, an address, node:NAME, or apiserver:SELECTION (controlplane, cluster, etcd)
    #[arg(long, value_name = "END", requires = "to")]
    from: Option<String>,
    /// Where to: as --from, or service:namespace/name, or a DNS name that --from was told
    #[arg(long, value_name = "END", requires = "from")]
    to: Option<String>,
    /// The destination port; with a service, the port of the Service
    #[arg(long, requires = "from", value_parser = port)]
    port: Option<NonZeroU16>,
    /// TCP, UDP, SCTP or ICMP (which has no port)
    #[arg(long, requires = "from", default_value = "TCP")]
    protocol: String,
    /// IPv4 or IPv6; otherwise the first that both ends have
    #[arg(long, requires = "from")]
    family: Option<String>,
    /// How many seconds after the records were learned
    #[arg(long, value_name = "SECONDS", requires = "from")]
    at: Option<f64>,
    /// From apiserver:SELECTION: the server name that it asks for by TLS; otherwise none can be read
    #[arg(long, value_name = "NAME", requires = "from")]
    server_name: Option<String>,
}

/// An option that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("--{}: {}", .0.name(), .0.problem())]
pub struct InvalidQuestion(OptionProblem);

/// What is wrong with an option.
#[derive(Debug)]
enum OptionProblem {
    End { option: &'static str, problem: String },
    Other(LineProblem),
}

impl OptionProblem {
    /// The fields of a probe have the names of the options; what is below one (`to.ip`) belongs to it.
    fn name(&self) -> &str {
        match self {
            Self::End { option, .. } => option,
            Self::Other(LineProblem::Field { field, .. }) if field == "serverName" => "server-name",
            Self::Other(LineProblem::Field { field, .. }) => {
                field.split_once('.').map_or(field, |(option, _)| option)
            }
            Self::Other(
                LineProblem::Syntax(_)
                | LineProblem::NoObject(_)
                | LineProblem::Encoding(_)
                | LineProblem::TooLong,
            ) => "from",
        }
    }

    fn problem(&self) -> String {
        match self {
            Self::End { problem, .. } | Self::Other(LineProblem::Field { problem, .. }) => problem.clone(),
            Self::Other(other) => other.to_string(),
        }
    }
}

impl QuestionOptions {
    /// The probe, if anything was asked.
    ///
    /// # Errors
    /// An option that cannot be understood.
    pub fn probe(&self) -> Result<Option<Probe>, InvalidQuestion> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            return Ok(None);
        };
        let fields = [
            ("id", Some(ID.into())),
            ("from", Some(end("from", from, SOURCES)?)),
            ("to", Some(end("to", to, DESTINATIONS)?)),
            ("protocol", Some(self.protocol.as_str().into())),
            ("port", self.port.map(|port| Value::from(port.get()))),
            ("family", self.family.as_deref().map(Value::from)),
            ("at", self.at.map(Value::from)),
            ("serverName", self.server_name.as_deref().map(Value::from)),
        ];
        let map: Map<String, Value> = fields
            .into_iter()
            .filter_map(|(field, value)| Some((field.to_owned(), value?)))
            .collect();
        let probe = parse_object(map, Probe::parse)
            .map_err(|problem| InvalidQuestion(OptionProblem::Other(problem)))?;
        Ok(Some(probe))
    }
}

/// An end as a probe has it. A word alone may be meant as a pod or as a name, so it is neither.
fn end(option: &'static str, text: &str, accepted: &str) -> Result<Value, InvalidQuestion> {
    let tagged = |tag: &str, value: &str| Value::from(Map::from_iter([(tag.to_owned(), value.into())]));
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Ok(tagged("ip", text));
    }
    match text.split_once(':') {
        Some((tag @ ("ip" | "node" | "service" | "name" | "apiserver"), value)) => {
            return Ok(tagged(tag, value));
        }
        Some(("pod", value)) => return Ok(value.into()),
        Some(_) | None => {}
    }
    if text.contains('/') {
        return Ok(text.into());
    }
    if option == "to" && text.contains('.') {
        return Ok(tagged("name", text));
    }
    let problem = format!("{text:?} is no end of a connection; accepted: {accepted}");
    Err(InvalidQuestion(OptionProblem::End { option, problem }))
}
