//! A plan without default values.

use serde::Serialize;
use serde_json::{Value, json};

use crate::config::model::{
    Block, CacheRules, Dns64, ErrorLog, Forward, Health, Hosts, LoadBalance, Plan, Prefetch, QueryLog,
    Reload, ServeStale,
};

/// The fields that differ from the defaults.
pub(crate) fn plan(plan: &Plan) -> Value {
    let empty = json!({ "reload": null, "health": [], "prometheus": [] });
    prune(value(plan), &empty)
}

/// The fields of `found` that differ from `default`.
fn prune(found: Value, default: &Value) -> Value {
    match found {
        Value::Object(fields) => {
            let differs = |(name, value): &(String, Value)| default.get(name) != Some(value);
            let inner = |(name, value): (String, Value)| {
                let value = prune_field(&name, value, default.get(&name).unwrap_or(&Value::Null));
                (name, value)
            };
            Value::Object(fields.into_iter().filter(differs).map(inner).collect())
        }
        other => other,
    }
}

fn prune_field(name: &str, found: Value, default: &Value) -> Value {
    let default = if default.is_object() {
        default.clone()
    } else {
        default_of(name)
    };
    match found {
        Value::Array(list) => list.into_iter().map(|one| prune(one, &default)).collect(),
        one => prune(one, &default),
    }
}

/// The default of an object with this name, or of each element of a list with it.
fn default_of(name: &str) -> Value {
    match name {
        "servers" => value(&Block::default()),
        "errors" => value(&ErrorLog::default()),
        "consolidate" => json!({ "level": "error", "showFirst": false }),
        "log" => value(&QueryLog::default()),
        "bind" => json!({ "except": [] }),
        "tls" => json!({ "authorities": null, "clientAuth": "nocert" }),
        "dns64" => value(&Dns64::default()),
        "loadbalance" => value(&LoadBalance::default()),
        "cache" => value(&CacheRules::default()),
        "prefetch" => value(&Prefetch::default()),
        "serveStale" => value(&ServeStale::default()),
        "rewrite" => json!({ "goesOn": false }),
        "template" => json!({
            "class": "IN", "zones": [], "match": [], "answer": [], "additional": [], "authority": [],
            "rcode": "NOERROR", "extendedError": null, "fallthrough": false,
        }),
        "hosts" => value(&Hosts::default()),
        "forward" => value(&Forward::default()),
        "reload" => value(&Reload::default()),
        "health" => value(&Health::default()),
        _other => Value::Null,
    }
}

fn value<T: Serialize>(of: &T) -> Value {
    serde_json::to_value(of).expect("a plan has text for keys, and no numbers that JSON lacks")
}
