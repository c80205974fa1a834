//! Compares the limits on model calls and tokens with the answers of independent oracles
//! (`tests/conformance/README-beyond.md`).

use super::judged;
use crate::support::cases::{Cut, TreeCase, unpacked};
use crate::support::rules_of_case;

#[test]
fn every_limit_is_answered_as_by_the_oracles() {
    let text = unpacked(include_bytes!("../../conformance/tokens.jsonl.gz"));
    let (mut wrong, mut n_cases) = (Vec::new(), 0);
    for line in text.lines() {
        let case: TreeCase = serde_json::from_str(line).expect("a case");
        n_cases += 1;
        wrong.extend(difference(&case).map(|said| format!("{}: {said}\n    {line}", case.id)));
    }
    assert!(n_cases >= 74, "only {n_cases} cases were found");
    assert!(
        wrong.is_empty(),
        "{} of {n_cases} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn difference(case: &TreeCase) -> Option<String> {
    let mut fields = case.criteria.clone();
    fields["criterion"] = case.criterion.clone();
    let rules = rules_of_case(&case.id, &case.evaluator, &fields).expect("a criterion that loads");
    let cuts: &[Cut] = if case.cut { &[Cut::ParentMissing, Cut::RootOpen] } else { &[Cut::Whole] };
    for &cut in cuts {
        for is_reversed in [false, true] {
            let mut order: Vec<usize> = (0..case.tree.len()).collect();
            if is_reversed {
                order.reverse();
            }
            let evaluations = judged(&rules, &case.tree, order, cut, case.cut);
            let [evaluation] = evaluations.as_slice() else {
                return Some(format!("{} evaluations", evaluations.len()));
            };
            let expected = &case.expected;
            let bounds = [0, 1].map(|at| expected["between"][at].as_f64());
            let is_same = match (evaluation.value, expected["score"].as_f64(), bounds) {
                (Some(value), Some(score), _) => (value - score).abs() <= 1e-12,
                (Some(value), _, [Some(least), Some(most)]) => (least..=most).contains(&value),
                (value, ..) => value.is_none(),
            };
            if expected["label"] != evaluation.verdict.as_str() || !is_same {
                return Some(format!(
                    "is {} {:?} ({cut:?}): {} {}",
                    evaluation.verdict.as_str(),
                    evaluation.value,
                    evaluation.explanation(),
                    evaluation.details()
                ));
            }
        }
    }
    None
}
