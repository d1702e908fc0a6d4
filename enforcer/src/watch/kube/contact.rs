//! What the API server's answers say of the watch of each kind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use kube::runtime::watcher::DefaultBackoff;
use tokio::sync::Notify;

use super::resources::{KINDS, RESOURCE_TYPES};

/// A watch that ends sooner was cut. The API server ends one after the 290 s that it is asked for (kube's default).
const WHOLE_WATCH: Duration = Duration::from_secs(280);
/// After a shorter watch the next one waits: who ends them at once would be asked without a pause.
const SHORT_WATCH: Duration = Duration::from_secs(5);
/// `Retry-After` of a longer time counts as this one.
const LONGEST_RETRY_AFTER: u64 = 120;

/// What the answers say, by kind.
#[derive(Debug, Default)]
pub(super) struct Contact {
    kinds: [OfKind; KINDS],
    pub(super) changed: Notify,
    /// For watches that wait because the API server was gone: it is back, whoever noticed it first.
    pub(super) is_back: Notify,
}

#[derive(Debug, Default)]
struct OfKind {
    /// How many lists and watches the API server has answered.
    answered: AtomicU64,
    /// Seconds; 0 for none.
    retry_after: AtomicU64,
    watch: Mutex<LastWatch>,
    /// The resource version from which a watch went on that had been cut.
    resumed_from: AtomicU64,
    resumed: Notify,
}

#[derive(Default)]
struct LastWatch {
    /// When it was asked for, or the end of the pause before it: a busy server answers late, and ends it by its own clock. None where
    /// objects were listed since.
    began: Option<Timestamp>,
    backoff: DefaultBackoff,
}

impl std::fmt::Debug for LastWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastWatch")
            .field("began", &self.began)
            .finish_non_exhaustive()
    }
}

/// A request for objects of a kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    kind: usize,
    what: What,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    List,
    /// From a resource version; none for a watch that begins with all objects, or from a version that is no number.
    Watch(Option<u64>),
}

impl Sent {
    /// None where it asks for something else.
    pub(super) fn read(method: &Method, uri: &Uri) -> Option<Self> {
        if method != Method::GET {
            return None;
        }
        let path = uri.path();
        let is_of = |plural: &str| path.rsplit('/').next() == Some(plural);
        let kind = RESOURCE_TYPES
            .iter()
            .position(|resource| is_of(resource.plural) && path.contains(resource.group))?;
        let query = uri.query().unwrap_or_default();
        let value = |key: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
        };
        let what = match value("watch") {
            None | Some("false" | "0") => What::List,
            Some(_) if value("sendInitialEvents") == Some("true") => What::Watch(None),
            Some(_) => What::Watch(value("resourceVersion").and_then(|version| version.parse().ok())),
        };
        Some(Self { kind, what })
    }
}

impl Contact {
    /// A watch that was broken is whole again when the number grows, for then everything since comes.
    pub(super) fn answered(&self, kind: usize) -> u64 {
        self.kinds[kind].answered.load(Ordering::Acquire)
    }

    /// How long the API server asked to be left alone, once for each time that it did.
    pub(super) fn retry_after(&self, kind: usize) -> Option<Duration> {
        let seconds = self.kinds[kind].retry_after.swap(0, Ordering::AcqRel);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Returns when a watch that had been cut goes on, with the resource version. May be cancelled.
    pub(super) async fn resumed(&self, kind: usize) -> u64 {
        self.kinds[kind].resumed.notified().await;
        self.kinds[kind].resumed_from.load(Ordering::Acquire)
    }

    /// Notes an answer to what was asked then, and returns how long to keep it back: the next watch of a kind is asked for when one has ended, so
    /// that those that end at once are asked for ever more seldom.
    pub(super) fn note(
        &self,
        sent: &Sent,
        asked: Timestamp,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Duration {
        let of_kind = &self.kinds[sent.kind];
        if !status.is_success() {
            // RFC 9110, section 10.2.3; the API server sends seconds.
            let seconds = headers
                .get(header::RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
            of_kind
                .retry_after
                .store(seconds.unwrap_or(0).min(LONGEST_RETRY_AFTER), Ordering::Release);
            return Duration::ZERO;
        }
        let pause = self.note_watch(sent, asked);
        of_kind.answered.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
        self.is_back.notify_waiters();
        pause
    }

    fn note_watch(&self, sent: &Sent, asked: Timestamp) -> Duration {
        let mut last = self.last_watch(sent.kind);
        let before = last.began.take();
        let What::Watch(version) = sent.what else {
            return Duration::ZERO;
        };
        let lasted = before.map(|before| asked.since(before));
        if let Some(version) = version
            && lasted.is_some_and(|lasted| lasted < WHOLE_WATCH)
        {
            let of_kind = &self.kinds[sent.kind];
            of_kind.resumed_from.store(version, Ordering::Release);
            of_kind.resumed.notify_one();
        }
        let is_short = lasted.is_some_and(|lasted| lasted < SHORT_WATCH);
        let pause = is_short.then(|| last.backoff.next()).flatten();
        last.began = Some(pause.map_or(asked, |pause| clock::now().after(pause)));
        pause.unwrap_or_default()
    }

    fn last_watch(&self, kind: usize) -> std::sync::MutexGuard<'_, LastWatch> {
        self.kinds[kind]
            .watch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll::{Pending, Ready};

    use super::*;

    fn read(uri: &str) -> Option<Sent> {
        Sent::read(&Method::GET, &uri.parse().unwrap())
    }

    #[test]
    fn requests_are_told_apart() {
        let pods = |what| Some(Sent { kind: 1, what });
        assert_eq!(read("/api/v1/pods?limit=500&continue=x"), pods(What::List));
        assert_eq!(
            read("/api/v1/pods?watch=true&resourceVersion=7"),
            pods(What::Watch(Some(7)))
        );
        assert_eq!(
            read("/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersion=0"),
            pods(What::Watch(None))
        );
        assert_eq!(read("/apis/policy.egret.dev/v1alpha1"), None);
    }

    #[test]
    fn only_a_watch_that_was_cut_is_resumed() {
        let contact = Contact::default();
        let begun = clock::now();
        let answer_to = |uri, seconds| {
            let asked = begun.after(Duration::from_secs(seconds));
            contact.note(&read(uri).unwrap(), asked, StatusCode::OK, &HeaderMap::new())
        };
        let answer = |uri| answer_to(uri, 0);
        let is_resumed = || {
            let mut resumed = std::pin::pin!(contact.resumed(1));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            resumed.as_mut().poll(&mut context)
        };
        answer("/api/v1/pods?limit=500");
        answer("/api/v1/pods?watch=true&resourceVersion=7");
        assert_eq!(is_resumed(), Pending);
        answer("/api/v1/pods?watch=true&resourceVersion=8");
        assert_eq!(is_resumed(), Ready(8));
        answer("/api/v1/pods?limit=500");
        answer("/api/v1/pods?watch=true&resourceVersion=9");
        assert_eq!(is_resumed(), Pending);
        // It lasted as long as it was asked for, however late its answer came.
        answer_to("/api/v1/pods?watch=true&resourceVersion=10", 290);
        assert_eq!(is_resumed(), Pending);
        answer_to("/api/v1/pods?watch=true&resourceVersion=11", 300);
        assert_eq!(is_resumed(), Ready(11));
    }
}
