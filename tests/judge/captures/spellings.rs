//! Extracts the calls from `tests/data/spellings`: for each spelling of a call, the smallest
//! request that contains it, written by hand after what products send. Does not prove which other
//! attributes a product sends; recorded sessions do.

use std::path::Path;

use judge::pipeline::Rules;
use serde_json::Value;

use super::{Scenario, compare, items, trajectories};

pub(crate) fn spellings() -> Vec<Scenario> {
    let folder = Path::new(crate::ROOT).join("tests/data/spellings");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let spelling = |path: &std::path::PathBuf| {
        let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        Scenario {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            requests: vec![(
                "001.traces.json".to_owned(),
                expected["request"].to_string().into_bytes(),
            )],
            expected,
        }
    };
    paths.iter().map(spelling).collect()
}

#[test]
fn every_spelling_shows_the_calls_that_were_made() {
    let mut wrong = Vec::new();
    for spelling in spellings() {
        let rules = Rules::new(Vec::new());
        let found = compare(&spelling, &trajectories(items(&spelling, &rules), &rules));
        if !found.is_empty() {
            wrong.push(format!("{}: {found:?}", spelling.name));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
