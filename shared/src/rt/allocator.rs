//! The memory of this process.
#![allow(
    unsafe_code,
    reason = "the C library's allocator has no other way to be asked"
)]

/// Gives pages back that are free but still this process's. The allocator of glibc keeps what lies between what is in
/// use: after a start that is as much as the objects of a cluster were before they were understood.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: it takes a number, and may be called at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries are not known to keep much.
#[cfg(not(target_env = "gnu"))]
pub const fn trim() {}

/// From this size on a block has a mapping of its own, and so much may be free at the end of each heap.
#[cfg(target_env = "gnu")]
const MOST_KEPT: libc::c_int = 1 << 20;

/// Has this process keep little that is free. To be called before there are other threads.
///
/// *All threads have one heap* (`M_ARENA_MAX` of mallopt(3)): what one of them left free another one uses. Small blocks come from
/// a cache of each thread, so they seldom wait for each other.
///
/// *Large blocks are given back when they are free*, for good. glibc begins so, but raises both limits with the largest block that
/// was ever freed (`M_MMAP_THRESHOLD`): after a file of 20 MiB a heap keeps up to 40 MiB.
#[cfg(target_env = "gnu")]
pub fn keep_little() {
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, MOST_KEPT),
        (libc::M_TRIM_THRESHOLD, MOST_KEPT),
    ] {
        // SAFETY: it takes two numbers, and may be called at any time from any thread.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// As above.
#[cfg(not(target_env = "gnu"))]
pub const fn keep_little() {}

/// Below the size from which glibc gives a block a mapping of its own (`M_MMAP_THRESHOLD`).
const BLOCK: usize = 96 << 10;

/// Has the heap of this thread grow by so many octets without the kernel. In glibc that of the first thread grows by 128 KiB
/// at a time, and that of any other by a page, each with an `mprotect` of its own (`grow_heap` of malloc/arena.c): 18 µs, and
/// what it pushes out of the caches, in the midst of whatever asked for memory. What was once made writable stays so when
/// it is free; its pages are given back. So this takes address space, and no memory.
pub fn reserve_heap(octets: usize) {
    let blocks: Vec<Vec<u8>> = (0..octets / BLOCK).map(|_| Vec::with_capacity(BLOCK)).collect();
    drop(std::hint::black_box(blocks));
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::ops::Range;

    use super::*;

    const ROOM: usize = 8 << 20;

    /// The addresses of a mapping, and the rest of its line.
    fn mapping(line: &str) -> (Range<usize>, &str) {
        let (from, rest) = line.split_once('-').unwrap();
        let (to, rest) = rest.split_once(' ').unwrap();
        let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
        (from..to, rest)
    }

    /// How many octets can be written behind a new block of this thread's own heap, as the kernel has it.
    fn writable_behind_a_block() -> usize {
        let block = vec![0_u8; 2000];
        let address = block.as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut end = address;
        for line in maps.lines() {
            let (addresses, rest) = mapping(line);
            if rest.starts_with("rw") && addresses.contains(&end) {
                end = addresses.end;
            }
        }
        end - address
    }

    /// Set where the test is a process of its own.
    const ALONE: &str = "EGRET_ALLOCATOR_ALONE";

    #[test]
    fn what_keeps_little_has_one_heap() {
        if std::env::var_os(ALONE).is_some() {
            keep_little();
            let block = std::thread::spawn(|| vec![0_u8; 2000]).join().unwrap();
            let address = block.as_ptr().addr();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let heap = maps.lines().find(|line| line.ends_with("[heap]")).unwrap();
            assert!(
                mapping(heap).0.contains(&address),
                "{address:x} of another thread is not in {heap}"
            );
            return;
        }
        // With one thread the harness calls the test on the first one, so that no other heap is there yet.
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["what_keeps_little_has_one_heap", "--test-threads=1"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.status.success() && told.contains("1 passed"), "{told}");
    }

    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }

    #[test]
    fn reserved_memory_is_writable_and_not_resident() {
        let thread = std::thread::spawn(|| {
            let before = resident();
            let without = writable_behind_a_block();
            reserve_heap(ROOM);
            let taken = resident().saturating_sub(before);
            (without, writable_behind_a_block(), taken)
        });
        let (without, with, taken) = thread.join().unwrap();
        assert!(without < ROOM / 8, "{without}: nothing has to be kept");
        assert!(with > ROOM * 7 / 8, "{with}");
        // Tests beside this one take memory of the same process.
        assert!(taken < ROOM / 2, "{taken}");
    }
}
