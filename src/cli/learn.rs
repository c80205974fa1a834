//! `spanscore learn`: writes rules and a baseline from recorded good runs, and prints which runs
//! were skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use judge::evaluate::Verdict;
use judge::extract::Trajectory;
use judge::learn::{self, Baseline, GroupKey};
use judge::pipeline::{Judged, Rules};
use text::counted;

use super::recording::Recordings;
use super::{Exit, Streams, init, replayed};
use crate::config::{self, LearnedGroup};
use crate::export::score_line::Clean;

/// Options of `learn`.
#[derive(Debug, Args)]
pub(super) struct Learn {
    /// The recordings to read.
    #[command(flatten)]
    pub(super) recordings: Recordings,
    /// Criteria file to write; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "learned.yaml")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) output: PathBuf,
    /// Baseline file to write, for `spanscore drift`.
    #[arg(long, value_name = "FILE", default_value = "learned.baseline.json")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) baseline: PathBuf,
    /// Skip agents with fewer than N runs, and rules that fewer than N runs follow.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub(super) min_runs: usize,
    /// Also learn rules broken by at most this share of the runs concerned (0 <= SHARE < 0.5).
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = zero_to_half)]
    #[arg(allow_negative_numbers = true)]
    pub(super) noise: f64,
    /// Overwrite existing files.
    #[arg(long)]
    pub(super) force: bool,
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "expected a whole number, 1 or more".to_owned())
}

fn zero_to_half(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| (0.0..0.5).contains(number))
        .ok_or_else(|| "expected a number from 0 to below 0.5".to_owned())
}

pub(super) fn learn(args: &Learn, rules: &Rules, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let replayed = match replayed::judge(&args.recordings, rules) {
        Ok(replayed) => replayed,
        Err(unreadable) => {
            return streams
                .complain(&unreadable.to_string())
                .map(|()| Exit::Unreadable);
        }
    };
    let groups = choose(&replayed.judged, args.min_runs, streams.err)?;
    if groups.is_empty() {
        streams.complain(&format!(
            "nothing to learn from: no agent has {} good runs; record more, or lower --min-runs",
            args.min_runs
        ))?;
        return Ok(Exit::CriterionFailed);
    }
    let learned: Vec<LearnedGroup> = groups
        .iter()
        .map(|(key, runs)| LearnedGroup {
            key: key.clone(),
            n_runs: runs.len(),
            rules: learn::learn_rules(runs, args.min_runs, args.noise),
            limits: learn::limits(runs),
        })
        .collect();
    let runs = replayed.judged.trajectories.iter();
    let all: BTreeSet<GroupKey> = runs.map(|run| config::group_of_run(run)).collect();
    let criteria = config::learned_criteria(&learned, &all);
    let baseline = Baseline::new(&groups).to_json().map_err(io::Error::other)?;
    write(args, &learned, [&criteria, &baseline], streams)
}

/// Returns the good runs by group. Prints which runs are skipped, and why.
fn choose<'j>(
    judged: &'j Judged,
    min_runs: usize,
    err: &mut dyn Write,
) -> io::Result<BTreeMap<GroupKey, Vec<&'j Trajectory>>> {
    let bad: BTreeSet<u64> = judged
        .evaluations
        .iter()
        .filter(|evaluation| matches!(evaluation.verdict, Verdict::Fail | Verdict::Error))
        .map(|evaluation| evaluation.trajectory.arrival)
        .collect();
    let runs = judged.trajectories.iter().map(|run| &**run);
    let (cut, whole): (Vec<_>, Vec<_>) = runs.partition(|run| run.cut_short);
    let (failed, good): (Vec<_>, Vec<_>) = whole
        .into_iter()
        .partition(|run| bad.contains(&run.arrival));
    for (left_out, why) in [
        (cut, "cut short"),
        (failed, "failed by a criterion or in error"),
    ] {
        if !left_out.is_empty() {
            let runs = counted(left_out.len(), "run", "runs");
            writeln!(err, "left out: {runs} {why}")?;
        }
    }
    let mut groups = learn::group_runs(good, config::group_of_run);
    let small: BTreeMap<_, _> = groups
        .extract_if(.., |_, runs| runs.len() < min_runs)
        .collect();
    let idle: BTreeMap<_, _> = groups
        .extract_if(.., |_, runs| {
            runs.iter().all(|run| run.tool_calls.is_empty())
        })
        .collect();
    let why_small = format!("fewer than --min-runs {min_runs}");
    for (left_out, why) in [(small, &*why_small), (idle, "none called a tool")] {
        for (key, runs) in left_out {
            let runs = counted(runs.len(), "run", "runs");
            let group = config::group_text(&key);
            writeln!(err, "left out: {runs} of {} ({why})", Clean(&group))?;
        }
    }
    for (key, runs) in &groups {
        let n_tools = learn::n_tools_left_out(runs);
        if n_tools > 0 {
            writeln!(
                err,
                "left out: the {} of {} that the fewest runs call",
                counted(n_tools, "tool", "tools"),
                Clean(&config::group_text(key)),
            )?;
        }
    }
    Ok(groups)
}

/// Writes the criteria and the baseline, and prints a summary.
fn write(
    args: &Learn,
    learned: &[LearnedGroup],
    [criteria, baseline]: [&String; 2],
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let (to_stdout, files): (Vec<_>, Vec<_>) =
        [(&args.output, criteria), (&args.baseline, baseline)]
            .into_iter()
            .partition(|(path, _)| *path == Path::new("-"));
    // Check all files before writing any of them.
    if args.output == args.baseline && files.len() > 1 {
        streams.complain(&format!(
            "`{}` cannot contain both the criteria and the baseline: name two files with \
             `--output` and `--baseline`",
            args.output.display()
        ))?;
        return Ok(Exit::Usage);
    }
    if let (Some((path, _)), false) = (files.iter().find(|(path, _)| path.exists()), args.force) {
        streams.complain(&format!(
            "`{}` exists already; overwrite it with `--force`, or name other files with \
             `--output` and `--baseline`",
            path.display()
        ))?;
        return Ok(Exit::Usage);
    }
    for (_, text) in to_stdout {
        streams.out.write_all(text.as_bytes())?;
    }
    for (path, text) in &files {
        if let Err(error) = init::write(path, text, args.force) {
            streams.complain(&format!("cannot write `{}`: {error}", path.display()))?;
            return Ok(Exit::Usage);
        }
    }
    for group in learned {
        writeln!(
            streams.err,
            "{}: {} from {}",
            Clean(&config::group_text(&group.key)),
            counted(group.rules.len(), "rule", "rules"),
            counted(group.n_runs, "run", "runs"),
        )?;
    }
    for (path, _) in files {
        writeln!(streams.err, "wrote {}", path.display())?;
    }
    writeln!(streams.err, "review the rules before you use them")?;
    Ok(Exit::Fine)
}
