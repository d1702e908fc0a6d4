//! What is wrong with octets that are no DNS message.

/// Why octets are no DNS message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message ends inside something.
    #[error("the message ends inside what begins at octet {0}")]
    Cut(usize),
    /// dnsd asks and answers one question at a time, as everybody does (RFC 9619).
    #[error("{0} questions; 1 is accepted")]
    Questions(u16),
    /// A name points forward or to itself.
    #[error("the pointer at octet {0} does not point backwards")]
    Pointer(usize),
    /// A label of a kind that nobody writes (RFC 6891 §5).
    #[error("the label at octet {0} is of an unknown kind")]
    LabelKind(usize),
    /// RFC 1035 §3.1.
    #[error("a name is longer than 255 octets")]
    NameTooLong,
}
