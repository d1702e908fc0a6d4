//! Short names that only equal contents share.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// The first 80 bits of a SHA-256, written in 16 letters and digits: short enough for a chain (28
/// octets) or a set (31), long enough that nobody can write a policy whose set has another's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 16]);

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl Digest {
    /// The digest of a text, or of octets.
    #[must_use]
    pub fn of(content: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        let hash = Sha256::digest(content);
        let mut letters = [0; 16];
        for (group, octets) in hash[..10].chunks_exact(5).enumerate() {
            let bits = octets
                .iter()
                .fold(0u64, |bits, octet| bits << 8 | u64::from(*octet));
            for (place, letter) in letters[group * 8..][..8].iter_mut().enumerate() {
                *letter = ALPHABET[(bits >> (35 - 5 * place) & 31) as usize];
            }
        }
        Self(letters)
    }

    /// The digest that is written so; none of other letters and digits.
    #[must_use]
    pub fn of_letters(letters: [u8; 16]) -> Option<Self> {
        let are_all = letters.iter().all(|letter| ALPHABET.contains(letter));
        are_all.then_some(Self(letters))
    }

    /// The 16 letters, as octets.
    #[must_use]
    pub const fn letters(self) -> [u8; 16] {
        self.0
    }

    /// The 16 letters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("the alphabet is ASCII")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_are_those_of_base32() {
        // printf abc | sha256sum | xxd -r -p | head -c 10 | base32 | tr A-Z a-z
        let digest = Digest::of("abc");
        assert_eq!(digest.as_str(), "xj4bnp4pahh6uqkb");
        assert_eq!(Digest::of_letters(digest.letters()), Some(digest));
        for others in [b"xj4bnp4pahh6uqk1", b"Xj4bnp4pahh6uqkb", b"xj4bnp4pahh6uqk\0"] {
            assert_eq!(Digest::of_letters(*others), None);
        }
    }
}
