//! Tests a sidecar that recognises no tool calls: its messages, and the files of `run --record`
//! that help to find the reason. Does not prove that a framework is recognised.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;

use crate::support::program::{Running, http, run};
use crate::support::spans::request;

/// Returns a request with a trace of one span.
fn trace(id: u8, name: &str, attributes: &[(&str, &str)]) -> Vec<u8> {
    let attribute = |(key, value): &(&str, &str)| KeyValue {
        key: (*key).to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue((*value).to_owned())),
        }),
        ..KeyValue::default()
    };
    request(vec![Span {
        trace_id: vec![id; 16],
        span_id: vec![id; 8],
        name: name.to_owned(),
        start_time_unix_nano: 1_700_000_000_000_000_000,
        end_time_unix_nano: 1_700_000_001_000_000_000,
        attributes: attributes.iter().map(attribute).collect(),
        ..Span::default()
    }])
}

fn post(address: &str, body: &[u8]) {
    let answer = http(address, "POST /v1/traces", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_trace_that_looks_like_an_agents_is_reported_once_and_can_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records");
    let records = records.to_str().unwrap();
    let quick = [
        "--set",
        "assemble.settle=50ms",
        "--set",
        "shutdown.quiet=0s",
    ];
    let mut sidecar = Running::start(&[&["--record", records], &quick[..]].concat());
    let [otlp, _] = sidecar.addresses();
    post(&otlp, &trace(1, "GET /", &[]));
    post(
        &otlp,
        &trace(
            2,
            "MyTool.invoke",
            &[("acme.kind", "tool"), ("acme.tool", "search")],
        ),
    );
    post(&otlp, &trace(3, "OtherTool.invoke", &[]));
    let told = |line: &Value| {
        let message = line["message"].as_str().unwrap_or_default().to_owned();
        message
            .starts_with("a trace looks like an agent's")
            .then_some(message)
    };
    let message = loop {
        let line = sidecar.line();
        if let Some(message) = told(&line) {
            let name = line["span_name"].as_str().unwrap().to_owned();
            assert!(name.ends_with("Tool.invoke"), "{line}");
            break message;
        }
    };
    assert!(message.contains("--record DIR"), "{message}");
    sidecar.signal(rustix::process::Signal::TERM);
    loop {
        let line = sidecar.line();
        assert_eq!(told(&line), None, "it is said once");
        if line["message"]
            .as_str()
            .unwrap_or_default()
            .starts_with("stopped")
        {
            break;
        }
    }
    assert_eq!(sidecar.ended().0, 0);
    let n_files = std::fs::read_dir(records).unwrap().count();
    assert_eq!(n_files, 3);
    let (code, out, err) = run(&["inspect", "-v", records]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("MyTool.invoke: not recognised") && out.contains("try this in spanscore.yaml"),
        "{out}"
    );
    // Criteria can be proposed for calls that only this configuration recognises.
    let names = ["--set", "tools.name_attributes=[acme.tool]"];
    let (code, out, err) = run(&[&["init", "-o", "-", "--from", records], &names[..]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("tool_calls_order: [search]"), "{out}");
}

#[test]
fn a_folder_that_cannot_be_written_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (code, _, err) = run(&["run", "--record", file.to_str().unwrap()]);
    assert_eq!(code, 4);
    assert!(err.contains("cannot record requests to `"), "{err}");
}
