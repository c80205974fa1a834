//! Opens the journal at the start and ends it last. Knows nothing of its files.

use std::time::Duration;

use super::{StartError, now};
use crate::config;
use crate::journal::{JournalFolder, Keeping, LogSettings, OpenLog};
use crate::telemetry::Telemetry;

/// How long a start waits for another process to leave the folder, and a stop for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the journal, if one is configured.
pub(super) async fn open_journal(
    journal: &config::Journal,
    rng: fastrand::Rng,
    telemetry: &Telemetry,
) -> Result<Option<OpenLog>, StartError> {
    let Some(directory) = &journal.directory else {
        return Ok(None);
    };
    // The previous process may be ending now.
    let give_up_at = now().instant + PATIENCE;
    let folder = loop {
        match JournalFolder::lock(directory)? {
            Some(folder) => break folder,
            None if now().instant >= give_up_at => {
                return Err(JournalFolder::in_use(directory).into());
            }
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let settings = LogSettings::new(journal.max_size.0 as u64, journal.sync);
    let clock = || {
        let now = now();
        (now.instant, now.unix_nanos)
    };
    Ok(Some(folder.open_requests(settings, clock, rng, telemetry)?))
}

/// Writes down what was delivered. A disk that hangs must not keep the process.
pub(super) async fn write_down(journal: Keeping) {
    let ended = tokio::task::spawn_blocking(move || journal.end());
    let _ = tokio::time::timeout(PATIENCE, ended).await;
}
