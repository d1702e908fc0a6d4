//! Counters of queries that are answered in a batch.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;

use egret_dnsd::net::Transport;
use egret_dnsd::pipeline::{Disposition, ReceivedAt, Resolver};
use egret_dnsd::zones::{PacketInfo, ZoneTable};
use egret_shared::rt::telemetry::MetricsPage;
use hickory_proto::rr::RecordType;
use support::{address, query};
use whole::{Dnsd, Upstream};

/// Queries of more series than are added up side by side: of two zones, over UDP and TCP, of both families; with and
/// without an OPT, which makes no other series.
fn queries() -> Vec<(Vec<u8>, PacketInfo)> {
    let mut queries = Vec::new();
    for name in ["api.example.test", "api.other.test"] {
        for source in ["127.0.0.1:5353", "[::1]:5353"] {
            for transport in Transport::ALL {
                for size in [None, Some(1232), None, None] {
                    let arrival = PacketInfo {
                        source: source.parse().unwrap(),
                        asked: None,
                        interface: None,
                        transport,
                    };
                    queries.push((query(name, RecordType::A, size), arrival));
                }
            }
        }
    }
    queries
}

fn at_door(dnsd: &Dnsd) -> (Arc<Resolver>, Arc<ZoneTable>) {
    let resolver = Arc::clone(&dnsd.service.resolver);
    let table = Arc::clone(resolver.serving().tables.first_key_value().unwrap().1);
    (resolver, table)
}

/// All that is counted, but for how long it took.
fn counted(dnsd: &Dnsd) -> BTreeMap<String, f64> {
    let mut page = MetricsPage::default();
    dnsd.telemetry.counts.write(&mut page);
    let lines = page.text();
    let numbers = lines.lines().filter(|line| !line.starts_with('#'));
    numbers
        .filter(|line| !line.contains("seconds_bucket") && !line.contains("seconds_sum"))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, number)| (series.to_owned(), number.parse().unwrap()))
        .collect()
}

/// What came since.
fn added(dnsd: &Dnsd, before: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let now = counted(dnsd).into_iter();
    let since = now.map(|(series, number)| {
        let before = before.get(&series).copied().unwrap_or_default();
        (series, number - before)
    });
    since.filter(|(_, more)| *more != 0.0).collect()
}

async fn filled(name: &str, upstream: &Upstream) -> Dnsd {
    let corefile = ["example.test", "."].map(|zone| {
        format!(
            "{zone} {{\n bind 127.0.0.1\n prometheus 127.0.0.1:9253\n cache 60\n forward . {}\n}}\n",
            upstream.address
        )
    });
    let dnsd = Dnsd::with(name, &corefile.concat());
    for name in ["api.example.test", "api.other.test"] {
        dnsd.ask(name).await.unwrap();
    }
    dnsd
}

#[tokio::test]
async fn a_batch_is_counted_as_single_queries_are() {
    let both = || {
        ["api.example.test", "api.other.test"]
            .map(|name| address(name, 60, "192.0.2.1"))
            .to_vec()
    };
    let up = Upstream::with(both).await;
    let dnsd = filled("counted", &up).await;
    let (resolver, table) = at_door(&dnsd);
    let before = counted(&dnsd);
    let batch = resolver.batch(&table, ReceivedAt::now());
    for (octets, arrival) in queries() {
        let step = batch.answer(&octets, arrival);
        assert!(matches!(step, Disposition::Reply(_)), "it is in the cache");
    }
    drop(batch);
    let together = added(&dnsd, &before);
    let before = counted(&dnsd);
    for (octets, arrival) in queries() {
        let step = resolver.answer(&octets, arrival, &table, ReceivedAt::now());
        assert!(matches!(step, Disposition::Reply(_)), "it is in the cache");
    }
    assert_eq!(together, added(&dnsd, &before));
    let asked = f64::from(u16::try_from(queries().len()).unwrap());
    for each in [
        "coredns_dns_requests_total",
        "coredns_dns_responses_total",
        "coredns_dns_request_size_bytes_count",
        "coredns_dns_response_size_bytes_count",
        "coredns_dns_request_duration_seconds_count",
        "coredns_cache_hits_total",
        "coredns_cache_requests_total",
    ] {
        let of_it = together.iter().filter(|(series, _)| series.starts_with(each));
        let sum: f64 = of_it.map(|(_, more)| more).sum();
        assert!((sum - asked).abs() < 0.5, "{each}: {together:#?}");
    }
}
