//! What is told of a fault of dnsd's own. A process has one place for that, so this is a process of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::panic::catch_unwind;
use std::sync::mpsc::channel;

use egret_dnsd::corefile;
use egret_dnsd::faults::{follow, tell_to};
use egret_dnsd::plan::Plan;

#[inline(never)]
fn breaks_in_a_place_with_a_name() {
    panic!("on purpose");
}

fn plan(errors: &str) -> Plan {
    let text = format!(". {{\n errors {errors}\n whoami\n}}\nother.test {{\n errors\n whoami\n}}\n");
    let read = corefile::read(&text, "Corefile", &|_| None, &|_| unreachable!(), 0);
    read.unwrap().0
}

#[test]
fn a_fault_is_told_with_its_place_and_with_the_stack_where_a_block_says_stacktrace() {
    let (sender, told) = channel();
    tell_to(move |fault| sender.send(fault.clone()).unwrap());
    for (errors, has_stack) in [("", false), ("{\n stacktrace\n }", true), ("", false)] {
        follow(&plan(errors));
        assert!(catch_unwind(breaks_in_a_place_with_a_name).is_err());
        let fault = told.recv().unwrap();
        assert!(fault.place.contains("faults.rs:"), "{fault:?}");
        assert_eq!(fault.message, "on purpose");
        let names_it = fault
            .stack
            .as_ref()
            .map(|stack| stack.contains("breaks_in_a_place_with_a_name"));
        assert_eq!(names_it, has_stack.then_some(true), "{errors:?}: {fault:?}");
    }
}
