//! What a process has used, by `/proc` (proc(5)).

use std::fs;
use std::time::Duration;

use anyhow::Context as _;

#[derive(Debug)]
pub(crate) struct Usage {
    /// In user and system mode, of all threads.
    pub(crate) cpu: Duration,
    pub(crate) rss_mib: u64,
    pub(crate) peak_mib: u64,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let behind_name = stat.rsplit_once(") ").context("stat names the program")?.1;
        let fields: Vec<&str> = behind_name.split(' ').collect();
        // The 14th and 15th field, in ticks of a hundredth of a second.
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mib = |field: &str| -> anyhow::Result<u64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(field))
                .context("status has memory")?;
            let kib: u64 = line
                .trim_start_matches(':')
                .trim()
                .trim_end_matches(" kB")
                .parse()?;
            Ok(kib >> 10)
        };
        Ok(Self {
            cpu: Duration::from_millis(ticks * 10),
            rss_mib: mib("VmRSS")?,
            peak_mib: mib("VmHWM")?,
        })
    }
}
