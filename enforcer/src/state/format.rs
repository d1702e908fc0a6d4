//! The format of files that are written as a whole: `magic 8 | version u32 | boot id 16 | length u64 | SHA-256 32 |
//! body`, integers in little endian. `length` counts the body, the digest covers everything else, and the body is
//! postcard. The digest detects accidents, not forgery.
//!
//! Records and objects were stored so before there were logs of them.

use std::io;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::boot_id::BootId;

/// The version of files that are written as a whole.
pub(super) const SNAPSHOT_VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const BOOT_AT: usize = 12;
const LENGTH_AT: usize = 28;
const DIGEST_AT: usize = 36;
const BODY_AT: usize = 68;

/// Why a state file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The kernel does not provide a boot id.
    #[error("this boot has no id: {0}")]
    NoBoot(String),
    /// An I/O error.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Another user may have written it.
    #[error("it is {0}; a plain file of this user, which nobody else may write, is read")]
    Foreign(String),
    /// It is larger than it can be.
    #[error("it has {octets} octets; up to {most} are read")]
    TooLarge {
        /// Its size in octets.
        octets: u64,
        /// The largest size.
        most: u64,
    },
    /// It is of another program, or of another version.
    #[error("it is of version {found}; up to {newest} is read")]
    Version {
        /// Its version.
        found: u32,
        /// The newest version that this program reads.
        newest: u32,
    },
    /// It is of another boot.
    #[error("it is from before the last boot, and so are its moments")]
    OtherBoot,
    /// Its content is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// Its writer was killed, or had no space, within the last change.
    #[error("its last {0} octets are half a change, which is left out")]
    Torn(u64),
    /// An I/O error.
    #[error("it cannot be written: {0}")]
    Unwritten(io::Error),
    /// The disk does not finish the write in time.
    #[error("the disk takes too long to write it")]
    Stalled,
}

impl StateError {
    pub(super) fn damaged(what: &str) -> Self {
        Self::Damaged(what.to_owned())
    }

    /// All values of `reason`.
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

    /// The label of the metric.
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

/// Encodes a body with its header, as earlier versions of this program did.
#[cfg(test)]
pub(super) fn encode<Body: serde::Serialize + ?Sized>(
    magic: [u8; 8],
    boot: BootId,
    body: &Body,
) -> Result<Vec<u8>, StateError> {
    let mut file = vec![0; BODY_AT];
    file = postcard::to_extend(body, file).map_err(|error| StateError::Unwritten(io::Error::other(error)))?;
    let (head, body) = file.split_at_mut(BODY_AT);
    head[..VERSION_AT].copy_from_slice(&magic);
    head[VERSION_AT..BOOT_AT].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
    head[BOOT_AT..LENGTH_AT].copy_from_slice(&boot.to_octets());
    head[LENGTH_AT..DIGEST_AT].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let digest = digest(&head[..DIGEST_AT], body);
    head[DIGEST_AT..].copy_from_slice(&digest);
    Ok(file)
}

/// Checks the header and returns the body.
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

/// Whether a decoded file was written in this boot.
pub(super) fn is_of_boot(file: &[u8], boot: BootId) -> bool {
    octets::<16>(file, BOOT_AT) == boot.to_octets()
}

/// Decodes a body without leftover octets.
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
