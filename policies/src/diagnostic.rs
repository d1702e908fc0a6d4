//! What is wrong with an object: one line for people, one stable code for programs, and always what is
//! enforced meanwhile. Conditions, Events, logs and lint output are all made from these.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::model::PolicyId;

mod code;

pub use code::{Code, reference};

/// Something about an object that its author should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Which kind of thing it is.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// The object.
    pub object: ObjectRef,
    /// Where in its file, if it came from one.
    pub position: Option<Position>,
    /// The field, such as `spec.egress[0].to[1].ipBlock.cidr`; empty for the object as a whole.
    pub field: String,
    /// What is there.
    pub found: String,
    /// What would be accepted.
    pub accepted: String,
    /// What is enforced meanwhile.
    pub enforced: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.severity, self.code, self.object)?;
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        if let Some(position) = self.position {
            write!(f, " ({position})")?;
        }
        write!(
            f,
            ": found {}; accepted: {}; enforced: {}",
            self.found, self.accepted, self.enforced
        )
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something could not be understood, or cannot mean what it seems to: it is enforced closed.
    Error,
    /// It is understood, but probably not what was meant.
    Warning,
    /// Worth knowing.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// A place in a file; lines and columns are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its kind, as written.
    pub kind: Arc<str>,
    /// Its namespace; none for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    /// Its name.
    pub name: Arc<str>,
}

impl From<&PolicyId> for ObjectRef {
    fn from(id: &PolicyId) -> Self {
        Self {
            kind: id.kind.to_string().into(),
            namespace: id.namespace.clone(),
            name: Arc::clone(&id.name),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{namespace}/{}", self.kind, self.name),
            None => write!(f, "{}/{}", self.kind, self.name),
        }
    }
}

impl Serialize for ObjectRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
