//! How a query comes in.

/// The transport of a client's query; the label `transport`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A connection, encrypted or not.
    Tcp,
    /// A stream of QUIC: counted as UDP, as CoreDNS does, and answered whole as over TCP.
    Quic,
}

impl Transport {
    /// Those that are counted apart.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// The index in [`Self::ALL`].
    #[must_use]
    pub const fn counted(self) -> usize {
        match self {
            Self::Udp | Self::Quic => 0,
            Self::Tcp => 1,
        }
    }

    /// Whether a reply of any length can be given.
    #[must_use]
    pub const fn is_stream(self) -> bool {
        match self {
            Self::Udp => false,
            Self::Tcp | Self::Quic => true,
        }
    }

    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Udp | Self::Quic => "udp",
            Self::Tcp => "tcp",
        }
    }
}
