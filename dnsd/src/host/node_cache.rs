//! dnsd in the place of `node-cache`, node-local-dns' program: the same flags, template, ConfigMaps, interface and rules.
//!
//! ```text
//!  flags ──▶ Corefile.base + kube-dns ConfigMap ──▶ template ──▶ Corefile ──▶ plan
//!        └─▶ interface ──▶ listeners ──▶ rules, looked at again every -syncinterval ──▶ teardown
//! ```
//!
//! What is pure is in `flags`, `template`, `kube_dns`, `rules`, `placing` and `fallback`; `network` speaks to the kernel, and `keeper` looks
//! after it all from a thread of its own.

pub mod call;
pub mod flags;
pub mod kube_dns;
pub mod template;
pub mod rules;
pub mod placing;
pub mod fallback;
pub mod source;
pub mod network;
pub mod keeper;

pub use flags::{Flags, InvalidFlag};
pub use kube_dns::KubeDns;
