//! **A policy that fails to be understood must never be weaker than one that is.**
//!
//! From API objects to per-pod rules: a function with memory. Events go in, batches come out, time is an
//! argument; there is no IO, no clock, no runtime, no lock.
//!
//! The modules in the order of the flow. Each uses those above it, never one below:
//!
//! | module | step |
//! |---|---|
//! | [`model`] | what policies and cluster objects mean |
//! | [`diagnostic`] | what an author should know about an object |
//! | [`api`] | read: YAML and JSON to objects, as users write them |
//! | [`lower`] | lower: objects to the model |
//! | [`rules`] | what a backend sees: rules, sets, batches |
//! | [`decision`] | from many ordered rules to lookups that a packet pays for once |
//! | [`records`] | which pod was given which addresses for which name |
//! | [`compiler`] | compile: events to batches, by way of an index of the cluster, templates of policies, the rules of each pod and the order of changes |
//! | [`controller`], [`schema`] | status and CustomResourceDefinitions of Egret's own kinds |
//! | [`simulator`] | decides packets from the rules, as a kernel would |
//! | [`api_server`] | what the API server may connect to by its network proxy: the same compiler with the selections in the place of pods |
//! | [`oracle`] | decides packets from the model, slowly and obviously; shares nothing with the compiler, and the tests hold the two together |

#![warn(missing_docs)]

pub mod model;
pub mod diagnostic;
pub mod api;
pub mod lower;
pub mod rules;
pub mod decision;
pub mod records;
pub mod compiler;
pub mod controller;
pub mod schema;
pub mod simulator;
pub mod api_server;
pub mod oracle;
