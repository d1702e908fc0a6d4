//! Groups words into server blocks, and expands snippets and imported files.

mod import;

use std::collections::HashMap;

use super::{Block, Directive, Line, Sources, Token, environment};
use crate::config::corefile::position::{Diagnostics, Error, Position};

/// Reads a stack of words, the next on top: imported words are pushed onto it.
pub(super) struct Parser<'a> {
    rest: Vec<Token>,
    sources: &'a Sources<'a>,
    diagnostics: &'a mut Diagnostics,
    snippets: HashMap<String, Vec<Token>>,
    imports: usize,
    imported: usize,
    end: Position,
}

/// What follows the keys.
enum AfterKeys {
    Brace,
    NoBrace,
    Nothing,
}

impl<'a> Parser<'a> {
    pub(super) fn new(
        mut tokens: Vec<Token>,
        sources: &'a Sources<'a>,
        diagnostics: &'a mut Diagnostics,
    ) -> Self {
        let end = tokens
            .last()
            .map_or_else(|| Position::start(sources.file), |last| last.position.clone());
        tokens.reverse();
        Self {
            rest: tokens,
            sources,
            diagnostics,
            snippets: HashMap::new(),
            imports: 0,
            imported: 0,
            end,
        }
    }

    pub(super) fn blocks(mut self) -> Result<Vec<Block>, Error> {
        let mut blocks = Vec::new();
        while !self.rest.is_empty() {
            let keys = self.keys()?;
            if keys.is_empty() {
                self.no_keys()?;
                continue;
            }
            let opened = self.opened();
            match snippet_name(&keys) {
                Some(name) => self.snippet(&keys[0], name, &opened)?,
                None => {
                    let directives = self.directives(&opened)?;
                    blocks.push(Block { keys, directives });
                }
            }
        }
        Ok(blocks)
    }

    /// The words up to a brace or the end of the line; a comma at the end continues on the next line.
    fn keys(&mut self) -> Result<Vec<Token>, Error> {
        let mut keys: Vec<Token> = Vec::new();
        let mut comma: Option<Token> = None;
        while let Some(next) = self.rest.last() {
            if next.text == "{" || (next.starts_line && !keys.is_empty() && comma.is_none()) {
                break;
            }
            if next.text == "}" {
                return Err(stray(next));
            }
            if next.starts_line && next.text == "import" {
                self.import()?;
                continue;
            }
            let token = self.take_replaced()?;
            comma = token.text.ends_with(',').then(|| token.clone());
            let text = token.text.strip_suffix(',').unwrap_or(&token.text).to_owned();
            if text == "{" || text == "}" {
                return Err(token.error(
                    "a brace is no zone",
                    "a zone before this comma, as in \"one.test, two.test {\"",
                ));
            }
            if !text.is_empty() {
                keys.push(Token { text, ..token });
            }
        }
        match comma {
            Some(comma) => Err(comma.error("no zone follows this comma", "another zone, or no comma")),
            None => Ok(keys),
        }
    }

    fn opened(&mut self) -> AfterKeys {
        match self.rest.last() {
            None => AfterKeys::Nothing,
            Some(next) if next.text == "{" => {
                self.rest.pop();
                AfterKeys::Brace
            }
            Some(_) => AfterKeys::NoBrace,
        }
    }

    /// The end of the text, or a brace without a key.
    fn no_keys(&mut self) -> Result<(), Error> {
        match self.rest.last() {
            // The import may have been empty.
            None => Ok(()),
            Some(next) => Err(next.error(
                "this server block has no zone",
                "one or more before the brace, as in \".:53 {\"",
            )),
        }
    }

    fn snippet(&mut self, key: &Token, name: String, opened: &AfterKeys) -> Result<(), Error> {
        let AfterKeys::Brace = opened else {
            return Err(key.error("this snippet has no block", "a { behind its name"));
        };
        if self.snippets.contains_key(&name) {
            return Err(key.error(format!("the snippet {name} is there already"), "each name once"));
        }
        let mut body = Vec::new();
        let mut open = 1;
        while let Some(token) = self.rest.pop() {
            match token.text.as_str() {
                "{" => open += 1,
                "}" => open -= 1,
                _word => {}
            }
            if open == 0 {
                self.snippets.insert(name, body);
                return Ok(());
            }
            body.push(token);
        }
        Err(key.error(
            format!("the block of the snippet {name} is not closed"),
            "a } for each {",
        ))
    }

    fn directives(&mut self, opened: &AfterKeys) -> Result<Vec<Directive>, Error> {
        let mut directives = Vec::new();
        loop {
            match (self.rest.last(), opened) {
                (None, AfterKeys::Brace) => return Err(self.not_closed()),
                (None, AfterKeys::NoBrace | AfterKeys::Nothing) => return Ok(directives),
                (Some(next), AfterKeys::Brace) if next.text == "}" => {
                    self.rest.pop();
                    return Ok(directives);
                }
                (Some(next), _) if matches!(next.text.as_str(), "{" | "}") => return Err(stray(next)),
                (Some(next), _) if next.text == "import" => self.import()?,
                (Some(_), _) => directives.push(self.directive()?),
            }
        }
    }

    fn directive(&mut self) -> Result<Directive, Error> {
        let head = self.line()?;
        let body = match self.rest.last() {
            Some(next) if next.text == "{" => {
                if next.starts_line {
                    return Err(next.error(
                        "this brace stands on a line of its own",
                        "it at the end of the line of its directive",
                    ));
                }
                self.rest.pop();
                Some(self.body(&head.name)?)
            }
            Some(_) | None => None,
        };
        Ok(Directive { head, body })
    }

    fn body(&mut self, of: &Token) -> Result<Vec<Line>, Error> {
        let mut lines = Vec::new();
        loop {
            match self.rest.last() {
                None => {
                    return Err(of.error(
                        format!("the block of {} is not closed", of.text),
                        "a } for each {",
                    ));
                }
                Some(next) if next.text == "}" => {
                    self.rest.pop();
                    return Ok(lines);
                }
                Some(next) if next.text == "{" => {
                    return Err(next.error("a block inside the block of a directive", "options, one a line"));
                }
                Some(next) if next.text == "import" && next.starts_line => self.import()?,
                Some(_) => lines.push(self.line()?),
            }
        }
    }

    /// A word and its arguments on the same line, up to a brace.
    fn line(&mut self) -> Result<Line, Error> {
        let name = self.take_replaced()?;
        let mut args = Vec::new();
        while let Some(next) = self.rest.last() {
            if next.starts_line || matches!(next.text.as_str(), "{" | "}") {
                break;
            }
            args.push(self.take_replaced()?);
        }
        Ok(Line { name, args })
    }

    fn take_replaced(&mut self) -> Result<Token, Error> {
        let token = self.rest.pop().ok_or_else(|| self.not_closed())?;
        environment::replace(&token, self.sources.env, self.diagnostics)
    }

    fn not_closed(&self) -> Error {
        Error {
            position: self.end.clone(),
            wrong: "the text ends inside a server block".to_owned(),
            accepted: "a } for each {".to_owned(),
        }
    }
}

fn stray(token: &Token) -> Error {
    let accepted = if token.text == "{" {
        "a directive before the brace"
    } else {
        "a { before it"
    };
    token.error(format!("a {} that belongs to nothing", token.text), accepted)
}

/// `(name)` alone.
fn snippet_name(keys: &[Token]) -> Option<String> {
    let [key] = keys else {
        return None;
    };
    let name = key.text.strip_prefix('(')?.strip_suffix(')')?;
    Some(name.to_owned())
}
