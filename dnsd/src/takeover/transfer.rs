//! What a dnsd knows when another one takes over: how it stands with the enforcer, what was told to whom, and the answers
//! that are kept.
//!
//! The successor has it before it reads, while the predecessor still answers; what comes in between is asked for and told
//! once more. A part of it is as good as it is right: what was heard until the time was over counts, and of what is damaged
//! nothing does.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;

use crate::enforcement::gate::GateSnapshot;
use crate::enforcement::gated::ResponseGate;
use crate::pipeline::Resolver;
use crate::takeover::state::{Damaged, Piece};
use crate::takeover::{HandoverError, Memory, Taken};
use crate::zones::{Given, GivenStep, Heir};

/// How long a predecessor may tell. It answers meanwhile; but whoever replaces it waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// Octets of answers that are told at once.
const AT_ONCE: usize = 32 << 10;

/// The memory of a dnsd that serves.
#[derive(Debug)]
pub struct Remembering {
    /// Who answers.
    pub resolver: Arc<Resolver>,
    /// Who tells the enforcer.
    pub gate: Arc<ResponseGate>,
}

/// What a successor begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// Whether the predecessor was connected to an enforcer.
    pub is_connected: bool,
    /// Answers that it kept.
    pub answers: usize,
    /// Answers that it told.
    pub told: usize,
    /// Whether this is all.
    pub is_whole: bool,
}

impl Memory for Remembering {
    fn tell(&self, hear: &mut dyn FnMut(&[Piece]) -> io::Result<()>) -> io::Result<()> {
        self.gate.transfer(hear)?;
        let serving = self.resolver.serving();
        let mut given = Given::by(&serving);
        while let Some(step) = given.next(clock::now()) {
            match step {
                GivenStep::Block(block) => hear(&[Piece::Block(block)])?,
                GivenStep::Answers(answers) => {
                    let mut pieces = Vec::new();
                    let mut octets = 0;
                    for answer in answers {
                        octets += answer.octets.len();
                        pieces.push(Piece::Answer(answer));
                        if octets > AT_ONCE {
                            hear(&pieces)?;
                            pieces.clear();
                            octets = 0;
                        }
                    }
                    hear(&pieces)?;
                }
            }
        }
        hear(&[Piece::End])
    }
}

/// Takes what a predecessor knows.
///
/// # Errors
/// When what it says is nothing that a dnsd would say; nothing of it was taken then.
pub fn inherit(
    predecessor: &Taken,
    resolver: &Resolver,
    gate: &ResponseGate,
) -> Result<Begun, HandoverError> {
    let serving = resolver.serving();
    let mut heir = Heir::of(&serving);
    let (mut begun, mut snapshot, mut interests) = (Begun::default(), GateSnapshot::default(), Vec::new());
    let now = clock::now;
    let heard = predecessor.memory(PATIENCE, |piece| {
        match piece {
            Piece::Enforcer { since, is_connected } if since <= now() => {
                snapshot.since = Some(since);
                begun.is_connected = is_connected;
            }
            Piece::Enforcer { .. } => return Err(Damaged::Wrong("what was not yet")),
            Piece::Interest(interest) => interests.push(interest),
            Piece::InterestComplete => snapshot.interests = Some(std::mem::take(&mut interests)),
            Piece::Told(told) => snapshot.records.push(told),
            Piece::Block(block) => heir.block(&block),
            Piece::Answer(answer) => heir.answer(&answer, now())?,
            Piece::End => {}
        }
        Ok(())
    });
    match heard {
        Ok(is_whole) => {
            begun.is_whole = is_whole;
            begun.told = snapshot.records.len();
            begun.answers = serving.cache_figures().0;
            gate.restore(snapshot);
            Ok(begun)
        }
        Err(error) => {
            heir.forget();
            Err(error)
        }
    }
}
