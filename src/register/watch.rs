//! Configuration files in, reloads out: by polling what stands in them, by SIGHUP, by `POST
//! /-/reload`. Also takes out registrations that have run out. Knows when to read and when what was
//! read can be trusted; does not know what stands in it.
//!
//! Files are polled, not subscribed to: a ConfigMap is a symlink that is swapped, editors write a
//! new file and rename it, a bind mount reports nothing at all, and all that matters in the end is
//! the content. It is taken once two reads 200 ms apart agree, so that a file caught half-written
//! is not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::time;

use super::Register;
use crate::config::{Config, Files, Loaded, Sources};
use crate::telemetry::{ConfigurationRefused, ConfigurationReloaded, Heartbeat};
use crate::text::rfc3339;

/// Between two reads that must agree (DESIGN: half-written files are not applied).
pub const AGREEMENT: Duration = Duration::from_millis(200);

/// Reads that may disagree before the next poll is waited for.
const MAX_READS: usize = 10;

/// Where the configuration came from.
#[derive(Clone)]
pub struct Origin {
    /// The main file.
    pub path: PathBuf,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// `--set key=value`.
    pub flags: Vec<(String, String)>,
    /// How files are read.
    pub files: Arc<dyn Files + Send + Sync>,
    /// Two reads so far apart must agree; [`AGREEMENT`] but in tests of many reloads.
    pub agreement: Duration,
}

/// What came of a reload.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The set in force is now of what the files say.
    Applied {
        /// Its revision.
        revision: String,
        /// Is any criterion another one?
        changed: bool,
        /// Keys whose new values need a restart.
        needs_restart: Vec<String>,
    },
    /// The last good set stays in force.
    Refused {
        /// Every mistake, as `validate` prints them.
        problems: String,
    },
    /// There is no file to read again.
    NoFile,
}

/// Reloads, until it is told to end.
pub struct Watcher {
    register: Register,
    origin: Option<Origin>,
    interval: Duration,
    requests: mpsc::Receiver<oneshot::Sender<Outcome>>,
}

/// What was read, and by which questions.
struct Attempt {
    loaded: Result<Loaded, String>,
    questions: Vec<Question>,
    fingerprint: [u8; 32],
}

/// What a configuration asks of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Question {
    Read(PathBuf),
    List(PathBuf, String),
}

impl Outcome {
    /// As `POST /-/reload` and `/v1/status` show it.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Applied {
                revision,
                changed,
                needs_restart,
            } => {
                json!({ "result": "applied", "revision": revision, "changed": changed, "needs_restart": needs_restart })
            }
            Self::Refused { problems } => json!({ "result": "refused", "problems": problems }),
            Self::NoFile => json!({ "result": "no_file" }),
        }
    }
}

impl Watcher {
    pub(super) fn new(
        register: Register,
        origin: Option<Origin>,
        interval: Duration,
        requests: mpsc::Receiver<oneshot::Sender<Outcome>>,
    ) -> Self {
        Self {
            register,
            origin,
            interval,
            requests,
        }
    }

    /// Watches until `ended`, whatever it is about: a reload that is not applied by then serves
    /// nobody.
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
            origin,
            interval,
            mut requests,
        } = self;
        let mut ticks = time::interval(Heartbeat::INTERVAL);
        // Nothing was asked so far, so the first poll reads: the files may have changed since the
        // start.
        let nothing = Attempt {
            loaded: Err(String::new()),
            questions: Vec::new(),
            fingerprint: [0; 32],
        };
        let mut seen = origin.is_some().then_some(nothing);
        let mut next_poll = time::Instant::now() + interval;
        loop {
            tokio::select! {
                now = ticks.tick() => {
                    heartbeat.beat(now.into_std());
                    register.let_expire().await;
                }
                () = time::sleep_until(next_poll), if seen.is_some() && !interval.is_zero() => {
                    if let (Some(origin), Some(attempt)) = (&origin, &mut seen)
                        && asked_again(origin, attempt).await != attempt.fingerprint
                    {
                        settle(&register, origin, attempt, heartbeat).await;
                    }
                    next_poll = time::Instant::now() + interval;
                }
                request = requests.recv() => {
                    let Some(answer) = request else { return };
                    let outcome = match (&origin, &mut seen) {
                        (Some(origin), Some(attempt)) => settle(&register, origin, attempt, heartbeat).await,
                        _ => Outcome::NoFile,
                    };
                    // Whoever asked may have gone away.
                    let _ = answer.send(outcome);
                }
            }
        }
    }
}

/// Reads until two reads agree, and applies what they say. `last` becomes what was read last,
/// whatever came of it, so that a file that stays wrong is told once.
async fn settle(
    register: &Register,
    origin: &Origin,
    last: &mut Attempt,
    heartbeat: &Heartbeat,
) -> Outcome {
    for _ in 0..MAX_READS {
        let attempt = read(origin.clone()).await;
        time::sleep(origin.agreement).await;
        heartbeat.beat(time::Instant::now().into_std());
        let agrees = asked_again(origin, &attempt).await == attempt.fingerprint;
        let Attempt {
            loaded,
            questions,
            fingerprint,
        } = attempt;
        if agrees {
            *last = Attempt {
                loaded: Err(String::new()),
                questions,
                fingerprint,
            };
            return register.apply(loaded).await;
        }
    }
    let problems =
        "the files change faster than they can be read; they are looked at again at the next poll"
            .to_owned();
    register.apply(Err(problems)).await
}

async fn read(origin: Origin) -> Attempt {
    let reading = tokio::task::spawn_blocking(move || {
        let recorder = Recorder {
            files: &*origin.files,
            asked: RefCell::default(),
        };
        let loaded = load(&origin, &recorder);
        let asked = recorder.asked.into_inner();
        let (questions, fingerprint) = (asked.questions, asked.hash.finalize().into());
        Attempt {
            loaded,
            questions,
            fingerprint,
        }
    });
    reading.await.unwrap_or_else(|error| Attempt {
        loaded: Err(error.to_string()),
        questions: Vec::new(),
        fingerprint: [0; 32],
    })
}

fn load(origin: &Origin, files: &Recorder<'_>) -> Result<Loaded, String> {
    let path = &origin.path;
    let text = files
        .read(path)
        .map_err(|error| format!("error: cannot read `{}`: {error}", path.display()))?;
    let sources = Sources {
        file: Some((path, &text)),
        environment: &origin.environment,
        flags: &origin.flags,
        files,
    };
    Config::load(&sources).map_err(|problems| problems.to_string())
}

/// The fingerprint of what the same questions are answered now.
async fn asked_again(origin: &Origin, attempt: &Attempt) -> [u8; 32] {
    let (files, questions) = (Arc::clone(&origin.files), attempt.questions.clone());
    let asking = tokio::task::spawn_blocking(move || {
        let recorder = Recorder {
            files: &*files,
            asked: RefCell::default(),
        };
        for question in questions {
            // The answer is in the fingerprint.
            let _ = match question {
                Question::Read(path) => recorder.read(&path).map(|_| ()),
                Question::List(folder, glob) => recorder.list(&folder, &glob).map(|_| ()),
            };
        }
        recorder.asked.into_inner().hash.finalize().into()
    });
    asking.await.unwrap_or([0; 32])
}

impl Register {
    async fn let_expire(&self) {
        // A set with nothing to run out costs a look at it.
        if self.0.registered.load().next_expiry().is_some() {
            let register = self.clone();
            let _ = tokio::task::spawn_blocking(move || register.expire()).await;
        }
    }

    async fn apply(&self, loaded: Result<Loaded, String>) -> Outcome {
        let register = self.clone();
        let applying = tokio::task::spawn_blocking(move || {
            let outcome = match loaded {
                Ok(loaded) => {
                    let warnings = loaded.warnings.to_string();
                    match register.take_over(loaded.config) {
                        Ok((revision, changed, needs_restart)) => {
                            let outcome = Outcome::Applied {
                                revision: revision.clone(),
                                changed,
                                needs_restart: needs_restart.clone(),
                            };
                            ConfigurationReloaded {
                                revision,
                                changed,
                                needs_restart,
                                warnings,
                            }
                            .emit(&register.0.telemetry);
                            outcome
                        }
                        Err(error) => Outcome::Refused {
                            problems: error.detail(),
                        },
                    }
                }
                Err(problems) => Outcome::Refused { problems },
            };
            if let Outcome::Refused { problems } = &outcome {
                ConfigurationRefused {
                    problems: problems.clone(),
                }
                .emit(&register.0.telemetry);
            }
            let mut shown = outcome.to_json();
            shown["at"] = json!(rfc3339((register.0.clock)().unix_nanos));
            *register.0.last_reload.lock() = Some(shown);
            outcome
        });
        applying.await.unwrap_or_else(|error| Outcome::Refused {
            problems: error.to_string(),
        })
    }
}

// === Recorder ===

/// Notes what is asked of the disk, and a hash of all answers.
struct Recorder<'a> {
    files: &'a dyn Files,
    asked: RefCell<Asked>,
}

#[derive(Default)]
struct Asked {
    questions: Vec<Question>,
    hash: Sha256,
}

impl Recorder<'_> {
    fn note(&self, question: Question, answer: &str) {
        let mut asked = self.asked.borrow_mut();
        asked.questions.push(question);
        asked.hash.update((answer.len() as u64).to_be_bytes());
        asked.hash.update(answer);
    }
}

impl Files for Recorder<'_> {
    fn read(&self, path: &Path) -> Result<String, String> {
        let answer = self.files.read(path);
        self.note(
            Question::Read(path.to_owned()),
            answer.as_ref().unwrap_or_else(|error| error),
        );
        answer
    }

    fn list(&self, folder: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
        let answer = self.files.list(folder, glob);
        self.note(
            Question::List(folder.to_owned(), glob.to_owned()),
            &format!("{answer:?}"),
        );
        answer
    }
}

#[cfg(test)]
mod tests;
