//! A query that missed the cache and waits: an equal query may complete meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use egret_dnsd::pipeline::Pending;
use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use support::{address, query};
use whole::{Dnsd, Upstream, in_short};

fn missed(dnsd: &Dnsd, name: &str) -> Pending {
    dnsd.missed(&query(name, RecordType::A, None))
}

async fn said(pending: Pending) -> String {
    in_short(&Message::from_vec(&pending.reply().await.unwrap()).unwrap())
}

#[tokio::test]
async fn an_answer_that_arrived_after_the_miss_is_not_queried_again() {
    let up = Upstream::with(|| vec![address("api.example.test", 60, "192.0.2.1")]).await;
    let dnsd = Dnsd::start("landed", &[&up], "");
    let [first, second] = [(); 2].map(|()| missed(&dnsd, "api.example.test"));
    assert_eq!(dnsd.says("api.example.test").await, "NoError 192.0.2.1");
    assert_eq!(said(first).await, "NoError 192.0.2.1");
    // A question for another name ends, too: what is known of this one is still found.
    assert!(dnsd.ask("other.example.test").await.is_some());
    assert_eq!(said(second).await, "NoError 192.0.2.1");
    assert_eq!(up.asked(), 2, "once for each name");
}

#[tokio::test]
async fn after_an_uncacheable_answer_waiters_query_in_turn() {
    let up = Upstream::with(|| vec![address("api.example.test", 60, "192.0.2.1")]).await;
    let dnsd = Dnsd::start("landed-apart", &[&up], "");
    let pending = missed(&dnsd, "api.example.test");
    assert!(dnsd.ask("other.example.test").await.is_some());
    assert_eq!(said(pending).await, "NoError 192.0.2.1");
    assert_eq!(up.asked(), 2);
}
