//! Quantities as people write them: spans of time and sizes, a whole number with its unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a quantity cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuantity {
    /// Not a span of time.
    #[error("{0:?} is not a span of time; write a whole number and ms, s, m or h, as in \"200ms\"")]
    Span(String),
    /// Not a size.
    #[error("{0:?} is not a size; write a whole number and B, KiB, MiB or GiB, as in \"32MiB\"")]
    Size(String),
}

/// A span of time in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MillisDuration(u64);

impl MillisDuration {
    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// As the standard library has it.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

const SPANS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl FromStr for MillisDuration {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        quantity(text, &SPANS)
            .map(Self)
            .ok_or_else(|| InvalidQuantity::Span(text.to_owned()))
    }
}

impl fmt::Display for MillisDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_quantity(f, self.0, &SPANS)
    }
}

/// A number of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(usize);

impl ByteSize {
    /// So many octets.
    #[must_use]
    pub const fn from_octets(octets: usize) -> Self {
        Self(octets)
    }

    /// As a number.
    #[must_use]
    pub const fn as_octets(self) -> usize {
        self.0
    }
}

const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

impl FromStr for ByteSize {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        quantity(text, &SIZES)
            .and_then(|octets| usize::try_from(octets).ok())
            .map(Self)
            .ok_or_else(|| InvalidQuantity::Size(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_quantity(f, self.0 as u64, &SIZES)
    }
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn write_quantity(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let whole = |factor: u64| value > 0 && value.is_multiple_of(factor);
    let (name, factor) = units
        .iter()
        .rev()
        .find(|(_, factor)| whole(*factor))
        .unwrap_or(&units[0]);
    write!(f, "{}{name}", value / factor)
}

/// Lets types that are read by `FromStr` and written by `Display` stand as texts in a file.
#[macro_export]
macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl TryFrom<String> for $kind {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    )*};
}

as_text!(MillisDuration, ByteSize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_are_written_with_a_unit() {
        for (text, millis) in [
            ("200ms", 200),
            ("2s", 2_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("0s", 0),
        ] {
            assert_eq!(
                text.parse::<MillisDuration>().unwrap(),
                MillisDuration(millis),
                "{text}"
            );
        }
        for text in ["", "200", "ms", "1.5s", "-1s", "1 s", "99999999999999999999s"] {
            assert!(text.parse::<MillisDuration>().is_err(), "{text:?}");
        }
        assert_eq!("32MiB".parse::<ByteSize>().unwrap().as_octets(), 32 << 20);
        assert_eq!(
            (MillisDuration(90_000).to_string(), ByteSize(3 << 20).to_string()),
            ("90s".into(), "3MiB".into())
        );
    }
}
