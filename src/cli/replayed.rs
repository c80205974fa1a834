//! Reads recordings and judges their traces with the sidecar's engine, without its clock: traces
//! close only at the end of the input.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::path::PathBuf;

use bytes::Bytes;
use judge::assemble::{Settings, Trace};
use judge::extract::Trajectory;
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::TraceId;
use otlp::{scan, scan_logs, scan_metrics};

use super::recording::{self, Recordings, Unreadable};
use crate::config::Signal;
use crate::sidecar;

/// The results of judging some recordings.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) judged: Judged,
    pub(super) n_requests: usize,
    pub(super) n_spans: usize,
    places: HashMap<TraceId, RunPlace>,
}

/// The position of a trace's first item.
#[derive(Debug)]
pub(super) struct RunPlace {
    pub(super) file: String,
    /// The file, and the line or number of the request if the file can contain several.
    pub(super) line: String,
    /// The position among the file's traces, counted from 1.
    pub(super) position: usize,
}

impl Replayed {
    /// Returns the position of a run; `None` if unknown.
    pub(super) fn place(&self, trajectory: &Trajectory) -> Option<&RunPlace> {
        self.places.get(&trajectory.trace_id)
    }

    /// Removes all but the last revision of each evaluation, because late results of other traces
    /// can revise evaluations.
    fn drop_superseded(&mut self) {
        let mut latest = HashMap::new();
        for (idx, evaluation) in self.judged.evaluations.iter().enumerate() {
            let trajectory = &evaluation.trajectory;
            let previous = evaluation.previous.map(|previous| previous.subject);
            let subject = trajectory.subject.as_ref().map(|subject| subject.span_id);
            let key = |subject| (trajectory.trace_id, evaluation.criterion.name(), subject);
            if let Some(previous) = previous {
                latest.remove(&key(previous));
            }
            latest.insert(key(subject), idx);
        }
        let kept: BTreeSet<usize> = latest.into_values().collect();
        let mut idx = 0;
        self.judged.evaluations.retain(|_| {
            idx += 1;
            kept.contains(&(idx - 1))
        });
    }
}

/// Judges the traces in some recordings.
pub(super) fn judge(recordings: &Recordings, rules: &Rules) -> Result<Replayed, Unreadable> {
    judge_files(&recordings.files, recordings.signal, rules)
}

/// Like [`judge`], for a list of files.
pub(super) fn judge_files(
    files: &[PathBuf],
    signal: Signal,
    rules: &Rules,
) -> Result<Replayed, Unreadable> {
    judge_watched(files, signal, rules, &mut Unwatched)
}

/// Callbacks for each request and trace.
pub(super) trait Watcher {
    /// Called for each valid request with spans.
    fn request(&mut self, body: &Bytes);
    /// Called for each closed trace.
    fn trace(&mut self, trace: &Trace);
}

struct Unwatched;

impl Watcher for Unwatched {
    fn request(&mut self, _: &Bytes) {}
    fn trace(&mut self, _: &Trace) {}
}

/// Like [`judge_files`], with callbacks for each request and trace.
pub(super) fn judge_watched(
    files: &[PathBuf],
    signal: Signal,
    rules: &Rules,
    watcher: &mut dyn Watcher,
) -> Result<Replayed, Unreadable> {
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    let mut replayed = Replayed::default();
    for file in &recording::files(files)? {
        let mut places = Places {
            file: file.display().to_string(),
            position: 0,
            known: &mut replayed.places,
        };
        for request in recording::read(file, signal)? {
            replayed.n_requests += 1;
            let place = &request.place;
            match request.signal {
                Signal::Traces => {
                    let scanned = scan::scan(&request.body, Some(rules))
                        .map_err(|error| not_otlp(place, "trace", &error))?;
                    replayed.n_spans += scanned.n_spans;
                    let spans = scanned.batch.spans.iter();
                    places.note(place, spans.map(|span| span.trace_id));
                    watcher.request(&request.body);
                    pipeline.take(scanned.batch, now);
                }
                Signal::Logs => {
                    let scanned = scan_logs::scan(&request.body, Some(rules))
                        .map_err(|error| not_otlp(place, "logs", &error))?;
                    let records = scanned.batch.spans.iter();
                    let traces =
                        records.flat_map(|it| [Some(it.trace_id), it.kept.index().named_trace()]);
                    places.note(place, traces.flatten());
                    pipeline.take(scanned.batch, now);
                }
                Signal::Metrics => {
                    scan_metrics::scan(&request.body)
                        .map_err(|error| not_otlp(place, "metrics", &error))?;
                }
            }
        }
    }
    replayed.judged = pipeline.end_of_input(rules, now, |trace| watcher.trace(trace));
    replayed.drop_superseded();
    Ok(replayed)
}

/// Records the position of each trace in one file.
struct Places<'a> {
    file: String,
    position: usize,
    known: &'a mut HashMap<TraceId, RunPlace>,
}

impl Places<'_> {
    fn note(&mut self, line: &str, trace_ids: impl Iterator<Item = TraceId>) {
        for trace_id in trace_ids {
            self.known.entry(trace_id).or_insert_with(|| {
                self.position += 1;
                RunPlace {
                    file: self.file.clone(),
                    line: line.to_owned(),
                    position: self.position,
                }
            });
        }
    }
}

fn not_otlp(place: &str, what: &str, error: &impl Display) -> Unreadable {
    Unreadable::new(
        place,
        format!(
            "is not an OTLP {what} request ({error}); if it contains another signal, pass --signal"
        ),
    )
}
