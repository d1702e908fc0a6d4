//! The readers of probes and records.

use egret_cli::verdict::input::{Probe, Record, parse_lines};

/// Reading ends, with probes that can be asked, or with a line that says what is wrong in which line.
pub fn check(octets: &[u8]) {
    match parse_lines("f", octets, Probe::parse) {
        Ok(probes) => {
            for probe in probes {
                let said = format!("{} {} {}", probe.from, probe.to, probe.protocol);
                assert!(
                    !said.contains(char::is_control) || has_control(octets),
                    "{said:?}"
                );
                assert!(probe.moment() >= egret_shared::time::Timestamp::from_millis(0));
            }
        }
        Err(error) => names_its_line(&error.to_string()),
    }
    match parse_lines("f", octets, Record::parse) {
        Ok(records) => assert!(
            records
                .iter()
                .all(|record| record.pod.name().len() <= octets.len())
        ),
        Err(error) => names_its_line(&error.to_string()),
    }
}

/// A name may hold what JSON escapes.
fn has_control(octets: &[u8]) -> bool {
    octets.contains(&b'\\') || octets.contains(&0x7f) || octets.contains(&0xc2)
}

fn names_its_line(error: &str) {
    let place = error.strip_prefix("f:").and_then(|rest| rest.split_once(": "));
    let line = place.and_then(|(line, _)| line.parse::<usize>().ok());
    assert!(line.is_some_and(|line| line > 0), "{error:?}");
}
