//! The folder of a journal: its lock, and its logs at the start. Opening can be retried, because an
//! unusable disk may become usable.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::consumed::{Consumed, Delivered};
use super::format::{Needed, OUTLETS, Outlet, SignalCounts, add_counts};
use super::reader::{LogReader, Wanted};
use super::reopen::Recovered;
use super::segment::{OpenError, RecordKind};
use super::storage::{Folder, Storage, is_in_memory};
use super::store::{AppendError, LogSettings, Store};
use crate::sync::Mutex;
use crate::telemetry::{
    JournalAbandoned, JournalCursorLost, JournalInMemory, JournalOpened, JournalOtherVersion,
    JournalTailTorn, JournaledScoresFound, Telemetry,
};

/// Reads both clocks: the monotonic time, and Unix time in nanoseconds.
pub type Clock = fn() -> (Instant, u64);

/// The folder for copies of damaged bytes, and for logs of another version.
const DAMAGED: &str = "damaged";

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(
        "cannot use `journal.directory`: process {process} has locked `{folder}`; give each \
         instance its own folder"
    )]
    InUse { folder: String, process: String },
    #[error("cannot use `journal.directory`: `{file}`: {error}")]
    Folder { file: String, error: io::Error },
}

impl JournalError {
    /// Returns true if the folder can become usable when a disk is freed, repaired or mounted.
    /// Otherwise the configuration is wrong.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::InUse { .. } => false,
            Self::Folder { error, .. } => !matches!(
                error.kind(),
                // A file has the name of the folder or of one of its parents.
                io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists
            ),
        }
    }

    pub(super) fn refusal(&self) -> AppendError {
        match self {
            Self::Folder { error, .. } => AppendError::of(error),
            Self::InUse { .. } => AppendError::DiskFailed,
        }
    }
}

/// The journal's folder. While a locked value exists, no other process uses the folder.
#[derive(Debug)]
pub struct JournalFolder {
    path: PathBuf,
    lock: Mutex<Option<File>>,
}

impl JournalFolder {
    /// Returns a folder that is created and locked when one of its logs is opened.
    pub fn unlocked(path: &Path) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            lock: Mutex::default(),
        })
    }

    /// Creates the folder if it does not exist, and locks it. Returns `None` if another process has
    /// locked it.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or written.
    pub fn lock(path: &Path) -> Result<Option<Arc<Self>>, JournalError> {
        let folder = Self::unlocked(path);
        Ok(folder.acquire()?.then_some(folder))
    }

    /// Locks the folder, unless this process has locked it already. Returns true if this process
    /// has the lock.
    fn acquire(&self) -> Result<bool, JournalError> {
        let mut held = self.lock.lock();
        if held.is_some() {
            return Ok(true);
        }
        Folder::make(&self.path).map_err(|error| unusable(&self.path, error))?;
        let name = self.path.join("lock");
        let mut options = OpenOptions::new();
        let mut lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(|error| unusable(&name, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(unusable(&name, error)),
        }
        // Another process that cannot get the lock shows this process id. The lock does not depend
        // on the content of the file.
        let _ = lock.set_len(0);
        let _ = write!(lock, "{}", std::process::id());
        *held = Some(lock);
        Ok(true)
    }

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

    pub(super) fn unusable(&self, error: io::Error) -> JournalError {
        unusable(&self.path, error)
    }

    fn folder(&self, name: &str) -> Result<Folder, JournalError> {
        let path = self.path.join(name);
        Folder::make(&path).map_err(|error| unusable(&path, error))
    }
}

fn unusable(file: &Path, error: io::Error) -> JournalError {
    JournalError::Folder {
        file: file.display().to_string(),
        error,
    }
}

/// An open log, from which readers are created.
#[derive(Debug)]
pub struct OpenedLog {
    pub past: Past,
    delivered: Delivered,
    recovered: Recovered,
    /// Damaged records that a reader has reported.
    reported: Arc<Mutex<Consumed>>,
}

impl OpenedLog {
    /// Returns the undelivered records of an outlet: the oldest one, and one more than the last.
    pub fn waiting(&self, outlet: Outlet) -> Range<u64> {
        let end = self.past.end;
        self.delivered.0[outlet.index()].low.min(end)..end
    }

    /// Returns a reader of the undelivered records of an outlet, oldest first.
    pub fn reader(&self, outlet: Outlet) -> LogReader {
        let wanted = Wanted::Waiting {
            consumed: self.delivered.0[outlet.index()].clone(),
            outlet,
            reported: Arc::clone(&self.reported),
        };
        LogReader {
            wanted,
            ..self.past.requests.clone()
        }
    }

    /// Returns the undelivered items of an outlet, and how many of them are damaged.
    pub fn n_waiting(&self, outlet: Outlet) -> [SignalCounts; 2] {
        let mut damaged = SignalCounts::default();
        for damage in self
            .recovered
            .damage
            .iter()
            .filter(|it| it.lost_by[outlet.index()])
        {
            add_counts(&mut damaged, &damage.counts);
        }
        [self.recovered.counts[outlet.index()], damaged].map(|counts| outlet.counts(&counts))
    }
}

/// The records that scoring reads again after a start.
#[derive(Debug, Clone)]
pub struct Past {
    pub marks: LogReader,
    pub requests: LogReader,
    pub needed: Needed,
    /// One more than the number of the log's last record at the opening.
    pub end: u64,
    /// The duration from the time in the cursor to the opening; the maximum if the clock ran
    /// backwards. `None` if there was no readable cursor, or if records that scoring needs may be
    /// missing.
    pub silence: Option<Duration>,
    /// Time of the opening. Before it, this process stored no request.
    pub opened_unix_nanos: u64,
}

#[derive(Debug)]
pub(super) struct Opener {
    pub(super) folder: Arc<JournalFolder>,
    pub(super) settings: LogSettings,
    pub(super) clock: Clock,
    pub(super) rng: fastrand::Rng,
    pub(super) telemetry: Arc<Telemetry>,
}

impl Opener {
    /// Locks the folder, opens the log and reports its content. Moves a log of another version
    /// aside.
    pub(super) fn open(&mut self) -> Result<(Store, OpenedLog), JournalError> {
        if !self.folder.acquire()? {
            return Err(JournalFolder::in_use(&self.folder.path));
        }
        let (begun, _) = (self.clock)();
        let path = self.folder.path.join(self.settings.name());
        let damaged: Arc<dyn Storage> = Arc::new(self.folder.folder(DAMAGED)?);
        let (mut store, recovered) = loop {
            let storage = Arc::new(self.folder.folder(self.settings.name())?);
            match Store::open(storage, &*damaged, self.settings, self.rng.fork()) {
                Ok(opened) => break opened,
                Err(OpenError::OtherVersion(version)) => self.set_other_aside(&path, version)?,
                Err(OpenError::FileFault(fault)) => {
                    return Err(unusable(&path.join(fault.file), fault.error));
                }
            }
        };
        let folder = || self.folder.path.display().to_string();
        let is_of_scores = self.settings.drops_oldest;
        if !is_of_scores && is_in_memory(&path) {
            JournalInMemory { folder: folder() }.emit();
        }
        let (now, unix_nanos) = (self.clock)();
        let waiting = OUTLETS.map(|outlet| outlet.counts(&recovered.counts[outlet.index()]));
        report(&recovered, &path, &self.telemetry);
        if is_of_scores {
            JournaledScoresFound {
                folder: folder(),
                n_bytes: recovered.n_bytes,
                oldest: recovered.oldest,
            }
            .emit();
        } else {
            JournalOpened {
                folder: folder(),
                n_restored: std::array::from_fn(|idx| waiting[0][idx].max(waiting[1][idx])),
                n_bytes: recovered.n_bytes,
                oldest: recovered.oldest,
                took: now.saturating_duration_since(begun),
            }
            .emit();
        }
        let (storage, index) = store.segments();
        let progress = &mut store.progress;
        if !recovered.is_past_whole {
            progress.release(Needed {
                from: 0,
                since_unix_nanos: unix_nanos,
            });
        }
        // Write the cursor before the first request. It contains the time from which on the log is
        // complete, which the next start needs even after a kill. If this write fails, the next one
        // reports the failure.
        let _ = progress.write(unix_nanos);
        let delivered = progress.delivered.clone();
        let marks = LogReader {
            storage,
            damaged,
            index,
            wanted: Wanted::Kind(RecordKind::Judged),
            position: None,
        };
        let requests = LogReader {
            wanted: Wanted::Kind(RecordKind::Request),
            ..marks.clone()
        };
        let stopped = recovered.stopped.filter(|_| recovered.is_past_whole);
        let past = Past {
            marks,
            requests,
            needed: store.progress.needed,
            end: store.next_sequence,
            // If the clock ran backwards, the duration is unknown. Assume the longest.
            silence: stopped
                .map(|stopped| unix_nanos.checked_sub(stopped))
                .map(|nanos| nanos.map_or(Duration::MAX, Duration::from_nanos)),
            opened_unix_nanos: unix_nanos,
        };
        let log = OpenedLog {
            past,
            delivered,
            recovered,
            reported: Arc::default(),
        };
        Ok((store, log))
    }

    fn set_other_aside(&self, path: &Path, version: u32) -> Result<(), JournalError> {
        let (_, unix_nanos) = (self.clock)();
        let name = format!("{}-{}", self.settings.name(), unix_nanos / 1_000_000_000);
        let aside = self.folder.path.join(DAMAGED).join(name);
        fs::rename(path, &aside).map_err(|error| unusable(path, error))?;
        JournalOtherVersion {
            folder: path.display().to_string(),
            moved_to: aside.display().to_string(),
            version,
        }
        .emit(&self.telemetry);
        Ok(())
    }
}

fn report(recovered: &Recovered, path: &Path, telemetry: &Telemetry) {
    let folder = || path.display().to_string();
    let file_of = |name: &str| path.join(name).display().to_string();
    if recovered.is_cursor_lost {
        JournalCursorLost { folder: folder() }.emit();
    }
    if let Some(name) = &recovered.torn {
        let file = file_of(name);
        JournalTailTorn { file }.emit();
    }
    for damage in &recovered.damage {
        damage.emit(file_of(&damage.file), telemetry);
    }
    if recovered.is_abandoned {
        JournalAbandoned { folder: folder() }.emit();
    }
}
