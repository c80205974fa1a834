//! Writes received requests to a folder (`run --record DIR`), from which `replay` and other
//! subcommands read them. A separate thread writes, so that a slow disk delays no request. Requests
//! that do not fit into the queue of the thread are not recorded.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use crate::config::Signal;
use crate::telemetry::{RecordingFailed, RecordingStarted};

/// Maximum bytes of all recorded files in the folder.
const MAX_SIZE: u64 = 64 << 20;
/// Maximum bytes of queued requests.
const MAX_WAITING: usize = 4 << 20;
/// Maximum number of queued requests.
const MAX_REQUESTS: usize = 256;

/// Enqueues requests for the recorder. Never waits.
#[derive(Debug, Clone)]
pub(super) struct Recorder {
    /// Signal, Unix time in nanoseconds, and body of each request.
    sender: SyncSender<(Signal, u64, Bytes)>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    n_waiting_bytes: AtomicUsize,
    has_failed: AtomicBool,
}

impl Recorder {
    /// Starts the thread. The thread stops when the last clone of the
    /// recorder is dropped.
    pub(super) fn start(folder: &Path) -> io::Result<(Self, JoinHandle<()>)> {
        let mut files = RecordFiles::open(folder, MAX_SIZE).map_err(|error| {
            let folder = folder.display();
            io::Error::other(format!("cannot record requests to `{folder}`: {error}"))
        })?;
        RecordingStarted {
            folder: folder.display().to_string(),
            max_size: MAX_SIZE,
        }
        .emit();
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            n_waiting_bytes: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
        });
        let (sender, inbox) = sync_channel::<(Signal, u64, Bytes)>(MAX_REQUESTS);
        let writing = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("record".to_owned())
            .spawn(move || {
                for (signal, unix_nanos, body) in inbox {
                    let written = files.write(signal, unix_nanos / 1_000_000, &body);
                    let waiting = &writing.n_waiting_bytes;
                    waiting.fetch_sub(body.len(), Ordering::Relaxed);
                    if let Err(error) = written {
                        writing.failed(&error.to_string());
                    }
                }
            })?;
        Ok((Self { sender, shared }, thread))
    }

    /// Records a request, unless the queue is full.
    pub(super) fn offer(&self, signal: Signal, body: &Bytes, unix_nanos: u64) {
        let waiting = &self.shared.n_waiting_bytes;
        // Compare before adding, so that an empty queue accepts a request that is larger than the
        // queue.
        let before = waiting.fetch_add(body.len(), Ordering::Relaxed);
        let recorded = (signal, unix_nanos, body.clone());
        let fits = before == 0 || before + body.len() <= MAX_WAITING;
        if !fits || self.sender.try_send(recorded).is_err() {
            waiting.fetch_sub(body.len(), Ordering::Relaxed);
            self.shared
                .failed("requests arrive faster than they can be written");
        }
    }
}

/// Waits until the thread has written everything, for a limited time, because a hanging disk must
/// not delay the scores.
pub(super) async fn finish(recording: JoinHandle<()>, patience: Duration) {
    let joined = tokio::task::spawn_blocking(move || recording.join().is_ok());
    let _ = tokio::time::timeout(patience, joined).await;
}

impl Shared {
    fn failed(&self, error: &str) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            RecordingFailed {
                folder: self.folder.display().to_string(),
                error: error.to_owned(),
            }
            .emit();
        }
    }
}

/// The recorded files of a folder, oldest first, limited in total size.
#[derive(Debug)]
struct RecordFiles {
    folder: PathBuf,
    max_size: u64,
    oldest_first: VecDeque<(String, u64)>,
    size: u64,
    n_written: u64,
}

impl RecordFiles {
    fn open(folder: &Path, max_size: u64) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let mut known = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(part) = name.strip_prefix('.').filter(|name| is_ours(name)) {
                // The file is incomplete, because the process ended while writing it.
                fs::remove_file(folder.join(format!(".{part}")))?;
            } else if is_ours(&name) {
                known.push((name, entry.metadata()?.len()));
            }
        }
        known.sort();
        Ok(Self {
            folder: folder.to_owned(),
            max_size,
            size: known.iter().map(|(_, size)| size).sum(),
            oldest_first: known.into(),
            n_written: 0,
        })
    }

    /// Writes a file atomically, and deletes the oldest recorded files to make space for it. Only
    /// the owner can read the file. Never changes foreign files of the folder.
    fn write(&mut self, signal: Signal, unix_millis: u64, body: &[u8]) -> io::Result<()> {
        let size = body.len() as u64;
        if size > self.max_size {
            return Err(io::Error::other(
                "a request is larger than the folder may be",
            ));
        }
        while self.size + size > self.max_size
            && let Some((oldest, size)) = self.oldest_first.pop_front()
        {
            self.size -= size;
            match fs::remove_file(self.folder.join(oldest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.n_written += 1;
        let (number, signal) = (self.n_written, signal.as_str());
        let name = format!("{unix_millis:013}-{number:06}.{signal}.pb");
        let part = self.folder.join(format!(".{name}"));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)?;
        let written = file
            .write_all(body)
            .and_then(|()| fs::rename(&part, self.folder.join(&name)));
        if let Err(error) = written {
            // Ignore a second error and report the first.
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        self.size += size;
        self.oldest_first.push_back((name, size));
        Ok(())
    }
}

/// Returns true for a name such as `1795392000123-000001.traces.pb`.
fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name
        .strip_suffix(".pb")
        .and_then(|name| name.split_once('.'));
    parts.is_some_and(|(numbers, end)| {
        let numbers = numbers.split_once('-');
        numbers.is_some_and(|(time, number)| is_number(time) && is_number(number))
            && Signal::ALL.iter().any(|signal| signal.as_str() == end)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_files_go_and_foreign_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/records");
        let mut files = RecordFiles::open(&path, 10).unwrap();
        fs::write(path.join("notes.txt"), "mine".repeat(100)).unwrap();
        for millis in 1..=4 {
            files.write(Signal::Traces, millis, b"1234").unwrap();
        }
        let expected = [
            "0000000000003-000003.traces.pb",
            "0000000000004-000004.traces.pb",
            "notes.txt",
        ];
        assert_eq!(names(&path), expected);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(expected[0]))), (0o700, 0o600));
        assert!(files.write(Signal::Logs, 5, &[0; 11]).is_err());

        // After a restart, existing files count towards the limit, and the incomplete record is
        // deleted.
        fs::write(path.join(".0000000000009-000001.logs.pb"), "12").unwrap();
        let mut files = RecordFiles::open(&path, 10).unwrap();
        files.write(Signal::Logs, 9, b"1234").unwrap();
        let expected = [
            "0000000000004-000004.traces.pb",
            "0000000000009-000001.logs.pb",
            "notes.txt",
        ];
        assert_eq!(names(&path), expected);
    }
}
