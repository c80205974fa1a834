//! Tests the warnings about criteria that do not match the observed runs: a misspelt selector, an
//! agent other than the evaluated one, a tool with another name. Does not prove that matching
//! criteria judge correctly.

use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
use serde_json::Value;

use crate::support::program::{RECORDING, Running, http, run};
use crate::support::spans::{SpanCall, request, spans_of_run};

fn replayed(criteria: &str, more: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("criteria.yaml");
    std::fs::write(&file, format!("criteria:\n{criteria}")).unwrap();
    let config = ["replay", "--config", file.to_str().unwrap()];
    let (code, _, err) = run(&[&config, more, &RECORDING[..]].concat());
    (code, err)
}

const FITS: &str =
    "  - { name: fits, evaluate: { tool_call_order: { tool_calls_order: [lookup_account] } } }\n";

#[test]
fn a_criterion_that_does_not_fit_is_named_with_the_names_that_were_seen() {
    let order = "evaluate: { tool_call_order: { tool_calls_order: [lookup_account] } }";
    let cases = [
        (
            format!("  - {{ name: x, select: {{ agent: billing_agnt }}, {order} }}\n"),
            "no trajectory of agent `billing_agnt`; seen: `billing_agent`",
        ),
        (
            format!("  - {{ name: x, select: {{ root: \"chat *\" }}, {order} }}\n"),
            "no trajectory with root `chat *`; seen: `invoke_agent billing_agent`",
        ),
        (
            format!("  - {{ name: x, select: {{ calls: \"charge\" }}, {order} }}\n"),
            "no trajectory with a call of `charge`; seen: `charge_card`, `lookup_account`, \
             `send_receipt`",
        ),
        (
            format!("  - {{ name: x, select: {{ attributes: {{ tier: gold }} }}, {order} }}\n"),
            "no trajectory with attribute `tier` = `gold`; seen: nothing",
        ),
        (
            "  - { name: x, evaluate: { tool_call_order: { tool_calls_order: [charge_crad] } }, \
             threshold: 0 }\n"
                .to_owned(),
            "no run calls `charge_crad`; seen: `charge_card`, `lookup_account`, `send_receipt`",
        ),
        (
            "  - { name: x, evaluate: { tool_calls: { disallowed: [^Shop-charge_card$] } } }\n"
                .to_owned(),
            "no run calls `Shop-charge_card`; seen: `charge_card`, `lookup_account`, \
             `send_receipt`",
        ),
    ];
    for (criterion, problem) in cases {
        let (code, err) = replayed(&format!("{FITS}{criterion}"), &[]);
        assert_eq!(code, 0, "{err}");
        assert!(
            err.contains(&format!("warning: criterion `x`: {problem}\n")),
            "{err}"
        );
        assert!(!err.contains("`fits`"), "{err}");
        assert_eq!(replayed(&format!("{FITS}{criterion}"), &["--strict"]).0, 1);
    }
}

/// A criterion that only forbids a tool that no run calls is reported only if runs call a tool of
/// almost the same name.
#[test]
fn criteria_that_fit_are_not_named() {
    let forbidden = "  - { name: x, evaluate: { tool_calls: { disallowed: [^refund$, charge_] } } }
  - name: y
    evaluate: { tool_call_count: { tool_calls_count: { refund: [=, 0], delete: [<, 3] } } }
";
    let (code, err) = replayed(&format!("{FITS}{forbidden}"), &["--strict", "--exit-zero"]);
    assert!(code == 0 && !err.contains("warning"), "{err}");
}

#[test]
fn a_sidecar_says_so_after_a_hundred_trajectories() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanscore.yaml");
    let criteria = "criteria:
  - name: misses
    select: { agent: testr }
    evaluate: { tool_call_count: { tool_calls_count: { a: [\"<\", 9] } } }
  - name: counts
    evaluate: { tool_call_count: { tool_calls_count: { pay: [\">=\", 1] } } }
  - name: reads
    evaluate: { tool_calls: { disallowed: [^pay$, { name: pay, args: { amount: ^9 } }] } }
assemble: { settle: 100ms }
shutdown: { quiet: 0s }
";
    std::fs::write(&file, criteria).unwrap();
    let mut sidecar = Running::start(&["--config", file.to_str().unwrap()]);
    let [otlp, admin] = sidecar.addresses();
    let call = SpanCall {
        name: "Shop-pay".to_owned(),
        args: Some(serde_json::json!({ "amount": 9000 })),
        ..SpanCall::default()
    };
    let spans = (1..=100).flat_map(|trace| spans_of_run(trace, &[], std::slice::from_ref(&call)));
    http(&otlp, "POST /v1/traces", &request(spans.collect()));
    let line = loop {
        let line = sidecar.line();
        if line["level"] == "WARN" && line.get("criterion").is_some() {
            break line;
        }
    };
    assert_eq!(line["criterion"], "misses", "{line}");
    assert_eq!(
        line["problem"],
        "no trajectory of agent `testr`; seen: `tester`"
    );
    assert_eq!(
        (&line["n_seen"], &line["n_others"]),
        (&100.into(), &2.into())
    );
    let status = http(&admin, "GET /v1/status", b"");
    let mut status: Value = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
    for row in status["coverage"].as_array_mut().unwrap() {
        let since = row.as_object_mut().unwrap().remove("since").unwrap();
        assert!(since.as_str().unwrap().ends_with('Z'), "{since}");
    }
    assert_eq!(
        status["coverage"],
        serde_json::json!([
            {
                "criterion": "misses",
                "seen": 100,
                "matched": 0,
                "earlier_turns": 0,
                "alarms": 0,
                "problem": "no trajectory of agent `testr`; seen: `tester`",
            },
            {
                "criterion": "counts",
                "seen": 100,
                "matched": 100,
                "earlier_turns": 0,
                "alarms": 0,
                "problem": "no run calls `pay`; seen: `Shop-pay`",
            },
            {
                "criterion": "reads",
                "seen": 100,
                "matched": 100,
                "earlier_turns": 0,
                "alarms": 0,
                "problem": "no run calls `pay`; seen: `Shop-pay`; in 100 evaluations, such as: \
                            `args.amount` of `Shop-pay` (call 1) is a number, which a pattern \
                            under `args` never matches: compare values with `where`",
            },
        ])
    );
    let metrics = http(&admin, "GET /metrics", b"");
    for sample in [
        "spanscore_criterion_trajectories_seen_total{criterion=\"misses\"} 100\n",
        "spanscore_criterion_trajectories_matched_total{criterion=\"misses\"} 0\n",
        "spanscore_criterion_trajectories_matched_total{criterion=\"counts\"} 100\n",
    ] {
        assert!(metrics.contains(sample), "{sample}\n{metrics}");
    }
}

/// Returns the messages of `replay` for a recording and one criterion.
fn warnings(recording: &[u8], criterion: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (recorded, config) = (path("run.traces.pb"), path("spanscore.yaml"));
    std::fs::write(&recorded, recording).unwrap();
    std::fs::write(&config, format!("criteria:\n  - {criterion}\n")).unwrap();
    run(&[
        "replay",
        "--allow-empty",
        "--exit-zero",
        "-c",
        &config,
        &recorded,
    ])
    .2
}

/// A single call with a value prevents the warning, because an argument may be optional.
#[test]
fn a_path_that_leads_nowhere_in_all_runs_is_named() {
    let call = |args| SpanCall {
        name: "pay".to_owned(),
        args: Some(args),
        ..SpanCall::default()
    };
    let calls = [
        call(serde_json::json!({ "amt": 9000, "tip": 1 })),
        call(serde_json::json!({ "amt": 9000 })),
    ];
    let calls = calls.chunks(1).zip(1..);
    let spans = calls.flat_map(|(call, trace)| spans_of_run(trace, &[], call));
    assert_eq!(
        warnings(
            &request(spans.collect()),
            "{ name: x, evaluate: { tool_calls: { disallowed: [{ name: ^pay$, where: { args.tip: \
             { gt: 5 }, args.amount: { gt: 1000 }, args.note: { exists: false } } }] } } }"
        ),
        "warning: criterion `x`: no call of `^pay$` has `args.amount`\n"
    );
}

/// A misspelt key would disable the limit. A value under another key would exceed the limit
/// unnoticed.
#[test]
fn a_total_without_key_or_value_is_named() {
    let call = |args| SpanCall {
        name: "pay".to_owned(),
        args: Some(args),
        ..SpanCall::default()
    };
    let recording = request(spans_of_run(
        1,
        &[],
        &[
            call(serde_json::json!({ "n": 900, "account": "a" })),
            call(serde_json::json!({ "amount": 900, "account": "a" })),
        ],
    ));
    let total = |same: &str| {
        format!(
            "{{ name: x, evaluate: {{ constraints: {{ rules: [{{ total: {{ a: ^pay$, of: args.n, \
             max: 1000, same: [args.{same}] }} }}] }} }} }}"
        )
    };
    let missing = "in 1 evaluation, such as: `args.n` of `pay` (call 2) is missing, so `total` \
                   adds nothing for that call: where it may be missing, narrow `a` to calls that \
                   have it (`exists: true`)";
    assert_eq!(
        warnings(&recording, &total("account")),
        format!("warning: criterion `x`: {missing}\n")
    );
    assert_eq!(
        warnings(&recording, &total("acount")),
        format!("warning: criterion `x`: {missing}; no call of `^pay$` has `args.acount`\n")
    );
}

#[test]
fn an_agent_that_is_not_the_evaluated_one_is_found_below_it() {
    let call = SpanCall {
        name: "plan".to_owned(),
        ..SpanCall::default()
    };
    let mut spans = spans_of_run(1, &[], &[call]);
    let mut helper = spans[0].clone();
    helper.parent_span_id = std::mem::replace(&mut helper.span_id, vec![9; 8]);
    for attribute in &mut helper.attributes {
        if attribute.key == "gen_ai.agent.name" {
            let name = any_value::Value::StringValue("helper".to_owned());
            attribute.value = Some(AnyValue { value: Some(name) });
        }
    }
    spans.push(helper);
    let recording = request(spans);
    let order = "evaluate: { execution_order: { expected_output: [], should_exact_match: true } }";
    assert_eq!(
        warnings(
            &recording,
            &format!("{{ name: x, select: {{ agent: helper }}, {order} }}")
        ),
        "warning: criterion `x`: no trajectory of agent `helper`: it runs below `tester`; \
         `scope: agent` judges each agent's own run\n"
    );
    let by_agent = format!("{{ name: x, scope: agent, select: {{ agent: helper }}, {order} }}");
    assert_eq!(warnings(&recording, &by_agent), "");
    let both = format!("{{ name: x, select: {{ agent: tester, calls: \"x*\" }}, {order} }}");
    assert_eq!(
        warnings(&recording, &both),
        "warning: criterion `x`: no trajectory with a call of `x*`; seen: `plan`\n"
    );
}

/// The program stores a limited number of names. If runs call more tools, the program gives no
/// warning about names.
#[test]
fn more_tools_than_are_remembered_give_no_false_warning() {
    let calls = |n: usize| -> Vec<SpanCall> {
        let call = |at: usize| SpanCall {
            name: format!("tool_{at}"),
            ..SpanCall::default()
        };
        (0..n).map(call).collect()
    };
    let last = "{ name: x, evaluate: { tool_call_count: { tool_calls_count: \
                { tool_128: [\">=\", 1], other: [\">=\", 1] } } } }";
    let recording = |n: usize| request(spans_of_run(1, &[], &calls(n)));
    assert_eq!(warnings(&recording(129), last), "");
    let warning = warnings(&recording(128), last);
    assert!(
        warning.starts_with("warning: criterion `x`: no run calls `tool_128`, `other`; seen: "),
        "{warning}"
    );
}
