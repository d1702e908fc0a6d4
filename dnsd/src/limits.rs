//! What one client, and all clients together, may use: queries a second, places, fair shares of a total.

pub mod permits;
pub mod quota;
pub mod rate;
