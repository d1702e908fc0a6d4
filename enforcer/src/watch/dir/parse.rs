//! Parses files in parallel, which is most of the work of a start.

use std::io;
use std::path::PathBuf;
use std::thread;

use super::file::FileContent;
use super::scan::Fingerprint;

/// Files that are parsed before they are merged. Unmerged content takes many times the memory of the result.
pub(super) const CHUNK: usize = 256;
/// Fewer files are not worth a thread.
const MIN_PER_THREAD: usize = 16;
/// The node has other work.
const MAX_THREADS: usize = 4;

/// A file's octets.
pub(super) struct FileBytes {
    pub(super) path: PathBuf,
    pub(super) fingerprint: Fingerprint,
    pub(super) octets: io::Result<Vec<u8>>,
}

/// A parsed file.
pub(super) struct ParsedFile {
    pub(super) path: PathBuf,
    pub(super) fingerprint: Fingerprint,
    pub(super) content: FileContent,
}

/// Parses files; the result is in the same order.
pub(super) fn parse_all(mut files: Vec<FileBytes>) -> Vec<ParsedFile> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors
        .min(MAX_THREADS)
        .min(files.len().div_ceil(MIN_PER_THREAD))
        .max(1);
    let each = files.len().div_ceil(threads);
    let mut all = Vec::with_capacity(files.len());
    thread::scope(|scope| {
        let mut others = Vec::new();
        while files.len() > each {
            let part = files.split_off(files.len() - each);
            others.push(scope.spawn(|| parse_each(part)));
        }
        all.extend(parse_each(files));
        for other in others.into_iter().rev() {
            all.extend(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
    });
    all
}

fn parse_each(files: Vec<FileBytes>) -> Vec<ParsedFile> {
    let understood = files.into_iter().map(|file| ParsedFile {
        content: FileContent::of(&file.path, file.octets),
        fingerprint: file.fingerprint,
        path: file.path,
    });
    understood.collect()
}
