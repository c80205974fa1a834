//! Tests expectations in spans, mostly with a recorded session of pydantic-ai 2 below spans of a
//! test harness. The harness's spans contain the expectations of the runs.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::program::{RECORDING, Running, http, run};
use crate::support::spans::{SpanCall, request, spans_of_run};

const RECORDED: &str = "tests/data/pydantic-ai-expect.traces.pb.gz";
const CRITERION: &str = "{ name: weather-first, select: { service: nobody }, \
    evaluate: { tool_call_order: { tool_calls_order: [get_weather, search] } } }";

/// Writes a configuration with these `expectations`, and a cases file next to it.
fn configured(expectations: &str) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let cases = "examples:\n  - id: paris\
        \n    expected_tools: [{ tool_name: get_weather, parameters: { city: Paris } }, \
        { tool_name: search }]\n";
    std::fs::write(folder.path().join("cases.yaml"), cases).unwrap();
    let path = folder.path().join("spanscore.yaml");
    std::fs::write(
        &path,
        format!("expectations: {expectations}\ncriteria: [{CRITERION}]\n"),
    )
    .unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// Returns the criterion, evaluator and label of each verdict.
fn replayed(config: &str) -> Vec<[String; 3]> {
    let (_, out, _) = run(&[
        "replay",
        "--config",
        config,
        "--exit-zero",
        "--allow-empty",
        "--format",
        "jsonl",
        RECORDED,
    ]);
    let lines = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|line| {
            ["criterion", "evaluator", "label"].map(|key| line[key].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn each_run_is_judged_by_the_expectations_of_its_harness() {
    let (_folder, full) = configured("{ from_spans: full, cases_file: cases.yaml }");
    let expected = [
        ["example", "tool_order", "pass"],
        ["expect", "tool_call_order", "pass"],
        ["expect", "tool_calls", "fail"],
        ["weather-first", "tool_call_order", "fail"],
        ["expect", "unknown", "error"],
    ];
    assert_eq!(replayed(&full), expected);
    let (_folder, names) = configured("{}");
    assert_eq!(
        replayed(&names),
        expected[3..],
        "by default runs name criteria, and no more"
    );
    let (_folder, off) = configured("{ from_spans: off }");
    assert_eq!(replayed(&off), [[""; 3]; 0]);
}

#[test]
fn no_criterion_need_be_configured_where_runs_bring_what_is_expected() {
    let replay =
        |flags: &[&str]| run(&[&["replay", "--format", "jsonl"], flags, &[RECORDED]].concat());
    let (code, out, _) = replay(&["--set", "expectations.from_spans=full"]);
    assert_eq!((code, out.lines().count()), (1, 4), "{out}");
    let (code, out, err) = replay(&[]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    let (code, _, err) = run(&[
        &["replay", "--set", "expectations.from_spans=full"],
        &RECORDING[..],
    ]
    .concat());
    assert_eq!(code, 1);
    assert!(err.contains("no run has an expectation ("), "{err}");
}

#[test]
fn validate_counts_the_cases() {
    let (_folder, config) = configured("{ cases_file: cases.yaml }");
    assert_eq!(
        run(&["validate", &config]).1,
        format!("{config}: ok, 1 criterion, 1 case\n")
    );
}

#[test]
fn inspect_verbose_tells_what_a_run_brings_and_what_is_not_read() {
    let inspected = |expectations: &str| {
        let (_folder, config) = configured(expectations);
        run(&["inspect", "--verbose", "--config", &config, RECORDED]).1
    };
    let full = inspected("{ from_spans: full, cases_file: cases.yaml }");
    for line in [
        "  case `paris`: the cases file has an expectation for it (tool_order)\n",
        "  case `rome`: the cases file does not contain it\n",
        "  has an expectation of its own, criterion `expect`: tool_calls\n",
        "  names the criterion `weather-first`, which applies regardless of its selector\n",
        "  criterion `expect` is in error: `spanscore.criteria` of span 5f6a28104427ce78 names \
         `weather-frist`, but no such criterion",
    ] {
        assert!(full.contains(line), "{line}\n{full}");
    }
    let names = inspected("{}");
    for line in [
        "  case `paris`: there is no cases file\n",
        "  `spanscore.expect` of span 3253de9c469e24e8 is ignored: `expectations.from_spans` is \
         `names-only`\n",
    ] {
        assert!(names.contains(line), "{line}\n{names}");
    }
}

#[test]
fn what_runs_bring_is_added_to_what_examples_expect() {
    let (folder, config) = configured("{ from_spans: full }");
    let examples = folder.path().join("examples.yaml");
    std::fs::write(
        &examples,
        format!("examples:\n{}", "  - expected_output: [search]\n".repeat(4)),
    )
    .unwrap();
    let flags = [
        "--config",
        &config,
        "--exit-zero",
        "--format",
        "jsonl",
        "--examples",
        examples.to_str().unwrap(),
    ];
    let (code, out, err) = run(&[&["replay"], &flags[..], &[RECORDED]].concat());
    let of = |criterion: &str| {
        out.lines()
            .filter(|line| line.contains(&format!("\"criterion\":\"{criterion}\"")))
            .count()
    };
    assert_eq!(
        (code, of("example"), of("expect"), of("weather-first")),
        (0, 4, 3, 1),
        "{err}{out}"
    );
}

#[test]
fn a_sidecar_does_not_say_that_nothing_judges_a_run_which_its_own_expectation_judged() {
    let call = SpanCall {
        name: "pay".to_owned(),
        ..SpanCall::default()
    };
    let expect = "{\"execution_order\": {\"expected_output\": [\"pay\"]}}";
    let runs: [(&[(&str, &str)], bool); 2] =
        [(&[("spanscore.expect", expect)], false), (&[], true)];
    for (attributes, is_unjudged) in runs {
        let mut sidecar = Running::start(&[
            "--set",
            "expectations.from_spans=full",
            "--set",
            "shutdown.quiet=0s",
        ]);
        let [otlp, _] = sidecar.addresses();
        let spans = spans_of_run(1, attributes, std::slice::from_ref(&call));
        http(&otlp, "POST /v1/traces", &request(spans));
        sidecar.signal(rustix::process::Signal::TERM);
        let mut said = false;
        loop {
            let line = sidecar.line();
            let message = line["message"].as_str().unwrap_or_default().to_owned();
            said |= message.contains("no criterion judges them");
            if message.starts_with("stopped") {
                break;
            }
        }
        assert_eq!(said, is_unjudged, "{attributes:?}");
        let (code, out) = sidecar.ended();
        assert_eq!(
            (code, out.contains("\"label\":\"pass\"")),
            (0, !is_unjudged)
        );
    }
}
