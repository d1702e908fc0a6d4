//! A [`Quota`] that threads share. What was taken is given back when it is dropped, and may be lost before.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::enforcement::client::Payer;
use crate::limits::quota::Quota;

pub use crate::limits::quota::Places;

/// Who has places.
#[derive(Debug)]
pub struct Tally<H> {
    /// Held for a look at who has how many.
    quota: Mutex<Quota<H>>,
}

/// A place, or several, given back when it is dropped.
#[derive(Debug)]
pub struct Place<H: Revoke> {
    tally: Arc<Tally<H>>,
    payer: Payer,
    number: u64,
}

/// How who has a place hears that it is another client's now.
pub trait Revoke {
    /// It is.
    fn revoke(self);
}

/// A place whose loss can be waited for.
#[derive(Debug)]
pub struct Revocable {
    _place: Place<Loss>,
    loss: oneshot::Receiver<Infallible>,
}

/// Dropped when a place is lost, or given back.
pub type Loss = oneshot::Sender<Infallible>;

impl Revoke for Loss {
    fn revoke(self) {}
}

impl Revoke for CancellationToken {
    fn revoke(self) {
        self.cancel();
    }
}

impl<H> Default for Tally<H> {
    fn default() -> Self {
        Self {
            quota: Mutex::default(),
        }
    }
}

impl<H: Revoke> Tally<H> {
    /// How many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.lock().taken()
    }

    /// Takes so many places at once, if there are as many for this client, or others have to give way to it.
    #[must_use]
    pub fn take(
        self: &Arc<Self>,
        payer: Payer,
        amount: usize,
        places: Places,
        handle: H,
    ) -> Option<Place<H>> {
        let mut lost = Vec::new();
        let number = self
            .lock()
            .take(payer, amount, places, handle, |other| lost.push(other));
        // Who loses one is woken now, and finds nothing locked.
        lost.into_iter().for_each(Revoke::revoke);
        Some(Place {
            tally: Arc::clone(self),
            payer,
            number: number?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Quota<H>> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally<Loss> {
    /// Takes a place whose loss can be waited for.
    #[must_use]
    pub fn enter(self: &Arc<Self>, payer: Payer, places: Places) -> Option<Revocable> {
        let (handle, loss) = oneshot::channel();
        let place = self.take(payer, 1, places, handle)?;
        Some(Revocable { _place: place, loss })
    }
}

impl Revocable {
    /// Waits until it is another's.
    pub async fn lost(&mut self) {
        drop((&mut self.loss).await);
    }
}

impl<H: Revoke> Drop for Place<H> {
    fn drop(&mut self) {
        self.tally.lock().give_back(self.payer, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn of(client: u8) -> Payer {
        IpAddr::from([10, 0, 0, client]).into()
    }

    #[test]
    fn a_place_is_given_back_and_who_loses_one_hears_of_it() {
        let tally = Arc::<Tally<CancellationToken>>::default();
        let places = Places {
            per_client: 3,
            total: 3,
        };
        let take = |client| {
            let lost = CancellationToken::new();
            let place = tally.take(of(client), 1, places, lost.clone());
            (place, lost)
        };
        let mut large: Vec<_> = (0..3).map(|_| take(1)).collect();
        assert!(take(1).0.is_none());
        drop(large.pop());
        assert_eq!(tally.taken(), 2);
        let (other, more) = (take(2), take(2));
        assert!(other.0.is_some() && more.0.is_none());
        let lost: Vec<bool> = large.iter().map(|(_, lost)| lost.is_cancelled()).collect();
        assert_eq!(lost, [false, false], "two are not two more than one");
        let third = take(3);
        assert!(third.0.is_some() && large[0].1.is_cancelled() && !large[1].1.is_cancelled());
        assert_eq!(tally.taken(), 3);
        drop(third);
        drop(other);
        drop(large);
        assert_eq!(tally.taken(), 0);
    }
}
