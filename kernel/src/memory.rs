//! The memory of this process.
#![allow(
    unsafe_code,
    reason = "the C library's allocator has no other way to be asked"
)]

/// Gives pages back that are free but still this process's. The allocator of glibc keeps what lies between what is in
/// use: after a start that is as much as the objects of a cluster were before they were understood.
#[cfg(target_env = "gnu")]
pub fn give_back() {
    // SAFETY: it takes a number, and may be called at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries are not known to keep much.
#[cfg(not(target_env = "gnu"))]
pub const fn give_back() {}
