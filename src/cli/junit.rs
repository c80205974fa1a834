//! Writes evaluations as a JUnit report: one suite per criterion, one case, `{root} {trace_id}`,
//! per trajectory. Knows nothing of evaluators.

use std::collections::BTreeMap;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::evaluate::{Evaluation, Verdict};

/// The report as XML, with suites in the order in which their criteria first appear.
pub(super) fn render(evaluations: &[Evaluation]) -> Result<String, quick_junit::SerializeError> {
    let mut report = Report::new("spanscore");
    let mut positions = BTreeMap::new();
    let mut suites: Vec<TestSuite> = Vec::new();
    for evaluation in evaluations {
        let name = evaluation.criterion.name();
        let position = *positions.entry(name).or_insert_with(|| {
            suites.push(TestSuite::new(name));
            suites.len() - 1
        });
        suites[position].add_test_case(case(evaluation));
    }
    report.add_test_suites(suites);
    report.to_string()
}

fn case(evaluation: &Evaluation) -> TestCase {
    let trajectory = &evaluation.trajectory;
    let mut status = match evaluation.verdict {
        Verdict::Pass => TestCaseStatus::success(),
        Verdict::Fail => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::Error => TestCaseStatus::non_success(NonSuccessKind::Error),
        Verdict::NotEvaluated => TestCaseStatus::skipped(),
    };
    if evaluation.verdict != Verdict::Pass {
        status.set_message(evaluation.explanation());
    }
    if let (Verdict::Error, Some(error)) = (evaluation.verdict, &evaluation.error) {
        status.set_type(error.kind);
    }
    let mut case = TestCase::new(
        format!("{} {}", trajectory.root, trajectory.trace_id),
        status,
    );
    case.set_classname(evaluation.criterion.name());
    if evaluation.verdict == Verdict::Pass && !evaluation.explanation().is_empty() {
        case.set_system_out(evaluation.explanation());
    }
    case
}
