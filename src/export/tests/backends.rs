//! Tests deliveries to backends' own APIs: the requests to each backend, when and how often they
//! are sent, and what happens to refused scores. The backends are scripted according to their
//! public documentation; only tests/it/backends proves that a real backend accepts the requests.

mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use judge::evaluate::{Evaluation, EvaluationError, Verdict};
use otlp::span::TraceId;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::delivery::{PLENTY, config, export, in_time, start, start_with};
use super::fixture::{END, criterion, fail, pass, previous, saying, with};
use super::journaled::open_requests;
use crate::config::{Config, Signal, Writer, document};
use crate::eventually::eventually;
use crate::export::ExportPlan;
use crate::export::writer::requests;
use crate::export::writer_score::WriterRequest;
use crate::journal::{JournalLog, Outlet, Record};
use crate::telemetry::{ItemEvent, Telemetry};
use crate::transport::queue::{Accounting, OutboundRequest, Queue};
use crate::transport::tests::peer::{Peer, PeerRequest, Reply};

fn writer(config: &mut Config, kind: &str, address: SocketAddr, keys: Value) {
    let mut written = json!({ "endpoint": format!("http://{address}/base") });
    written
        .as_object_mut()
        .unwrap()
        .extend(keys.as_object().unwrap().clone());
    let writer = json!({ kind: written }).to_string();
    config
        .scores
        .writers
        .push(document(&writer, "a writer", "").unwrap());
}

/// Returns a configuration that writes to Phoenix alone, and retries within milliseconds.
pub(super) fn to_phoenix(address: SocketAddr) -> Config {
    let mut config = config();
    config.forward.retry.initial_interval.0 = Duration::from_millis(2);
    config.forward.retry.max_interval.0 = Duration::from_millis(20);
    writer(
        &mut config,
        "phoenix",
        address,
        json!({ "api_key": "hunter2" }),
    );
    config
}

fn body(received: &PeerRequest) -> Value {
    serde_json::from_slice(&received.body).unwrap()
}

pub(super) fn label(received: &PeerRequest) -> String {
    body(received)["data"][0]["result"]["label"]
        .as_str()
        .unwrap()
        .to_owned()
}

pub(super) fn of_trace(evaluation: Evaluation, id: u8) -> Evaluation {
    with(evaluation, |trajectory| {
        trajectory.trace_id = TraceId::try_new(&[id; 16]).unwrap()
    })
}

pub(super) fn dropped(telemetry: &Telemetry, shape: &'static str, reason: &'static str) -> u64 {
    telemetry.counter(
        "spanscore_scores_dropped_total",
        &[("shape", shape), ("reason", reason)],
    )
}

pub(super) fn sent(telemetry: &Telemetry, shape: &'static str) -> u64 {
    telemetry.counter("spanscore_scores_sent_total", &[("shape", shape)])
}

pub(super) fn queued(telemetry: &Telemetry, shape: &'static str) -> i64 {
    telemetry.gauge("spanscore_scores_queued", &[("shape", shape)])
}

fn only_call(writer: &Writer, evaluation: &Evaluation) -> (String, Value) {
    let mut calls: Vec<WriterRequest> = requests(writer, &[evaluation], END + 1_500_000_000);
    assert_eq!((calls.len(), calls[0].n_evaluations), (1, 1));
    let WriterRequest { targets, body, .. } = calls.remove(0);
    let targets: Vec<String> = targets
        .iter()
        .map(|target| format!("{} {}", target.method, target.path))
        .collect();
    (
        targets.join(", else "),
        serde_json::from_str(&body).unwrap(),
    )
}

fn pretty(body: &Value) -> String {
    serde_json::to_string_pretty(body)
        .unwrap()
        .replace(criterion("checkout-order").revision(), "REVISION")
}

#[derive(Debug)]
struct NotCounted;

impl Accounting for NotCounted {
    fn count(&self, _: Signal, _: u64, _: ItemEvent) {}
}

fn error() -> Evaluation {
    let error = EvaluationError {
        kind: "missing_argument",
        message: "`run` has no `command`".to_owned(),
    };
    let error = Evaluation {
        value: None,
        verdict: Verdict::Error,
        error: Some(error),
        ..fail()
    };
    saying(error, |said| {
        said.explanation = "cannot be judged".to_owned()
    })
}

// === when, and how often ===

#[tokio::test]
async fn each_trace_is_one_request_with_the_keys_and_waits_for_no_score_span() {
    let (otlp, phoenix) = (
        Peer::start(|_, _| Reply::Silence).await,
        Peer::willing().await,
    );
    let mut config = to_phoenix(phoenix.address);
    config.scores.span.peer.endpoint = Some(format!("http://{}", otlp.address));
    let (exporter, running, telemetry) = start(&config, PLENTY, None);
    export(&exporter, &[fail(), pass(), of_trace(pass(), 1)]);
    assert_eq!(
        queued(&telemetry, "writer_phoenix"),
        3,
        "in the books from the beginning"
    );
    eventually("the scores are sent", || {
        (sent(&telemetry, "writer_phoenix") == 3).then_some(())
    })
    .await;
    let scores = phoenix.received();
    assert_eq!(scores.len(), 2);
    assert_eq!(scores[0].path, "/base/v1/span_annotations");
    assert_eq!(
        (
            &scores[0].headers["authorization"],
            &scores[0].headers["content-type"]
        ),
        (
            &"Bearer hunter2".parse().unwrap(),
            &"application/json".parse().unwrap()
        )
    );
    let left = running
        .drain(tokio::time::Instant::now().into_std() + Duration::from_millis(50))
        .await;
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [("score_spans", 3)]);
    assert_eq!(queued(&telemetry, "writer_phoenix"), 0);
    assert!(!format!("{config:?}").contains("hunter2") && !config.to_yaml().contains("hunter2"));
}

#[tokio::test]
async fn a_revision_never_overtakes_what_it_corrects() {
    let phoenix = Peer::start(|n, _| if n < 2 { Reply::http(404) } else { Reply::taken() }).await;
    let (exporter, running, telemetry) = start(&to_phoenix(phoenix.address), PLENTY, None);
    export(&exporter, &[fail()]);
    phoenix.has_received(1).await;
    export(
        &exporter,
        &[Evaluation {
            revision: 1,
            previous: previous(Verdict::Fail, 0),
            ..pass()
        }],
    );
    export(&exporter, &[of_trace(error(), 7)]);
    assert!(running.drain(in_time()).await.is_empty());
    let of_trace: Vec<String> = phoenix
        .received()
        .iter()
        .map(label)
        .filter(|label| label != "error")
        .collect();
    assert_eq!(
        of_trace[of_trace.len() - 2..],
        ["fail", "pass"],
        "{of_trace:?}"
    );
    assert_eq!(
        (
            sent(&telemetry, "writer_phoenix"),
            queued(&telemetry, "writer_phoenix")
        ),
        (3, 0)
    );
}

#[tokio::test]
async fn mlflow_creates_once_and_updates_from_then_on() {
    let is_there = Arc::new(AtomicBool::new(false));
    let mlflow = Peer::start(move |_, received| {
        let creates = received.path.ends_with("/assessments");
        if creates {
            is_there.store(true, Ordering::Relaxed);
        }
        if creates || is_there.load(Ordering::Relaxed) {
            Reply::taken()
        } else {
            Reply::http(404)
        }
    })
    .await;
    let mut config = to_phoenix(mlflow.address);
    config.scores.writers.clear();
    writer(&mut config, "mlflow", mlflow.address, json!({}));
    let (exporter, running, telemetry) = start(&config, PLENTY, None);
    export(&exporter, &[fail()]);
    export(
        &exporter,
        &[Evaluation {
            revision: 1,
            previous: previous(Verdict::Fail, 0),
            ..pass()
        }],
    );
    assert!(running.drain(in_time()).await.is_empty());
    let values: Vec<_> = mlflow
        .received()
        .iter()
        .map(|received| {
            body(received)["assessment"]["feedback"]["value"]
                .as_f64()
                .unwrap()
        })
        .collect();
    assert_eq!(values, [2.0 / 3.0, 2.0 / 3.0, 1.0]);
    assert_eq!(sent(&telemetry, "writer_mlflow"), 2);
}

/// A span may reach its backend later than its score. The wait for the span is limited.
#[tokio::test]
async fn an_unknown_span_is_retried_for_ten_minutes_and_blocks_no_other() {
    let phoenix =
        Peer::start(
            |_, received| {
                if label(received) == "fail" { Reply::http(404) } else { Reply::taken() }
            },
        )
        .await;
    let (exporter, running, telemetry) = start(&to_phoenix(phoenix.address), PLENTY, None);
    export(&exporter, &[fail()]);
    phoenix.has_received(2).await;
    export(&exporter, &[of_trace(pass(), 1)]);
    eventually("the other score is sent", || {
        (sent(&telemetry, "writer_phoenix") > 0).then_some(())
    })
    .await;
    assert_eq!(dropped(&telemetry, "writer_phoenix", "unknown_span"), 0);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(601)).await;
    tokio::time::resume();
    eventually("the score of the unknown span is dropped", || {
        (dropped(&telemetry, "writer_phoenix", "unknown_span") > 0).then_some(())
    })
    .await;
    assert_eq!(queued(&telemetry, "writer_phoenix"), 0);
    assert!(running.drain(in_time()).await.is_empty());
}

/// During an outage, a span may wait in the telemetry queue for hours. Its score must be retried
/// until the outage is over, but not during a later one.
#[tokio::test]
async fn an_unknown_span_is_retried_until_its_downstream_has_passed_it() {
    let phoenix = Peer::start(|_, _| Reply::http(404)).await;
    let (config, telemetry) = (to_phoenix(phoenix.address), Arc::default());
    let folder = tempfile::tempdir().unwrap();
    let (log, thread) = open_requests(folder.path(), &telemetry);
    // One request is in memory; the other two are only on disk.
    let spans = Queue::new("forward", 400, Arc::new(NotCounted), &telemetry);
    let spans = spans.journaled_in(&log, Outlet::Downstream);
    keep_spans(&log, &spans).await;
    let plan = ExportPlan {
        marks: None,
        journal: None,
        spans: Some(spans.clone()),
        config: &config,
        budget: PLENTY.into(),
        print: None,
    };
    let (exporter, running) = start_with(plan, &telemetry);
    export(&exporter, &[fail()]);
    phoenix.has_received(2).await;
    let ten_minutes = async || {
        phoenix.has_received(phoenix.received().len() + 2).await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(601)).await;
        tokio::time::resume();
    };
    ten_minutes().await;
    phoenix.has_received(phoenix.received().len() + 2).await;
    assert_eq!(queued(&telemetry, "writer_phoenix"), 1);
    // The downstream has received the judged span; only later spans are still queued.
    keep_spans(&log, &spans).await;
    log.consume(Outlet::Downstream, 0..3);
    eventually("the log has passed the span", || {
        (log.low(Outlet::Downstream) == 3).then_some(())
    })
    .await;
    ten_minutes().await;
    eventually("the score of the unknown span is dropped", || {
        (dropped(&telemetry, "writer_phoenix", "unknown_span") > 0).then_some(())
    })
    .await;
    assert!(running.drain(in_time()).await.is_empty());
    tokio::task::spawn_blocking(|| thread.end()).await.unwrap();
}

async fn keep_spans(log: &JournalLog, spans: &Queue) {
    for _ in 0..3 {
        let (answer, answered) = oneshot::channel();
        let request = OutboundRequest::otlp(Signal::Traces, vec![7; 100].into(), 1);
        let record = Record::new(0, 1, 1, request.route.encode(), request.body.clone());
        log.append(
            record,
            Box::new(move |outcome| answer.send(outcome).unwrap()),
        );
        spans.enqueue_record(answered.await.unwrap().unwrap(), request);
    }
}

// === failures ===

#[tokio::test]
async fn a_refusal_is_counted_by_reason_and_anything_else_tried_again() {
    let refusals = [
        (Reply::http(400), "invalid_argument"),
        (Reply::http(401), "unauthenticated"),
        (Reply::http(403), "permission_denied"),
        (Reply::http(405), "unimplemented"),
        (Reply::http(413), "too_large"),
        (Reply::http(415), "unimplemented"),
        (Reply::http(422), "invalid_argument"),
        (
            Reply::Http {
                status: 302,
                headers: vec![("location", "/login".to_owned())],
                body: Vec::new(),
            },
            "redirected",
        ),
        (Reply::http(409), "refused"),
    ];
    for (reply, reason) in refusals {
        let phoenix =
            Peer::start(
                move |_, received| {
                    if label(received) == "fail" { reply.clone() } else { Reply::taken() }
                },
            )
            .await;
        let (exporter, running, telemetry) = start(&to_phoenix(phoenix.address), PLENTY, None);
        export(&exporter, &[fail(), of_trace(pass(), 1)]);
        assert!(running.drain(in_time()).await.is_empty());
        assert_eq!(
            (
                dropped(&telemetry, "writer_phoenix", reason),
                sent(&telemetry, "writer_phoenix")
            ),
            (1, 1),
            "{reason}"
        );
    }
    let passing = [
        Reply::Http {
            status: 429,
            headers: vec![("retry-after", "0".to_owned())],
            body: Vec::new(),
        },
        Reply::http(500),
        Reply::http(502),
        Reply::http(503),
        Reply::http(507),
        Reply::HangUp,
    ];
    for reply in passing {
        let again = reply.clone();
        let phoenix =
            Peer::start(move |n, _| if n < 3 { again.clone() } else { Reply::taken() }).await;
        let (exporter, running, telemetry) = start(&to_phoenix(phoenix.address), PLENTY, None);
        export(&exporter, &[fail()]);
        assert!(running.drain(in_time()).await.is_empty());
        assert_eq!(
            (phoenix.received().len(), sent(&telemetry, "writer_phoenix")),
            (4, 1),
            "{reply:?}"
        );
    }
    // A success status counts, whatever the body contains.
    let phoenix = Peer::start(|_, _| Reply::Http {
        status: 200,
        headers: vec![("content-type", "application/json".to_owned())],
        body: b"{\xff".to_vec(),
    })
    .await;
    let (exporter, running, telemetry) = start(&to_phoenix(phoenix.address), PLENTY, None);
    export(&exporter, &[fail()]);
    assert!(running.drain(in_time()).await.is_empty());
    assert_eq!(sent(&telemetry, "writer_phoenix"), 1);
}

#[tokio::test]
async fn scores_without_room_or_time_are_counted() {
    let phoenix = Peer::start(|_, _| Reply::Silence).await;
    let (exporter, running, telemetry) = start(&to_phoenix(phoenix.address), 64 << 10, None);
    for id in 1..=250 {
        export(&exporter, &[of_trace(fail(), id)]);
    }
    let left = running
        .drain(tokio::time::Instant::now().into_std() + Duration::from_millis(50))
        .await;
    let lost = dropped(&telemetry, "writer_phoenix", "queue_full");
    assert!(lost > 100, "{lost}");
    assert_eq!(
        dropped(&telemetry, "writer_phoenix", "shutdown"),
        left["writer_phoenix"]
    );
    assert_eq!(
        (
            lost + left["writer_phoenix"],
            queued(&telemetry, "writer_phoenix")
        ),
        (250, 0)
    );
}
