//! What operators see: metrics, the admin and health listeners, reports of faults.

pub mod admin;
pub mod faults;
pub mod handlers;
pub mod metrics;
