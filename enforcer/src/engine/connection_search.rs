//! Searches open connections that changes deny, on a thread of its own: a search takes as long as the slowest packet in flight and
//! a walk through the kernel's table. One search runs at a time, for all changes before it.

use tokio::task::JoinHandle;

use crate::backend::{Backend, SearchResult};

/// The state of the search.
#[derive(Debug, Default)]
pub(super) enum SearchTask {
    #[default]
    Idle,
    /// A search runs.
    Running(JoinHandle<SearchResult>),
    /// A search ended, and the backend has not processed its result.
    Finished(SearchResult),
}

impl SearchTask {
    /// Starts a search if the backend needs one and none runs.
    pub(super) fn start(&mut self, backend: &mut dyn Backend) {
        if matches!(self, Self::Idle)
            && let Some(search) = backend.connection_search()
        {
            *self = Self::Running(tokio::task::spawn_blocking(search));
        }
    }

    /// Waits until the search ends; for ever if none runs.
    pub(super) async fn finished(&mut self) {
        match self {
            Self::Running(search) => {
                let result = search.await;
                *self = Self::Finished(
                    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())),
                );
            }
            Self::Idle | Self::Finished(_) => std::future::pending().await,
        }
    }

    /// Takes the result of a finished search.
    pub(super) fn take_result(&mut self) -> Option<SearchResult> {
        match self {
            Self::Finished(result) => {
                let result = *result;
                *self = Self::Idle;
                Some(result)
            }
            Self::Idle | Self::Running(_) => None,
        }
    }

    /// Finishes the search, so that the next process need not search all connections.
    pub(super) async fn finish(mut self, mut backend: Box<dyn Backend>) -> Box<dyn Backend> {
        if matches!(self, Self::Running(_)) {
            self.finished().await;
        }
        backend.search_and_end();
        backend
    }
}
