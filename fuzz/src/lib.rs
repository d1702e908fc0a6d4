//! What holds whatever the octets are. Each module has one function, which panics where it does not hold:
//! `make fuzz` looks for octets with which it does, and tests of the crates replay what was found.

pub mod authority;
pub mod client_hello;
pub mod config;
pub mod corefile;
pub mod link;
pub mod memory;
pub mod message;
pub mod packets;
pub mod probes;
pub mod reader;
pub mod upstream;
