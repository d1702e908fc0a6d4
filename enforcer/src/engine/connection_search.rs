//! Searches connections that removed members leave open, on a thread of its own: a search takes as long as the slowest
//! packet in flight. One search runs at a time.

use tokio::task::JoinHandle;

use crate::backend::{Backend, SearchResult};

/// The state of the search.
#[derive(Debug, Default)]
pub(super) enum SearchTask {
    #[default]
    Nobody,
    /// A search runs.
    Away(JoinHandle<SearchResult>),
    /// A search ended, and the backend has not processed its result.
    Back(SearchResult),
}

impl SearchTask {
    /// Starts a search if the backend needs one and none runs.
    pub(super) fn begin(&mut self, backend: &mut dyn Backend) {
        if matches!(self, Self::Nobody)
            && let Some(search) = backend.connection_search()
        {
            *self = Self::Away(tokio::task::spawn_blocking(search));
        }
    }

    /// Waits until the search ends; for ever if none runs.
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

    /// Takes the result of a finished search.
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

    /// Finishes the search, so that the next process need not search all connections.
    pub(super) async fn end(mut self, mut backend: Box<dyn Backend>) -> Box<dyn Backend> {
        if matches!(self, Self::Away(_)) {
            self.back().await;
        }
        backend.end_denied_connections();
        backend.search_and_end();
        backend
    }
}
