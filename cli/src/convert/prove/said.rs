//! Which rule decides a connection: the oracle gives a verdict, the compiled rules the reason.

use std::fmt;

use egret_policies::compiler::{Compiler, Event, Settings};
use egret_policies::model::cluster::Entity;
use egret_policies::simulator::{Connection, Decision, Protocol, Simulator, Verdict};
use egret_shared::net::Transport;
use egret_shared::observation::Observation;

use super::NOW;

/// A verdict and what led to it.
#[derive(Clone, Debug)]
pub(super) struct Deciding {
    verdict: Verdict,
    decision: Decision,
}

impl Deciding {
    pub(super) fn of<'a>(
        connection: &Connection,
        verdict: Verdict,
        settings: &Settings,
        entities: impl Iterator<Item = &'a Entity>,
        observations: &[Observation],
    ) -> Self {
        let mut compiler = Compiler::new(settings.clone());
        for entity in entities {
            compiler.handle(Event::Apply(entity.clone()), NOW);
        }
        for observation in observations {
            compiler.handle(Event::Observed(observation.clone()), NOW);
        }
        let mut compiler = compiler.in_sync();
        let mut memory = Simulator::new();
        while let Some(batch) = compiler.poll_batch(NOW) {
            memory
                .apply(&batch, NOW)
                .expect("every batch of the compiler can be applied");
        }
        Self {
            verdict,
            decision: memory.decide(connection, NOW),
        }
    }
}

impl fmt::Display for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            Verdict::Allow => "allowed",
            Verdict::Deny => "denied",
        })?;
        match (self.decision.policy(), self.decision.rule()) {
            (Some(policy), Some(rule)) => {
                write!(f, " by {policy}, rule {rule}")?;
                self.decision.name().map_or(Ok(()), |name| write!(f, " ({name})"))
            }
            (_, _) if self.decision.tier == "default" => f.write_str(" by default"),
            (_, _) => write!(f, " in tier {}", self.decision.tier),
        }
    }
}

/// A protocol in words.
pub(super) fn protocol(protocol: Protocol) -> String {
    let word = |transport| match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
        Transport::Sctp => "SCTP",
    };
    match protocol {
        Protocol::Port(transport, port) => format!("{} {port}", word(transport)),
        Protocol::Icmp => "ICMP".to_owned(),
        Protocol::Other => "another protocol".to_owned(),
    }
}
