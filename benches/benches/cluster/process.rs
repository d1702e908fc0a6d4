//! What one of the cluster's processes has used.

use std::time::Duration;

use egret_benches::process::{Whose, cpu, memory};

#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) rss_mib: f64,
    pub(crate) peak_mib: f64,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let process = pid.to_string();
        Ok(Self {
            cpu: cpu(&process, Whose::Own)?,
            rss_mib: memory(&process, "VmRSS")?,
            peak_mib: memory(&process, "VmHWM")?,
        })
    }
}
