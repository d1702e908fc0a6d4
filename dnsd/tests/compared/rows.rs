//! The rows, a file for each part of the Corefile.

mod cache;
mod forward;
mod local;
mod rewrite;
mod server;

use std::time::Duration;

/// What an upstream does.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    Honest,
    /// Other addresses than before.
    Changed,
    Silent,
    /// Answers late, but checks at once.
    Slow(Duration),
    /// Says that no name exists.
    Denied,
    /// Says that no name has records.
    Empty,
    Code(u8),
}

/// What is done, and what is written down of it.
#[derive(Debug)]
pub(crate) enum Step {
    /// `NAME TYPE [tcp] [do] [plain] [norec] [chaos] [size=N] [at=THERE]`
    Ask(&'static str),
    /// Several times, one after the other: whether an upstream is asked each time.
    Again(&'static str),
    /// At once.
    AskAll(&'static [&'static str]),
    /// At once: only which codes come.
    Codes(&'static [&'static str]),
    /// Which records stand first in so many answers.
    First {
        times: usize,
        question: &'static str,
    },
    /// Which record stands first most often.
    Usual {
        times: usize,
        question: &'static str,
    },
    /// Whether the TTL is less after a while.
    Counts {
        question: &'static str,
        after: Duration,
    },
    /// Asks for so many names, twice: whether all were remembered.
    Remembers {
        names: usize,
        under: &'static str,
    },
    Wait(Duration),
    /// From now on.
    Mode(usize, Mode),
    Write(&'static str, &'static str),
    /// Asks until the answer has this.
    Until(&'static str, &'static str),
    /// Whether the first upstream is asked something after the last wait.
    Anew,
    /// The form of the checks of an upstream's health.
    Checks(usize),
    Log(&'static str),
    Get(u16, &'static str),
    Metrics(&'static [&'static str]),
    /// The upper bounds of histograms.
    Bounds(&'static [&'static str]),
    /// Is told to end: whether it does at once.
    Ends,
    /// Whether a connection of a client is ended within this time.
    Idle(Duration),
    /// Whether a connection on which nothing was asked yet is ended within this time.
    Mute(Duration),
    /// How many questions of a connection are answered, of so many.
    Questions(usize),
    /// How many connections upstreams were given.
    Connections,
    /// Whether connections to the first upstream stay open.
    Open,
    /// How many upstreams were asked.
    Spread,
}

/// An option, and two configurations that it tells apart.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) option: &'static str,
    pub(crate) case: &'static str,
    /// Lines of a block for all names; or blocks, if it begins with a dot.
    pub(crate) plain: &'static str,
    pub(crate) with: &'static str,
    pub(crate) steps: &'static [Step],
    pub(crate) modes: &'static [(usize, Mode)],
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// What EDNS says is compared, too.
    pub(crate) edns: bool,
}

impl Row {
    const fn new(
        option: &'static str,
        plain: &'static str,
        with: &'static str,
        steps: &'static [Step],
    ) -> Self {
        Self {
            option,
            case: "",
            plain,
            with,
            steps,
            modes: &[],
            files: &[],
            edns: false,
        }
    }

    const fn case(self, case: &'static str) -> Self {
        Self { case, ..self }
    }

    const fn modes(self, modes: &'static [(usize, Mode)]) -> Self {
        Self { modes, ..self }
    }

    const fn files(self, files: &'static [(&'static str, &'static str)]) -> Self {
        Self { files, ..self }
    }

    const fn edns(self) -> Self {
        Self { edns: true, ..self }
    }

    pub(crate) fn name(&self) -> String {
        match self.case {
            "" => self.option.to_owned(),
            case => format!("{}: {case}", self.option),
        }
    }
}

pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    [
        cache::ROWS,
        forward::ROWS,
        local::ROWS,
        rewrite::ROWS,
        server::ROWS,
    ]
    .into_iter()
    .flatten()
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
