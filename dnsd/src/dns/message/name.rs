//! Names in wire format.

use std::fmt::Write;

use egret_shared::name::{DnsName, InvalidName};

use super::malformed::Malformed;

/// The most octets of a name, the root label included (RFC 1035 §3.1).
const MAX: usize = 255;
/// Octets that are lower-cased at once, in wide registers.
const WIDE: usize = 32;
const ROOM: usize = MAX.next_multiple_of(WIDE);

/// A name in lower case without compression: labels with their lengths, then the root label.
#[derive(Clone, Copy)]
pub struct WireName {
    octets: [u8; ROOM],
    length: usize,
}

impl WireName {
    /// A name that is not read yet.
    pub(super) const EMPTY: Self = Self {
        octets: [0; ROOM],
        length: 0,
    };

    /// Reads the name at `at`; also returns the offset after it.
    ///
    /// A pointer must point before everything read so far of this name, so that reading ends.
    ///
    /// # Errors
    /// A name that leaves the message, points forward, or is longer than a name may be.
    pub fn read(message: &[u8], at: usize) -> Result<(Self, usize), Malformed> {
        let mut name = Self::EMPTY;
        let end = name.fill(message, at)?;
        Ok((name, end))
    }

    /// As [`read`](Self::read), into `self`: a move of 255 octets costs.
    pub(super) fn fill(&mut self, message: &[u8], at: usize) -> Result<usize, Malformed> {
        self.length = 0;
        let end = self.fill_as_written(message, at)?;
        self.lower_case();
        Ok(end)
    }

    fn fill_as_written(&mut self, message: &[u8], at: usize) -> Result<usize, Malformed> {
        let (mut position, mut lowest, mut end) = (at, at, None);
        loop {
            match step(message, position)? {
                Step::Root => {
                    self.push(&[0])?;
                    return Ok(end.unwrap_or(position + 1));
                }
                Step::Labels(labels) => {
                    self.push(labels)?;
                    position += labels.len();
                }
                Step::Pointer(target) if target < lowest => {
                    end = end.or(Some(position + 2));
                    (position, lowest) = (target, target);
                }
                Step::Pointer(_) => return Err(Malformed::Pointer(position)),
            }
        }
    }

    /// The root.
    #[must_use]
    pub const fn root() -> Self {
        Self {
            length: 1,
            ..Self::EMPTY
        }
    }

    /// Parses a name in presentation format, with or without the last dot; `\\.` and `\\DDD` are escapes (RFC 1035
    /// §5.1).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, InvalidText> {
        let mut name = Self::EMPTY;
        let text = text
            .strip_suffix('.')
            .filter(|rest| !ends_with_escape(rest))
            .unwrap_or(text);
        let mut label = vec![0];
        let mut rest = text.as_bytes().iter().copied();
        while let Some(octet) = rest.next() {
            match octet {
                b'.' => name.end_label(&mut label)?,
                b'\\' => label.push(escaped(&mut rest)?),
                other => label.push(other),
            }
        }
        if !text.is_empty() {
            name.end_label(&mut label)?;
        }
        name.push(&[0]).map_err(|_malformed| InvalidText::TooLong)?;
        name.lower_case();
        Ok(name)
    }

    /// Whether this name is `other` or below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.as_octets(), other.as_octets());
        // Compares the last letter first: it differs for most names.
        let last_letter = |name: &[u8]| name.len().checked_sub(2).map(|at| name[at]);
        if theirs.len() > 1 && last_letter(mine) != last_letter(theirs) || !mine.ends_with(theirs) {
            return false;
        }
        let (mut at, ahead) = (0, mine.len() - theirs.len());
        while at < ahead {
            at += 1 + usize::from(mine[at]);
        }
        at == ahead
    }

    /// Whether the name at `at` is this one. Copies nothing in the common case.
    pub(super) fn stands_at(&self, message: &[u8], at: usize) -> bool {
        let (mut position, mut lowest, mut rest) = (at, at, self.as_octets());
        while let Ok(step) = step(message, position) {
            match step {
                Step::Root => return rest == [0],
                Step::Labels(labels) => {
                    let parts = rest.split_at_checked(labels.len());
                    let Some((_, behind)) = parts.filter(|(own, _)| is_same(own, labels)) else {
                        return false;
                    };
                    (position, rest) = (position + labels.len(), behind);
                }
                Step::Pointer(target) if target < lowest => (position, lowest) = (target, target),
                Step::Pointer(_) => return false,
            }
        }
        false
    }

    /// The octets, in lower case, uncompressed.
    #[must_use]
    pub fn as_octets(&self) -> &[u8] {
        &self.octets[..self.length]
    }

    /// The labels, without the root label.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.as_octets();
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first()?;
            if *length == 0 {
                return None;
            }
            let (label, tail) = tail.split_at_checked(usize::from(*length))?;
            rest = tail;
            Some(label)
        })
    }

    /// As a [`DnsName`].
    ///
    /// # Errors
    /// None for a name that was read here; the check is repeated by the type.
    pub fn to_name(&self) -> Result<DnsName, InvalidName> {
        DnsName::from_wire(self.as_octets())
    }

    fn end_label(&mut self, label: &mut Vec<u8>) -> Result<(), InvalidText> {
        let length = label.len() - 1;
        label[0] = u8::try_from(length)
            .ok()
            .filter(|length| (1..=63).contains(length))
            .ok_or(InvalidText::Label(length))?;
        self.push(label).map_err(|_malformed| InvalidText::TooLong)?;
        *label = vec![0];
        Ok(())
    }

    fn push(&mut self, octets: &[u8]) -> Result<(), Malformed> {
        let end = self.length + octets.len();
        if end > MAX {
            return Err(Malformed::NameTooLong);
        }
        self.octets[self.length..end].copy_from_slice(octets);
        self.length = end;
        Ok(())
    }

    /// A label's length is at most 63, so it is no letter. Octets after the name have no meaning.
    fn lower_case(&mut self) {
        let (pieces, _none) = self.octets.as_chunks_mut::<WIDE>();
        for piece in pieces.iter_mut().take(self.length.div_ceil(WIDE)) {
            piece.make_ascii_lowercase();
        }
    }
}

impl PartialEq for WireName {
    fn eq(&self, other: &Self) -> bool {
        self.as_octets() == other.as_octets()
    }
}

impl Eq for WireName {}

impl std::fmt::Debug for WireName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.to_name() {
            Ok(name) => write!(f, "{name}"),
            Err(error) => write!(f, "{error}"),
        }
    }
}

/// In presentation format, with the last dot.
impl std::fmt::Display for WireName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.length <= 1 {
            return f.write_char('.');
        }
        for label in self.labels() {
            for octet in label {
                match octet {
                    b'.' | b'\\' => write!(f, "\\{}", char::from(*octet))?,
                    // Special in zone files, and quotes are around names in logs.
                    b'"' | b'(' | b')' | b';' => write!(f, "\\{octet:03}")?,
                    b'!'..=b'~' => f.write_char(char::from(*octet))?,
                    other => write!(f, "\\{other:03}")?,
                }
            }
            f.write_char('.')?;
        }
        Ok(())
    }
}

/// Whether the next character is escaped: a backslash may be escaped too.
fn ends_with_escape(text: &str) -> bool {
    let backslashes = text.len() - text.trim_end_matches('\\').len();
    !backslashes.is_multiple_of(2)
}

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidText {
    /// A label with more than 63 octets, or an empty one (RFC 1035 §3.1).
    #[error("a label has {0} octets; 1 to 63 are accepted")]
    Label(usize),
    /// More than 255 octets (RFC 1035 §3.1).
    #[error("it is longer than 255 octets")]
    TooLong,
    /// An escape other than `\\X` and `\\DDD` (RFC 1035 §5.1).
    #[error("a backslash stands before a character or three digits up to 255")]
    Escape,
}

/// The octet of an escape, after its backslash.
fn escaped(rest: &mut impl Iterator<Item = u8>) -> Result<u8, InvalidText> {
    let first = rest.next().ok_or(InvalidText::Escape)?;
    if !first.is_ascii_digit() {
        return Ok(first);
    }
    let digits = [Some(first), rest.next(), rest.next()];
    let value = digits.into_iter().try_fold(0_u16, |value, digit| {
        let digit = digit.filter(u8::is_ascii_digit)?;
        Some(value * 10 + u16::from(digit - b'0'))
    });
    value
        .and_then(|value| u8::try_from(value).ok())
        .ok_or(InvalidText::Escape)
}

/// Whether labels in a message are equal to labels in lower case.
fn is_same(read: &[u8], labels: &[u8]) -> bool {
    // A label's length is at most 63, so it is no letter.
    read.eq_ignore_ascii_case(labels)
}

/// The offset after the name at `at`; its pointer is not followed.
pub(super) fn skip(message: &[u8], at: usize) -> Result<usize, Malformed> {
    let mut position = at;
    loop {
        match step(message, position)? {
            Step::Root => return Ok(position + 1),
            Step::Labels(labels) => position += labels.len(),
            Step::Pointer(_) => return Ok(position + 2),
        }
        if position - at > MAX {
            return Err(Malformed::NameTooLong);
        }
    }
}

enum Step<'a> {
    Root,
    /// Labels with their length octets, up to a pointer or the root label.
    Labels(&'a [u8]),
    Pointer(usize),
}

fn step(message: &[u8], at: usize) -> Result<Step<'_>, Malformed> {
    let first = *message.get(at).ok_or(Malformed::Cut(at))?;
    match first {
        0 => Ok(Step::Root),
        1..=63 => labels(message, at).map(Step::Labels),
        64..=191 => Err(Malformed::LabelKind(at)),
        192..=255 => {
            let second = *message.get(at + 1).ok_or(Malformed::Cut(at))?;
            Ok(Step::Pointer(
                usize::from(first & 0x3f) << 8 | usize::from(second),
            ))
        }
    }
}

/// The labels at `at`, up to a pointer or the root label. Of a name that is too long, one octet more than is allowed.
fn labels(message: &[u8], at: usize) -> Result<&[u8], Malformed> {
    let mut end = at;
    while let Some(length @ 1..=63) = message.get(end).copied()
        && end - at <= MAX
    {
        end += 1 + usize::from(length);
    }
    message.get(at..end).ok_or(Malformed::Cut(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_matches_only_where_it_is_read_as_equal() {
        // Labels, pointers backward, forward and to themselves, other letters, other labels of the same octets, a
        // truncated name.
        let message = b"\x01a\x04test\0\x01A\xc0\x02\x03a\x04t\xc0\x00\x01a\xc0\x20\xc0\x18\x04TEST\0\x01a\x04tes\x40\x01b\0";
        let names =
            ["a.test", "test", "b.test", "a", "a.a.test", "."].map(|name| WireName::parse(name).unwrap());
        let mut found = 0;
        for at in 0..=message.len() {
            let read = WireName::read(message, at).map(|(name, _)| name);
            for name in &names {
                let stands = name.stands_at(message, at);
                assert_eq!(stands, read.as_ref() == Ok(name), "{name} at {at}");
                found += usize::from(stands);
            }
        }
        assert!(found > 8, "{found}");
    }

    #[test]
    fn a_name_is_read_in_lower_case_through_a_backward_pointer() {
        let message = b"\x04TEST\x00\x03Api\xc0\x00rest";
        let (name, end) = WireName::read(message, 6).unwrap();
        assert_eq!(name.to_name().unwrap().as_str(), "api.test");
        assert_eq!(&message[end..], b"rest");
    }

    #[test]
    fn a_pointer_to_itself_or_forward_is_refused() {
        for message in [
            &b"\xc0\x00"[..],
            b"\x01a\xc0\x00",
            b"\x01a\xc0\x02",
            b"\xc0\x02\x00",
        ] {
            assert!(WireName::read(message, 0).is_err(), "{message:?}");
        }
    }

    #[test]
    fn a_name_over_255_octets_is_refused() {
        let mut message = Vec::new();
        for _ in 0..4 {
            message.push(63);
            message.extend_from_slice(&[b'a'; 63]);
        }
        message.push(0);
        assert_eq!(WireName::read(&message, 0).unwrap_err(), Malformed::NameTooLong);
        assert!(WireName::read(&message, 64).is_ok());
    }

    #[test]
    fn presentation_format_round_trips() {
        for (text, written) in [
            (".", "."),
            ("", "."),
            ("Example.ORG", "example.org."),
            ("example.org.", "example.org."),
            (r"a\.b.test", r"a\.b.test."),
            (r"a\\.test.", r"a\\.test."),
            (r"\255\032.test", r"\255\032.test."),
            ("_dns.resolver.arpa", "_dns.resolver.arpa."),
        ] {
            assert_eq!(
                WireName::parse(text).map(|name| name.to_string()),
                Ok(written.to_owned()),
                "{text}"
            );
        }
        for text in [
            "a..b",
            ".a",
            "..",
            r"\256",
            r"a\",
            r"\1x",
            &"a".repeat(64),
            &"a.".repeat(128),
        ] {
            assert!(WireName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_is_within_itself_and_what_is_above_it_by_whole_labels() {
        let is_within = |name, zone| {
            WireName::parse(name)
                .unwrap()
                .is_within(&WireName::parse(zone).unwrap())
        };
        for (name, zone) in [
            ("a.test", "."),
            (".", "."),
            ("a.test", "test"),
            ("A.test", "a.TEST"),
            ("b.a.test", "test"),
        ] {
            assert!(is_within(name, zone), "{name} {zone}");
        }
        for (name, zone) in [
            ("test", "a.test"),
            ("xtest", "test"),
            ("a.xtest", "test"),
            (".", "test"),
            ("b", "a"),
        ] {
            assert!(!is_within(name, zone), "{name} {zone}");
        }
    }
}
