//! A file in its folder: read once, replaced whole, or grown at its end. The one of records is not flushed to a disk: it
//! must outlive this process, not the kernel.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::boot::BootId;
use super::format::Problem;
use super::log::{self, Kept};

/// What a record may take at most: a name of 255 octets that are all escaped, its pod and its address.
const MOST_OF_RECORD: u64 = 2048;
/// The file, though there be no record.
const LEAST: u64 = 64 * 1024;

/// A state file that may or may not be there.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    boot: BootId,
    most: u64,
}

impl StateFile {
    /// The one at `path`, of this boot, with so many records at most.
    #[must_use]
    pub fn new(path: &Path, boot: BootId, records: usize) -> Self {
        Self {
            path: path.to_owned(),
            boot,
            most: LEAST.saturating_add((records as u64).saturating_mul(MOST_OF_RECORD)),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its folder is memory, which no disk can hold up. What cannot be asked is a disk.
    pub(super) fn is_in_memory(&self) -> bool {
        let mut folders = self.path.ancestors().skip(1);
        // What is missing of its folders will be made.
        let found = folders.find_map(|folder| match folder.as_os_str().is_empty() {
            true => statfs(".").ok(),
            false => statfs(folder).ok(),
        });
        found.is_some_and(|found| found.filesystem_type() == TMPFS_MAGIC)
    }

    /// What it keeps; nothing where there is none.
    ///
    /// # Errors
    /// With why it is not to be taken.
    pub fn read(&self) -> Result<Kept, Problem> {
        match read_plain(&self.path, self.most)? {
            Some(octets) => log::read(&octets, self.boot),
            None => Ok(Kept::default()),
        }
    }

    /// Begins another beside it.
    pub(super) fn begin(&self) -> Result<Growing, Problem> {
        let path = beside(&self.path);
        let mut growing = Growing {
            file: create(&path).map_err(Problem::Unwritten)?,
            is_in_place: false,
            path,
            octets: 0,
            most: self.most,
        };
        growing.append(&log::header(self.boot))?;
        Ok(growing)
    }

    /// Puts another in its place, or leaves it as it is.
    pub(super) fn replace(&self, growing: &mut Growing) -> Result<(), Problem> {
        std::fs::rename(&growing.path, &self.path).map_err(Problem::Unwritten)?;
        growing.is_in_place = true;
        Ok(())
    }
}

/// A file to whose end something comes; unless it took its place, it goes when it is dropped.
#[derive(Debug)]
pub(super) struct Growing {
    file: File,
    path: PathBuf,
    is_in_place: bool,
    octets: u64,
    most: u64,
}

impl Growing {
    /// All of it, or nothing.
    pub(super) fn append(&mut self, octets: &[u8]) -> Result<(), Problem> {
        let after = self.octets + octets.len() as u64;
        check_size(after, self.most)?;
        self.file.write_all(octets).map_err(|error| {
            // Half of it would be left out by who reads it, but not what comes behind.
            drop(self.file.set_len(self.octets));
            Problem::Unwritten(error)
        })?;
        self.octets = after;
        Ok(())
    }

    /// One whose other end somebody has.
    #[cfg(test)]
    pub(super) fn into_pipe(writer: io::PipeWriter) -> Self {
        Self {
            file: std::os::fd::OwnedFd::from(writer).into(),
            path: PathBuf::new(),
            is_in_place: true,
            octets: 0,
            most: u64::MAX,
        }
    }

    /// How many it has.
    pub(super) const fn octets(&self) -> u64 {
        self.octets
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        if !self.is_in_place {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// What is in a plain file of this user; none where there is no file.
pub(super) fn read_plain(path: &Path, most: u64) -> Result<Option<Vec<u8>>, Problem> {
    // A pipe would wait for a writer, and a link could lead anywhere.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(Problem::Foreign("a symbolic link".to_owned()));
        }
        opened => opened?,
    };
    check(&file, most)?;
    let mut octets = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut octets)?;
    check_size(octets.len() as u64, most)?;
    Ok(Some(octets))
}

/// Puts another in a file's place, or leaves it as it is. It is on the disk before it takes the place of the one before.
pub(super) fn replace(path: &Path, octets: &[u8], most: u64) -> Result<(), Problem> {
    check_size(octets.len() as u64, most)?;
    let new = beside(path);
    let written = write_new(&new, octets)
        .and_then(|()| std::fs::rename(&new, path))
        .and_then(|()| flush_folder(path));
    written.map_err(|error| {
        // Half a file only takes room, perhaps the room that was missing; the next one removes it as well.
        drop(std::fs::remove_file(&new));
        Problem::Unwritten(error)
    })
}

fn check(file: &File, most: u64) -> Result<(), Problem> {
    let found = file.metadata()?;
    check_size(found.len(), most)?;
    if !found.is_file() {
        return Err(Problem::Foreign("no plain file".to_owned()));
    }
    if found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(Problem::Foreign(format!("of user {}", found.uid())));
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(Problem::Foreign(format!("of mode {mode:04o}")));
    }
    Ok(())
}

const fn check_size(octets: u64, most: u64) -> Result<(), Problem> {
    if octets > most {
        return Err(Problem::TooLarge { octets, most });
    }
    Ok(())
}

/// What is there of a state file: itself, and one that was not finished. An empty path is none.
#[must_use]
pub fn traces(path: &Path) -> Vec<PathBuf> {
    if path.as_os_str().is_empty() {
        return Vec::new();
    }
    let both = [path.to_owned(), beside(path)];
    both.into_iter()
        .filter(|path| path.symlink_metadata().is_ok())
        .collect()
}

/// Removes what `traces` tells.
///
/// # Errors
/// With the path.
pub fn remove(path: &Path) -> io::Result<()> {
    for trace in traces(path) {
        std::fs::remove_file(&trace).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{} cannot be removed: {error}", trace.display()),
            )
        })?;
    }
    Ok(())
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn write_new(path: &Path, octets: &[u8]) -> io::Result<()> {
    let mut file = create(path)?;
    file.write_all(octets)?;
    file.sync_all()
}

/// An empty file for this user alone, to whose end is written, in its folder and in place of one that was not finished.
fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // Whatever the umask took away, this user reads it again.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// The new name is on the disk, too.
fn flush_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_policies::records::{PodSnapshot, RecordSnapshot};
    use egret_shared::time::Timestamp;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn make() -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("egret-state-{}-{number}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn file(&self, records: usize) -> StateFile {
            StateFile::new(&self.0.join("state"), BootId::read().unwrap(), records)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn changes(records: usize) -> Vec<u8> {
        let record = |number: usize| RecordSnapshot {
            name: Arc::new(format!("n{number}.example.test").parse().unwrap()),
            address: "203.0.113.7".parse().unwrap(),
            expires: Timestamp::from_millis(1),
        };
        let told = PodSnapshot {
            pod: "default/a".parse().unwrap(),
            uid: None,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            records: (0..records).map(record).collect(),
        };
        let mut octets = Vec::new();
        log::write(&[told.into()], &mut octets).unwrap();
        octets
    }

    fn write(file: &StateFile, octets: &[u8]) -> Result<(), Problem> {
        let mut growing = file.begin()?;
        growing.append(octets)?;
        file.replace(&mut growing)
    }

    fn records(file: &StateFile) -> Result<usize, Problem> {
        let kept = file.read()?;
        assert_eq!(kept.torn, 0);
        Ok(kept.remembered.iter().map(|pod| pod.records.len()).sum())
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_for_its_user_alone_and_takes_the_place_of_another_when_it_is_whole() {
        let folder = Folder::make();
        let file = StateFile {
            path: folder.0.join("new/folder/state"),
            ..folder.file(10)
        };
        assert_eq!(records(&file).unwrap(), 0);
        write(&file, &changes(1)).unwrap();
        assert_eq!((records(&file).unwrap(), mode(file.path())), (1, 0o600));
        std::fs::write(beside(file.path()), "a file that somebody was killed over").unwrap();
        let mut growing = file.begin().unwrap();
        growing.append(&changes(2)).unwrap();
        assert_eq!(records(&file).unwrap(), 1, "it is not in its place yet");
        file.replace(&mut growing).unwrap();
        growing.append(&changes(3)).unwrap();
        assert_eq!(records(&file).unwrap(), 3);
        assert_eq!(traces(file.path()), [file.path()]);
    }

    #[test]
    fn a_file_that_others_may_have_written_is_not_read() {
        let folder = Folder::make();
        let file = folder.file(10);
        write(&file, &changes(1)).unwrap();
        for (mode, is_read) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            let problem = file.read().err().map(|problem| problem.reason());
            assert_eq!(problem, (!is_read).then_some("foreign"), "{mode:o}");
        }
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
        let real = folder.0.join("real");
        std::fs::rename(file.path(), &real).unwrap();
        symlink(&real, file.path()).unwrap();
        assert_eq!(file.read().unwrap_err().reason(), "foreign");
        remove(file.path()).unwrap();
        std::fs::create_dir(file.path()).unwrap();
        assert_eq!(file.read().unwrap_err().reason(), "foreign");
    }

    #[test]
    fn more_than_there_can_be_is_neither_read_nor_written() {
        let folder = Folder::make();
        write(&folder.file(100), &changes(4096)).unwrap();
        assert_eq!(folder.file(0).read().unwrap_err().reason(), "size");
        assert_eq!(
            write(&folder.file(0), &changes(4096)).unwrap_err().reason(),
            "size"
        );
        assert_eq!(records(&folder.file(100)).unwrap(), 4096, "it stays as it is");
        assert_eq!(traces(folder.file(0).path()), [folder.file(0).path()]);
    }

    #[test]
    fn a_file_that_cannot_take_its_place_leaves_nothing_behind() {
        let folder = Folder::make();
        let file = folder.file(10);
        std::fs::create_dir(file.path()).unwrap();
        assert_eq!(write(&file, &changes(1)).unwrap_err().reason(), "unwritten");
        assert_eq!(traces(file.path()), [file.path()]);
        assert_eq!(traces(Path::new("")), Vec::<PathBuf>::new());
    }
}
