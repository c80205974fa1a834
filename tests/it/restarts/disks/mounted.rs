//! Runs the real program on separate file systems: a full tmpfs, an ext4 whose power is cut, an
//! ext4 whose blocks cannot be written, and a read-only ext4.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Case, Received, Trial, check, filler, is_asked_for, say, skip};
use crate::support::backend::Backend;
use crate::support::eventually::eventually;
use crate::support::program::{http, is_acknowledged, metric};

/// A file system that is unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts an ext4 that is stored in a file; `None` if that is impossible.
    fn ext4(path: &Path, image: &Path) -> Option<Self> {
        let options = "loop,errors=remount-ro";
        Self::mount(path, &["-o", options, image.to_str().unwrap()])
    }

    /// Remounts the file system with these options. Returns true on success.
    fn remount(&self, options: &str) -> bool {
        let path = self.0.to_str().unwrap();
        succeeds("mount", &["-o", &format!("remount,{options}"), path])
    }

    fn mount(path: &Path, arguments: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mut command = Command::new("mount");
        let mounted = command.args(arguments).arg(path).output().unwrap();
        mounted.status.success().then(|| Self(path.to_owned()))
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    let silent = command.args(arguments).stdout(Stdio::null());
    silent.status().unwrap().success()
}

/// Creates an ext4 in a sparse file of 96 MiB.
fn make_ext4(image: &Path) {
    let image = image.to_str().unwrap();
    assert!(succeeds("truncate", &["--size=96M", image]));
    let lazy = "lazy_itable_init=1,lazy_journal_init=1";
    assert!(succeeds("mkfs.ext4", &["-q", "-F", "-E", lazy, image]));
}

/// Checks that requests are refused for one of these reasons. `/livez` and `/readyz` must still
/// succeed, because a restart would not repair the disk.
fn is_refused(otlp: &str, admin: &str, reasons: &[&str]) {
    assert!(!is_acknowledged(otlp, &filler(999, 10)));
    for path in ["/livez", "/readyz"] {
        let answer = http(admin, &format!("GET {path}"), &[]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let states = ["ok", "full", "disk_full", "disk_error"];
    let state = states.into_iter().find(|state| {
        let series = format!("spanscore_journal_state{{log=\"requests\",state=\"{state}\"}}");
        metric(admin, &series) > 0.0
    });
    let state = state.unwrap();
    assert!(reasons.contains(&state), "{state}, expected {reasons:?}");
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Unmount lazily, because after a failed test a process may still use the mount.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_requests_within_a_second_of_having_room() {
    let test = "a_full_disk_takes_requests_within_a_second_of_having_room";
    if !is_asked_for(test, &["mount", "umount"], true) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let size = ["-t", "tmpfs", "-o", "size=24m", "tmpfs"];
    let Some(disk) = Mounted::mount(&folder.path().join("disk"), &size) else {
        return skip(test, "a tmpfs cannot be mounted here");
    };
    let address = Backend::start_apart().await.address.to_string();
    let case = Case {
        folder: folder.path(),
        journal: disk.0.join("journal"),
        requests: &[],
    };
    let mut sidecar = case.start(&format!("http://{address}"), None);
    let [otlp, admin] = sidecar.addresses();
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    let mut acknowledged = BTreeSet::new();
    let mut next = 0;
    let mut send = |acknowledged: &mut BTreeSet<String>| {
        let is_taken = is_acknowledged(&otlp, &filler(next, 300_000));
        if is_taken {
            acknowledged.insert(format!("filler {next}"));
        }
        next += 1;
        is_taken
    };
    while send(&mut acknowledged) {}
    assert!(acknowledged.len() > 10, "{}", acknowledged.len());
    let state = "spanscore_journal_state{log=\"requests\",state=\"disk_full\"}";
    assert_eq!(metric(&admin, state), 1.0);
    for path in ["/livez", "/readyz"] {
        let answer = http(&admin, &format!("GET {path}"), &[]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let now = || -> Instant { spanscore::sidecar::now().instant };
    std::fs::remove_file(&ballast).unwrap();
    let freed = now();
    eventually("room", || send(&mut acknowledged).then_some(())).await;
    let after = now().saturating_duration_since(freed);
    say(&format!("{test}: {} ms", after.as_millis()));
    assert!(after < Duration::from_secs(1), "{after:?}");

    // The disk is full again. This time, delivery to the downstream frees space.
    while send(&mut acknowledged) {}
    let backend = Backend::start_at(&address).await;
    eventually("room", || send(&mut acknowledged).then_some(())).await;
    let mut received = Received::default();
    let is_missing = |received: &Received| {
        let mut names = acknowledged.iter();
        names.any(|name| !received.spans.contains_key(name))
    };
    eventually("everything acknowledged arrives", || {
        (!is_missing(received.update(&backend))).then_some(())
    })
    .await;
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
}

/// Simulates a power cut of a file system (`EXT4_IOC_SHUTDOWN` without a flush): nothing is written
/// any more, not even queued data, and every access fails.
const CUT_POWER: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";

#[tokio::test(flavor = "multi_thread")]
async fn an_ext4_whose_power_is_cut_has_everything_acknowledged() {
    let test = "an_ext4_whose_power_is_cut_has_everything_acknowledged";
    let programs = ["mount", "umount", "python3", "mkfs.ext4", "truncate"];
    let Some(trial) = Trial::begin(test, &programs, true).await else {
        return;
    };
    let requests = &trial.requests;
    for n_before in [1, 8, requests.len()] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        make_ext4(&image);
        let path = folder.path().join("disk");
        let Some(disk) = Mounted::ext4(&path, &image) else {
            return skip(test, "a loop device cannot be mounted here");
        };
        // This backend stops immediately. Nothing listens there, so requests are only on disk.
        let address = Backend::start_apart().await.address.to_string();
        let endpoint = format!("http://{address}");
        let case = trial.case(folder.path(), path.join("journal"));
        let mut first = case.start(&endpoint, None);
        let [otlp, admin] = first.addresses();
        let before = Case {
            requests: &requests[..n_before],
            journal: case.journal.clone(),
            ..case
        };
        assert_eq!(before.send(&mut first, &otlp, 0, false), n_before);
        assert!(succeeds(
            "python3",
            &["-c", CUT_POWER, path.to_str().unwrap()]
        ));
        // The disk fails while the process is still running.
        is_refused(&otlp, &admin, &["disk_error"]);
        first.signal(Signal::KILL);
        first.child.wait().unwrap();
        drop(disk);

        let _disk = Mounted::ext4(&path, &image).expect("the file system comes back");
        let backend = Backend::start_at(&address).await;
        let mut second = case.start(&endpoint, None);
        let [otlp, _] = second.addresses();
        let n_sent = case.send(&mut second, &otlp, n_before, false);
        assert_eq!(n_sent, requests.len());
        let mut received = Received::default();
        let what = format!("power cut after {n_before} requests");
        case.finish(second, &backend, &mut received, &what).await;
        check(&what, requests, &received, &trial.expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_to_write_has_everything_acknowledged() {
    let test = "a_disk_that_fails_to_write_has_everything_acknowledged";
    let programs = ["mount", "umount", "mkfs.ext4", "truncate"];
    let Some(trial) = Trial::begin(test, &programs, true).await else {
        return;
    };
    let requests = &trial.requests;
    let folder = tempfile::tempdir().unwrap();
    let size = ["-t", "tmpfs", "-o", "size=24m", "tmpfs"];
    let Some(below) = Mounted::mount(&folder.path().join("below"), &size) else {
        return skip(test, "a tmpfs cannot be mounted here");
    };
    // The disk is larger than the file system that contains its image. When that file system is
    // full, the disk's blocks cannot be written.
    let image = below.0.join("image");
    make_ext4(&image);
    let path = folder.path().join("disk");
    let Some(disk) = Mounted::ext4(&path, &image) else {
        return skip(test, "a loop device cannot be mounted here");
    };
    let ballast = below.0.join("ballast");
    std::fs::write(&ballast, vec![1; 12 << 20]).unwrap();
    // This backend stops immediately. Nothing listens there, so requests are only on disk.
    let address = Backend::start_apart().await.address.to_string();
    let endpoint = format!("http://{address}");
    let case = trial.case(folder.path(), path.join("journal"));
    let mut first = case.start(&endpoint, None);
    let [otlp, admin] = first.addresses();
    let n_before = case.send(&mut first, &otlp, 0, false);
    assert!(0 < n_before && n_before < requests.len(), "{n_before}");
    // The kernel reports that the disk is full until the journal of ext4 itself cannot be written.
    is_refused(&otlp, &admin, &["disk_full", "disk_error"]);
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    drop(disk);

    std::fs::remove_file(&ballast).unwrap();
    let _disk = Mounted::ext4(&path, &image).expect("the file system comes back");
    let backend = Backend::start_at(&address).await;
    let mut second = case.start(&endpoint, None);
    let [otlp, _] = second.addresses();
    let n_sent = case.send(&mut second, &otlp, n_before, false);
    assert_eq!(n_sent, requests.len());
    let mut received = Received::default();
    case.finish(second, &backend, &mut received, test).await;
    check(test, requests, &received, &trial.expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_turns_read_only_refuses_requests_and_keeps_what_it_has() {
    let test = "a_disk_that_turns_read_only_refuses_requests_and_keeps_what_it_has";
    let programs = ["mount", "umount", "mkfs.ext4", "truncate"];
    let Some(trial) = Trial::begin(test, &programs, true).await else {
        return;
    };
    let requests = &trial.requests;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    make_ext4(&image);
    let path = folder.path().join("disk");
    let Some(disk) = Mounted::ext4(&path, &image) else {
        return skip(test, "a loop device cannot be mounted here");
    };
    // This backend stops immediately. Nothing listens there, so requests are only on disk.
    let address = Backend::start_apart().await.address.to_string();
    let endpoint = format!("http://{address}");
    let case = trial.case(folder.path(), path.join("journal"));
    let n_before = 8;
    let before = Case {
        requests: &requests[..n_before],
        journal: case.journal.clone(),
        ..case
    };
    let mut first = case.start(&endpoint, None);
    let [otlp, admin] = first.addresses();
    assert_eq!(before.send(&mut first, &otlp, 0, false), n_before);
    // The kernel does this to a file system in which it detects an error.
    assert!(disk.remount("abort"));
    is_refused(&otlp, &admin, &["disk_error"]);
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    drop(disk);

    // A sidecar that starts on a read-only disk accepts requests as soon as the disk is writable,
    // without a restart.
    let disk = Mounted::ext4(&path, &image).expect("the file system comes back");
    assert!(disk.remount("ro"));
    let error = std::fs::write(path.join("file"), "").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    let backend = Backend::start_at(&address).await;
    let mut second = case.start(&endpoint, None);
    let [otlp, admin] = second.addresses();
    is_refused(&otlp, &admin, &["disk_error"]);
    assert!(disk.remount("rw"));
    let n_sent = case.send(&mut second, &otlp, n_before, true);
    assert_eq!(n_sent, requests.len());
    let mut received = Received::default();
    case.finish(second, &backend, &mut received, test).await;
    check(test, requests, &received, &trial.expected);
}
