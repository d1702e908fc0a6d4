//! Replaces `node-cache`, node-local-dns' program: the same flags, template, ConfigMaps, interface and rules.
//!
//! ```text
//!  flags ──▶ Corefile.base + kube-dns ConfigMap ──▶ template ──▶ Corefile ──▶ plan
//!        └─▶ interface ──▶ listeners ──▶ rules, reconciled every -syncinterval ──▶ teardown
//! ```
//!
//! `template`, `kube_dns`, `rules`, `rule_position` and `fallback` are pure; `kernel` applies them; `reconciler` calls
//! it from a thread of its own. The flags are read in `config::node_cache`.

pub mod kube_dns;
pub mod template;
pub mod rules;
pub mod rule_position;
pub mod fallback;
pub mod source;
pub mod kernel;
pub mod reconciler;

pub use kube_dns::KubeDns;
