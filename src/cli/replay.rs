//! `spanscore replay`: recorded traces in, their scores out, and an exit code that CI understands.
//! The same engine as the sidecar's, without its clock: traces close only at the end of the input.

use std::sync::Arc;

use super::args::{Format, ReplayArgs};
use super::output::Output;
use super::recording::{self, Unreadable};
use super::{Exit, Failure, junit};
use crate::assemble::Settings;
use crate::config::Signal;
use crate::evaluate::{Evaluation, Verdict};
use crate::export::line;
use crate::pipeline::{Judged, Pipeline, Rules};
use crate::receive::{scan, scan_logs, scan_metrics};
use crate::sidecar;

/// What a recording came to.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) judged: Judged,
    pub(crate) n_requests: usize,
    pub(crate) n_spans: usize,
}

/// Judge the traces of some recordings.
pub(crate) fn judge_files(files: &[String], signal: Option<Signal>, rules: &Rules) -> Result<Replayed, Unreadable> {
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    let mut replayed = Replayed::default();
    for file in files {
        for request in recording::read(file, signal)? {
            replayed.n_requests += 1;
            match request.signal {
                Signal::Traces => {
                    let scanned = scan::scan(&request.body, Some(&rules.keys)).map_err(|error| not_otlp(&request.place, &error, "trace"))?;
                    replayed.n_spans += scanned.n_spans;
                    pipeline.accept(rules, scanned.batch, now);
                }
                Signal::Logs => {
                    scan_logs::scan(&request.body).map_err(|error| not_otlp(&request.place, &error, "logs"))?;
                }
                Signal::Metrics => {
                    scan_metrics::scan(&request.body).map_err(|error| not_otlp(&request.place, &error, "metrics"))?;
                }
            }
        }
    }
    replayed.judged = pipeline.end_of_input(rules, now);
    Ok(replayed)
}

fn not_otlp(place: &str, error: &scan::ScanError, what: &str) -> Unreadable {
    Unreadable::new(place, format!("is not an OTLP {what} request: {error}"))
}

/// Run the command.
pub(crate) fn run(args: &ReplayArgs, rules: Rules, output: &mut Output) -> Result<Exit, Failure> {
    if rules.criteria.is_empty() {
        return Err(Failure::usage(
            "there is nothing to judge by: no criterion is registered\n  write some under `criteria:` in spanscore.yaml, or pass a file with -c; `spanscore init --from FILE` proposes them from a recording",
        ));
    }
    let replayed = judge_files(&args.files, args.signal, &rules)?;
    let evaluations = &replayed.judged.evaluations;
    match args.format {
        Format::Human => {
            for evaluation in evaluations {
                output.write(&line::human(evaluation, output.colour))?;
            }
            output.line(&summary(&replayed))?;
        }
        Format::Jsonl => {
            for evaluation in evaluations {
                output.line(&line::json(evaluation).to_string())?;
            }
        }
        Format::Junit => output.write(&junit::render(evaluations).map_err(|error| Failure::start(format!("cannot write the report: {error}")))?)?,
    }
    output.flush()?;
    Ok(exit(args, &rules, evaluations, &replayed))
}

/// One line for people: what was read, and how it went.
fn summary(replayed: &Replayed) -> String {
    let evaluations = &replayed.judged.evaluations;
    let count = |verdict| evaluations.iter().filter(|evaluation| evaluation.verdict == verdict).count();
    let n_traces = replayed.judged.reasons.len();
    let mut text = format!("{} in {}: ", plural(evaluations.len(), "evaluation"), plural(n_traces, "trace"));
    let counts = [(Verdict::Pass, "passed"), (Verdict::Fail, "failed"), (Verdict::NotEvaluated, "not evaluated"), (Verdict::Error, "in error")];
    let parts: Vec<_> = counts.map(|(verdict, word)| (count(verdict), word)).into_iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    text.push_str(&if parts.is_empty() { "nothing was judged".to_owned() } else { parts.join(", ") });
    if replayed.judged.n_no_trajectory > 0 {
        text.push_str(&format!(" ({} with neither a tool call nor an agent run)", plural(replayed.judged.n_no_trajectory, "trace")));
    }
    text
}

pub(crate) fn plural(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

/// 1 on any `fail` or `error`, and when nothing was judged; the flags say otherwise.
fn exit(args: &ReplayArgs, rules: &Rules, evaluations: &[Evaluation], replayed: &Replayed) -> Exit {
    if args.exit_zero {
        return Exit::Fine;
    }
    let n_judged = evaluations.iter().filter(|evaluation| evaluation.verdict != Verdict::NotEvaluated).count();
    if n_judged == 0 && !args.allow_empty {
        complain(&nothing_judged(rules, replayed));
        return Exit::CriterionFailed;
    }
    if args.strict && evaluations.iter().any(|evaluation| evaluation.verdict == Verdict::NotEvaluated) {
        return Exit::CriterionFailed;
    }
    let failed = match args.fail_under {
        Some(floor) => rules.criteria.iter().any(|criterion| mean_score(criterion.name.as_str(), evaluations).is_some_and(|mean| mean < floor)),
        None => evaluations.iter().any(|evaluation| matches!(evaluation.verdict, Verdict::Fail | Verdict::Error)),
    };
    if failed { Exit::CriterionFailed } else { Exit::Fine }
}

/// Mean over the evaluations of one criterion; an `error` counts 0, what was not evaluated does not count.
fn mean_score(criterion: &str, evaluations: &[Evaluation]) -> Option<f64> {
    let scores: Vec<f64> = evaluations
        .iter()
        .filter(|evaluation| evaluation.criterion.name == criterion && evaluation.verdict != Verdict::NotEvaluated)
        .map(|evaluation| evaluation.value.unwrap_or_default())
        .collect();
    (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
}

/// Why nothing was judged, and what to do about it.
fn nothing_judged(rules: &Rules, replayed: &Replayed) -> String {
    let judged = &replayed.judged;
    let why = if replayed.n_spans == 0 {
        "the recording holds no spans".to_owned()
    } else if judged.trajectories.is_empty() {
        "no trace holds a tool call or an agent run; `spanscore inspect` shows what was recognised".to_owned()
    } else if judged.evaluations.is_empty() {
        format!("no trajectory matches the selector of any of the {}", plural(rules.criteria.len(), "criterion").replace("criterions", "criteria"))
    } else {
        "every evaluation is `not_evaluated`".to_owned()
    };
    format!("nothing was judged: {why} (--allow-empty makes this no failure)")
}

#[expect(clippy::print_stderr, reason = "the command's own message to its user")]
fn complain(message: &str) {
    eprintln!("error: {message}");
}

/// The criteria as the pipeline wants them.
pub(crate) fn rules_of(criteria: Vec<crate::evaluate::Criterion>) -> Vec<Arc<crate::evaluate::Criterion>> {
    criteria.into_iter().map(Arc::new).collect()
}
