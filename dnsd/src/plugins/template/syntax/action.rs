//! Actions: the text between `{{` and `}}`.

use super::Refused;
use crate::config::model::Expression;
use crate::plugins::template::placeholder::{Kind, Placeholder};

type ActionError = (usize, Refused);

/// Parses an action. The error has its offset in the action.
pub(super) fn parse(code: &str, matches: &[Expression]) -> Result<Placeholder, ActionError> {
    let mut reader = Reader {
        tokens: tokens(code)?.into_iter().peekable(),
        end: code.len(),
        matches,
    };
    let placeholder = reader.pipeline()?;
    match reader.tokens.next() {
        Some((at, token)) => Err((at, Refused::Word(token.text()))),
        None => Ok(placeholder),
    }
}

/// A valid action with one blank between words and none inside parentheses.
pub(super) fn rewritten(code: &str) -> String {
    let tokens = tokens(code).unwrap_or_default();
    let ends = tokens.iter().skip(1).map(|(at, _)| *at).chain([code.len()]);
    let mut text = String::new();
    for ((at, token), end) in tokens.iter().zip(ends) {
        let is_inside = text.is_empty() || text.ends_with('(') || *token == Token::Close;
        text.push_str(if is_inside { "" } else { " " });
        text.push_str(code[*at..end].trim_end());
    }
    text
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// `.A.B`
    Field(String),
    Word(String),
    Text(String),
    Number(u64),
    Bar,
    Open,
    Close,
}

impl Token {
    fn text(&self) -> String {
        match self {
            Self::Field(text) | Self::Word(text) | Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Bar => "|".to_owned(),
            Self::Open => "(".to_owned(),
            Self::Close => ")".to_owned(),
        }
    }
}

fn tokens(code: &str) -> Result<Vec<(usize, Token)>, ActionError> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(first) = code[at..].chars().next() {
        let rest = &code[at..];
        let run = |takes: fn(char) -> bool| rest.find(|character| !takes(character)).unwrap_or(rest.len());
        let (token, length) = match first {
            blank if blank.is_whitespace() => {
                at += blank.len_utf8();
                continue;
            }
            '|' => (Token::Bar, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '.' => {
                let length = run(|character| character == '.' || is_of_word(character));
                (Token::Field(rest[..length].to_owned()), length)
            }
            '"' => quoted(rest).ok_or((at, Refused::OpenString))?,
            '`' => {
                let length = rest[1..].find('`').ok_or((at, Refused::OpenString))?;
                (Token::Text(rest[1..=length].to_owned()), length + 2)
            }
            digit if digit.is_ascii_digit() => {
                let length = run(is_of_word);
                let number = number(&rest[..length]);
                let number = number.ok_or_else(|| (at, Refused::Word(rest[..length].to_owned())))?;
                (Token::Number(number), length)
            }
            letter if is_of_word(letter) => {
                let length = run(is_of_word);
                (Token::Word(rest[..length].to_owned()), length)
            }
            other => return Err((at, Refused::Word(other.to_string()))),
        };
        tokens.push((at, token));
        at += length;
    }
    Ok(tokens)
}

fn is_of_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => None,
        None => text.parse().ok(),
    }
}

/// A string with Go's single-character escapes.
fn quoted(rest: &str) -> Option<(Token, usize)> {
    let mut text = String::new();
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((Token::Text(text), at + 1)),
            '\\' => match characters.next()?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                other @ ('"' | '\\') => text.push(other),
                _other => return None,
            },
            other => text.push(other),
        }
    }
    None
}

struct Reader<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<(usize, Token)>>,
    end: usize,
    matches: &'a [Expression],
}

/// An operand before it is evaluated.
enum Operand {
    Value(Placeholder),
    Matches,
    Groups,
}

impl Reader<'_> {
    fn pipeline(&mut self) -> Result<Placeholder, ActionError> {
        let mut placeholder = self.command(None)?;
        while self.tokens.next_if(|(_, token)| *token == Token::Bar).is_some() {
            placeholder = self.command(Some(placeholder))?;
        }
        Ok(placeholder)
    }

    fn command(&mut self, piped: Option<Placeholder>) -> Result<Placeholder, ActionError> {
        let (at, token) = self.tokens.next().ok_or((self.end, Refused::Missing))?;
        match &token {
            Token::Word(word) if word == "index" => {
                let arguments = self.arguments(piped.map(Operand::Value))?;
                self.index(at, arguments)
            }
            Token::Word(word) if word == "parseInt" => {
                let arguments = self.arguments(piped.map(Operand::Value))?;
                parse_int(at, arguments)
            }
            // There is no metadata: CoreDNS gives an empty text for any name.
            Token::Field(field) if field == ".Meta" => {
                let arguments = self.arguments(piped.map(Operand::Value))?;
                let is_text =
                    matches!(arguments.as_slice(), [Operand::Value(name)] if name.kind() == Kind::Text);
                let wrong = (at, Refused::Arguments(".Meta", "one text"));
                is_text.then(|| Placeholder::Text(String::new())).ok_or(wrong)
            }
            _operand if piped.is_some() => Err((at, Refused::Word(token.text()))),
            _operand => {
                let operand = self.operand(at, token.clone())?;
                self.value(at, operand)
            }
        }
    }

    fn arguments(&mut self, piped: Option<Operand>) -> Result<Vec<Operand>, ActionError> {
        let mut arguments = Vec::new();
        while let Some((at, token)) = self
            .tokens
            .next_if(|(_, token)| !matches!(token, Token::Bar | Token::Close))
        {
            arguments.push(self.operand(at, token)?);
        }
        arguments.extend(piped);
        Ok(arguments)
    }

    fn operand(&mut self, at: usize, token: Token) -> Result<Operand, ActionError> {
        Ok(Operand::Value(match token {
            Token::Text(text) => Placeholder::Text(text),
            Token::Number(number) => Placeholder::Number(number),
            Token::Field(field) => return self.field(at, &field),
            Token::Open => {
                let placeholder = self.pipeline()?;
                match self.tokens.next() {
                    Some((_, Token::Close)) => placeholder,
                    Some(_) | None => return Err((at, Refused::OpenParenthesis)),
                }
            }
            Token::Word(word) => return Err((at, Refused::Word(word))),
            Token::Bar | Token::Close => return Err((at, Refused::Missing)),
        }))
    }

    fn field(&self, at: usize, field: &str) -> Result<Operand, ActionError> {
        let placeholder = match field {
            ".Zone" => Placeholder::Zone,
            ".Name" => Placeholder::Name,
            ".Class" => Placeholder::Class,
            ".Type" => Placeholder::Type,
            ".Regex" => Placeholder::Regex,
            ".Remote" => Placeholder::Remote,
            ".Match" => return Ok(Operand::Matches),
            ".Group" => return Ok(Operand::Groups),
            ".Question.Name" => Placeholder::QuestionName,
            ".Question.Qtype" => Placeholder::QuestionType,
            ".Question.Qclass" => Placeholder::QuestionClass,
            ".Message.Id" => Placeholder::MessageId,
            other => {
                let flag = || {
                    other
                        .strip_prefix(".Message.")
                        .and_then(Placeholder::message_flag)
                };
                let group = other.strip_prefix(".Group.").filter(|name| !name.contains('.'));
                match group {
                    Some(name) if self.has_group(name) => Placeholder::Group(name.to_owned()),
                    Some(name) => return Err((at, Refused::Group(name.to_owned()))),
                    None => flag().ok_or_else(|| (at, Refused::Field(other.to_owned())))?,
                }
            }
        };
        Ok(Operand::Value(placeholder))
    }

    fn value(&self, at: usize, operand: Operand) -> Result<Placeholder, ActionError> {
        match operand {
            Operand::Value(placeholder) => Ok(placeholder),
            Operand::Matches => Err((at, Refused::Arguments(".Match", "an index: {{ index .Match 1 }}"))),
            Operand::Groups => Err((at, Refused::Arguments(".Group", "a name: {{ .Group.name }}"))),
        }
    }

    fn index(&self, at: usize, arguments: Vec<Operand>) -> Result<Placeholder, ActionError> {
        const TAKES: &str = ".Match and a number, or .Group and a text";
        let mut arguments = arguments.into_iter();
        match (arguments.next(), arguments.next(), arguments.next()) {
            (Some(Operand::Matches), Some(Operand::Value(number)), None) if number.kind() == Kind::Number => {
                if let Placeholder::Number(number) = number
                    && !self.has_number(number)
                {
                    return Err((at, Refused::Group(number.to_string())));
                }
                Ok(Placeholder::Match(Box::new(number)))
            }
            (Some(Operand::Groups), Some(Operand::Value(name)), None) if name.kind() == Kind::Text => {
                Ok(Placeholder::GroupAt(Box::new(name)))
            }
            _other => Err((at, Refused::Arguments("index", TAKES))),
        }
    }

    fn has_group(&self, name: &str) -> bool {
        let names = |expression: &Expression| {
            let mut names = expression.regex().capture_names();
            names.any(|known| known == Some(name))
        };
        self.matches.iter().any(names)
    }

    fn has_number(&self, number: u64) -> bool {
        let groups = self
            .matches
            .iter()
            .map(|expression| expression.regex().captures_len());
        usize::try_from(number).is_ok_and(|number| number < groups.max().unwrap_or(1))
    }
}

fn parse_int(at: usize, arguments: Vec<Operand>) -> Result<Placeholder, ActionError> {
    let wrong = (
        at,
        Refused::Arguments("parseInt", "a text, a base and a number of bits"),
    );
    let mut placeholders = Vec::new();
    for argument in arguments {
        match argument {
            Operand::Value(placeholder) => placeholders.push(placeholder),
            Operand::Matches | Operand::Groups => return Err(wrong),
        }
    }
    let placeholders: [Placeholder; 3] = placeholders
        .try_into()
        .map_err(|_other: Vec<Placeholder>| wrong.clone())?;
    let kinds = [
        placeholders[0].kind(),
        placeholders[1].kind(),
        placeholders[2].kind(),
    ];
    if kinds == [Kind::Text, Kind::Number, Kind::Number] {
        Ok(Placeholder::ParseInt(Box::new(placeholders)))
    } else {
        Err(wrong)
    }
}
