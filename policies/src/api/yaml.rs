//! From text to trees. JSON is read as the YAML that it is.
//!
//! Everything is bounded: the text, the number of values, the values and the octets that aliases repeat (an
//! "alias bomb" of a few lines stands for billions), and the depth, which the parser bounds itself.

use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{
    ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, StrInput, Tag, options,
};

use super::node::{Entry, Mapping, Node, Scalar, Value};
use crate::diagnostic::Position;

/// The longest text that is read.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// The documents in a text.
const MAX_DOCUMENTS: usize = 100_000;
/// The names and values in a document: less than a second of work, or a List of 20,000 small pods.
const MAX_NODES: usize = 1_000_000;
/// The values that aliases and merge keys of a file repeat: no manifest written by hand comes near.
const MAX_REPEATED: usize = 100_000;
/// The octets of these values: one text of a megabyte and ten thousand aliases of it are few values.
const MAX_REPEATED_OCTETS: usize = 16 << 20;
/// The levels of flow collections, and of block collections.
const MAX_DEPTH: usize = 255;
/// The syntax errors of a file after which the rest is not read.
const MAX_ERRORS: usize = 20;

/// The repeated fields of a document that are told.
const MAX_REPEATED_FIELDS: usize = 50;

/// A document, or why there is none.
pub(super) enum Document {
    /// A tree, and the fields in it that are there twice (path and place).
    Tree(Node, Vec<(String, Position)>),
    /// A syntax error: where and what.
    Broken(Position, String),
    /// A limit: where and which. Nothing is read behind it.
    TooLarge(Position, String),
}

/// Reads all documents; what follows a syntax error is read from the next `---` on.
pub(super) fn documents(text: &str) -> Vec<Document> {
    if text.len() > MAX_BYTES {
        let sentence = format!("more than {MAX_BYTES} octets");
        return vec![Document::TooLarge(Position { line: 1, column: 1 }, sentence)];
    }
    let mut options = options! {
        simple_key_max_lookahead: 4096,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    options.set_emit_comments(false);
    let mut reader = YamlReader {
        parser: Parser::new_from_str_with_options(text.trim_start_matches('\u{feff}'), options),
        builder: TreeBuilder::default(),
        documents: Vec::new(),
        errors: 0,
    };
    while reader.step() {}
    reader.documents
}

struct YamlReader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    builder: TreeBuilder,
    documents: Vec<Document>,
    errors: usize,
}

impl YamlReader<'_> {
    /// Takes one event; whether there may be more.
    fn step(&mut self) -> bool {
        match self.parser.next_event() {
            None => false,
            Some(Ok((event, span))) => match self.builder.take(event, position(&span.start)) {
                Ok(None) => true,
                Ok(Some(document)) => {
                    self.documents.push(document);
                    true
                }
                Err(ParseStop::Syntax(place, sentence)) => {
                    self.documents.push(Document::Broken(place, sentence));
                    self.recover(place)
                }
                Err(ParseStop::Limit(place, sentence)) => {
                    self.documents.push(Document::TooLarge(place, sentence));
                    false
                }
            },
            Some(Err(error)) => {
                let place = position(error.marker());
                self.documents.push(Document::Broken(place, sentence(&error)));
                self.recover(place)
            }
        }
    }

    fn recover(&mut self, place: Position) -> bool {
        self.builder.forget_document();
        self.errors += 1;
        // A source that cannot even be searched for the next document has none.
        let Ok(true) = self.parser.proceed_next_document() else {
            return false;
        };
        if self.errors == MAX_ERRORS {
            let sentence = format!("{MAX_ERRORS} syntax errors; what follows is not read");
            self.documents.push(Document::TooLarge(place, sentence));
        }
        self.errors < MAX_ERRORS
    }
}

fn sentence(error: &ScanError) -> String {
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => format!("more than {MAX_DEPTH} levels of collections"),
        ErrorKind::ExpectedDocumentStart => {
            "something behind the end of the document (a line with --- begins another)".to_owned()
        }
        kind => kind.to_string().replace(char::is_control, " "),
    }
}

fn position(marker: &Marker) -> Position {
    Position {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

enum ParseStop {
    Syntax(Position, String),
    Limit(Position, String),
}

/// Collections that are not complete yet, innermost last.
#[derive(Default)]
struct TreeBuilder {
    open: Vec<OpenCollection>,
    root: Option<Node>,
    repeated_fields: Vec<(String, Position)>,
    /// Complete anchored values and their sizes.
    anchors: HashMap<usize, (Node, TreeSize)>,
    /// What was read of the document.
    size: TreeSize,
    /// What anchors and aliases of all documents stand for.
    repeated: TreeSize,
    documents: usize,
}

/// How much something is.
#[derive(Clone, Copy, Default)]
struct TreeSize {
    /// Names and values.
    nodes: usize,
    /// Octets of text.
    octets: usize,
}

impl TreeSize {
    const COLLECTION: Self = Self { nodes: 1, octets: 0 };

    const fn of_text(text: &str) -> Self {
        Self {
            nodes: 1,
            octets: text.len(),
        }
    }

    const fn since(self, before: Self) -> Self {
        Self {
            nodes: self.nodes - before.nodes,
            octets: self.octets - before.octets,
        }
    }

    const fn add(&mut self, more: Self) {
        self.nodes += more.nodes;
        self.octets += more.octets;
    }
}

struct OpenCollection {
    position: Position,
    anchor: usize,
    /// How much had been read of the document when it began.
    before: TreeSize,
    content: CollectionContent,
}

enum CollectionContent {
    Sequence(Vec<Node>),
    Mapping {
        entries: Vec<Entry>,
        /// The name whose value comes next.
        key: Option<(Box<str>, Position)>,
    },
}

impl TreeBuilder {
    fn take(&mut self, event: Event<'_>, at: Position) -> Result<Option<Document>, ParseStop> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let node = scalar(&text, style, tag.as_deref(), at);
                let size = TreeSize::of_text(&text);
                self.count(at, size)?;
                self.remember(anchor, &node, size, at)?;
                self.place(node)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(at, anchor, CollectionContent::Sequence(Vec::new()))?
            }
            Event::MappingStart(_, anchor, _) => {
                let entries = Vec::new();
                self.begin(at, anchor, CollectionContent::Mapping { entries, key: None })?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => self.repeat(anchor, at)?,
            Event::UnresolvedAlias(name) => {
                return Err(ParseStop::Syntax(at, format!("the alias *{name} has no anchor")));
            }
            Event::DocumentStart(..) => self.begin_document(at)?,
            Event::DocumentEnd => return Ok(self.finish_document()),
            _ => {} // starts, the end of the stream, comments: nothing to keep
        }
        Ok(None)
    }

    fn begin(
        &mut self,
        position: Position,
        anchor: usize,
        content: CollectionContent,
    ) -> Result<(), ParseStop> {
        let before = self.size;
        self.count(position, TreeSize::COLLECTION)?;
        self.open.push(OpenCollection {
            position,
            anchor,
            before,
            content,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), ParseStop> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.content {
            CollectionContent::Sequence(items) => Value::Sequence(items),
            CollectionContent::Mapping { entries, key: _ } => {
                let mapping = Self::merge(Mapping { entries })?;
                let room = MAX_REPEATED_FIELDS - self.repeated_fields.len();
                for entry in mapping.repeated().into_iter().take(room) {
                    let path = self.path_of(&entry.key);
                    self.repeated_fields.push((path, entry.position));
                }
                Value::Mapping(mapping)
            }
        };
        let node = Node {
            position: open.position,
            value,
        };
        let size = self.size.since(open.before);
        self.remember(open.anchor, &node, size, open.position)?;
        self.place(node)
    }

    /// Resolves `<<` (YAML 1.1 merge keys): fields of the merged mappings that are not written here.
    fn merge(mapping: Mapping) -> Result<Mapping, ParseStop> {
        if !mapping.entries.iter().any(|entry| &*entry.key == "<<") {
            return Ok(mapping);
        }
        let (merged, mut entries): (Vec<_>, Vec<_>) =
            mapping.entries.into_iter().partition(|entry| &*entry.key == "<<");
        let mut names: HashSet<Box<str>> = entries.iter().map(|entry| entry.key.clone()).collect();
        for Entry { position, value, .. } in merged {
            let sources = match value.value {
                Value::Sequence(items) => items,
                Value::Null | Value::Scalar(_) | Value::Mapping(_) => vec![value],
            };
            for source in sources {
                let Value::Mapping(source) = source.value else {
                    return Err(ParseStop::Syntax(position, "<< merges mappings only".to_owned()));
                };
                let new = source
                    .entries
                    .into_iter()
                    .filter(|entry| names.insert(entry.key.clone()));
                entries.extend(new);
            }
        }
        Ok(Mapping { entries })
    }

    fn remember(
        &mut self,
        anchor: usize,
        node: &Node,
        size: TreeSize,
        at: Position,
    ) -> Result<(), ParseStop> {
        // The parser numbers anchors from 1; 0 is no anchor.
        if anchor != 0 {
            self.count_repeated(at, size)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(())
    }

    fn repeat(&mut self, anchor: usize, at: Position) -> Result<(), ParseStop> {
        let Some(size) = self.anchors.get(&anchor).map(|(_, size)| *size) else {
            return Err(ParseStop::Syntax(
                at,
                "an alias inside the value that it repeats".to_owned(),
            ));
        };
        self.count(at, size)?;
        self.count_repeated(at, size)?;
        let node = self.anchors.get(&anchor).map(|(node, _)| node.clone());
        node.map_or(Ok(()), |node| self.place(node))
    }

    fn count(&mut self, at: Position, more: TreeSize) -> Result<(), ParseStop> {
        self.size.add(more);
        if self.size.nodes > MAX_NODES {
            return Err(ParseStop::Limit(
                at,
                format!("more than {MAX_NODES} names and values in a document"),
            ));
        }
        Ok(())
    }

    fn count_repeated(&mut self, at: Position, more: TreeSize) -> Result<(), ParseStop> {
        self.repeated.add(more);
        let limit = if self.repeated.nodes > MAX_REPEATED {
            format!("{MAX_REPEATED} values")
        } else if self.repeated.octets > MAX_REPEATED_OCTETS {
            format!("{MAX_REPEATED_OCTETS} octets")
        } else {
            return Ok(());
        };
        let sentence = format!("anchors and aliases that stand for more than {limit}");
        Err(ParseStop::Limit(at, sentence))
    }

    fn place(&mut self, node: Node) -> Result<(), ParseStop> {
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(CollectionContent::Sequence(items)) => items.push(node),
            Some(CollectionContent::Mapping { entries, key }) => match key.take() {
                Some((name, position)) => entries.push(Entry {
                    key: name,
                    position,
                    value: node,
                }),
                None => *key = Some(name_of_field(node)?),
            },
        }
        Ok(())
    }

    fn path_of(&self, key: &str) -> String {
        let mut path = String::new();
        for open in &self.open {
            match &open.content {
                CollectionContent::Sequence(items) => path.push_str(&format!("[{}]", items.len())),
                CollectionContent::Mapping {
                    key: Some((name, _)), ..
                } => super::field::append(&mut path, name),
                CollectionContent::Mapping { key: None, .. } => {}
            }
        }
        super::field::append(&mut path, key);
        path
    }

    fn begin_document(&mut self, at: Position) -> Result<(), ParseStop> {
        self.documents += 1;
        if self.documents > MAX_DOCUMENTS {
            return Err(ParseStop::Limit(
                at,
                format!("more than {MAX_DOCUMENTS} documents"),
            ));
        }
        Ok(())
    }

    fn finish_document(&mut self) -> Option<Document> {
        let root = self.root.take();
        let repeated = std::mem::take(&mut self.repeated_fields);
        self.forget_document();
        root.map(|root| Document::Tree(root, repeated))
    }

    fn forget_document(&mut self) {
        self.open.clear();
        self.root = None;
        self.repeated_fields.clear();
        self.anchors.clear();
        self.size = TreeSize::default();
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, position: Position) -> Node {
    let plain = matches!(style, ScalarStyle::Plain);
    let value = match tag.map(meaning) {
        None | Some(TagMeaning::Plain) => untagged(text, plain),
        Some(TagMeaning::Text) => untagged(text, false),
        // `!!binary aGVsbG8=` is the text hello to an API server; what nobody here decodes is taken for no text.
        Some(TagMeaning::Other) => Value::Mapping(Mapping {
            entries: vec![Entry {
                key: tag.map(Tag::original).unwrap_or_default().into(),
                position,
                value: Node {
                    position,
                    value: untagged(text, false),
                },
            }],
        }),
    };
    Node { position, value }
}

fn untagged(text: &str, plain: bool) -> Value {
    if plain && matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        Value::Null
    } else {
        let text = text.into();
        Value::Scalar(Scalar { text, plain })
    }
}

/// What a tag makes of a scalar.
enum TagMeaning {
    /// What it would be without: `!!int 80`.
    Plain,
    /// Text: `!!str 80`, `! 80`.
    Text,
    /// Something else: `!!binary aGVsbG8=`, `!Ref name`.
    Other,
}

fn meaning(tag: &Tag) -> TagMeaning {
    match tag.core_suffix() {
        Some("str") => TagMeaning::Text,
        Some(_) => TagMeaning::Plain,
        None if tag.original() == "!" => TagMeaning::Text,
        None => TagMeaning::Other,
    }
}

fn name_of_field(node: Node) -> Result<(Box<str>, Position), ParseStop> {
    let sentence = match node.value {
        Value::Scalar(scalar) => return Ok((scalar.text, node.position)),
        Value::Null => return Ok(("null".into(), node.position)),
        Value::Sequence(_) => "a list as the name of a field",
        Value::Mapping(_) => {
            "a mapping as the name of a field (a template with {{ }} is to be rendered first)"
        }
    };
    Err(ParseStop::Syntax(node.position, sentence.to_owned()))
}
