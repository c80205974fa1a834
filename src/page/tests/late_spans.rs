//! Tests runs that late spans change after the judgement: the page shows the current state of each
//! run.

use std::time::Duration;

use otlp::span::Batch;
use otlp::{scan, scan_logs};

use super::*;

const ONLY_READ: &str = r#"
criteria:
  - name: only-read
    evaluate: { tool_calls: { disallowed: [Edit] } }
"#;

/// Returns log records of one prompt with a call of each tool. The name of the tool is also the
/// call's id.
fn records(sight: &Sight, tools: &[&str]) -> Batch {
    let records = tools.iter().zip(1..).map(|(tool, at)| {
        json!({
            "timeUnixNano": (1_000 + at * 10).to_string(),
            "attributes": attributes(&json!({
                "event.name": "tool_result",
                "prompt.id": "p1",
                "tool_name": tool,
                "tool_use_id": tool,
            })),
        })
    });
    let request = json!({ "resourceLogs": [{
        "scopeLogs": [{ "logRecords": records.collect::<Vec<_>>() }],
    }] });
    let body = json::logs(request.to_string().as_bytes()).unwrap();
    let scanned = scan_logs::scan(&body, Some(&sight.rules)).unwrap();
    scanned.batch
}

/// Returns spans of a trace that report these calls.
fn reports(sight: &Sight, id: u64, tools: &[&str]) -> Batch {
    let mut spans = spans(id, tools);
    for (span, tool) in spans.iter_mut().skip(1).zip(tools) {
        add(span, &json!({ "gen_ai.tool.call.id": tool }));
    }
    batch_of(sight, "", spans)
}

fn add(span: &mut Value, texts: &Value) {
    let all = span["attributes"].as_array_mut().unwrap();
    all.extend(attributes(texts));
}

fn batch_of(sight: &Sight, service: &str, spans: Vec<Value>) -> Batch {
    let body = request_of(service, spans);
    let scanned = scan::scan(&body, Some(&sight.rules)).unwrap();
    scanned.batch
}

/// Judges one batch for each minute of a simulated clock, then an empty batch, so that later
/// changes are judged, too. Passes all results to the page.
fn judge_in_turn(sight: &Sight, batches: Vec<Batch>) {
    let settings = Settings {
        settle: Duration::from_secs(1),
        inactive: Duration::from_secs(10),
        ..Settings::replay()
    };
    let mut now = sidecar::now();
    let mut pipeline = Pipeline::new(settings, now);
    for batch in batches.into_iter().chain([Batch::default()]) {
        pipeline.take(batch, now);
        now.instant += Duration::from_secs(60);
        let judged = pipeline.advance(&sight.rules, now);
        sight.page.note(&judged, &sight.rules, sight.unix_nanos);
    }
}

/// Returns the run of the log records in the list, and the number of runs with this label.
async fn seen(sight: &Sight, label: &str) -> (Value, usize) {
    let (_, list) = sight.get("/v1/runs").await;
    let runs = list["runs"].as_array().unwrap();
    let of_records = runs.iter().find(|run| run["span_id"] == "").unwrap();
    let (_, labelled) = sight.get(&format!("/v1/runs?label={label}")).await;
    let n_labelled = labelled["runs"].as_array().unwrap().len();
    (of_records.clone(), n_labelled)
}

#[tokio::test]
async fn log_records_whose_calls_spans_report_are_withdrawn() {
    for criteria in [ONLY_READ, ""] {
        let sight = Sight::new(criteria, 1 << 20);
        let batches = vec![
            records(&sight, &["Read", "Edit"]),
            reports(&sight, 1, &["Read", "Edit"]),
        ];
        judge_in_turn(&sight, batches);
        let (run, n_failed) = seen(&sight, "fail").await;
        assert_eq!(
            (&run["withdrawn"], &run["n_calls"], &run["evaluations"]),
            (&true.into(), &0.into(), &json!([])),
            "{run}"
        );
        assert_eq!(
            n_failed,
            usize::from(!criteria.is_empty()),
            "only the spans'"
        );
        let (_, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
        assert_eq!(run["withdrawn"], false);
        let (_, attempt) = sight
            .attempt("name: any\nevaluate: { tool_calls: { disallowed: [Edit] } }")
            .await;
        assert_eq!(attempt["judged"], 1, "{attempt}");
    }
}

#[tokio::test]
async fn a_run_loses_the_calls_that_another_reports() {
    let sight = Sight::new(ONLY_READ, 1 << 20);
    let batches = vec![
        records(&sight, &["Read", "Edit"]),
        reports(&sight, 1, &["Edit"]),
    ];
    judge_in_turn(&sight, batches);
    let (run, n_failed) = seen(&sight, "fail").await;
    assert_eq!(
        (&run["withdrawn"], &run["calls"], n_failed),
        (
            &false.into(),
            &json!([{ "name": "Read" }]),
            1 // that of the spans
        ),
        "{run}"
    );
    assert_eq!(run["evaluations"][0]["label"], "pass");
}

#[tokio::test]
async fn late_calls_are_shown_though_no_criterion_judges_them() {
    let sight = Sight::new("", 1 << 20);
    let batches = vec![
        reports(&sight, 1, &["Read"]),
        reports(&sight, 1, &["Read", "Edit"]),
    ];
    judge_in_turn(&sight, batches);
    let (_, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
    assert_eq!(run["n_calls"], 2, "{run}");
}

#[tokio::test]
async fn an_open_run_with_an_alarm_closes_though_nothing_is_left_to_judge() {
    let sight = Sight::new(
        &ONLY_READ.replace("only-read\n", "only-read\n    alarm: true\n"),
        1 << 20,
    );
    let mut pipeline = Pipeline::new(Settings::replay(), sidecar::now());
    let state = async || {
        let (_, run) = sight.get(&format!("/v1/runs/{}", id(1))).await;
        at(&run, ["/completeness", "/evaluations/0/label"])
    };
    let mut call = spans(1, &["Edit"]).remove(1);
    let mut judged = Judged::default();
    let batch = batch_of(&sight, "shop", vec![call.clone()]);
    pipeline.take_into(&sight.rules, batch, sidecar::now(), &mut judged);
    sight.page.note(&judged, &sight.rules, sight.unix_nanos);
    assert_eq!(state().await, json!(["open", "fail"]));
    // The last version of the span is not a call.
    call["attributes"] = json!([]);
    call["name"] = "work".into();
    call["endTimeUnixNano"] = "9000".into();
    let batch = batch_of(&sight, "shop", vec![call]);
    pipeline.take(batch, sidecar::now());
    let judged = pipeline.finish(&sight.rules, sidecar::now());
    sight.page.note(&judged, &sight.rules, sight.unix_nanos);
    assert_eq!(state().await, json!(["no_root", "not_evaluated"]));
}

#[tokio::test]
async fn the_verdict_on_a_session_moves_to_its_last_turn() {
    let sight = Sight::new(
        &ONLY_READ.replace("only-read\n", "only-read\n    scope: session\n"),
        1 << 20,
    );
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for turn in 1..=2 {
        let mut spans = spans(turn, &["Read"]);
        add(&mut spans[0], &json!({ "session.id": "s" }));
        pipeline.take(batch_of(&sight, "shop", spans), now);
        let judged = pipeline.finish(&sight.rules, now);
        sight.page.note(&judged, &sight.rules, sight.unix_nanos);
    }
    let (_, list) = sight.get("/v1/runs").await;
    let runs = &list["runs"];
    assert_eq!(each(runs, "/trace_id"), json!([id(2), id(1)]));
    let verdict = json!([{
        "criterion": "only-read", "label": "pass", "score": 1.0, "revision": 1, "scope": "session",
    }]);
    assert_eq!(each(runs, "/evaluations"), json!([verdict, []]));
}
