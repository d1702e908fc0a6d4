//! Whether `docs/conformance.md` says of every line of the texts what keeps it, and says so truly.

#![allow(clippy::unwrap_used, reason = "a page that cannot be read fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/conformance.md";

/// How many lines each text has.
const TEXTS: [(&str, usize); 22] = [
    ("API", 9),
    ("NP", 30),
    ("ANP", 14),
    ("CNP", 17),
    ("STACK", 12),
    ("CROSS", 18),
    ("RULE", 12),
    ("OPEN", 4),
    ("MOVE", 14),
    ("X", 13),
    ("DECIDE", 19),
    ("F", 33),
    ("G", 8),
    ("TRAP", 14),
    ("R", 30),
    ("U", 5),
    ("E", 12),
    ("EXAMPLE", 6),
    ("P", 18),
    ("K", 19),
    ("CASE", 61),
    ("KONN", 23),
];

/// Start of a test's path, the level at which it proves; the first that fits counts.
/// P: packets, R: compiled rules, O: offline.
const LEVELS: [(&str, char); 14] = [
    ("integration/tests/", 'P'),
    ("enforcer/tests/render", 'R'),
    ("enforcer/tests/objects", 'R'),
    ("enforcer/tests/", 'P'),
    ("dnsd/tests/end_to_end", 'P'),
    ("dnsd/tests/", 'O'),
    ("policies/tests/lowering_", 'O'),
    ("policies/tests/controller", 'O'),
    ("policies/tests/schema", 'O'),
    ("policies/tests/", 'R'),
    ("cli/tests/", 'O'),
    ("enforcer/src/", 'O'),
    ("shared/src/", 'O'),
    ("konnectivity/tests/", 'O'),
];

/// A line of the page.
struct Line {
    id: String,
    statement: String,
    state: String,
    levels: String,
    tests: Vec<String>,
}

impl Line {
    fn is_pending(&self) -> bool {
        self.state.starts_with("pending: ")
    }
}

#[test]
fn every_id_is_there_once() {
    let expected: BTreeSet<String> = TEXTS
        .iter()
        .flat_map(|(text, last)| (1..=*last).map(move |number| format!("{text}-{number}")))
        .collect();
    let mut seen = BTreeSet::new();
    for line in page() {
        assert!(seen.insert(line.id.clone()), "{} is there twice", line.id);
        assert!(!line.statement.is_empty(), "{} says nothing", line.id);
    }
    assert_eq!(seen, expected);
}

#[test]
fn every_state_is_one_and_kept_lines_have_a_test() {
    for line in page() {
        let is_reasoned = |start: &str| {
            line.state
                .strip_prefix(start)
                .is_some_and(|reason| !reason.is_empty())
        };
        let is_kept = line.state == "kept" && !line.tests.is_empty();
        let is_ours = line.is_pending() || is_kept;
        assert!(
            is_ours || (is_reasoned("not ours, because ") && line.tests.is_empty()),
            "{}: {} with {:?}",
            line.id,
            line.state,
            line.tests
        );
    }
}

/// `EGRET_UPDATE=1` writes the levels into the page.
#[test]
fn every_line_has_the_levels_of_its_tests() {
    let page = read(PAGE);
    let lines: Vec<String> = page.lines().map(with_levels).collect();
    let expected = lines.join("\n") + "\n";
    if std::env::var_os("EGRET_UPDATE").is_some() {
        fs::write(root().join(PAGE), &expected).unwrap();
        return;
    }
    for line in page.lines().filter_map(line) {
        assert_eq!(line.levels, levels(&line.tests), "{}", line.id);
    }
    assert_eq!(page, expected, "EGRET_UPDATE=1 writes {PAGE} anew");
}

#[test]
fn every_test_that_is_named_exists() {
    let mut files = BTreeMap::new();
    for line in page() {
        for test in &line.tests {
            let (path, function) = test.split_once("::").unwrap();
            let tests = files.entry(path.to_owned()).or_insert_with(|| tests_of(path));
            assert!(tests.contains(function), "{}: {test} is no test", line.id);
        }
    }
}

#[test]
fn rows_that_carry_an_id_are_named_in_its_line_and_no_others() {
    let mut written = BTreeSet::new();
    for path in texts() {
        for (id, function) in ids_of(&path) {
            written.insert((id, format!("{path}::{function}")));
        }
    }
    assert!(written.len() > 300, "{} rows", written.len());
    let named: BTreeSet<(String, String)> = page()
        .into_iter()
        .flat_map(|line| {
            let id = line.id;
            line.tests.into_iter().map(move |test| (id.clone(), test))
        })
        .filter(|(_, test)| test.starts_with("cli/tests/texts_"))
        .collect();
    assert_eq!(
        written.difference(&named).collect::<Vec<_>>(),
        Vec::<&(String, String)>::new(),
        "not in the page"
    );
    assert_eq!(
        named.difference(&written).collect::<Vec<_>>(),
        Vec::<&(String, String)>::new(),
        "not in the rows"
    );
}

#[test]
fn the_specification_lists_what_is_pending() {
    let specification = read("SPECIFICATION.md");
    let section = specification
        .split("\n## ")
        .find(|section| section.starts_with("Corner cases of other implementations"))
        .unwrap();
    assert!(section.contains("(docs/conformance.md)"));
    let mut listed = BTreeSet::new();
    for item in section.lines().filter_map(|line| line.strip_prefix("- ")) {
        for id in item.split_once(": ").unwrap().0.split(", ") {
            assert!(listed.insert(id.to_owned()), "{id} is listed twice");
        }
    }
    let pending: BTreeSet<String> = page()
        .into_iter()
        .filter(Line::is_pending)
        .map(|line| line.id)
        .collect();
    assert_eq!(listed, pending);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn page() -> Vec<Line> {
    read(PAGE).lines().filter_map(line).collect()
}

/// The letters of the levels at which these tests prove, in the order P R O; a dash for no test.
fn levels(tests: &[String]) -> String {
    let level = |test: &String| {
        let row = LEVELS.iter().find(|(start, _)| test.starts_with(start));
        row.unwrap_or_else(|| panic!("no level for {test}")).1
    };
    let found: BTreeSet<char> = tests.iter().map(level).collect();
    let letters: Vec<String> = "PRO"
        .chars()
        .filter(|letter| found.contains(letter))
        .map(String::from)
        .collect();
    match letters.as_slice() {
        [] => "–".to_owned(),
        letters => letters.join(" "),
    }
}

/// A line of the page with the levels of its tests, other text as it is.
fn with_levels(text: &str) -> String {
    let Some(line) = line(text) else {
        return text.to_owned();
    };
    let (before, tests) = text.rsplit_once(" | ").unwrap();
    let (before, _) = before.rsplit_once(" | ").unwrap();
    format!("{before} | {} | {tests}", levels(&line.tests))
}

/// `| id | statement | state | levels | tests |`; the heads of tables have no number.
fn line(text: &str) -> Option<Line> {
    let text = text.replace("\\|", "or");
    let cells: Vec<&str> = text
        .strip_prefix("| ")?
        .strip_suffix('|')?
        .split(" | ")
        .map(str::trim)
        .collect();
    let [id, statement, state, levels, tests] = cells[..] else {
        assert!(!is_id(cells[0]), "{} cells: {text}", cells.len());
        return None;
    };
    let tests = tests
        .split(", ")
        .map(|test| test.trim_matches('`'))
        .filter(|test| !test.is_empty());
    is_id(id).then(|| Line {
        id: id.to_owned(),
        statement: statement.to_owned(),
        state: state.to_owned(),
        levels: levels.to_owned(),
        tests: tests.map(str::to_owned).collect(),
    })
}

fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(text, number)| {
        !text.is_empty()
            && text.chars().all(|letter| letter.is_ascii_uppercase())
            && number.parse::<usize>().is_ok()
    })
}

/// The functions of a file that are run as tests: those with the attribute, and stories of the list.
fn tests_of(path: &str) -> BTreeSet<String> {
    let text = read(path);
    if path.starts_with("integration/tests/scenarios/") {
        let list = read("integration/tests/scenarios/mod.rs");
        let is_told = |name: &String| list.contains(&format!(": {name} without "));
        return text.lines().filter_map(function).filter(is_told).collect();
    }
    functions(&text).into_iter().map(|(name, _)| name).collect()
}

/// Tests of a text in their order, each with the lines up to the next one.
fn functions(text: &str) -> Vec<(String, Vec<&str>)> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    let mut is_marked = false;
    for line in text.lines() {
        is_marked |= line.trim() == "#[test]" || line.trim().starts_with("#[tokio::test");
        if let Some(name) = function(line).filter(|_| is_marked) {
            found.push((name, Vec::new()));
            is_marked = false;
        } else if let Some((_, lines)) = found.last_mut() {
            lines.push(line);
        }
    }
    found
}

/// The name of the function that begins in a line.
fn function(line: &str) -> Option<String> {
    let rest = line.split_once("fn ")?.1;
    let end = rest.find(['(', '<'])?;
    Some(rest[..end].to_owned())
}

/// The files of tables.
fn texts() -> Vec<String> {
    let folder = fs::read_dir(root().join("cli/tests")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let texts = names.filter(|name| name.starts_with("texts_") && name.ends_with(".rs"));
    texts.map(|name| format!("cli/tests/{name}")).collect()
}

/// Each id in the texts of a file, with the test that it stands in.
fn ids_of(path: &str) -> Vec<(String, String)> {
    let text = read(path);
    let mut found = Vec::new();
    for (function, lines) in functions(&text) {
        for literal in lines.iter().flat_map(|line| line.split('"').skip(1).step_by(2)) {
            let words: Vec<&str> = literal.split(' ').collect();
            if words.iter().all(|word| is_id(word)) {
                found.extend(words.iter().map(|word| ((*word).to_owned(), function.clone())));
            }
        }
    }
    found
}
