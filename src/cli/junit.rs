//! Writes evaluations as a JUnit report: one suite per criterion, one case per run. The name of a
//! run's case stays the same from report to report, because CI systems compare reports by these
//! names.

use std::collections::BTreeMap;
use std::time::Duration;

use judge::evaluate::{Evaluation, Scope, Verdict};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::replayed::Replayed;
use crate::export::score_line::{self, Clean, Look};

/// Returns the report as XML. The suites are in the order in which their criteria first appear.
pub(super) fn render(
    replayed: &Replayed,
    is_shown: impl Fn(&Evaluation) -> bool,
) -> Result<String, quick_junit::SerializeError> {
    let mut report = Report::new("spanscore");
    let mut positions = BTreeMap::new();
    let mut taken: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let mut suites: Vec<TestSuite> = Vec::new();
    for evaluation in &replayed.judged.evaluations {
        let criterion = evaluation.criterion.name();
        // Count hidden evaluations, too, because names must not depend on which evaluations are
        // shown.
        let name = name(replayed, evaluation);
        let n = taken.entry((criterion, name.clone())).or_default();
        *n += 1;
        if !is_shown(evaluation) {
            continue;
        }
        let name = match n {
            1 => name,
            n => format!("{name} ({n})"),
        };
        let position = *positions.entry(criterion).or_insert_with(|| {
            suites.push(TestSuite::new(Clean(criterion).to_string()));
            suites.len() - 1
        });
        suites[position].add_test_case(case(replayed, evaluation, name));
    }
    report.add_test_suites(suites);
    report.to_string()
}

/// Returns the id of the run's example case, else the file and the run's position in it, else
/// `run`. With `scope: agent`, adds the agent. Does not use trace ids, or names of spans, which may
/// contain ids.
fn name(replayed: &Replayed, evaluation: &Evaluation) -> String {
    let trajectory = &evaluation.trajectory;
    let run = match (
        &trajectory.expectation_attributes.case_id,
        replayed.place(trajectory),
    ) {
        (Some(case_id), _) => case_id.to_string(),
        (None, Some(place)) => format!("{} #{}", place.file, place.position),
        (None, None) => "run".to_owned(),
    };
    let agent = trajectory.agent.as_deref();
    let name = match agent.filter(|_| evaluation.criterion.scope() == Scope::Agent) {
        Some(agent) => format!("{run} {agent}"),
        None => run,
    };
    Clean(&name).to_string()
}

fn case(replayed: &Replayed, evaluation: &Evaluation, name: String) -> TestCase {
    let trajectory = &evaluation.trajectory;
    let mut status = match evaluation.verdict {
        Verdict::Pass => TestCaseStatus::success(),
        Verdict::Fail => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Error => TestCaseStatus::non_success(NonSuccessKind::Error),
        Verdict::NotEvaluated => TestCaseStatus::skipped(),
    };
    let explanation = Clean(evaluation.explanation()).to_string();
    let place = replayed.place(trajectory);
    let line = place.map(|place| place.line.as_str());
    let body = format!(
        "{}{}",
        score_line::human_run(trajectory, line, Look::PLAIN),
        score_line::human_verdict(evaluation, Look::PLAIN)
    );
    if evaluation.verdict != Verdict::Pass {
        status.set_message(explanation.as_str());
        status.set_description(body.as_str());
    }
    match (evaluation.verdict, &evaluation.error) {
        (Verdict::Error, Some(error)) => {
            status.set_type(error.kind);
        }
        (Verdict::Fail, _) => {
            status.set_type(evaluation.criterion.evaluator());
        }
        _ => {}
    }
    let mut case = TestCase::new(name, status);
    case.set_classname(Clean(evaluation.criterion.name()).to_string());
    let start = trajectory
        .subject
        .as_ref()
        .map(|subject| subject.start_unix_nanos)
        .filter(|start| *start > 0);
    if let Some(start) = start {
        let nanos = trajectory.latest_end_unix_nanos.saturating_sub(start);
        case.set_time(Duration::from_nanos(nanos));
    }
    if let Some(place) = place {
        case.extra.insert("file".into(), place.file.as_str().into());
    }
    if evaluation.verdict == Verdict::Pass {
        case.set_system_out(body);
    }
    case
}
