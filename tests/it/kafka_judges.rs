//! Tests judging from Kafka with the real program and a real broker: traces are complete, and no
//! score arrives twice without the replay mark, while judges start, stop and are killed. Needs a
//! broker, so `tests/kafka/run` runs these tests. Does not test several brokers or logins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rustix::process::Signal;

use crate::support::backend::Backend;
use crate::support::eventually::{eventually, within};
use crate::support::program::{Running, http, metric};
use crate::support::spans::{SpanCall, request, spans_of_run};

const N_PARTITIONS: i32 = 6;

pub(crate) const CRITERIA: &str = r#"
criteria:
  - name: no rm
    evaluate: { tool_calls: { disallowed: ["^rm$"] } }
  - name: five calls
    evaluate: { tool_call_count: { tool_calls_count: { look: ["==", 5] } } }
"#;

/// A separate topic on the broker, and the backend that receives its scores.
pub(crate) struct Bench {
    pub(crate) brokers: String,
    pub(crate) topic: String,
    criteria: PathBuf,
    pub(crate) backend: Backend,
}

impl Bench {
    pub(crate) async fn new(name: &str) -> Self {
        let bench = Self::without_topic(name).await;
        bench.create_topic().await;
        bench
    }

    #[expect(clippy::disallowed_methods, reason = "the script names its broker")]
    pub(crate) async fn without_topic(name: &str) -> Self {
        let criteria = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
        fs::write(&criteria, CRITERIA).unwrap();
        let run = std::process::id();
        Self {
            brokers: std::env::var("SPANSCORE_TEST_BROKER").expect("tests/kafka/run sets it"),
            topic: format!("{name}-{run}"),
            criteria,
            backend: Backend::start().await,
        }
    }

    pub(crate) fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.brokers);
        client
    }

    pub(crate) async fn create_topic(&self) {
        let admin: AdminClient<DefaultClientContext> = self.client().create().unwrap();
        let topic = NewTopic::new(&self.topic, N_PARTITIONS, TopicReplication::Fixed(1));
        let topic = topic.set("message.timestamp.type", "LogAppendTime");
        let options = AdminOptions::new();
        let created = admin.create_topics([&topic], &options).await.unwrap();
        created[0].as_ref().unwrap();
    }

    fn start(&self, first: &[&str], settings: &[&str]) -> Running {
        let brokers = format!("kafka.brokers=[\"{}\"]", self.brokers);
        let settings = [&[&*brokers], settings].concat();
        let settings = settings.iter().flat_map(|it| ["--set", *it]);
        let arguments: Vec<&str> = first.iter().copied().chain(settings).collect();
        Running::start(&arguments)
    }

    /// Starts a judge and waits until it has partitions. Returns the judge and its admin address.
    pub(crate) fn judge(&self) -> (Running, String) {
        self.judge_with(&[])
    }

    pub(crate) fn judge_with(&self, more: &[&str]) -> (Running, String) {
        let (mut judge, admin) = self.judge_at_start(more);
        line_with(&mut judge, "partitions assigned");
        (judge, admin)
    }

    pub(crate) fn judge_at_start(&self, more: &[&str]) -> (Running, String) {
        let topic = format!("kafka.read.topic={}", self.topic);
        let group = format!("kafka.read.group={}", self.topic);
        let endpoint = format!("forward.endpoint=http://{}", self.backend.address);
        let settings = [
            &endpoint,
            "kafka.read.enabled=true",
            &topic,
            &group,
            "kafka.read.start=earliest",
            "kafka.read.session_timeout=6s",
            "assemble.settle=300ms",
            "scoring.threads=2",
        ];
        let first = ["--config", self.criteria.to_str().unwrap()];
        let mut judge = self.start(&first, &[&settings, more].concat());
        let line = line_with(&mut judge, "listening");
        assert_eq!(line["setting"], "admin.listen", "a judge has no other port");
        let admin = line["address"].as_str().unwrap().to_owned();
        (judge, admin)
    }

    /// Starts a writer without criteria. Returns the writer and its OTLP address.
    pub(crate) fn writer(&self) -> (Running, String) {
        let endpoint = format!("forward.endpoint=http://{}", self.backend.address);
        self.writer_with(&[&endpoint])
    }

    pub(crate) fn writer_with(&self, more: &[&str]) -> (Running, String) {
        let topic = format!("kafka.write.topic={}", self.topic);
        let settings = ["kafka.write.enabled=true", &topic, "shutdown.quiet=0"];
        let mut writer = self.start(&[], &[&settings, more].concat());
        let [otlp, _] = writer.addresses();
        (writer, otlp)
    }

    /// Returns the scores that have arrived, by span id, and how often each arrived with and
    /// without the replay mark.
    fn scores(&self) -> BTreeMap<Vec<u8>, Score> {
        let mut scores: BTreeMap<Vec<u8>, Score> = BTreeMap::new();
        for arrived in self.backend.arrived() {
            if arrived.signal != "traces" {
                continue;
            }
            let request = ExportTraceServiceRequest::decode(arrived.body).unwrap();
            let scopes = request
                .resource_spans
                .into_iter()
                .flat_map(|it| it.scope_spans);
            let own =
                scopes.filter(|it| it.scope.as_ref().is_some_and(|it| it.name == "spanscore"));
            for span in own.flat_map(|it| it.spans) {
                let text = |key| text_of(&span, key);
                let facts = [
                    text("gen_ai.evaluation.name"),
                    text("gen_ai.evaluation.score.label"),
                    text("spanscore.completeness"),
                ];
                let is_replayed = span
                    .attributes
                    .iter()
                    .any(|it| it.key == "spanscore.replayed");
                let score = scores.entry(span.span_id).or_insert_with(|| Score {
                    trace: u64::from_be_bytes(span.trace_id[8..].try_into().unwrap()),
                    facts: facts.clone(),
                    n_marked: 0,
                    n_unmarked: 0,
                });
                assert_eq!(score.facts, facts, "another score under the same id");
                if is_replayed { score.n_marked += 1 } else { score.n_unmarked += 1 }
            }
        }
        scores
    }

    /// Waits until each of these traces has the scores of both criteria, and checks the scores.
    /// Returns the number of scores that arrived more than once.
    pub(crate) async fn all_judged(
        &self,
        traces: impl Iterator<Item = u64> + Clone,
        admins: &[&str],
    ) -> usize {
        let wanted: BTreeSet<u64> = traces.collect();
        let look = || {
            // A judge that has died does not respond, which fails the test.
            for admin in admins {
                http(admin, "GET /metrics", &[]);
            }
            let scores = self.scores();
            let mut n_scores: BTreeMap<u64, usize> = BTreeMap::new();
            for score in scores.values() {
                *n_scores.entry(score.trace).or_default() += 1;
            }
            let is_judged = |trace: &u64| n_scores.get(trace).is_some_and(|n| *n >= 2);
            wanted.iter().all(is_judged).then_some(scores)
        };
        let scores = within(Duration::from_secs(300), "all are judged", look).await;
        for Score {
            trace,
            facts: [criterion, label, completeness],
            n_unmarked,
            ..
        } in scores.values()
        {
            let expected = match (&**criterion, trace % 2) {
                ("no rm", 0) => "fail",
                _ => "pass",
            };
            assert_eq!(label, expected, "{criterion} of {trace}");
            assert_eq!(completeness, "root_ended", "{criterion} of {trace}");
            assert!(
                *n_unmarked <= 1,
                "{criterion} of {trace} comes twice unmarked"
            );
        }
        assert_eq!(scores.len(), 2 * wanted.len());
        scores
            .values()
            .filter(|it| it.n_marked + it.n_unmarked > 1)
            .count()
    }
}

#[derive(Debug)]
struct Score {
    trace: u64,
    /// The criterion, label and completeness.
    facts: [String; 3],
    n_marked: usize,
    n_unmarked: usize,
}

pub(crate) fn text_of(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key == key);
    match found.and_then(|it| it.value.as_ref()?.value.clone()) {
        Some(any_value::Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

/// Returns the next log line whose message contains this text.
pub(crate) fn line_with(program: &mut Running, message: &str) -> serde_json::Value {
    loop {
        let line = program.line();
        if line["message"]
            .as_str()
            .is_some_and(|it| it.contains(message))
        {
            return line;
        }
    }
}

/// Returns a run in two parts. The second part contains the agent's span. Each part has calls that
/// decide a verdict.
pub(crate) fn parts_of(trace: u64) -> [Vec<Span>; 2] {
    let call = |name: &str| SpanCall {
        name: name.to_owned(),
        ..SpanCall::default()
    };
    let first = if trace.is_multiple_of(2) { "rm" } else { "list" };
    let mut calls: Vec<SpanCall> = vec![call(first)];
    calls.extend((0..5).map(|_| call("look")));
    let mut spans = spans_of_run(trace, &[], &calls);
    let root = spans.remove(0);
    let mut second = spans.split_off(3);
    second.push(root);
    [spans, second]
}

fn send(otlp: &str, spans: Vec<Span>) {
    let answer = http(otlp, "POST /v1/traces", &request(spans));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

pub(crate) fn send_parts(otlp: &str, traces: impl Iterator<Item = u64>, part: usize) {
    for trace in traces {
        let [first, second] = parts_of(trace);
        send(otlp, if part == 0 { first } else { second });
    }
}

pub(crate) fn end(program: Running) {
    program.signal(Signal::TERM);
    assert_eq!(program.ended().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn every_trace_of_a_topic_is_judged_once() {
    let bench = Bench::new("once").await;
    let (writer, otlp) = bench.writer();
    let (judge, admin) = bench.judge();
    for part in 0..2 {
        send_parts(&otlp, 1..=40, part);
    }
    assert_eq!(bench.all_judged(1..=40, &[&admin]).await, 0);
    assert_eq!(metric(&admin, "spanscore_kafka_assigned_partitions"), 6.0);
    end(writer);
    end(judge);
    assert!(bench.scores().values().all(|it| it.n_marked == 0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn open_traces_move_to_a_judge_that_joins_and_back_when_it_drains() {
    let bench = Bench::new("moves").await;
    let (writer, otlp) = bench.writer();
    let (first, first_admin) = bench.judge();
    send_parts(&otlp, 1..=60, 0);
    let (second, second_admin) = bench.judge();
    send_parts(&otlp, 1..=30, 1);
    bench
        .all_judged(1..=30, &[&first_admin, &second_admin])
        .await;
    assert!(metric(&second_admin, "spanscore_kafka_assigned_partitions") > 0.0);
    // The first judge reopens the traces that were open in the second judge.
    end(second);
    send_parts(&otlp, 31..=60, 1);
    assert_eq!(bench.all_judged(1..=60, &[&first_admin]).await, 0);
    end(writer);
    end(first);
    let scores = bench.scores();
    let marked: Vec<&Score> = scores.values().filter(|it| it.n_marked > 0).collect();
    assert!(marked.is_empty(), "nothing is repeated: {marked:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_judge_that_is_killed_loses_nothing() {
    let bench = Bench::new("killed").await;
    let (writer, otlp) = bench.writer();
    let (mut killed, killed_admin) = bench.judge();
    let (other, other_admin) = bench.judge();
    send_parts(&otlp, 1..=60, 0);
    send_parts(&otlp, 1..=20, 1);
    bench
        .all_judged(1..=20, &[&killed_admin, &other_admin])
        .await;
    send_parts(&otlp, 21..=40, 1);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    send_parts(&otlp, 41..=60, 1);
    let n_repeated = bench.all_judged(1..=60, &[&other_admin]).await;
    assert!(n_repeated <= 80, "{n_repeated}");
    let lost = metric(&other_admin, "spanscore_kafka_lag_seconds{partition=\"0\"}");
    assert!(lost < 10.0, "{lost}");
    end(writer);
    end(other);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn what_is_no_otlp_is_set_aside_and_what_is_misplaced_is_incomplete() {
    let bench = Bench::new("poison").await;
    let producer: BaseProducer = bench.client().create().unwrap();
    let put = |partition: i32, value: &[u8]| {
        let record: BaseRecord<'_, (), [u8]> = BaseRecord::to(&bench.topic)
            .partition(partition)
            .payload(value);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(Duration::from_secs(10)).unwrap();
    };
    for partition in 0..N_PARTITIONS {
        put(partition, b"\xff\xff\xff no protobuf");
    }
    let (mut judge, admin) = bench.judge_at_start(&[]);
    let line = line_with(&mut judge, "record skipped: not an OTLP trace request");
    assert_eq!(line["offset"], 0);
    let (writer, otlp) = bench.writer();
    for part in 0..2 {
        send_parts(&otlp, 1..=20, part);
    }
    bench.all_judged(1..=20, &[&admin]).await;
    assert_eq!(
        metric(
            &admin,
            "spanscore_kafka_records_set_aside_total{reason=\"protobuf\"}"
        ),
        6.0
    );
    // The same trace is written to all six partitions, although it belongs to one of them.
    for partition in 0..N_PARTITIONS {
        put(partition, &request(parts_of(1_000).concat()));
    }
    let line = line_with(&mut judge, "not partitioned by trace id");
    assert!(line["message"].as_str().unwrap().contains("are incomplete"));
    eventually("incomplete scores arrive", || {
        let seen = bench.backend.arrived().into_iter().any(|arrived| {
            let body = String::from_utf8_lossy(&arrived.body).into_owned();
            arrived.signal == "traces" && body.contains("incomplete")
        });
        seen.then_some(())
    })
    .await;
    end(writer);
    end(judge);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_missing_topic_is_told_and_waited_for() {
    let bench = Bench::without_topic("missing").await;
    let (mut judge, admin) = bench.judge_at_start(&[]);
    let line = line_with(&mut judge, "cannot read from Kafka");
    let why = line["why"].as_str().unwrap();
    assert!(
        why.contains("does not exist; create it: kafka-topics --create"),
        "{why}"
    );
    assert!(http(&admin, "GET /readyz", &[]).starts_with("HTTP/1.1 503"));
    bench.create_topic().await;
    line_with(&mut judge, "partitions assigned");
    let (writer, otlp) = bench.writer();
    for part in 0..2 {
        send_parts(&otlp, 1..=10, part);
    }
    bench.all_judged(1..=10, &[&admin]).await;
    assert!(http(&admin, "GET /readyz", &[]).starts_with("HTTP/1.1 200"));
    end(writer);
    end(judge);
}
