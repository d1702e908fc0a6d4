//! Which replica is the leader, by a Lease (coordination.k8s.io/v1) as client-go's leader election has it.
//!
//! A holder renews every [`RENEW_EVERY`]. It counts as the leader for [`RENEW_DEADLINE`] from when it *sent* the last
//! renewal that succeeded. Another takes the lease when it has not seen it change for [`LEASE`], by its own clock:
//! clocks of machines are not compared. A request that was sent at the last moment ends before that, so there are
//! never two that write.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{REQUEST_TIMEOUT, RequestError, metrics, namespace, within_limit};

/// The name of the Lease, in the namespace of the controller.
const NAME: &str = "egret-controller";
/// How long a holder that says nothing keeps it.
const LEASE: Duration = Duration::from_secs(12);
/// How long a holder may write after the last renewal. With a request that takes as long as it may, this is less than `LEASE`.
const RENEW_DEADLINE: Duration = Duration::from_secs(8);
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// How often those who wait look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const _: () = assert!(RENEW_DEADLINE.as_secs() + REQUEST_TIMEOUT.as_secs() < LEASE.as_secs());

/// Whether this replica may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leadership {
    /// Another is the leader, if any is.
    Waiting {
        /// Its identity.
        holder: Option<String>,
    },
    /// This one is.
    Leading {
        /// It may write until then.
        until: Timestamp,
    },
}

impl Leadership {
    pub(super) fn may_write(&self, now: Timestamp) -> bool {
        matches!(self, Self::Leading { until } if now < *until)
    }

    /// The same, without a lease that is over.
    pub(super) fn at(self, now: Timestamp) -> Self {
        match self {
            Self::Leading { until } if until <= now => Self::Waiting { holder: None },
            Self::Leading { .. } | Self::Waiting { .. } => self,
        }
    }
}

impl fmt::Display for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leading { .. } => f.write_str("this replica is the leader"),
            Self::Waiting { holder: Some(holder) } => write!(f, "{holder} is the leader"),
            Self::Waiting { holder: None } => f.write_str("no replica is the leader"),
        }
    }
}

/// What of a Lease is decided by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    holder: String,
    renewed: String,
    transitions: i64,
    duration: Duration,
}

impl Record {
    fn of(spec: &Json) -> Self {
        let text = |field: &str| {
            spec.get(field)
                .and_then(Json::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let number = |field: &str| spec.get(field).and_then(Json::as_i64);
        let seconds = number("leaseDurationSeconds").and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            holder: text("holderIdentity"),
            renewed: text("renewTime"),
            transitions: number("leaseTransitions").unwrap_or(0),
            duration: seconds.map_or(LEASE, Duration::from_secs),
        }
    }
}

/// The last record that differed from the one before, and when it was first seen.
#[derive(Debug, Default)]
struct Observed(Option<(Record, Timestamp)>);

impl Observed {
    /// Whether `me` may take the lease, or has it.
    fn may_take(&mut self, record: &Record, me: &str, now: Timestamp) -> bool {
        let since = match &self.0 {
            Some((seen, since)) if seen == record => *since,
            Some(_) | None => {
                self.0 = Some((record.clone(), now));
                now
            }
        };
        record.holder.is_empty() || record.holder == me || now.since(since) >= record.duration
    }
}

/// Takes the lease when it is free, and renews it.
pub(super) struct Elector {
    api: Api<DynamicObject>,
    resource: ApiResource,
    namespace: String,
    identity: String,
    observed: Observed,
    /// The Lease as the API server has it, while it is ours.
    held: Option<DynamicObject>,
    leadership: watch::Sender<Leadership>,
}

impl Elector {
    pub(super) fn new(client: Client) -> Self {
        let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
        let resource = ApiResource::from_gvk_with_plural(&kind, "leases");
        let namespace = namespace(&client);
        let host = nix::sys::utsname::uname().map(|system| system.nodename().to_string_lossy().into_owned());
        // A pod that starts again has the same name; it is another holder.
        let identity = format!(
            "{}_{:x}",
            host.unwrap_or_default(),
            clock::since_epoch().as_nanos()
        );
        Self {
            api: Api::namespaced_with(client, &namespace, &resource),
            resource,
            namespace,
            identity,
            observed: Observed::default(),
            held: None,
            leadership: watch::Sender::new(Leadership::Waiting { holder: None }),
        }
    }

    pub(super) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Runs until `stop`; then gives the lease back, so that another takes it at once.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            if let Err(error) = self.turn().await {
                metrics::lease_failed();
                self.held = None;
                tracing::debug!(reason = error.reason(), "the lease cannot be had");
            }
            let now = clock::now();
            if matches!(&*self.leadership.borrow(), Leadership::Leading { until } if *until <= now) {
                self.wait_for(None);
            }
            let pause = if self.held.is_some() {
                RENEW_EVERY
            } else {
                LOOK_EVERY
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => break,
            }
        }
        self.wait_for(None);
        self.release().await;
    }

    async fn turn(&mut self) -> Result<(), RequestError> {
        let lease = match self.held.take() {
            Some(lease) => Some(lease),
            None => within_limit(self.api.get_opt(NAME)).await?,
        };
        let sent = clock::now();
        let Some(lease) = lease else {
            let lease = self.lease(None, &self.identity, LEASE, 0);
            let created = within_limit(self.api.create(&PostParams::default(), &lease)).await?;
            self.hold(created, sent);
            return Ok(());
        };
        let record = Record::of(&lease.data["spec"]);
        if !self.observed.may_take(&record, &self.identity, sent) {
            self.wait_for(Some(record.holder));
            return Ok(());
        }
        let transitions = record.transitions + i64::from(record.holder != self.identity);
        let renewed = self.lease(Some(&lease), &self.identity, LEASE, transitions);
        let held = within_limit(self.api.replace(NAME, &PostParams::default(), &renewed)).await?;
        self.hold(held, sent);
        Ok(())
    }

    fn hold(&mut self, lease: DynamicObject, sent: Timestamp) {
        self.held = Some(lease);
        let until = sent.after(RENEW_DEADLINE);
        if !matches!(&*self.leadership.borrow(), Leadership::Leading { .. }) {
            tracing::info!(identity = self.identity, "this replica is the leader");
        }
        self.leadership.send_replace(Leadership::Leading { until });
    }

    fn wait_for(&self, holder: Option<String>) {
        let waiting = Leadership::Waiting { holder };
        self.leadership.send_if_modified(|leadership| {
            if *leadership == waiting {
                return false;
            }
            tracing::info!("{waiting}");
            *leadership = waiting;
            true
        });
    }

    async fn release(&mut self) {
        let Some(lease) = self.held.take() else { return };
        let transitions = Record::of(&lease.data["spec"]).transitions;
        let free = self.lease(Some(&lease), "", Duration::from_secs(1), transitions);
        if let Err(error) = within_limit(self.api.replace(NAME, &PostParams::default(), &free)).await {
            tracing::warn!(
                reason = error.reason(),
                "the lease cannot be released; it ends by itself"
            );
        }
    }

    /// The Lease as it is to be. It is refused where another changed it since `before`.
    fn lease(
        &self,
        before: Option<&DynamicObject>,
        holder: &str,
        duration: Duration,
        transitions: i64,
    ) -> DynamicObject {
        let now = humantime::format_rfc3339_micros(UNIX_EPOCH + clock::since_epoch()).to_string();
        let acquired = before.map(|lease| &lease.data["spec"]["acquireTime"]);
        let is_same = before.is_some_and(|lease| lease.data["spec"]["holderIdentity"] == *holder);
        let acquired = acquired.filter(|time| is_same && time.is_string()).cloned();
        let mut lease = DynamicObject::new(NAME, &self.resource).within(&self.namespace);
        lease.metadata.resource_version = before.and_then(|lease| lease.metadata.resource_version.clone());
        lease.data = json!({"spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration.as_secs(),
            "acquireTime": acquired.unwrap_or_else(|| json!(now)),
            "renewTime": now,
            "leaseTransitions": transitions,
        }});
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, renewed: &str) -> Record {
        Record {
            holder: holder.to_owned(),
            renewed: renewed.to_owned(),
            transitions: 0,
            duration: LEASE,
        }
    }

    #[test]
    fn a_lease_of_another_is_taken_when_it_did_not_change_for_its_duration() {
        let begun = Timestamp::from_millis(0);
        let mut observed = Observed::default();
        assert!(!observed.may_take(&record("a", "1"), "b", begun));
        assert!(!observed.may_take(
            &record("a", "1"),
            "b",
            begun.after(LEASE - Duration::from_millis(1))
        ));
        // It is renewed at the last moment: it is waited for again.
        assert!(!observed.may_take(&record("a", "2"), "b", begun.after(LEASE)));
        assert!(!observed.may_take(&record("a", "2"), "b", begun.after(LEASE + RENEW_DEADLINE)));
        assert!(observed.may_take(&record("a", "2"), "b", begun.after(2 * LEASE)));
    }

    #[test]
    fn the_clock_of_the_holder_does_not_matter() {
        for renewed in ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "no time"] {
            let (mut observed, begun) = (Observed::default(), Timestamp::from_millis(0));
            assert!(!observed.may_take(&record("a", renewed), "b", begun), "{renewed}");
            let almost = begun.after(LEASE - Duration::from_millis(1));
            assert!(
                !observed.may_take(&record("a", renewed), "b", almost),
                "{renewed}"
            );
            assert!(
                observed.may_take(&record("a", renewed), "b", begun.after(LEASE)),
                "{renewed}"
            );
        }
    }

    #[test]
    fn a_lease_that_is_free_or_ones_own_is_taken_at_once() {
        let now = Timestamp::from_millis(0);
        assert!(Observed::default().may_take(&record("", "1"), "b", now));
        assert!(Observed::default().may_take(&record("b", "1"), "b", now));
        assert!(!Observed::default().may_take(&record("a", "1"), "b", now));
    }

    #[test]
    fn a_leader_that_did_not_renew_may_not_write_when_its_time_is_over() {
        let until = Timestamp::from_millis(8000);
        let leadership = Leadership::Leading { until };
        assert!(leadership.may_write(Timestamp::from_millis(7999)));
        assert!(!leadership.may_write(until));
        assert!(!Leadership::Waiting { holder: None }.may_write(Timestamp::from_millis(0)));
    }
}
