//! `egret explain`: the way of a connection through the policies, and what to change.
//!
//! The verdict is that of `egret verdict`, from a node's rules. The steps are told from the policies as they
//! were understood, tier by tier: what each rule was compared with, and which half of it did not match.

use std::io::{self, Write};
use std::net::IpAddr;

use clap::{Args, ValueEnum};
use egret_policies::model::Direction;
use egret_shared::name::DnsName;

use crate::cluster::selection::Selection;
use crate::output::{self, TerminalWrite};
use crate::verdict::answer::ProbeAnswerer;
use crate::verdict::input::{Destination, Probe};
use crate::verdict::questions::{LoadedQuestions, QuestionArguments, write_remarks};
use crate::verdict::route::{NameTarget, ProbeConnection, Route, Router};
use crate::verdict::row::Row;
use crate::verdict::{AFTER_HELP, AnswerStatus, VerdictError};

mod change;
mod compare;
mod compiled;
mod missing_record;
mod peer;
mod addresses;
pub mod report;
mod side;
mod snippet;
mod text;
mod records;
mod viewpoint;
mod evaluation;

use report::{ConnectionPath, Explanation};

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    ask: QuestionArguments,
    /// How to print the explanations
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// How to print the explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs: one object a line, in the order of the probes
    Json,
    /// The same as YAML, one document for each probe
    Yaml,
}

impl Arguments {
    /// Explains the probes: explanations go to `out`, all that belongs to none to `remarks`.
    ///
    /// # Errors
    /// Why there are no answers at all.
    pub fn run(
        &self,
        out: &mut impl TerminalWrite,
        remarks: &mut impl Write,
    ) -> Result<AnswerStatus, VerdictError> {
        let asked = self.ask.read()?;
        let mut explainers = Vec::from_iter(asked.parts().into_iter().map(Explainer::new));
        let explanations: Vec<Explanation> = asked
            .probes
            .iter()
            .map(|probe| explainers[asked.part_of(probe)].explain(probe))
            .collect();
        let carried = explainers
            .iter()
            .flat_map(|explainer| explainer.answerer.carried());
        write_remarks(&asked, &carried.cloned().collect(), remarks)?;
        for (place, explanation) in explanations.iter().enumerate() {
            self.write(place, explanation, out)?;
        }
        out.flush()?;
        let verdicts = explanations.iter().map(|explanation| explanation.verdict);
        Ok(AnswerStatus::of(verdicts, asked.is_single))
    }

    fn write(&self, place: usize, explanation: &Explanation, out: &mut impl TerminalWrite) -> io::Result<()> {
        match self.output {
            Output::Table => {
                let between = if place == 0 { "" } else { "\n\n" };
                out.write_table(|| format!("{between}{}", text::render(explanation)))
            }
            Output::Json => output::write_json([explanation], out),
            Output::Yaml => {
                write!(out, "---\n{}", output::yaml(explanation)?)
            }
        }
    }
}

struct Explainer<'a> {
    asked: &'a LoadedQuestions,
    answerer: ProbeAnswerer<'a>,
    selection: Selection,
}

impl<'a> Explainer<'a> {
    fn new(asked: &'a LoadedQuestions) -> Self {
        let manifests = &asked.manifests;
        Self {
            asked,
            answerer: ProbeAnswerer::new(asked),
            selection: Selection::new(manifests.policies.clone(), manifests.namespaces.clone()),
        }
    }

    fn explain(&mut self, probe: &Probe) -> Explanation {
        let Row {
            id,
            verdict,
            reason,
            diagnostics,
            ..
        } = self.answerer.answer(probe);
        let router = Router {
            cluster: &self.asked.cluster,
            told: self.asked.judge.records(),
        };
        let (reached, change) = match router.route(probe) {
            Ok(route) => (connections(route), Vec::new()),
            Err(unjudgeable) => (
                Vec::new(),
                missing_record::what_to_add(&mut self.selection, self.asked, &unjudgeable),
            ),
        };
        Explanation {
            id,
            from: probe.from.to_string(),
            to: probe.to.to_string(),
            protocol: probe.protocol.to_string(),
            at: probe.at.as_secs_f64(),
            verdict,
            reason,
            connections: reached
                .iter()
                .map(|(told, connection)| self.way(probe, connection, *told))
                .collect(),
            change,
            diagnostics,
        }
    }

    fn way(&mut self, probe: &Probe, connection: &ProbeConnection, told: Option<IpAddr>) -> ConnectionPath {
        let now = probe.moment();
        let decision = self.asked.judge.decide(&self.asked.cluster, connection, now);
        let verdict = decision.verdict().into();
        let mut side = |direction, decision| {
            side::side(
                self.asked,
                &mut self.selection,
                direction,
                (connection, told),
                decision,
                now,
            )
        };
        let (egress, egress_view) = side(Direction::Egress, &decision.egress);
        let (ingress, ingress_view) = side(Direction::Ingress, &decision.ingress);
        let sides = [(&egress, egress_view.as_ref()), (&ingress, ingress_view.as_ref())];
        ConnectionPath {
            source: connection.source,
            destination: connection.destination,
            port: connection.port.map(|(_, port)| port.get()),
            told,
            verdict,
            change: change::change(verdict, sides, name_of(probe)),
            egress,
            ingress,
        }
    }
}

fn name_of(probe: &Probe) -> Option<&DnsName> {
    match &probe.to {
        Destination::Name(name) => Some(name),
        Destination::Pod(_) | Destination::Address(_) | Destination::Service(_) | Destination::Node(_) => {
            None
        }
    }
}

/// What cannot be used of a name's addresses has its reason in the verdict, and no way.
fn connections(route: Route) -> Vec<(Option<IpAddr>, ProbeConnection)> {
    match route {
        Route::Direct(connection) => vec![(None, connection)],
        Route::Endpoints(connections) => connections
            .into_iter()
            .map(|connection| (None, connection))
            .collect(),
        Route::Addresses(reached) => reached
            .into_iter()
            .filter_map(|NameTarget { told, connection }| Some((Some(told), connection.ok()?)))
            .collect(),
    }
}
