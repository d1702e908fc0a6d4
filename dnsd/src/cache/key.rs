//! The key of a question: what its answer depends on.
//!
//! | of the query | part of the key? | because |
//! |---|---|---|
//! | name, type, class | yes | it is the question; letter case is not (RFC 4343) |
//! | DO | yes | answers with it have signatures, which others must not be given (RFC 4035 §3.2.1) |
//! | CD | yes | answers with it may be bogus (RFC 4035 §3.2.2) |
//! | OPT | no | it is hop-by-hop (RFC 6891 §6.1.1): it is removed or added when the reply is written |
//! | AD | no | upstreams are always queried with it; the bit is cleared for clients that did not set it (RFC 6840 §5.7, §5.8) |
//! | RD | half | without it an upstream may answer less: such an answer is not stored, but others' answers are served |
//! | options | never cached | their answer may be for one client alone (RFC 7871) |

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::cache::cacheability::Kind;
use crate::dns::message::{Query, Question, WireName, flag};

/// Octets before the name: flags, type and class.
pub(crate) const FIXED: usize = 5;
/// A name takes 255 octets at most (RFC 1035 §3.1).
const MAX: usize = FIXED + 255;

/// An owned key, without allocation.
#[derive(Clone, Copy)]
pub struct Key {
    octets: [u8; MAX],
    length: usize,
    recursion: bool,
}

/// A borrowed key without RD, for look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyView<'a> {
    head: [u8; FIXED],
    name: &'a [u8],
}

impl<'a> KeyView<'a> {
    /// The key of a query; `None` where the answer is for this client alone.
    #[must_use]
    pub fn of(query: &'a Query<'_>) -> Option<Self> {
        let edns = query.edns.as_ref();
        if edns.is_some_and(|edns| !edns.options.is_empty()) {
            return None;
        }
        let dnssec = edns.is_some_and(|edns| edns.dnssec);
        let class = u8::from(query.flags & flag::CD != 0) | u8::from(dnssec) << 1;
        let question = &query.question;
        let ([kind, kind_low], [of_class, of_class_low]) =
            (question.kind.to_be_bytes(), question.class.to_be_bytes());
        Some(Self {
            head: [class, kind, kind_low, of_class, of_class_low],
            name: question.name.as_octets(),
        })
    }

    /// From the octets before the name, and the name.
    pub(crate) const fn of_parts(head: [u8; FIXED], name: &'a [u8]) -> Self {
        Self { head, name }
    }

    /// The key of the name for all types: type 0 is reserved (RFC 6895 §3.1).
    pub(super) const fn of_name(mut self) -> Self {
        (self.head[1], self.head[2]) = (0, 0);
        self
    }

    /// The owned key, with the query's RD.
    #[must_use]
    pub fn to_key(self, query: &Query<'_>) -> Key {
        let (mut octets, length) = ([0; MAX], FIXED + self.name.len());
        octets[..FIXED].copy_from_slice(&self.head);
        octets[FIXED..length].copy_from_slice(self.name);
        Key {
            octets,
            length,
            recursion: query.flags & flag::RD != 0,
        }
    }

    /// The octets in one piece.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        [&self.head[..], self.name].concat()
    }
}

/// The head has one length, and a name ends where it says so itself: no two keys are hashed as the same octets.
impl Hash for KeyView<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [class, kind, kind_low, of_class, of_class_low] = self.head;
        let head = [0, 0, 0, class, kind, kind_low, of_class, of_class_low];
        state.write(self.name);
        state.write_u64(u64::from_be_bytes(head));
    }
}

impl<'a> From<&'a Key> for KeyView<'a> {
    fn from(key: &'a Key) -> Self {
        key.view()
    }
}

impl Key {
    /// The key of a query; `None` where the answer is for this client alone.
    #[must_use]
    pub fn of(query: &Query<'_>) -> Option<Self> {
        KeyView::of(query).map(|view| view.to_key(query))
    }

    /// The key without RD.
    ///
    /// # Panics
    /// Never: a key has a head.
    #[must_use]
    pub fn view(&self) -> KeyView<'_> {
        let (head, name) = self.as_octets().split_first_chunk().expect("a key has a head");
        KeyView::of_parts(*head, name)
    }

    /// The key of an entry of another process, from its octets, with RD.
    #[must_use]
    pub fn of_entry(entry: &[u8]) -> Option<Self> {
        let (head, name) = entry.split_at_checked(FIXED)?;
        let (read, end) = WireName::read(name, 0).ok()?;
        if head[0] > 3 || end != name.len() || read.as_octets() != name {
            return None;
        }
        let mut octets = [0; MAX];
        octets[..entry.len()].copy_from_slice(entry);
        Some(Self {
            octets,
            length: entry.len(),
            recursion: true,
        })
    }

    /// Whether it is the key of a question, or of its name for all types.
    pub(crate) fn is_of(&self, question: &Question, whatever_type: bool) -> bool {
        let kind = if whatever_type { 0 } else { question.kind };
        self.octets[1..3] == kind.to_be_bytes()
            && self.octets[3..FIXED] == question.class.to_be_bytes()
            && self.octets[FIXED..self.length] == *question.name.as_octets()
    }

    /// The key of the name for all types: type 0 is reserved (RFC 6895 §3.1).
    pub(super) fn of_name(self) -> Self {
        self.of_kind(0)
    }

    /// The key of the same question for another type.
    #[must_use]
    pub fn of_kind(mut self, kind: u16) -> Self {
        self.octets[1..3].copy_from_slice(&kind.to_be_bytes());
        self
    }

    /// The key under which an answer is stored: an NXDOMAIN holds for all types.
    pub(super) fn storage_key(&self, kind: Kind) -> Self {
        if kind == Kind::NameError {
            self.of_name()
        } else {
            *self
        }
    }

    /// DO and CD.
    #[must_use]
    pub const fn class(&self) -> u8 {
        self.octets[0]
    }

    /// The octets.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        &self.octets[..self.length]
    }

    /// Whether recursion was desired.
    pub(super) const fn recursion(&self) -> bool {
        self.recursion
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.recursion == other.recursion && self.as_octets() == other.as_octets()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_octets().hash(state);
        self.recursion.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, rd: {})", self.as_octets(), self.recursion)
    }
}
