//! The reader of Corefiles, from text to a plan and back.

use std::io;
use std::path::Path;

use egret_dnsd::config::RawConfig;
use egret_dnsd::config::convert::to_yaml;
use egret_dnsd::config::corefile::{expand, read};
use egret_dnsd::config::model::Plan;

/// Reading ends; what is wrong is a line that says where and what would be accepted; what is accepted means the same
/// with everything in its place, and as YAML.
pub fn check(octets: &[u8]) {
    let Ok(text) = std::str::from_utf8(octets) else {
        return;
    };
    match read(text, "Corefile", &env, &load, 53) {
        Ok((plan, _)) => means_the_same(text, plan),
        Err(errors) => {
            assert!(!errors.is_empty(), "nothing is said");
            for error in errors {
                let line = error.to_string();
                assert!(!line.contains(char::is_control), "{line:?}");
                assert!(!error.wrong.is_empty() && !error.accepted.is_empty(), "{line}");
                assert!(error.position.line > 0 && error.position.column > 0, "{line}");
            }
        }
    }
}

/// Whether a text is accepted.
pub fn is_taken(text: &str) -> bool {
    read(text, "Corefile", &env, &load, 53).is_ok()
}

fn means_the_same(text: &str, plan: Plan) {
    let plan = without_places(plan);
    let yaml = to_yaml(&plan).expect("a plan can be written");
    let written: RawConfig = match serde_saphyr::from_str(&yaml) {
        Ok(written) => written,
        Err(error) => panic!("{error}\n{yaml}"),
    };
    let config = written
        .validate()
        .unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    assert_eq!(without_places(config.plan), plan, "{yaml}");
    // A value of a variable may look like a variable, and is not one.
    if text.contains("{$") || text.contains("{%") {
        return;
    }
    let expanded = expand(text, "Corefile", &env, &load).expect("it was read before");
    match read(&expanded, "Corefile", &env, &load, 53) {
        Ok((again, _)) => assert_eq!(without_places(again), plan, "{expanded}"),
        Err(errors) => panic!("{errors:?}\n{expanded}"),
    }
}

/// Where something was written is not what it means.
fn without_places(mut plan: Plan) -> Plan {
    for block in &mut plan.blocks {
        block.origin.clear();
        block.tls.iter_mut().for_each(|tls| tls.origin.clear());
        for forward in &mut block.forward {
            forward.origin.clear();
        }
        for template in &mut block.template {
            template.origin.clear();
        }
    }
    plan
}

fn env(name: &str) -> Option<String> {
    match name {
        "UPSTREAM" => Some("192.0.2.53".to_owned()),
        "AGAIN" => Some("{$AGAIN}{$AGAIN}".to_owned()),
        _other => None,
    }
}

fn load(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("again") => Ok("import again\nimport again".to_owned()),
        Some("more") => Ok("cache 30\nerrors".to_owned()),
        Some(pattern) if pattern.contains('*') => Ok("more".to_owned()),
        Some(_) | None => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}
