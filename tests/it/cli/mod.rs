//! Runs the program as its users do: passes arguments and files, and checks output, messages and
//! exit codes. Does not prove that scores are right.

mod coverage;
mod criteria;
mod examples;
mod expectations;
mod learn;
mod record;
mod replay;
mod rules;
mod start_and_end;
mod tap;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::program::{FREE_PORTS, RECORDING, Running, http, replay, run, spanscore, told};
use crate::support::spans::{SpanCall, request, spans_of_run};

// === replay and inspect ===

#[test]
fn replay_for_people_tells_each_verdict_and_a_sum() {
    let (code, out, err) = replay(&[]);
    assert_eq!((code, err.as_str()), (1, ""), "a criterion failed");
    assert!(out.contains("PASS  look-up-before-charge  1.00"), "{out}");
    assert!(out.contains("FAIL  charge-exactly-once"), "{out}");
    assert!(
        out.ends_with("3 evaluations of 1 trace: 2 passed, 1 failed\n"),
        "{out}"
    );
    assert!(!out.contains('\u{1b}'), "no colours where nobody looks");
}

#[test]
fn replay_for_programs_keeps_its_contract() {
    let (code, out, _) = replay(&["--format", "jsonl"]);
    assert_eq!(code, 1);
    let lines: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<&str> = lines
        .iter()
        .map(|line| line["criterion"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "look-up-before-charge",
            "charge-exactly-once",
            "never-refund"
        ],
        "criteria in file order"
    );
    let keys: Vec<&str> = lines[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "trace_id",
            "span_id",
            "time",
            "service",
            "root",
            "agent",
            "session",
            "case_id",
            "criterion",
            "evaluator",
            "scope",
            "threshold",
            "score",
            "label",
            "explanation",
            "completeness",
            "revision",
            "n_calls",
            "calls",
            "details"
        ]
    );
    assert_eq!(
        (
            &lines[0]["score"],
            &lines[0]["label"],
            &lines[0]["completeness"]
        ),
        (&1.0.into(), &"pass".into(), &"root_ended".into())
    );
    assert_eq!(
        lines[0]["details"]["lcs"],
        serde_json::json!(["lookup_account", "charge_card", "send_receipt"])
    );
}

#[test]
fn replay_for_ci_is_junit() {
    let (code, out, _) = replay(&["--format", "junit"]);
    assert_eq!(code, 1);
    let suite = "<testsuite name=\"charge-exactly-once\" tests=\"1\" skipped=\"0\" \
                 errors=\"0\" failures=\"1\"";
    assert!(out.contains(suite), "{out}");
    assert!(
        out.contains(
            "<testcase name=\"examples/recording/001.traces.pb #1\" \
             classname=\"charge-exactly-once\" time=\""
        ),
        "{out}"
    );
    assert!(
        out.contains(
            "<failure message=\"`charge_card` was called twice, expected once\" \
             type=\"tool_call_count\">trace 827b1ba03b42deebf9171748d094dad8"
        ),
        "{out}"
    );
}

#[test]
fn inspect_keeps_its_contract() {
    let (code, out, _) = run(&[&["inspect", "--format", "jsonl"], &RECORDING[..]].concat());
    assert_eq!(code, 0);
    let line: Value = serde_json::from_str(&out).unwrap();
    let keys: Vec<&str> = line
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "trace_id",
            "span_id",
            "service",
            "root",
            "agent",
            "session",
            "completeness",
            "spans",
            "tool_calls"
        ]
    );
    let call = &line["tool_calls"][1];
    let keys: Vec<&str> = call
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "name",
            "call_id",
            "args",
            "result",
            "error",
            "agent",
            "step",
            "parallel_group",
            "span_id",
            "start",
            "end",
            "convention"
        ]
    );
    assert_eq!(
        (&call["name"], &call["error"], &call["parallel_group"]),
        (&"charge_card".into(), &true.into(), &Value::Null)
    );
    assert!(
        call["start"]
            .as_str()
            .is_some_and(|start| start.parse::<u64>().is_ok()),
        "times are decimal strings"
    );
}

#[test]
fn inspect_path_shows_what_was_kept_of_a_cut_value() {
    let call = SpanCall {
        name: "pay".to_owned(),
        result: Some(r#"[{"amount": "5.10"}, {"note": "some te"#.into()),
        ..SpanCall::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.traces.pb");
    std::fs::write(&file, request(spans_of_run(1, &[], &[call]))).unwrap();
    let at = |path: &str| {
        let (code, out, _) = run(&["inspect", "--path", path, file.to_str().unwrap()]);
        assert_eq!(code, 0);
        let line = out.lines().find(|line| line.contains(path));
        line.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(at("result.0.amount"), "result.0.amount \"5.10\"");
    assert_eq!(at("result.0.other"), "result.0.other (no value)");
    assert_eq!(at("result.1.note"), "result.1.note \"some te\" (cut)");
    assert_eq!(at("result.1.other"), "result.1.other (cut)");
    assert_eq!(at("args.id"), "args.id (not captured, or cut)");
}

#[test]
fn inspect_path_shows_the_values_that_a_rule_would_read() {
    let (code, out, _) = run(&[&["inspect", "--path", "args.order_id"], &RECORDING[..]].concat());
    assert_eq!(code, 0);
    assert!(out.contains("       args.order_id "), "{out}");
    assert!(
        out.contains("(no value)") || out.contains("(not captured, or cut)"),
        "{out}"
    );
    let (code, _, complaint) = run(&[&["inspect", "--path", "amount"], &RECORDING[..]].concat());
    assert_eq!(code, 2);
    assert!(
        complaint.contains("the path `amount` is not valid"),
        "{complaint}"
    );
    let jsonl = ["inspect", "--path", "args", "--format", "jsonl"];
    let (code, _, complaint) = run(&[&jsonl, &RECORDING[..]].concat());
    assert_eq!(code, 2);
    assert!(
        complaint.contains("--path works with the human format only"),
        "{complaint}"
    );
}

#[test]
fn inspect_verbose_tells_what_every_span_was_taken_for() {
    let (code, out, _) = run(&[&["inspect", "--verbose"], &RECORDING[..]].concat());
    assert_eq!(code, 0);
    assert!(
        out.contains("invoke_agent billing_agent: run of the agent billing_agent (gen_ai)\n"),
        "{out}"
    );
    assert!(
        out.contains("  execute_tool charge_card: tool call (gen_ai)\n"),
        "{out}"
    );
    assert!(
        !out.contains("try this"),
        "nothing is left to be configured: {out}"
    );
    let (code, _, err) = run(&[
        &["inspect", "--verbose", "--format", "jsonl"],
        &RECORDING[..],
    ]
    .concat());
    assert_eq!(code, 2);
    assert!(
        err.contains("--verbose works with the human format only"),
        "{err}"
    );
}

/// Returns a trace of one span below a root, as OTLP/JSON.
fn house_made(attributes: &[(&str, &str)]) -> String {
    let attributes: Vec<Value> = attributes
        .iter()
        .map(|(key, value)| serde_json::json!({ "key": key, "value": { "stringValue": value } }))
        .collect();
    let span = |id: &str, parent: &str, name: &str, attributes: Vec<Value>| {
        serde_json::json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "spanId": id,
            "parentSpanId": parent,
            "name": name,
            "startTimeUnixNano": "1700000000000000000",
            "endTimeUnixNano": "1700000001000000000",
            "attributes": attributes,
        })
    };
    let spans = [
        span("b7ad6b7169203331", "", "job", Vec::new()),
        span("b7ad6b7169203332", "b7ad6b7169203331", "step", attributes),
    ];
    serde_json::json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] }).to_string()
}

#[test]
fn what_inspect_proposes_for_an_unknown_framework_works() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (recording, config) = (path("acme.traces.json"), path("spanscore.yaml"));
    let whole = [
        ("acme.args", "{\"q\": 1}"),
        ("acme.kind", "TOOL"),
        ("acme.step_name", "search"),
        ("acme.call_id", "c1"),
    ];
    let cases = [
        (&whole[..], "house", serde_json::json!({ "q": 1 })),
        (
            &[("acme.kind", "tool"), ("acme.output", "ok")],
            "house",
            Value::Null,
        ),
        (&[("acme.tool", "search")], "tool_name", Value::Null),
    ];
    for (attributes, convention, args) in cases {
        std::fs::write(&recording, house_made(attributes)).unwrap();
        let (code, out, _) = run(&["inspect", "-v", &recording]);
        assert_eq!(code, 0);
        assert!(
            out.contains("neither a tool call nor an agent run: not judged"),
            "{out}"
        );
        assert!(
            out.contains("b7ad6b7169203332   step: not recognised"),
            "{out}"
        );
        assert!(
            attributes
                .iter()
                .all(|(key, value)| out.contains(&format!("{key}={value}"))),
            "{out}"
        );
        let (_, proposal) = out
            .split_once("try this in spanscore.yaml:\n\n")
            .expect(&out);
        std::fs::write(&config, proposal).unwrap();
        let (code, out, err) = run(&[
            "inspect", "--config", &config, "--format", "jsonl", &recording,
        ]);
        assert_eq!((code, err.as_str()), (0, ""));
        let call = &serde_json::from_str::<Value>(&out).unwrap()["tool_calls"][0];
        let name = if attributes.len() == 2 { "step" } else { "search" };
        assert_eq!(
            (&call["name"], &call["convention"], &call["args"]),
            (&name.into(), &convention.into(), &args),
            "{proposal}"
        );
    }
}

#[test]
fn names_from_the_network_cannot_play_with_the_terminal() {
    let span = r#"{
        "traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"0102030405060708",
        "name":"run\u001b[2J\u202e","startTimeUnixNano":"1","endTimeUnixNano":"2",
        "attributes":[
            {"key":"tool.name","value":{"stringValue":"drop\u001b]0;x\u0007"}},
            {"key":"tool.parameters","value":{"stringValue":"a\u202eb\nc"}}
        ]}"#;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("evil.json");
    std::fs::write(
        &file,
        format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}"#),
    )
    .unwrap();
    let (code, out, _) = run(&["inspect", "--verbose", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    assert!(
        out.contains("drop\\u{1b}]0;x\\u{7}") && out.contains("run\\u{1b}[2J"),
        "{out}"
    );
    assert!(!out.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{out}");
    let (code, out, _) = run(&["inspect", "--format", "jsonl", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    let line: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(line["root"], "run\u{1b}[2J\u{202e}");
    assert!(!out.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{out}");
}

#[test]
fn a_recorded_session_proposes_a_criterion_that_judges_it() {
    let (code, out, _) = run(&[&["init", "--output", "-", "--from"], &RECORDING[..]].concat());
    assert_eq!(code, 0);
    assert!(
        out.contains("tool_calls_order: [lookup_account, charge_card, send_receipt]"),
        "{out}"
    );
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("proposed.yaml");
    std::fs::write(&file, out).unwrap();
    let (code, out, err) = run(&[
        &["replay", "--config", file.to_str().unwrap()],
        &RECORDING[..],
    ]
    .concat());
    assert_eq!(code, 0, "{err}");
    assert!(
        out.ends_with("2 evaluations of 1 trace: 2 passed\n"),
        "{out}"
    );
}

/// Returns a run of a CrewAI agent that calls `tool`. The name of its root contains `run`.
fn crew(run: &str, tool: &str) -> String {
    let span = |id: &str, parent: &str, name: &str, attributes: &[(&str, &str)]| {
        let attributes: Vec<Value> = attributes
            .iter()
            .map(
                |(key, value)| serde_json::json!({ "key": key, "value": { "stringValue": value } }),
            )
            .collect();
        serde_json::json!({
            "traceId": "0af7651916cd43dd8448eb211c80319c",
            "spanId": id,
            "parentSpanId": parent,
            "name": name,
            "startTimeUnixNano": "1700000000000000000",
            "endTimeUnixNano": "1700000001000000000",
            "attributes": attributes,
        })
    };
    let spans = [
        span(
            "b7ad6b7169203331",
            "",
            &format!("Crew_{run}.kickoff"),
            &[("openinference.span.kind", "CHAIN")],
        ),
        span(
            "b7ad6b7169203332",
            "b7ad6b7169203331",
            "look up.run",
            &[("openinference.span.kind", "TOOL"), ("tool.name", tool)],
        ),
    ];
    serde_json::json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] }).to_string()
}

#[test]
fn a_proposal_fits_the_next_run_and_shows_no_secret() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (first, next) = (path("first.traces.json"), path("next.traces.json"));
    for tool in [
        "look_up",
        "${env:DB_PASSWORD}",
        "${DB_PASSWORD}",
        "$${env:X}",
        "\u{202e}\u{85}\n",
    ] {
        std::fs::write(&first, crew("c9e4a5d1-3b1f-4f62-9a43-0b7a3a5d7e11", tool)).unwrap();
        std::fs::write(&next, crew("0d4f9a77-aaaa-4c0e-8f7e-1b2c3d4e5f60", tool)).unwrap();
        let (code, out, err) = run(&["init", "-o", "-", "--from", &first]);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(!out.contains(['\u{202e}', '\u{85}']), "{out}");
        let config = path("proposed.yaml");
        std::fs::write(&config, &out).unwrap();
        let arguments = [
            "replay", "-c", &config, "--format", "jsonl", "--strict", &next,
        ];
        let output = spanscore(&arguments)
            .env("DB_PASSWORD", "hunter2")
            .env("X", "hunter2")
            .output();
        let (code, lines, err) = told(output.unwrap());
        assert_eq!((code, err.as_str()), (0, ""), "{out}\n{lines}");
        let lines_of = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let labels: Vec<Value> = lines_of.map(|line| line["label"].clone()).collect();
        // The calls are in order and within the limits.
        assert_eq!(labels, ["pass", "pass"], "{out}");
        assert!(!lines.contains("hunter2"), "{lines}");
    }
}

#[test]
fn the_flags_of_replay_say_what_a_failure_is() {
    assert_eq!(replay(&["--exit-zero"]).0, 0);
    assert_eq!(
        replay(&["--fail-under", "0"]).0,
        0,
        "every mean is at least 0"
    );
    let (code, _, err) = replay(&["--fail-under", "0.5"]);
    assert_eq!(
        (code, err.as_str()),
        (
            1,
            "error: the mean score of criterion `charge-exactly-once` is 0.0000, below \
             --fail-under 0.5\n"
        )
    );
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("criteria.yaml");
    std::fs::write(
        &file,
        "criteria: [{ name: other, select: { service: other }, \
         evaluate: { tool_call_order: { tool_calls_order: [a] } } }]",
    )
    .unwrap();
    let with = |more: &[&str]| {
        run(&[
            &["replay", "--config", file.to_str().unwrap()],
            more,
            &RECORDING,
        ]
        .concat())
    };
    let (code, _, err) = with(&[]);
    assert_eq!(code, 1);
    assert!(
        err.contains("nothing was judged: no trajectory matches the selector of the criterion"),
        "{err}"
    );
    assert_eq!(with(&["--allow-empty"]).0, 0);
}

#[test]
fn recordings_come_packed_in_many_ways() {
    let folder = TempDir::new().unwrap();
    let bodies: Vec<Vec<u8>> = RECORDING
        .iter()
        .map(|path| std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap())
        .collect();
    let mut gz = Vec::new();
    for (n, body) in bodies.iter().enumerate() {
        let path = folder.path().join(format!("{n}.traces.pb.gz"));
        let mut encoder = flate2::write::GzEncoder::new(
            std::fs::File::create(&path).unwrap(),
            flate2::Compression::fast(),
        );
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap();
        gz.push(path.to_str().unwrap().to_owned());
    }
    let gz: Vec<&str> = gz.iter().map(String::as_str).collect();
    let plain = run(&[&["inspect", "--format", "jsonl"], &RECORDING[..]].concat()).1;
    assert_eq!(
        run(&[&["inspect", "--format", "jsonl"], &gz[..]].concat()).1,
        plain
    );

    // Concatenated protobuf messages of several requests form one request with the content of all.
    let mut child = spanscore(&["inspect", "--format", "jsonl", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&zstd::encode_all(bodies.concat().as_slice(), 1).unwrap())
        .unwrap();
    assert_eq!(told(child.wait_with_output().unwrap()).1, plain);
}

#[test]
fn unreadable_input_is_reported_with_its_place() {
    let empty = TempDir::new().unwrap();
    let folder = TempDir::new().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cases = [
        (
            folder.path().join("none.pb").to_str().unwrap().to_owned(),
            "no such file",
        ),
        (
            empty.path().to_str().unwrap().to_owned(),
            "is a folder without recordings",
        ),
        (write("empty.json", b" \n"), "is empty"),
        (
            write("text.pb", b"\xff\xff\xff"),
            "is not an OTLP trace request",
        ),
        (
            write("other.json", b"{\"spans\": []}"),
            "is JSON but not OTLP",
        ),
        (
            write("cut.json", b"{\"resourceSpans\": [{\"scopeSpans\""),
            "is not JSON",
        ),
        (
            write("cut.pb.gz", &[0x1f, 0x8b, 8, 0, 0]),
            "cannot be decompressed",
        ),
    ];
    for (path, expected) in cases {
        let (code, out, err) = run(&["inspect", &path]);
        assert_eq!((code, out.as_str()), (3, ""), "{err}");
        assert!(
            err.starts_with(&format!("error: {path}")) && err.contains(expected),
            "{err}"
        );
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = spanscore(&["schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn usage_errors_exit_with_2() {
    assert_eq!(run(&["replay"]).0, 2, "no files");
    assert_eq!(run(&["nonsense"]).0, 2);
    assert_eq!(run(&["validate", "no-such-file.yaml"]).0, 2);
    let (code, _, err) = run(&["replay", "examples/recording/001.traces.pb"]);
    assert_eq!(code, 2);
    assert!(err.contains("no criterion is configured"), "{err}");
}

#[test]
fn every_shell_gets_a_script_that_knows_the_subcommands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, err) = run(&["completions", shell]);
        assert_eq!((code, err.as_str()), (0, ""), "{shell}");
        assert!(
            script.contains("replay") && script.contains("validate"),
            "{shell}"
        );
    }
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    let (code, out, err) = run(&["man", pages.to_str().unwrap()]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    for page in ["spanscore", "spanscore-run", "spanscore-criteria-list"] {
        let page = std::fs::read_to_string(pages.join(format!("{page}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    let file = pages.join("spanscore.1");
    let (code, _, err) = run(&["man", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(err.starts_with("error: cannot write to `"), "{err}");
}

#[test]
fn the_version_names_commit_profile_and_features() {
    let (code, out, _) = run(&["--version"]);
    assert_eq!(code, 0);
    let version = concat!("spanscore ", env!("CARGO_PKG_VERSION"), " (commit ");
    assert!(out.starts_with(version), "{out}");
    assert!(
        out.contains(", profile ") && out.contains(", features "),
        "{out}"
    );
}

// === demo ===

#[test]
fn the_demo_shows_a_session_its_scores_and_what_the_backend_received() {
    let (code, out, err) = run(&["demo"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for shown in [
        "    2. charge_card     step 1  ERROR  by billing_agent  [gen_ai]",
        "PASS  look-up-before-charge  1.00",
        "`charge_card` was called twice, expected once",
        "The backend received 6 of 6 requests, 38873 bytes, identical to those sent,",
        "export OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317",
    ] {
        assert!(out.contains(shown), "{shown} is not in\n{out}");
    }
}

// === run ===

#[test]
fn run_scores_what_it_receives_and_stops_in_good_order() {
    let mut sidecar = Running::start(&[
        "--config",
        "examples/demo.yaml",
        "--set",
        "shutdown.quiet=0s",
    ]);
    assert!(
        sidecar.line()["message"]
            .as_str()
            .unwrap()
            .starts_with("no downstream is configured"),
        "the first line says so"
    );
    let [otlp, admin] = sidecar.addresses();
    for path in RECORDING {
        let body = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let answer = http(&otlp, "POST /v1/traces", &body);
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    assert!(http(&admin, "GET /readyz", b"").starts_with("HTTP/1.1 200 OK"));
    let metrics = http(&admin, "GET /metrics", b"");
    assert!(
        metrics.contains("spanscore_receiver_accepted_spans_total 10"),
        "{metrics}"
    );
    let series = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    for (total, _) in series.filter(|(series, _)| series.contains("_total")) {
        let created = total.replacen("_total", "_created", 1);
        assert!(metrics.contains(&format!("\n{created} ")), "{created}");
    }
    assert_eq!(
        run(&["health", "--set", &format!("admin.listen={admin}")]).0,
        0
    );
    sidecar.signal(Signal::TERM);
    let (code, out) = sidecar.ended();
    assert_eq!(code, 0);
    let labels: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["label"].clone())
        .collect();
    assert_eq!(
        labels,
        ["pass", "fail", "pass"],
        "no endpoint is set, so scores are printed: {out}"
    );
    assert_eq!(
        run(&["health", "--set", &format!("admin.listen={admin}")]).0,
        1,
        "nobody is there any more"
    );
}

#[test]
fn a_drain_closes_what_can_be_closed_sooner() {
    let mut sidecar = Running::start(&[
        "--config",
        "examples/demo.yaml",
        "--set",
        "assemble.settle=1h",
        "--set",
        "assemble.max_settle=1h",
    ]);
    let [otlp, _] = sidecar.addresses();
    for path in RECORDING {
        http(
            &otlp,
            "POST /v1/traces",
            &std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap(),
        );
    }
    let (code, out, err) = run(&["drain", "--pid", &sidecar.child.id().to_string()]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.starts_with(&format!("process {} drains", sidecar.child.id())),
        "{out}"
    );
    // The trace is judged long before `assemble.settle` has passed, while the sidecar is still
    // running.
    let mut out = BufReader::new(sidecar.child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&line).unwrap()["criterion"],
        "look-up-before-charge"
    );
}

/// Many tests run the program without `--config`, so it must not find a configuration in its
/// folder.
#[test]
fn tests_read_no_configuration_of_the_repository() {
    let folder = spanscore(&[]).get_current_dir().unwrap().to_owned();
    let is_within = |path: &str| folder.join(path).canonicalize().is_ok();
    assert!(is_within(RECORDING[0]));
    assert!(!is_within("Cargo.toml") && !is_within("spanscore.yaml"));
}

/// SIGUSR1 kills a program that has no handler for it.
#[test]
fn a_drain_leaves_other_programs_alone() {
    let waiting = |command: &mut Command| {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let cases = [
        (waiting(&mut Command::new("cat")), "`, not spanscore; "),
        (
            waiting(&mut spanscore(&["inspect", "-"])),
            "it runs spanscore, but not as a sidecar",
        ),
    ];
    for (mut child, why) in cases {
        let id = child.id().to_string();
        let (code, out, err) = run(&["drain", "--pid", &id]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(
            err.starts_with(&format!("error: did not signal process {id}: ")) && err.contains(why),
            "{err}"
        );
        assert_eq!(child.try_wait().unwrap(), None, "it still runs");
        child.kill().unwrap();
        child.wait().unwrap();
        let (code, _, err) = run(&["drain", "--pid", &id]);
        assert_eq!(code, 4, "{err}");
        assert!(err.contains(&format!("there is no process {id}")), "{err}");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut sidecar = Running::start(&[
        "--set",
        "shutdown.quiet=60s",
        "--set",
        "shutdown.deadline=120s",
    ]);
    sidecar.addresses();
    sidecar.signal(Signal::INT);
    while !sidecar.line()["message"]
        .as_str()
        .unwrap()
        .starts_with("stopping")
    {}
    sidecar.signal(Signal::INT);
    assert_eq!(sidecar.ended().0, 130);
}

#[test]
fn a_port_in_use_is_reported_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, _, err) = run(&[
        &["run"],
        &FREE_PORTS[..],
        &["--set", &format!("receivers.otlp.http.listen={address}")],
    ]
    .concat());
    assert_eq!(code, 4);
    assert!(
        err.contains(&format!(
            "error: cannot listen on {address} (`receivers.otlp.http.listen`): the port is in use"
        )),
        "{err}"
    );
}

#[test]
fn a_sidecar_that_would_forward_to_itself_does_not_start() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut command = spanscore(
        &[
            &["run"],
            &FREE_PORTS[..],
            &["--set", &format!("receivers.otlp.grpc.listen={free}")],
        ]
        .concat(),
    );
    command.env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        format!("http://localhost:{}", free.port()),
    );
    let (code, _, err) = told(command.output().unwrap());
    assert_eq!(code, 4);
    assert!(
        err.contains("`OTEL_EXPORTER_OTLP_ENDPOINT` points at localhost")
            && err.contains("forwarded in a loop"),
        "{err}"
    );
}
