//! From text to documents: every comment finds the field or item that it stands above or beside.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{
    BlankLine, Collection, CollectionKind, CollectionStyle, Document, Entry, QuoteStyle, Value,
};
use super::print::{all_opened, opened};
use super::scan::{Child, LineColumn, Node, NodeKind, Tree, scan};

/// A document of a file.
#[derive(Clone, Debug)]
pub struct SourceDocument {
    /// The document.
    pub document: Document,
    /// Its lines as they are, without what separates documents.
    pub text: String,
    /// Comments that stand where the document has no place for them.
    pub lost: Vec<String>,
}

/// Reads the documents of a text that was read without an error before; none where that is not so.
#[must_use]
pub fn read(text: &str) -> Option<Vec<SourceDocument>> {
    let text = text.trim_start_matches('\u{feff}');
    let scanned = scan(text)?;
    let lines: Vec<&str> = text.lines().collect();
    let starts: Vec<usize> = scanned.trees.iter().map(|tree| tree.start).collect();
    let mut documents = Vec::new();
    for (index, tree) in scanned.trees.into_iter().enumerate() {
        let first = if index == 0 { 0 } else { tree.start };
        let end = starts.get(index + 1).copied().unwrap_or(lines.len() + 1);
        let comments = scanned.comments.range((first, 0)..(end, 0));
        let comments = comments.map(|(place, text)| (*place, text.clone())).collect();
        let region = DocumentLines {
            lines: &lines,
            first,
            end,
            comments,
            last: 0,
        };
        documents.push(region.read(tree));
    }
    Some(documents)
}

/// The lines of one document.
struct DocumentLines<'t> {
    lines: &'t [&'t str],
    first: usize,
    /// Behind the last line.
    end: usize,
    /// Comments that nobody has taken.
    comments: BTreeMap<LineColumn, String>,
    /// The last line that was looked at for what stands above something.
    last: usize,
}

impl DocumentLines<'_> {
    fn read(mut self, mut tree: Tree) -> SourceDocument {
        self.last = tree.start;
        self.take_above(&mut tree.root);
        self.take_beside(&mut tree.root);
        let (above, below, lost) = self.rest(tree.start);
        let mut values = AliasResolver::new(&self);
        let root = values.value(&tree.root, 0);
        let AliasResolver { lost: merged, .. } = values;
        let is_json = is_flow_collection(&tree.root);
        let mut root = match root {
            Value::Collection(root) if is_json => Value::Collection(all_opened(root)),
            root => root,
        };
        lay_above(&mut root, above);
        SourceDocument {
            document: Document { root, below },
            text: self.text(tree.start),
            lost: lost.into_iter().chain(merged).collect(),
        }
    }

    fn line(&self, number: usize) -> &str {
        number
            .checked_sub(1)
            .and_then(|index| self.lines.get(index))
            .copied()
            .unwrap_or_default()
    }

    fn is_alone(&self, (line, column): LineColumn) -> bool {
        self.line(line).chars().take(column).all(char::is_whitespace)
    }

    /// Takes comments and empty lines above fields and items. Of several that begin on a line the outermost
    /// has them.
    fn take_above(&mut self, node: &mut Node) {
        let (list, is_flow) = (
            self.dash_of(node),
            matches!(node.kind, NodeKind::Collection { is_flow: true, .. }),
        );
        let NodeKind::Collection { children, .. } = &mut node.kind else {
            return;
        };
        for child in children {
            let (line, column) = self.start_of(child, list, is_flow);
            let mut before = self.line(line).chars().take(column);
            if before.all(|letter| letter.is_whitespace() || letter == '-') {
                child.above = self.lines_above(line);
            }
            self.take_above(&mut child.node);
        }
    }

    /// Where a field's name or an item's dash stands.
    fn start_of(&self, child: &Child, list: usize, is_flow: bool) -> LineColumn {
        match &child.key {
            Some((_, place)) => *place,
            None if is_flow => child.node.start,
            None => (self.line_of_dash(child.node.start), list),
        }
    }

    /// The column of a list's dashes. Of one that stands below the name of its field, without being deeper, the
    /// parser tells the first value instead.
    fn dash_of(&self, node: &Node) -> usize {
        let (line, column) = node.start;
        let is_list = matches!(
            node.kind,
            NodeKind::Collection {
                shape: CollectionKind::List,
                is_flow: false,
                ..
            }
        );
        if !is_list {
            return column;
        }
        let line: Vec<char> = self.line(line).chars().collect();
        if line.get(column) == Some(&'-') {
            return column;
        }
        let before = line.get(..column).unwrap_or_default();
        before.iter().rposition(|letter| *letter == '-').unwrap_or(column)
    }

    /// The dash may stand on a line above.
    fn line_of_dash(&self, (line, column): LineColumn) -> usize {
        if !self.is_alone((line, column)) {
            return line;
        }
        let dash = (self.first.max(1)..line).rev().find(|number| {
            let text = self.line(*number).trim_start();
            !text.is_empty() && !text.starts_with('#')
        });
        dash.filter(|number| self.line(*number).trim_start().starts_with('-'))
            .unwrap_or(line)
    }

    fn lines_above(&mut self, line: usize) -> Vec<Option<(usize, String)>> {
        let mut above = Vec::new();
        let mut number = line;
        while number > self.last + 1 {
            number -= 1;
            let text = self.line(number);
            let comment_column = text.chars().take_while(|letter| letter.is_whitespace()).count();
            if text.trim().is_empty() {
                above.push(None);
            } else if let Some(comment) = self.comments.remove(&(number, comment_column)) {
                above.push(Some((comment_column, comment)));
            } else {
                break;
            }
        }
        self.last = self.last.max(line);
        above.reverse();
        above
    }

    /// Takes comments behind something on their line.
    fn take_beside(&mut self, root: &mut Node) {
        let beside: Vec<LineColumn> = self
            .comments
            .keys()
            .copied()
            .filter(|place| !self.is_alone(*place))
            .collect();
        for place in beside {
            let before: String = self.line(place.0).chars().take(place.1).collect();
            let gap = &before[before.trim_end().len()..];
            let Some(child) = self.path(root, place).and_then(|path| child_at(root, &path)) else {
                continue;
            };
            if child.beside.is_none()
                && let Some(comment) = self.comments.remove(&place)
            {
                child.beside = Some(format!("{gap}{comment}"));
            }
        }
    }

    /// The innermost field or item that ends, or whose block begins, on the line of a comment.
    fn path(&self, node: &Node, comment: LineColumn) -> Option<Vec<usize>> {
        let NodeKind::Collection {
            children, is_flow, ..
        } = &node.kind
        else {
            return None;
        };
        for (index, child) in children.iter().enumerate().rev() {
            let start = self.start_of(child, self.dash_of(node), *is_flow);
            if start > comment {
                continue;
            }
            let is_closed = is_flow_collection(&child.node) && child.node.end <= comment;
            if !is_closed && let Some(below) = self.path(&child.node, comment) {
                return Some(std::iter::once(index).chain(below).collect());
            }
            return (line_beside(child, start, is_closed) == comment.0).then(|| vec![index]);
        }
        None
    }

    /// What nobody took: comments above everything, below everything, and those that are lost.
    fn rest(&mut self, start: usize) -> (Vec<String>, Vec<BlankLine>, Vec<String>) {
        let (mut above, mut below, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for ((line, column), comment) in std::mem::take(&mut self.comments) {
            if line <= start {
                above.push(comment);
            } else if line > self.last && self.is_alone((line, column)) {
                let is_apart = self.line(line - 1).trim().is_empty();
                below.extend(is_apart.then_some(BlankLine::Empty));
                let shift = isize::try_from(column).unwrap_or_default();
                below.push(BlankLine::Comment { shift, text: comment });
            } else {
                lost.push(comment);
            }
        }
        (above, below, lost)
    }

    /// The document as it was written.
    fn text(&self, start: usize) -> String {
        let mut text = String::new();
        let first = if self.first == 0 { 1 } else { self.first };
        for number in first..self.end {
            let line = self.line(number);
            let is_mark = number == start || line.starts_with("...") || line.starts_with('%');
            if !is_mark {
                text.push_str(line);
                text.push('\n');
            } else if let Some(rest) = line
                .strip_prefix("---")
                .map(str::trim)
                .filter(|rest| !rest.is_empty())
            {
                text.push_str(rest);
                text.push('\n');
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }
}

/// The line beside which a comment belongs to a field or item.
fn line_beside(child: &Child, start: LineColumn, is_closed: bool) -> usize {
    match &child.node.kind {
        NodeKind::Scalar(scalar) if scalar.is_null() => start.0,
        NodeKind::Scalar(scalar) if scalar.form == QuoteStyle::Block => child.node.start.0,
        NodeKind::Scalar(_) | NodeKind::Alias(_) => child.node.end.0,
        NodeKind::Collection { .. } if is_closed => child.node.end.0,
        NodeKind::Collection { .. } => start.0,
    }
}

const fn is_flow_collection(node: &Node) -> bool {
    matches!(node.kind, NodeKind::Collection { is_flow: true, .. })
}

fn child_at<'a>(node: &'a mut Node, path: &[usize]) -> Option<&'a mut Child> {
    let (first, rest) = path.split_first()?;
    let NodeKind::Collection { children, .. } = &mut node.kind else {
        return None;
    };
    let child = children.get_mut(*first)?;
    if rest.is_empty() {
        Some(child)
    } else {
        child_at(&mut child.node, rest)
    }
}

fn lay_above(root: &mut Value, above: Vec<String>) {
    let first = root.collection_mut().and_then(|root| root.slots.first_mut());
    if let Some(first) = first {
        let end = (!above.is_empty()).then_some(BlankLine::Empty);
        first
            .above
            .splice(0..0, above.into_iter().map(BlankLine::of).chain(end));
    }
}

/// Values without places; aliases become what they stand for.
struct AliasResolver<'r, 't> {
    region: &'r DocumentLines<'t>,
    anchors: BTreeMap<usize, Value>,
    lost: Vec<String>,
}

impl<'r, 't> AliasResolver<'r, 't> {
    const fn new(region: &'r DocumentLines<'t>) -> Self {
        Self {
            region,
            anchors: BTreeMap::new(),
            lost: Vec::new(),
        }
    }

    /// `column` is that of the field or item whose value this is.
    fn value(&mut self, node: &Node, column: usize) -> Value {
        let value = match &node.kind {
            NodeKind::Scalar(scalar) => Value::Scalar(scalar.clone()),
            NodeKind::Alias(anchor) => {
                return self
                    .anchors
                    .get(anchor)
                    .cloned()
                    .unwrap_or_else(|| Value::word(""));
            }
            NodeKind::Collection {
                shape,
                is_flow,
                children,
            } => {
                let start = self.region.dash_of(node);
                let style = match *is_flow {
                    true => CollectionStyle::Flow,
                    false => CollectionStyle::Block(start.saturating_sub(column)),
                };
                let slots = children
                    .iter()
                    .map(|child| {
                        let column = if *is_flow { child.node.start.1 } else { start };
                        self.slot(child, column)
                    })
                    .collect();
                let collection = Collection {
                    shape: *shape,
                    style,
                    slots,
                };
                let is_on_several_lines = *is_flow && node.start.0 != node.end.0;
                let collection = if is_on_several_lines {
                    opened(collection)
                } else {
                    collection
                };
                Value::Collection(self.merge(collection))
            }
        };
        if node.anchor != 0 {
            self.anchors.insert(node.anchor, value.clone().bare());
        }
        value
    }

    fn slot(&mut self, child: &Child, list: usize) -> Entry {
        let column = child.key.as_ref().map_or(list, |(_, place)| place.1);
        let line = |line: &Option<(usize, String)>| match line {
            None => BlankLine::Empty,
            Some((at, text)) => BlankLine::Comment {
                shift: at.cast_signed() - column.cast_signed(),
                text: text.clone(),
            },
        };
        Entry {
            key: child.key.as_ref().map(|(key, _)| key.clone()),
            above: child.above.iter().map(line).collect(),
            beside: child.beside.clone(),
            value: self.value(&child.node, column),
        }
    }

    /// Resolves `<<` (YAML 1.1 merge keys), as the reader of policies does.
    fn merge(&mut self, mut collection: Collection) -> Collection {
        let (merged, own): (Vec<_>, Vec<_>) = collection.slots.into_iter().partition(|slot| slot.is("<<"));
        collection.slots = own;
        let name = |slot: &Entry| slot.key.as_ref().map(|key| key.text.clone());
        let mut names: BTreeSet<_> = collection.slots.iter().filter_map(name).collect();
        for slot in merged {
            self.lost.extend(slot.comments());
            let sources = match &slot.value {
                Value::Collection(list) if list.shape == CollectionKind::List => {
                    list.slots.iter().map(|slot| slot.value.clone()).collect()
                }
                value => vec![value.clone()],
            };
            let fields = sources.iter().flat_map(Value::slots);
            let new = fields.filter(|field| name(field).is_some_and(|name| names.insert(name)));
            collection.slots.extend(new.cloned());
        }
        collection
    }
}
