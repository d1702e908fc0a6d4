//! The API server's network proxy (KEP-1281, konnectivity): `proxy-server` beside a kube-apiserver, `proxy-agent` beside the nodes, on the wire
//! protocol of `sigs.k8s.io/apiserver-network-proxy`.
//!
//! The API server asks the server for a connection; the server asks an agent, which dials. Octets go both ways over the one stream that the
//! agent opened.
//!
//! `proto` is the wire protocol, `core` the state of both programs without IO, `grpc` and `tls` the transport, `server` and `agent` the edges,
//! `api_server` how both ask the API server, `admin` what both answer to operators.

pub mod proto;
pub mod core;
pub mod server;
pub mod agent;
pub mod tls;
pub mod options;

mod admin;
mod api_server;
mod grpc;
mod relay;
mod socket;

/// Raises the soft limit of open files to the hard one: each connection takes one or two.
pub fn raise_limit() {
    match egret_shared::rt::open_files::raise_limit() {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
    }
}
