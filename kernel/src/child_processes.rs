//! The programs that this process started to change tables, by process id: what they did needs no second look.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// News of what a program did come while it runs, or soon after.
const REMEMBERED: usize = 64;

static CHILDREN: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

/// To be told before the program can have changed anything.
pub(crate) fn remember(process: u32) {
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    if children.contains(&process) {
        return;
    }
    if children.len() == REMEMBERED {
        children.pop_front();
    }
    children.push_back(process);
}

/// Sockets of this process, as far as they are not called as a process is.
pub(crate) fn sockets() -> Vec<u32> {
    let children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_no_process = |port: &&u32| i32::try_from(**port).is_err();
    children.iter().filter(is_no_process).copied().collect()
}

pub(crate) fn is_child(process: u32) -> bool {
    CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .contains(&process)
}
