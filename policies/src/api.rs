//! What users write: texts, documents, objects, fields.
//!
//! Objects are kept as the tree that was written, not as structs with one slot per known field: a struct
//! forgets the field it does not know, and a policy whose author misspelt `from` would then allow
//! everything. `lower` reads the tree through [`field`](self), which knows path, line and column of
//! everything, keeps absent and empty apart, and reports what nobody asked for.

mod node;
mod yaml;
mod field;
mod notes;
mod object;
pub mod manifest;

pub use node::{Entry, Mapping, Node, Scalar, Value};
pub use object::{Kind, Metadata, Object, PolicyForm};

pub(crate) use field::Field;
pub(crate) use notes::{Note, Notes, Refused};
pub(crate) use object::labels;

/// How fields that no version of the API knows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnknownFields {
    /// As an error of the author: what has them is enforced closed.
    AsWritten,
    /// As an API server stores the object: they are dropped, with a warning.
    AsStored,
}
