//! The blocks of docs/policies.md that come from elsewhere, written anew.
//!
//! - A `yaml` block is the file to which the paragraph before it links: there is none without a file.
//! - A `console` block is a command and what it prints.
//! - A table behind a link to an `expected.jsonl` is the verdicts of that example.

use std::collections::BTreeSet;

use super::{egret, read, verdicts};

/// The document as it should be, and what was found in it.
pub(crate) struct Document {
    pub(crate) text: String,
    pub(crate) tables: BTreeSet<String>,
    pub(crate) manifests: usize,
    pub(crate) commands: usize,
}

/// Writes every block anew.
pub(crate) fn renew(written: &str) -> Document {
    let mut document = Document {
        text: String::new(),
        tables: BTreeSet::new(),
        manifests: 0,
        commands: 0,
    };
    let mut lines = written.lines().peekable();
    // The paragraph before the line.
    let mut before = String::new();
    let mut goes_on = false;
    while let Some(line) = lines.next() {
        let body = match line {
            "```yaml" => {
                document.manifests += 1;
                Some(read(linked(&before, ".yaml").unwrap_or_else(|| {
                    panic!("a block without a file, after {before:?}")
                })))
            }
            "```console" => {
                document.commands += 1;
                Some(answer(lines.peek().unwrap()))
            }
            _ => None,
        };
        document.push(line);
        if let Some(body) = body {
            lines
                .by_ref()
                .find(|line| *line == "```")
                .expect("the block ends");
            body.lines().for_each(|line| document.push(line));
            document.push("```");
        } else if let Some(example) = linked(&before, "/expected.jsonl").filter(|_| line.starts_with('|')) {
            // The first line of a table is its header: only that is the author's.
            while lines.next_if(|line| line.starts_with('|')).is_some() {}
            let example = example.trim_end_matches("/expected.jsonl");
            document.text.truncate(document.text.len() - line.len() - 1);
            verdicts::table(example).iter().for_each(|row| document.push(row));
            document.tables.insert(example.to_owned());
        }
        if !line.is_empty() {
            let begun = if goes_on { before.as_str() } else { "" };
            before = format!("{begun}{line} ");
        }
        goes_on = !line.is_empty();
    }
    document
}

impl Document {
    fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
}

/// The last file of the examples with this ending to which a line links.
fn linked<'a>(line: &'a str, ending: &str) -> Option<&'a str> {
    let links = line.rsplit("](../deploy/examples/");
    links
        .filter_map(|rest| rest.split_once(')'))
        .map(|(path, _)| path)
        .find(|path| path.ends_with(ending))
}

/// A command with what it prints.
fn answer(command: &str) -> String {
    let arguments = command
        .strip_prefix("$ egret ")
        .unwrap_or_else(|| panic!("no command of egret: {command:?}"));
    let answered = egret(arguments.split(' '));
    assert_ne!(answered.status, Some(2), "{command}: {}", answered.stderr);
    let printed = answered.stdout.lines().map(str::trim_end).collect::<Vec<_>>();
    format!("{command}\n{}", printed.join("\n"))
}
