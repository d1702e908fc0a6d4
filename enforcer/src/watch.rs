//! Where objects come from: a folder of manifests, or the API server of a cluster. Both give the engine the same events.

pub mod dir;
pub mod kube;
mod deny_all;
