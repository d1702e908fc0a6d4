//! The format of the file of records: frames of changes in their order, each body in postcard.
//!
//! An incomplete last change is skipped, and earlier ones count. Any other damage invalidates the file, because later
//! changes, removals among them, would be lost.

use egret_policies::records::{PodSnapshot, SnapshotBuilder, SnapshotChange};

use super::boot_id::BootId;
use super::format::{self, StateError, read_body};
use super::frames::{self, HEADER, PREFIX};

/// The version that is written. Files that were written as a whole are read, too.
const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"egret/st";

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
    frames::header(MAGIC, VERSION, boot)
}

/// Encodes changes into a buffer, in place of its content.
pub(super) fn write(changes: &[SnapshotChange], buffer: &mut Vec<u8>) -> Result<(), StateError> {
    let mut whole = std::mem::take(buffer);
    whole.clear();
    whole.resize(PREFIX, 0);
    let mut whole = frames::encode(changes, whole)?;
    frames::seal(&mut whole)?;
    *buffer = whole;
    Ok(())
}

/// Reads a file of this boot.
///
/// # Errors
///
/// Why it is not valid.
pub(super) fn read(file: &[u8], boot: BootId) -> Result<LoadedRecords, StateError> {
    match frames::version(file, MAGIC)? {
        VERSION => {}
        format::SNAPSHOT_VERSION => return read_whole(file, boot),
        found => {
            return Err(StateError::Version {
                found,
                newest: VERSION,
            });
        }
    }
    let changes = frames::behind_header(file)?;
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
    while let Some((body, behind)) = frames::next(rest)? {
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

#[cfg(test)]
mod tests {
    use super::super::frames::{BOOT_AT, VERSION_AT};
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
        wrong.extend(body);
        frames::seal(&mut wrong).unwrap();
        assert_eq!(read(&file(&[wrong]), boot()).unwrap_err().reason(), "damaged");
    }
}
