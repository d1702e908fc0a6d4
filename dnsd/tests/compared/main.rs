//! Every option of a Corefile, compared with CoreDNS: a row has two configurations and steps. The results must differ
//! between the two (an option that is parsed and ignored is a failure), and must be those of CoreDNS, except for the
//! differences in `differences.rs`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes, by their clock")]

mod rows;
mod differences;
mod run;
mod server;
mod transcript;
#[path = "../support/mod.rs"]
mod support;
#[path = "../forwarding/world.rs"]
#[allow(dead_code, unused_imports, reason = "each test uses a part of it")]
mod world;

use std::path::Path;
use std::sync::Arc;

use egret_dnsd::config::corefile;
use egret_integration::Peer;
use tokio::sync::Semaphore;

use differences::DIFFERENCES;
use rows::Row;
use world::join_all;

/// Rows that run at the same time.
const AT_ONCE: usize = 12;

#[test]
fn every_accepted_option_has_a_row() {
    let rows: Vec<&str> = rows::all().map(|row| row.option).collect();
    let unobservable = differences::UNOBSERVABLE.iter().map(|(option, _)| *option);
    let covered: Vec<&str> = rows.iter().copied().chain(unobservable).collect();
    for (directive, options) in corefile::ACCEPTED {
        assert!(covered.contains(directive), "no row is about {directive}");
        for option in *options {
            let option = format!("{directive} {option}");
            assert!(covered.contains(&option.as_str()), "no row is about {option}");
        }
    }
}

/// The function of `make fuzz`.
#[path = "../../../fuzz/src/corefile.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod round_trip;

#[test]
fn each_configuration_of_a_row_means_the_same_as_yaml() {
    let places = ["THERE", "HERE", "UP1", "UP2", "UP3", "PORT1", "FOLDER"].map(str::to_owned);
    let values = [
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.3:53",
        "192.0.2.4:53",
        "192.0.2.5:53",
        "53",
        "/folder",
    ];
    let places: Vec<(String, String)> = places.into_iter().zip(values.map(str::to_owned)).collect();
    for (row, body) in rows::all().flat_map(|row| [(row, row.plain), (row, row.with)]) {
        let text = run::filled(&run::corefile(body), &places);
        let needs_files = text.contains("import /folder");
        assert!(
            round_trip::is_taken(&text) || needs_files,
            "{}: {text}",
            row.name()
        );
        round_trip::check(text.as_bytes());
    }
}

#[test]
fn every_difference_belongs_to_a_row() {
    for difference in DIFFERENCES {
        let is_known = rows::all().any(|row| row.name() == difference.row);
        assert!(is_known, "there is no row {:?}", difference.row);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_option_does_what_it_does_in_coredns() {
    let coredns = tokio::task::spawn_blocking(|| Peer::COREDNS.build())
        .await
        .unwrap();
    let coredns = coredns.unwrap_or_else(|error| panic!("{error}"));
    let only = std::env::var("EGRET_ONLY").unwrap_or_default();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let judged = rows::all()
        .enumerate()
        .filter(|(_, row)| row.name().contains(&only))
        .map(|(at, row)| {
            let (permits, coredns) = (Arc::clone(&permits), coredns.clone());
            async move {
                let _permit = permits.acquire_owned().await.unwrap();
                judge(at, row, coredns.as_deref()).await
            }
        });
    let wrong: Vec<String> = join_all(judged.collect()).await.into_iter().flatten().collect();
    assert!(
        wrong.is_empty(),
        "{} rows:\n\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

/// What is wrong with a row.
async fn judge(at: usize, row: &'static Row, coredns: Option<&Path>) -> Option<String> {
    let dnsd = Path::new(env!("CARGO_BIN_EXE_dnsd"));
    let ours = run::both(server::Which::Dnsd, dnsd, at, row).await;
    if ours[0] == ours[1] {
        return Some(format!("{}: both configurations show\n{}", row.name(), ours[0]));
    }
    let theirs = run::both(server::Which::Coredns, coredns?, at, row).await;
    let difference = DIFFERENCES.iter().find(|difference| difference.row == row.name());
    match (ours == theirs, difference) {
        (true, None) => None,
        (true, Some(listed)) => Some(format!(
            "{}: as CoreDNS has it, but listed as different: {}",
            row.name(),
            listed.reason
        )),
        (false, Some(_)) => None,
        (false, None) => Some(unlike(row, &ours, &theirs)),
    }
}

fn unlike(row: &Row, ours: &[String; 2], theirs: &[String; 2]) -> String {
    let sides = ours.iter().zip(theirs).zip([row.plain, row.with]);
    let different = sides.filter(|((ours, theirs), _)| ours != theirs);
    let told =
        different.map(|((ours, theirs), body)| format!("{body}\n-- dnsd\n{ours}\n-- CoreDNS\n{theirs}"));
    format!("{}:\n{}", row.name(), told.collect::<Vec<_>>().join("\n"))
}
