//! Tests writing to Kafka: the real program writes to brokers that the client library simulates.
//! These brokers speak the protocol over loopback, and fail on request. Does not prove that a real
//! broker or the Collector accepts the records; `tests/kafka/run` does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use rustix::process::Signal;

use crate::support::backend::Backend;
use crate::support::eventually::eventually;
use crate::support::program::{RECORDING, Running, http, metric, run, wait_for_metric};
use crate::support::spans::request;

const TOPIC: &str = "otlp_spans";
const N_PARTITIONS: i32 = 6;

type Brokers = MockCluster<'static, DefaultProducerContext>;

fn brokers() -> Brokers {
    let brokers = MockCluster::new(3).unwrap();
    brokers.create_topic(TOPIC, N_PARTITIONS, 3).unwrap();
    brokers
}

fn writer(brokers: &str, more: &[(&str, &str)]) -> Running {
    let addresses: Vec<String> = brokers.split(',').map(|it| format!("{it:?}")).collect();
    let mut arguments = vec![
        format!("kafka.brokers=[{}]", addresses.join(",")),
        "kafka.write.enabled=true".to_owned(),
        "forward.retry.initial_interval=20ms".to_owned(),
        "shutdown.quiet=0".to_owned(),
    ];
    arguments.extend(more.iter().map(|(key, value)| format!("{key}={value}")));
    let arguments: Vec<&str> = arguments.iter().flat_map(|it| ["--set", it]).collect();
    Running::start(&arguments)
}

fn send(otlp: &str, body: &[u8]) -> String {
    http(otlp, "POST /v1/traces", body)
}

pub(crate) struct Read {
    partition: i32,
    key: Option<String>,
    pub(crate) request: ExportTraceServiceRequest,
}

fn records(brokers: &str) -> Vec<Read> {
    read_topic(brokers, TOPIC)
}

pub(crate) fn read_topic(brokers: &str, topic: &str) -> Vec<Read> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "test")
        .create()
        .unwrap();
    let mut all = TopicPartitionList::new();
    let mut n_left = 0;
    for partition in 0..N_PARTITIONS {
        let (low, high) = consumer
            .fetch_watermarks(topic, partition, Duration::from_secs(10))
            .unwrap();
        n_left += high - low;
        all.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&all).unwrap();
    let mut records = Vec::new();
    while n_left > 0 {
        let message = consumer.poll(Duration::from_secs(30)).unwrap().unwrap();
        records.push(Read {
            partition: message.partition(),
            key: message
                .key()
                .map(|key| String::from_utf8(key.to_vec()).unwrap()),
            request: ExportTraceServiceRequest::decode(message.payload().unwrap()).unwrap(),
        });
        n_left -= 1;
    }
    records
}

pub(crate) fn spans(request: ExportTraceServiceRequest) -> impl Iterator<Item = Span> {
    let resources = request.resource_spans.into_iter();
    resources.flat_map(|resource| {
        resource
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans)
    })
}

/// Returns the requests of a recorded session, and a request with many traces.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    let read = |file| std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let span = |idx: u8| Span {
        trace_id: vec![idx % 20 + 1; 16],
        span_id: vec![idx + 1; 8],
        ..Span::default()
    };
    let many = request((0..100).map(span).collect());
    RECORDING.into_iter().map(read).chain([many]).collect()
}

pub(crate) fn id(span: &Span) -> (Vec<u8>, Vec<u8>) {
    (span.trace_id.clone(), span.span_id.clone())
}

fn named(names: &[&str], padding: usize) -> Vec<u8> {
    let span = |(idx, name): (usize, &&str)| Span {
        name: format!("{name}{}", ".".repeat(padding)),
        trace_id: vec![7; 16],
        span_id: vec![idx as u8 + 1; 8],
        ..Span::default()
    };
    request(names.iter().enumerate().map(span).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_span_is_written_once_into_the_partition_of_its_trace_and_forwarded() {
    for records_by in ["partition", "trace"] {
        round_trip(&brokers().bootstrap_servers(), records_by).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
#[expect(clippy::disallowed_methods, reason = "the script names its broker")]
async fn a_real_broker_has_every_span_once() {
    let brokers = std::env::var("SPANSCORE_TEST_BROKER").expect("tests/kafka/run sets it");
    round_trip(&brokers, "trace").await;
}

/// Sends a recording to a writer that also has a downstream. Compares what both destinations
/// received with what was sent.
async fn round_trip(brokers: &str, records_by: &str) {
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    let more = [
        ("forward.endpoint", endpoint.as_str()),
        ("kafka.write.records", records_by),
    ];
    let mut writer = writer(brokers, &more);
    let [otlp, _] = writer.addresses();
    let mut sent = BTreeMap::new();
    for body in requests() {
        assert!(send(&otlp, &body).starts_with("HTTP/1.1 200"));
        let request = ExportTraceServiceRequest::decode(&*body).unwrap();
        sent.extend(spans(request).map(|span| (id(&span), span)));
    }
    writer.signal(Signal::TERM);
    assert_eq!(writer.ended().0, 0);

    let arrived = backend.arrived().into_iter();
    let mut forwarded: Vec<Vec<u8>> = arrived
        .filter(|arrived| arrived.signal == "traces")
        .map(|arrived| arrived.body.to_vec())
        .collect();
    let mut expected = requests();
    // Our own scores arrive at the downstream as well. Skip them.
    forwarded.retain(|body| expected.contains(body));
    forwarded.sort();
    expected.sort();
    assert!(forwarded == expected, "the backend has the same bytes");

    let mut written = BTreeMap::new();
    let mut partitions: BTreeMap<Vec<u8>, BTreeSet<i32>> = BTreeMap::new();
    for record in records(brokers) {
        assert_eq!(record.key.is_some(), records_by == "trace");
        for span in spans(record.request) {
            if let Some(key) = &record.key {
                assert_eq!(*key, hex(&span.trace_id));
            }
            let of_trace = partitions.entry(span.trace_id.clone()).or_default();
            of_trace.insert(record.partition);
            assert_eq!(written.insert(id(&span), span), None, "written twice");
        }
    }
    assert_eq!(written, sent);
    assert!(partitions.values().all(|of_trace| of_trace.len() == 1));
    let used: BTreeSet<i32> = partitions.into_values().flatten().collect();
    assert!(used.len() > 1, "{used:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the next log line whose message contains this text.
fn line_with(writer: &mut Running, message: &str) -> String {
    loop {
        let line = writer.line();
        if line["message"]
            .as_str()
            .is_some_and(|it| it.contains(message))
        {
            return line.to_string();
        }
    }
}

#[test]
fn a_refusal_by_the_brokers_is_told_with_its_remedy_and_loses_nothing() {
    for (error, remedy) in [
        (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            "`this client` may not write `otlp_spans`: it needs WRITE and DESCRIBE on the topic",
        ),
        (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
            "topic `otlp_spans` does not exist; create it: kafka-topics --create --topic \
             otlp_spans --partitions 48 --config message.timestamp.type=LogAppendTime",
        ),
    ] {
        let brokers = brokers();
        brokers.topic_error(TOPIC, error).unwrap();
        let mut writer = writer(&brokers.bootstrap_servers(), &[]);
        let [otlp, _] = writer.addresses();
        assert!(send(&otlp, &named(&["kept"], 0)).starts_with("HTTP/1.1 200"));
        let line = line_with(&mut writer, "paused");
        assert!(line.contains(remedy), "{line}");
        let none = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
        brokers.topic_error(TOPIC, none).unwrap();
        line_with(&mut writer, "resumed");
        writer.signal(Signal::TERM);
        assert_eq!(writer.ended().0, 0);
        assert_eq!(records(&brokers.bootstrap_servers()).len(), 1);
    }
}

#[test]
fn requests_are_refused_while_the_brokers_are_away_and_the_queue_is_full() {
    let brokers = brokers();
    brokers.broker_down(-1).unwrap();
    let mut writer = writer(
        &brokers.bootstrap_servers(),
        &[("kafka.write.queue.max_size", "64KiB")],
    );
    let [otlp, _] = writer.addresses();
    let body = named(&["kept"], 8 << 10);
    let mut n_taken = 0;
    loop {
        let answer = send(&otlp, &body);
        if !answer.starts_with("HTTP/1.1 200") {
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            break;
        }
        n_taken += 1;
        assert!(n_taken < 8, "more than fits was acknowledged");
    }
    assert!(n_taken > 2, "{n_taken}");
    brokers.broker_up(-1).unwrap();
    writer.signal(Signal::TERM);
    assert_eq!(writer.ended().0, 0);
    assert_eq!(records(&brokers.bootstrap_servers()).len(), n_taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_the_brokers_survives_a_kill() {
    let backend = Backend::start().await;
    let endpoint = format!("http://{}", backend.address);
    for downstream in [None, Some(&*endpoint)] {
        let brokers = brokers();
        brokers.broker_down(-1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let start = || {
            let mut more = vec![
                ("journal.directory", folder),
                // This queue is smaller than the sent requests, so some of them are only on disk.
                ("kafka.write.queue.max_size", "40KiB"),
            ];
            more.extend(downstream.map(|endpoint| ("forward.endpoint", endpoint)));
            writer(&brokers.bootstrap_servers(), &more)
        };
        let mut killed = start();
        let [otlp, _] = killed.addresses();
        let sent = requests();
        for body in &sent {
            assert!(send(&otlp, body).starts_with("HTTP/1.1 200"));
        }
        drop(killed);
        let (code, told, _) = run(&["journal", folder]);
        let waits = format!("{folder}: {} requests wait", sent.len());
        assert!(code == 0 && told.contains(&waits), "{told}");

        brokers.broker_up(-1).unwrap();
        let mut writer = start();
        let [otlp, _] = writer.addresses();
        // Send a request again, like a sender that got no response.
        assert!(send(&otlp, &sent[0]).starts_with("HTTP/1.1 200"));
        writer.signal(Signal::TERM);
        assert_eq!(writer.ended().0, 0);
        let decoded = |body: &Vec<u8>| ExportTraceServiceRequest::decode(&**body).unwrap();
        let mut expected: Vec<_> = sent.iter().map(decoded).flat_map(spans).collect();
        let written = records(&brokers.bootstrap_servers()).into_iter();
        let mut written: Vec<_> = written.flat_map(|record| spans(record.request)).collect();
        expected.sort_by_key(id);
        written.sort_by_key(id);
        assert!(written == expected, "{} spans written", written.len());
        let (_, told, _) = run(&["journal", folder]);
        assert!(!told.contains("requests wait"), "{told}");
    }
}

/// The client library's buffer must have space for the largest record, or the record would wait
/// forever.
#[test]
fn a_record_as_large_as_a_request_may_be_is_written() {
    let brokers = brokers();
    let settings = [("kafka.write.queue.max_size", "64KiB")];
    let mut writer = writer(&brokers.bootstrap_servers(), &settings);
    let [otlp, _] = writer.addresses();
    let overhead = named(&["large"], 8 << 10).len() - (8 << 10);
    let body = named(&["large"], (16 << 10) - overhead);
    assert_eq!(body.len(), 16 << 10);
    assert!(send(&otlp, &body).starts_with("HTTP/1.1 200"));
    writer.signal(Signal::TERM);
    assert_eq!(writer.ended().0, 0);
    assert_eq!(records(&brokers.bootstrap_servers()).len(), 1);
}

#[test]
fn a_large_record_is_split_and_only_a_span_that_is_too_large_by_itself_is_dropped() {
    let brokers = brokers();
    let mut writer = writer(
        &brokers.bootstrap_servers(),
        &[("kafka.write.max_message_size", "2KiB")],
    );
    let [otlp, admin] = writer.addresses();
    let mut sent: Vec<Span> =
        spans(ExportTraceServiceRequest::decode(&*named(&["a", "b", "c", "d", "e"], 900)).unwrap())
            .collect();
    sent[2].name = "too large".repeat(1_000);
    assert!(send(&otlp, &request(sent)).starts_with("HTTP/1.1 200"));
    let line = line_with(&mut writer, "refused");
    assert!(
        line.contains("larger than `kafka.write.max_message_size` (2048)"),
        "{line}"
    );
    let page = http(&admin, "GET /metrics", &[]);
    for expected in [
        "spanscore_exporter_sent_spans_total 4",
        "spanscore_exporter_dropped_spans_total{reason=\"too_large\"} 1",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    writer.signal(Signal::TERM);
    writer.ended();
    let n_spans: Vec<usize> = records(&brokers.bootstrap_servers())
        .into_iter()
        .map(|record| spans(record.request).count())
        .collect();
    assert_eq!(n_spans.iter().sum::<usize>(), 4);
    assert!(n_spans.len() > 1, "{n_spans:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_are_away_show_in_the_metrics_and_lag_grows_while_the_judge_stays_alive() {
    let brokers = brokers();
    let addresses = brokers.bootstrap_servers();
    let mut writer = writer(&addresses, &[]);
    line_with(&mut writer, "spans go to Kafka alone");
    let [_, writer_admin] = writer.addresses();
    let addresses: Vec<String> = addresses.split(',').map(|it| format!("{it:?}")).collect();
    let mut judge = Running::start(&[
        "--set",
        &format!("kafka.brokers=[{}]", addresses.join(",")),
        "--set",
        "kafka.read.enabled=true",
        "--set",
        "kafka.read.session_timeout=6s",
        "--set",
        "scoring.threads=2",
    ]);
    line_with(&mut judge, "scores go to the endpoints under `scores`");
    let listening: serde_json::Value =
        serde_json::from_str(&line_with(&mut judge, "listening")).unwrap();
    let admin = listening["address"].as_str().unwrap();
    // One thread may have all partitions until the other has joined the group.
    eventually("both threads are in the group", || {
        http(admin, "GET /readyz", &[])
            .starts_with("HTTP/1.1 200")
            .then_some(())
    })
    .await;
    let connected = |client| format!("spanscore_kafka_connected{{client=\"{client}\"}}");
    let lag = "spanscore_kafka_lag_seconds{partition=\"0\"}";
    wait_for_metric(&writer_admin, &connected("writer"), |it| it == 1.0).await;
    wait_for_metric(admin, &connected("judge"), |it| it == 1.0).await;
    // A partition that moves between the threads when the brokers go away has no lag.
    eventually("the partition is read", || {
        http(admin, "GET /metrics", &[]).contains(lag).then_some(())
    })
    .await;
    wait_for_metric(admin, lag, |it| it == 0.0).await;
    brokers.broker_down(-1).unwrap();
    wait_for_metric(&writer_admin, &connected("writer"), |it| it == 0.0).await;
    wait_for_metric(admin, &connected("judge"), |it| it == 0.0).await;
    // The outage lasts longer than the group's session timeout. The judge must remain alive and
    // ready.
    let mut last = 0.0;
    wait_for_metric(admin, lag, |it| it > 0.0).await;
    eventually("the lag grows to seven seconds", || {
        let now = metric(admin, lag);
        assert!(now >= last, "{now} after {last}");
        last = now;
        for path in ["/livez", "/readyz"] {
            let answer = http(admin, &format!("GET {path}"), &[]);
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        (last >= 7.0).then_some(())
    })
    .await;
    brokers.broker_up(-1).unwrap();
    wait_for_metric(&writer_admin, &connected("writer"), |it| it == 1.0).await;
    wait_for_metric(admin, &connected("judge"), |it| it == 1.0).await;
    wait_for_metric(admin, lag, |it| it == 0.0).await;
    for program in [&writer, &judge] {
        program.signal(Signal::TERM);
    }
    assert_eq!(writer.ended().0, 0);
    assert_eq!(judge.ended().0, 0);
}

#[test]
fn mistakes_in_the_settings_are_named() {
    let (code, _, messages) = run(&["validate", "--set", "kafka.write.enabled=true"]);
    assert_eq!(code, 2, "{messages}");
    assert!(
        messages.contains("`kafka.write` has no brokers"),
        "{messages}"
    );
}
