//! How a query comes in.

/// The transport of a client's query; the label `transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A connection.
    Tcp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}
