//! One file with every field of every evaluator wrong. It does not prove that a remedy works.

use std::collections::BTreeSet;

use super::messages;

const TEXT: &str = include_str!("wrong_evaluators.yaml");

#[test]
fn every_wrong_field_of_every_evaluator_is_told_at_once_and_at_its_place() {
    let told = messages(TEXT);
    let lines: Vec<usize> = told
        .iter()
        .map(|problem| problem.spot.as_ref().unwrap().line)
        .collect();
    let wrong: Vec<usize> = TEXT
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.trim_end().ends_with("# wrong"))
        .map(|(_, number)| number)
        .collect();
    let distinct: BTreeSet<usize> = lines.iter().copied().collect();
    let missed: Vec<&str> = TEXT
        .lines()
        .zip(1..)
        .filter(|(_, n)| wrong.contains(n) && !distinct.contains(n))
        .map(|(line, _)| line)
        .collect();
    let made_up: Vec<String> = told
        .iter()
        .filter(|problem| !wrong.contains(&problem.spot.as_ref().unwrap().line))
        .map(ToString::to_string)
        .collect();
    assert!(
        missed.is_empty() && made_up.is_empty(),
        "missed: {missed:#?}\nmade up: {made_up:#?}"
    );
    insta::assert_snapshot!(told.render(false));
    assert_eq!(
        lines, wrong,
        "one message a mistake, in the order of the lines"
    );
}
