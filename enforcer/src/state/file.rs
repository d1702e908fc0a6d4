//! State files: read once, begun anew beside the former one, and appended to. The file of records is not flushed to the disk:
//! it has to survive the process, not the kernel.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::boot_id::BootId;
use super::format::StateError;
use super::log::{self, LoadedRecords};

/// The most octets of a record: a name of 255 octets that are all escaped, its pod and its address.
const MAX_RECORD: u64 = 2048;
/// The limit of a file without records, in octets.
const MIN_LIMIT: u64 = 64 * 1024;

/// The file of records.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    boot: BootId,
    most: u64,
}

impl StateFile {
    /// The file at `path`, of this boot, with at most this many records.
    #[must_use]
    pub fn new(path: &Path, boot: BootId, records: usize) -> Self {
        Self {
            path: path.to_owned(),
            boot,
            most: MIN_LIMIT.saturating_add((records as u64).saturating_mul(MAX_RECORD)),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is in a tmpfs, where no disk can hang. A file system that cannot be asked counts as a disk.
    pub(super) fn is_in_memory(&self) -> bool {
        let mut folders = self.path.ancestors().skip(1);
        // Missing folders are created later.
        let found = folders.find_map(|folder| match folder.as_os_str().is_empty() {
            true => statfs(".").ok(),
            false => statfs(folder).ok(),
        });
        found.is_some_and(|found| found.filesystem_type() == TMPFS_MAGIC)
    }

    /// Its records; none if there is no file.
    ///
    /// # Errors
    ///
    /// Why it is not valid.
    pub fn read(&self) -> Result<LoadedRecords, StateError> {
        match read_regular_file(&self.path, self.most)? {
            Some(octets) => log::read(&octets, self.boot),
            None => Ok(LoadedRecords::default()),
        }
    }

    /// Creates the next file beside it.
    pub(super) fn begin(&self) -> Result<AppendFile, StateError> {
        AppendFile::begin(&self.path, self.most, &log::header(self.boot))
    }

    /// Moves the next file to its path, atomically.
    pub(super) fn replace(&self, file_written: &mut AppendFile) -> Result<(), StateError> {
        file_written.replace(&self.path)
    }
}

/// A file that is appended to. Unless it was moved to its path, it is removed when dropped.
#[derive(Debug)]
pub(super) struct AppendFile {
    file: File,
    path: PathBuf,
    is_in_place: bool,
    octets: u64,
    most: u64,
    /// Whether part of an append may be behind its octets.
    is_torn: bool,
}

impl AppendFile {
    /// Creates a file beside the one at `target`, in place of a leftover one, with at most so many octets.
    pub(super) fn begin(target: &Path, most: u64, header: &[u8]) -> Result<Self, StateError> {
        let path = temporary_path(target);
        let mut begun = Self {
            file: create(&path).map_err(StateError::Unwritten)?,
            path,
            is_in_place: false,
            octets: 0,
            most,
            is_torn: false,
        };
        begun.append(header)?;
        Ok(begun)
    }

    /// Moves it to the path of the former file, atomically.
    pub(super) fn replace(&mut self, target: &Path) -> Result<(), StateError> {
        std::fs::rename(&self.path, target).map_err(StateError::Unwritten)?;
        self.is_in_place = true;
        Ok(())
    }

    /// Flushes its content to the disk.
    pub(super) fn flush(&self) -> Result<(), StateError> {
        self.file.sync_all().map_err(StateError::Unwritten)
    }

    /// Its content.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Leaves its path to another file.
    pub(super) const fn keep_name(&mut self) {
        self.is_in_place = true;
    }

    /// Appends all octets or none.
    pub(super) fn append(&mut self, octets: &[u8]) -> Result<(), StateError> {
        let after = self.octets + octets.len() as u64;
        check_size(after, self.most)?;
        self.cut()?;
        let written = self.file.write_all(octets).map_err(StateError::Unwritten);
        if written.is_err() {
            self.is_torn = true;
            // Else it is tried again before the next append.
            drop(self.cut());
        }
        written?;
        self.octets = after;
        Ok(())
    }

    /// Takes half an append away: a reader would skip it, but not what follows it.
    fn cut(&mut self) -> Result<(), StateError> {
        if std::mem::take(&mut self.is_torn) {
            let cut = self.file.set_len(self.octets).map_err(StateError::Unwritten);
            self.is_torn = cut.is_err();
            cut?;
        }
        Ok(())
    }

    /// Writes into a pipe, for tests.
    #[cfg(test)]
    pub(super) fn into_pipe(writer: io::PipeWriter) -> Self {
        Self {
            file: std::os::fd::OwnedFd::from(writer).into(),
            path: PathBuf::new(),
            is_in_place: true,
            octets: 0,
            most: u64::MAX,
            is_torn: false,
        }
    }

    /// Its size.
    pub(super) const fn octets(&self) -> u64 {
        self.octets
    }
}

impl Drop for AppendFile {
    fn drop(&mut self) {
        if !self.is_in_place {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Reads a regular file of this user; none if there is none.
fn read_regular_file(path: &Path, most: u64) -> Result<Option<Vec<u8>>, StateError> {
    let Some(file) = open_regular_file(path, most)? else {
        return Ok(None);
    };
    let mut octets = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut octets)?;
    check_size(octets.len() as u64, most)?;
    Ok(Some(octets))
}

/// Opens a regular file of this user, of at most so many octets; none if there is none.
pub(super) fn open_regular_file(path: &Path, most: u64) -> Result<Option<File>, StateError> {
    // Opening a pipe would block, and a link could lead anywhere.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(StateError::Foreign("a symbolic link".to_owned()));
        }
        opened => opened?,
    };
    check(&file, most)?;
    Ok(Some(file))
}

fn check(file: &File, most: u64) -> Result<(), StateError> {
    let found = file.metadata()?;
    check_size(found.len(), most)?;
    if !found.is_file() {
        return Err(StateError::Foreign("no plain file".to_owned()));
    }
    if found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(StateError::Foreign(format!("of user {}", found.uid())));
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(StateError::Foreign(format!("of mode {mode:04o}")));
    }
    Ok(())
}

const fn check_size(octets: u64, most: u64) -> Result<(), StateError> {
    if octets > most {
        return Err(StateError::TooLarge { octets, most });
    }
    Ok(())
}

/// The state file and a leftover temporary file, as far as they exist. An empty path is no file.
#[must_use]
pub fn existing_files(path: &Path) -> Vec<PathBuf> {
    if path.as_os_str().is_empty() {
        return Vec::new();
    }
    let both = [path.to_owned(), temporary_path(path)];
    both.into_iter()
        .filter(|path| path.symlink_metadata().is_ok())
        .collect()
}

/// Removes these files.
///
/// # Errors
///
/// With the path.
pub fn remove(path: &Path) -> io::Result<()> {
    for trace in existing_files(path) {
        std::fs::remove_file(&trace).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{} cannot be removed: {error}", trace.display()),
            )
        })?;
    }
    Ok(())
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Creates an empty file for this user alone, with its folder, in place of a leftover one.
fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // This user reads it again, whatever the umask is.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Flushes the new name to the disk.
pub(super) fn flush_name(path: &Path) -> Result<(), StateError> {
    let flushed = match path.parent() {
        Some(folder) => File::open(folder).and_then(|folder| folder.sync_all()),
        None => Ok(()),
    };
    flushed.map_err(StateError::Unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use egret_policies::records::{PodSnapshot, RecordSnapshot};
    use egret_shared::time::Timestamp;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn make() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, records: usize) -> StateFile {
            StateFile::new(&self.0.path().join("state"), BootId::read().unwrap(), records)
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

    fn write(file: &StateFile, octets: &[u8]) -> Result<(), StateError> {
        let mut file_written = file.begin()?;
        file_written.append(octets)?;
        file.replace(&mut file_written)
    }

    fn records(file: &StateFile) -> Result<usize, StateError> {
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
            path: folder.0.path().join("new/folder/state"),
            ..folder.file(10)
        };
        assert_eq!(records(&file).unwrap(), 0);
        write(&file, &changes(1)).unwrap();
        assert_eq!((records(&file).unwrap(), mode(file.path())), (1, 0o600));
        std::fs::write(
            temporary_path(file.path()),
            "a file that somebody was killed over",
        )
        .unwrap();
        let mut file_written = file.begin().unwrap();
        file_written.append(&changes(2)).unwrap();
        assert_eq!(records(&file).unwrap(), 1, "it is not in its place yet");
        file.replace(&mut file_written).unwrap();
        file_written.append(&changes(3)).unwrap();
        assert_eq!(records(&file).unwrap(), 3);
        assert_eq!(existing_files(file.path()), [file.path()]);
    }

    #[test]
    fn a_file_that_others_may_have_written_is_not_read() {
        let folder = Folder::make();
        let file = folder.file(10);
        write(&file, &changes(1)).unwrap();
        for (mode, is_read) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            let error = file.read().err().map(|error| error.reason());
            assert_eq!(error, (!is_read).then_some("foreign"), "{mode:o}");
        }
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
        let real = folder.0.path().join("real");
        std::fs::rename(file.path(), &real).unwrap();
        symlink(&real, file.path()).unwrap();
        assert_eq!(file.read().unwrap_err().reason(), "foreign");
        remove(file.path()).unwrap();
        std::fs::create_dir(file.path()).unwrap();
        assert_eq!(file.read().unwrap_err().reason(), "foreign");
    }

    #[test]
    fn a_file_above_the_size_limit_is_neither_read_nor_written() {
        let folder = Folder::make();
        write(&folder.file(100), &changes(4096)).unwrap();
        assert_eq!(folder.file(0).read().unwrap_err().reason(), "size");
        assert_eq!(
            write(&folder.file(0), &changes(4096)).unwrap_err().reason(),
            "size"
        );
        assert_eq!(records(&folder.file(100)).unwrap(), 4096, "it stays as it is");
        assert_eq!(existing_files(folder.file(0).path()), [folder.file(0).path()]);
    }

    #[test]
    fn a_file_that_cannot_take_its_place_leaves_nothing_behind() {
        let folder = Folder::make();
        let file = folder.file(10);
        std::fs::create_dir(file.path()).unwrap();
        assert_eq!(write(&file, &changes(1)).unwrap_err().reason(), "unwritten");
        assert_eq!(existing_files(file.path()), [file.path()]);
        assert_eq!(existing_files(Path::new("")), Vec::<PathBuf>::new());
    }
}
