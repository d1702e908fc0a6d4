//! Reply buffers, reused. A batch of replies is freed at once, which is more than glibc's per-thread cache holds (7 of a
//! size, `tcache_count` in malloc/malloc.c); the others would take malloc's slow path.

use std::cell::RefCell;

/// The size of a reused buffer: nearly all replies fit.
const USUAL: usize = 256;
/// Datagrams per system call, and buffers that a thread keeps. Twice as many datagrams are no cheaper.
pub(crate) const BATCH: usize = 32;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer for at least `length` octets.
pub(crate) fn take_buffer(length: usize) -> Vec<u8> {
    if length > USUAL {
        return Vec::with_capacity(length);
    }
    let free = FREE.with_borrow_mut(Vec::pop);
    free.unwrap_or_else(|| Vec::with_capacity(USUAL))
}

/// Returns a buffer of [`take_buffer`].
pub(crate) fn return_buffer(mut octets: Vec<u8>) {
    if octets.capacity() == USUAL {
        octets.clear();
        FREE.with_borrow_mut(|free| {
            if free.len() < BATCH {
                free.push(octets);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_empty_and_at_most_a_batch_is_kept() {
        let mut written = take_buffer(3);
        written.extend_from_slice(b"abc");
        let place = written.as_ptr();
        return_buffer(written);
        let again = take_buffer(USUAL);
        assert!(again.is_empty() && again.as_ptr() == place);
        return_buffer(again);
        let many: Vec<_> = (0..2 * BATCH).map(|_| take_buffer(1)).collect();
        many.into_iter().for_each(return_buffer);
        assert_eq!(FREE.with_borrow(Vec::len), BATCH);
    }

    #[test]
    fn longer_buffers_are_not_pooled() {
        let kept = || FREE.with_borrow(Vec::len);
        let (long, before) = (take_buffer(USUAL + 1), kept());
        assert!(long.capacity() > USUAL);
        return_buffer(long);
        assert_eq!(kept(), before);
    }
}
