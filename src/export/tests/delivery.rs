//! Tests the exporter over real sockets: an OTLP sink in this process accepts all three shapes. The
//! tests do not prove how a delivery retries (transport's tests do), nor that a backend shows the
//! result.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use judge::evaluate::{Evaluation, Explain};
use judge::pipeline::Judged;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value;
use otlp::span::TraceId;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::fixture::{END, fail, pass, with};
use crate::config::{Config, Signal};
use crate::export::{ExportPlan, ExportTasks, Exporter, Print, PrintForm};
use crate::telemetry::Telemetry;

// === a sink ===

#[derive(Debug)]
enum Received {
    Traces(ExportTraceServiceRequest),
    Logs(ExportLogsServiceRequest),
    Metrics(ExportMetricsServiceRequest),
}

#[derive(Clone)]
struct Sink(mpsc::Sender<Received>);

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0
            .send(Received::Traces(request.into_inner()))
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Sink {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.0
            .send(Received::Logs(request.into_inner()))
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Sink {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.0
            .send(Received::Metrics(request.into_inner()))
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Default::default()))
    }
}

async fn sink() -> (SocketAddr, mpsc::Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel(64);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(Sink(sender.clone())))
        .add_service(LogsServiceServer::new(Sink(sender.clone())))
        .add_service(MetricsServiceServer::new(Sink(sender)))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    (address, receiver)
}

// === an exporter ===

/// A budget that no test here exceeds.
pub(super) const PLENTY: usize = 64 << 20;

fn to(address: SocketAddr) -> Option<String> {
    Some(format!("http://{address}"))
}

/// Returns a configuration that sends only full batches before a flush, unless a test changes the
/// intervals.
pub(super) fn config() -> Config {
    let mut config = Config::default();
    config.scores.batch.max_delay.0 = Duration::from_secs(3_600);
    config.scores.metrics.interval.0 = Duration::from_secs(3_600);
    config
}

fn everywhere(address: SocketAddr) -> Config {
    let mut config = config();
    config.scores.peer.endpoint = to(address);
    config
}

fn only_spans(address: SocketAddr) -> Config {
    let mut config = config();
    config.scores.span.peer.endpoint = to(address);
    config
}

pub(super) fn start(
    config: &Config,
    budget: usize,
    print: Option<Print>,
) -> (Exporter, ExportTasks, Arc<Telemetry>) {
    let telemetry = Arc::default();
    let plan = ExportPlan {
        marks: None,
        journal: None,
        spans: None,
        config,
        budget: budget.into(),
        print,
    };
    let (exporter, running) = start_with(plan, &telemetry);
    (exporter, running, telemetry)
}

pub(super) fn start_with(
    plan: ExportPlan<'_>,
    telemetry: &Arc<Telemetry>,
) -> (Exporter, ExportTasks) {
    Exporter::start(plan, telemetry, &mut fastrand::Rng::with_seed(7)).unwrap()
}

pub(super) fn in_time() -> Instant {
    tokio::time::Instant::now().into_std() + Duration::from_secs(30)
}

pub(super) fn export(exporter: &Exporter, evaluations: &[Evaluation]) {
    let mut judged = Judged::default();
    judged.evaluations.extend_from_slice(evaluations);
    exporter.export(&judged, &Explain::default(), END + 7);
}

fn counted(telemetry: &Telemetry, shape: &'static str) -> (u64, u64) {
    let sent = telemetry.counter("spanscore_scores_sent_total", &[("shape", shape)]);
    (
        sent,
        telemetry.counter(
            "spanscore_scores_dropped_total",
            &[("shape", shape), ("reason", "queue_full")],
        ),
    )
}

// === tests ===

#[tokio::test]
async fn all_three_shapes_arrive_and_a_drain_sends_what_is_open() {
    let (address, mut received) = sink().await;
    let (exporter, running, telemetry) = start(&everywhere(address), PLENTY, None);
    export(&exporter, &[fail(), pass()]);
    assert!(running.drain(in_time()).await.is_empty());

    let mut n_received = [0; 3];
    let mut instances = Vec::new();
    while let Ok(request) = received.try_recv() {
        match request {
            Received::Traces(request) => {
                let spans = &request.resource_spans[0].scope_spans[0].spans;
                assert_eq!(
                    spans
                        .iter()
                        .map(|span| span.name.as_str())
                        .collect::<Vec<_>>(),
                    ["evaluation checkout-order"; 2]
                );
                n_received[0] += spans.len();
            }
            Received::Logs(request) => {
                let records = &request.resource_logs[0].scope_logs[0].log_records;
                assert!(
                    records
                        .iter()
                        .all(|record| record.event_name == "gen_ai.evaluation.result"
                            && record.observed_time_unix_nano == END + 7)
                );
                n_received[1] += records.len();
            }
            Received::Metrics(request) => {
                let resource = request.resource_metrics[0].resource.as_ref().unwrap();
                instances.extend(
                    resource
                        .attributes
                        .iter()
                        .filter(|pair| pair.key == "service.instance.id")
                        .cloned(),
                );
                n_received[2] += request.resource_metrics[0].scope_metrics[0].metrics.len();
            }
        }
    }
    assert_eq!(n_received, [2, 2, 3]);
    let Some(any_value::Value::StringValue(id)) = instances[0].value.clone().unwrap().value else {
        panic!("{instances:?}")
    };
    assert_eq!(
        (id.len(), &id[14..15], id.matches('-').count()),
        (36, "4", 4),
        "{id} is a random UUID"
    );
    assert_eq!(counted(&telemetry, "score_spans"), (2, 0));
    assert_eq!(counted(&telemetry, "score_events"), (2, 0));
    assert_eq!(
        counted(&telemetry, "score_metrics"),
        (7, 0),
        "four labels, of which two have a score, and the time to a verdict"
    );
}

#[tokio::test]
async fn each_shape_has_a_destination_of_its_own() {
    let (address_of_spans, mut spans) = sink().await;
    let (address_of_events, mut events) = sink().await;
    let mut config = config();
    config.scores.span.peer.endpoint = to(address_of_spans);
    config.scores.event.peer.endpoint = to(address_of_events);
    let (exporter, running, telemetry) = start(&config, PLENTY, None);
    export(&exporter, &[fail()]);
    assert!(running.drain(in_time()).await.is_empty());
    assert!(matches!(spans.try_recv(), Ok(Received::Traces(_))));
    assert!(spans.try_recv().is_err());
    assert!(matches!(events.try_recv(), Ok(Received::Logs(_))));
    assert!(events.try_recv().is_err());
    assert_eq!(counted(&telemetry, "score_metrics"), (0, 0));
    let page = telemetry.metrics_text(END, &[Arc::new(move |page| exporter.write_metrics(page))]);
    assert!(
        page.contains("\nspanscore_evaluations_total{"),
        "the page shows what is sent nowhere"
    );
    assert!(
        page.contains("\nspanscore_scores_sent_total{shape=\"score_spans\"} 1\n"),
        "{page}"
    );
    assert!(page.ends_with("\n# EOF\n"));
}

/// Phoenix, Langfuse and others accept traces only.
#[tokio::test]
async fn a_forward_endpoint_for_traces_gets_score_spans_only() {
    let (address, mut received) = sink().await;
    let mut config = config();
    config.forward.endpoint = to(address);
    config.forward.signals = vec![Signal::Traces];
    let (exporter, running, telemetry) = start(&config, PLENTY, None);
    export(&exporter, &[fail()]);
    assert!(running.drain(in_time()).await.is_empty());
    assert!(matches!(received.try_recv(), Ok(Received::Traces(_))));
    assert!(received.try_recv().is_err());
    assert_eq!(
        (
            counted(&telemetry, "score_events"),
            counted(&telemetry, "score_metrics")
        ),
        ((0, 0), (0, 0))
    );
}

#[tokio::test]
async fn a_shape_that_is_switched_off_sends_nothing() {
    let (address, mut received) = sink().await;
    let mut config = everywhere(address);
    config.scores.span.enabled = false;
    config.scores.metrics.enabled = false;
    let (exporter, running, _) = start(&config, PLENTY, None);
    export(&exporter, &[fail()]);
    assert!(running.drain(in_time()).await.is_empty());
    assert!(matches!(received.try_recv(), Ok(Received::Logs(_))));
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn a_full_batch_does_not_wait() {
    let (address, mut received) = sink().await;
    let mut config = only_spans(address);
    config.scores.batch.max_evaluations = 2;
    let (exporter, running, _) = start(&config, PLENTY, None);
    export(&exporter, &[fail(), pass(), fail()]);
    let Some(Received::Traces(request)) = received.recv().await else {
        panic!("no traces")
    };
    assert_eq!(request.resource_spans[0].scope_spans[0].spans.len(), 2);
    running.drain(in_time()).await;
    let Some(Received::Traces(request)) = received.recv().await else {
        panic!("no traces")
    };
    assert_eq!(request.resource_spans[0].scope_spans[0].spans.len(), 1);
}

#[tokio::test]
async fn an_open_batch_is_sent_after_its_delay_and_metrics_on_their_interval() {
    let (address, mut received) = sink().await;
    let mut config = everywhere(address);
    config.scores.event.enabled = false;
    config.scores.batch.max_delay.0 = Duration::from_millis(20);
    config.scores.metrics.interval.0 = Duration::from_millis(50);
    let (exporter, running, telemetry) = start(&config, PLENTY, None);
    export(&exporter, &[fail()]);
    let mut kinds = [false; 2];
    while kinds != [true; 2] {
        match received.recv().await {
            Some(Received::Traces(_)) => kinds[0] = true,
            Some(Received::Metrics(_)) => kinds[1] = true,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        telemetry.workers(),
        [
            "score batches",
            "score_spans delivery",
            "score_metrics delivery"
        ],
        "each beats for `/livez`"
    );
    running.drain(in_time()).await;
    assert!(
        telemetry.workers().is_empty(),
        "who has done what it was told to rests"
    );
}

#[tokio::test]
async fn a_drain_sends_queued_and_later_scores_at_once() {
    let (address, mut received) = sink().await;
    let mut config = everywhere(address);
    config.scores.event.enabled = false;
    let (exporter, running, _) = start(&config, PLENTY, None);
    export(&exporter, &[fail()]);
    running.begin_drain();
    let mut kinds = [false; 2];
    while kinds != [true; 2] {
        match received.recv().await {
            Some(Received::Traces(_)) => kinds[0] = true,
            Some(Received::Metrics(_)) => kinds[1] = true,
            other => panic!("{other:?}"),
        }
    }
    export(&exporter, &[pass()]);
    assert!(matches!(received.recv().await, Some(Received::Traces(_))));
    running.drain(in_time()).await;
}

/// The destination is down, and far more scores arrive than fit into its queue.
#[tokio::test]
async fn an_outage_drops_the_oldest_scores_and_counts_every_one() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let (exporter, running, telemetry) = start(&only_spans(address), 256 << 10, None);
    let evaluations = vec![fail(); 100];
    for _ in 0..20 {
        export(&exporter, &evaluations);
    }
    let left = running
        .drain(tokio::time::Instant::now().into_std() + Duration::from_millis(50))
        .await;
    let dropped = |reason| {
        telemetry.counter(
            "spanscore_scores_dropped_total",
            &[("shape", "score_spans"), ("reason", reason)],
        )
    };
    assert!(dropped("queue_full") > 1_000, "{}", dropped("queue_full"));
    assert!(left["score_spans"] > 50, "{left:?}");
    assert_eq!(dropped("shutdown"), left["score_spans"]);
    assert_eq!(dropped("queue_full") + dropped("shutdown"), 2_000);
    assert_eq!(
        telemetry.gauge("spanscore_scores_queued", &[("shape", "score_spans")]),
        0
    );
}

// === printing ===

/// An output that stores the written bytes, or fails.
#[derive(Clone, Default)]
struct Page {
    text: Arc<Mutex<Vec<u8>>>,
    fails: bool,
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fails {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.text.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An output that blocks until it is released.
struct Stuck(std::sync::mpsc::Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines_to(out: impl Write + Send + 'static) -> Option<Print> {
    Some(Print {
        form: PrintForm::Jsonl,
        out: Box::new(out),
    })
}

#[tokio::test]
async fn without_any_endpoint_evaluations_are_lines() {
    let page = Page::default();
    let (exporter, running, _) = start(&config(), PLENTY, lines_to(page.clone()));
    let other = with(pass(), |trajectory| {
        trajectory.trace_id = TraceId::try_new(&[1; 16]).unwrap()
    });
    export(&exporter, &[fail(), other]);
    assert!(running.drain(in_time()).await.is_empty());
    let text = String::from_utf8(page.text.lock().unwrap().clone()).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        lines
            .iter()
            .map(|line| line["label"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["fail", "pass"]
    );
}

#[tokio::test]
async fn a_closed_pipe_is_not_an_error() {
    let (exporter, running, telemetry) = start(
        &config(),
        PLENTY,
        lines_to(Page {
            fails: true,
            ..Page::default()
        }),
    );
    export(&exporter, &[fail()]);
    export(&exporter, &[pass()]);
    assert!(running.drain(in_time()).await.is_empty());
    assert_eq!(counted(&telemetry, "print"), (0, 0));
}

#[tokio::test]
async fn a_reader_that_is_stuck_holds_nothing_back() {
    let (let_go, is_stuck) = std::sync::mpsc::sync_channel(0);
    let (exporter, running, telemetry) = start(&config(), 4 << 10, lines_to(Stuck(is_stuck)));
    export(&exporter, &vec![fail(); 50]);
    let left = running
        .drain(tokio::time::Instant::now().into_std() + Duration::from_millis(20))
        .await;
    let (_, dropped) = counted(&telemetry, "print");
    // The writing thread may have one text, which is neither queued nor dropped.
    assert!(
        (49..=50).contains(&(left["print"] + dropped)),
        "{left:?} {dropped}"
    );
    assert!(left["print"] < 20, "{left:?}");
    drop(let_go);
}
