//! The format of the file of records: a header, then changes in their order. Integers are in little endian.

//!
//! ```text
//!  header   magic 8 | version u32 | boot id 16 | first 8 octets of the SHA-256 of these
//!  changes  length u32 | length with all bits flipped | first 8 octets of the SHA-256 of the body | body
//! ```
//!
//! A body is postcard. Only the last change can be incomplete, if the writer was killed within the system call or found
//! no space: it is skipped, and earlier ones count. Any other damage invalidates the file, because later changes,
//! removals among them, would be lost.

use egret_policies::records::{PodSnapshot, SnapshotBuilder, SnapshotChange};
use sha2::{Digest, Sha256};

use super::boot_id::BootId;
use super::format::{self, StateError, octets, read_body};

/// The version that is written. Files that were written as a whole are read, too.
const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"egret/st";
const VERSION_AT: usize = 8;
const BOOT_AT: usize = 12;
const CHECK_AT: usize = 28;
const HEADER: usize = 36;
/// Octets in front of each body.
const PREFIX: usize = 16;

/// Records that were read from a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoadedRecords {
    /// The records of each pod.
    pub remembered: Vec<PodSnapshot>,
    /// Octets of an incomplete last change.
    pub torn: u64,
}

/// The header of a file.
pub(super) fn header(boot: BootId) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..VERSION_AT].copy_from_slice(&MAGIC);
    header[VERSION_AT..BOOT_AT].copy_from_slice(&VERSION.to_le_bytes());
    header[BOOT_AT..CHECK_AT].copy_from_slice(&boot.to_octets());
    let check = check(&header[..CHECK_AT]);
    header[CHECK_AT..].copy_from_slice(&check);
    header
}

/// Encodes changes into a buffer, in place of its content.
pub(super) fn write(changes: &[SnapshotChange], buffer: &mut Vec<u8>) -> Result<(), StateError> {
    let unwritten = |error: String| StateError::Unwritten(std::io::Error::other(error));
    let mut whole = std::mem::take(buffer);
    whole.clear();
    whole.resize(PREFIX, 0);
    let mut whole = postcard::to_extend(changes, whole).map_err(|error| unwritten(error.to_string()))?;
    let length = u32::try_from(whole.len() - PREFIX).map_err(|error| unwritten(error.to_string()))?;
    let check = check(&whole[PREFIX..]);
    whole[..4].copy_from_slice(&length.to_le_bytes());
    whole[4..8].copy_from_slice(&(!length).to_le_bytes());
    whole[8..PREFIX].copy_from_slice(&check);
    *buffer = whole;
    Ok(())
}

/// Reads a file of this boot.
///
/// # Errors
///
/// Why it is not valid.
pub(super) fn read(file: &[u8], boot: BootId) -> Result<LoadedRecords, StateError> {
    let damaged = |what: &str| StateError::Damaged(what.to_owned());
    if file.len() < BOOT_AT {
        return Err(damaged("it ends within its header"));
    }
    if file[..VERSION_AT] != MAGIC {
        return Err(damaged("it does not begin like a state file"));
    }
    match u32::from_le_bytes(octets(file, VERSION_AT)) {
        VERSION => {}
        format::SNAPSHOT_VERSION => return read_whole(file, boot),
        found => {
            return Err(StateError::Version {
                found,
                newest: VERSION,
            });
        }
    }
    let Some((head, changes)) = file.split_at_checked(HEADER) else {
        return Err(damaged("it ends within its header"));
    };
    if head[CHECK_AT..] != check(&head[..CHECK_AT]) {
        return Err(damaged("its header is not the one that it was written with"));
    }
    if !format::is_of_boot(file, boot) {
        return Err(StateError::OtherBoot);
    }
    read_changes(changes)
}

fn read_whole(file: &[u8], boot: BootId) -> Result<LoadedRecords, StateError> {
    let body = format::decode(MAGIC, file)?;
    if !format::is_of_boot(file, boot) {
        return Err(StateError::OtherBoot);
    }
    let remembered = read_body(body)?;
    Ok(LoadedRecords { remembered, torn: 0 })
}

fn read_changes(mut rest: &[u8]) -> Result<LoadedRecords, StateError> {
    let mut ledger = SnapshotBuilder::default();
    while let Some((body, behind)) = next(rest)? {
        for change in read_body::<Vec<SnapshotChange>>(body)? {
            ledger.apply(change);
        }
        rest = behind;
    }
    Ok(LoadedRecords {
        remembered: ledger.finish(),
        torn: rest.len() as u64,
    })
}

/// A body, and the octets after it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// The next body and the octets after it; none at the end or before an incomplete change.
fn next(rest: &[u8]) -> Result<Option<Split<'_>>, StateError> {
    let damaged = |what: &str| StateError::Damaged(what.to_owned());
    let Some((prefix, rest)) = rest.split_at_checked(PREFIX) else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(octets(prefix, 0));
    if u32::from_le_bytes(octets(prefix, 4)) != !length {
        return Err(damaged(
            "the length of a change is not the one that it was written with",
        ));
    }
    let length = usize::try_from(length).map_err(|error| damaged(&error.to_string()))?;
    let Some((body, behind)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    if prefix[8..] != check(body) {
        return Err(damaged("a change is not the one that was written"));
    }
    Ok(Some((body, behind)))
}

fn check(octets: &[u8]) -> [u8; 8] {
    let digest = Sha256::digest(octets);
    format::octets(&digest, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_policies::records::RecordSnapshot;
    use egret_shared::time::Timestamp;
    use std::sync::Arc;

    fn boot() -> BootId {
        "3f2a8a2e-6d6e-4b0e-9c3e-0123456789ab".parse().unwrap()
    }

    fn record(name: &str, expires: u64) -> RecordSnapshot {
        RecordSnapshot {
            name: Arc::new(name.parse().unwrap()),
            address: "203.0.113.7".parse().unwrap(),
            expires: Timestamp::from_millis(expires),
        }
    }

    fn pod(key: &str, uid: &str, records: &[(&str, u64)]) -> PodSnapshot {
        PodSnapshot {
            pod: key.parse().unwrap(),
            uid: Some(uid.into()),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            records: records.iter().map(|(name, ends)| record(name, *ends)).collect(),
        }
    }

    fn told(key: &str, uid: &str, records: &[(&str, u64)]) -> SnapshotChange {
        pod(key, uid, records).into()
    }

    fn one(changes: &[SnapshotChange]) -> Vec<u8> {
        let mut buffer = b"of before".to_vec();
        write(changes, &mut buffer).unwrap();
        buffer
    }

    fn file(of: &[Vec<u8>]) -> Vec<u8> {
        let mut file = header(boot()).to_vec();
        file.extend(of.concat());
        file
    }

    fn kept(file: &[u8]) -> Vec<PodSnapshot> {
        let kept = read(file, boot()).unwrap();
        assert_eq!(kept.torn, 0);
        kept.remembered
    }

    #[test]
    fn what_is_written_is_read_put_together() {
        let forgets = SnapshotChange {
            forgotten: vec![(
                Arc::new("b.test".parse().unwrap()),
                "203.0.113.7".parse().unwrap(),
            )],
            ..told("n/a", "1", &[("a.test", 9)])
        };
        let anew = SnapshotChange {
            is_reset: true,
            ..told("n/a", "2", &[("c.test", 4)])
        };
        let gone = SnapshotChange {
            is_reset: true,
            ..told("n/a", "1", &[])
        };
        let first = || {
            vec![
                told("n/a", "1", &[("a.test", 5), ("b.test", 6)]),
                told("n/b", "1", &[("z.test", 7)]),
            ]
        };
        let b = || pod("n/b", "1", &[("z.test", 7)]);
        for (what, then, expected) in [
            (
                "nothing",
                vec![],
                vec![pod("n/a", "1", &[("a.test", 5), ("b.test", 6)]), b()],
            ),
            (
                "one ends later, one is forgotten",
                vec![forgets],
                vec![pod("n/a", "1", &[("a.test", 9)]), b()],
            ),
            (
                "another run is told",
                vec![anew],
                vec![pod("n/a", "2", &[("c.test", 4)]), b()],
            ),
            (
                "another run that nobody told of",
                vec![told("n/a", "2", &[])],
                vec![b()],
            ),
            ("the pod is gone", vec![gone], vec![b()]),
            (
                "the same again",
                first(),
                vec![pod("n/a", "1", &[("a.test", 5), ("b.test", 6)]), b()],
            ),
        ] {
            assert_eq!(kept(&file(&[one(&first()), one(&then)])), expected, "{what}");
            let each = first().into_iter().chain(then).map(|change| one(&[change]));
            assert_eq!(
                kept(&file(&each.collect::<Vec<_>>())),
                expected,
                "{what}, one by one"
            );
        }
        assert_eq!(kept(&file(&[])), []);
    }

    #[test]
    fn of_a_truncated_file_every_complete_change_counts() {
        let changes: Vec<Vec<u8>> = (1..5)
            .map(|number| one(&[told(&format!("n/{number}"), "1", &[("a.test", number)])]))
            .collect();
        let whole = file(&changes);
        for length in 0..whole.len() {
            let Some(mut behind) = length.checked_sub(HEADER) else {
                let error = read(&whole[..length], boot()).unwrap_err();
                assert_eq!(error.reason(), "damaged", "{length} octets");
                continue;
            };
            let is_whole = |change: &&Vec<u8>| {
                let fits = change.len() <= behind;
                behind -= if fits { change.len() } else { 0 };
                fits
            };
            let count = changes.iter().take_while(is_whole).count();
            let found = read(&whole[..length], boot()).unwrap();
            assert_eq!(
                (found.remembered.len(), found.torn),
                (count, behind as u64),
                "{length} octets"
            );
        }
    }

    #[test]
    fn of_a_file_with_a_flipped_bit_nothing_counts_unless_the_bit_is_in_an_incomplete_change() {
        let changes = [
            one(&[told("n/a", "1", &[("a.test", 1)])]),
            one(&[told("n/b", "1", &[("b.test", 2)])]),
        ];
        let whole = file(&changes);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let expected = if (VERSION_AT..BOOT_AT).contains(&(bit / 8)) {
                "version"
            } else {
                "damaged"
            };
            match read(&flipped, boot()) {
                Err(error) => {
                    let is_version_1 = bit / 8 == VERSION_AT && error.reason() == "damaged";
                    assert!(error.reason() == expected || is_version_1, "bit {bit}: {error}");
                }
                Ok(kept) => panic!("bit {bit}: {kept:?}"),
            }
        }
    }

    #[test]
    fn files_of_other_boots_and_versions() {
        let other: BootId = "00000000-0000-4000-8000-000000000000".parse().unwrap();
        let log = file(&[one(&[told("n/a", "1", &[("a.test", 1)])])]);
        let former = vec![pod("n/a", "1", &[("a.test", 1)])];
        let whole = format::encode(MAGIC, boot(), &former).unwrap();
        assert_eq!(kept(&whole), former, "what was written whole");
        for file in [&log, &whole] {
            assert!(matches!(read(file, other), Err(StateError::OtherBoot)));
        }
        let mut newer = log.clone();
        newer[VERSION_AT] = 3;
        assert_eq!(
            read(&newer, boot()).unwrap_err().to_string(),
            "it is of version 3; up to 2 is read"
        );
        for nothing in [
            "",
            "egret/st",
            "what somebody else keeps in a file of his own, which is long enough",
        ] {
            assert_eq!(
                read(nothing.as_bytes(), boot()).unwrap_err().reason(),
                "damaged",
                "{nothing:?}"
            );
        }
    }

    #[test]
    fn an_impossible_change_is_damage() {
        let body = postcard::to_stdvec(&vec![(false, Vec::<(String, u8)>::new(), "no-pod-key")]).unwrap();
        let mut wrong = vec![0; PREFIX];
        let length = u32::try_from(body.len()).unwrap();
        wrong[..4].copy_from_slice(&length.to_le_bytes());
        wrong[4..8].copy_from_slice(&(!length).to_le_bytes());
        wrong[8..].copy_from_slice(&check(&body));
        wrong.extend(body);
        assert_eq!(read(&file(&[wrong]), boot()).unwrap_err().reason(), "damaged");
    }
}
