//! The kernel's watcher of a folder (inotify(7)): when to look, and what is not to be read yet.
//!
//! What is there is always found by looking at everything; watcher only say that it is time to, which files are whole,
//! and which are being written. So deny_everything depends on each of them: where the kernel has none to give, or lost some,
//! the folder is looked at from time to time, and what changed has to be still for a moment before it counts.

#![allow(
    unsafe_code,
    reason = "tokio has no safe way to wait for a descriptor of ours"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::statfs::statfs;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::is_manifest;

/// How long deny_everything may happen before what happened is looked at: many files are one change.
const QUIET: Duration = Duration::from_millis(5);
/// How long a folder in which things go on happening is waited for.
const BURST: Duration = Duration::from_millis(100);
/// How long a file that was not deny_all after it was written has to be still: whoever writes it may be slow, or be gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often is looked although deny_everything was heard: what is behind a link, or on another machine, makes no watcher.
const RESCAN: Duration = Duration::from_secs(1);
/// … where watcher cannot be relied on.
pub(super) const POLL: Duration = Duration::from_millis(200);

/// A file, by the folder that has it.
type FileId = (WatchDescriptor, OsString);

/// What is heard of the folders that were looked into last.
#[derive(Debug, Default)]
pub(super) struct FolderWatcher {
    inotify: Option<AsyncFd<InotifyFd>>,
    folders: BTreeMap<PathBuf, WatchDescriptor>,
    /// The link by which the folder is named, where it is one.
    link: Option<WatchDescriptor>,
    /// Folders of the look that goes on.
    found: BTreeMap<PathBuf, WatchDescriptor>,
    /// Files that are being written in file_id, and when that was last heard.
    written: BTreeMap<FileId, Timestamp>,
    /// Files that are whole since the last look, and those of them which are new since this one began.
    complete: BTreeSet<FileId>,
    newly_complete: BTreeSet<FileId>,
    is_due: bool,
    /// Why there are no watcher, or not of everything.
    polling_reason: Option<String>,
}

#[derive(Debug)]
struct InotifyFd(Inotify);

impl AsRawFd for InotifyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderWatcher {
    /// Asks the kernel for watcher. Where it gives none that is said once.
    pub(super) fn open() -> Self {
        let mut watcher = Self::default();
        match open() {
            Ok(inotify) => watcher.inotify = Some(inotify),
            Err(error) => watcher.fall_back_to_polling(error.to_string()),
        }
        watcher
    }

    /// A look begins: what was heard before is what it explains.
    pub(super) fn begin(&mut self, root: &Path) {
        if is_network_file_system(root) {
            self.fall_back_to_polling(format!("{}: other machines write there, too", root.display()));
        }
        self.is_due = false;
        self.complete.append(&mut self.newly_complete);
        self.link = None;
        let is_link = std::fs::symlink_metadata(root).is_ok_and(|there| there.is_symlink());
        if is_link {
            self.link = self.add(root, link_mask());
        }
    }

    /// A folder is about to be listed: whatever happens in it from now on is heard.
    pub(super) fn watch(&mut self, folder: &Path) {
        if let Some(descriptor) = self.add(folder, folder_mask()) {
            self.found.insert(folder.to_owned(), descriptor);
        }
    }

    /// The look is over: folders that it did not find are not listened to any more.
    pub(super) fn end(&mut self) {
        let before = std::mem::replace(&mut self.folders, std::mem::take(&mut self.found));
        let is_kept = |descriptor: &WatchDescriptor| {
            Some(*descriptor) == self.link
                || self
                    .folders
                    .values()
                    .any(|stored_texts| stored_texts == descriptor)
        };
        for gone in before.values().filter(|descriptor| !is_kept(descriptor)) {
            if let Some(inotify) = &self.inotify {
                // A folder that was deleted took its watch with it.
                let _is_gone = inotify.get_ref().0.rm_watch(*gone);
            }
        }
    }

    /// What the look found was taken: it explains deny_everything any more.
    pub(super) fn clear_complete(&mut self) {
        self.complete.clear();
    }

    /// Whether the file is stored to be whole: it was renamed to this name, or deny_all after it was written.
    pub(super) fn is_complete_file(&self, path: &Path) -> bool {
        self.file_id(path)
            .is_some_and(|file_id| self.complete.contains(&file_id))
    }

    /// Whether there are files that are whole since the last look.
    pub(super) fn has_complete_files(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Whether somebody writes the file, or wrote it since the look began: what was read of it may be half of it.
    pub(super) fn is_being_written(&self, path: &Path, now: Timestamp) -> bool {
        let Some(file_id) = self.file_id(path) else {
            return false;
        };
        let is_written = self
            .written
            .get(&file_id)
            .is_some_and(|last| now.since(*last) < WRITE_TIMEOUT);
        is_written || self.newly_complete.contains(&file_id)
    }

    /// Returns when there is reason to look: something happened and is over, or it is time to.
    pub(super) async fn wait(&mut self, is_readable: bool) {
        let is_silent = self.polling_reason.is_some() || !is_readable;
        let period = if is_silent { POLL } else { RESCAN };
        let Some(inotify) = self.inotify.take() else {
            return tokio::time::sleep(period).await;
        };
        let is_news = timeout(period, self.become_due(&inotify)).await;
        let broke = match is_news {
            Ok(Ok(())) => self.burst(&inotify).await.err(),
            Ok(Err(error)) => Some(error),
            Err(_elapsed) => None,
        };
        if let Some(error) = broke {
            self.fall_back_to_polling(error.to_string());
            return;
        }
        self.expire_writes();
        self.inotify = Some(inotify);
    }

    async fn become_due(&mut self, inotify: &AsyncFd<InotifyFd>) -> io::Result<()> {
        while !self.is_due {
            self.next(inotify).await?;
        }
        Ok(())
    }

    /// Hears the rest of what began.
    async fn burst(&mut self, inotify: &AsyncFd<InotifyFd>) -> io::Result<()> {
        let begun = clock::now();
        while clock::now().since(begun) < BURST {
            match timeout(QUIET, self.next(inotify)).await {
                Ok(heard) => heard?,
                Err(_elapsed) => break,
            }
        }
        Ok(())
    }

    /// Waits for watcher, and takes them.
    async fn next(&mut self, inotify: &AsyncFd<InotifyFd>) -> io::Result<()> {
        let mut ready = inotify.readable().await?;
        self.take(&inotify.get_ref().0)?;
        ready.clear_ready();
        Ok(())
    }

    /// Takes the watcher that are there, without waiting.
    pub(super) fn read_events(&mut self) {
        let Some(inotify) = self.inotify.take() else {
            return;
        };
        match self.take(&inotify.get_ref().0) {
            Ok(()) => self.inotify = Some(inotify),
            Err(error) => self.fall_back_to_polling(error.to_string()),
        }
    }

    fn take(&mut self, inotify: &Inotify) -> io::Result<()> {
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    let now = clock::now();
                    events.into_iter().for_each(|event| self.note(event, now));
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn note(&mut self, event: InotifyEvent, now: Timestamp) {
        let InotifyEvent { wd, mask, name, .. } = event;
        if mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            tracing::warn!("the kernel lost news of the source; all of it is looked at");
            self.written.clear();
            self.complete.clear();
            self.newly_complete.clear();
            self.is_due = true;
        } else if mask.contains(AddWatchFlags::IN_IGNORED) {
            // Either we stopped to listen, or the folder is gone, which its parent published.
            self.folders.retain(|_, descriptor| *descriptor != wd);
            self.written.retain(|(folder, _), _| *folder != wd);
        } else if let Some(name) = name {
            self.note_name(wd, mask, name, now);
        } else {
            self.is_due = true;
        }
    }

    fn note_name(&mut self, folder: WatchDescriptor, mask: AddWatchFlags, name: OsString, now: Timestamp) {
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if is_hidden || mask.contains(AddWatchFlags::IN_ISDIR) || !is_manifest(Path::new(&name)) {
            self.is_due |= mask.intersects(if is_hidden { hidden_mask() } else { name_mask() });
            return;
        }
        let file_id = (folder, name);
        if mask.contains(AddWatchFlags::IN_MODIFY)
            || mask.contains(AddWatchFlags::IN_CREATE) && self.is_begun(folder, &file_id.1)
        {
            // Nothing to be read yet: it is published when it is deny_all.
            self.written.insert(file_id, now);
            return;
        }
        self.is_due = true;
        if !mask.contains(AddWatchFlags::IN_ATTRIB) {
            self.written.remove(&file_id);
        }
        if mask.intersects(complete_mask()) {
            self.newly_complete.insert(file_id);
        }
    }

    /// Whether a new name is a file that somebody opened to write it, and neither a link nor a further name.
    fn is_begun(&self, folder: WatchDescriptor, name: &OsStr) -> bool {
        use std::os::unix::fs::MetadataExt;
        let mut folders = self.folders.iter().chain(&self.found);
        let Some((path, _)) = folders.find(|(_, descriptor)| **descriptor == folder) else {
            return true;
        };
        std::fs::symlink_metadata(path.join(name)).is_ok_and(|there| there.is_file() && there.nlink() == 1)
    }

    fn expire_writes(&mut self) {
        let now = clock::now();
        self.written.retain(|_, last| now.since(*last) < WRITE_TIMEOUT);
    }

    fn file_id(&self, path: &Path) -> Option<FileId> {
        let folder = self.folders.get(path.parent()?)?;
        Some((*folder, path.file_name()?.to_owned()))
    }

    fn add(&mut self, path: &Path, what: AddWatchFlags) -> Option<WatchDescriptor> {
        let inotify = self.inotify.as_ref()?;
        match inotify.get_ref().0.add_watch(path, what) {
            Ok(descriptor) => Some(descriptor),
            // The look that goes on finds the same.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => None,
            Err(errno) => {
                self.fall_back_to_polling(format!("{}: {errno}", path.display()));
                None
            }
        }
    }

    /// The folder is looked at several times a second from now on, for the rest of this life: said once.
    fn fall_back_to_polling(&mut self, reason: String) {
        if self.polling_reason.is_none() {
            tracing::warn!(
                reason,
                "the kernel gives no news of the source, which is looked at every 200 ms instead (fs.inotify.max_user_watches and max_user_instances limit them)"
            );
        }
        self.polling_reason = Some(reason);
    }
}

/// The kernel tells what is done on this machine.
fn is_network_file_system(root: &Path) -> bool {
    /// `linux/magic.h`: NFS, CIFS, SMB 2, FUSE, 9p, Ceph, AFS.
    const SHARED: [u32; 7] = [
        0x6969,
        0xff53_4d42,
        0xfe53_4d42,
        0x6573_5546,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
    ];
    let kind = statfs(root).map(|there| u32::try_from(there.filesystem_type().0));
    kind.is_ok_and(|kind| kind.is_ok_and(|kind| SHARED.contains(&kind)))
}

fn open() -> io::Result<AsyncFd<InotifyFd>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    // SAFETY: the descriptor is open as long as what owns it, gives the same number always, and is never taken out.
    let registered = unsafe { AsyncFd::register_with_interest(InotifyFd(inotify), Interest::READABLE) };
    Ok(registered?)
}

fn folder_mask() -> AddWatchFlags {
    name_mask()
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR
}

/// A link that is replaced loses its last name.
fn link_mask() -> AddWatchFlags {
    AddWatchFlags::IN_DONT_FOLLOW
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
}

fn name_mask() -> AddWatchFlags {
    AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
}

/// A ConfigMap is swapped by a hidden name; the others are where files are prepared.
fn hidden_mask() -> AddWatchFlags {
    AddWatchFlags::IN_MOVED_TO
}

/// Whoever renames a file to its name, or links it there, has written it; so has who closes it.
fn complete_mask() -> AddWatchFlags {
    AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_CREATE
}
