//! Compares the limits with the answers of independent oracles
//! (`tests/conformance/README-beyond.md`).

use serde::Deserialize;
use serde_json::Value;

use super::{Cut, Node, judged};
use crate::support::cases::{rules_of_case, unpacked};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    evaluator: String,
    criteria: Value,
    /// The criterion's own fields.
    #[serde(default)]
    criterion: Value,
    tree: Vec<Node>,
    expected: Expected,
    #[serde(default)]
    cut: bool,
    #[serde(rename = "calls")]
    _calls: Value,
    #[serde(rename = "exact")]
    _exact: bool,
    #[serde(rename = "peer")]
    _peer: String,
    #[serde(rename = "tags")]
    _tags: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    label: String,
    score: Option<f64>,
    /// Bounds of the score, where it is not known.
    between: Option<[f64; 2]>,
}

#[test]
fn every_limit_is_answered_as_by_the_oracles() {
    let text = unpacked(include_bytes!("../../conformance/tokens.jsonl.gz"));
    let (mut wrong, mut n_cases) = (Vec::new(), 0);
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).expect("a case");
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

fn difference(case: &Case) -> Option<String> {
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
            let is_same = match (evaluation.value, expected.score, expected.between) {
                (Some(value), Some(score), _) => (value - score).abs() <= 1e-12,
                (Some(value), _, Some([least, most])) => (least..=most).contains(&value),
                (value, ..) => value.is_none(),
            };
            if evaluation.verdict.as_str() != expected.label || !is_same {
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
