//! Names on the wire.

use egret_shared::name::{DnsName, InvalidName};
use egret_shared::switch::{Switch, is_off};

use super::read::Malformed;

/// The most octets of a name, its root label included (RFC 1035 §3.1).
const MAX: usize = 255;

/// A name in lower case without compression: labels with their lengths, the root label last.
#[derive(Clone, Copy)]
pub struct WireName {
    octets: [u8; MAX],
    length: usize,
}

impl WireName {
    /// Reads the name at `at`; also tells where what follows it begins.
    ///
    /// A pointer must point before everything of this name that was read so far, so that no message can
    /// make the reader run in circles.
    ///
    /// # Errors
    /// A name that leaves the message, points forward, or is longer than a name may be.
    pub fn read(message: &[u8], at: usize) -> Result<(Self, usize), Malformed> {
        let mut name = Self {
            octets: [0; MAX],
            length: 0,
        };
        let (mut position, mut lowest, mut end) = (at, at, None);
        loop {
            match step(message, position)? {
                Step::Root => {
                    name.push(&[0])?;
                    return Ok((name, end.unwrap_or(position + 1)));
                }
                Step::Label(label) => {
                    name.push(label)?;
                    position += label.len();
                }
                Step::Pointer(target) if target < lowest => {
                    end = end.or(Some(position + 2));
                    (position, lowest) = (target, target);
                }
                Step::Pointer(_) => return Err(Malformed::Pointer(position)),
            }
        }
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

    /// The name as the rest of the program knows it.
    ///
    /// # Errors
    /// None for a name that was read here; the check is repeated by the type.
    pub fn to_name(&self) -> Result<DnsName, InvalidName> {
        DnsName::from_labels(self.labels())
    }

    fn push(&mut self, octets: &[u8]) -> Result<(), Malformed> {
        let end = self.length + octets.len();
        let room = self
            .octets
            .get_mut(self.length..end)
            .ok_or(Malformed::NameTooLong)?;
        room.copy_from_slice(octets);
        if !is_off(Switch::IgnoreCase) {
            room[1..].make_ascii_lowercase();
        }
        self.length = end;
        Ok(())
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

/// Where the name at `at` ends, without following its pointer.
pub(super) fn skip(message: &[u8], at: usize) -> Result<usize, Malformed> {
    let mut position = at;
    loop {
        match step(message, position)? {
            Step::Root => return Ok(position + 1),
            Step::Label(label) => position += label.len(),
            Step::Pointer(_) => return Ok(position + 2),
        }
        if position - at > MAX {
            return Err(Malformed::NameTooLong);
        }
    }
}

enum Step<'a> {
    Root,
    /// The label with its length octet.
    Label(&'a [u8]),
    Pointer(usize),
}

fn step(message: &[u8], at: usize) -> Result<Step<'_>, Malformed> {
    let first = *message.get(at).ok_or(Malformed::Cut(at))?;
    match first {
        0 => Ok(Step::Root),
        1..=63 => message
            .get(at..=at + usize::from(first))
            .map(Step::Label)
            .ok_or(Malformed::Cut(at)),
        64..=191 => Err(Malformed::LabelKind(at)),
        192..=255 => {
            let second = *message.get(at + 1).ok_or(Malformed::Cut(at))?;
            Ok(Step::Pointer(
                usize::from(first & 0x3f) << 8 | usize::from(second),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
