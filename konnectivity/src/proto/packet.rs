//! `Packet` of `konnectivity-client/proto/client/client.proto` (proto3, no package).

use bytes::Bytes;
use prost::Message as _;

/// What server, agent and API server say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Asks for a connection. `random` is the caller's key of the dial.
    DialRequest {
        /// A network of Go's `net.Dial`; only `tcp` is ever sent.
        protocol: String,
        /// Host and port, the host not resolved.
        address: String,
        random: i64,
    },
    /// Answers a dial: `connection` counts where `error` is empty.
    DialResponse {
        error: String,
        connection: i64,
        random: i64,
    },
    CloseRequest {
        connection: i64,
    },
    CloseResponse {
        error: String,
        connection: i64,
    },
    Data {
        connection: i64,
        data: Bytes,
    },
    /// Whoever asked for the connection does not wait for it any more.
    DialClose {
        random: i64,
    },
    /// The agent asks for no further dials.
    Drain,
    /// The receiver of a connection's data has room for so many octets more. Ours alone: others ignore it, and who did not announce
    /// [`super::metadata::WINDOW`] is not sent any.
    Credit {
        connection: i64,
        octets: u32,
    },
}

/// Why octets are no packet.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("not a packet: {0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error("a packet of type {0} without its payload")]
    NoPayload(i32),
}

impl Packet {
    /// Reads a packet; none where its type is unknown, which every implementation ignores.
    ///
    /// # Errors
    /// When the octets are no protobuf, or the payload is not that of the type.
    pub fn decode(octets: Bytes) -> Result<Option<Self>, DecodeError> {
        let wire::Packet { kind, payload } = wire::Packet::decode(octets)?;
        let packet = match (kind, payload) {
            (wire::DIAL_REQ, Some(wire::Payload::DialRequest(it))) => Self::DialRequest {
                protocol: it.protocol,
                address: it.address,
                random: it.random,
            },
            (wire::DIAL_RSP, Some(wire::Payload::DialResponse(it))) => Self::DialResponse {
                error: it.error,
                connection: it.connection,
                random: it.random,
            },
            (wire::CLOSE_REQ, Some(wire::Payload::CloseRequest(it))) => Self::CloseRequest {
                connection: it.connection,
            },
            (wire::CLOSE_RSP, Some(wire::Payload::CloseResponse(it))) => Self::CloseResponse {
                error: it.error,
                connection: it.connection,
            },
            (wire::DATA, Some(wire::Payload::Data(it))) => Self::Data {
                connection: it.connection,
                data: it.data,
            },
            (wire::DIAL_CLS, Some(wire::Payload::CloseDial(it))) => Self::DialClose { random: it.random },
            // Go sends it with a payload that has no content, or with none.
            (wire::DRAIN, _) => Self::Drain,
            (wire::CREDIT, Some(wire::Payload::Credit(it))) => Self::Credit {
                connection: it.connection,
                octets: it.octets,
            },
            (wire::DIAL_REQ..=wire::DRAIN | wire::CREDIT, _) => return Err(DecodeError::NoPayload(kind)),
            (_unknown, _) => return Ok(None),
        };
        Ok(Some(packet))
    }

    pub(super) fn to_wire(&self) -> wire::Packet {
        let (kind, payload) = match self.clone() {
            Self::DialRequest {
                protocol,
                address,
                random,
            } => (
                wire::DIAL_REQ,
                wire::Payload::DialRequest(wire::DialRequest {
                    protocol,
                    address,
                    random,
                }),
            ),
            Self::DialResponse {
                error,
                connection,
                random,
            } => (
                wire::DIAL_RSP,
                wire::Payload::DialResponse(wire::DialResponse {
                    error,
                    connection,
                    random,
                }),
            ),
            Self::CloseRequest { connection } => (
                wire::CLOSE_REQ,
                wire::Payload::CloseRequest(wire::CloseRequest { connection }),
            ),
            Self::CloseResponse { error, connection } => (
                wire::CLOSE_RSP,
                wire::Payload::CloseResponse(wire::CloseResponse { error, connection }),
            ),
            Self::Data { connection, data } => (
                wire::DATA,
                wire::Payload::Data(wire::Data {
                    connection,
                    error: String::new(),
                    data,
                }),
            ),
            Self::DialClose { random } => (
                wire::DIAL_CLS,
                wire::Payload::CloseDial(wire::CloseDial { random }),
            ),
            Self::Drain => (wire::DRAIN, wire::Payload::Drain(wire::Drain {})),
            Self::Credit { connection, octets } => (
                wire::CREDIT,
                wire::Payload::Credit(wire::Credit { connection, octets }),
            ),
        };
        wire::Packet {
            kind,
            payload: Some(payload),
        }
    }
}

/// The messages as protobuf has them. The numbers of the oneof are not in the order of the types.
pub(super) mod wire {
    use bytes::Bytes;

    pub(super) const DIAL_REQ: i32 = 0;
    pub(super) const DIAL_RSP: i32 = 1;
    pub(super) const CLOSE_REQ: i32 = 2;
    pub(super) const CLOSE_RSP: i32 = 3;
    pub(in super::super) const DATA: i32 = 4;
    pub(super) const DIAL_CLS: i32 = 5;
    pub(super) const DRAIN: i32 = 6;
    /// Far from the numbers that upstream may give next, as is its field.
    pub(super) const CREDIT: i32 = 1000;

    /// Numbers of fields, for what is written without a copy of its data.
    pub(in super::super) const DATA_OF_PACKET: u32 = 4;
    pub(in super::super) const DATA_OF_DATA: u32 = 3;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Packet {
        #[prost(int32, tag = "1")]
        pub kind: i32,
        #[prost(oneof = "Payload", tags = "2, 3, 4, 5, 6, 7, 8, 1000")]
        pub payload: Option<Payload>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(in super::super) enum Payload {
        #[prost(message, tag = "2")]
        DialRequest(DialRequest),
        #[prost(message, tag = "3")]
        DialResponse(DialResponse),
        #[prost(message, tag = "4")]
        Data(Data),
        #[prost(message, tag = "5")]
        CloseRequest(CloseRequest),
        #[prost(message, tag = "6")]
        CloseResponse(CloseResponse),
        #[prost(message, tag = "7")]
        CloseDial(CloseDial),
        #[prost(message, tag = "8")]
        Drain(Drain),
        #[prost(message, tag = "1000")]
        Credit(Credit),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct DialRequest {
        #[prost(string, tag = "1")]
        pub protocol: String,
        #[prost(string, tag = "2")]
        pub address: String,
        #[prost(int64, tag = "3")]
        pub random: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct DialResponse {
        #[prost(string, tag = "1")]
        pub error: String,
        #[prost(int64, tag = "2")]
        pub connection: i64,
        #[prost(int64, tag = "3")]
        pub random: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct CloseRequest {
        #[prost(int64, tag = "1")]
        pub connection: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct CloseResponse {
        #[prost(string, tag = "1")]
        pub error: String,
        #[prost(int64, tag = "2")]
        pub connection: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Data {
        #[prost(int64, tag = "1")]
        pub connection: i64,
        #[prost(string, tag = "2")]
        pub error: String,
        #[prost(bytes = "bytes", tag = "3")]
        pub data: Bytes,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct CloseDial {
        #[prost(int64, tag = "1")]
        pub random: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Drain {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in super::super) struct Credit {
        #[prost(int64, tag = "1")]
        pub connection: i64,
        #[prost(uint32, tag = "2")]
        pub octets: u32,
    }
}
