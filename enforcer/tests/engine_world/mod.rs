//! What an engine hears of a source.

use egret_enforcer::engine::{Input, SourceState};
use egret_policies::api::manifest;
use egret_policies::compiler::Event;
use egret_policies::lower::lower;

/// These manifests.
pub(crate) fn cluster(text: &str) -> Input {
    let read = manifest::read(text, "test");
    assert!(read.is_whole(), "{:?}", read.problems);
    let entities = read
        .documents
        .iter()
        .flat_map(|document| lower(&document.object).entities);
    Input::Cluster(entities.map(Event::Apply).collect())
}

/// That it has told everything.
pub(crate) fn in_sync() -> Input {
    Input::Source(SourceState {
        is_complete: true,
        ..SourceState::default()
    })
}
