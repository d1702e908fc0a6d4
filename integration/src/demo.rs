//! The demo: shows Egret to a newcomer with the real daemons and stock programs. Each step prints what it expects and
//! then what it sees; the table at the end has both.

mod story;
mod names;
mod lifecycle;
mod changes;
mod deployment;
mod keep;
mod screen;
mod stop;

use std::time::Instant;

use comfy_table::{ContentArrangement, Table, presets::ASCII_HORIZONTAL_ONLY};

use crate::{LookupFailure, WorldError, leftovers_of};

use self::{
    deployment::Deployment,
    screen::WIDTH,
    story::{CLEANUP, STORY, Step},
};
pub(crate) use self::{
    screen::{Mood, Screen},
    stop::Stop,
};

/// How the demo ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every step showed the expected result.
    AsExpected,
    /// At least one step did not.
    Differs,
    /// It was stopped before its end.
    Interrupted,
}

/// Why a step, or the whole demo, could not be played.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    World(#[from] WorldError),
    #[error(transparent)]
    Lookup(#[from] LookupFailure),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Unexpected(String),
}

/// What a step showed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    text: String,
    ok: bool,
}

impl Seen {
    fn new(ok: bool, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ok,
        }
    }
}

/// A line of the table.
#[derive(Clone, Debug)]
struct Row {
    title: &'static str,
    expected: &'static str,
    seen: Seen,
}

/// Plays the whole story on a backend; with `keep`, everything stays until Ctrl-C or SIGTERM.
///
/// # Errors
/// When the world or the daemons cannot be started at all.
pub fn run(keep: bool, backend: &str) -> Result<Ending, DemoError> {
    let begun = Instant::now();
    let stop = Stop::listen()?;
    let screen = Screen::of_stdout();
    screen.plain("Egret on one node: DNS answers that open exactly the doors that policies name.");
    let mut deployment = Deployment::build(screen, backend)?;
    let mut rows = play(&mut deployment, &stop);
    let interrupted = rows.len() < STORY.len();
    if keep && !interrupted {
        show(screen, &rows, begun);
        deployment.show_how_to_play()?;
        stop.wait();
    }
    if interrupted {
        take_down(deployment);
        return Ok(Ending::Interrupted);
    }
    rows.push(play_one(&mut deployment, &CLEANUP, rows.len() + 1));
    rows.push(take_down(deployment));
    if !keep {
        show(screen, &rows, begun);
    }
    Ok(if rows.iter().all(|row| row.seen.ok) {
        Ending::AsExpected
    } else {
        Ending::Differs
    })
}

/// One row for each step, fewer when it was stopped.
fn play(deployment: &mut Deployment, stop: &Stop) -> Vec<Row> {
    let mut rows = Vec::new();
    for step in STORY {
        if stop.was_asked() {
            break;
        }
        rows.push(play_one(deployment, step, rows.len() + 1));
    }
    rows
}

fn play_one(deployment: &mut Deployment, step: &'static Step, number: usize) -> Row {
    let screen = deployment.screen();
    screen.heading(&format!("{number:>2}  {}", step.title));
    step.about.iter().for_each(|line| screen.line(line));
    let seen = (step.act)(deployment).unwrap_or_else(|error| Seen::new(false, error.to_string()));
    conclude(
        screen,
        Row {
            title: step.title,
            expected: step.expected,
            seen,
        },
    )
}

fn take_down(deployment: Deployment) -> Row {
    let screen = deployment.screen();
    screen.heading("    The end");
    let name = deployment.name();
    drop(deployment);
    let left = leftovers_of(&name);
    let seen = if left.is_empty() {
        Seen::new(true, "nothing is left")
    } else {
        Seen::new(false, left.join("; "))
    };
    conclude(
        screen,
        Row {
            title: "Everything is taken down",
            expected: "no namespace, mount, process or cgroup is left",
            seen,
        },
    )
}

fn conclude(screen: Screen, row: Row) -> Row {
    let mood = Mood::of(row.seen.ok);
    screen.line(&format!("expected  {}", row.expected));
    screen.coloured(mood, &format!("seen      {}", row.seen.text));
    row
}

fn show(screen: Screen, rows: &[Row], begun: Instant) {
    let mut table = Table::new();
    table
        .load_style(ASCII_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(["step", "expected", "seen", "ok"]);
    for row in rows {
        let ok = if row.seen.ok { "yes" } else { "NO" };
        table.add_row([row.title, row.expected, &row.seen.text, ok]);
    }
    let good = rows.iter().filter(|row| row.seen.ok).count();
    screen.blank();
    screen.plain(&table.to_string());
    screen.blank();
    let summary = format!(
        "{good} of {} steps as expected, in {:.1} s.",
        rows.len(),
        begun.elapsed().as_secs_f64()
    );
    screen.coloured(Mood::of(good == rows.len()), &summary);
}
