//! How many words an option takes.

use super::syntax::{Line, Token};
use crate::config::corefile::position::Error;

impl Line {
    /// Takes no words.
    pub(super) fn none(&self, usage: &str) -> Result<(), Error> {
        match self.args.first() {
            None => Ok(()),
            Some(more) => Err(self.surplus(more, usage)),
        }
    }

    /// Takes one.
    pub(super) fn one(&self, usage: &str) -> Result<&Token, Error> {
        let [only] = self.between(1, 1, usage)? else {
            return Err(self.missing(usage));
        };
        Ok(only)
    }

    /// Takes one or none.
    pub(super) fn at_most_one(&self, usage: &str) -> Result<Option<&Token>, Error> {
        Ok(self.between(0, 1, usage)?.first())
    }

    /// Takes one or more.
    pub(super) fn some(&self, usage: &str) -> Result<&[Token], Error> {
        self.between(1, usize::MAX, usage)
    }

    /// Takes as many.
    pub(super) fn between(&self, least: usize, most: usize, usage: &str) -> Result<&[Token], Error> {
        if self.args.len() < least {
            return Err(self.missing(usage));
        }
        match self.args.get(most) {
            Some(more) => Err(self.surplus(more, usage)),
            None => Ok(&self.args),
        }
    }

    /// That this is not an option of the directive.
    pub(super) fn unknown(&self, directive: &str) -> Error {
        self.name.error(
            format!("{directive}: there is no option {:?}", self.name.text),
            crate::config::corefile::directive::accepted::options(directive),
        )
    }

    fn missing(&self, usage: &str) -> Error {
        self.name
            .error(format!("{}: a word is missing behind it", self.name.text), usage)
    }

    fn surplus(&self, more: &Token, usage: &str) -> Error {
        more.error(
            format!("{}: {:?} is one word too many", self.name.text, more.text),
            usage,
        )
    }
}
