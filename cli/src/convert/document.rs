//! A document with everything that its author wrote besides the values: comments, empty lines, quotes, and
//! whether a list or mapping is in block or flow style. What is not changed is printed as it was.

use serde_json::{Map, Number, Value as Json};

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its value.
    pub root: Value,
    /// Comments behind the last value.
    pub below: Vec<BlankLine>,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, a number, a truth value, nothing.
    Scalar(Scalar),
    /// A list or a mapping.
    Collection(Collection),
}

/// A scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Its text, escapes resolved.
    pub text: String,
    /// How it is written.
    pub form: QuoteStyle,
}

/// How a scalar is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuoteStyle {
    /// Without quotes.
    Plain,
    /// In quotes, on one line: so as it stands here.
    Quoted(String),
    /// On lines of its own, behind `|` or `>`.
    Block,
    /// In quotes that are to be written anew.
    Text,
}

/// A list or a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Which of them.
    pub shape: CollectionKind,
    /// How it is written.
    pub style: CollectionStyle,
    /// Its items or fields, in order.
    pub slots: Vec<Entry>,
}

/// Whether slots have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionKind {
    /// Items.
    List,
    /// Fields.
    Mapping,
}

/// How a collection is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectionStyle {
    /// On one line, in brackets.
    Flow,
    /// A line or more for each slot, so many columns deeper than what it belongs to.
    Block(usize),
}

/// A field of a mapping or an item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of a field; items have none.
    pub key: Option<Scalar>,
    /// The lines above it.
    pub above: Vec<BlankLine>,
    /// The comment on its line, with the space before it.
    pub beside: Option<String>,
    /// The value.
    pub value: Value,
}

/// A line that holds no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlankLine {
    /// An empty line.
    Empty,
    /// A comment.
    Comment {
        /// How many columns to the right of the slot below it; negative for the left.
        shift: isize,
        /// The comment, from `#` on.
        text: String,
    },
}

impl Scalar {
    /// A word that needs no quotes.
    #[must_use]
    pub fn word(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            form: QuoteStyle::Plain,
        }
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.form == QuoteStyle::Plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    fn json(&self) -> Json {
        if self.form != QuoteStyle::Plain {
            return Json::String(self.text.clone());
        }
        match self.text.as_str() {
            _ if self.is_null() => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            text => text.parse::<i64>().map_or_else(
                |_| Json::String(text.to_owned()),
                |number| Json::Number(Number::from(number)),
            ),
        }
    }
}

impl Value {
    /// A mapping of one field.
    #[must_use]
    pub fn field(style: CollectionStyle, key: &str, value: Self) -> Self {
        Self::fields(style, [(key, value)])
    }

    /// A mapping.
    pub fn fields<'a>(style: CollectionStyle, fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let slots = fields.into_iter().map(|(key, value)| Entry::field(key, value));
        Self::Collection(Collection {
            shape: CollectionKind::Mapping,
            style,
            slots: slots.collect(),
        })
    }

    /// A word.
    #[must_use]
    pub fn word(text: &str) -> Self {
        Self::Scalar(Scalar::word(text))
    }

    /// `{}`.
    #[must_use]
    pub fn empty() -> Self {
        Self::fields(CollectionStyle::Flow, [])
    }

    /// The slots; a scalar has none.
    #[must_use]
    pub fn slots(&self) -> &[Entry] {
        match self {
            Self::Scalar(_) => &[],
            Self::Collection(collection) => &collection.slots,
        }
    }

    /// The collection, if it is one.
    pub const fn collection_mut(&mut self) -> Option<&mut Collection> {
        match self {
            Self::Scalar(_) => None,
            Self::Collection(collection) => Some(collection),
        }
    }

    /// The text of a scalar.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Scalar(scalar) => Some(&scalar.text),
            Self::Collection(_) => None,
        }
    }

    /// A field of a mapping that is not null; of several with one name the last.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        let slot = self.slots().iter().rev().find(|slot| slot.is(key));
        slot.map(|slot| &slot.value).filter(|value| !value.is_null())
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let slots = self.collection_mut()?.slots.iter_mut();
        let slot = slots.rev().find(|slot| slot.is(key));
        slot.map(|slot| &mut slot.value).filter(|value| !value.is_null())
    }

    /// Takes all fields of a name out.
    pub fn remove(&mut self, key: &str) -> Vec<Entry> {
        match self.collection_mut() {
            Some(collection) => collection.slots.extract_if(.., |slot| slot.is(key)).collect(),
            None => Vec::new(),
        }
    }

    /// Gives a field another value; without such a field there is none after it either.
    pub fn set(&mut self, key: &str, value: Self) {
        if let Some(field) = self.get_mut(key) {
            *field = value;
        }
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Scalar(scalar) if scalar.is_null())
    }

    /// Every comment in it.
    #[must_use]
    pub fn comments(&self) -> Vec<String> {
        self.slots().iter().flat_map(Entry::comments).collect()
    }

    /// The same without comments and empty lines.
    #[must_use]
    pub fn bare(mut self) -> Self {
        for slot in self.collection_mut().into_iter().flat_map(|all| &mut all.slots) {
            slot.above.clear();
            slot.beside = None;
            let value = std::mem::replace(&mut slot.value, Self::word(""));
            slot.value = value.bare();
        }
        self
    }

    /// The same as JSON.
    #[must_use]
    pub fn json(&self) -> Json {
        match self {
            Self::Scalar(scalar) => scalar.json(),
            Self::Collection(collection) => match collection.shape {
                CollectionKind::List => collection.slots.iter().map(|slot| slot.value.json()).collect(),
                CollectionKind::Mapping => {
                    let key =
                        |slot: &Entry| slot.key.as_ref().map_or_else(String::new, |key| key.text.clone());
                    let fields = collection.slots.iter();
                    Json::Object(
                        fields
                            .map(|slot| (key(slot), slot.value.json()))
                            .collect::<Map<_, _>>(),
                    )
                }
            },
        }
    }
}

impl Entry {
    /// A field without comments.
    #[must_use]
    pub fn field(key: &str, value: Value) -> Self {
        Self {
            key: Some(Scalar::word(key)),
            ..Self::item(value)
        }
    }

    /// An item without comments.
    #[must_use]
    pub const fn item(value: Value) -> Self {
        Self {
            key: None,
            above: Vec::new(),
            beside: None,
            value,
        }
    }

    /// Whether this is its name.
    #[must_use]
    pub fn is(&self, key: &str) -> bool {
        self.key.as_ref().is_some_and(|own| own.text == key)
    }

    /// Every comment of it and in it.
    #[must_use]
    pub fn comments(&self) -> Vec<String> {
        let mut comments: Vec<String> = self.above.iter().filter_map(BlankLine::comment).collect();
        comments.extend(self.beside.iter().map(|beside| beside.trim_start().to_owned()));
        comments.extend(self.value.comments());
        comments
    }
}

impl BlankLine {
    /// A comment above a slot, in its column.
    #[must_use]
    pub const fn of(text: String) -> Self {
        Self::Comment { shift: 0, text }
    }

    /// The comment, if it is one.
    #[must_use]
    pub fn comment(&self) -> Option<String> {
        match self {
            Self::Empty => None,
            Self::Comment { text, .. } => Some(text.clone()),
        }
    }
}
