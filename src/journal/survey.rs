//! Summarises a journal's folder for `spanscore journal`: the undelivered records, their age, and
//! damage. Changes nothing, and may run while a process uses the folder.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::consumed::N_OUTLETS;
use super::format::{RECORDS_AT, request_signal};
use super::recover::{parts_at, scan};
use super::reopen::{Damage, SurveyedSegment, recover};
use super::segment::{OpenError, RecordKind};
use super::storage::{Folder, Storage};

#[derive(Debug)]
pub struct JournalSurvey {
    /// The process that uses the folder. The numbers may change while it runs.
    pub in_use_by: Option<String>,
    pub requests: LogSurvey,
    pub scores: LogSurvey,
}

#[derive(Debug, Default)]
pub struct LogSurvey {
    /// The segments, oldest first.
    pub segments: Vec<SurveyedSegment>,
    pub damage: Vec<Damage>,
}

/// Reads the folder of a journal.
///
/// # Errors
/// Returns an error if the folder is not a journal, cannot be read, or is of another version.
pub fn survey(directory: &Path) -> Result<JournalSurvey, OpenError> {
    let in_use_by = process_with(&directory.join("lock"));
    let is_in_use = in_use_by.is_some();
    let requests = survey_log(directory, super::REQUESTS, is_in_use)?;
    let scores = match survey_log(directory, super::SCORES, is_in_use) {
        // An older spanscore, or one that sends no scores, has no log of scores.
        Err(OpenError::FileFault(fault)) if fault.error.kind() == ErrorKind::NotFound => {
            LogSurvey::default()
        }
        log => log?,
    };
    Ok(JournalSurvey {
        in_use_by,
        requests,
        scores,
    })
}

fn survey_log(directory: &Path, folder: &str, is_in_use: bool) -> Result<LogSurvey, OpenError> {
    let storage: Arc<dyn Storage> = Arc::new(Folder::read_only(&directory.join(folder)));
    let recovery = recover(&storage, None, [true; N_OUTLETS])?;
    let (segments, mut damage) = (recovery.surveyed, recovery.recovered.damage);
    if is_in_use {
        // The process writes to the last segment, and may have removed the first ones.
        let last = recovery.segments.last().map(|segment| &segment.name);
        damage.retain(|it| Some(&it.file) != last && (it.offset > 0 || it.n_bytes > 0));
    }
    Ok(LogSurvey { segments, damage })
}

/// Returns the process that has locked the folder.
fn process_with(lock: &Path) -> Option<String> {
    let file = File::open(lock).ok()?;
    let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let process = || fs::read_to_string(lock).unwrap_or_default();
    is_locked.then(|| process().trim().to_owned())
}

/// Returns all intact requests in the bytes of a segment, delivered or not, each as its signal (0,
/// 1 or 2) and its body; `None` if the segment's head is damaged or of another version.
pub fn segment_requests(bytes: &bytes::Bytes) -> Option<Vec<(u8, bytes::Bytes)>> {
    let head = super::format::head_of(bytes).ok()?;
    let records_at = usize::try_from(RECORDS_AT).ok()?;
    let records = bytes.slice(records_at.min(bytes.len())..);
    let found = scan(&records, &head, None, 0).records.into_iter();
    let requests = found.filter(|found| found.head.kind == RecordKind::Request as u8);
    let requests = requests.filter_map(|found| {
        let (_, body) = parts_at(&records, found.at, &found.head)?;
        Some((request_signal(found.head.signal), records.slice_ref(body)))
    });
    Some(requests.collect())
}
