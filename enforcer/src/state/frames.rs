//! The format of files that are appended to: a header, then frames. Integers are in little endian.
//!
//! ```text
//!  header   magic 8 | version u32 | boot id 16 | first 8 octets of the SHA-256 of these
//!  frame    length u32 | length with all bits flipped | first 8 octets of the SHA-256 of the body | body
//! ```
//!
//! Only the last frame can be incomplete, if the writer was killed within the system call or found no space. Any other
//! damage is told from that.

use std::io::Read;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::boot_id::BootId;
use super::format::{StateError, octets};

pub(super) const VERSION_AT: usize = 8;
pub(super) const BOOT_AT: usize = 12;
const CHECK_AT: usize = 28;
pub(super) const HEADER: usize = 36;
/// Octets in front of each body.
pub(super) const PREFIX: usize = 16;

/// The header of a file.
pub(super) fn header(magic: [u8; 8], version: u32, boot: BootId) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..VERSION_AT].copy_from_slice(&magic);
    header[VERSION_AT..BOOT_AT].copy_from_slice(&version.to_le_bytes());
    header[BOOT_AT..CHECK_AT].copy_from_slice(&boot.to_octets());
    let check = check(&header[..CHECK_AT]);
    header[CHECK_AT..].copy_from_slice(&check);
    header
}

/// The version of a file, which may be one without frames.
pub(super) fn version(file: &[u8], magic: [u8; 8]) -> Result<u32, StateError> {
    if file.len() < BOOT_AT {
        return Err(StateError::damaged("it ends within its header"));
    }
    if file[..VERSION_AT] != magic {
        return Err(StateError::damaged("it does not begin like a state file"));
    }
    Ok(u32::from_le_bytes(octets(file, VERSION_AT)))
}

/// Checks the header and returns what follows it.
pub(super) fn behind_header(file: &[u8]) -> Result<&[u8], StateError> {
    let Some((head, frames)) = file.split_at_checked(HEADER) else {
        return Err(StateError::damaged("it ends within its header"));
    };
    if head[CHECK_AT..] != check(&head[..CHECK_AT]) {
        return Err(StateError::damaged(
            "its header is not the one that it was written with",
        ));
    }
    Ok(frames)
}

/// Adds a value to a frame's body, in postcard.
pub(super) fn encode<T: Serialize + ?Sized>(value: &T, frame: Vec<u8>) -> Result<Vec<u8>, StateError> {
    postcard::to_extend(value, frame).map_err(|error| StateError::Unwritten(std::io::Error::other(error)))
}

/// Writes the prefix of a frame, of which only the body behind it is filled.
pub(super) fn seal(frame: &mut [u8]) -> Result<(), StateError> {
    let length = u32::try_from(frame.len() - PREFIX)
        .map_err(|error| StateError::Unwritten(std::io::Error::other(error)))?;
    let check = check(&frame[PREFIX..]);
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..8].copy_from_slice(&(!length).to_le_bytes());
    frame[8..PREFIX].copy_from_slice(&check);
    Ok(())
}

/// A body, and the octets after it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// The next body and the octets after it; none at the end or before an incomplete frame.
pub(super) fn next(rest: &[u8]) -> Result<Option<Split<'_>>, StateError> {
    let Some((prefix, rest)) = rest.split_at_checked(PREFIX) else {
        return Ok(None);
    };
    let length = length(prefix)?;
    let Some((body, behind)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    check_body(prefix, body)?;
    Ok(Some((body, behind)))
}

/// The same of a file, `left` octets before its end: reads the next body in place of what `body` has. False where there is none.
pub(super) fn read_next(file: &mut impl Read, left: u64, body: &mut Vec<u8>) -> Result<bool, StateError> {
    let Some(left) = left.checked_sub(PREFIX as u64) else {
        return Ok(false);
    };
    let mut prefix = [0; PREFIX];
    file.read_exact(&mut prefix)?;
    let length = length(&prefix)?;
    if length as u64 > left {
        return Ok(false);
    }
    body.resize(length, 0);
    file.read_exact(body)?;
    check_body(&prefix, body)?;
    Ok(true)
}

fn length(prefix: &[u8]) -> Result<usize, StateError> {
    let length = u32::from_le_bytes(octets(prefix, 0));
    if u32::from_le_bytes(octets(prefix, 4)) != !length {
        return Err(StateError::damaged(
            "the length of a change is not the one that it was written with",
        ));
    }
    usize::try_from(length).map_err(|error| StateError::Damaged(error.to_string()))
}

fn check_body(prefix: &[u8], body: &[u8]) -> Result<(), StateError> {
    if prefix[8..] != check(body) {
        return Err(StateError::damaged("a change is not the one that was written"));
    }
    Ok(())
}

fn check(of: &[u8]) -> [u8; 8] {
    octets(&Sha256::digest(of), 0)
}
