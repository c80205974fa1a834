//! `spanscore replay`: scores recorded traces, with an exit code for CI. Uses the sidecar's engine
//! without its clock: traces close only at the end of the input.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use serde_json::Value;

use super::args::{RecordedSignal, Recordings, Replay, ReplayFormat};
use super::recording::{self, Unreadable};
use super::{Exit, Streams, examples, junit};
use crate::assemble::{Settings, Trace};
use crate::config::Signal;
use crate::evaluate::{Coverage, Evaluation, Verdict};
use crate::export::score_line::{self, Clean, Colour};
use crate::pipeline::{Judged, Pipeline, Rules};
use crate::receive::{scan, scan_logs, scan_metrics};
use crate::sidecar;
use crate::text::counted;

/// The results of some recordings.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) judged: Judged,
    pub(super) n_requests: usize,
    pub(super) n_spans: usize,
}

/// Runs the command.
pub(super) fn replay(args: &Replay, rules: &Rules, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let examples = match &args.examples {
        Some(path) => match examples::read(path, args.exact_match, rules, streams)? {
            Some(examples) => Some(examples),
            None => return Ok(Exit::Usage),
        },
        None => None,
    };
    if !rules.may_judge() && examples.is_none() {
        streams.complain(
            "no criterion is configured; add some under `criteria:` in spanscore.yaml, or pass a \
             configuration that has some with --config; `spanscore init --from FILE` proposes them",
        )?;
        return Ok(Exit::Usage);
    }
    // Runs are matched with examples once all of them are read.
    let without = examples.is_some().then(|| rules.without_judgement());
    let mut replayed = match judge(&args.recordings, without.as_ref().unwrap_or(rules)) {
        Ok(replayed) => replayed,
        Err(unreadable) => {
            return streams
                .complain(&unreadable.to_string())
                .map(|()| Exit::Unreadable);
        }
    };
    if let Some(examples) = examples {
        match examples.judge(&replayed.judged.trajectories, rules) {
            Ok(evaluations) => replayed.judged.evaluations = evaluations,
            Err(message) => return streams.complain(&message).map(|()| Exit::Usage),
        }
    }
    let evaluations = &replayed.judged.evaluations;
    match args.format {
        ReplayFormat::Human => {
            for evaluation in evaluations {
                streams.out.write_all(
                    score_line::human(evaluation, Colour::when(streams.colour)).as_bytes(),
                )?;
            }
            writeln!(streams.out, "{}", summary(&replayed))?;
        }
        ReplayFormat::Jsonl => {
            for evaluation in evaluations {
                writeln!(
                    streams.out,
                    "{}",
                    Value::Object(score_line::json(evaluation))
                )?;
            }
        }
        ReplayFormat::Junit => streams.out.write_all(
            junit::render(evaluations)
                .map_err(io::Error::other)?
                .as_bytes(),
        )?,
    }
    streams.out.flush()?;
    let mut coverage = Coverage::default();
    coverage.note(&rules.criteria, &replayed.judged.trajectories, evaluations);
    let fits = report_coverage(&coverage, streams)?;
    if args.strict && !fits && !args.exit_zero {
        return Ok(Exit::CriterionFailed);
    }
    exit(args, rules, &replayed, streams)
}

/// Reports criteria that select no run, or name tools that no run calls. Returns whether there are
/// none.
fn report_coverage(coverage: &Coverage, streams: &mut Streams<'_>) -> io::Result<bool> {
    let mut fits = true;
    for coverage in coverage.criteria() {
        if let Some(problem) = &coverage.problem {
            fits = false;
            writeln!(
                streams.err,
                "warning: criterion `{}`: {}",
                Clean(coverage.criterion),
                Clean(problem)
            )?;
        }
    }
    Ok(fits)
}

/// Judges the traces of some recordings.
pub(super) fn judge(recordings: &Recordings, rules: &Rules) -> Result<Replayed, Unreadable> {
    judge_files(&recordings.files, signal(recordings.signal), rules)
}

/// The signal of a body that nothing identifies.
pub(super) fn signal(signal: RecordedSignal) -> Signal {
    match signal {
        RecordedSignal::Traces => Signal::Traces,
        RecordedSignal::Logs => Signal::Logs,
        RecordedSignal::Metrics => Signal::Metrics,
    }
}

/// Like [`judge`], for plain files.
pub(super) fn judge_files(
    files: &[PathBuf],
    signal: Signal,
    rules: &Rules,
) -> Result<Replayed, Unreadable> {
    judge_watched(files, signal, rules, &mut Unwatched)
}

/// Callbacks for each request and trace.
pub(super) trait Watcher {
    /// A valid request with spans was read.
    fn request(&mut self, body: &Bytes);
    /// A trace was closed.
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
    for file in files {
        for request in recording::read(file, signal)? {
            replayed.n_requests += 1;
            let place = &request.place;
            match request.signal {
                Signal::Traces => {
                    let scanned = scan::scan(&request.body, Some(rules.keys()))
                        .map_err(|error| not_otlp(place, "trace", &error))?;
                    replayed.n_spans += scanned.n_spans;
                    watcher.request(&request.body);
                    pipeline.accept(rules, scanned.batch, now);
                }
                Signal::Logs => {
                    let scanned = scan_logs::scan(&request.body, Some(rules.keys()))
                        .map_err(|error| not_otlp(place, "logs", &error))?;
                    pipeline.accept(rules, scanned.batch, now);
                }
                Signal::Metrics => {
                    scan_metrics::scan(&request.body)
                        .map_err(|error| not_otlp(place, "metrics", &error))?;
                }
            }
        }
    }
    replayed.judged = pipeline.end_of_input(rules, now, |trace| watcher.trace(trace));
    Ok(replayed)
}

fn not_otlp(place: &str, what: &str, error: &impl Display) -> Unreadable {
    Unreadable::new(
        place,
        format!(
            "is not an OTLP {what} request ({error}); if it holds another signal, pass --signal"
        ),
    )
}

/// One line for people: the input and the verdicts.
fn summary(replayed: &Replayed) -> String {
    let Judged {
        evaluations,
        reasons,
        n_no_trajectory,
        ..
    } = &replayed.judged;
    let count = |verdict| {
        evaluations
            .iter()
            .filter(|evaluation| evaluation.verdict == verdict)
            .count()
    };
    let words = [
        (Verdict::Pass, "passed"),
        (Verdict::Fail, "failed"),
        (Verdict::NotEvaluated, "not evaluated"),
        (Verdict::Error, "in error"),
    ];
    let counts: Vec<String> = words
        .into_iter()
        .map(|(verdict, word)| (count(verdict), word))
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{n} {word}"))
        .collect();
    let outcome = if counts.is_empty() {
        "nothing was judged".to_owned()
    } else {
        counts.join(", ")
    };
    let mut text = format!(
        "{} of {}: {outcome}",
        counted(evaluations.len(), "evaluation", "evaluations"),
        counted(reasons.len(), "trace", "traces")
    );
    if *n_no_trajectory > 0 {
        text.push_str(&format!(
            "; {} with neither a tool call nor an agent run",
            counted(*n_no_trajectory, "trace", "traces")
        ));
    }
    text
}

/// 1 on any `fail` or `error`, and when nothing was judged; the flags say otherwise.
fn exit(
    args: &Replay,
    rules: &Rules,
    replayed: &Replayed,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let evaluations = &replayed.judged.evaluations;
    let is_any = |verdict| {
        evaluations
            .iter()
            .any(|evaluation| evaluation.verdict == verdict)
    };
    let failed = if evaluations
        .iter()
        .all(|evaluation| evaluation.verdict == Verdict::NotEvaluated)
        && !args.allow_empty
    {
        streams.complain(&nothing_judged(rules, replayed))?;
        true
    } else if args.strict && is_any(Verdict::NotEvaluated) {
        true
    } else if let Some(floor) = args.fail_under {
        let criteria = evaluations
            .iter()
            .map(|evaluation| evaluation.criterion.name())
            .collect::<BTreeSet<&str>>();
        criteria
            .into_iter()
            .any(|criterion| mean_score(criterion, evaluations).is_some_and(|mean| mean < floor))
    } else {
        is_any(Verdict::Fail) || is_any(Verdict::Error)
    };
    Ok(if failed && !args.exit_zero {
        Exit::CriterionFailed
    } else {
        Exit::Fine
    })
}

/// The mean score of one criterion; an `error` counts as 0, `not_evaluated` does not count.
fn mean_score(criterion: &str, evaluations: &[Evaluation]) -> Option<f64> {
    let scores: Vec<f64> = evaluations
        .iter()
        .filter(|evaluation| {
            evaluation.criterion.name() == criterion && evaluation.verdict != Verdict::NotEvaluated
        })
        .map(|evaluation| evaluation.value.unwrap_or_default())
        .collect();
    (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
}

/// Explains why nothing was judged, and the remedy.
fn nothing_judged(rules: &Rules, replayed: &Replayed) -> String {
    let judged = &replayed.judged;
    let why = if replayed.n_spans == 0 {
        "the recordings contain no spans".to_owned()
    } else if judged.trajectories.is_empty() {
        "no trace contains a tool call or an agent run; `spanscore inspect` shows what was \
         recognised"
            .to_owned()
    } else if judged.evaluations.is_empty() && rules.criteria.is_empty() {
        "no criterion is configured, and no run has an expectation of its own or a case in the \
         cases file"
            .to_owned()
    } else if judged.evaluations.is_empty() {
        let selectors = if rules.criteria.len() == 1 {
            "the selector of the criterion"
        } else {
            "the selector of any criterion"
        };
        format!("no trajectory matches {selectors}")
    } else {
        "every evaluation is `not_evaluated`".to_owned()
    };
    format!("nothing was judged: {why} (--allow-empty accepts that)")
}
