//! A kept answer in one piece of memory of its exact size: a cache has a hundred thousand of them, and whatever an answer
//! is while it is made (names, lists with room to grow) would be most of what they take.
//!
//! ```text
//!  head │ key │ message │ where its TTLs stand │ IPv4 addresses that it tells │ IPv6 addresses
//!                         2 octets each          4 and when they end            16 and when they end
//! ```
//!
//! Of the key, the name is not written twice where it is the one of the message's question, as nearly always.
//!
//! The head has the marks of who was told it, besides what tells the parts apart: who looks at the answer has them in hand.
//!
//! What it tells in full (the chain of names) is read from the message again where it has to be told.

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

use super::{By, Failed, Known};

/// Octets of the end of an address: seconds after the answer's arrival, as its TTL was.
const END: usize = 4;
const IPV4: usize = 4 + END;
const IPV6: usize = 16 + END;
/// What the allocator adds to a piece and rounds its size up to (glibc, malloc.c: `SIZE_SZ` and `MALLOC_ALIGNMENT`).
const HEAD: usize = 8;
const ALIGNMENT: usize = 16;
/// What stands before the octets: the count of who holds them, the head, their length.
const BEFORE: usize = size_of::<usize>() + size_of::<Head>() + size_of::<usize>();

/// An answer that is kept, with the key that it is kept under.
#[derive(Clone, Debug)]
pub struct Packed(ThinArc<Head, u8>);

#[derive(Debug)]
struct Head {
    /// Who was told it.
    bitmap: ClientBitmap,
    /// Octets of the key, without the name where that is the question's.
    key: u16,
    /// Octets of the message.
    message: u16,
    question_end: u16,
    /// Where the OPT begins; 0 where there is none.
    opt: u16,
    /// How many TTLs there are.
    ttls: u16,
    /// How many IPv4 addresses it tells; what is behind them are IPv6 ones.
    ipv4: u16,
    provenance: Provenance,
    by: By,
    failed: Option<Failed>,
}

impl Value for Packed {
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

impl Packed {
    /// Packs an answer under a key; nothing where it is too large for that, or cannot be shared.
    #[must_use]
    pub fn new(known: &Known, key: &[u8]) -> Option<Self> {
        let answer = known.answer.get().view();
        let opt = match answer.opt {
            Opt::Absent => 0,
            Opt::Last(at) => short(at)?,
            Opt::Fixed => return None,
        };
        let (ttls, told) = (
            answer.ttls?,
            known.told.as_ref().map_or(&[][..], AnswerObservation::addresses),
        );
        let ipv4 = told.partition_point(|told| told.address.is_ipv4());
        let name = HEADER..answer.question_end - 4;
        let asked = &answer.octets[name.clone()];
        let parts = key.split_at_checked(FIXED);
        let own = match parts.filter(|(_, name)| name.eq_ignore_ascii_case(asked)) {
            Some((own, _name)) => own,
            None => key,
        };
        let length =
            own.len() + answer.octets.len() + ttls.len() * 2 + ipv4 * IPV4 + (told.len() - ipv4) * IPV6;
        let mut octets = take_buffer(length);
        octets.extend_from_slice(own);
        octets.extend_from_slice(answer.octets);
        // A client is given its own letters, whatever these are.
        octets[own.len()..][name].make_ascii_lowercase();
        octets.extend_from_slice(ttls.as_flattened());
        for told in told {
            match told.address {
                IpAddr::V4(address) => octets.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => octets.extend_from_slice(&address.octets()),
            }
            let end = told.expires.since(answer.arrived).as_secs();
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
            provenance: known.provenance,
            by: known.by,
            failed: known.failed,
        };
        let packed = ThinArc::from_header_and_slice(head, &octets);
        return_buffer(octets);
        Some(Self(packed))
    }

    /// Who was told it.
    #[must_use]
    pub fn bitmap(&self) -> &ClientBitmap {
        &self.head().bitmap
    }

    /// The answer, which arrived then.
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

    /// Who made it.
    #[must_use]
    pub fn provenance(&self) -> Provenance {
        self.head().provenance
    }

    /// Which part of the chain that was.
    #[must_use]
    pub fn by(&self) -> By {
        self.head().by
    }

    /// Why there is no answer, if it says so.
    #[must_use]
    pub fn failed(&self) -> Option<Failed> {
        self.head().failed
    }

    /// Whether it tells any addresses.
    #[must_use]
    pub fn tells(&self) -> bool {
        !self.told_octets().is_empty()
    }

    /// The addresses that it tells.
    pub fn addresses(&self, arrived: Timestamp) -> impl Iterator<Item = ObservedAddress> {
        let (ipv4, ipv6) = self.told_octets().split_at(usize::from(self.head().ipv4) * IPV4);
        let (ipv4, ipv6) = (ipv4.as_chunks::<IPV4>().0, ipv6.as_chunks::<IPV6>().0);
        let ipv4 = ipv4.iter().map(move |octets| observed::<4>(octets, arrived));
        ipv4.chain(ipv6.iter().map(move |octets| observed::<16>(octets, arrived)))
    }

    /// What `act` makes of the name that was asked for, as text; nothing where that is not as plain as nearly all are.
    pub fn with_question<T>(&self, act: impl FnOnce(&str) -> T) -> Option<T> {
        plain_text(self.name(), &mut [0; MAX_WIRE]).map(act)
    }

    /// What it tells, in full.
    #[must_use]
    pub fn told(&self, arrived: Timestamp) -> Option<AnswerObservation> {
        self.to_known(arrived).told
    }

    /// The same as it was before it was kept.
    #[must_use]
    pub fn to_known(&self, arrived: Timestamp) -> Known {
        let answer = ValidatedResponse::own(self.answer(arrived).to_answer());
        let (told, _left_out) = observe(&answer, &[]);
        let kept: Vec<ObservedAddress> = self.addresses(arrived).collect();
        Known {
            told: told.and_then(|told| told.only(&kept)),
            answer,
            kept: None,
            provenance: self.provenance(),
            by: self.by(),
            failed: self.failed(),
        }
    }

    fn told_octets(&self) -> &[u8] {
        let head = self.head();
        &self.octets()[usize::from(head.key) + usize::from(head.message) + usize::from(head.ttls) * 2..]
    }

    /// The name that was asked for, as it stands in the message; not compressed, since nothing is before it.
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

/// An address of so many octets, and its end.
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
