//! Writes the version of spanscore, and the resources that the process uses. Omits metrics that the
//! system does not report (outside Linux).

use rustix::time::{ClockId, clock_gettime};

use super::{MetricKind, MetricsPage};

pub(super) fn write(started_unix_nanos: u64, page: &mut MetricsPage) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    page.metric(
        "process_cpu_seconds",
        MetricKind::Counter,
        "User and system CPU time, in seconds",
    );
    page.total("process_cpu_seconds", [], format_args!("{cpu_seconds:?}"));
    page.gauge(
        "process_start_time_seconds",
        "Start of the process, Unix time in seconds",
        format_args!("{:?}", started_unix_nanos as f64 / 1e9),
    );
    let status = std::fs::read_to_string("/proc/self/status").ok();
    if let Some(bytes) = status.and_then(|status| resident_bytes(&status)) {
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory, in bytes",
            bytes,
        );
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        // The listing itself opens a file descriptor.
        let n_open = entries.count().saturating_sub(1);
        page.gauge("process_open_fds", "Open file descriptors", n_open);
    }
    page.metric(
        "spanscore_build_info",
        MetricKind::Gauge,
        "Version of this binary",
    );
    page.sample(
        "spanscore_build_info",
        [("version", env!("CARGO_PKG_VERSION"))],
        1,
    );
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status_file() {
        assert_eq!(
            resident_bytes("Name:\tspanscore\nVmRSS:\t    9876 kB\nThreads:\t3\n"),
            Some(9876 * 1024)
        );
        assert_eq!(resident_bytes("Name:\tspanscore\n"), None);
    }
}
