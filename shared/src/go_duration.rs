//! Durations in the syntax of Go's `time.ParseDuration`: `1h30m`, `1.5s`, `300ms`.

use std::fmt::Write;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Go's longest duration: 63 bits of nanoseconds.
const LONGEST: u128 = (1 << 63) - 1;

/// The accepted syntax, for errors.
pub const ACCEPTED: &str = "a span of time with ns, us, ms, s, m or h, as in \"30s\" or \"1m30s\"";

/// Parses a duration, in nanoseconds up to Go's longest; `None` if it is invalid or negative.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (number, behind) = split(rest, |character| character.is_ascii_digit() || character == '.');
        let (unit, behind) = split(behind, |character| {
            !character.is_ascii_digit() && character != '.'
        });
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(part(number, *nanos)?)?;
        rest = behind;
    }
    let nanos = u64::try_from(total).ok().filter(|_| total <= LONGEST)?;
    Some(Duration::from_nanos(nanos))
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|character| !belongs(character)).unwrap_or(text.len());
    text.split_at(end)
}

fn part(number: &str, nanos: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(nanos)?;
    let mut place = nanos;
    for digit in fraction.chars() {
        place /= 10;
        total = total.checked_add(u128::from(digit.to_digit(10)?) * place)?;
    }
    (total <= LONGEST).then_some(total)
}

/// Writes whole seconds as hours, minutes and seconds, `1h30m`; others in the largest unit without remainder, `1500ms`.
#[must_use]
pub fn write_duration(span: Duration) -> String {
    if span.is_zero() {
        return "0s".to_owned();
    }
    let mut text = String::new();
    if span.subsec_nanos() > 0 {
        let nanos = span.as_nanos();
        let fits = |(_, size): &(&str, u128)| nanos.is_multiple_of(*size);
        let (unit, size) = [("ms", 1_000_000), ("us", 1_000)]
            .into_iter()
            .find(fits)
            .unwrap_or(("ns", 1));
        push(&mut text, nanos / size, unit);
        return text;
    }
    let seconds = u128::from(span.as_secs());
    for (number, unit) in [
        (seconds / 3_600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ] {
        if number > 0 {
            push(&mut text, number, unit);
        }
    }
    text
}

fn push(text: &mut String, number: u128, unit: &str) {
    write!(text, "{number}{unit}").expect("writing to a String does not fail");
}

/// For `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&write_duration(*span))
}

/// For `#[serde(with)]`.
///
/// # Errors
/// With the text and what is accepted.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not {ACCEPTED}")))
}

/// The same for an optional duration.
pub mod optional {
    use super::{Deserialize, Deserializer, Duration, Serializer, write_duration};

    /// For `#[serde(with)]`.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => serializer.serialize_str(&write_duration(*span)),
            None => serializer.serialize_none(),
        }
    }

    /// For `#[serde(with)]`.
    ///
    /// # Errors
    /// With the text and what is accepted.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Span(#[serde(with = "super")] Duration);
        let span = Option::<Span>::deserialize(deserializer)?;
        Ok(span.map(|Span(span)| span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_in_go() {
        for (text, millis) in [
            ("0", Some(0)),
            ("+5s", Some(5_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1_500)),
            (".5s", Some(500)),
            ("1.s", Some(1_000)),
            ("300ms", Some(300)),
            ("2000us", Some(2)),
            ("2000\u{b5}s", Some(2)),
            ("", None),
            ("5", None),
            ("s", None),
            (".s", None),
            ("-5s", None),
            ("1.2.3s", None),
            ("5 s", None),
            ("5d", None),
            ("2562048h", None),
            ("99999999999999999999999999999999999999999999h", None),
        ] {
            assert_eq!(
                parse_duration(text),
                millis.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }

    #[test]
    fn written_state_is_read_as_equal() {
        for nanos in [
            0,
            1,
            999,
            1_000,
            1_500_000,
            5_400_000_000_000,
            3_600_000_000_001,
            90_500_000_000,
        ] {
            let span = Duration::from_nanos(nanos);
            assert_eq!(
                parse_duration(&write_duration(span)),
                Some(span),
                "{}",
                write_duration(span)
            );
        }
        assert_eq!(write_duration(Duration::from_millis(90_500)), "90500ms");
        assert_eq!(write_duration(Duration::from_secs(3_600)), "1h");
    }
}
