//! Pooled timers.
//!
//! Hardly any query reaches the time at which it is hedged. To insert a timer into the runtime's wheel for each query, and to
//! remove it, is two locks and costs more than a table look-up. A timer that stays in the wheel and is reset to a later time
//! costs neither. So unused timers stay in the wheel, and one that is not reused fires once for its last owner.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep_until};

/// Timers that a thread keeps: the outstanding queries of a usual burst.
const MAX_KEPT: usize = 256;

thread_local! {
    static FREE: RefCell<Vec<Timer>> = const { RefCell::new(Vec::new()) };
}

/// Awaits `work` until `deadline`; `None` where it is not done by then.
pub(super) async fn wait_until<W: Future + Unpin>(deadline: Instant, mut work: W) -> Option<W::Output> {
    let mut timer = PooledTimer(Some(Timer::at(deadline)));
    poll_fn(|context| match Pin::new(&mut work).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.poll(context).map(|()| None),
    })
    .await
}

/// A timer and the runtime whose wheel it is in.
struct Timer {
    runtime: Id,
    sleep: Pin<Box<Sleep>>,
}

/// A timer in use, returned to the pool when dropped.
struct PooledTimer(Option<Timer>);

impl Timer {
    fn at(deadline: Instant) -> Self {
        let runtime = Handle::current().id();
        while let Some(mut timer) = FREE.with_borrow_mut(Vec::pop) {
            // Timers of a runtime that has ended do not fire.
            if timer.runtime == runtime {
                timer.sleep.as_mut().reset(deadline);
                return timer;
            }
        }
        Self {
            runtime,
            sleep: Box::pin(sleep_until(deadline)),
        }
    }
}

impl PooledTimer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.as_mut().expect("it is given back when this is dropped");
        timer.sleep.as_mut().poll(context)
    }
}

impl Drop for PooledTimer {
    fn drop(&mut self) {
        let Some(timer) = self.0.take() else {
            return;
        };
        // While the thread exits, there is no pool.
        let _thread_ends = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MAX_KEPT {
                free.push(timer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::time::Duration;

    use egret_shared::rt::task;
    use tokio::sync::oneshot;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(60);

    /// Whether nothing comes, and the wait for it is neither too short nor as long as others were meant to be.
    async fn waits(span: Duration) -> bool {
        let begun = Instant::now();
        let nothing = wait_until(begun + span, pin!(pending::<()>())).await;
        nothing.is_none() && (span..LONG / 2).contains(&begun.elapsed())
    }

    fn kept() -> usize {
        FREE.with_borrow(Vec::len)
    }

    #[tokio::test]
    async fn a_reused_timer_fires_at_its_new_deadline() {
        // Later and earlier than the deadline before, which has come, or not.
        for factor in [1, 4, 2, 1, 3] {
            assert!(waits(SHORT * factor).await);
            let later = Instant::now() + LONG;
            assert_eq!(wait_until(later, pin!(ready(factor))).await, Some(factor));
            let (tell, told) = oneshot::channel();
            let waiting = task::spawn_brief(async move { wait_until(later, told).await });
            tokio::task::yield_now().await;
            tell.send(factor).unwrap();
            assert_eq!(waiting.await.unwrap(), Some(Ok(factor)), "in time");
        }
        assert_eq!(kept(), 1, "one after the other");
    }

    #[tokio::test]
    async fn concurrent_waits_have_timers_of_their_own_and_a_burst_is_not_pooled() {
        let spans = (0..2 * MAX_KEPT).map(|number| SHORT + Duration::from_millis(number as u64 % 7));
        let all: Vec<_> = spans.map(|span| task::spawn_brief(waits(span))).collect();
        for one in all {
            assert!(one.await.unwrap());
        }
        assert_eq!(kept(), MAX_KEPT);
    }

    #[test]
    fn timers_of_a_runtime_that_has_ended_are_not_used() {
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let span = Duration::from_millis(1);
            assert!(runtime.unwrap().block_on(waits(span)));
        }
        assert_eq!(kept(), 1);
    }
}
