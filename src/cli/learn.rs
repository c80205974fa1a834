//! `spanscore learn`: writes rules and a baseline from recorded good runs, and reports skipped
//! runs.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use judge::evaluate::Verdict;
use judge::extract::Trajectory;
use judge::learn::{self, Baseline, GroupKey};
use judge::pipeline::Rules;
use text::counted;

use super::args::Learn;
use super::{Exit, Streams, output, replayed};
use crate::config::{self, LearnedGroup};
use crate::export::score_line::Clean;
pub(super) fn learn(args: &Learn, rules: &Rules, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let replayed = match replayed::judge(&args.recordings, rules) {
        Ok(replayed) => replayed,
        Err(unreadable) => {
            return streams
                .complain(&unreadable.to_string())
                .map(|()| Exit::Unreadable);
        }
    };
    let bad: BTreeSet<u64> = replayed
        .judged
        .evaluations
        .iter()
        .filter(|evaluation| matches!(evaluation.verdict, Verdict::Fail | Verdict::Error))
        .map(|evaluation| evaluation.trajectory.arrival)
        .collect();
    let trajectories = &replayed.judged.trajectories;
    let (n_cut, n_bad) = (
        trajectories.iter().filter(|run| run.cut_short).count(),
        trajectories
            .iter()
            .filter(|run| !run.cut_short && bad.contains(&run.arrival))
            .count(),
    );
    let good = trajectories
        .iter()
        .map(|run| &**run)
        .filter(|run: &&Trajectory| !run.cut_short && !bad.contains(&run.arrival));
    let all: BTreeSet<GroupKey> = trajectories
        .iter()
        .map(|run| config::group_of_run(run))
        .collect();
    let (groups, small): (Vec<_>, Vec<_>) = learn::group_runs(good, config::group_of_run)
        .into_iter()
        .partition(|(_, runs)| runs.len() >= args.min_runs);
    let has_calls = |run: &&Trajectory| !run.tool_calls.is_empty();
    let (groups, idle): (Vec<_>, Vec<_>) = groups
        .into_iter()
        .partition(|(_, runs)| runs.iter().any(has_calls));

    for (n, why) in [
        (n_cut, "cut short"),
        (n_bad, "failed by a criterion or in error"),
    ] {
        if n > 0 {
            let runs = counted(n, "run", "runs");
            writeln!(streams.err, "left out: {runs} {why}")?;
        }
    }
    for (key, runs) in &small {
        writeln!(
            streams.err,
            "left out: {} of {} (fewer than --min-runs {})",
            counted(runs.len(), "run", "runs"),
            Clean(&config::group_text(key)),
            args.min_runs
        )?;
    }
    for (key, runs) in &idle {
        writeln!(
            streams.err,
            "left out: {} of {} (none called a tool)",
            counted(runs.len(), "run", "runs"),
            Clean(&config::group_text(key)),
        )?;
    }
    for (key, runs) in &groups {
        let n_tools = learn::n_tools_left_out(runs);
        if n_tools > 0 {
            writeln!(
                streams.err,
                "left out: the {} of {} that the fewest runs call",
                counted(n_tools, "tool", "tools"),
                Clean(&config::group_text(key)),
            )?;
        }
    }
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
    let baseline = Baseline::new(&groups.into_iter().collect());
    let baseline = baseline.to_json().map_err(io::Error::other)?;
    let criteria = config::learned_criteria(&learned, &all);
    let (to_stdout, files): (Vec<_>, Vec<_>) =
        [(&args.output, &criteria), (&args.baseline, &baseline)]
            .into_iter()
            .partition(|(path, _)| *path == Path::new("-"));
    // Check all files before writing one.
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
        if let Err(error) = output::write(path, text, args.force) {
            streams.complain(&format!("cannot write `{}`: {error}", path.display()))?;
            return Ok(Exit::Usage);
        }
    }
    for group in &learned {
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
