//! Opens the journal at the start, passes its logs to forwarding and scoring, and closes it last.

use std::sync::Arc;
use std::time::Duration;

use super::rebuild::JournaledTraces;
use super::{StartError, now};
use crate::config::{AtStop, Config};
use crate::journal::{
    JournalError, JournalFolder, JournalLog, JudgedMarks, LogSettings, LogThread,
};
use crate::telemetry::{MetricsSource, Telemetry};

/// Maximum time for which a start waits until another process unlocks the folder, and for which a
/// stop waits for the disk.
const PATIENCE: Duration = Duration::from_secs(4);

/// Requests that wait in the journal to be scored may use the journal's size divided by this
/// number. The journal retains twice as many delivered bytes for scoring.
const UNREAD_SHARE: usize = 8;

/// Handles of a journal's logs; all empty if no journal is configured or needed.
#[derive(Default)]
pub(super) struct JournalParts {
    pub(super) requests: Option<JournalLog>,
    pub(super) scores: Option<JournalLog>,
    pub(super) traces: Option<JournaledTraces>,
    pub(super) metrics: Option<MetricsSource>,
    /// The threads of the logs, in the order in which they must stop. The log of requests is last,
    /// because it records the outcome of scores.
    pub(super) log_threads: Vec<LogThread>,
}

/// Opens the journal, if one is configured and needed. While a disk makes the folder unusable,
/// requests are refused and opening is retried, because a restart would not repair a disk.
pub(super) async fn open_journal(
    config: &Config,
    mut rng: fastrand::Rng,
    telemetry: &Arc<Telemetry>,
) -> Result<JournalParts, StartError> {
    let (journal, is_scored) = (&config.journal, config.scoring.enabled);
    let forwards = config.forward_destination().is_some();
    let is_needed = forwards || is_scored || config.kafka.write.enabled;
    let Some(directory) = journal.directory.as_ref().filter(|_| is_needed) else {
        return Ok(JournalParts::default());
    };
    // The previous process may still be stopping.
    let give_up_at = now().instant + PATIENCE;
    let folder = loop {
        match JournalFolder::lock(directory) {
            Ok(Some(folder)) => break folder,
            Ok(None) if now().instant >= give_up_at => {
                return Err(JournalFolder::in_use(directory).into());
            }
            Ok(None) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) if error.may_pass() => break JournalFolder::unlocked(directory),
            Err(error) => return Err(error.into()),
        }
    };
    let clock = || {
        let now = now();
        (now.instant, now.unix_nanos)
    };
    let (mut logs, mut log_threads) = (Vec::new(), Vec::new());
    let mut open = |settings| {
        let (log, thread) = folder.open(settings, clock, rng.fork(), telemetry)?;
        logs.push(log.clone());
        log_threads.insert(0, thread);
        Ok::<_, JournalError>(log)
    };
    let [size, scores_size] = [&journal.max_size, &journal.max_scores_size].map(|it| it.0 as u64);
    let settings = LogSettings::new(size, journal.sync, is_scored);
    let settings = settings.for_outlets(forwards, config.kafka.write.enabled);
    let requests = open(settings)?;
    let settings = LogSettings::of_scores(scores_size, journal.sync);
    let scores = is_scored.then(|| open(settings)).transpose()?;
    let metrics: MetricsSource = Arc::new(move |page| JournalLog::write_metrics(&logs, page));
    let traces = is_scored.then(|| JournaledTraces {
        log: requests.clone(),
        marks: JudgedMarks::new(requests.clone()),
        has_peers: config.assemble.peers.is_some(),
        keeps_open: config.shutdown.open_traces == AtStop::Keep,
        max_unread: journal.max_size.0 / UNREAD_SHARE,
    });
    Ok(JournalParts {
        requests: Some(requests),
        scores,
        traces,
        metrics: Some(metrics),
        log_threads,
    })
}

/// Writes the cursors and stops the threads. Waits for a limited time, because a hanging disk must
/// not block the process.
pub(super) async fn write_down(journal: Vec<LogThread>) {
    let ended = tokio::task::spawn_blocking(move || journal.into_iter().for_each(LogThread::end));
    let _ = tokio::time::timeout(PATIENCE, ended).await;
}
