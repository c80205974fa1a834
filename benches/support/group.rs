//! A control group with a memory limit, for a process that a benchmark starts. On a machine without
//! swap, the process is killed at the limit. Used only if the benchmark may create groups.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The folder of groups, the file with the limit, and the file with the peak: for version 1 of
/// control groups, then for version 2.
const GROUPS: [(&str, &str, &str); 2] = [
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
];

/// A control group, removed when dropped. Its process must have ended before.
pub(crate) struct Group {
    path: PathBuf,
    failures: PathBuf,
}

impl Group {
    /// Creates a group with this name and this limit in bytes; `None` if no group can be created.
    pub(crate) fn make(name: &str, limit: u64) -> Option<Self> {
        for (number, (root, limit_file, peak)) in GROUPS.into_iter().enumerate() {
            let path = PathBuf::from(root).join(format!("spanscore-{name}-{}", std::process::id()));
            let made = fs::create_dir(&path).and_then(|()| {
                fs::write(path.join(limit_file), limit.to_string())?;
                fs::metadata(path.join(peak))
            });
            if made.is_ok() {
                let file = ["memory.failcnt", "memory.events"][number];
                return Some(Self {
                    failures: path.join(file),
                    path,
                });
            }
            // The group may not exist.
            let _ = fs::remove_dir(&path);
        }
        None
    }

    pub(crate) fn add(&self, process: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), process.to_string())
    }

    /// Returns how many allocations reached the limit. In version 1 of control groups, the file
    /// contains only this number; in version 2, its line `max` does.
    pub(crate) fn n_at_limit(&self) -> u64 {
        let text = fs::read_to_string(&self.failures).unwrap_or_default();
        let number = text
            .lines()
            .find_map(|line| line.strip_prefix("max "))
            .unwrap_or(text.trim());
        number.parse().unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can be removed only when it has no processes.
        let _ = fs::remove_dir(&self.path);
    }
}
