//! What one client, and all clients together, may use: queries a second, permits, fair shares of a total.

pub mod permits;
pub mod quota;
pub mod quota_key;
pub mod rate;
