//! Leases of servers count by when they were seen to change.

use std::time::Duration;

use egret_konnectivity::core::{Lease, Leases};
use egret_shared::time::Timestamp;

fn lease(renewed: &str) -> Lease {
    Lease {
        renewed: renewed.to_owned(),
        duration: Duration::from_secs(30),
        resource_version: format!("of {renewed}"),
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

#[test]
fn a_lease_counts_for_as_long_as_it_says_after_it_was_seen_to_change() {
    let mut leases = Leases::default();
    for (name, renewed) in [("a", "1970-01-01T00:00:00Z"), ("b", "2999-01-01T00:00:00Z")] {
        leases.apply(name.to_owned(), lease(renewed), at(0));
    }
    assert_eq!((leases.live(at(29)), leases.next_end(at(29))), (2, Some(at(30))));
    assert_eq!((leases.live(at(30)), leases.next_end(at(30))), (0, None));
    leases.apply("a".to_owned(), lease("1970-01-01T00:00:15Z"), at(40));
    // That it was listed again says nothing.
    leases.apply("b".to_owned(), lease("2999-01-01T00:00:00Z"), at(40));
    assert_eq!(leases.live(at(69)), 1);
    assert_eq!(
        leases.expired(at(69)),
        [("b".to_owned(), "of 2999-01-01T00:00:00Z".to_owned())]
    );
    leases.retain(|name| name != "a");
    assert_eq!(leases.live(at(41)), 0);
    leases.delete("b");
    assert_eq!(leases.expired(at(99)), []);
}
