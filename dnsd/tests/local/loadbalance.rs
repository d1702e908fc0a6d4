//! `loadbalance`: orders, as often as they should be, and nothing but orders.

use std::collections::HashMap;

use egret_dnsd::config::model::{LoadBalance, WeightFile};
use egret_dnsd::plugins::loadbalance::{Balancer, Weights};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::MX;
use hickory_proto::rr::{RData, Record, RecordType};
use proptest::prelude::*;

use crate::support::{address, alias, name, query, response, with_code};
use crate::{SIZE, asked, read, texts};

fn plan() -> LoadBalance {
    LoadBalance {
        weights: None,
        prefer: Vec::new(),
    }
}

fn weighted() -> LoadBalance {
    let file = WeightFile {
        file: "/w".into(),
        reload: std::time::Duration::ZERO,
    };
    LoadBalance {
        weights: Some(file),
        ..plan()
    }
}

/// Numbers below a bound, none more likely than another.
fn random(seed: &mut u64) -> impl FnMut(usize) -> usize {
    move |bound| {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*seed >> 33).unwrap() % bound
    }
}

fn addresses(count: u8) -> Vec<Record> {
    (1..=count)
        .map(|last| address("a.test", 60, &format!("192.0.2.{last}")))
        .collect()
}

fn applied(plan: &LoadBalance, weights: &str, message: &Message, seed: &mut u64) -> Message {
    let balancer = Balancer::new(plan, Weights::parse(weights).unwrap());
    let octets = message.to_vec().unwrap();
    let query = asked("a.test", message.queries[0].query_type());
    read(&balancer.apply(octets, &query, SIZE, random(seed)).unwrap())
}

fn firsts(plan: &LoadBalance, weights: &str, records: Vec<Record>) -> HashMap<String, usize> {
    let message = response(&query("a.test", RecordType::A, None), records);
    let mut counts = HashMap::new();
    let mut seed = 7;
    for _ in 0..6_000 {
        let answers = applied(plan, weights, &message, &mut seed).answers;
        *counts.entry(answers[0].data.to_string()).or_default() += 1;
    }
    counts
}

#[test]
fn each_address_goes_first_as_often_as_any_other() {
    let counts = firsts(&plan(), "", addresses(3));
    assert!(
        counts.len() == 3 && counts.values().all(|count| (1_800..2_200).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn an_address_goes_first_as_often_as_its_weight_says() {
    let weights = "# weights\na.test\n192.0.2.1 3\n192.0.2.3 2\n\nb.test.\n192.0.2.2 9\n";
    let counts = firsts(&weighted(), weights, addresses(3));
    for (address, share) in [("192.0.2.1", 3), ("192.0.2.2", 1), ("192.0.2.3", 2)] {
        let count = counts[address];
        assert!(
            (share * 850..share * 1_150).contains(&count),
            "{address}: {counts:?}"
        );
    }
    let equal = firsts(&weighted(), "", addresses(3));
    assert!(
        equal.values().all(|count| (1_800..2_200).contains(count)),
        "{equal:?}"
    );
}

#[test]
fn preferred_networks_go_first_in_their_order() {
    let networks = ["192.0.2.4/32", "192.0.2.2/31"].map(|network| network.parse().unwrap());
    let message = response(&query("a.test", RecordType::A, None), addresses(4));
    for weights in [plan().weights, weighted().weights] {
        let plan = LoadBalance {
            prefer: networks.to_vec(),
            weights,
        };
        let found = applied(&plan, "", &message, &mut 3).answers;
        let found: Vec<String> = found.iter().map(|record| record.data.to_string()).collect();
        assert_eq!(
            (found[0].as_str(), found[3].as_str()),
            ("192.0.2.4", "192.0.2.1"),
            "{found:?}"
        );
    }
}

#[test]
fn aliases_go_before_addresses_and_mail_servers_behind() {
    let mail =
        |preference, host| Record::from_rdata(name("a.test"), 60, RData::MX(MX::new(preference, name(host))));
    let records = vec![
        mail(1, "m1.a.test"),
        address("b.test", 60, "192.0.2.1"),
        alias("a.test", 60, "b.test"),
        address("b.test", 60, "192.0.2.2"),
    ];
    let message = response(&query("a.test", RecordType::A, None), records);
    let found = applied(&plan(), "", &message, &mut 1);
    let types: Vec<RecordType> = found.answers.iter().map(Record::record_type).collect();
    assert_eq!(
        types,
        [RecordType::CNAME, RecordType::A, RecordType::A, RecordType::MX]
    );
    assert!(texts(&found.answers).contains(&"a.test. 60 IN MX 1 m1.a.test.".to_owned()));
}

#[test]
fn failures_transfers_and_single_records_stay_as_they_are() {
    let message = |kind, records| response(&query("a.test", kind, None), records);
    for message in [
        with_code(message(RecordType::A, addresses(9)), ResponseCode::ServFail),
        message(RecordType::AXFR, addresses(9)),
        message(RecordType::A, addresses(1)),
    ] {
        let found = applied(&plan(), "", &message, &mut 1);
        assert_eq!(texts(&found.answers), texts(&message.answers));
    }
    let other = message(RecordType::TXT, addresses(9));
    assert_eq!(
        texts(&applied(&weighted(), "", &other, &mut 1).answers),
        texts(&other.answers)
    );
}

#[test]
fn an_invalid_weight_file_is_refused_with_its_line() {
    for (text, expected) in [
        ("192.0.2.1 3", "line 1: an address stands below its name"),
        ("192.0.2.1", "line 1: \"192.0.2.1\" is no name"),
        ("a.test\n\n192.0.2.1 0", "line 3: \"0\" is no weight"),
        ("a.test\n192.0.2.1 256", "line 2: \"256\" is no weight"),
        ("a.test\nb 3", "line 2: \"b\" is no address"),
        ("a.test\n192.0.2.1 3 4", "line 2: \"192.0.2.1 3 4\" is neither"),
    ] {
        let error = Weights::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

proptest! {
    #[test]
    fn records_are_neither_lost_nor_changed(kinds in proptest::collection::vec(0..4_u8, 0..12), mut seed in any::<u64>()) {
        let records = kinds.iter().enumerate().map(|(number, kind)| {
            let owner = if kind % 2 == 0 { "a.test".to_owned() } else { format!("n{number}.a.test") };
            match kind {
                0 | 1 => address(&owner, 60, &format!("192.0.2.{number}")),
                2 => address(&owner, 60, &format!("2001:db8::{number}")),
                _other => alias(&owner, 60, &format!("t{number}.a.test")),
            }
        });
        let message = response(&query("a.test", RecordType::A, None), records.collect());
        let mut found = texts(&applied(&plan(), "", &message, &mut seed).answers);
        let mut expected = texts(&message.answers);
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}
