//! The report of a panic. A process has one panic hook, so this test is a process of its own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::panic::{catch_unwind, take_hook};
use std::sync::mpsc::channel;

use egret_dnsd::config::corefile;
use egret_dnsd::config::model::Plan;
use egret_dnsd::telemetry::faults::{follow, set_panic_hook};

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
fn a_panic_is_reported_with_its_location_and_with_stacktrace_its_backtrace() {
    const ROWS: [(&str, bool); 3] = [("", false), ("{\n stacktrace\n }", true), ("", false)];
    let (sender, told) = channel();
    set_panic_hook(move |fault| sender.send(fault.clone()).unwrap());
    let faults = ROWS.map(|(errors, _)| {
        follow(&plan(errors));
        assert!(catch_unwind(breaks_in_a_place_with_a_name).is_err());
        told.recv().unwrap()
    });
    // What is found to be wrong from here on is told by the test.
    drop(take_hook());
    for ((errors, has_stack), fault) in ROWS.into_iter().zip(faults) {
        assert!(fault.location.contains("faults.rs:"), "the location: {fault:?}");
        assert_eq!(fault.message, "on purpose", "the message: {fault:?}");
        let stack = fault.stack.as_ref();
        let names_it = stack.map(|stack| stack.contains("breaks_in_a_place_with_a_name"));
        let expected = has_stack.then_some(true);
        assert_eq!(names_it, expected, "the stack with errors {errors:?}: {fault:?}");
    }
}
