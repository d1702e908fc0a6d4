//! A fair semaphore: a [`Quota`] that threads share. A permit is returned when it is dropped, and may be revoked before.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::limits::quota::Quota;
use crate::limits::quota_key::QuotaKey;

pub use crate::limits::quota::PermitLimits;

/// Issues permits by fair shares.
#[derive(Debug)]
pub struct FairSemaphore<H> {
    /// Held for one operation.
    quota: Mutex<Quota<H>>,
}

/// A permit for an amount, returned when it is dropped.
#[derive(Debug)]
pub struct Permit<H: Revoke> {
    semaphore: Arc<FairSemaphore<H>>,
    quota_key: QuotaKey,
    number: u64,
}

/// Tells the owner of a permit that it is revoked.
pub trait Revoke {
    /// Revokes it.
    fn revoke(self);
}

/// A permit whose revocation can be awaited.
#[derive(Debug)]
pub struct RevocablePermit {
    _permit: Permit<RevokeSender>,
    revoked: oneshot::Receiver<Infallible>,
}

/// Dropped when a permit is revoked or returned.
pub type RevokeSender = oneshot::Sender<Infallible>;

impl Revoke for RevokeSender {
    fn revoke(self) {}
}

impl Revoke for CancellationToken {
    fn revoke(self) {
        self.cancel();
    }
}

impl<H> Default for FairSemaphore<H> {
    fn default() -> Self {
        Self {
            quota: Mutex::default(),
        }
    }
}

impl<H: Revoke> FairSemaphore<H> {
    /// The amount in use.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().taken()
    }

    /// Takes a permit for `amount`, if the client's limit allows it and as much is free or can be revoked from others.
    #[must_use]
    pub fn take(
        self: &Arc<Self>,
        quota_key: QuotaKey,
        amount: usize,
        limits: PermitLimits,
        handle: H,
    ) -> Option<Permit<H>> {
        let mut lost = Vec::new();
        let number = self
            .lock()
            .take(quota_key, amount, limits, handle, |other| lost.push(other));
        // Revoked after the lock is released: woken owners do not wait for it.
        lost.into_iter().for_each(Revoke::revoke);
        Some(Permit {
            semaphore: Arc::clone(self),
            quota_key,
            number: number?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Quota<H>> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FairSemaphore<RevokeSender> {
    /// Takes a permit of 1 whose revocation can be awaited.
    #[must_use]
    pub fn acquire(self: &Arc<Self>, quota_key: QuotaKey, limits: PermitLimits) -> Option<RevocablePermit> {
        let (handle, revoked) = oneshot::channel();
        let permit = self.take(quota_key, 1, limits, handle)?;
        Some(RevocablePermit {
            _permit: permit,
            revoked,
        })
    }
}

impl RevocablePermit {
    /// Waits until it is revoked.
    pub async fn revoked(&mut self) {
        drop((&mut self.revoked).await);
    }
}

impl<H: Revoke> Drop for Permit<H> {
    fn drop(&mut self) {
        self.semaphore.lock().give_back(self.quota_key, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn of(client: u8) -> QuotaKey {
        IpAddr::from([10, 0, 0, client]).into()
    }

    #[test]
    fn a_permit_is_returned_and_a_revoked_one_is_signalled() {
        let semaphore = Arc::<FairSemaphore<CancellationToken>>::default();
        let limits = PermitLimits {
            per_client: 3,
            total: 3,
        };
        let take = |client| {
            let lost = CancellationToken::new();
            let permit = semaphore.take(of(client), 1, limits, lost.clone());
            (permit, lost)
        };
        let mut large: Vec<_> = (0..3).map(|_| take(1)).collect();
        assert!(take(1).0.is_none());
        drop(large.pop());
        assert_eq!(semaphore.taken(), 2);
        let (other, more) = (take(2), take(2));
        assert!(other.0.is_some() && more.0.is_none());
        let lost: Vec<bool> = large.iter().map(|(_, lost)| lost.is_cancelled()).collect();
        assert_eq!(lost, [false, false], "two are not two more than one");
        let third = take(3);
        assert!(third.0.is_some() && large[0].1.is_cancelled() && !large[1].1.is_cancelled());
        assert_eq!(semaphore.taken(), 3);
        drop(third);
        drop(other);
        drop(large);
        assert_eq!(semaphore.taken(), 0);
    }
}
