//! What is counted of queries that are answered together.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::sync::Arc;

use egret_dnsd::metrics::Transport;
use egret_dnsd::resolve::{Moment, Resolver, Step};
use egret_dnsd::server::{Arrival, Table};
use egret_shared::rt::telemetry::Page;
use hickory_proto::rr::RecordType;
use support::{address, query};
use whole::{Dnsd, Upstream};

/// Queries of more series than are added up side by side: of two zones, over UDP and TCP, of both families; with and
/// without an OPT, which makes no other series.
fn queries() -> Vec<(Vec<u8>, Arrival)> {
    let mut queries = Vec::new();
    for name in ["api.example.test", "api.other.test"] {
        for source in ["127.0.0.1:5353", "[::1]:5353"] {
            for transport in Transport::ALL {
                for size in [None, Some(1232), None, None] {
                    let arrival = Arrival {
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

fn at_door(dnsd: &Dnsd) -> (Arc<Resolver>, Arc<Table>) {
    let resolver = Arc::clone(&dnsd.service.resolver);
    let table = Arc::clone(resolver.serving().tables.first_key_value().unwrap().1);
    (resolver, table)
}

/// All that is counted, but for how long it took.
fn counted(dnsd: &Dnsd) -> Vec<String> {
    let mut page = Page::default();
    dnsd.means.counts.write(&mut page);
    let text = page.text();
    let lines = text.lines().map(str::to_owned);
    lines
        .filter(|line| !line.contains("seconds_bucket") && !line.contains("seconds_sum"))
        .map(|line| line.replace(&dnsd.address.to_string(), "here"))
        .collect()
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
async fn what_is_answered_together_is_counted_as_what_is_answered_alone() {
    let both = || {
        ["api.example.test", "api.other.test"]
            .map(|name| address(name, 60, "192.0.2.1"))
            .to_vec()
    };
    let up = Upstream::with(both).await;
    let (together, alone) = (
        filled("counted-together", &up).await,
        filled("counted-alone", &up).await,
    );
    let before = counted(&together);
    assert_eq!(before, counted(&alone));
    let (resolver, table) = at_door(&together);
    let batch = resolver.batch(&table, Moment::now());
    for (octets, arrival) in queries() {
        assert!(
            matches!(batch.take(&octets, arrival), Step::Reply(_)),
            "it is in the cache"
        );
    }
    drop(batch);
    let (resolver, table) = at_door(&alone);
    for (octets, arrival) in queries() {
        let step = resolver.take(&octets, arrival, &table, Moment::now());
        assert!(matches!(step, Step::Reply(_)), "it is in the cache");
    }
    let after = counted(&together);
    assert_eq!(after, counted(&alone));
    let is_total = |line: &&String| line.starts_with("coredns_cache_hits_total");
    assert_ne!(
        before.iter().find(is_total),
        after.iter().find(is_total),
        "{after:#?}"
    );
}
