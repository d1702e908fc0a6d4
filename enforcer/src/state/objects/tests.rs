use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use super::file::ObjectLog;
use super::*;
use crate::state::format::{SNAPSHOT_VERSION, encode};
use crate::state::frames::{BOOT_AT, VERSION_AT};

const OTHER_BOOT: &str = "00000000-0000-4000-8000-000000000000";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> ObjectFile {
        let path = self.0.path().join("new/objects");
        ObjectFile::new(&path, Path::new("/m"), BootId::read().unwrap())
    }

    fn octets(&self) -> Vec<u8> {
        std::fs::read(self.file().path()).unwrap()
    }

    /// What the folder of the file has.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path().join("new")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn text(text: &str) -> Arc<[u8]> {
    Arc::from(text.as_bytes())
}

fn texts() -> ManifestTexts {
    [
        ("/m/a.yaml".into(), vec![text("a: 1"), text("a: [")]),
        ("/m/b".into(), vec![]),
    ]
    .into()
}

fn set(path: &str, of: &str) -> (PathBuf, Option<Vec<Arc<[u8]>>>) {
    (path.into(), Some(vec![text(of)]))
}

fn gone(path: &str) -> (PathBuf, Option<Vec<Arc<[u8]>>>) {
    (path.into(), None)
}

/// As `path=text` each.
fn said(stored: &StoredManifests) -> Vec<String> {
    let line = |(path, texts): (&PathBuf, &Vec<Arc<[u8]>>)| {
        let texts: Vec<_> = texts.iter().map(|text| String::from_utf8_lossy(text)).collect();
        format!("{}={}", path.display(), texts.join(","))
    };
    stored.texts.iter().map(line).collect()
}

fn reason(file: &ObjectFile) -> &'static str {
    let error = file.read().unwrap_err();
    assert_eq!(file.check().unwrap_err().reason(), error.reason());
    error.reason()
}

/// A list in two parts, then three changes; what the file says from which of its octets on.
fn history(folder: &Folder) -> Vec<(usize, Vec<String>)> {
    let file = folder.file();
    let mut log = ObjectLog::begin(&file).unwrap();
    log.append(&[set("a", "1"), set("b", "1")].into(), 1, false)
        .unwrap();
    let mut steps = Vec::new();
    for (changes, seconds) in [
        ([set("c", "1"), set("b", "2")].into(), 2),
        ([set("a", "2")].into(), 3),
        ([gone("b"), set("d", "1")].into(), 4),
        ([set("b", "3")].into(), 5),
    ] {
        log.append(&changes, seconds, true).unwrap();
        let stored = file.read().unwrap().unwrap();
        assert_eq!(stored.seconds, seconds);
        steps.push((folder.octets().len(), said(&stored)));
        if seconds == 3 {
            // Half of another list.
            log.append(&[set("a", "2"), gone("c")].into(), 9, false).unwrap();
            log.append(&[set("c", "1")].into(), 9, false).unwrap();
        }
    }
    assert_eq!(steps[0].1, ["a=1", "b=2", "c=1"]);
    assert_eq!(steps[2].1, ["a=2", "c=1", "d=1"]);
    assert_eq!(steps[3].1, ["a=2", "b=3", "c=1", "d=1"]);
    steps
}

#[test]
fn what_is_written_is_read_also_in_another_boot() {
    let folder = Folder::new();
    let file = folder.file();
    assert_eq!(file.read().unwrap(), None);
    file.write(&texts(), 7).unwrap();
    let stored = file.read().unwrap().unwrap();
    assert_eq!(
        (stored.texts, stored.seconds, stored.is_of_other_boot),
        (texts(), 7, false)
    );
    let later = ObjectFile::new(file.path(), Path::new("/m"), OTHER_BOOT.parse().unwrap());
    assert!(later.read().unwrap().unwrap().is_of_other_boot);
}

#[test]
fn what_is_damaged_too_large_of_another_source_or_a_file_of_records_is_not_read() {
    let folder = Folder::new();
    let file = folder.file();
    file.write(&texts(), 7).unwrap();
    let elsewhere = ObjectFile::new(file.path(), Path::new("/n"), BootId::read().unwrap());
    let small = file.clone().with_most(50);
    assert_eq!((reason(&elsewhere), reason(&small)), ("foreign", "size"));
    assert_eq!(small.write(&texts(), 8).unwrap_err().reason(), "size");
    assert_eq!(folder.names(), ["objects"]);
    let mut octets = folder.octets();
    octets[VERSION_AT] = 3;
    std::fs::write(file.path(), &octets).unwrap();
    assert_eq!(reason(&file), "version");
    std::fs::write(file.path(), crate::state::log::header(BootId::read().unwrap())).unwrap();
    assert_eq!(reason(&file), "damaged");
}

/// As a writer leaves it that is killed at any octet, and as a disk does that loses the end.
#[test]
fn a_file_that_ends_at_any_octet_says_what_the_source_said_at_one_moment_or_nothing() {
    let folder = Folder::new();
    let steps = history(&folder);
    let (file, whole) = (folder.file(), folder.octets());
    for length in 0..=whole.len() {
        std::fs::write(file.path(), &whole[..length]).unwrap();
        match steps.iter().rfind(|(from, _)| *from <= length) {
            None => assert_eq!(reason(&file), "damaged", "{length} octets"),
            Some((from, expected)) => {
                let stored = file.read().unwrap().unwrap();
                assert_eq!(said(&stored), *expected, "{length} octets");
                let torn = u64::try_from(length - from).unwrap();
                assert_eq!(file.check().unwrap(), Some(torn), "{length} octets");
            }
        }
    }
}

#[test]
fn of_a_file_with_a_flipped_bit_nothing_counts() {
    let folder = Folder::new();
    history(&folder);
    let (file, whole) = (folder.file(), folder.octets());
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(file.path(), &flipped).unwrap();
        // With the bits of the former version it is not one of that.
        let is_version = (VERSION_AT..BOOT_AT).contains(&(bit / 8));
        let found = reason(&file);
        assert!(
            found == "damaged" || is_version && found == "version",
            "bit {bit}: {found}"
        );
    }
}

#[test]
fn the_file_of_the_version_before_is_read() {
    let folder = Folder::new();
    let file = folder.file();
    type Octets<'a> = &'a [u8];
    let files: Vec<(Octets<'_>, Vec<Octets<'_>>)> =
        vec![(b"/m/a.yaml", vec![b"a: 1", b"a: ["]), (b"/m/b", vec![])];
    let root = Path::new("/m").as_os_str().as_bytes();
    let octets = encode(*b"egret/ob", OTHER_BOOT.parse().unwrap(), &(root, 7_u64, files)).unwrap();
    assert_eq!(u32::from(octets[VERSION_AT]), SNAPSHOT_VERSION);
    std::fs::create_dir_all(file.path().parent().unwrap()).unwrap();
    std::fs::write(file.path(), &octets).unwrap();
    let expected = StoredManifests {
        texts: texts(),
        seconds: 7,
        is_of_other_boot: true,
    };
    assert_eq!(file.read().unwrap().unwrap(), expected);
    assert_eq!(file.check().unwrap(), Some(0));
    let mut damaged = octets;
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(file.path(), damaged).unwrap();
    assert_eq!(reason(&file), "damaged");
}

/// A process that has listed half of its source may be killed: what the one before it kept is the last that is whole.
#[test]
fn the_file_of_before_stays_until_the_source_is_whole() {
    let folder = Folder::new();
    let file = folder.file();
    file.write(&texts(), 7).unwrap();
    let objects = ObjectStore::open(file.path(), Path::new("/m")).unwrap();
    let (writer, thread) = (objects.writer.unwrap(), objects.thread.unwrap());
    writer.store([set("/m/a.yaml", "new")].into(), false);
    until(|| folder.names() == ["objects", "objects.new"]);
    assert_eq!(file.read().unwrap().unwrap().texts, texts());
    writer.end();
    thread.join().unwrap();
    assert_eq!(folder.names(), ["objects"]);
    assert_eq!(objects.stored.unwrap().read().unwrap().texts, texts());
}

#[test]
fn what_changed_last_is_in_the_file_when_the_writer_ended() {
    let folder = Folder::new();
    let file = folder.file();
    let objects = ObjectStore::open(file.path(), Path::new("/m")).unwrap();
    let writer = objects.writer.unwrap();
    writer.store([set("a", "1"), set("b", "1")].into(), false);
    writer.store([set("a", "2")].into(), true);
    writer.store([gone("b"), set("c", "1")].into(), true);
    writer.end();
    objects.thread.unwrap().join().unwrap();
    assert_eq!(said(&file.read().unwrap().unwrap()), ["a=2", "c=1"]);
}

#[test]
fn an_empty_source_is_kept_as_such() {
    let folder = Folder::new();
    let file = folder.file();
    file.write(&texts(), 7).unwrap();
    let objects = ObjectStore::open(file.path(), Path::new("/m")).unwrap();
    let writer = objects.writer.unwrap();
    writer.store(TextChanges::new(), true);
    writer.end();
    objects.thread.unwrap().join().unwrap();
    assert_eq!(file.read().unwrap().unwrap().texts, ManifestTexts::new());
}

#[test]
fn a_log_that_grows_is_rewritten_and_says_the_same() {
    let folder = Folder::new();
    let file = folder.file();
    let mut log = ObjectLog::begin(&file).unwrap();
    let long = "x".repeat(4000);
    let names: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
    let all = names.iter().map(|name| set(name, &long)).collect();
    log.append(&all, 1, true).unwrap();
    let first = folder.octets().len();
    let (mut most, mut rewrites) = (first, 0);
    for round in 2..5_u64 {
        for name in &names {
            let before = folder.octets().len();
            log.append(&[set(name, &format!("{round}{long}"))].into(), round, true)
                .unwrap();
            log.rewrite_if_grown().unwrap();
            let after = folder.octets().len();
            most = most.max(after);
            if after < before {
                rewrites += 1;
                assert_eq!(file.read().unwrap().unwrap().seconds, round);
            }
        }
        assert_eq!(folder.names(), ["objects"]);
    }
    assert!(rewrites >= 1, "{rewrites}");
    assert!(most < 2 * first + 300_000, "{first}, {most}");
    let stored = file.read().unwrap().unwrap();
    assert_eq!(stored.texts.len(), 100);
    assert!(said(&stored).iter().all(|line| line.contains("=4xx")));
    // Half of what was rewritten is no moment of the source.
    log.append(&[gone("099"), set("100", &"y".repeat(500_000))].into(), 8, true)
        .unwrap();
    log.rewrite_if_grown().unwrap();
    let (whole, cut) = (folder.octets(), Folder::new());
    cut.file().write(&texts(), 1).unwrap();
    for length in (0..whole.len()).step_by(1000) {
        std::fs::write(cut.file().path(), &whole[..length]).unwrap();
        assert_eq!(reason(&cut.file()), "damaged", "{length} octets");
    }
    // It goes on in the new file.
    log.append(&[gone("000")].into(), 9, true).unwrap();
    assert_eq!(file.read().unwrap().unwrap().texts.len(), 99);
}

/// A kind that is listed anew may be half there when the log has grown.
#[test]
fn half_a_list_counts_no_more_after_the_log_is_rewritten() {
    let folder = Folder::new();
    let file = folder.file();
    let mut log = ObjectLog::begin(&file).unwrap();
    let long = "x".repeat(500_000);
    log.append(&[set("a", "1"), set("b", "1")].into(), 1, true)
        .unwrap();
    let half = [set("a", "2"), gone("b"), set("c", &long)];
    log.append(&half.into(), 9, false).unwrap();
    log.append(&[set("c", "1")].into(), 9, false).unwrap();
    let inode = || std::fs::metadata(file.path()).unwrap().ino();
    let before = inode();
    log.rewrite_if_grown().unwrap();
    assert_ne!(inode(), before, "it is rewritten");
    let stored = file.read().unwrap().unwrap();
    assert_eq!(
        (said(&stored), stored.seconds),
        (vec!["a=1".to_owned(), "b=1".to_owned()], 1)
    );
    // The other half.
    log.append(&TextChanges::new(), 10, true).unwrap();
    let stored = file.read().unwrap().unwrap();
    assert_eq!(
        (said(&stored), stored.seconds),
        (vec!["a=2".to_owned(), "c=1".to_owned()], 10)
    );
}

/// Where a folder cannot be written, nothing is forgotten: all of it is written when it can be.
#[test]
fn what_could_not_be_written_is_written_later() {
    let folder = Folder::new();
    let file = folder.file();
    std::fs::write(folder.0.path().join("new"), "in the way").unwrap();
    let objects = ObjectStore::open(file.path(), Path::new("/m")).unwrap();
    let (writer, thread) = (objects.writer.unwrap(), objects.thread.unwrap());
    writer.store([set("a", "1"), set("b", "1")].into(), true);
    // It is tried at once, then every other second.
    std::thread::sleep(Duration::from_millis(200));
    writer.store([set("a", "2")].into(), true);
    std::fs::remove_file(folder.0.path().join("new")).unwrap();
    until(|| file.path().exists());
    assert_eq!(said(&file.read().unwrap().unwrap()), ["a=2", "b=1"]);
    writer.end();
    thread.join().unwrap();
}

fn until(mut is_so: impl FnMut() -> bool) {
    #[allow(
        clippy::disallowed_methods,
        reason = "a thread is waited for, for a real time"
    )]
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}
