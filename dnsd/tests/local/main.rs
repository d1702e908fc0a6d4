//! What a block answers and changes itself: by tables of CoreDNS' options, each answer read by hickory-proto too.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod records;
mod hosts;
mod template;
mod template_refused;
mod rewrite;
mod rewrite_edns;
mod dns64;
mod loadbalance;
mod whoami;

use egret_dnsd::config::model::{Expression, Zone};
use egret_dnsd::dns::message::{Query, WireName};
use egret_dnsd::plugins::{Outcome, QueryEndpoints};
use hickory_proto::op::Message;
use hickory_proto::rr::{Record, RecordType};

/// What tests say as the size of datagrams.
const SIZE: u16 = 1232;

fn asked(name: &str, kind: RecordType) -> Query<'static> {
    Query::read(&support::query(name, kind, None)).unwrap().owned()
}

fn endpoints() -> QueryEndpoints {
    QueryEndpoints {
        client: "10.0.0.7:40000".parse().unwrap(),
        server: "169.254.20.10:53".parse().unwrap(),
        over_tcp: false,
    }
}

fn zone(text: &str) -> Zone {
    Zone::new(WireName::parse(text).unwrap())
}

fn zones(texts: &[&str]) -> Vec<Zone> {
    texts.iter().map(|text| zone(text)).collect()
}

fn expression(text: &str) -> Expression {
    Expression::new(text).unwrap()
}

/// As hickory reads it; it must be ours to read as well.
fn read(octets: &[u8]) -> Message {
    let ours = egret_dnsd::dns::message::Message::read(octets).unwrap();
    assert!(ours.is_response());
    assert!(ours.records().all(|record| record.is_ok()));
    Message::from_vec(octets).unwrap()
}

fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(ToString::to_string).collect()
}

/// The answer section, or what else becomes of it.
fn answers(outcome: &Outcome) -> Result<Vec<String>, &'static str> {
    match outcome {
        Outcome::Answer(octets) | Outcome::Follow(octets, _) => Ok(texts(&read(octets).answers)),
        Outcome::Fail => Err("SERVFAIL"),
        Outcome::Next => Err("next"),
    }
}
