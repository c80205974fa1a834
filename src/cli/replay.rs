//! `spanscore replay`: scores recorded traces, with an exit code for CI.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use judge::evaluate::{Coverage, Evaluation, Verdict};
use judge::pipeline::{Judged, Rules};
use otlp::span::TraceId;
use text::{counted, wrapped};

use super::recording::Recordings;
use super::replayed::{self, Replayed};
use super::{Exit, Streams, examples, junit, report as layout};
use crate::config::PageLink;
use crate::export::score_line::{self, Clean};
use crate::page::report::{self, Report};
use crate::sidecar;

/// Options of `replay`.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// The recordings to read.
    #[command(flatten)]
    pub(super) recordings: Recordings,
    /// Judge each run by its own expectation from this YAML or JSON file: `examples:`, a list of
    /// `{id?, input?, expected_tools | expected_output | evaluate}`. An entry replaces the
    /// expectation of the criteria that select the run and use the same evaluator; if there is no
    /// such criterion, the entry is judged as a criterion named `example`. An entry with an `id`
    /// applies to all runs with that `test.case.id`; entries without `id` apply to the remaining
    /// runs, in order.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) examples: Option<PathBuf>,
    /// Allow no calls other than an example's `expected_tools`.
    #[arg(long, requires = "examples")]
    pub(super) exact_match: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ReplayFormat::Human)]
    pub(super) format: ReplayFormat,
    /// Also write the runs as one HTML file, which a browser opens without a server.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) report: Option<PathBuf>,
    /// Print only scores with this label (repeatable); the summary and the exit code still count
    /// all scores.
    #[arg(long, value_name = "LABEL", value_parser = ["pass", "fail", "not_evaluated", "error"])]
    pub(super) only: Vec<String>,
    /// Also fail on `not_evaluated`, and on a criterion that selects no run, expects a tool that no
    /// run calls, or reads a value that is missing or of the wrong type.
    #[arg(long)]
    pub(super) strict: bool,
    /// Fail if a criterion's mean score is below X (0 to 1), instead of on any `fail` or `error`.
    #[arg(long, value_name = "X", value_parser = zero_to_one)]
    pub(super) fail_under: Option<f64>,
    /// Do not fail if nothing was judged.
    #[arg(long)]
    pub(super) allow_empty: bool,
    /// Exit 0 regardless of the scores.
    #[arg(long)]
    pub(super) exit_zero: bool,
}

/// Output formats of `replay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReplayFormat {
    /// Text for people.
    Human,
    /// One JSON object per evaluation.
    Jsonl,
    /// JUnit XML: one suite per criterion, one case per run.
    Junit,
}

fn zero_to_one(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| (0.0..=1.0).contains(number))
        .ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

pub(super) fn replay(
    args: &Replay,
    rules: &Rules,
    links: &[PageLink],
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
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
    // Examples can be matched with runs only after all runs are read.
    let without = examples.is_some().then(|| rules.without_judgement());
    let mut replayed = match replayed::judge(&args.recordings, without.as_ref().unwrap_or(rules)) {
        Ok(replayed) => replayed,
        Err(unreadable) => {
            return streams
                .complain(&unreadable.to_string())
                .map(|()| Exit::Unreadable);
        }
    };
    if let Some(examples) = examples {
        match examples.judge(&replayed.judged.trajectories, rules) {
            Ok(judged) => {
                for note in &judged.notes {
                    streams.tell(&format!("note: {}", Clean(note)))?;
                }
                replayed.judged.evaluations = judged.evaluations;
            }
            Err(message) => return streams.complain(&message).map(|()| Exit::Usage),
        }
    }
    let mut coverage = Coverage::default();
    coverage.follow(&rules.criteria, None);
    coverage.note(&replayed.judged.trajectories, &replayed.judged.evaluations);
    print(args, &replayed, &coverage, streams)?;
    streams.out.flush()?;
    if let Some(path) = &args.report
        && let Err(error) = write_report(path, &replayed, rules, links)
    {
        streams.complain(&format!(
            "cannot write the report `{}`: {error}",
            path.display()
        ))?;
        return Ok(Exit::Usage);
    }
    let fits = report_coverage(&coverage, args.examples.is_some(), streams)?;
    let failed = failed(args, rules, &replayed, streams)? || (args.strict && !fits);
    Ok(if failed && !args.exit_zero { Exit::CriterionFailed } else { Exit::Fine })
}

fn print(
    args: &Replay,
    replayed: &Replayed,
    coverage: &Coverage,
    streams: &mut Streams<'_>,
) -> io::Result<()> {
    let look = streams.look;
    let out = &mut *streams.out;
    let is_shown = |evaluation: &Evaluation| {
        let label = evaluation.verdict.as_str();
        args.only.is_empty() || args.only.iter().any(|only| only == label)
    };
    let evaluations = &replayed.judged.evaluations;
    match args.format {
        ReplayFormat::Human => {
            layout::write_runs(replayed, is_shown, look, out)?;
            layout::write_table(coverage, evaluations, look.width, out)?;
            writeln!(out, "{}", wrapped(&summary(replayed), look.width))
        }
        ReplayFormat::Jsonl => {
            for evaluation in evaluations.iter().filter(|evaluation| is_shown(evaluation)) {
                writeln!(out, "{}", score_line::json_text(evaluation))?;
            }
            Ok(())
        }
        ReplayFormat::Junit => {
            let report = junit::render(replayed, is_shown).map_err(io::Error::other)?;
            out.write_all(report.as_bytes())
        }
    }
}

/// Writes the HTML report. Its runs are in the order of the recording.
fn write_report(
    path: &Path,
    replayed: &Replayed,
    rules: &Rules,
    links: &[PageLink],
) -> io::Result<()> {
    let Judged {
        evaluations,
        trajectories,
        ..
    } = &replayed.judged;
    let mut by_run: HashMap<TraceId, Vec<Evaluation>> = HashMap::new();
    for evaluation in evaluations {
        let of_run = by_run.entry(evaluation.trajectory.trace_id).or_default();
        of_run.push(evaluation.clone());
    }
    let runs = trajectories.iter().map(|trajectory| {
        let mut evaluations = by_run.remove(&trajectory.trace_id).unwrap_or_default();
        // The calls of the session's other turns are not in this run.
        for evaluation in evaluations
            .iter_mut()
            .filter(|it| it.trajectory.turns.is_some())
        {
            *evaluation = evaluation.with_explanation_only(trajectory.clone());
        }
        (trajectory.clone(), evaluations)
    });
    let report = Report {
        title: format!(
            "{} of {}",
            counted(evaluations.len(), "evaluation", "evaluations"),
            counted(trajectories.len(), "run", "runs")
        ),
        written_unix_nanos: sidecar::now().unix_nanos,
        criteria: &rules.criteria,
        links,
        has_values: rules.explain.values,
        runs: runs.collect(),
    };
    let mut out = BufWriter::new(File::create(path)?);
    report::write(&report, &mut out)?;
    out.flush()
}

/// Prints the problem of each criterion that has one, such as that it selects no run (unless
/// examples replace what the criterion expects). Returns true if there was no problem.
fn report_coverage(
    coverage: &Coverage,
    has_examples: bool,
    streams: &mut Streams<'_>,
) -> io::Result<bool> {
    let mut fits = true;
    for coverage in coverage.criteria() {
        let is_replaced = has_examples && coverage.n_matched > 0;
        if let Some(problem) = coverage.problem.as_ref().filter(|_| !is_replaced) {
            fits = false;
            streams.tell(&format!(
                "warning: criterion `{}`: {}",
                Clean(coverage.criterion),
                Clean(problem)
            ))?;
        }
    }
    Ok(fits)
}

/// Returns a human-readable line with the counts of the input and of the verdicts.
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

/// Returns true on any `fail` or `error`, and if nothing was judged. Flags can change both rules.
fn failed(
    args: &Replay,
    rules: &Rules,
    replayed: &Replayed,
    streams: &mut Streams<'_>,
) -> io::Result<bool> {
    let evaluations = &replayed.judged.evaluations;
    let is_any = |verdict| {
        evaluations
            .iter()
            .any(|evaluation| evaluation.verdict == verdict)
    };
    let nothing_judged = evaluations
        .iter()
        .all(|evaluation| evaluation.verdict == Verdict::NotEvaluated);
    if nothing_judged && !args.allow_empty {
        streams.complain(&why_nothing_judged(rules, replayed))?;
        return Ok(true);
    }
    let Some(floor) = args.fail_under else {
        let not_evaluated = args.strict && is_any(Verdict::NotEvaluated);
        return Ok(not_evaluated || is_any(Verdict::Fail) || is_any(Verdict::Error));
    };
    let below = layout::means_below(floor, evaluations);
    for (criterion, mean) in &below {
        streams.complain(&format!(
            "the mean score of criterion `{}` is {mean:.4}, below --fail-under {floor}",
            Clean(criterion)
        ))?;
    }
    Ok(!below.is_empty() || (args.strict && is_any(Verdict::NotEvaluated)))
}

/// Returns the reason why nothing was judged, and the remedy.
fn why_nothing_judged(rules: &Rules, replayed: &Replayed) -> String {
    let judged = &replayed.judged;
    let why = if replayed.n_spans == 0 {
        "the recordings contain no spans".to_owned()
    } else if judged.trajectories.is_empty() {
        "no trace contains a tool call or an agent run; `spanscore inspect` shows what was \
         recognised"
            .to_owned()
    } else if judged.evaluations.is_empty() && rules.criteria.is_empty() {
        "no criterion is configured, and no run has an expectation (`spanscore.expect`, \
         `--examples`, `expectations.cases_file`)"
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
