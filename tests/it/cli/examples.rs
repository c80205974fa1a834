//! Tests `replay --examples`: writes recordings and an example file, runs the command, and checks
//! its output and exit code.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::program::run;
use crate::support::spans::{SpanCall, request, spans_of_run};

/// Writes a recording for each run (its case id and the names of its calls) to a new folder.
/// Returns the folder and the files.
pub(super) fn recorded(runs: &[(Option<&str>, &[&str])]) -> (TempDir, Vec<String>) {
    let folder = TempDir::new().unwrap();
    let write = |(at, (case, names)): (usize, &(Option<&str>, &[&str]))| {
        let args = |name: &str| Some(json!({ "to": name }));
        let calls: Vec<SpanCall> = names
            .iter()
            .map(|name| SpanCall {
                name: (*name).to_owned(),
                args: args(name),
                ..SpanCall::default()
            })
            .collect();
        let attributes: Vec<(&str, &str)> =
            case.iter().map(|case| ("test.case.id", *case)).collect();
        let path = folder.path().join(format!("{at}.traces.pb"));
        std::fs::write(
            &path,
            request(spans_of_run(at as u64 + 1, &attributes, &calls)),
        )
        .unwrap();
        path.to_str().unwrap().to_owned()
    };
    let files = runs.iter().enumerate().map(write).collect();
    (folder, files)
}

/// Returns the exit code, the output lines, and the messages on standard error.
fn replayed(
    folder: &TempDir,
    files: &[String],
    criteria: &str,
    examples: &str,
    more: &[&str],
) -> (i32, Vec<Value>, String) {
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (config, examples) = (
        write("spanscore.yaml", criteria),
        write("examples.yaml", examples),
    );
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let flags = [
        "replay",
        "--format",
        "jsonl",
        "--config",
        &config,
        "--examples",
        &examples,
    ];
    let (code, out, err) = run(&[&flags[..], more, &files].concat());
    (
        code,
        out.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        err,
    )
}

fn told(lines: &[Value]) -> Vec<[&str; 3]> {
    lines
        .iter()
        .map(|line| ["criterion", "evaluator", "label"].map(|field| line[field].as_str().unwrap()))
        .collect()
}

#[test]
fn without_criteria_each_run_is_held_to_the_entry_at_its_place() {
    let (folder, files) = recorded(&[(None, &["search", "book"]), (None, &["book", "search"])]);
    let examples = "examples:\n  - input: { prompt: go }\
        \n    expected_tools: [{ tool_name: search, parameters: { to: search } }, \
        { tool_name: book }]\n  - expected_output: [search, book]\n";
    let (code, lines, err) = replayed(&folder, &files, "", examples, &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(
        told(&lines),
        [
            ["example", "tool_order", "pass"],
            ["example", "execution_order", "pass"]
        ]
    );
    assert_eq!(
        (&lines[0]["threshold"], &lines[1]["threshold"]),
        (&json!(1.0), &json!(0.5)),
        "each evaluator's own"
    );
    // If the two files are swapped, the first run does not meet its entry's expectation.
    let turned: Vec<String> = files.iter().rev().cloned().collect();
    let (code, lines, _) = replayed(&folder, &turned, "", examples, &[]);
    assert_eq!(
        (code, told(&lines)[0]),
        (1, ["example", "tool_order", "fail"])
    );
}

#[test]
fn an_id_finds_its_run_wherever_it_stands() {
    let (folder, files) = recorded(&[(Some("b"), &["b"]), (None, &["c"]), (Some("a"), &["a"])]);
    let entry =
        |id: &str, tool: &str| format!("  - {{ {id}expected_tools: [{{ tool_name: {tool} }}] }}\n");
    let examples = [
        "examples:\n",
        &entry("id: a, ", "a"),
        &entry("", "c"),
        &entry("id: b, ", "b"),
    ]
    .concat();
    let (code, lines, err) = replayed(&folder, &files, "", &examples, &["--exact-match"]);
    assert_eq!((code, err.as_str(), lines.len()), (0, "", 3), "{lines:?}");
}

#[test]
fn an_entry_replaces_the_fields_of_criteria_of_its_evaluator() {
    let criteria = "criteria:
  - name: order
    threshold: 0.5
    evaluate:
      tool_order: { expected_tools: [{ tool_name: nothing-like-it }], exact_match: true }
  - { name: never-pay, evaluate: { tool_calls: { disallowed: [pay] } } }
  - name: of-others
    select: { agent: other }
    evaluate: { execution_order: { expected_output: [x] } }
";
    let (folder, files) = recorded(&[(None, &["search", "book"]), (None, &["search"])]);
    let examples =
        "examples:\n  - expected_tools: [{ tool_name: search }]\n  - expected_output: [search]\n";
    let (code, lines, _) = replayed(&folder, &files, criteria, examples, &[]);
    assert_eq!(code, 1);
    let expected = [
        // The entry replaces `expected_tools`, but not `exact_match`, which forbids other calls.
        ["order", "tool_order", "fail"],
        ["never-pay", "tool_calls", "pass"],
        // The entry has a different evaluator, so the criterion is unchanged.
        ["order", "tool_order", "fail"],
        ["never-pay", "tool_calls", "pass"],
        // No selected criterion has the entry's evaluator.
        ["example", "execution_order", "pass"],
    ];
    assert_eq!(told(&lines), expected);
    assert_eq!(
        (
            &lines[0]["threshold"],
            &lines[0]["details"]["expected_tools"]
        ),
        (&json!(0.5), &json!(["search"]))
    );
    assert_eq!(
        lines[2]["details"]["expected_tools"],
        json!(["nothing-like-it"])
    );
}

#[test]
fn options_that_exclude_each_other_exit_with_2() {
    let (folder, files) = recorded(&[(Some("a"), &["a"]), (Some("a"), &["a"]), (None, &["b"])]);
    let one = "  - expected_output: [a]\n";
    let set =
        "criteria:\n  - { name: set, evaluate: { execution_order: { expected_output: [a] } } }\n";
    let named = "criteria:\
        \n  - { name: example, evaluate: { execution_order: { expected_output: [a] } } }\n";
    let cases = [
        (
            "",
            format!("examples:\n{one}{one}"),
            "the recordings have 3 runs (traces with a tool call or an agent run) without an \
             entry by `test.case.id`, the example file has 2 entries without an `id`",
        ),
        (
            "",
            format!("examples:\n  - {{ id: c, expected_output: [a] }}\n{one}{one}"),
            "no run has `test.case.id` = `c`",
        ),
        (
            "",
            format!("examples:\n  - {{ id: a, expected_output: [a] }}\n{one}{one}"),
            "the recordings have 1 run (traces with a tool call or an agent run) without an entry \
             by `test.case.id`, the example file has 2 entries without an `id`",
        ),
        (
            "",
            "examples:\n  - { id: a, expected_output: [a] }\n  - { id: a, expected_output: [b] }\n"
                .to_owned(),
            "a second example has the id `a`",
        ),
        (
            set,
            format!("examples:\n  - expected_output: []\n{one}{one}"),
            "examples.yaml, example 1 does not fit criterion `set`: `expected_output` is empty",
        ),
        (
            named,
            format!("examples:\n{one}{one}{one}"),
            "a criterion is named `example`",
        ),
        (
            "",
            "examples:\n  - expected_outputs: [a]\n".to_owned(),
            "did you mean `expected_output`?",
        ),
    ];
    for (criteria, examples, expected) in cases {
        let (code, lines, err) = replayed(&folder, &files, criteria, &examples, &[]);
        assert_eq!((code, lines.len()), (2, 0), "{err}");
        assert!(
            err.starts_with("error: ") && err.contains(expected),
            "{err}"
        );
    }
    let (code, _, err) = run(&["replay", "--examples", "none.yaml", &files[0]]);
    assert_eq!(code, 2);
    assert!(err.starts_with("error: cannot read `none.yaml`"), "{err}");
}

#[test]
fn an_entry_that_expects_nothing_warns_and_fail_under_looks_at_examples_too() {
    let (folder, files) = recorded(&[(None, &["a"]), (None, &["b"])]);
    let examples = "examples:\n  - expected_tools: []\n  - expected_tools: [{ tool_name: c }]\n";
    let (code, lines, err) = replayed(&folder, &files, "", examples, &["--fail-under", "0.5"]);
    assert_eq!((code, lines.len()), (0, 2), "one of two passes");
    assert!(
        err.starts_with("warning: ")
            && err.contains(
                "examples.yaml, example 1, criterion `example`: `expected_tools` is empty"
            ),
        "{err}"
    );
    assert_eq!(
        replayed(&folder, &files, "", examples, &["--fail-under", "0.6"]).0,
        1
    );
}

#[test]
fn a_case_can_be_tried_again_and_not_every_case_need_be_recorded() {
    let (folder, files) = recorded(&[
        (Some("a"), &["a"]),
        (Some("b"), &["b"]),
        (Some("a"), &["x"]),
        (Some("z"), &["z"]),
    ]);
    let examples = "examples:
  - { id: a, expected_output: [a] }
  - { id: never-recorded, expected_output: [c] }
  - { id: b, expected_output: [b] }
";
    let (code, lines, err) = replayed(&folder, &files, "", examples, &[]);
    assert_eq!(code, 1);
    let found: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| {
            (
                line["case_id"].as_str().unwrap(),
                line["label"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(found, [("a", "pass"), ("b", "pass"), ("a", "fail")]);
    assert_eq!(
        err,
        "note: 1 of 4 runs belong to no example and are judged by the criteria alone\n\
         note: 1 of 3 examples have no run in the recordings, the first is `never-recorded`\n"
    );
    // Repeated runs of one case have numbered names.
    let flags = ["--examples", "examples.yaml", "--format", "junit"];
    let names = |out: &str| -> Vec<String> {
        let cases = out.split("<testcase name=\"").skip(1);
        cases
            .map(|case| case.split('"').next().unwrap().to_owned())
            .collect()
    };
    let examples = folder.path().join("examples.yaml");
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let (_, out, _) = run(&[
        &[
            "replay",
            flags[0],
            examples.to_str().unwrap(),
            flags[2],
            flags[3],
        ],
        &files[..],
    ]
    .concat());
    assert_eq!(names(&out), ["a", "b", "a (2)"], "{out}");
}
