//! A small world in network namespaces, shared by the demo and the tests: one node with the daemons, pods behind
//! routed veth pairs, and an upstream network with servers and an upstream DNS whose answers the test sets.
//!
//! The daemons run as the processes that users run; the kernel, `curl`, `getent`, `ipset` and `iptables-save` are
//! the real ones. Everything carries the world's name (`eg-<pid>-<n>`), so that worlds run side by side, and is
//! gone when the [`World`] is dropped.
//!
//! ```no_run
//! # use egret_integration::{Records, World};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = World::new()?.with_pod("client")?.with_pod("other")?;
//! world.upstream().set("api.example.test", Records::addresses(["203.0.113.7"]).ttl(30));
//! let page = world.pod("client").run(&["curl", "-s", "http://203.0.113.7/"])?;
//! assert_eq!(page.stdout, "203.0.113.7\n");
//! # Ok(())
//! # }
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the world is an edge: it measures how long real packets and processes take"
)]

pub mod world;
pub mod node;
pub mod pod;
pub mod attachment;
pub mod daemon;
pub mod metrics;
pub mod probe;
pub mod message;
pub mod remote_host;
pub mod client;
pub mod services;
pub mod other_node;
pub mod lookup;
pub mod load;
pub mod upstream_network;
pub mod upstream;
pub mod manifests;
pub mod kubernetes;
pub mod api_proxy;
pub mod extension;
pub mod demo;
pub mod cluster;
pub mod holdings;
pub mod peers;
pub mod adversary;

mod netns;
mod command;
mod sockets;
mod cgroup;
mod datagram;
mod leftovers;
mod error;
mod polling;

pub use adversary::{Adversary, MacAddress, Packet, Seen, Segment, Sniffer};
pub use api_proxy::{ApiProxy, ApiRequest, Fate, Streams};
pub use attachment::{Attachment, SecondInterface};
pub use cgroup::cgroup2_root;
pub use client::Client;
pub use command::Output;
pub use daemon::{Daemon, DaemonSpec};
pub use error::WorldError;
pub use holdings::Holdings;
pub use kubernetes::Kubernetes;
pub use leftovers::of_world as leftovers_of;
pub use load::{Load, LoadPlan, LoadReport};
pub use lookup::{Lookup, LookupFailure, ReceivedReply, Reply, Transport};
pub use message::Greeting;
pub use metrics::Metrics;
pub use node::{Family, Node};
pub use other_node::OtherNode;
pub use peers::{Peer, PeerError};
pub use pod::{Pod, PodSpec};
pub use polling::{is_soon, within};
pub use probe::{Connection, Outcome, UdpOutcome};
pub use remote_host::RemoteHost;
pub use services::{Forwarding, Front, ProxyMode, ServicePort};
pub use sockets::uninterrupted;
pub use upstream::{ReceivedQuery, Records, Spoof, Upstream};
pub use upstream_network::Service;
pub use world::{PodSeat, World};

pub use hickory_proto::op::ResponseCode;
pub use hickory_proto::rr::RecordType;
