//! `import SNIPPET`, `import FILE`, `import PATTERN`: replaced by the imported words.

use std::path::{Path, PathBuf};

use super::super::lexer;
use super::{Parser, Token};
use crate::config::corefile::position::Error;

/// The most imports in a Corefile (CoreDNS' limit for snippets).
const MOST: usize = 10_000;

/// The most words that imports may add: snippets that import snippets twice grow exponentially.
const MOST_WORDS: usize = 500_000;

/// The deepest nesting of imports.
const DEEPEST: u16 = 50;

impl Parser<'_> {
    /// Replaces the two words by what they import.
    pub(super) fn import(&mut self) -> Result<(), Error> {
        let line = self.line()?;
        let what = match line.args.as_slice() {
            [what] if !what.text.is_empty() => what,
            [] | [_] => {
                return Err(line
                    .name
                    .error("import names nothing", "import FILE|PATTERN|SNIPPET"));
            }
            [_, more, ..] => {
                return Err(more.error(
                    "import takes one word (CoreDNS' snippets have no arguments)",
                    "import FILE|PATTERN|SNIPPET",
                ));
            }
        };
        self.count(&line.name)?;
        let depth = line.name.depth + 1;
        let words = match self.snippets.get(&what.text) {
            Some(body) => body.clone(),
            None => self.files(what)?,
        };
        self.lay(words, depth, what)
    }

    fn count(&mut self, import: &Token) -> Result<(), Error> {
        self.imports += 1;
        if self.imports > MOST {
            return Err(import.error("too many imports", format!("{MOST} of them")));
        }
        if import.depth >= DEEPEST {
            return Err(import.error(
                "imports within imports without an end",
                format!("{DEEPEST} of them within each other"),
            ));
        }
        Ok(())
    }

    fn lay(&mut self, mut words: Vec<Token>, depth: u16, what: &Token) -> Result<(), Error> {
        self.imported = self.imported.saturating_add(words.len());
        if self.imported > MOST_WORDS {
            return Err(what.error("too much is imported", format!("{MOST_WORDS} words")));
        }
        for word in &mut words {
            word.depth = depth;
        }
        if let Some(first) = words.first_mut() {
            first.starts_line = true;
        }
        // The word after an import starts a line, even if it is on the same one.
        if let Some(next) = self.rest.last_mut() {
            next.starts_line = true;
        }
        self.rest.extend(words.into_iter().rev());
        Ok(())
    }

    fn files(&mut self, what: &Token) -> Result<Vec<Token>, Error> {
        let folder = Path::new(&*what.position.file)
            .parent()
            .unwrap_or_else(|| Path::new(""));
        let path = folder.join(&what.text);
        let is_pattern = what.text.contains(['*', '?']);
        if !is_pattern {
            return self.file(&path, what);
        }
        one_wildcard(what)?;
        let matches = self.paths(&path, what)?;
        if matches.is_empty() {
            let text = format!("no file matches {}: nothing is imported", path.display());
            self.diagnostics.warn(&what.position, text);
        }
        let mut words = Vec::new();
        for path in matches {
            words.extend(self.file(&path, what)?);
        }
        Ok(words)
    }

    fn paths(&self, pattern: &Path, what: &Token) -> Result<Vec<PathBuf>, Error> {
        let list = self.load(pattern, what)?;
        Ok(list.lines().map(PathBuf::from).collect())
    }

    fn file(&self, path: &Path, what: &Token) -> Result<Vec<Token>, Error> {
        let text = self.load(path, what)?;
        lexer::tokens(&text, &path.to_string_lossy())
    }

    fn load(&self, path: &Path, what: &Token) -> Result<String, Error> {
        (self.sources.load)(path).map_err(|error| {
            what.error(
                format!("{} cannot be imported: {error}", path.display()),
                "a file that can be read, or a snippet that stands above",
            )
        })
    }
}

/// As in CoreDNS: patterns with many wildcards are slow to match.
fn one_wildcard(what: &Token) -> Result<(), Error> {
    let counts = ['*', '?'].map(|wildcard| what.text.matches(wildcard).count());
    if counts.iter().any(|count| *count > 1) || what.text.contains(['[', ']']) {
        return Err(what.error(
            format!("the pattern {} has several wildcards", what.text),
            "one * and one ? at most, and no []",
        ));
    }
    Ok(())
}
