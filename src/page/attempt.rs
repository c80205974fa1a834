//! Judges remembered runs by a criterion on trial, and counts the verdicts that would change.

use std::sync::Arc;

use judge::evaluate::{self, Criterion, Evaluation, Explain, SearchBudget, Verdict};
use serde_json::{Value, json};
use text::abbreviated;

use super::memory::RememberedRun;

/// Maximum work: the bytes of the criterion times the calls that it judges. Older runs beyond the
/// limit are skipped. Two seconds of one core in the worst case.
const MAX_COST: usize = 48 << 20;
/// Maximum bytes of names and values that patterns may search.
const MAX_SEARCHED: usize = 16 << 20;
const MAX_LISTED: usize = 200;

pub(super) fn attempt(criterion: &Arc<Criterion>, runs: &[Arc<RememberedRun>]) -> Value {
    let criteria = std::slice::from_ref(criterion);
    // All runs share one budget, as if they were one trace.
    let mut budget = SearchBudget::default();
    let size = json!(criterion).to_string().len();
    let (mut cost, mut searched) = (0_usize, 0_usize);
    let mut labels = [0_u64; 4];
    let (mut n_runs, mut n_selected, mut n_without_values, mut n_changed) = (0_u64, 0_u64, 0, 0);
    let (mut n_in_part, mut n_unselected) = (0_u64, 0_u64);
    // Runs whose verdict would change are first, then runs that do not pass.
    let mut lists: [Vec<Value>; 3] = Default::default();
    for run in runs.iter().filter(|run| !run.trajectory.is_taken_over()) {
        let calls = &run.trajectory.tool_calls;
        cost = cost.saturating_add(size.saturating_mul(calls.len() + 1));
        searched = searched.saturating_add(evaluate::searched_size(calls) + calls.len() * 16);
        if cost > MAX_COST || searched > MAX_SEARCHED {
            break;
        }
        n_runs += 1;
        if run.n_calls > calls.len() {
            n_in_part += 1;
            continue;
        }
        let explain = Explain {
            values: run.has_values,
            ..Explain::default()
        };
        let before = run.evaluations.iter();
        let before = before.filter(|before| before.criterion.name() == criterion.name);
        let before = before.max_by_key(|before| severity(before.verdict));
        let evaluations = evaluate::judge_within(criteria, &run.trajectory, &explain, &mut budget);
        // With `scope: agent` a run can have many evaluations. Show the worst one.
        let Some(worst) = evaluations
            .iter()
            .max_by_key(|found| severity(found.verdict))
        else {
            n_unselected += u64::from(before.is_some());
            continue;
        };
        n_selected += 1;
        labels[place(worst.verdict)] += 1;
        let is_for_values =
            worst.verdict == Verdict::NotEvaluated && !run.has_values && !run.trajectory.cut_short;
        n_without_values += u64::from(is_for_values);
        let differs = before.is_some_and(|before| before.verdict != worst.verdict);
        n_changed += u64::from(differs);
        let list = match (differs, worst.verdict) {
            (true, _) => &mut lists[0],
            (false, Verdict::Pass) => &mut lists[2],
            (false, _) => &mut lists[1],
        };
        if list.len() < MAX_LISTED {
            list.push(line(run, worst, before, is_for_values));
        }
    }
    let mut listed = lists.concat();
    listed.truncate(MAX_LISTED);
    let [pass, fail, not_evaluated, error] = labels;
    json!({
        "criterion": criterion.name,
        "revision": criterion.revision(),
        "warnings": criterion.warnings(),
        "remembered": runs.len(),
        "judged": n_runs,
        "selected": n_selected,
        "labels": {
            "pass": pass,
            "fail": fail,
            "not_evaluated": not_evaluated,
            "error": error,
        },
        "changed": n_changed,
        "unselected": n_unselected,
        "in_part": n_in_part,
        "without_values": n_without_values,
        "runs": listed,
    })
}

fn line(
    run: &RememberedRun,
    found: &Evaluation,
    before: Option<&Evaluation>,
    is_for_values: bool,
) -> Value {
    const MAX_EXPLANATION: usize = 400;
    let explanation = if is_for_values {
        "not evaluated: it reads arguments or results, and values are not remembered \
                 (`explain.values: true` keeps them)"
    } else {
        found.explanation()
    };
    json!({
        "trace_id": run.trajectory.trace_id.to_string(),
        "root": abbreviated(&run.trajectory.root, 120),
        "label": found.verdict.as_str(),
        "score": found.value,
        "before": before.map(|before| before.verdict.as_str()),
        "explanation": abbreviated(explanation, MAX_EXPLANATION),
    })
}

fn place(verdict: Verdict) -> usize {
    match verdict {
        Verdict::Pass => 0,
        Verdict::Fail => 1,
        Verdict::NotEvaluated => 2,
        Verdict::Error => 3,
    }
}

fn severity(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Pass => 0,
        Verdict::NotEvaluated => 1,
        Verdict::Error => 2,
        Verdict::Fail => 3,
    }
}
