//! Reloads the configuration when its files change, on SIGHUP and on `POST /-/reload`, and deletes
//! expired registrations.
//!
//! Files are polled and not watched, because a ConfigMap is a symlink that is swapped, editors
//! write a new file and rename it, and a bind mount reports no events at all. The content is
//! applied once two reads 200 ms apart agree, so that a half-written file is not applied.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::time;

use super::set::{Register, ReloadOutcome};
use crate::config::{Config, Files, Loaded, Sources};
use crate::rfc3339::rfc3339;
use crate::telemetry::{ConfigurationRefused, ConfigurationReloaded, Heartbeat};

/// Time between two reads that must agree, so that half-written files are not applied.
pub const SETTLE_TIME: Duration = Duration::from_millis(200);

/// Maximum number of reads in one reload. If the last two still disagree, the next poll retries.
const MAX_READS: usize = 10;

#[derive(Clone)]
pub struct ConfigOrigin {
    pub path: PathBuf,
    /// True if the file did not exist at the start and has not appeared since.
    pub may_be_absent: bool,
    pub start: Start,
    pub environment: BTreeMap<String, String>,
    /// `--set key=value`.
    pub flags: Vec<(String, String)>,
    pub files: Arc<dyn Files + Send + Sync>,
    /// Time between two reads that must agree: [`SETTLE_TIME`], except in tests of many reloads.
    pub settle_time: Duration,
}

/// The part of the configuration that a start could use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The start used the whole configuration.
    Sound,
    /// The start used a part of the configuration; the first read reports the mistakes without
    /// delay.
    Unsound,
}

pub struct Reloader {
    register: Register,
    origin: Option<ConfigOrigin>,
    interval: Duration,
    requests: mpsc::Receiver<oneshot::Sender<ReloadOutcome>>,
}

/// One read of the configuration, and the files that it depends on.
struct ReadAttempt {
    loaded: Result<Loaded, String>,
    /// True if the main file could be read.
    has_file: bool,
    queries: Vec<FileQuery>,
    fingerprint: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FileQuery {
    Read(PathBuf),
    List(PathBuf, String),
}

impl Reloader {
    pub(super) fn new(
        register: Register,
        origin: Option<ConfigOrigin>,
        interval: Duration,
        requests: mpsc::Receiver<oneshot::Sender<ReloadOutcome>>,
    ) -> Self {
        Self {
            register,
            origin,
            interval,
            requests,
        }
    }

    /// Runs until `ended`, and then drops a reload in progress, because no more traces would be
    /// judged by its result.
    pub async fn run(self, heartbeat: Heartbeat, ended: impl Future<Output = ()>) {
        tokio::select! {
            () = ended => {}
            () = self.watch(&heartbeat) => {}
        }
        heartbeat.finish();
    }

    async fn watch(self, heartbeat: &Heartbeat) {
        let Self {
            register,
            mut origin,
            interval,
            mut requests,
        } = self;
        let mut ticks = time::interval(Heartbeat::INTERVAL);
        // The files may have changed since the start, so the first poll always reads them.
        let nothing = ReadAttempt {
            loaded: Err(String::new()),
            has_file: false,
            queries: Vec::new(),
            fingerprint: [0; 32],
        };
        let mut seen = origin.is_some().then_some(nothing);
        if let (Some(origin), Some(attempt)) = (&mut origin, &mut seen)
            && origin.start == Start::Unsound
        {
            settle(&register, origin, attempt, heartbeat).await;
        }
        let mut next_poll = time::Instant::now() + interval;
        loop {
            tokio::select! {
                now = ticks.tick() => {
                    heartbeat.beat(now.into_std());
                    expire(&register).await;
                }
                () = time::sleep_until(next_poll), if seen.is_some() && !interval.is_zero() => {
                    if let (Some(origin), Some(attempt)) = (&mut origin, &mut seen)
                        && fingerprint_now(origin, attempt).await != attempt.fingerprint
                    {
                        settle(&register, origin, attempt, heartbeat).await;
                    }
                    next_poll = time::Instant::now() + interval;
                }
                request = requests.recv() => {
                    let Some(answer) = request else { return };
                    let outcome = if let (Some(origin), Some(attempt)) = (&mut origin, &mut seen) {
                        settle(&register, origin, attempt, heartbeat).await
                    } else {
                        ReloadOutcome::NoFile
                    };
                    // The caller may have disconnected.
                    let _ = answer.send(outcome);
                }
            }
        }
    }
}

/// Reads until two reads agree, and applies the result. `last` stores the read even if the
/// configuration is invalid, so that a file that stays invalid is reported once.
async fn settle(
    register: &Register,
    origin: &mut ConfigOrigin,
    last: &mut ReadAttempt,
    heartbeat: &Heartbeat,
) -> ReloadOutcome {
    for _ in 0..MAX_READS {
        let attempt = read(origin.clone()).await;
        time::sleep(origin.settle_time).await;
        heartbeat.beat(time::Instant::now().into_std());
        let agrees = fingerprint_now(origin, &attempt).await == attempt.fingerprint;
        let ReadAttempt {
            loaded,
            has_file,
            queries,
            fingerprint,
        } = attempt;
        if agrees {
            // From now on a missing file is an error: its criteria must not vanish with it.
            origin.may_be_absent &= !has_file;
            *last = ReadAttempt {
                loaded: Err(String::new()),
                has_file,
                queries,
                fingerprint,
            };
            return apply(register, loaded).await;
        }
    }
    let problems =
        "the files keep changing while they are read; the next poll reads them again".to_owned();
    apply(register, Err(problems)).await
}

async fn read(origin: ConfigOrigin) -> ReadAttempt {
    let reading = tokio::task::spawn_blocking(move || {
        let recorder = Recorder {
            files: &*origin.files,
            recorded: RefCell::default(),
        };
        let (loaded, has_file) = load(&origin, &recorder);
        let recorded = recorder.recorded.into_inner();
        let (queries, fingerprint) = (recorded.queries, recorded.hash.finalize().into());
        ReadAttempt {
            loaded,
            has_file,
            queries,
            fingerprint,
        }
    });
    reading.await.unwrap_or_else(|error| ReadAttempt {
        loaded: Err(error.to_string()),
        has_file: false,
        queries: Vec::new(),
        fingerprint: [0; 32],
    })
}

/// Returns the configuration, and true if its main file was readable.
fn load(origin: &ConfigOrigin, files: &Recorder<'_>) -> (Result<Loaded, String>, bool) {
    let path = &origin.path;
    let text = files.read(path);
    let file = match &text {
        Ok(text) => Some((path.as_path(), text.as_str())),
        Err(_) if origin.may_be_absent => None,
        Err(error) => {
            let problem = format!("error: cannot read `{}`: {error}", path.display());
            return (Err(problem), false);
        }
    };
    let sources = Sources {
        file,
        environment: &origin.environment,
        flags: &origin.flags,
        files,
    };
    let loaded = Config::load(&sources).map_err(|problems| problems.to_string());
    (loaded, file.is_some())
}

/// Returns a new fingerprint of the same queries, by reading the disk again.
async fn fingerprint_now(origin: &ConfigOrigin, attempt: &ReadAttempt) -> [u8; 32] {
    let (files, queries) = (Arc::clone(&origin.files), attempt.queries.clone());
    let asking = tokio::task::spawn_blocking(move || {
        let recorder = Recorder {
            files: &*files,
            recorded: RefCell::default(),
        };
        for query in queries {
            // The recorder adds the answer to the fingerprint.
            let _ = match query {
                FileQuery::Read(path) => recorder.read(&path).map(|_| ()),
                FileQuery::List(folder, glob) => recorder.list(&folder, &glob).map(|_| ()),
            };
        }
        recorder.recorded.into_inner().hash.finalize().into()
    });
    asking.await.unwrap_or([0; 32])
}

async fn expire(register: &Register) {
    // If nothing expires, this costs only one read of the set.
    if register.0.set.load().next_expiry().is_some() {
        let register = register.clone();
        let _ = tokio::task::spawn_blocking(move || register.expire()).await;
    }
}

async fn apply(register: &Register, loaded: Result<Loaded, String>) -> ReloadOutcome {
    let register = register.clone();
    let applying = tokio::task::spawn_blocking(move || {
        let outcome = match loaded {
            Ok(Loaded {
                config, warnings, ..
            }) => register
                .apply_config(config)
                .inspect(|outcome| report_applied(&register, outcome, warnings.to_string()))
                .unwrap_or_else(|error| ReloadOutcome::Refused {
                    problems: error.detail(),
                }),
            Err(problems) => ReloadOutcome::Refused { problems },
        };
        let mut shown = outcome.to_json();
        shown["at"] = json!(rfc3339(register.unix_nanos()));
        // Update the status before the log, so that anyone who reacts to the log finds the change
        // in the status.
        *register.last_reload() = Some(shown);
        if let ReloadOutcome::Refused { problems } = &outcome {
            ConfigurationRefused {
                problems: problems.clone(),
            }
            .emit(&register.0.telemetry);
        }
        outcome
    });
    applying
        .await
        .unwrap_or_else(|error| ReloadOutcome::Refused {
            problems: error.to_string(),
        })
}

fn report_applied(register: &Register, outcome: &ReloadOutcome, warnings: String) {
    if let ReloadOutcome::Applied {
        revision,
        changed,
        settings,
        needs_restart,
    } = outcome.clone()
    {
        ConfigurationReloaded {
            revision,
            changed,
            settings,
            needs_restart,
            warnings,
        }
        .emit(&register.0.telemetry);
    }
}

// === Recorder ===

/// Records every query of the disk, and a hash of all answers.
struct Recorder<'a> {
    files: &'a dyn Files,
    recorded: RefCell<RecordedQueries>,
}

#[derive(Default)]
struct RecordedQueries {
    queries: Vec<FileQuery>,
    hash: Sha256,
}

impl Recorder<'_> {
    fn record(&self, query: FileQuery, answer: &str) {
        let mut recorded = self.recorded.borrow_mut();
        recorded.queries.push(query);
        recorded.hash.update((answer.len() as u64).to_be_bytes());
        recorded.hash.update(answer);
    }
}

impl Files for Recorder<'_> {
    fn read(&self, path: &Path) -> Result<String, String> {
        let answer = self.files.read(path);
        self.record(
            FileQuery::Read(path.to_owned()),
            answer.as_ref().unwrap_or_else(|error| error),
        );
        answer
    }

    fn list(&self, folder: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
        let answer = self.files.list(folder, glob);
        self.record(
            FileQuery::List(folder.to_owned(), glob.to_owned()),
            &format!("{answer:?}"),
        );
        answer
    }
}

#[cfg(test)]
mod tests;
