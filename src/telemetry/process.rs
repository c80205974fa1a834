//! What the process takes of the machine, as the system reports it. Where it does not (outside
//! Linux), the figure is left out.

use rustix::time::{ClockId, clock_gettime};

/// What the process takes of the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// User and system time, seconds.
    pub(super) cpu_seconds: f64,
    /// Resident memory, bytes.
    pub(super) resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub(super) open_fds: Option<u64>,
}

impl Usage {
    pub(super) fn read() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            resident_bytes: std::fs::read_to_string("/proc/self/status")
                .ok()
                .and_then(|status| resident_bytes(&status)),
            // The listing itself holds one.
            open_fds: std::fs::read_dir("/proc/self/fd")
                .ok()
                .map(|entries| (entries.count() as u64).saturating_sub(1)),
        }
    }
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
