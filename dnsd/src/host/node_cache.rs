//! dnsd in the place of `node-cache`, node-local-dns' program: the same flags, template, ConfigMaps, interface and rules.
//!
//! ```text
//!  flags ──▶ Corefile.base + kube-dns ConfigMap ──▶ template ──▶ Corefile ──▶ plan
//!        └─▶ interface ──▶ listeners ──▶ rules, looked at again every -syncinterval ──▶ teardown
//! ```
//!
//! What is pure is in `flags`, `template`, `kube_dns`, `rules`, `placing` and `fallback`; `network` speaks to the kernel, and `keeper` looks
//! after it all from a thread of its own.

pub mod invocation;
pub mod flags;
pub mod kube_dns;
pub mod template;
pub mod rules;
pub mod rule_position;
pub mod fallback;
pub mod source;
pub mod kernel;
pub mod reconciler;

pub use flags::{Flags, InvalidFlag};
pub use kube_dns::KubeDns;
