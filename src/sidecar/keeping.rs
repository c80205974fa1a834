//! Opens the journal at the start, passes its parts to forwarding and scoring, and closes it last.

use std::sync::Arc;
use std::time::Duration;

use super::rebuild::KeptTraces;
use super::{StartError, now};
use crate::config::{AtStop, Config};
use crate::journal::{JournalFolder, JournalLog, JudgedMarks, Keeping, LogSettings};
use crate::telemetry::{MetricsSource, Telemetry};

/// Maximum time that a start waits for another process to unlock the folder, and a stop for the
/// disk.
const PATIENCE: Duration = Duration::from_secs(4);

/// The logs of a journal, and their threads.
pub(super) struct OpenJournal {
    requests: (JournalLog, Keeping),
    /// The log of requests for Kafka.
    copies: Option<(JournalLog, Keeping)>,
    /// The log of scores.
    scores: Option<(JournalLog, Keeping)>,
}

/// The parts of a journal; all empty without one.
#[derive(Default)]
pub(super) struct JournalParts {
    /// The log of requests that are scored and not forwarded.
    pub(super) log: Option<JournalLog>,
    /// The log of requests, for forwarding.
    pub(super) requests: Option<JournalLog>,
    /// The log of requests for Kafka.
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "nothing is written")
    )]
    pub(super) copies: Option<JournalLog>,
    /// The marks of judged traces, for the exporter.
    pub(super) marks: Option<JudgedMarks>,
    /// The log of scores, for the exporter.
    pub(super) scores: Option<JournalLog>,
    /// The open traces, for the scoring threads.
    pub(super) traces: Option<KeptTraces>,
    pub(super) metrics: Option<MetricsSource>,
    /// The threads of the logs, in the order in which they must end. The log of requests is last,
    /// because it records what happens to scores.
    pub(super) keeping: Vec<Keeping>,
}

impl JournalParts {
    pub(super) fn of(opened: Option<OpenJournal>, config: &Config) -> Self {
        let Some(OpenJournal {
            requests: (log, keeping),
            copies,
            scores,
        }) = opened
        else {
            return Self::default();
        };
        let (copies, copies_keeping) = copies.unzip();
        let (scores, scores_keeping) = scores.unzip();
        let others = copies.iter().chain(&scores);
        let logs: Vec<JournalLog> = [&log].into_iter().chain(others).cloned().collect();
        let metrics: MetricsSource = Arc::new(move |page| JournalLog::write_metrics(&logs, page));
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
            copies,
            marks: config.scoring.enabled.then_some(marks),
            scores,
            traces,
            metrics: Some(metrics),
            keeping: scores_keeping
                .into_iter()
                .chain(copies_keeping)
                .chain([keeping])
                .collect(),
        }
    }
}

/// Opens the journal, if one is configured. While the folder is unusable, requests are refused and
/// opening is retried: a restart repairs no disk.
pub(super) async fn open_journal(
    config: &Config,
    mut rng: fastrand::Rng,
    telemetry: &Arc<Telemetry>,
) -> Result<Option<OpenJournal>, StartError> {
    let journal = &config.journal;
    let Some(directory) = &journal.directory else {
        return Ok(None);
    };
    // The previous process may still be ending.
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
    let requests = folder.open_requests(settings, clock, rng.fork(), telemetry)?;
    let copies = if config.kafka.write.enabled {
        let settings = LogSettings::new(journal.max_size.0 as u64, journal.sync, false);
        let are_copies = config.forward_destination().is_some();
        let rng = rng.fork();
        Some(folder.open_copies(are_copies, settings, clock, rng, telemetry)?)
    } else {
        None
    };
    let scores = if config.scoring.enabled {
        let max_size = journal.max_scores_size.0 as u64;
        let settings = LogSettings::of_scores(max_size, journal.sync);
        Some(folder.open_scores(settings, clock, rng, telemetry)?)
    } else {
        None
    };
    Ok(Some(OpenJournal {
        requests,
        copies,
        scores,
    }))
}

/// Writes the cursors and ends the threads. Waits for a limited time: a hanging disk must not block
/// the process.
pub(super) async fn write_down(journal: Vec<Keeping>) {
    let ended = tokio::task::spawn_blocking(move || journal.into_iter().for_each(Keeping::end));
    let _ = tokio::time::timeout(PATIENCE, ended).await;
}
