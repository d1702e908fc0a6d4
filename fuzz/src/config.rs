//! The reader of dnsd's YAML, from text to a configuration and back.

use egret_dnsd::config::RawConfig;
use egret_dnsd::config::convert::to_yaml;
use egret_dnsd::config::model::Plan;

/// Reading ends; what is wrong is said in a line; what is accepted means the same when it is written again.
pub fn check(octets: &[u8]) {
    let Ok(text) = std::str::from_utf8(octets) else {
        return;
    };
    let written: RawConfig = match serde_saphyr::from_str(text) {
        Ok(written) => written,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "nothing is said");
            return;
        }
    };
    match written.validate() {
        Ok(config) if config.plan.blocks.is_empty() => {}
        Ok(config) => means_the_same(config.plan),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.is_empty() && !line.contains(char::is_control), "{line:?}");
        }
    }
}

fn means_the_same(plan: Plan) {
    let yaml = to_yaml(&plan).expect("a plan can be written");
    let written: RawConfig = match serde_saphyr::from_str(&yaml) {
        Ok(written) => written,
        Err(error) => panic!("{error}\n{yaml}"),
    };
    let config = written
        .validate()
        .unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    // Where something was written is not what it means, and is not in it.
    let [before, after] =
        [&plan, &config.plan].map(|plan| serde_json::to_value(plan).expect("a plan is JSON"));
    assert_eq!(after, before, "{yaml}");
}
