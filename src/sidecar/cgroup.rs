//! Finds the memory limit of this process's control group, v1 or v2, nested or not. The caller
//! supplies the function that reads the kernel's files.

use std::path::{Path, PathBuf};

/// A v1 limit of at least this size means no limit: a group without one reports the largest
/// multiple of the page size that fits into an `i64`, and no machine has an exbibyte.
const NO_LIMIT_V1: usize = 1 << 60;

/// Returns the lowest memory limit of our control group and all its parents, in bytes; `None` if
/// there is none.
///
/// `read` returns a file's text. The kernel enforces every limit on the path to the root, so a
/// limit of the pod or of a systemd slice counts as much as our own. Sources: cgroups(7) for
/// `/proc/self/cgroup`, proc_pid_mountinfo(5) for the mount points of the hierarchies.
pub fn memory_limit(read: impl Fn(&Path) -> Option<String>) -> Option<usize> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    [Hierarchy::V2, Hierarchy::V1]
        .into_iter()
        .filter_map(|hierarchy| {
            let group = hierarchy.group(&groups)?;
            let mount = mounts.lines().find_map(|line| hierarchy.mount(line))?;
            hierarchy.lowest_limit(mount, group, &read)
        })
        .min()
}

#[derive(Debug, Clone, Copy)]
enum Hierarchy {
    V1,
    V2,
}

impl Hierarchy {
    /// Returns our group's path from `/proc/self/cgroup`: `0::/path` (v2), `4:memory:/path` (v1).
    fn group(self, groups: &str) -> Option<&str> {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_ours = match self {
                Self::V2 => id == "0" && controllers.is_empty(),
                Self::V1 => controllers.split(',').any(|name| name == "memory"),
            };
            is_ours.then_some(path)
        })
    }

    /// Parses a line of `/proc/self/mountinfo`, if it is about this hierarchy: `36 35 98:0 /root
    /// /mount/point rw,noatime … - cgroup2 cgroup rw,memory`. Returns the group at the root of the
    /// mount, and the mount point.
    fn mount(self, line: &str) -> Option<(&str, PathBuf)> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut filesystem = filesystem.split(' ');
        let kind = filesystem.next()?;
        let options = filesystem.nth(1).unwrap_or_default();
        let is_ours = match self {
            Self::V2 => kind == "cgroup2",
            Self::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        };
        is_ours.then(|| (root, PathBuf::from(unescape(point))))
    }

    fn lowest_limit(
        self,
        (root, point): (&str, PathBuf),
        group: &str,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Option<usize> {
        let file = match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        };
        // Without a separate namespace, a container reads its group's path from the host's root,
        // but only a part of the tree is mounted. A path outside of the mount (`/..`) means that
        // our group is the root of the mount or above it.
        let below_mount = group
            .strip_prefix(root.trim_end_matches('/'))
            .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            .filter(|rest| !rest.split('/').any(|part| part == ".."))
            .unwrap_or_default();
        let own = point.join(below_mount.trim_start_matches('/'));
        own.ancestors()
            .take_while(|folder| folder.starts_with(&point))
            .filter_map(|folder| read(&folder.join(file)))
            .filter_map(|text| text.trim().parse::<usize>().ok())
            .filter(|limit| *limit < NO_LIMIT_V1)
            .min()
    }
}

/// Decodes a mount point, in which spaces and similar characters are octal escapes.
fn unescape(point: &str) -> String {
    point
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    fn limit_of(files: &[(&str, &str)]) -> Option<usize> {
        memory_limit(|path| {
            files
                .iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn a_container_with_a_namespace_of_its_own_has_its_limit_at_the_mount() {
        let files = [
            ("/proc/self/cgroup", "0::/\n"),
            ("/proc/self/mountinfo", V2),
            ("/sys/fs/cgroup/memory.max", "134217728\n"),
        ];
        assert_eq!(limit_of(&files), Some(128 << 20));
    }

    #[test]
    fn systemd_sets_the_limit_on_the_unit_or_on_a_slice_above_it() {
        let unit = "0::/system.slice/agents.slice/spanscore.service\n";
        let mut files = vec![
            ("/proc/self/cgroup", unit),
            ("/proc/self/mountinfo", V2),
            (
                "/sys/fs/cgroup/system.slice/agents.slice/spanscore.service/memory.max",
                "268435456\n",
            ),
            ("/sys/fs/cgroup/system.slice/memory.max", "max\n"),
        ];
        assert_eq!(limit_of(&files), Some(256 << 20));
        files.push((
            "/sys/fs/cgroup/system.slice/agents.slice/memory.max",
            "67108864\n",
        ));
        assert_eq!(limit_of(&files), Some(64 << 20));
    }

    #[test]
    fn v1_reads_the_memory_controller_and_ignores_its_number_for_no_limit() {
        let mounts = "\
            33 32 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n\
            34 32 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let mut files = vec![
            (
                "/proc/self/cgroup",
                "5:cpu:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n",
            ),
            ("/proc/self/mountinfo", mounts),
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(limit_of(&files), None);
        files[2].1 = "134217728\n";
        assert_eq!(limit_of(&files), Some(128 << 20));
    }

    #[test]
    fn a_host_namespace_shows_the_whole_path_and_a_nested_group_its_own_limit() {
        let files = [
            ("/proc/self/cgroup", "0::/kubepods/pod1/spanscore/worker\n"),
            (
                "/proc/self/mountinfo",
                "30 23 0:26 /kubepods/pod1/spanscore /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            ("/sys/fs/cgroup/memory.max", "134217728\n"),
            ("/sys/fs/cgroup/worker/memory.max", "100663296\n"),
        ];
        assert_eq!(limit_of(&files), Some(96 << 20));
    }

    #[test]
    fn a_group_outside_of_the_mount_counts_as_its_root() {
        let files = [
            ("/proc/self/cgroup", "0::/../sibling\n"),
            ("/proc/self/mountinfo", V2),
            ("/sys/fs/cgroup/memory.max", "134217728\n"),
        ];
        assert_eq!(limit_of(&files), Some(128 << 20));
    }

    #[test]
    fn no_control_group_is_no_limit() {
        assert_eq!(limit_of(&[]), None);
        let files = [
            ("/proc/self/cgroup", "0::/user.slice\n"),
            ("/proc/self/mountinfo", V2),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ];
        assert_eq!(limit_of(&files), None);
    }
}
