//! Tests how rules, references and limits appear in JUnit, in JSON lines and in the output of
//! `validate`. Does not prove what the evaluators find.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::learn::{call, good, recording};
use crate::support::program::run;

const CRITERIA: &str = "\
criteria:
  - name: approved
    evaluate:
      constraints:
        rules: [{ precedence: { a: \"^approve$\", b: \"^pay$\", same: [args.order] } }]
  - name: like-the-good-run
    evaluate:
      trajectory_match: { expected: [login, search, approve, pay, send_receipt], score: in_order }
  - name: effort
    evaluate:
      efficiency: { max_calls: 5, max_duration: 1h }
";

#[test]
fn reports_name_rule_reference_and_limit_and_show_no_value() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (criteria, runs) = (path("criteria.yaml"), path("runs.jsonl"));
    std::fs::write(&criteria, CRITERIA).unwrap();
    let mut bad = good(1);
    bad.retain(|call| call.name != "approve");
    bad.extend([call("delete", 1), call("delete", 1)]);
    std::fs::write(&runs, recording(&[good(0), bad])).unwrap();

    let (code, out, err) = run(&["replay", "-c", &criteria, "--format", "junit", &runs]);
    assert_eq!(code, 1, "{err}");
    for part in [
        "no `^approve$` before it in this trace with the same `args.order`",
        "type=\"constraints\"",
        "-approve",
        "type=\"trajectory_match\"",
        "7 calls were made, at most 5",
        "type=\"efficiency\"",
    ] {
        assert!(out.contains(part), "{part}\n{out}");
    }
    assert!(!out.contains("order-1"), "{out}");

    let (code, out, _) = run(&["replay", "-c", &criteria, "--format", "jsonl", &runs]);
    assert_eq!(code, 1);
    assert!(!out.contains("order-1"), "{out}");
    let lines = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let failed: Vec<Value> = lines.filter(|line| line["label"] == "fail").collect();
    let details: Vec<&Value> = failed.iter().map(|line| &line["details"]).collect();
    assert_eq!(details[0]["rules"][0]["violated"], json!([4]));
    assert_eq!(details[1]["matched"], json!(4));
    assert_eq!(details[2]["limits"]["max_calls"]["actual"], json!(7));

    // The output of `validate` loads as the same criteria.
    let (code, out, err) = run(&["validate", "--print", &criteria]);
    assert_eq!(code, 0, "{err}");
    let printed = path("printed.yaml");
    std::fs::write(&printed, &out).unwrap();
    let judged = |config: &str| run(&["replay", "-c", config, "--format", "jsonl", &runs]).1;
    assert_eq!(judged(&printed), judged(&criteria));
}
