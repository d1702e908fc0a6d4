//! The kernel's figures of the process, by the names of Prometheus' client libraries.

use std::fs;

use egret_shared::rt::telemetry::MetricsPage;

/// Clock ticks a second in /proc: 100 on every supported architecture.
const TICKS: f64 = 100.0;

/// Writes the figures; unknown ones are left out.
pub(super) fn write(page: &mut MetricsPage) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name is in parentheses and may contain anything.
    let (_, stat) = stat.rsplit_once(')').unwrap_or_default();
    let fields: Vec<f64> = stat
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap_or(0.0))
        .collect();
    // Field numbers of proc(5), from the fourth.
    let field = |number: usize| fields.get(number - 4).copied();
    let start = field(22)
        .zip(boot_time())
        .map(|(ticks, boot)| boot + ticks / TICKS);
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count());
    for (name, kind, help, value) in [
        (
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            field(14)
                .zip(field(15))
                .map(|(user, system)| (user + system) / TICKS),
        ),
        (
            "process_open_fds",
            "gauge",
            "Number of open file descriptors.",
            open.and_then(|open| u32::try_from(open).ok()).map(f64::from),
        ),
        (
            "process_max_fds",
            "gauge",
            "Maximum number of open file descriptors.",
            limit("Max open files"),
        ),
        (
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory size in bytes.",
            field(23),
        ),
        (
            "process_virtual_memory_max_bytes",
            "gauge",
            "Maximum amount of virtual memory available in bytes.",
            limit("Max address space"),
        ),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            fs::read_to_string("/proc/self/status")
                .ok()
                .and_then(|status| resident(&status)),
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            start,
        ),
    ] {
        if let Some(value) = value {
            page.family(name, kind, help);
            page.series(name, &[], value);
        }
    }
}

/// Resident octets by /proc/PID/status: /proc/PID/stat counts pages, which have 16 or 64 KiB on some arm64 and ppc64le.
fn resident(status: &str) -> Option<f64> {
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse().ok())
}

/// The soft limit; the largest number if there is none, as in Prometheus' client libraries.
fn limit(name: &str) -> Option<f64> {
    const UNLIMITED: f64 = 18_446_744_073_709_551_615.0;
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(UNLIMITED),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_in_octets_for_any_page_size() {
        let status = "VmHWM:\t   30000 kB\nVmRSS:\t    8192 kB\nRssAnon:\t 1000 kB\n";
        assert_eq!(resident(status), Some(8_388_608.0));
        for status in ["", "VmRSS:\n", "VmRSS:\t 2 pages\n", "VmHWM:\t 1 kB\n"] {
            assert_eq!(resident(status), None, "{status:?}");
        }
        let own = fs::read_to_string("/proc/self/status").unwrap();
        // Between a page and the whole memory.
        let octets = resident(&own).unwrap();
        assert!((4_096.0..1e13).contains(&octets), "{octets}");
    }
}
