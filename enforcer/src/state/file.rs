//! A file in its folder: read once, replaced whole. The one of records is not flushed to a disk: it must outlive this
//! process, not the kernel.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use egret_policies::records::Remembered;

use super::boot::BootId;
use super::format::{Problem, decode, encode};

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

    /// What it keeps; nothing where there is none.
    ///
    /// # Errors
    /// With why it is not to be taken.
    pub fn read(&self) -> Result<Vec<Remembered>, Problem> {
        match read_plain(&self.path, self.most)? {
            Some(octets) => decode(&octets, self.boot),
            None => Ok(Vec::new()),
        }
    }

    /// Puts another in its place, or leaves it as it is.
    ///
    /// # Errors
    /// When it stays as it is.
    pub fn write(&self, pods: &[&Remembered]) -> Result<(), Problem> {
        let octets = encode(pods, self.boot)?;
        replace(&self.path, &octets, self.most, Outlives::Process)
    }
}

/// What a file must outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlives {
    /// This process: the kernel remembers it.
    Process,
    /// The kernel: it is on the disk before it takes the place of the one before.
    Kernel,
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

/// Puts another in a file's place, or leaves it as it is.
pub(super) fn replace(path: &Path, octets: &[u8], most: u64, outlives: Outlives) -> Result<(), Problem> {
    check_size(octets.len() as u64, most)?;
    let new = beside(path);
    let written = write_new(&new, octets, outlives)
        .and_then(|()| std::fs::rename(&new, path))
        .and_then(|()| flush_folder(path, outlives));
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

fn write_new(path: &Path, octets: &[u8], outlives: Outlives) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    // Whatever the umask took away, this user reads it again.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(octets)?;
    match outlives {
        Outlives::Process => Ok(()),
        Outlives::Kernel => file.sync_all(),
    }
}

/// The new name is on the disk, too.
fn flush_folder(path: &Path, outlives: Outlives) -> io::Result<()> {
    match (outlives, path.parent()) {
        (Outlives::Kernel, Some(folder)) => File::open(folder)?.sync_all(),
        (Outlives::Kernel | Outlives::Process, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
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

    fn pod() -> Remembered {
        Remembered {
            pod: "default/a".parse().unwrap(),
            uid: None,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            records: Vec::new(),
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_for_its_user_alone_and_replaced_whole() {
        let folder = Folder::make();
        let file = StateFile {
            path: folder.0.join("new/folder/state"),
            ..folder.file(10)
        };
        assert_eq!(file.read().unwrap(), []);
        file.write(&[&pod()]).unwrap();
        assert_eq!((file.read().unwrap(), mode(file.path())), (vec![pod()], 0o600));
        std::fs::write(beside(file.path()), "a file that somebody was killed over").unwrap();
        file.write(&[&pod(), &pod()]).unwrap();
        assert_eq!(file.read().unwrap(), [pod(), pod()]);
        assert_eq!(traces(file.path()), [file.path()]);
    }

    #[test]
    fn a_file_that_others_may_have_written_is_not_read() {
        let folder = Folder::make();
        let file = folder.file(10);
        file.write(&[&pod()]).unwrap();
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
        let many = vec![pod(); 4096];
        let many: Vec<&Remembered> = many.iter().collect();
        folder.file(100).write(&many).unwrap();
        assert_eq!(folder.file(0).read().unwrap_err().reason(), "size");
        assert_eq!(folder.file(0).write(&many).unwrap_err().reason(), "size");
        assert_eq!(folder.file(100).read().unwrap().len(), 4096, "it stays as it is");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing_behind() {
        let folder = Folder::make();
        let file = folder.file(10);
        std::fs::create_dir(file.path()).unwrap();
        assert_eq!(file.write(&[&pod()]).unwrap_err().reason(), "unwritten");
        assert_eq!(traces(file.path()), [file.path()]);
        assert_eq!(traces(Path::new("")), Vec::<PathBuf>::new());
    }
}
