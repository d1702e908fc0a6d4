//! What the person sees: plain lines of at most a hundred columns; colours and passing lines only on a terminal.

use std::{
    io::{IsTerminal as _, Write as _, stdout},
    time::{Duration, Instant},
};

pub(crate) const WIDTH: u16 = 100;
const INDENT: &str = "      ";
const SHOWN_LINES: usize = 4;
const POLL: Duration = Duration::from_millis(20);

/// How a line is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    Bad,
    Heading,
    Typed,
}

impl Mood {
    pub(crate) const fn of(ok: bool) -> Self {
        if ok { Self::Good } else { Self::Bad }
    }

    const fn colour(self) -> &'static str {
        match self {
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
            Self::Heading => "\x1b[1m",
            Self::Typed => "\x1b[36m",
        }
    }
}

/// Where the demo writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    is_terminal: bool,
}

impl Screen {
    pub(crate) fn of_stdout() -> Self {
        Self {
            is_terminal: stdout().is_terminal(),
        }
    }

    pub(crate) fn blank(self) {
        println!();
    }

    pub(crate) fn plain(self, text: &str) {
        println!("{text}");
    }

    pub(crate) fn heading(self, text: &str) {
        println!();
        self.paint(Mood::Heading, text);
    }

    /// A sentence, broken where it gets too long.
    pub(crate) fn line(self, text: &str) {
        for line in fill(text.split(' '), "", "") {
            println!("{INDENT}{line}");
        }
    }

    pub(crate) fn coloured(self, mood: Mood, text: &str) {
        for line in fill(text.split(' '), "", "          ") {
            self.paint(mood, &format!("{INDENT}{line}"));
        }
    }

    /// A command as somebody would type it, broken as a shell allows.
    pub(crate) fn typed(self, prompt: &str, command: &str) {
        let words = with_their_values(command);
        let words = std::iter::once(prompt).chain(words.iter().map(String::as_str));
        for line in fill(words, " \\", "    ") {
            self.paint(Mood::Typed, &format!("{INDENT}{line}"));
        }
    }

    /// The first lines of what a program said.
    pub(crate) fn output(self, text: &str) {
        let lines = text.lines().collect::<Vec<_>>();
        for line in lines.iter().take(SHOWN_LINES) {
            println!("{INDENT}  {}", line.trim_end());
        }
        if lines.len() > SHOWN_LINES {
            println!("{INDENT}  … {} more lines", lines.len() - SHOWN_LINES);
        }
    }

    /// Asks again and again until there is an answer; on a terminal a passing line shows that it goes on.
    pub(crate) fn wait<T>(
        self,
        what: &str,
        patience: Duration,
        mut ask: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let begun = Instant::now();
        let answer = loop {
            let answer = ask();
            if answer.is_some() || begun.elapsed() > patience {
                break answer;
            }
            self.pass(&format!(
                "{INDENT}… {what}: {:.1} s",
                begun.elapsed().as_secs_f64()
            ));
            std::thread::sleep(POLL);
        };
        self.pass("");
        answer
    }

    /// A line that the next one replaces.
    pub(crate) fn pass(self, text: &str) {
        if self.is_terminal {
            print!("\r\x1b[K{text}");
            // A terminal that is gone shows nothing; the next `println!` says so.
            drop(stdout().flush());
        }
    }

    fn paint(self, mood: Mood, text: &str) {
        if self.is_terminal {
            println!("{}{text}\x1b[0m", mood.colour());
        } else {
            println!("{text}");
        }
    }
}

/// Breaks between words; `end` stands behind each line but the last, `begin` before each but the first.
fn fill<'a>(words: impl Iterator<Item = &'a str>, end: &str, begin: &str) -> Vec<String> {
    let room = usize::from(WIDTH) - INDENT.len() - end.len();
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in words {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(line + end);
            line = begin.to_owned() + word;
        } else {
            let gap = if line.is_empty() { "" } else { " " };
            line = line + gap + word;
        }
    }
    lines.push(line);
    lines
}

/// An option and its value stay on one line.
fn with_their_values(command: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in command.split(' ') {
        match words.last_mut() {
            Some(option) if option.starts_with("--") && !option.contains(' ') && !word.starts_with("--") => {
                *option += &format!(" {word}");
            }
            Some(_) | None => words.push(word.to_owned()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_between_words_and_short_ones_do_not() {
        let word = "x".repeat(30);
        for (words, lines) in [(1, 1), (3, 1), (4, 2), (9, 4)] {
            let filled = fill(vec![word.as_str(); words].into_iter(), " \\", "  ");
            assert_eq!(filled.len(), lines, "{filled:#?}");
            assert!(
                filled
                    .iter()
                    .all(|line| line.len() + INDENT.len() <= usize::from(WIDTH))
            );
            assert_eq!(
                filled.iter().filter(|line| line.ends_with('\\')).count(),
                lines - 1
            );
        }
    }

    #[test]
    fn an_option_stays_with_its_value() {
        assert_eq!(
            with_their_values("dnsd --listen [::]:53 --force-tcp --link /run/x more"),
            ["dnsd", "--listen [::]:53", "--force-tcp", "--link /run/x", "more"]
        );
    }
}
