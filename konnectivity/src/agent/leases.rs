//! How many servers there are, by their Leases.

use std::collections::BTreeSet;

use egret_shared::rt::{clock, task};
use tokio::sync::mpsc;

use crate::api_server::{ApiServer, LeasePlace, WatchEvent, read_lease, watch};
use crate::core::Leases;

/// Events of the watch that wait.
const WAITING: usize = 64;

/// Tells how many Leases count, whenever that changes. While the API server cannot be read, nothing ends: who is not seen to renew may renew
/// all the same.
pub(super) async fn count(api_server: ApiServer, place: LeasePlace, tell: impl Fn(usize)) {
    let (sender, mut events) = mpsc::channel(WAITING);
    let watching = watch(api_server, place.watched(), sender, |event| event);
    let _watch = tokio_util::task::AbortOnDropHandle::new(task::spawn("leases", watching));
    let mut leases = Leases::default();
    let mut listing = None;
    let (mut is_read, mut has_failed) = (false, false);
    let mut told = 0;
    loop {
        let now = clock::now();
        if is_read {
            // Where nobody renews, nobody can say how many there are: the number of before stays.
            let live = leases.live(now);
            if live > 0 && live != told {
                tracing::info!(servers = live, "counted the leases of servers");
                told = live;
                tell(live);
            }
        }
        let next_end = leases.next_end(now).filter(|_| is_read);
        let end = async {
            match next_end {
                Some(end) => tokio::time::sleep(end.since(now)).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = events.recv() => match event {
                Some(event) => event,
                None => return,
            },
            () = end => continue,
        };
        match event {
            WatchEvent::Listing => listing = Some(BTreeSet::new()),
            WatchEvent::Applied(object) => {
                let name = object.metadata.name.unwrap_or_default();
                let version = object.metadata.resource_version.unwrap_or_default();
                if let Some(lease) = read_lease(&object.data["spec"], &version) {
                    leases.apply(name.clone(), lease, clock::now());
                } else {
                    leases.delete(&name);
                }
                if let Some(listing) = &mut listing {
                    listing.insert(name);
                }
            }
            WatchEvent::Deleted(object) => leases.delete(&object.metadata.name.unwrap_or_default()),
            WatchEvent::Listed => {
                if let Some(listed) = listing.take() {
                    leases.retain(|name| listed.contains(name));
                }
                (is_read, has_failed) = (true, false);
            }
            WatchEvent::Broke(error) => {
                is_read = false;
                if !has_failed {
                    tracing::warn!(error, "the leases of servers cannot be counted");
                }
                has_failed = true;
            }
            WatchEvent::NotServed => is_read = false,
        }
    }
}
