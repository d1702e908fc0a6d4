//! AdminQuery members that went have left open is found out on a thread of its own, while sets and rules go on changing: it takes as
//! long as the slowest packet that is on its way. There is one such search at a time.

use tokio::task::JoinHandle;

use crate::backend::{Backend, SearchResult};

/// Who looks for what is open.
#[derive(Debug, Default)]
pub(super) enum SearchTask {
    #[default]
    Nobody,
    /// Somebody is at it.
    Away(JoinHandle<SearchResult>),
    /// Somebody was, and the backend has not taken it in.
    Back(SearchResult),
}

impl SearchTask {
    /// Begins, where somebody is to be asked about and nobody is at it.
    pub(super) fn begin(&mut self, backend: &mut dyn Backend) {
        if matches!(self, Self::Nobody)
            && let Some(search) = backend.connection_search()
        {
            *self = Self::Away(tokio::task::spawn_blocking(search));
        }
    }

    /// Waits until an search ends; without one, for ever.
    pub(super) async fn back(&mut self) {
        match self {
            Self::Away(search) => {
                let found = search.await;
                *self =
                    Self::Back(found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
            }
            Self::Nobody | Self::Back(_) => std::future::pending().await,
        }
    }

    /// AdminQuery was found, for once.
    pub(super) fn take_found(&mut self) -> Option<SearchResult> {
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
        backend.end_denied_connections();
        backend.search_and_end();
        backend
    }
}
