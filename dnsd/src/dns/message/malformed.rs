//! Errors of the reader of messages.

/// Why octets are not a DNS message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message ends inside a field, at this offset.
    #[error("the message ends inside what begins at octet {0}")]
    Cut(usize),
    /// A number of questions other than one (RFC 9619).
    #[error("{0} questions; 1 is accepted")]
    Questions(u16),
    /// A name points forward or to itself.
    #[error("the pointer at octet {0} does not point backwards")]
    Pointer(usize),
    /// A label type that is not in use (RFC 6891 §5).
    #[error("the label at octet {0} is of an unknown kind")]
    LabelKind(usize),
    /// The name has more than 255 octets (RFC 1035 §3.1).
    #[error("a name is longer than 255 octets")]
    NameTooLong,
}
