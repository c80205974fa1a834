//! Keeps acknowledged requests on the disk until they are delivered and judged. Knows files,
//! checksums and crashes; knows nothing of OTLP, queues or traces. The clock and randomness are
//! arguments.

mod format;
mod recover;
mod storage;

mod segment;

mod cursor;

mod reopen;

mod reader;

mod store;

mod resent;

mod keeper;

mod judged;

mod survey;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

pub use format::Needed;
pub use judged::{JudgedMarks, ScoresLeaving};
pub use keeper::{Clock, Done, JournalLog};
pub use reader::{LogReader, Stored, Stretch};
pub use segment::RecordKind;
pub use store::{AppendError, LogSettings, Record};
pub use survey::{
    JournalSurvey, SegmentRequest, SurveyedSegment, is_segment, segment_requests, survey,
};

use crate::telemetry::{
    JournalCursorLost, JournalDamaged, JournalInMemory, JournalMetrics, JournalOpened,
    JournalTailTorn, JournalTooNew, Telemetry,
};
use keeper::{CursorKeeper, LogKeeper, LogShared, MAX_WAITING, Refusals};
use reopen::{OpenError, Recovered};
use resent::{AFTER_START, LastRecords};
use storage::{Folder, Storage};
use store::Store;

/// The folder of the requests.
const REQUESTS: &str = "requests";

/// The folder of what could not be read.
const DAMAGED: &str = "damaged";

/// Whether the folder of a journal is kept in memory: its requests end with the machine.
pub fn is_in_memory(directory: &Path) -> bool {
    storage::is_in_memory(directory)
}

/// Why the journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has it.
    #[error(
        "journal.directory: `{folder}` is in use by process {process}; give each instance a \
         folder of its own"
    )]
    InUse {
        /// The folder.
        folder: String,
        /// The process that has it.
        process: String,
    },
    /// The folder cannot be used.
    #[error("journal.directory: `{file}` cannot be used: {error}")]
    Folder {
        /// The folder or file.
        file: String,
        /// Why.
        error: io::Error,
    },
}

/// The journal's folder, which no other process has while this value lives.
#[derive(Debug)]
pub struct JournalFolder {
    path: PathBuf,
    _lock: File,
}

/// An open log, and where it begins.
#[derive(Debug)]
pub struct OpenLog {
    /// Takes records.
    pub log: JournalLog,
    /// Reads what waits.
    pub reader: LogReader,
    /// The oldest record that waits.
    pub low: u64,
    /// Behind the last record.
    pub end: u64,
    /// What the score plane needs of it.
    pub past: Past,
    /// Its thread, which [`Keeping::end`] ends.
    pub keeping: Keeping,
}

/// What a log holds for the score plane, from before the start.
#[derive(Debug)]
pub struct Past {
    /// Reads marks.
    pub marks: LogReader,
    /// Reads requests.
    pub requests: LogReader,
    /// Its records.
    pub needed: Needed,
    /// Behind the last of them.
    pub end: u64,
    /// When the log was last known to be kept, in Unix nanoseconds, if nothing of it is missing
    /// since [`Needed::since_unix_nanos`].
    pub whole_until: Option<u64>,
}

/// The thread of a log, and the lock of its folder.
#[derive(Debug)]
pub struct Keeping {
    log: JournalLog,
    thread: JoinHandle<()>,
    _folder: JournalFolder,
}

impl Keeping {
    /// Writes down what is consumed and ends the thread. Blocks.
    pub fn end(self) {
        self.log.end();
        // A panic was reported when it happened.
        let _ = self.thread.join();
    }
}

impl JournalFolder {
    /// Makes the folder unless it exists, and locks it. `None` if another process has it.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    pub fn lock(path: &Path) -> Result<Option<Self>, JournalError> {
        let unusable = |file: &Path| {
            let file = file.display().to_string();
            move |error| JournalError::Folder { file, error }
        };
        Folder::make(path).map_err(unusable(path))?;
        let name = path.join("lock");
        let mut options = OpenOptions::new();
        let mut lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(unusable(&name))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(unusable(&name)(error)),
        }
        // For whoever finds it locked. It locks as well without.
        let _ = lock.set_len(0);
        let _ = write!(lock, "{}", std::process::id());
        Ok(Some(Self {
            path: path.to_owned(),
            _lock: lock,
        }))
    }

    /// The error for a folder that another process keeps.
    pub fn in_use(path: &Path) -> JournalError {
        let process = fs::read_to_string(path.join("lock")).unwrap_or_default();
        JournalError::InUse {
            folder: path.display().to_string(),
            process: match process.trim() {
                "" => "unknown".to_owned(),
                process => process.to_owned(),
            },
        }
    }

    /// Opens the log of requests and starts its thread. What was written by a newer version is set
    /// aside.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn open_requests(
        self,
        settings: LogSettings,
        clock: Clock,
        mut rng: fastrand::Rng,
        telemetry: &Telemetry,
    ) -> Result<OpenLog, JournalError> {
        let (begun, _) = clock();
        let path = self.path.join(REQUESTS);
        let damaged: Arc<dyn Storage> = Arc::new(self.folder(DAMAGED)?);
        let (store, recovered) = match self.open_store(&damaged, settings, rng.fork())? {
            Ok(opened) => opened,
            Err(version) => {
                self.set_newer_aside(&path, version, clock, telemetry)?;
                match self.open_store(&damaged, settings, rng.fork())? {
                    Ok(opened) => opened,
                    Err(_) => return Err(unusable(&path, io::ErrorKind::InvalidData.into())),
                }
            }
        };
        if is_in_memory(&path) {
            JournalInMemory {
                folder: self.path.display().to_string(),
            }
            .emit();
        }
        let (now, _) = clock();
        report(&recovered, &path, telemetry);
        JournalOpened {
            folder: self.path.display().to_string(),
            n_restored: recovered.counts,
            n_bytes: recovered.n_bytes,
            oldest: recovered.oldest,
            took: now.saturating_duration_since(begun),
        }
        .emit(telemetry);
        let past = Past {
            marks: store.past_reader(Arc::clone(&damaged), &[RecordKind::Judged]),
            requests: store.past_reader(
                Arc::clone(&damaged),
                &[RecordKind::Request, RecordKind::Scored],
            ),
            needed: store.needed(),
            end: store.next_sequence(),
            whole_until: recovered.stopped.filter(|_| recovered.is_past_whole),
        };
        let reader = store.reader(damaged);
        let (low, end) = (store.low(), store.next_sequence());
        let metrics = JournalMetrics::new(REQUESTS, store.capacity());
        let (storage, segments) = store.segments();
        let last = (LastRecords::find(storage, &segments), now + AFTER_START);
        let shared = Arc::new(LogShared::new(metrics, store.room(), last));
        let (sender, inbox) = sync_channel(MAX_WAITING);
        let (consumed, wakes) = sync_channel(1);
        let log = JournalLog::new(sender.clone(), consumed, Arc::clone(&shared), clock);
        let cursor_keeper = CursorKeeper {
            wakes,
            progress: store.progress(),
            shared: Arc::clone(&shared),
            clock,
            keeper: sender,
        };
        let keeper = LogKeeper {
            store,
            inbox,
            shared,
            clock,
            refusals: Refusals::default(),
            sync_at: None,
            probe_at: None,
            touch_at: None,
            unwritten_said_at: None,
        };
        let thread = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || keeper.run())
            .map_err(|error| unusable(&path, error))?;
        thread::Builder::new()
            .name("journal-cursor".to_owned())
            .spawn(move || cursor_keeper.run())
            .map_err(|error| unusable(&path, error))?;
        let keeping = Keeping {
            log: log.clone(),
            thread,
            _folder: self,
        };
        Ok(OpenLog {
            log,
            reader,
            low,
            end,
            past,
            keeping,
        })
    }

    fn folder(&self, name: &str) -> Result<Folder, JournalError> {
        let path = self.path.join(name);
        Folder::make(&path).map_err(|error| unusable(&path, error))
    }

    /// The version, if a newer program wrote the log.
    fn open_store(
        &self,
        damaged: &Arc<dyn Storage>,
        settings: LogSettings,
        rng: fastrand::Rng,
    ) -> Result<Result<(Store, Recovered), u32>, JournalError> {
        let storage: Arc<dyn Storage> = Arc::new(self.folder(REQUESTS)?);
        match Store::open(storage, &**damaged, settings, rng) {
            Ok(opened) => Ok(Ok(opened)),
            Err(OpenError::Newer(version)) => Ok(Err(version)),
            Err(OpenError::FileFault(fault)) => {
                let file = self.path.join(REQUESTS).join(fault.file);
                Err(unusable(&file, fault.error))
            }
        }
    }

    fn set_newer_aside(
        &self,
        path: &Path,
        version: u32,
        clock: Clock,
        telemetry: &Telemetry,
    ) -> Result<(), JournalError> {
        let (_, unix_nanos) = clock();
        let name = format!("{REQUESTS}-{}", unix_nanos / 1_000_000_000);
        let aside = self.path.join(DAMAGED).join(name);
        fs::rename(path, &aside).map_err(|error| unusable(path, error))?;
        JournalTooNew {
            folder: path.display().to_string(),
            moved_to: aside.display().to_string(),
            version,
        }
        .emit(telemetry);
        Ok(())
    }
}

fn unusable(file: &Path, error: io::Error) -> JournalError {
    JournalError::Folder {
        file: file.display().to_string(),
        error,
    }
}

fn report(recovered: &Recovered, path: &Path, telemetry: &Telemetry) {
    if recovered.is_cursor_lost {
        JournalCursorLost {
            folder: path.display().to_string(),
        }
        .emit();
    }
    if let Some(name) = &recovered.torn {
        JournalTailTorn {
            file: path.join(name).display().to_string(),
        }
        .emit();
    }
    for damage in &recovered.damage {
        JournalDamaged {
            file: path.join(&damage.file).display().to_string(),
            offset: damage.offset,
            n_bytes: damage.n_bytes,
            n_records: damage.n_records,
            copy: damage.copy.clone(),
        }
        .emit(telemetry);
        for (signal, n_items) in ["traces", "logs", "metrics"].into_iter().zip(damage.counts) {
            crate::telemetry::ItemsDropped {
                signal,
                n_items,
                reason: "damaged",
            }
            .emit(telemetry);
        }
    }
}
