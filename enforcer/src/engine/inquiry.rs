//! What members that went have left open is found out on a thread of its own, while sets and rules go on changing: it takes as
//! long as the slowest packet that is on its way. There is one such inquiry at a time.

use tokio::task::JoinHandle;

use crate::backend::{Backend, Found};

/// Who looks for what is open.
#[derive(Debug, Default)]
pub(super) enum Inquirer {
    #[default]
    Nobody,
    /// Somebody is at it.
    Away(JoinHandle<Found>),
    /// Somebody was, and the backend has not taken it in.
    Back(Found),
}

impl Inquirer {
    /// Begins, where somebody is to be asked about and nobody is at it.
    pub(super) fn begin(&mut self, backend: &mut dyn Backend) {
        if matches!(self, Self::Nobody)
            && let Some(inquiry) = backend.inquiry()
        {
            *self = Self::Away(tokio::task::spawn_blocking(inquiry));
        }
    }

    /// Waits until an inquiry ends; without one, for ever.
    pub(super) async fn back(&mut self) {
        match self {
            Self::Away(inquiry) => {
                let found = inquiry.await;
                *self =
                    Self::Back(found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
            }
            Self::Nobody | Self::Back(_) => std::future::pending().await,
        }
    }

    /// What was found, for once.
    pub(super) fn take_found(&mut self) -> Option<Found> {
        match self {
            Self::Back(found) => {
                let found = *found;
                *self = Self::Nobody;
                Some(found)
            }
            Self::Nobody | Self::Away(_) => None,
        }
    }

    /// Leaves nothing behind that the next life would have to ask everybody for.
    pub(super) async fn end(mut self, mut backend: Box<dyn Backend>) -> Box<dyn Backend> {
        if matches!(self, Self::Away(_)) {
            self.back().await;
        }
        backend.end_forbidden();
        backend.ask_and_end();
        backend
    }
}
