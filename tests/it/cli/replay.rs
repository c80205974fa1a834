//! Tests the human-readable output of `replay`, its report and its JUnit output, for several runs.
//! Does not prove that the verdicts are right.

use serde_json::Value;

use super::examples::recorded;
use crate::support::program::run;

const CRITERIA: &str = "criteria:
  - { name: order, evaluate: { tool_call_order: { tool_calls_order: [a, b] } } }
  - { name: never-x, evaluate: { tool_calls: { disallowed: [^x$] } } }
  - name: elsewhere
    select: { service: other }
    evaluate: { tool_call_order: { tool_calls_order: [a] } }
";

/// Returns the exit code, the output and the messages. File names in the output are relative to the
/// folder.
fn replayed(runs: &[(Option<&str>, &[&str])], more: &[&str]) -> (i32, String, String) {
    let (folder, files) = recorded(runs);
    let config = folder.path().join("spanscore.yaml");
    std::fs::write(&config, CRITERIA).unwrap();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let (code, out, err) = run(&[
        &["replay", "--config", config.to_str().unwrap()],
        more,
        &files,
    ]
    .concat());
    let folder = format!("{}/", folder.path().display());
    (code, out.replace(&folder, ""), err)
}

const GOOD: (Option<&str>, &[&str]) = (None, &["a", "b"]);
const BAD: (Option<&str>, &[&str]) = (Some("case-7"), &["x", "b"]);

#[test]
fn verdicts_are_grouped_by_run_and_failures_come_first() {
    let (code, out, err) = replayed(&[GOOD, BAD], &[]);
    assert_eq!(code, 1);
    let out = out.replace(" Alignment", "\n Alignment");
    insta::assert_snapshot!(out, @r"
    trace 00000000000000070000000000000002 · tests · tester · root_ended · 1.traces.pb
      2023-11-14T22:13:20Z · invoke_agent tester · case case-7
      calls: x, b
      FAIL  order  0.50 (threshold 1.00)
            `a` was not called; 1 of 2 expected calls made in order.
     Alignment (+ called, - expected): +x, -a, b
      FAIL  never-x  0.00 (threshold 1.00)
            `x` (call 1) is disallowed by `^x$`

    trace 00000000000000070000000000000001 · tests · tester · root_ended · 0.traces.pb
      2023-11-14T22:13:20Z · invoke_agent tester
      calls: a, b
      PASS  order  1.00 (threshold 1.00)
            2 expected calls made in order, no other
      PASS  never-x  1.00 (threshold 1.00)
            nothing disallowed was called

    criterion  matched of 2  pass  fail  not evaluated  error  mean
    order                 2     1     1              0      0  0.75
    never-x               2     1     1              0      0  0.50
    elsewhere             0     0     0              0      0     -

    4 evaluations of 2 traces: 2 passed, 2 failed
    ");
    assert_eq!(
        err,
        "warning: criterion `elsewhere`: no trajectory of service `other`; seen: `tests`\n"
    );
}

#[test]
fn only_failures_can_be_printed_and_everything_still_counts() {
    let (code, out, _) = replayed(&[GOOD, BAD, GOOD], &["--only", "fail"]);
    assert_eq!(code, 1);
    assert!(
        !out.contains("PASS")
            && out.matches("FAIL").count() == 2
            && out.matches("trace 0").count() == 1,
        "{out}"
    );
    assert!(
        out.ends_with("6 evaluations of 3 traces: 4 passed, 2 failed\n"),
        "{out}"
    );
    let (_, out, _) = replayed(&[GOOD, BAD], &["--only", "fail", "--format", "jsonl"]);
    let labels: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["label"].clone())
        .collect();
    assert_eq!(labels, ["fail", "fail"]);
}

/// CI systems compare reports by the names of cases, so the names must be the same in every
/// recording.
#[test]
fn a_case_of_junit_keeps_its_name_in_the_next_recording() {
    let names = |runs: &[(Option<&str>, &[&str])]| -> Vec<String> {
        let (_, out, _) = replayed(runs, &["--format", "junit"]);
        let cases = out.split("<testcase name=\"").skip(1);
        cases
            .map(|case| case.split('"').next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        names(&[GOOD, BAD]),
        ["0.traces.pb #1", "case-7", "0.traces.pb #1", "case-7"]
    );
    let (_, out, _) = replayed(&[GOOD, BAD], &["--format", "junit"]);
    for part in [
        "<failure message=\"`a` was not called",
        "type=\"tool_call_order\">trace 0000",
        "file=\"1.traces.pb\"",
        "time=\"0.000\"",
        "FAIL  never-x  0.00",
    ] {
        assert!(out.contains(part), "{part}\n{out}");
    }
}

#[test]
fn a_report_is_one_file_that_loads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    let path = report.to_str().unwrap();
    let hostile: (Option<&str>, &[&str]) = (None, &["</script><script>alert(1)</script>"]);
    let (code, _, err) = replayed(&[GOOD, BAD, hostile], &["--report", path]);
    assert_eq!(code, 1, "{err}");
    let text = std::fs::read_to_string(&report).unwrap();
    assert!(text.contains("default-src 'none'; script-src 'sha256-"));
    assert!(text.contains("case-7") && text.contains("never-x"));
    // The four scripts are two data blocks, a chunk of details, and the page's script. No part of a
    // name became a tag.
    assert_eq!(text.matches("<script").count(), 4);
    assert!(!text.contains("<script>alert(1)") && !text.contains(" src="));

    let (code, _, err) = replayed(&[GOOD], &["--report", "/no/such/folder/report.html"]);
    assert_eq!(code, 2);
    assert!(err.contains("cannot write the report"), "{err}");
}
