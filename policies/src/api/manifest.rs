//! Files of manifests: several documents, Lists, and kinds that are none of ours.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::UnknownFields;
use super::field::Field;
use super::node::{Mapping, Node, Value};
use super::notes::{Note, Notes, Refused};
use super::object::{Kind, MAX_NAME, Object, ObjectClass, classify, metadata};
use super::yaml;
use crate::diagnostic::{Code, Position, Severity};

mod encoding;

pub use encoding::{MAX_BYTES, read_octets, text_of};

/// The problems of a file that are told: nobody reads more, and a hostile file could have a million.
const MAX_PROBLEMS: usize = 100;

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its objects, in their order; items of Lists are objects of their own.
    pub documents: Vec<Document>,
    /// What is wrong with it. With an error among them the file is not whole: nobody should act on a part.
    pub problems: Vec<Problem>,
    /// Kinds that policy does not depend on (`apiVersion Kind`), and how many objects of each were skipped.
    pub skipped: BTreeMap<String, usize>,
}

impl Manifest {
    /// Whether every object could be read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.problems
            .iter()
            .all(|problem| problem.severity != Severity::Error)
    }
}

/// An object and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Where it begins.
    pub position: Position,
    /// The object.
    pub object: Object,
}

/// Something wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: Arc<str>,
    /// Where.
    pub position: Position,
    /// What kind of thing it is.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// The field, such as `items[2].metadata.name`; empty for the document as a whole.
    pub field: String,
    /// What is there.
    pub found: String,
    /// What would be accepted.
    pub accepted: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(
            f,
            "{}:{line}:{column}: {} {}: ",
            self.file, self.severity, self.code
        )?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "found {}; accepted: {}", self.found, self.accepted)
    }
}

/// Reads a text of YAML or JSON documents; the file's name is for messages.
#[must_use]
pub fn read(text: &str, file: &str) -> Manifest {
    let mut reader = ManifestReader::new(file);
    for document in yaml::documents(text) {
        match document {
            yaml::Document::Tree(tree, repeated) => {
                for (field, position) in repeated {
                    reader.repeated_field(field, position);
                }
                reader.tree(tree, "", None);
            }
            yaml::Document::Broken(position, sentence) => {
                reader.problem(Code::Syntax, position, "", sentence, "a YAML or JSON document");
            }
            yaml::Document::TooLarge(position, sentence) => {
                reader.problem(
                    Code::TooLarge,
                    position,
                    "",
                    sentence,
                    "several smaller documents or files",
                );
            }
        }
    }
    reader.finish()
}

/// Reads one object, or list, that is a tree already, as an API server sends it; the name is for messages.
#[must_use]
pub fn read_tree(tree: Node, name: &str) -> Manifest {
    let mut reader = ManifestReader::new(name);
    reader.tree(tree, "", None);
    reader.finish()
}

struct ManifestReader {
    file: Arc<str>,
    manifest: Manifest,
    seen: HashMap<Identity, Position>,
    untold: Option<OmittedProblems>,
}

/// Problems for which there was no room.
struct OmittedProblems {
    count: usize,
    first: Position,
    worst: Severity,
}

/// Kind as written (`Kind::Workload` is of many, and the versions of a policy kind are one object),
/// namespace and name.
type Identity = (Arc<str>, Option<Arc<str>>, Arc<str>);

/// What the items of a typed list are, where they do not say it themselves.
struct ItemType<'a> {
    api_version: &'a str,
    kind: &'a str,
}

impl ManifestReader {
    fn new(file: &str) -> Self {
        Self {
            file: file.into(),
            manifest: Manifest::default(),
            seen: HashMap::new(),
            untold: None,
        }
    }

    fn tree(&mut self, tree: Node, path: &str, item: Option<&ItemType<'_>>) {
        match &tree.value {
            Value::Null => return,
            Value::Mapping(_) => {}
            Value::Scalar(_) | Value::Sequence(_) => {
                let found = Field::root(&tree).describe();
                let accepted = "a mapping with apiVersion, kind and metadata";
                return self.problem(Code::NotAnObject, tree.position, path, found, accepted);
            }
        }
        let Some((api_version, kind)) = self.type_of(&tree, path, item) else {
            return;
        };
        match item_kind(&kind, &tree) {
            Some(item_kind) => self.list(tree, path, &api_version, &kind, &item_kind),
            None => self.object(tree, path, &api_version, &kind),
        }
    }

    fn type_of(&mut self, tree: &Node, path: &str, item: Option<&ItemType<'_>>) -> Option<(String, String)> {
        let mut notes = Notes::new(UnknownFields::AsWritten);
        let root = Field::root(tree);
        let mut read = |key: &str, inherited: Option<&str>| match (root.get(key), inherited) {
            (Some(field), _) => word(&field, &mut notes),
            (None, Some(inherited)) => Ok(inherited.to_owned()),
            (None, None) => Err(root.refuse(
                Code::NotAnObject,
                "an object with apiVersion and kind",
                &mut notes,
            )),
        };
        let api_version = read("apiVersion", item.map(|item| item.api_version));
        let kind = match &api_version {
            Ok(_) => read("kind", item.map(|item| item.kind)),
            Err(refused) => Err(*refused),
        };
        self.take(notes, path);
        match (api_version, kind) {
            (Ok(api_version), Ok(kind)) => Some((api_version, kind)),
            (Err(Refused), _) | (_, Err(Refused)) => None,
        }
    }

    fn list(&mut self, tree: Node, path: &str, api_version: &str, kind: &str, item_kind: &str) {
        let position = tree.position;
        let items = match take_field(tree, "items") {
            None => return,
            Some(Value::Sequence(items)) => items,
            Some(Value::Null) => return,
            Some(Value::Scalar(_) | Value::Mapping(_)) => {
                let field = format!("{path}items");
                return self.problem(Code::WrongType, position, &field, "no list".to_owned(), "a list");
            }
        };
        let inherited = ItemType {
            api_version,
            kind: item_kind,
        };
        // A plain List says nothing of its items.
        let inherited = (kind != "List").then_some(&inherited);
        for (index, item) in items.into_iter().enumerate() {
            self.tree(item, &format!("{path}items[{index}]."), inherited);
        }
    }

    fn object(&mut self, tree: Node, path: &str, api_version: &str, kind: &str) {
        match classify(api_version, kind) {
            ObjectClass::Known(known) => self.known(tree, path, known, api_version, kind),
            ObjectClass::UnknownPolicy => self.problem(
                Code::UnknownPolicyKind,
                tree.position,
                &format!("{path}kind"),
                format!("{kind:?} of {api_version:?}"),
                "AdminNetworkPolicy, BaselineAdminNetworkPolicy (v1alpha1), ClusterNetworkPolicy (v1alpha2)",
            ),
            ObjectClass::ForeignPolicy => {
                self.skip(api_version, kind);
                self.problem(
                    Code::ForeignPolicy,
                    tree.position,
                    &format!("{path}kind"),
                    format!("{kind:?} of {api_version:?}"),
                    "NetworkPolicy, AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy",
                );
            }
            ObjectClass::Irrelevant => self.skip(api_version, kind),
        }
    }

    fn known(&mut self, tree: Node, path: &str, kind: Kind, api_version: &str, kind_name: &str) {
        let mut notes = Notes::new(UnknownFields::AsWritten);
        let mark = notes.mark();
        let metadata = metadata(&Field::root(&tree), kind, &mut notes);
        if metadata.is_err() {
            blame_metadata(&mut notes.list[mark..]);
        }
        self.take(notes, path);
        let Ok(metadata) = metadata else {
            return;
        };
        let position = tree.position;
        let object = Object {
            kind,
            api_version: api_version.into(),
            kind_name: kind_name.into(),
            metadata,
            body: tree,
        };
        self.note_duplicate(&object, path);
        self.manifest.documents.push(Document { position, object });
    }

    fn note_duplicate(&mut self, object: &Object, path: &str) {
        let key = (
            Arc::clone(&object.kind_name),
            object.metadata.namespace.clone(),
            Arc::clone(&object.metadata.name),
        );
        if let Some(first) = self.seen.insert(key, object.position()) {
            self.problem(
                Code::DuplicateObject,
                object.position(),
                &format!("{path}metadata.name"),
                format!("{} again, first at {first}", object.reference()),
                "each object once",
            );
        }
    }

    fn skip(&mut self, api_version: &str, kind: &str) {
        *self
            .manifest
            .skipped
            .entry(format!("{api_version} {kind}"))
            .or_default() += 1;
    }

    fn repeated_field(&mut self, field: String, position: Position) {
        // Of two specs, or two names, nobody can say which one was meant.
        let last = field.rsplit('.').next().unwrap_or_default();
        let is_identity = matches!(last, "apiVersion" | "kind" | "metadata" | "spec")
            || field.ends_with("metadata.name")
            || field.ends_with("metadata.namespace");
        let severity = if is_identity {
            Severity::Error
        } else {
            Code::DuplicateField.severity()
        };
        self.keep(Problem {
            severity,
            ..self.describe(
                Code::DuplicateField,
                position,
                &field,
                "the field again".to_owned(),
                "the field once; the last one counts",
            )
        });
    }

    fn take(&mut self, notes: Notes, path: &str) {
        for note in notes.list {
            let Note {
                code,
                severity,
                position,
                field,
                found,
                accepted,
                enforced: _,
            } = note;
            self.keep(Problem {
                file: Arc::clone(&self.file),
                position,
                code,
                severity,
                field: format!("{path}{field}").trim_end_matches('.').to_owned(),
                found,
                accepted,
            });
        }
    }

    fn problem(&mut self, code: Code, position: Position, field: &str, found: String, accepted: &str) {
        self.keep(self.describe(code, position, field, found, accepted));
    }

    fn describe(
        &self,
        code: Code,
        position: Position,
        field: &str,
        found: String,
        accepted: &str,
    ) -> Problem {
        Problem {
            file: Arc::clone(&self.file),
            position,
            code,
            severity: code.severity(),
            field: field.trim_end_matches('.').to_owned(),
            found,
            accepted: accepted.to_owned(),
        }
    }

    fn keep(&mut self, problem: Problem) {
        if self.manifest.problems.len() < MAX_PROBLEMS {
            return self.manifest.problems.push(problem);
        }
        let untold = self.untold.get_or_insert(OmittedProblems {
            count: 0,
            first: problem.position,
            worst: problem.severity,
        });
        untold.count += 1;
        // The worst is the least: errors come first.
        untold.worst = untold.worst.min(problem.severity);
    }

    /// Says how many problems are not told; an error among them is one still.
    fn finish(mut self) -> Manifest {
        if let Some(OmittedProblems { count, first, worst }) = self.untold.take() {
            let found = format!("{count} more problems from here on");
            let accepted = "a file with fewer problems";
            let problem = self.describe(Code::TooManyDiagnostics, first, "", found, accepted);
            self.manifest.problems.push(Problem {
                severity: worst,
                ..problem
            });
        }
        self.manifest
    }
}

/// An `apiVersion` or `kind`: what no API server has could fill a screen or command a terminal.
fn word(field: &Field<'_>, notes: &mut Notes) -> Result<String, Refused> {
    let text = field.text(notes)?;
    if text.len() > MAX_NAME || text.contains(char::is_control) {
        let accepted = format!("at most {MAX_NAME} octets, none of them a control character");
        return Err(field.refuse(Code::NotAnObject, &accepted, notes));
    }
    Ok(text.to_owned())
}

/// Errors about metadata have their own code: the object is not there, no rule of it is.
fn blame_metadata(notes: &mut [Note]) {
    for note in notes {
        if note.code == Code::WrongType {
            note.code = Code::Metadata;
        }
    }
}

/// The kind of the items, if this is a list: `List`, or a typed list as the API answers it.
fn item_kind(kind: &str, tree: &Node) -> Option<String> {
    let item = kind.strip_suffix("List")?;
    let has_items = Field::root(tree).get("items").is_some();
    (item.is_empty() || has_items).then(|| item.to_owned())
}

fn take_field(tree: Node, key: &str) -> Option<Value> {
    let Value::Mapping(Mapping { entries }) = tree.value else {
        return None;
    };
    entries
        .into_iter()
        .rev()
        .find(|entry| &*entry.key == key)
        .map(|entry| entry.value.value)
}
