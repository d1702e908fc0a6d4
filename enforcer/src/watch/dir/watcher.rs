//! inotify(7) events of the folders: when to scan, and which files must not be read yet.
//!
//! The scan finds the files; events only say that it is time to scan, which files are complete, and which are being
//! written. So no event is essential: without events, or after lost ones, the folder is scanned periodically, and a
//! changed file must be stable before it is read.
//!
//! Events are read directly from the kernel: it queues the event of a write before the write returns, so events that
//! are read after a file show whether it was written to meanwhile. A library that reads events on a thread of its own
//! loses this order.

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

/// Without an event for this long, the folder is scanned: many files are one change.
const QUIET: Duration = Duration::from_millis(5);
/// The longest wait for a folder whose events do not end.
const BURST: Duration = Duration::from_millis(100);
/// How long a file that was written and not closed must be still: its writer may be slow or dead.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the folder is scanned without an event: links and other machines cause none.
const RESCAN: Duration = Duration::from_secs(1);
/// How often it is scanned if events are unreliable.
pub(super) const POLL: Duration = Duration::from_millis(200);

/// A file in a watched folder.
type FileId = (WatchDescriptor, OsString);

/// Events of the folders of the last scan.
#[derive(Debug, Default)]
pub(super) struct FolderWatcher {
    inotify: Option<AsyncFd<InotifyFd>>,
    folders: BTreeMap<PathBuf, WatchDescriptor>,
    /// The watch of the root, if that is a link.
    link: Option<WatchDescriptor>,
    /// Folders of the current scan.
    scanned: BTreeMap<PathBuf, WatchDescriptor>,
    /// Files that are being written, and the time of their last event.
    being_written: BTreeMap<FileId, Timestamp>,
    /// Files that were completed since the last scan, and those since the current one began.
    complete: BTreeSet<FileId>,
    newly_complete: BTreeSet<FileId>,
    is_due: bool,
    /// Why the folder is polled instead; none if events are reliable.
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
    /// Opens inotify. If that fails, it is logged and the folder is polled.
    pub(super) fn open() -> Self {
        let mut watcher = Self::default();
        match open() {
            Ok(inotify) => watcher.inotify = Some(inotify),
            Err(error) => watcher.fall_back_to_polling(error.to_string()),
        }
        watcher
    }

    /// Begins a scan, which covers all events until now.
    pub(super) fn begin_scan(&mut self, root: &Path) {
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

    /// Watches a folder before it is listed.
    pub(super) fn watch(&mut self, folder: &Path) {
        if let Some(descriptor) = self.add(folder, folder_mask()) {
            self.scanned.insert(folder.to_owned(), descriptor);
        }
    }

    /// Ends the scan and removes watches of folders that are gone.
    pub(super) fn end_scan(&mut self) {
        let before = std::mem::replace(&mut self.folders, std::mem::take(&mut self.scanned));
        let is_kept = |descriptor: &WatchDescriptor| {
            Some(*descriptor) == self.link
                || self
                    .folders
                    .values()
                    .any(|stored_texts| stored_texts == descriptor)
        };
        for gone in before.values().filter(|descriptor| !is_kept(descriptor)) {
            if let Some(inotify) = &self.inotify {
                // Deleting a folder removes its watch.
                let _is_gone = inotify.get_ref().0.rm_watch(*gone);
            }
        }
    }

    /// Forgets completed files, because they were read.
    pub(super) fn clear_complete(&mut self) {
        self.complete.clear();
    }

    /// Whether the file is complete: it was renamed to this name, or closed after it was written.
    pub(super) fn is_complete_file(&self, path: &Path) -> bool {
        self.file_id(path)
            .is_some_and(|file_id| self.complete.contains(&file_id))
    }

    /// Whether files were completed since the last scan.
    pub(super) fn has_complete_files(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Whether the file is being written, or was since the scan began: half of it may have been read.
    pub(super) fn is_being_written(&self, path: &Path, now: Timestamp) -> bool {
        let Some(file_id) = self.file_id(path) else {
            return false;
        };
        let is_written = self
            .being_written
            .get(&file_id)
            .is_some_and(|last| now.since(*last) < WRITE_TIMEOUT);
        is_written || self.newly_complete.contains(&file_id)
    }

    /// Waits until a scan is due: after events that ended, or periodically.
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

    /// Reads events until there are none for a while.
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

    /// Waits for events and reads them.
    async fn next(&mut self, inotify: &AsyncFd<InotifyFd>) -> io::Result<()> {
        let mut ready = inotify.readable().await?;
        self.drain(&inotify.get_ref().0)?;
        ready.clear_ready();
        Ok(())
    }

    /// Reads pending events without waiting.
    pub(super) fn read_events(&mut self) {
        let Some(inotify) = self.inotify.take() else {
            return;
        };
        match self.drain(&inotify.get_ref().0) {
            Ok(()) => self.inotify = Some(inotify),
            Err(error) => self.fall_back_to_polling(error.to_string()),
        }
    }

    fn drain(&mut self, inotify: &Inotify) -> io::Result<()> {
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    let now = clock::now();
                    events.into_iter().for_each(|event| self.handle_event(event, now));
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn handle_event(&mut self, event: InotifyEvent, now: Timestamp) {
        let InotifyEvent { wd, mask, name, .. } = event;
        if mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            tracing::warn!("the kernel lost news of the source; all of it is looked at");
            self.being_written.clear();
            self.complete.clear();
            self.newly_complete.clear();
            self.is_due = true;
        } else if mask.contains(AddWatchFlags::IN_IGNORED) {
            // The watch was removed, or the folder was deleted, which is an event of its parent.
            self.folders.retain(|_, descriptor| *descriptor != wd);
            self.being_written.retain(|(folder, _), _| *folder != wd);
        } else if let Some(name) = name {
            self.handle_named_event(wd, mask, name, now);
        } else {
            self.is_due = true;
        }
    }

    fn handle_named_event(
        &mut self,
        folder: WatchDescriptor,
        mask: AddWatchFlags,
        name: OsString,
        now: Timestamp,
    ) {
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if is_hidden || mask.contains(AddWatchFlags::IN_ISDIR) || !is_manifest(Path::new(&name)) {
            self.is_due |= mask.intersects(if is_hidden { hidden_mask() } else { name_mask() });
            return;
        }
        let file_id = (folder, name);
        if mask.contains(AddWatchFlags::IN_MODIFY)
            || mask.contains(AddWatchFlags::IN_CREATE) && self.is_begun(folder, &file_id.1)
        {
            // It is not complete: an event follows when it is closed.
            self.being_written.insert(file_id, now);
            return;
        }
        self.is_due = true;
        if !mask.contains(AddWatchFlags::IN_ATTRIB) {
            self.being_written.remove(&file_id);
        }
        if mask.intersects(complete_mask()) {
            self.newly_complete.insert(file_id);
        }
    }

    /// Whether a new name is a file that was opened for writing, and not a link.
    fn is_begun(&self, folder: WatchDescriptor, name: &OsStr) -> bool {
        use std::os::unix::fs::MetadataExt;
        let mut folders = self.folders.iter().chain(&self.scanned);
        let Some((path, _)) = folders.find(|(_, descriptor)| **descriptor == folder) else {
            return true;
        };
        std::fs::symlink_metadata(path.join(name)).is_ok_and(|there| there.is_file() && there.nlink() == 1)
    }

    fn expire_writes(&mut self) {
        let now = clock::now();
        self.being_written
            .retain(|_, last| now.since(*last) < WRITE_TIMEOUT);
    }

    fn file_id(&self, path: &Path) -> Option<FileId> {
        let folder = self.folders.get(path.parent()?)?;
        Some((*folder, path.file_name()?.to_owned()))
    }

    fn add(&mut self, path: &Path, what: AddWatchFlags) -> Option<WatchDescriptor> {
        let inotify = self.inotify.as_ref()?;
        match inotify.get_ref().0.add_watch(path, what) {
            Ok(descriptor) => Some(descriptor),
            // The scan finds the same error.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => None,
            Err(errno) => {
                self.fall_back_to_polling(format!("{}: {errno}", path.display()));
                None
            }
        }
    }

    /// Polls the folder from now on. Logged once.
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

/// Whether other machines write there: the kernel reports only changes by this machine.
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

/// Replacing a link removes its last name.
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

/// A ConfigMap is swapped by renaming a hidden link. Other hidden names are where files are prepared.
fn hidden_mask() -> AddWatchFlags {
    AddWatchFlags::IN_MOVED_TO
}

/// A file is complete when it is renamed or linked to its name, or closed after it was written.
fn complete_mask() -> AddWatchFlags {
    AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_CREATE
}
