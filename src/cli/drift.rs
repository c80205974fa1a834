//! `spanscore drift`: compares recorded runs with a baseline, and prints the measures.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use judge::learn::{self, Baseline, GroupDrift, Measure, Measurement};
use judge::pipeline::Rules;
use serde_json::json;
use text::{counted, safe_json};

use super::learn::at_least_one;
use super::recording::Recordings;
use super::{Exit, Streams, replayed};
use crate::config;
use crate::export::score_line::Clean;

/// Options of `drift`.
#[derive(Debug, Args)]
pub(super) struct Drift {
    /// The recordings to read.
    #[command(flatten)]
    pub(super) recordings: Recordings,
    /// Baseline that `spanscore learn` wrote.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) baseline: PathBuf,
    /// Compare only agents with at least N runs in both the recordings and the baseline.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub(super) min_runs: usize,
    /// Output format.
    #[arg(long, value_enum, default_value_t = DriftFormat::Human)]
    pub(super) format: DriftFormat,
    /// Exit 0 even on drift, or if nothing was compared.
    #[arg(long)]
    pub(super) exit_zero: bool,
}

/// Output formats of `drift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DriftFormat {
    /// Text for people.
    Human,
    /// One JSON object per agent and measure.
    Jsonl,
}

pub(super) fn drift(args: &Drift, rules: &Rules, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let baseline = match read_baseline(&args.baseline) {
        Ok(baseline) => baseline,
        Err((message, exit)) => return streams.complain(&message).map(|()| exit),
    };
    let replayed = match replayed::judge(&args.recordings, rules) {
        Ok(replayed) => replayed,
        Err(unreadable) => {
            return streams
                .complain(&unreadable.to_string())
                .map(|()| Exit::Unreadable);
        }
    };
    let trajectories = &replayed.judged.trajectories;
    let n_cut = trajectories.iter().filter(|run| run.cut_short).count();
    if n_cut > 0 {
        let runs = counted(n_cut, "run", "runs");
        writeln!(streams.err, "left out: {runs} cut short")?;
    }
    let whole = trajectories.iter().map(|run| &**run);
    let window = learn::group_runs(whole.filter(|run| !run.cut_short), config::group_of_run);
    let drift = learn::compare(&baseline, &window, args.min_runs);
    for group in &drift.groups {
        match args.format {
            DriftFormat::Human => human(group, args.min_runs, streams)?,
            DriftFormat::Jsonl => jsonl(group, streams)?,
        }
    }
    streams.out.flush()?;
    let failed = if drift.is_empty() {
        streams.complain(&format!(
            "nothing was compared: no agent has {} runs both here and in the baseline \
             (--min-runs)",
            args.min_runs
        ))?;
        true
    } else {
        drift.has_drifted()
    };
    Ok(if failed && !args.exit_zero { Exit::CriterionFailed } else { Exit::Fine })
}

fn read_baseline(path: &Path) -> Result<Baseline, (String, Exit)> {
    let place = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        (
            format!("{place}: cannot be read: {error}"),
            Exit::Unreadable,
        )
    })?;
    Baseline::parse(&text).map_err(|error| (format!("{place}: {error}"), Exit::Usage))
}

/// Returns the label of a measurement; a drift is a failure.
fn label(measurement: &Measurement) -> &'static str {
    match measurement.has_drifted() {
        Some(true) => "fail",
        Some(false) => "pass",
        None => "not_evaluated",
    }
}

fn human(group: &GroupDrift, min_runs: usize, streams: &mut Streams<'_>) -> io::Result<()> {
    let out = &mut streams.out;
    let name = config::group_text(&group.key);
    writeln!(
        out,
        "{}: {} against {} of the baseline",
        Clean(&name),
        counted(group.n_runs, "run", "runs"),
        group.n_baseline
    )?;
    if group.measurements.iter().all(|m| m.value.is_none()) {
        return match (group.n_baseline, group.n_runs) {
            (0, _) => writeln!(out, "  not compared: not in the baseline"),
            (_, 0) => writeln!(out, "  not compared: no such run in this window"),
            _ => writeln!(out, "  not compared: too few runs (--min-runs {min_runs})"),
        };
    }
    for measurement in &group.measurements {
        let mark = match measurement.has_drifted() {
            Some(true) => "DRIFT",
            Some(false) => "same ",
            None => "-    ",
        };
        let name = measurement.measure.as_str();
        match (measurement.value, measurement.p) {
            (Some(value), Some(p)) => {
                write!(out, "  {mark}  {name:<9} {value:>+7.3}  p {p:.3}")?;
            }
            _ => write!(out, "  {mark}  {name:<9} no values")?,
        }
        writeln!(out, "{}", Clean(&remarks(group, measurement.measure)))?;
    }
    Ok(())
}

/// Returns the tools or runs that explain a measurement; empty if there are none.
fn remarks(group: &GroupDrift, measure: Measure) -> String {
    let mut remarks = String::new();
    match measure {
        Measure::ToolUse => {
            let differs = |(_, [old, new]): &&(String, [f64; 2])| old != new;
            if let Some((tool, [old, new])) = group.tool_use.as_ref().filter(differs) {
                let (old, new) = (old * 100.0, new * 100.0);
                remarks.push_str(&format!(
                    "  {tool}: from {old:.1} % to {new:.1} % of the runs"
                ));
            }
        }
        Measure::ToolMix => {
            for (word, tools) in [("new", &group.new_tools), ("gone", &group.vanished_tools)] {
                if !tools.is_empty() {
                    remarks.push_str(&format!("  {word}: {}", tools.join(", ")));
                }
            }
        }
        Measure::Variants => {
            if let Some((calls, share)) = group.new_variants.first() {
                let others = match group.new_variants.len() - 1 {
                    0 => String::new(),
                    n => format!(" (+{n} more)"),
                };
                let calls = match calls.as_slice() {
                    [] => "no call".to_owned(),
                    calls => calls.join(", "),
                };
                // Show one decimal: one of several hundred runs is less than a percent.
                let digits = usize::from(*share < 0.1);
                let percent = share * 100.0;
                remarks.push_str(&format!("  new, {percent:.digits$} %: {calls}{others}"));
            }
        }
        Measure::Errors | Measure::Calls | Measure::Duration => {}
    }
    remarks
}

fn jsonl(group: &GroupDrift, streams: &mut Streams<'_>) -> io::Result<()> {
    for measurement in &group.measurements {
        let mut line = json!({
            "root": group.key.root,
            "agent": group.key.agent,
            "measure": measurement.measure.as_str(),
            "value": measurement.value,
            "p": measurement.p,
            "baseline_runs": group.n_baseline,
            "runs": group.n_runs,
            "label": label(measurement),
        });
        match measurement.measure {
            Measure::ToolUse => {
                line["tool"] = json!(group.tool_use.as_ref().map(|(tool, _)| tool));
            }
            Measure::ToolMix => {
                line["new_tools"] = json!(group.new_tools);
                line["vanished_tools"] = json!(group.vanished_tools);
            }
            Measure::Variants => {
                let variant =
                    |(calls, share): &(Vec<String>, f64)| json!({ "calls": calls, "share": share });
                line["new_variants"] = group.new_variants.iter().map(variant).collect();
            }
            Measure::Errors | Measure::Calls | Measure::Duration => {}
        }
        writeln!(streams.out, "{}", safe_json(line.to_string()))?;
    }
    Ok(())
}
