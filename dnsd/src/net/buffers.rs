//! Room for replies, used again. Those of a batch are written one after the other and given back all at once, which is more
//! than glibc keeps at hand for a thread (7 of a size, `tcache_count` in malloc/malloc.c); the others would go its slow way.

use std::cell::RefCell;

/// Octets that nearly all replies fit into.
const USUAL: usize = 256;
/// As many as one batch has are kept.
const KEPT: usize = crate::net::batch::MOST;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Room for so many octets.
pub(crate) fn room_for(length: usize) -> Vec<u8> {
    if length > USUAL {
        return Vec::with_capacity(length);
    }
    let free = FREE.with_borrow_mut(Vec::pop);
    free.unwrap_or_else(|| Vec::with_capacity(USUAL))
}

/// Takes room back that was made here.
pub(crate) fn give_back(mut octets: Vec<u8>) {
    if octets.capacity() == USUAL {
        octets.clear();
        FREE.with_borrow_mut(|free| {
            if free.len() < KEPT {
                free.push(octets);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again_and_empty_and_no_more_is_kept_than_a_batch_has() {
        let mut written = room_for(3);
        written.extend_from_slice(b"abc");
        let place = written.as_ptr();
        give_back(written);
        let again = room_for(USUAL);
        assert!(again.is_empty() && again.as_ptr() == place);
        give_back(again);
        let many: Vec<_> = (0..2 * KEPT).map(|_| room_for(1)).collect();
        many.into_iter().for_each(give_back);
        assert_eq!(FREE.with_borrow(Vec::len), KEPT);
    }

    #[test]
    fn what_is_longer_is_the_allocators() {
        let kept = || FREE.with_borrow(Vec::len);
        let (long, before) = (room_for(USUAL + 1), kept());
        assert!(long.capacity() > USUAL);
        give_back(long);
        assert_eq!(kept(), before);
    }
}
