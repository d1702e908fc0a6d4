//! The runtime pieces that both daemons share: the only place where a clock is read, a task is spawned,
//! a signal is awaited.

pub mod allocator;
pub mod clock;
pub mod config;
pub mod shutdown;
pub mod task;
pub mod telemetry;
pub mod frame_stream;
pub mod admin;
pub mod open_files;
