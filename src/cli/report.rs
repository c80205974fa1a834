//! Prints the results of `replay` as human-readable text: first the verdicts of each run, runs with
//! failures first, then a table of the criteria.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use judge::evaluate::{Coverage, Evaluation, Verdict};
use judge::extract::Trajectory;
use text::wrapped;

use super::replayed::Replayed;
use crate::export::score_line::{self, Clean, Look};

/// The totals of one criterion.
#[derive(Debug, Default)]
struct Row {
    n_pass: usize,
    n_fail: usize,
    n_not_evaluated: usize,
    n_error: usize,
    /// The sum of the scores of all verdicts except `not_evaluated`; an `error` counts as 0.
    score_sum: f64,
}

/// Prints the verdicts that are shown, below their runs.
pub(super) fn write_runs(
    replayed: &Replayed,
    is_shown: impl Fn(&Evaluation) -> bool,
    look: Look,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut runs: Vec<(u64, Vec<&Evaluation>)> = Vec::new();
    let mut positions = BTreeMap::new();
    for evaluation in replayed
        .judged
        .evaluations
        .iter()
        .filter(|evaluation| is_shown(evaluation))
    {
        let arrival = evaluation.trajectory.arrival;
        let position = *positions.entry(arrival).or_insert_with(|| {
            runs.push((arrival, Vec::new()));
            runs.len() - 1
        });
        runs[position].1.push(evaluation);
    }
    for (_, evaluations) in &mut runs {
        evaluations.sort_by_key(|evaluation| rank(evaluation.verdict));
    }
    // The sort is stable, so runs of the same rank stay in the order of arrival.
    runs.sort_by_key(|(_, evaluations)| {
        let first = evaluations.first();
        first.map(|evaluation| rank(evaluation.verdict))
    });
    let whole: BTreeMap<u64, &Arc<Trajectory>> = replayed
        .judged
        .trajectories
        .iter()
        .map(|trajectory| (trajectory.arrival, trajectory))
        .collect();
    for (arrival, evaluations) in runs {
        let Some(first) = evaluations.first() else {
            continue;
        };
        // With `scope: agent`, the trajectory of an evaluation contains only one agent's calls.
        let trajectory = whole.get(&arrival).copied().unwrap_or(&first.trajectory);
        let place = replayed.place(trajectory).map(|place| place.line.as_str());
        write!(out, "{}", score_line::human_run(trajectory, place, look))?;
        for evaluation in evaluations {
            write!(out, "{}", score_line::human_verdict(evaluation, look))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Error | Verdict::Fail => 0,
        Verdict::NotEvaluated => 1,
        Verdict::Pass => 2,
    }
}

/// Prints a row for each criterion: the number of selected runs, the number of each verdict, and
/// the mean score. Prints a list if the rows are wider than the terminal.
pub(super) fn write_table(
    coverage: &Coverage,
    evaluations: &[Evaluation],
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let rows = rows(evaluations);
    let n_runs = coverage.counts().map(|(_, n_seen, _)| n_seen).max();
    let matched: BTreeMap<&str, u64> = coverage
        .counts()
        .map(|(criterion, _, n_matched)| (criterion, n_matched))
        .collect();
    let mut names: Vec<&str> = coverage.counts().map(|(criterion, ..)| criterion).collect();
    // The coverage does not contain criteria that come from single runs' expectations.
    names.extend(rows.keys().filter(|name| !matched.contains_key(*name)));
    if names.is_empty() {
        return Ok(());
    }
    let none = Row::default();
    let table: Vec<[String; 7]> = names
        .iter()
        .map(|name| {
            let row = rows.get(name).unwrap_or(&none);
            let n_matched = matched.get(name);
            let mean = row.mean();
            [
                Clean(name).to_string(),
                n_matched.map_or_else(|| "-".to_owned(), u64::to_string),
                row.n_pass.to_string(),
                row.n_fail.to_string(),
                row.n_not_evaluated.to_string(),
                row.n_error.to_string(),
                mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.2}")),
            ]
        })
        .collect();
    let matched = match n_runs {
        Some(n_runs) => format!("matched of {n_runs}"),
        None => "matched".to_owned(),
    };
    let words = [&matched, "pass", "fail", "not evaluated", "error", "mean"];
    let widest = table.iter().map(|row| row[0].chars().count()).max();
    let first = widest.unwrap_or_default().max("criterion".len());
    let table_width = first + words.iter().map(|word| 2 + word.len()).sum::<usize>();
    if width.is_some_and(|width| width < table_width) {
        for row in &table {
            let cells: Vec<String> = row[1..]
                .iter()
                .zip(words)
                .map(|(cell, word)| format!("{word}: {cell}"))
                .collect();
            let text = format!("{}\n  {}\n", row[0], cells.join(", "));
            write!(out, "{}", wrapped(&text, width))?;
        }
        return writeln!(out);
    }
    write!(out, "{:first$}", "criterion")?;
    for word in words {
        write!(out, "  {word}")?;
    }
    writeln!(out)?;
    for row in &table {
        write!(out, "{:first$}", row[0])?;
        for (cell, word) in row[1..].iter().zip(words) {
            write!(out, "  {cell:>0$}", word.len())?;
        }
        writeln!(out)?;
    }
    writeln!(out)
}

/// Returns the criteria whose mean score is below `floor`, each with its mean.
pub(super) fn means_below(floor: f64, evaluations: &[Evaluation]) -> Vec<(&str, f64)> {
    let rows = rows(evaluations).into_iter();
    rows.filter_map(|(criterion, row)| Some((criterion, row.mean()?)))
        .filter(|(_, mean)| *mean < floor)
        .collect()
}

fn rows(evaluations: &[Evaluation]) -> BTreeMap<&str, Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for evaluation in evaluations {
        let row = rows.entry(evaluation.criterion.name()).or_default();
        match evaluation.verdict {
            Verdict::Pass => row.n_pass += 1,
            Verdict::Fail => row.n_fail += 1,
            Verdict::NotEvaluated => row.n_not_evaluated += 1,
            Verdict::Error => row.n_error += 1,
        }
        if evaluation.verdict != Verdict::NotEvaluated {
            row.score_sum += evaluation.value.unwrap_or_default();
        }
    }
    rows
}

impl Row {
    fn mean(&self) -> Option<f64> {
        let n = self.n_pass + self.n_fail + self.n_error;
        (n > 0).then(|| self.score_sum / n as f64)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_that_is_wider_than_the_terminal_is_a_list() {
        let criterion = json!({
            "name": "a-name-that-takes-28-columns",
            "evaluate": { "tool_calls": { "disallowed": ["x"] } },
        });
        let mut coverage = Coverage::default();
        coverage.follow(
            &[Arc::new(serde_json::from_value(criterion).unwrap())],
            None,
        );
        let table = |width| {
            let mut out = Vec::new();
            write_table(&coverage, &[], Some(width), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let width = |text: &str| text.lines().map(|line| line.chars().count()).max();
        let is_list = |text: &str| text.contains("pass: 0");
        for columns in [40, 60, 80, 81] {
            let text = table(columns);
            assert!(is_list(&text) && width(&text) <= Some(columns), "{text}");
        }
        assert!(!is_list(&table(82)));
        assert_eq!(width(&table(82)), Some(82));
    }
}
