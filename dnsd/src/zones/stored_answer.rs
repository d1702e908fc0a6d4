//! A cached answer in one allocation of its exact size: a cache has a hundred thousand of them.
//!
//! ```text
//!  head │ key │ message │ offsets of its TTLs  │ IPv4 addresses to observe    │ IPv6 addresses
//!                         2 octets each          4, and 4 for the lifetime      16, and 4 for the lifetime
//! ```
//!
//! The key's name is left out where it is the name of the message's question, as nearly always.
//!
//! The head has the bitmap of the clients that were given the answer, beside the lengths of the parts.
//!
//! An observation in full, with its chain of names, is read from the message again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use egret_shared::name::{MAX_WIRE, plain_text};
use egret_shared::observation::ObservedAddress;
use egret_shared::time::Timestamp;
use triomphe::ThinArc;

use crate::cache::{FIXED, KeyView, Provenance, Value};
use crate::dns::answer::{AnswerView, Opt};
use crate::dns::message::{HEADER, Message};
use crate::enforcement::observation::{AnswerObservation, observe};
use crate::enforcement::records::ClientBitmap;
use crate::net::buffers::{return_buffer, take_buffer};
use crate::upstream::pending_query::ValidatedResponse;

use super::{AnswerSource, ResolveError, ResolvedAnswer};

/// Octets of an address's lifetime: seconds from the answer's arrival.
const END: usize = 4;
const IPV4: usize = 4 + END;
const IPV6: usize = 16 + END;
/// What the allocator adds to an allocation, and the multiple that it rounds its size up to (glibc, malloc.c: `SIZE_SZ` and `MALLOC_ALIGNMENT`).
const HEAD: usize = 8;
const ALIGNMENT: usize = 16;
/// Octets before the content: reference count, head, length.
const BEFORE: usize = size_of::<usize>() + size_of::<Head>() + size_of::<usize>();

/// A cached answer with its key.
#[derive(Clone, Debug)]
pub struct StoredAnswer(ThinArc<Head, u8>);

#[derive(Debug)]
struct Head {
    /// The clients that were given it.
    bitmap: ClientBitmap,
    /// Octets of the key, without the name where that is the question's.
    key: u16,
    /// Octets of the message.
    message: u16,
    question_end: u16,
    /// The offset of the OPT record; 0 without one.
    opt: u16,
    /// The number of TTLs.
    ttls: u16,
    /// The number of IPv4 addresses.
    ipv4: u16,
    provenance: Provenance,
    source: AnswerSource,
    error: Option<ResolveError>,
}

impl Value for StoredAnswer {
    fn key(&self) -> KeyView<'_> {
        let own = &self.octets()[..self.head().key.into()];
        let (head, rest) = own.split_first_chunk().expect("a key has a head");
        let name = if rest.is_empty() { self.name() } else { rest };
        KeyView::of_parts(*head, name)
    }

    fn weight(&self) -> usize {
        (BEFORE + self.octets().len() + HEAD).next_multiple_of(ALIGNMENT)
    }
}

impl StoredAnswer {
    /// Stores an answer under a key; none where it is too large, or cannot be shared between clients.
    #[must_use]
    pub fn new(resolved: &ResolvedAnswer, key: &[u8]) -> Option<Self> {
        let answer = resolved.answer.get().view();
        let opt = match answer.opt {
            Opt::Absent => 0,
            Opt::Last(at) => short(at)?,
            Opt::Fixed => return None,
        };
        let (ttls, observation) = (
            answer.ttls?,
            resolved
                .observation
                .as_ref()
                .map_or(&[][..], AnswerObservation::addresses),
        );
        let ipv4 = observation.partition_point(|observation| observation.address.is_ipv4());
        let name = HEADER..answer.question_end - 4;
        let asked = &answer.octets[name.clone()];
        let parts = key.split_at_checked(FIXED);
        let own = match parts.filter(|(_, name)| name.eq_ignore_ascii_case(asked)) {
            Some((own, _name)) => own,
            None => key,
        };
        let length = own.len()
            + answer.octets.len()
            + ttls.len() * 2
            + ipv4 * IPV4
            + (observation.len() - ipv4) * IPV6;
        let mut octets = take_buffer(length);
        octets.extend_from_slice(own);
        octets.extend_from_slice(answer.octets);
        // A reply has the letters of the client's question.
        octets[own.len()..][name].make_ascii_lowercase();
        octets.extend_from_slice(ttls.as_flattened());
        for observation in observation {
            match observation.address {
                IpAddr::V4(address) => octets.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => octets.extend_from_slice(&address.octets()),
            }
            let end = observation.expires.since(answer.arrived).as_secs();
            octets.extend_from_slice(&u32::try_from(end).ok()?.to_be_bytes());
        }
        let head = Head {
            bitmap: ClientBitmap::default(),
            key: short(own.len())?,
            message: short(answer.octets.len())?,
            question_end: short(answer.question_end)?,
            opt,
            ttls: short(ttls.len())?,
            ipv4: short(ipv4)?,
            provenance: resolved.provenance,
            source: resolved.source,
            error: resolved.error,
        };
        let packed = ThinArc::from_header_and_slice(head, &octets);
        return_buffer(octets);
        Some(Self(packed))
    }

    /// The clients that were given it.
    #[must_use]
    pub fn bitmap(&self) -> &ClientBitmap {
        &self.head().bitmap
    }

    /// The answer; the cache keeps when it arrived.
    #[must_use]
    pub fn answer(&self, arrived: Timestamp) -> AnswerView<'_> {
        let head = self.head();
        let (octets, behind) = self.octets()[head.key.into()..].split_at(head.message.into());
        let (ttls, _rest) = behind[..usize::from(head.ttls) * 2].as_chunks();
        AnswerView {
            octets,
            question_end: head.question_end.into(),
            arrived,
            ttls: Some(ttls),
            opt: match head.opt {
                0 => Opt::Absent,
                at => Opt::Last(at.into()),
            },
        }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        self.answer(Timestamp::from_millis(0)).message()
    }

    /// Whether an upstream or dnsd itself made it.
    #[must_use]
    pub fn provenance(&self) -> Provenance {
        self.head().provenance
    }

    /// The plugin that made it.
    #[must_use]
    pub fn source(&self) -> AnswerSource {
        self.head().source
    }

    /// The failure that it reports, if it does.
    #[must_use]
    pub fn error(&self) -> Option<ResolveError> {
        self.head().error
    }

    /// Whether it has addresses to observe.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        !self.address_octets().is_empty()
    }

    /// The addresses to observe.
    pub fn addresses(&self, arrived: Timestamp) -> impl Iterator<Item = ObservedAddress> {
        let (ipv4, ipv6) = self
            .address_octets()
            .split_at(usize::from(self.head().ipv4) * IPV4);
        let (ipv4, ipv6) = (ipv4.as_chunks::<IPV4>().0, ipv6.as_chunks::<IPV6>().0);
        let ipv4 = ipv4.iter().map(move |octets| observed::<4>(octets, arrived));
        ipv4.chain(ipv6.iter().map(move |octets| observed::<16>(octets, arrived)))
    }

    /// Calls `act` with the question's name as text; none where the name has octets that need escapes.
    pub fn with_question<T>(&self, act: impl FnOnce(&str) -> T) -> Option<T> {
        plain_text(self.name(), &mut [0; MAX_WIRE]).map(act)
    }

    /// The observation in full.
    #[must_use]
    pub fn observation(&self, arrived: Timestamp) -> Option<AnswerObservation> {
        self.to_resolved(arrived).observation
    }

    /// The answer as it was before it was stored.
    #[must_use]
    pub fn to_resolved(&self, arrived: Timestamp) -> ResolvedAnswer {
        let answer = ValidatedResponse::own(self.answer(arrived).to_answer());
        let (observation, _left_out) = observe(&answer, &[]);
        let cacheable: Vec<ObservedAddress> = self.addresses(arrived).collect();
        ResolvedAnswer {
            observation: observation.and_then(|observation| observation.only(&cacheable)),
            answer,
            cacheable: None,
            provenance: self.provenance(),
            source: self.source(),
            error: self.error(),
        }
    }

    fn address_octets(&self) -> &[u8] {
        let head = self.head();
        &self.octets()[usize::from(head.key) + usize::from(head.message) + usize::from(head.ttls) * 2..]
    }

    /// The question's name in the message. It is not compressed: no name is before it.
    fn name(&self) -> &[u8] {
        let head = self.head();
        let (start, end) = (usize::from(head.key) + HEADER, head.key + head.question_end);
        &self.octets()[start..usize::from(end) - 4]
    }

    fn head(&self) -> &Head {
        &self.0.header.header
    }

    fn octets(&self) -> &[u8] {
        &self.0.slice
    }
}

fn short(number: usize) -> Option<u16> {
    u16::try_from(number).ok()
}

/// Reads an address of `LENGTH` octets and its lifetime.
fn observed<const LENGTH: usize>(octets: &[u8], arrived: Timestamp) -> ObservedAddress {
    let (address, end) = octets.split_at(LENGTH);
    let address = match address.first_chunk::<16>() {
        Some(octets) => IpAddr::V6(Ipv6Addr::from(*octets)),
        None => IpAddr::V4(Ipv4Addr::from_octets(
            *address.first_chunk().expect("it is one of the two"),
        )),
    };
    let end = u32::from_be_bytes(*end.first_chunk().expect("an end is behind each address"));
    ObservedAddress {
        address,
        expires: arrived.after(Duration::from_secs(end.into())),
    }
}
