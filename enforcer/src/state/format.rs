//! A file that is written whole: `magic 8 | version u32 | boot id 16 | length u64 | SHA-256 32 | body`, integers in little
//! endian. `length` counts the body, the digest is of everything else, and the body is postcard. It guards against
//! accidents, not against somebody who may write the file.
//!
//! ObjectStore are kept so, and records were before there was a log of them.

use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::boot_id::BootId;

/// The version of files that are written whole.
pub(super) const SNAPSHOT_VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const BOOT_AT: usize = 12;
const LENGTH_AT: usize = 28;
const DIGEST_AT: usize = 36;
const BODY_AT: usize = 68;

/// Why there is no taking a state file, or no keeping one.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The kernel does not say which boot this is.
    #[error("this boot has no id: {0}")]
    NoBoot(String),
    /// The system says no.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Somebody else may have written it.
    #[error("it is {0}; a plain file of this user, which nobody else may write, is read")]
    Foreign(String),
    /// More than there can be.
    #[error("it has {octets} octets; up to {most} are read")]
    TooLarge {
        /// How many it has.
        octets: u64,
        /// How many it may have.
        most: u64,
    },
    /// Of another program, or of another version of this one.
    #[error("it is of version {found}; up to {newest} is read")]
    Version {
        /// Its version.
        found: u32,
        /// The newest that this program knows.
        newest: u32,
    },
    /// The machine was started since.
    #[error("it is from before the last boot, and so are its moments")]
    OtherBoot,
    /// Not what was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// Whoever wrote it was ended, or had no room, within its last change.
    #[error("its last {0} octets are half a change, which is left out")]
    Torn(u64),
    /// The system says no.
    #[error("it cannot be written: {0}")]
    Unwritten(io::Error),
    /// The disk does not say that it is written.
    #[error("the disk takes too long to write it")]
    Stalled,
}

impl StateError {
    /// All words that `reason` gives.
    pub const REASONS: [&'static str; 9] = [
        "boot",
        "damaged",
        "foreign",
        "size",
        "stalled",
        "torn",
        "unreadable",
        "unwritten",
        "version",
    ];

    /// One word, for a metric.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoBoot(_) | Self::OtherBoot => "boot",
            Self::Damaged(_) => "damaged",
            Self::Foreign(_) => "foreign",
            Self::TooLarge { .. } => "size",
            Self::Torn(_) => "torn",
            Self::Unreadable(_) => "unreadable",
            Self::Unwritten(_) => "unwritten",
            Self::Stalled => "stalled",
            Self::Version { .. } => "version",
        }
    }
}

/// A file with a header that says what it is, of which version and boot, how long, and its digest.
pub(super) fn encode<Body: Serialize + ?Sized>(
    magic: [u8; 8],
    boot: BootId,
    body: &Body,
) -> Result<Vec<u8>, StateError> {
    let body = postcard::to_stdvec(body).map_err(|error| StateError::Unwritten(io::Error::other(error)))?;
    let mut file = Vec::with_capacity(BODY_AT + body.len());
    file.extend(magic);
    file.extend(SNAPSHOT_VERSION.to_le_bytes());
    file.extend(boot.to_octets());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(digest(&file, &body));
    file.extend(body);
    Ok(file)
}

/// What is behind the header, if the file is whole and of this version.
pub(super) fn decode(magic: [u8; 8], file: &[u8]) -> Result<&[u8], StateError> {
    let damaged = |what: &str| StateError::Damaged(what.to_owned());
    let Some((head, body)) = file.split_at_checked(BODY_AT) else {
        return Err(damaged("it ends within its header"));
    };
    if head[..VERSION_AT] != magic {
        return Err(damaged("it does not begin like a state file"));
    }
    let found = u32::from_le_bytes(octets(head, VERSION_AT));
    if found != SNAPSHOT_VERSION {
        return Err(StateError::Version {
            found,
            newest: SNAPSHOT_VERSION,
        });
    }
    if u64::from_le_bytes(octets(head, LENGTH_AT)) != body.len() as u64 {
        return Err(damaged("its length is not the one that it was written with"));
    }
    if head[DIGEST_AT..] != digest(&head[..DIGEST_AT], body) {
        return Err(damaged("its digest is not the one that it was written with"));
    }
    Ok(body)
}

/// Whether a file that was unsealed was written in this boot.
pub(super) fn is_of_boot(file: &[u8], boot: BootId) -> bool {
    octets::<16>(file, BOOT_AT) == boot.to_octets()
}

/// The body, all of it.
pub(super) fn read_body<'file, Body: Deserialize<'file>>(body: &'file [u8]) -> Result<Body, StateError> {
    match postcard::take_from_bytes(body) {
        Ok((read, [])) => Ok(read),
        Ok((_, behind)) => Err(StateError::Damaged(format!("{} octets too many", behind.len()))),
        Err(error) => Err(StateError::Damaged(error.to_string())),
    }
}

fn digest(head: &[u8], body: &[u8]) -> [u8; 32] {
    Sha256::new()
        .chain_update(head)
        .chain_update(body)
        .finalize()
        .into()
}

pub(super) fn octets<const COUNT: usize>(head: &[u8], at: usize) -> [u8; COUNT] {
    let mut octets = [0; COUNT];
    octets.copy_from_slice(&head[at..at + COUNT]);
    octets
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"egret/xx";
    const BOOT: &str = "3f2a8a2e-6d6e-4b0e-9c3e-0123456789ab";

    fn boot() -> BootId {
        BOOT.parse().unwrap()
    }

    fn body() -> Vec<(String, u32)> {
        vec![("one".to_owned(), 1), ("two".to_owned(), 2)]
    }

    fn file() -> Vec<u8> {
        encode(MAGIC, boot(), &body()).unwrap()
    }

    fn read(file: &[u8]) -> Result<Vec<(String, u32)>, StateError> {
        read_body(decode(MAGIC, file)?)
    }

    fn sealed(mut file: Vec<u8>) -> Vec<u8> {
        let digest = digest(&file[..DIGEST_AT], &file[BODY_AT..]);
        file[DIGEST_AT..BODY_AT].copy_from_slice(&digest);
        file
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&file()).unwrap(), body());
        let other = "00000000-0000-4000-8000-000000000000".parse().unwrap();
        assert!(is_of_boot(&file(), boot()) && !is_of_boot(&file(), other));
    }

    #[test]
    fn no_shorter_file_and_no_file_with_a_flipped_bit_is_read() {
        let whole = file();
        for length in 0..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            assert_eq!(error.reason(), "damaged", "{length} octets: {error}");
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let expected = if (VERSION_AT..BOOT_AT).contains(&(bit / 8)) {
                "version"
            } else {
                "damaged"
            };
            let error = read(&flipped).unwrap_err();
            assert_eq!(error.reason(), expected, "bit {bit}: {error}");
        }
    }

    #[test]
    fn a_whole_file_of_another_version_or_with_too_much_in_it_is_not_read() {
        let mut newer = file();
        newer[VERSION_AT] = 2;
        assert_eq!(
            read(&sealed(newer)).unwrap_err().to_string(),
            "it is of version 2; up to 1 is read"
        );
        let mut longer = file();
        longer.push(0);
        let length = (longer.len() - BODY_AT) as u64;
        longer[LENGTH_AT..DIGEST_AT].copy_from_slice(&length.to_le_bytes());
        assert_eq!(
            read(&sealed(longer)).unwrap_err().to_string(),
            "it is damaged: 1 octets too many"
        );
    }
}
