//! Tests the OpenTelemetry Collector on both sides of a topic on a real broker. Spans that its
//! exporter writes are judged completely, and its receiver receives every span that we write, once
//! and unchanged. `tests/kafka/run` builds the Collector. Does not test logs or metrics.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::kafka::{id, read_topic, requests, spans};
use crate::kafka_judges::{Bench, end, send_parts};
use crate::support::eventually::eventually;
use crate::support::program::{http, metric};

/// A running Collector; killed when dropped.
struct Collector {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Collector {
    /// Starts a Collector with a configuration of receivers, exporters and pipelines.
    #[expect(clippy::disallowed_methods, reason = "the script names its Collector")]
    fn start(name: &str, mut configuration: Value) -> Self {
        let program = std::env::var("SPANSCORE_TEST_COLLECTOR").expect("tests/kafka/run sets it");
        configuration["service"]["telemetry"] = json!({
            "metrics": { "level": "none" },
            "logs": { "encoding": "json" },
        });
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
        // JSON is valid YAML.
        fs::write(&file, configuration.to_string()).unwrap();
        let mut child = Command::new(program)
            .arg("--config")
            .arg(&file)
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// Returns the next log line whose message contains this text.
    fn line_with(&mut self, message: &str) -> Value {
        let mut seen = String::new();
        loop {
            let begins = seen.len();
            let n_bytes = self.log.read_line(&mut seen).unwrap();
            assert!(n_bytes > 0, "the Collector ended:\n{seen}");
            let line: Value = serde_json::from_str(&seen[begins..]).unwrap_or_default();
            if line["msg"].as_str().is_some_and(|it| it.contains(message)) {
                return line;
            }
        }
    }

    /// Stops the Collector. It sends its queue first.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a Collector that writes to the topic. Returns the Collector and its OTLP address.
fn exporter(bench: &Bench, encoding: &str, hasher: &str) -> (Collector, String) {
    let mut collector = Collector::start(
        &bench.topic,
        json!({
            "receivers": { "otlp": { "protocols": { "http": { "endpoint": "127.0.0.1:0" } } } },
            "exporters": { "kafka": {
                "brokers": [bench.brokers],
                "traces": { "topic": bench.topic, "encoding": encoding },
                "partition_traces_by_id": true,
                "record_partitioner": { "sticky_key": { "hasher": hasher } },
            } },
            "service": { "pipelines": {
                "traces": { "receivers": ["otlp"], "exporters": ["kafka"] },
            } },
        }),
    );
    let line = collector.line_with("Starting HTTP server");
    let otlp = line["endpoint"].as_str().unwrap().to_owned();
    collector.line_with("Everything is ready");
    (collector, otlp)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker and a Collector: tests/kafka/run has them"]
async fn what_the_collector_writes_is_judged_in_full() {
    for (encoding, partitioner) in [
        ("otlp_proto", "sarama_compat"),
        ("otlp_proto", "murmur2"),
        ("otlp_json", "sarama_compat"),
    ] {
        let bench = Bench::new(&format!("exporter-{encoding}-{partitioner}")).await;
        let (collector, otlp) = exporter(&bench, encoding, partitioner);
        for part in 0..2 {
            send_parts(&otlp, 1..=40, part);
        }
        collector.end();
        let partitioner = format!("kafka.write.partitioner={partitioner}");
        let (judge, admin) = bench.judge_with(&[&partitioner]);
        assert_eq!(bench.all_judged(1..=40, &[&admin]).await, 0);
        for nothing in [
            "spanscore_kafka_misplaced_traces_total",
            "spanscore_kafka_records_set_aside_total{reason=\"json\"}",
            "spanscore_kafka_records_set_aside_total{reason=\"protobuf\"}",
        ] {
            assert_eq!(metric(&admin, nothing), 0.0, "{nothing} of {encoding}");
        }
        end(judge);
        if encoding == "otlp_proto" {
            let written = read_topic(&bench.brokers, &bench.topic).into_iter();
            let mut written: Vec<Span> = written.flat_map(|record| spans(record.request)).collect();
            let n_spans = written.len();
            written.sort_by_key(id);
            written.dedup_by_key(|span| id(span));
            assert_eq!((written.len(), n_spans), (40 * 7, 40 * 7));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker and a Collector: tests/kafka/run has them"]
async fn the_collector_reads_every_span_that_we_write_once() {
    for records in ["partition", "trace"] {
        let bench = Bench::new(&format!("receiver-{records}")).await;
        let records = format!("kafka.write.records={records}");
        let (writer, otlp) = bench.writer_with(&[&records]);
        let mut sent: BTreeMap<_, Span> = BTreeMap::new();
        for body in requests() {
            let answer = http(&otlp, "POST /v1/traces", &body);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            let request = ExportTraceServiceRequest::decode(&*body).unwrap();
            sent.extend(spans(request).map(|mut span| {
                // The Collector writes an empty status for a missing one. Both mean the same.
                span.status.get_or_insert_default();
                (id(&span), span)
            }));
        }
        end(writer);
        let endpoint = format!("http://{}", bench.backend.address);
        let mut collector = Collector::start(
            &bench.topic,
            json!({
                "receivers": { "kafka": {
                    "brokers": [bench.brokers],
                    "group_id": bench.topic,
                    "initial_offset": "earliest",
                    "traces": { "topics": [bench.topic], "encoding": "otlp_proto" },
                } },
                "exporters": { "otlphttp": { "endpoint": endpoint, "compression": "none" } },
                "service": { "pipelines": {
                    "traces": { "receivers": ["kafka"], "exporters": ["otlphttp"] },
                } },
            }),
        );
        collector.line_with("Everything is ready");
        eventually("every span arrives", || {
            let requests = bench.backend.arrived().into_iter();
            let decoded = requests.map(|it| ExportTraceServiceRequest::decode(it.body).unwrap());
            (decoded.flat_map(spans).count() >= sent.len()).then_some(())
        })
        .await;
        collector.end();
        let requests = bench.backend.arrived().into_iter();
        let decoded = requests.map(|it| ExportTraceServiceRequest::decode(it.body).unwrap());
        let arrived: Vec<Span> = decoded.flat_map(spans).collect();
        assert_eq!(arrived.len(), sent.len(), "every span once");
        for span in arrived {
            assert_eq!(sent.remove(&id(&span)), Some(span));
        }
    }
}
