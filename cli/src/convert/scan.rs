//! From text to trees with the place of everything, and the comments beside them. What is read here was read
//! by `egret_policies::api` before, which bounds it and says what is wrong with it.

use std::collections::BTreeMap;

use serde_saphyr::granit_parser::{Event, Marker, Parser, ScalarStyle, Span, StructureStyle, Tag, options};

use super::document::{CollectionKind, QuoteStyle, Scalar};

/// A place in a text: line from 1, column from 0.
pub(super) type LineColumn = (usize, usize);

/// What a text holds.
#[derive(Debug, Default)]
pub(super) struct ScannedText {
    /// Its documents that are not empty.
    pub(super) trees: Vec<Tree>,
    /// Its comments.
    pub(super) comments: BTreeMap<LineColumn, String>,
}

/// A document.
#[derive(Debug)]
pub(super) struct Tree {
    /// The line of its `---`, or 0 where there is none.
    pub(super) start: usize,
    pub(super) root: Node,
}

/// A value and its place.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) start: LineColumn,
    /// Where it ends; of a collection in blocks nobody says where.
    pub(super) end: LineColumn,
    pub(super) anchor: usize,
    pub(super) kind: NodeKind,
}

/// What a value is.
#[derive(Debug)]
pub(super) enum NodeKind {
    Scalar(Scalar),
    Alias(usize),
    Collection {
        shape: CollectionKind,
        is_flow: bool,
        children: Vec<Child>,
    },
}

/// A field or an item.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) key: Option<(Scalar, LineColumn)>,
    pub(super) node: Node,
    /// Lines above it: comments, or nothing for an empty line.
    pub(super) above: Vec<Option<(usize, String)>>,
    pub(super) beside: Option<String>,
}

/// Reads a text; none where the parser refuses what it took before.
pub(super) fn scan(text: &str) -> Option<ScannedText> {
    let options = options! { simple_key_max_lookahead: 4096, max_buffered_comment_events: 1_000_000 };
    let mut scanner = Scanner {
        text,
        scanned: ScannedText::default(),
        open: Vec::new(),
        start: 0,
    };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.ok()?;
        scanner.take(event, &span);
    }
    Some(scanner.scanned)
}

struct Scanner<'t> {
    text: &'t str,
    scanned: ScannedText,
    open: Vec<OpenCollection>,
    start: usize,
}

struct OpenCollection {
    node: Node,
    /// The name of a field, once it was read.
    key: Option<(Scalar, LineColumn)>,
}

impl Scanner<'_> {
    fn take(&mut self, event: Event<'_>, span: &Span) {
        match event {
            Event::Comment(text, _) => {
                let comment = format!("#{}", text.trim_end());
                self.scanned.comments.insert(place(&span.start), comment);
            }
            Event::DocumentStart(is_explicit, _) => {
                self.start = if is_explicit { span.start.line() } else { 0 };
            }
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = self.scalar(&text, style, tag.as_deref(), span);
                self.put(node(span, anchor, NodeKind::Scalar(scalar)));
            }
            Event::Alias(anchor) => self.put(node(span, 0, NodeKind::Alias(anchor))),
            Event::SequenceStart(style, anchor, _) => self.begin(span, anchor, CollectionKind::List, style),
            Event::MappingStart(style, anchor, _) => self.begin(span, anchor, CollectionKind::Mapping, style),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(OpenCollection { mut node, .. }) = self.open.pop() {
                    node.end = place(&span.end);
                    self.put(node);
                }
            }
            _ => {} // the stream and the ends of documents: nothing to keep
        }
    }

    fn begin(&mut self, span: &Span, anchor: usize, shape: CollectionKind, style: StructureStyle) {
        let kind = NodeKind::Collection {
            shape,
            is_flow: style == StructureStyle::Flow,
            children: Vec::new(),
        };
        self.open.push(OpenCollection {
            node: node(span, anchor, kind),
            key: None,
        });
    }

    fn put(&mut self, node: Node) {
        let Some(open) = self.open.last_mut() else {
            let is_nothing = matches!(&node.kind, NodeKind::Scalar(scalar) if scalar.is_null());
            if !is_nothing {
                let start = self.start;
                self.scanned.trees.push(Tree { start, root: node });
            }
            return;
        };
        let NodeKind::Collection { shape, children, .. } = &mut open.node.kind else {
            return;
        };
        let key = match (*shape, open.key.take()) {
            (CollectionKind::List, _) => None,
            (CollectionKind::Mapping, Some(key)) => Some(key),
            (CollectionKind::Mapping, None) => {
                // The reader of policies admits nothing else as the name of a field.
                if let NodeKind::Scalar(scalar) = node.kind {
                    open.key = Some((scalar, node.start));
                }
                return;
            }
        };
        children.push(Child {
            key,
            node,
            above: Vec::new(),
            beside: None,
        });
    }

    fn scalar(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: &Span) -> Scalar {
        let source = span.slice(self.text).filter(|source| !source.contains('\n'));
        let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
        let form = match (style, source) {
            (ScalarStyle::Plain, Some(_)) if !is_text => QuoteStyle::Plain,
            (ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted, Some(source)) => {
                QuoteStyle::Quoted(source.to_owned())
            }
            (ScalarStyle::Literal | ScalarStyle::Folded, _) => QuoteStyle::Block,
            (ScalarStyle::Plain | ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted, _) => {
                QuoteStyle::Text
            }
        };
        Scalar {
            text: text.to_owned(),
            form,
        }
    }
}

fn node(span: &Span, anchor: usize, kind: NodeKind) -> Node {
    Node {
        start: place(&span.start),
        end: place(&span.end),
        anchor,
        kind,
    }
}

fn place(marker: &Marker) -> LineColumn {
    (marker.line(), marker.col())
}
