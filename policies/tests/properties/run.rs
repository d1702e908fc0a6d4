//! The runs: cases that were found, and new ones, with what they hit.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::generator;
use crate::ids::{How, Id, Ids, ROWS, Row};
use crate::judge::{Difference, Judged, judge};
use crate::scenario::Scenario;
use crate::shrink::shrink;

/// The first seed where none is given.
const FIRST: u64 = 1;
/// So many stories are played where no time is given: at least, and at most until every number was hit.
const STORIES: (u64, u64) = (700, 3000);
/// A number with so many hits is looked for in every sixteenth story only.
const ENOUGH: usize = 5;
/// A long run says now and then how far it is.
const TELL_EVERY: u64 = 20_000;
/// A run ends after so many differences.
const MOST_DIFFERENCES: usize = 5;

#[test]
fn cases_that_were_found_are_decided_alike() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(found())
        .expect("the cases that were found")
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let story = Scenario::from_file(&std::fs::read_to_string(&file).unwrap());
        if let Err(difference) = judge(&story, Ids::default()) {
            panic!("{}: {}", file.display(), difference.sentence);
        }
    }
}

#[test]
fn objects_mean_the_same_to_all_who_decide() {
    let seconds = std::env::var("EGRET_PROPERTY_SECONDS").map(|text| text.parse().expect("seconds"));
    let first = std::env::var("EGRET_PROPERTY_SEED").map(|text| text.parse().expect("a number"));
    let (first, limit) = match seconds {
        Err(_) => (first.unwrap_or(FIRST), Limit::Hits),
        Ok(seconds) => {
            let new = RandomState::new().build_hasher().finish() >> 16;
            (
                first.unwrap_or(new),
                Limit::Until(now() + Duration::from_secs(seconds)),
            )
        }
    };
    println!("seeds from {first} on (EGRET_PROPERTY_SEED)");
    let mut run = Run::default();
    for seed in first.. {
        if limit.is_reached(&run) || run.found.len() == MOST_DIFFERENCES {
            break;
        }
        run.play(seed);
        if run.stories.is_multiple_of(TELL_EVERY) {
            println!("{} stories so far, {} differences", run.stories, run.found.len());
        }
    }
    run.tell();
    assert!(
        run.found.is_empty(),
        "{} differences: {:#?}",
        run.found.len(),
        run.found
    );
    assert!(run.missed().is_empty(), "never hit: {:#?}", run.missed());
}

enum Limit {
    /// Every number was hit.
    Hits,
    Until(Instant),
}

impl Limit {
    fn is_reached(&self, run: &Run) -> bool {
        let (least, most) = STORIES;
        match self {
            Self::Hits => run.stories >= most || (run.stories >= least && run.missed().is_empty()),
            Self::Until(end) => now() >= *end,
        }
    }
}

/// What came of the stories so far.
#[derive(Debug)]
struct Run {
    stories: u64,
    connections: usize,
    /// In how many stories a number decided a connection, and in how many it was looked for.
    hits: Vec<(usize, usize)>,
    /// Differences, with their seeds and files.
    found: Vec<String>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            stories: 0,
            connections: 0,
            hits: vec![(0, 0); ROWS.len()],
            found: Vec::new(),
        }
    }
}

impl Run {
    fn play(&mut self, seed: u64) {
        let story = generator::story(seed);
        let wanted = self.wanted(seed);
        self.stories += 1;
        match judge_safely(&story, wanted) {
            Ok(judged) => {
                self.connections += judged.connections;
                for id in wanted.iter() {
                    let (hits, looked) = &mut self.hits[id as usize];
                    *looked += 1;
                    *hits += usize::from(judged.hits.has(id));
                }
            }
            Err(difference) => self.found.push(keep(seed, story, difference)),
        }
    }

    /// The numbers to look for: all that have few hits, and some of the others.
    fn wanted(&self, seed: u64) -> Ids {
        let mut wanted = Ids::default();
        for row in counted() {
            let is_rare = self.hits[row as usize].0 < ENOUGH;
            if is_rare || (seed + row as u64).is_multiple_of(16) {
                wanted.add(row);
            }
        }
        wanted
    }

    fn missed(&self) -> Vec<String> {
        let missed = counted().filter(|id| self.hits[*id as usize].0 == 0);
        missed.map(|id| describe(id.row())).collect()
    }

    fn tell(&self) {
        println!(
            "{} stories, {} connections judged at each end",
            self.stories, self.connections
        );
        println!("of so many stories in which it was looked for, a number decided a connection in:");
        for row in ROWS {
            let (hits, looked) = self.hits[row.id.counted_as() as usize];
            match row.how {
                How::Unless(_) | How::Seen(_) => {
                    println!("{:>6} {hits:>7} of {looked:<8} {}", row.name, row.sentence)
                }
                How::As(other) => println!("{:>6} as {}: {}", row.name, other.row().name, row.sentence),
                How::Elsewhere(why) => println!("{:>6} not here ({why}): {}", row.name, row.sentence),
            }
        }
    }
}

/// The numbers that are counted by themselves.
fn counted() -> impl Iterator<Item = Id> {
    let is_counted = |how: &How| matches!(how, How::Unless(_) | How::Seen(_));
    ROWS.iter()
        .filter(move |row| is_counted(&row.how))
        .map(|row| row.id)
}

/// A number with what hits it.
fn describe(row: &Row) -> String {
    let how = match row.how {
        How::Unless(mistake) => format!("by a verdict that is another one if {mistake}"),
        How::Seen(what) => format!("where {what}"),
        How::As(other) => format!("as {}", other.row().name),
        How::Elsewhere(why) => format!("not here: {why}"),
    };
    format!("{}: {} (hit {how})", row.name, row.sentence)
}

/// Makes the story small and writes it to a file.
fn keep(seed: u64, story: Scenario, difference: Difference) -> String {
    let is_bad = |story: &Scenario| judge_safely(story, Ids::default()).is_err();
    let story = shrink(story, difference.flow, is_bad);
    let sentence = judge_safely(&story, Ids::default())
        .err()
        .map_or(difference.sentence, |difference| difference.sentence);
    let file = found().join(format!("seed-{seed}.yaml"));
    let text = story.to_file(&sentence);
    let written = std::fs::write(&file, &text);
    format!("seed {seed}: {sentence}\n{} {written:?}\n{text}", file.display())
}

/// A panic is a difference too.
fn judge_safely(story: &Scenario, wanted: Ids) -> Result<Judged, Difference> {
    let judged = catch_unwind(AssertUnwindSafe(|| judge(story, wanted)));
    judged.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(Difference {
            flow: None,
            sentence: format!("a panic: {}", text.unwrap_or_default()),
        })
    })
}

fn found() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found")
}

/// A run knows its own time; nothing that it tests does.
#[expect(
    clippy::disallowed_methods,
    reason = "the length of a run is no property of what is run"
)]
fn now() -> Instant {
    Instant::now()
}
