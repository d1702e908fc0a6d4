//! DNS messages in wire format (RFC 1035 §4), read and patched in place, without allocation.
//!
//! dnsd relays the octets that it received. So it reads only the offsets of id, TTLs and question, and the names and
//! addresses of an answer. Reading ends for any input: a compression pointer points backwards, a name has at most 255
//! octets, and the header and the length of the message bound the records.

mod malformed;
mod name;
mod read;
mod query;
mod compose;
mod record;
mod write;
mod codes;
mod present;

pub(crate) use codes::{CLASSES, Codes, RCODES, TYPES, rcode_label};
pub(crate) use compose::{OPT_SIZE, push_reply_opt};
pub use compose::{
    QueryParts, bad_version_reply, error_reply, explained_reply, header_reply, mix_case, query,
    synthesized_denial, truncated_reply,
};
pub use malformed::Malformed;
pub use name::{InvalidText, WireName};
pub(crate) use present::{ACCEPTED_TYPES, is_known as is_known_type, ttl_of as ttl_of_text, type_number};
pub use present::{InvalidRecord, Reason as InvalidRecordReason, parse_record};
pub(crate) use query::has_option;
pub use query::{Edns, Query, Refusal};
pub(crate) use read::Records;
pub use read::{Message, Question, Record, Section};
pub use record::{Data, ResourceRecord, Sections};
pub use write::{Response, TooLong};

/// Octets of the header.
pub const HEADER: usize = 12;

/// Record types (IANA, "Resource Record (RR) TYPEs").
pub mod kind {
    /// An IPv4 address.
    pub const A: u16 = 1;
    /// The canonical name for an alias.
    pub const CNAME: u16 = 5;
    /// The start of a zone of authority.
    pub const SOA: u16 = 6;
    /// A name for an address.
    pub const PTR: u16 = 12;
    /// A mail server.
    pub const MX: u16 = 15;
    /// An IPv6 address (RFC 3596).
    pub const AAAA: u16 = 28;
    /// Where a service is (RFC 2782).
    pub const SRV: u16 = 33;
    /// The pseudo-record of EDNS (RFC 6891).
    pub const OPT: u16 = 41;
    /// A signature (RFC 4034).
    pub const RRSIG: u16 = 46;
    /// A service binding (RFC 9460).
    pub const SVCB: u16 = 64;
    /// The service binding of HTTP (RFC 9460).
    pub const HTTPS: u16 = 65;
    /// Any type at all, in questions.
    pub const ANY: u16 = 255;
}

/// Class IN.
pub const CLASS_IN: u16 = 1;

/// Response codes that dnsd writes or decides by (IANA, "DNS RCODEs").
pub mod rcode {
    /// No error.
    pub const NOERROR: u8 = 0;
    /// The query cannot be read.
    pub const FORMERR: u8 = 1;
    /// The server failed.
    pub const SERVFAIL: u8 = 2;
    /// The name does not exist.
    pub const NXDOMAIN: u8 = 3;
    /// The opcode is not implemented.
    pub const NOTIMP: u8 = 4;
    /// The server refuses.
    pub const REFUSED: u8 = 5;
}

/// Bits of the flags (octets 2 and 3 of the header).
pub mod flag {
    /// This is a response.
    pub const QR: u16 = 1 << 15;
    /// The server is an authority for the name.
    pub const AA: u16 = 1 << 10;
    /// The message is truncated.
    pub const TC: u16 = 1 << 9;
    /// Recursion is desired.
    pub const RD: u16 = 1 << 8;
    /// Recursion is available.
    pub const RA: u16 = 1 << 7;
    /// The data is authentic; in a query: the client understands AD (RFC 6840 §5.7).
    pub const AD: u16 = 1 << 5;
    /// Checking is disabled.
    pub const CD: u16 = 1 << 4;
}
