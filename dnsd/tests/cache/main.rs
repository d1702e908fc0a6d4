//! The cache: cacheability, lifetimes and returned answers, by tables of the RFCs and of CoreDNS' options, and against
//! a slow and obvious model under random histories.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod cacheability;
mod answers;
mod eviction;
mod model;

use std::time::Duration;

use egret_dnsd::cache::{Cacheable, Found, Hit, Key, KeyView, Kind, Value};
use egret_dnsd::config::model::{CacheRules, Capacity, Disabled, Refresh, ServeStale, Zone};
use egret_dnsd::dns::message::{Query, WireName};
use egret_shared::time::Timestamp;
use hickory_proto::rr::RecordType;
use support::{NOW, query};

const LARGE: usize = 64 << 20;

fn rules() -> CacheRules {
    let capacity = |max_ttl| Capacity {
        entries: 9984,
        max_ttl: secs(max_ttl),
        min_ttl: secs(5),
    };
    CacheRules {
        zones: Vec::new(),
        success: capacity(3600),
        denial: capacity(1800),
        prefetch: None,
        serve_stale: None,
        servfail: secs(5),
        disabled: Disabled::default(),
        keep_ttl: false,
    }
}

fn stale(refresh: Refresh) -> ServeStale {
    ServeStale {
        up_to: secs(3600),
        refresh,
        response_ttl: secs(0),
        failure_recheck: secs(0),
        prefers_positive: false,
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Timestamp {
    NOW.after(secs(seconds))
}

/// A value with a number to know it by.
#[derive(Clone, Debug)]
struct Numbered(usize, Key);

impl Value for Numbered {
    fn key(&self) -> KeyView<'_> {
        self.1.view()
    }

    fn weight(&self) -> usize {
        100
    }
}

fn numbered(number: usize) -> impl Fn(&Key) -> Option<Numbered> {
    move |key| Some(Numbered(number, *key))
}

fn key(text: &str, kind: RecordType) -> Key {
    Key::of(&Query::read(&query(text, kind, None)).unwrap()).unwrap()
}

const fn kept(kind: Kind, seconds: u64) -> Cacheable {
    Cacheable {
        kind,
        lifetime: secs(seconds),
    }
}

fn zone(text: &str) -> Zone {
    Zone::new(WireName::parse(text).unwrap())
}

fn number(found: &Found<Numbered>) -> Option<usize> {
    match found {
        Found::Fresh(Hit { value, .. })
        | Found::FreshAndDue(Hit { value, .. })
        | Found::Stale(Hit { value, .. }, _) => Some(value.0),
        Found::Miss => None,
    }
}
