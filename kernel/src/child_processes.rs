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

pub(crate) fn is_child(process: u32) -> bool {
    CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .contains(&process)
}
