//! Tests an alarm of the real program. A violation in an open run appears at a listener, at the
//! backend, in the metrics and on the page. Then the program is killed. The next process raises no
//! second alarm, and its verdict has the alarm's id.

use std::path::Path;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as AnyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};

use crate::support::backend::Backend;
use crate::support::eventually::eventually;
use crate::support::program::{Running, http, is_acknowledged, listening, metric, told};
use crate::support::spans::{SpanCall, request, spans_of_run};

const CRITERIA: &str = "
criteria:
  - name: no deletion
    severity: critical
    alarm: { score_span: true }
    evaluate:
      tool_calls: { disallowed: [{ name: \"^delete$\", where: { args.rows: { gt: 1000 } } }] }
";

fn sidecar(folder: &Path, backend: &Backend) -> Running {
    let config = folder.join("spanscore.yaml");
    std::fs::write(&config, CRITERIA).unwrap();
    let arguments = [
        format!("--config={}", config.display()),
        format!(
            "--set=journal.directory={}",
            folder.join("journal").display()
        ),
        format!("--set=forward.endpoint=http://{}", backend.address),
        "--set=assemble.settle=100ms".to_owned(),
        // This delay is so long that no batch of verdicts or alarms is sent because of its age.
        "--set=scores.batch.max_delay=1h".to_owned(),
        "--set=shutdown.quiet=0s".to_owned(),
    ];
    Running::start(&arguments.each_ref().map(String::as_str))
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a AnyValue> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    attribute.value.as_ref()?.value.as_ref()
}

pub(crate) fn string(attributes: &[KeyValue], key: &str) -> String {
    match text(attributes, key) {
        Some(AnyValue::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?}"),
    }
}

/// Returns the log records of the events that arrived, each with true if its verdict is final.
pub(crate) fn events(backend: &Backend) -> Vec<(bool, LogRecord)> {
    let logs = backend
        .arrived()
        .into_iter()
        .filter(|arrived| arrived.signal == "logs");
    let groups = logs.flat_map(|arrived| {
        ExportLogsServiceRequest::decode(arrived.body)
            .unwrap()
            .resource_logs
    });
    let records = groups
        .flat_map(|group| group.scope_logs)
        .flat_map(|scope| scope.log_records);
    let is_final = |record: &LogRecord| match text(&record.attributes, "spanscore.final") {
        Some(AnyValue::BoolValue(is_final)) => *is_final,
        other => panic!("{other:?}"),
    };
    records.map(|record| (is_final(&record), record)).collect()
}

fn score_spans(backend: &Backend) -> Vec<Span> {
    let traces = backend
        .arrived()
        .into_iter()
        .filter(|arrived| arrived.signal == "traces");
    let groups = traces.flat_map(|arrived| {
        ExportTraceServiceRequest::decode(arrived.body)
            .unwrap()
            .resource_spans
    });
    let spans = groups
        .flat_map(|group| group.scope_spans)
        .flat_map(|scope| scope.spans);
    spans
        .filter(|span| span.name == "evaluation no deletion")
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_raised_while_the_run_is_open_and_once() {
    let backend = Backend::start().await;
    let folder = tempfile::tempdir().unwrap();
    let mut first = sidecar(folder.path(), &backend);
    let [otlp, admin] = first.addresses();
    let (tap, _err) = listening(&[
        "--alarms",
        "--count=1",
        "--format=jsonl",
        "--address",
        &admin,
    ]);

    let delete = || SpanCall {
        name: "delete".to_owned(),
        args: Some(json!({ "rows": 5000 })),
        ..SpanCall::default()
    };
    let mut run = spans_of_run(1, &[], &[delete(), delete()]);
    let (root, last) = (run.remove(0), run.pop().unwrap());
    let deletion = run[0].span_id.clone();
    assert!(is_acknowledged(&otlp, &request(run)));

    // The listener gets the alarm before the run ends.
    let (code, out, _) = told(tap.wait_with_output().unwrap());
    let alarm: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    for (key, expected) in [
        ("criterion", "no deletion"),
        ("label", "fail"),
        ("severity", "critical"),
        ("completeness", "open"),
    ] {
        assert_eq!(alarm[key], expected, "{out}");
    }
    assert_eq!(alarm["final"], false);
    let arrived = eventually("the event and the score span arrive", || {
        let (events, spans) = (events(&backend), score_spans(&backend));
        (!events.is_empty() && !spans.is_empty()).then_some((events, spans))
    });
    let (events_of_alarm, spans_of_alarm) = arrived.await;
    let [(false, event)] = &events_of_alarm[..] else {
        panic!("{events_of_alarm:?}")
    };
    assert_eq!(
        (&event.span_id, &*event.event_name),
        (&deletion, "gen_ai.evaluation.result")
    );
    let verdict_id = string(&event.attributes, "spanscore.verdict.id");
    assert_eq!(alarm["verdict_id"], *verdict_id);
    let [span] = &spans_of_alarm[..] else {
        panic!("{spans_of_alarm:?}")
    };
    assert_eq!(span.parent_span_id, deletion);
    assert_eq!(string(&span.attributes, "spanscore.verdict.id"), verdict_id);
    let labels = "{criterion=\"no deletion\",severity=\"critical\"}";
    assert_eq!(
        metric(&admin, &format!("spanscore_alarms_total{labels}")),
        1.0
    );
    assert_eq!(metric(&admin, "spanscore_time_to_alarm_seconds_count"), 1.0);
    assert_eq!(metric(&admin, "spanscore_alarms_postponed_total"), 0.0);
    let status = http(&admin, "GET /v1/status", &[]);
    assert!(status.contains("\"alarms\":1"), "{status}");
    let runs = http(&admin, "GET /v1/runs", &[]);
    let runs: Value = serde_json::from_str(runs.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(runs["runs"][0]["completeness"], "open", "{runs}");
    let mut logged = first.line();
    while logged["message"] != "alarm: an open trace permanently violates a criterion" {
        logged = first.line();
    }
    assert_eq!(logged["criterion"], "no deletion", "{logged}");
    drop(first);

    // The run gets another violation, and ends.
    let mut second = sidecar(folder.path(), &backend);
    let [otlp, admin] = second.addresses();
    assert!(is_acknowledged(&otlp, &request(vec![last])));
    assert!(is_acknowledged(&otlp, &request(vec![root])));
    let runs = eventually("the run is judged", || {
        let runs = http(&admin, "GET /v1/runs", &[]);
        runs.contains("\"label\":\"fail\"").then_some(runs)
    })
    .await;
    assert!(!runs.contains("\"completeness\":\"open\""), "{runs}");
    assert_eq!(
        metric(&admin, &format!("spanscore_alarms_total{labels}")),
        0.0
    );
    second.signal(rustix::process::Signal::TERM);
    assert_eq!(second.ended().0, 0);
    let mut events = events(&backend);
    // A request that was sent just before the kill may be sent again.
    events.dedup();
    let ids: Vec<(bool, String)> = events
        .iter()
        .map(|(is_final, event)| (*is_final, string(&event.attributes, "spanscore.verdict.id")))
        .collect();
    assert_eq!(ids, [(false, verdict_id.clone()), (true, verdict_id)]);
}
