//! Files that are read together: understanding them is most of the work of a start, and none needs to know of another.

use std::io;
use std::path::PathBuf;
use std::thread;

use super::file::Content;
use super::scan::Fingerprint;

/// So many are read before they are taken: what is not understood yet, and what it is understood from, is many times as
/// big as what it comes to.
pub(super) const TOGETHER: usize = 256;
/// Fewer are not worth a thread.
const FEW: usize = 16;
/// The node has other work.
const MOST_THREADS: usize = 4;

/// A file as it was read.
pub(super) struct Octets {
    pub(super) path: PathBuf,
    pub(super) fingerprint: Fingerprint,
    pub(super) octets: io::Result<Vec<u8>>,
}

/// A file as it was understood.
pub(super) struct Understood {
    pub(super) path: PathBuf,
    pub(super) fingerprint: Fingerprint,
    pub(super) content: Content,
}

/// In the same order.
pub(super) fn understand(mut files: Vec<Octets>) -> Vec<Understood> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(MOST_THREADS).min(files.len().div_ceil(FEW)).max(1);
    let each = files.len().div_ceil(threads);
    let mut all = Vec::with_capacity(files.len());
    thread::scope(|scope| {
        let mut others = Vec::new();
        while files.len() > each {
            let part = files.split_off(files.len() - each);
            others.push(scope.spawn(|| one_by_one(part)));
        }
        all.extend(one_by_one(files));
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

fn one_by_one(files: Vec<Octets>) -> Vec<Understood> {
    let understood = files.into_iter().map(|file| Understood {
        content: Content::of(&file.path, file.octets),
        fingerprint: file.fingerprint,
        path: file.path,
    });
    understood.collect()
}
