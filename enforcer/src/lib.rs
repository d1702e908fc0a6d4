//! Makes the kernel of a node agree with the policies that concern its pods.
//!
//! ```text
//!  watch ──▶ engine (policies::Compiler) ──▶ backend ──▶ kernel
//!  dnsd ◀──▶ link ◀──▶ ┘ ▲  ▲    ▲            └── node (links, routes)
//!            admin ──────┘  │    └── events (denied packets, from the kernel)
//!                           └▶ state (records and objects, for the next start)
//!  address_report (the node's addresses, for other nodes)
//! ```
//!
//! Modules are in the order of their dependencies: each one uses only modules above it, and no two use each other.
//!
//! | module | what it knows | uses |
//! |---|---|---|
//! | `metrics` | how a metric is described | |
//! | `unix_socket` | sockets that an earlier process left | |
//! | [`apply`] | desired and programmed state, backoff | |
//! | [`state`] | files for the next start | `metrics` |
//! | [`node`] | links, routes and veths of the node | |
//! | [`address_report`] | the NodeAddressReport of the node | `node` |
//! | [`backend`] | one kernel each: `netfilter`, `nftables`, `ebpf`, `both`, `memory`, `none` | `metrics`, `apply`, `node` |
//! | [`engine`] | the one thread that owns compiler and backend | `metrics`, `apply`, `state`, `node`, `backend` |
//! | [`watch`] | the source of objects | `state`, `engine` |
//! | [`policy_report`] | the NodePolicyReport of the node | `engine`, `watch` |
//! | [`controller`] | the status of policies, written by one of several replicas | `watch`, `engine`, `policy_report` |
//! | [`link`] | the connections of dnsds | `metrics`, `unix_socket`, `engine` |
//! | [`cni`] | the requests of the CNI plugin | `unix_socket`, `engine` |
//! | [`events`] | the log of denied packets | `metrics`, `backend`, `engine` |
//! | [`admin`] | the endpoints for operators | `backend`, `engine` |
//! | [`writer`] | the one writer of a network namespace | `admin` |
//! | [`config`] | options, and their validation | `backend`, `events` |
//!
//! The binary (`main`, `daemon`) uses all of them. Each module registers and describes its own metrics.

#![warn(missing_docs)]

mod metrics;
pub mod unix_socket;
pub mod apply;
pub mod state;
pub mod node;
pub mod address_report;
pub mod backend;
pub mod engine;
pub mod watch;
pub mod policy_report;
pub mod controller;
pub mod link;
pub mod cni;
pub mod events;
pub mod admin;
pub mod writer;
pub mod config;
