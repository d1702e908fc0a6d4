//! Records of a name with more addresses than a client may have.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::IpAddr;
use std::time::Duration;

use egret_dnsd::enforcement::client::ClientId;
use egret_dnsd::enforcement::records::{RecordLimits, Records};
use egret_kernel::links::Attachment;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

const NOW: Timestamp = Timestamp::from_millis(10_000);
const LIMITS: RecordLimits = RecordLimits {
    per_client: 100,
    total: 10_000,
    grace: Duration::from_secs(30),
};

fn client_id() -> ClientId {
    ClientId {
        address: [10, 0, 0, 1].into(),
        attachment: Some(Attachment::to(&"a cable")),
    }
}

/// An answer of one name with these addresses.
fn answer(addresses: impl Iterator<Item = IpAddr>) -> Observation {
    let expires = NOW.after(Duration::from_secs(86_400));
    let told = |address| ObservedAddress { address, expires };
    Observation {
        client: client_id().address,
        question: "any.example.test".parse().unwrap(),
        chain: Vec::new(),
        addresses: addresses.map(told).collect(),
    }
}

fn note(records: &mut Records, answer: &Observation) {
    let noted = records.note(answer, client_id().attachment, |_| false, |_, _| false, NOW);
    assert!(noted.new.is_some() || answer.addresses.is_empty());
}

/// Each by itself: it does not stand where it stood in its answer.
fn knows(records: &Records, address: IpAddr) -> bool {
    let alone = answer(std::iter::once(address)).addresses.into_iter();
    let told = records.sequence_of(client_id(), "any.example.test", alone, |_| false);
    told.is_some()
}

/// Whoever has a zone can give addresses that were never given before, thousands in an answer, for as long as it likes.
#[test]
fn a_name_with_ever_new_addresses_stays_within_records_per_client() {
    let mut records = Records::new(LIMITS);
    let address = |number: u32| IpAddr::from((0xc612_0000 + number).to_be_bytes());
    let mut given = 0..;
    for (of_answer, told) in [(40, 40), (40, 80), (40, 100), (1, 100), (300, 300), (2, 100)] {
        let numbers: Vec<u32> = given.by_ref().take(of_answer).collect();
        // As unordered as a server may have them, and one of them twice.
        let numbers = numbers.iter().rev().chain(numbers.first());
        let answer = answer(numbers.map(|number| address(*number)));
        note(&mut records, &answer);
        for told in &answer.addresses {
            assert!(knows(&records, told.address), "{told:?} was told just now");
        }
        assert_eq!(records.len(), told);
    }
    assert_eq!(records.evictions(), 20 + 1 + 100 + 202);
    assert!(
        !knows(&records, address(0)),
        "what was told longest ago goes first"
    );
}

#[test]
fn addresses_of_a_name_are_found_in_any_order_of_observation() {
    let v4 = |last: u8| IpAddr::from([192, 0, 2, last]);
    let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
    let answers = [
        vec![v6(9), v4(7), v4(7), v4(3)],
        vec![v4(5), v6(2), v4(3), v6(9)],
        vec![v4(1), v4(9), v6(1)],
    ];
    let mut records = Records::new(LIMITS);
    for (last, addresses) in answers.iter().enumerate() {
        note(&mut records, &answer(addresses.iter().copied()));
        for address in answers[..=last].iter().flatten() {
            assert!(knows(&records, *address), "{address}");
        }
    }
    assert_eq!(records.len(), 8);
    assert!(!knows(&records, v4(8)) && !knows(&records, v6(7)));
}
