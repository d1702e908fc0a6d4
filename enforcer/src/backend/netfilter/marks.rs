//! The connection mark as a cache of "allowed": each direction has some bits that hold a *generation*. A flow
//! whose bits are the pod's present generation was allowed by rules that still stand; any other value, 0
//! among them, means that the rules are asked.
//!
//! Which bits: the mark is shared with every other agent on the node. The AWS VPC CNI keeps 0x80 of the
//! connection mark (`AWS-CONNMARK-CHAIN`); kube-proxy uses 0x4000 and 0x8000, Calico 0xffff0000, of the *packet*
//! mark, which some setups copy with `--save-mark`. The default leaves the lowest octet and kube-proxy's bits
//! alone; 22 bits that also avoid Calico's do not exist, so there the masks are to be set.

use std::fmt;
use std::num::NonZeroU32;

use egret_kernel::Mark;
use egret_policies::rules::Direction;
use serde::{Deserialize, Serialize};

pub(in crate::backend) mod generations;

/// The bits of a direction; any bits, in one piece or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MarkMask(NonZeroU32);

/// Bits that cannot hold generations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMask {
    /// Not a number.
    #[error("{0:?} is no mask; write 32 bits in hexadecimal, as in 0x07ff0000")]
    Number(String),
    /// Too few bits.
    #[error("the mask {0:#x} has fewer than 4 bits: generations would be used again too soon")]
    TooFew(u32),
}

impl std::str::FromStr for MarkMask {
    type Err = InvalidMask;

    fn from_str(text: &str) -> Result<Self, InvalidMask> {
        let digits = text
            .strip_prefix("0x")
            .ok_or_else(|| InvalidMask::Number(text.to_owned()))?;
        let bits =
            u32::from_str_radix(digits, 16).map_err(|_not_hex| InvalidMask::Number(text.to_owned()))?;
        let mask = NonZeroU32::new(bits).filter(|mask| mask.get().count_ones() >= 4);
        mask.map(Self).ok_or(InvalidMask::TooFew(bits))
    }
}

impl TryFrom<String> for MarkMask {
    type Error = InvalidMask;

    fn try_from(text: String) -> Result<Self, InvalidMask> {
        text.parse()
    }
}

impl From<MarkMask> for String {
    fn from(mask: MarkMask) -> Self {
        mask.to_string()
    }
}

impl fmt::Display for MarkMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The bits of both directions, which a flow between two pods of one node has at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    egress: MarkMask,
    ingress: MarkMask,
}

/// Two directions that would overwrite each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the masks of egress ({egress}) and ingress ({ingress}) share bits: choose two that do not")]
pub struct SharedBits {
    egress: MarkMask,
    ingress: MarkMask,
}

impl Marks {
    /// The masks of the two directions.
    ///
    /// # Errors
    /// When they share bits.
    pub const fn new(egress: MarkMask, ingress: MarkMask) -> Result<Self, SharedBits> {
        if egress.0.get() & ingress.0.get() == 0 {
            Ok(Self { egress, ingress })
        } else {
            Err(SharedBits { egress, ingress })
        }
    }

    /// The mark of a generation in a direction.
    #[must_use]
    pub fn mark(self, direction: Direction, generation: Generation) -> Mark {
        let mask = self.mask(direction);
        Mark::new(spread(u32::from(generation.0.get()), mask.get()), mask)
    }

    /// What the marks have in common of all generations whose numbers differ from this one only below `low`, a power of two; none
    /// where that is nothing.
    #[must_use]
    pub fn alike(self, direction: Direction, generation: Generation, low: u16) -> Option<Mark> {
        let mask = self.mask(direction).get();
        let high = |number: u32| spread(number & !(u32::from(low) - 1), mask);
        let bits = NonZeroU32::new(high(u32::MAX))?;
        Some(Mark::new(high(u32::from(generation.0.get())), bits))
    }

    /// The bits of a direction in a flow that no rules of a pod allowed.
    #[must_use]
    pub fn unmarked(self, direction: Direction) -> Mark {
        Mark::new(0, self.mask(direction))
    }

    /// The bits of a direction in a flow that is to end: all of them, which is no pod's generation.
    #[must_use]
    pub fn revoked(self, direction: Direction) -> Mark {
        let mask = self.mask(direction);
        Mark::new(mask.get(), mask)
    }

    /// The bits of a direction in a flow of a pod that is gone: it is to end, and no rules give it back. All but the lowest.
    #[must_use]
    pub fn gone(self, direction: Direction) -> Mark {
        let mask = self.mask(direction);
        Mark::new(without_lowest(mask).get(), mask)
    }

    /// What a flow has that is to end, for the one reason or the other: the highest bit of a direction, which no pod's
    /// generation has.
    #[must_use]
    pub fn ended(self, direction: Direction) -> Mark {
        let bit = highest(self.mask(direction));
        Mark::new(bit.get(), bit)
    }

    /// What a flow has that is to end in neither direction: one question for both.
    #[must_use]
    pub fn going_on(self) -> Mark {
        let [egress, ingress] = Direction::ALL.map(|direction| highest(self.mask(direction)));
        Mark::new(0, egress | ingress)
    }

    /// The generation in a mark's bits of a direction; none where they are 0 or the mask is another.
    #[must_use]
    pub fn generation(self, direction: Direction, value: u32, mask: u32) -> Option<Generation> {
        let own = self.mask(direction).get();
        let number = u16::try_from(gather(value, own)).ok()?;
        if mask == own && number <= self.generations() {
            Generation::new(number)
        } else {
            None
        }
    }

    /// How many generations both directions can tell apart: neither none is one, nor what has the highest bit, as what is to end
    /// has.
    #[must_use]
    pub fn generations(self) -> u16 {
        let [egress, ingress] = Direction::ALL.map(|direction| self.mask(direction).get().count_ones());
        let bits = egress.min(ingress).min(16);
        u16::try_from((1u32 << (bits - 1)) - 1).expect("at most 15 bits")
    }

    /// All bits that are ours.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.egress.0.get() | self.ingress.0.get()
    }

    const fn mask(self, direction: Direction) -> NonZeroU32 {
        match direction {
            Direction::Egress => self.egress.0,
            Direction::Ingress => self.ingress.0,
        }
    }
}

/// Egress: bits 16 to 26. Ingress: bits 27 to 31 and 8 to 13.
pub const DEFAULT_EGRESS: MarkMask = MarkMask(NonZeroU32::new(0x07ff_0000).expect("it is not zero"));
/// See [`DEFAULT_EGRESS`].
pub const DEFAULT_INGRESS: MarkMask = MarkMask(NonZeroU32::new(0xf800_3f00).expect("it is not zero"));

/// Which state of a pod's rules allowed a flow; never 0, which is what a flow has that nobody allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(std::num::NonZeroU16);

impl Generation {
    /// The generation of a number that is not 0.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        std::num::NonZeroU16::new(number).map(Self)
    }

    /// As a number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0.get()
    }
}

fn without_lowest(mask: NonZeroU32) -> NonZeroU32 {
    NonZeroU32::new(mask.get() & (mask.get() - 1)).expect("a mask has more than one bit")
}

fn highest(mask: NonZeroU32) -> NonZeroU32 {
    let place = u32::BITS - 1 - mask.leading_zeros();
    NonZeroU32::new(1 << place).expect("a bit is not zero")
}

/// Puts the low bits of a number where the mask has bits, lowest first.
fn spread(number: u32, mask: u32) -> u32 {
    places(mask)
        .enumerate()
        .fold(0, |value, (bit, place)| value | (number >> bit & 1) << place)
}

/// The inverse of [`spread`].
fn gather(value: u32, mask: u32) -> u32 {
    places(mask)
        .enumerate()
        .fold(0, |number, (bit, place)| number | (value >> place & 1) << bit)
}

fn places(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |place| mask >> place & 1 == 1)
}

/// The marks that a pod's flows have while they are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodMarks {
    /// For connections that it opens.
    pub egress: Mark,
    /// For connections to it.
    pub ingress: Mark,
}

impl PodMarks {
    /// The one of a direction.
    #[must_use]
    pub const fn of(self, direction: Direction) -> Mark {
        match direction {
            Direction::Egress => self.egress,
            Direction::Ingress => self.ingress,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap()
    }

    #[test]
    fn every_generation_survives_the_way_into_a_mark_and_back() {
        for direction in Direction::ALL {
            for number in 1..=marks().generations() {
                let generation = Generation::new(number).unwrap();
                let mark = marks().mark(direction, generation);
                assert_ne!(mark.value(), 0);
                assert_eq!(
                    marks().generation(direction, mark.value(), mark.mask().get()),
                    Some(generation)
                );
            }
        }
        assert_eq!(marks().generations(), 1023);
    }

    #[test]
    fn what_numbers_have_in_common_finds_these_and_nothing_else() {
        for direction in Direction::ALL {
            for number in [1, 127, 128, 700, 1023] {
                let generation = Generation::new(number).unwrap();
                let common = marks().alike(direction, generation, 128).unwrap();
                let others = (1..=1023).filter_map(Generation::new);
                let found = others.filter(|other| common.is_in(marks().mark(direction, *other).value()));
                let found: Vec<u16> = found.map(Generation::number).collect();
                let first = number / 128 * 128;
                assert_eq!(found, (first.max(1)..first + 128).collect::<Vec<_>>());
                assert!(!common.is_in(marks().revoked(direction).value()));
            }
        }
        let few = Marks::new(MarkMask(NonZeroU32::new(0xf).unwrap()), DEFAULT_INGRESS).unwrap();
        assert_eq!(
            few.alike(Direction::Egress, Generation::new(3).unwrap(), 128),
            None
        );
    }

    #[test]
    fn what_is_to_end_is_no_generation_and_no_generation_is_to_end() {
        for direction in Direction::ALL {
            let ended = marks().ended(direction);
            for mark in [marks().revoked(direction), marks().gone(direction)] {
                let read = marks().generation(direction, mark.value(), mark.mask().get());
                assert_eq!(read, None);
                assert!(ended.is_in(mark.value()));
                assert!(!marks().going_on().is_in(mark.value()));
            }
            assert!(!ended.is_in(marks().unmarked(direction).value()));
            assert!(marks().going_on().is_in(marks().unmarked(direction).value()));
            for number in 1..=marks().generations() {
                let mark = marks().mark(direction, Generation::new(number).unwrap());
                assert!(!ended.is_in(mark.value()), "{number}");
                assert!(marks().going_on().is_in(mark.value()), "{number}");
            }
        }
    }

    #[test]
    fn the_default_masks_leave_the_bits_of_others_alone() {
        let ours = DEFAULT_EGRESS.0.get() | DEFAULT_INGRESS.0.get();
        assert_eq!(ours & 0x80, 0, "AWS VPC CNI");
        assert_eq!(ours & 0xc000, 0, "kube-proxy");
        assert!(Marks::new(DEFAULT_EGRESS, DEFAULT_EGRESS).is_err());
    }

    #[test]
    fn a_mark_under_another_mask_is_no_generation_of_ours() {
        assert_eq!(
            marks().generation(Direction::Egress, 0x0001_0000, 0x0fff_0000),
            None
        );
        assert_eq!(marks().generation(Direction::Egress, 0, 0x07ff_0000), None);
    }

    #[test]
    fn a_mask_is_written_in_hexadecimal_with_enough_bits() {
        assert_eq!("0x07ff0000".parse(), Ok(DEFAULT_EGRESS));
        assert_eq!(DEFAULT_EGRESS.to_string(), "0x07ff0000");
        for text in ["", "7ff", "0x", "0xg", "0x7", "0x1ffffffff"] {
            assert!(text.parse::<MarkMask>().is_err(), "{text}");
        }
    }
}
