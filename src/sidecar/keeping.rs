//! Opens the journal at the start, hands its parts to the planes and ends it last. Knows nothing of
//! its files.

use std::sync::Arc;
use std::time::Duration;

use super::rebuild::KeptTraces;
use super::{StartError, now};
use crate::config::{AtStop, Config};
use crate::journal::{JournalFolder, JournalLog, JudgedMarks, Keeping, LogSettings};
use crate::telemetry::{MetricsSource, Telemetry};

/// How long a start waits for another process to leave the folder, and a stop for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// The parts of a journal; none without one.
#[derive(Default)]
pub(super) struct JournalParts {
    /// Takes what is scored and not forwarded.
    pub(super) log: Option<JournalLog>,
    /// For the forward plane.
    pub(super) requests: Option<JournalLog>,
    /// For the exporter.
    pub(super) marks: Option<JudgedMarks>,
    /// For the scoring thread.
    pub(super) traces: Option<KeptTraces>,
    pub(super) metrics: Option<MetricsSource>,
    pub(super) keeping: Option<Keeping>,
}

impl JournalParts {
    pub(super) fn of(opened: Option<(JournalLog, Keeping)>, config: &Config) -> Self {
        let Some((log, keeping)) = opened else {
            return Self::default();
        };
        let metrics_log = log.clone();
        let metrics: MetricsSource = Arc::new(move |page| metrics_log.write_metrics(page));
        let marks = JudgedMarks::new(log.clone());
        let traces = config.scoring.enabled.then(|| {
            KeptTraces::new(
                log.clone(),
                marks.clone(),
                config.assemble.peers.is_some(),
                config.shutdown.open_traces == AtStop::Keep,
            )
        });
        Self {
            log: config.scoring.enabled.then(|| log.clone()),
            requests: Some(log),
            marks: config.scoring.enabled.then_some(marks),
            traces,
            metrics: Some(metrics),
            keeping: Some(keeping),
        }
    }
}

/// Opens the journal, if one is configured. While its folder cannot be used, requests are refused
/// and it is tried again: a restart repairs no disk.
pub(super) async fn open_journal(
    config: &Config,
    rng: fastrand::Rng,
    telemetry: &Arc<Telemetry>,
) -> Result<Option<(JournalLog, Keeping)>, StartError> {
    let journal = &config.journal;
    let Some(directory) = &journal.directory else {
        return Ok(None);
    };
    // The previous process may be ending now.
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
    let settings = LogSettings::new(
        journal.max_size.0 as u64,
        journal.sync,
        config.scoring.enabled,
    );
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
