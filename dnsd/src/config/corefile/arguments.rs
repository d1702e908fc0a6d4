//! The number of arguments of an option.

use super::syntax::{Line, Token};
use crate::config::corefile::position::Error;

impl Line {
    /// No argument.
    pub(super) fn none(&self, usage: &str) -> Result<(), Error> {
        match self.args.first() {
            None => Ok(()),
            Some(more) => Err(self.surplus(more, usage)),
        }
    }

    /// One argument.
    pub(super) fn one(&self, usage: &str) -> Result<&Token, Error> {
        let [only] = self.between(1, 1, usage)? else {
            return Err(self.missing(usage));
        };
        Ok(only)
    }

    /// At most one argument.
    pub(super) fn at_most_one(&self, usage: &str) -> Result<Option<&Token>, Error> {
        Ok(self.between(0, 1, usage)?.first())
    }

    /// One or more arguments.
    pub(super) fn some(&self, usage: &str) -> Result<&[Token], Error> {
        self.between(1, usize::MAX, usage)
    }

    /// A number of arguments in a range.
    pub(super) fn between(&self, least: usize, most: usize, usage: &str) -> Result<&[Token], Error> {
        if self.args.len() < least {
            return Err(self.missing(usage));
        }
        match self.args.get(most) {
            Some(more) => Err(self.surplus(more, usage)),
            None => Ok(&self.args),
        }
    }

    /// The error for an unknown option.
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
