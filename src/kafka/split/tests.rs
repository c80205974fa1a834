//! Compares the parts of split requests with the decoded request. The tests do not prove that a
//! broker or the Collector accepts the records.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use proptest::prelude::{any, prop, proptest};
use prost::Message;

use super::*;

const BOTH: [KafkaRecords; 2] = [KafkaRecords::Partition, KafkaRecords::Trace];

/// The resources of a request as lists of scopes. A scope is a list of spans, and a span is the
/// number of its trace.
type Shape = Vec<Vec<Vec<u8>>>;

/// Returns a request of this shape. Spans of trace 0 have an invalid trace id.
fn request(shape: &Shape) -> ExportTraceServiceRequest {
    let mut n_spans = 0;
    let mut span = |trace: &u8| {
        n_spans += 1;
        let trace_id = match trace {
            0 => vec![0; 16],
            trace => vec![*trace; 16],
        };
        Span {
            trace_id,
            name: format!("span{n_spans}"),
            ..Span::default()
        }
    };
    let resource_spans = shape.iter().enumerate().map(|(idx, scopes)| {
        let scope_spans = scopes.iter().enumerate().map(|(scope, traces)| ScopeSpans {
            scope: Some(InstrumentationScope {
                name: format!("scope{scope}"),
                ..InstrumentationScope::default()
            }),
            spans: traces.iter().map(&mut span).collect(),
            schema_url: "url".to_owned(),
        });
        ResourceSpans {
            schema_url: format!("resource{idx}"),
            scope_spans: scope_spans.collect(),
            ..ResourceSpans::default()
        }
    });
    ExportTraceServiceRequest {
        resource_spans: resource_spans.collect(),
    }
}

/// Returns the spans by name, each with the messages that enclose it.
fn spans(request: &ExportTraceServiceRequest) -> BTreeMap<String, (String, String, Vec<u8>)> {
    let mut spans = BTreeMap::new();
    for resource in &request.resource_spans {
        for scope in &resource.scope_spans {
            let name = scope.scope.clone().expect("every scope has one").name;
            assert_eq!(scope.schema_url, "url");
            for span in &scope.spans {
                let enclosing = (
                    resource.schema_url.clone(),
                    name.clone(),
                    span.trace_id.clone(),
                );
                assert_eq!(
                    spans.insert(span.name.clone(), enclosing),
                    None,
                    "twice: {}",
                    span.name
                );
            }
        }
    }
    spans
}

fn decode(record: &TopicRecord) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest::decode(&*record.value).expect("a record is a request")
}

proptest! {
    #[test]
    fn each_span_is_in_the_one_record_of_its_trace(
        shape in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(0..9_u8, 0..6), 0..4),
            0..4,
        ),
        n_partitions in 1..5_i32,
    ) {
        let request = request(&shape);
        for bundled_by in BOTH {
            let partitioner = KafkaPartitioner::SaramaCompat;
            let placed = place(&request.encode_to_vec(), bundled_by, partitioner, n_partitions)
                .expect("it is a request");
            let mut expected = spans(&request);
            let n_before = expected.len();
            expected.retain(|_, (_, _, id)| TraceId::try_new(id).is_some());
            assert_eq!(placed.n_without_id as usize, n_before - expected.len());
            let mut found = BTreeMap::new();
            for record in &placed.records {
                let spans = spans(&decode(record));
                assert_eq!(record.n_spans as usize, spans.len());
                for (name, span) in spans {
                    let id = TraceId::try_new(&span.2).expect("only valid ones are placed");
                    assert_eq!(record.partition, partition_of(id, partitioner, n_partitions));
                    assert!(record.key.is_none_or(|key| key == id));
                    assert_eq!(found.insert(name, span), None);
                }
            }
            assert_eq!(found, expected);
            let places = placed.records.iter().map(|record| (record.partition, record.key));
            let n_places = places.collect::<std::collections::HashSet<_>>().len();
            assert_eq!(n_places, placed.records.len(), "one record for each place");
            let is_keyed = placed.records.iter().all(|record| record.key.is_some());
            assert!(is_keyed || bundled_by == KafkaRecords::Partition);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for bundled_by in BOTH {
            let _ = place(&body, bundled_by, KafkaPartitioner::Murmur2, 3);
        }
    }
}

#[test]
fn unknown_fields_go_with_every_record() {
    // Add field 99 on each level, after the spans.
    let unknown = |level: u8| {
        let mut field = Vec::new();
        write::delimited(&mut field, 99, &[level]);
        field
    };
    let wrapped = |level: u8, field: u64, inner: &[u8]| {
        let mut message = Vec::new();
        write::delimited(&mut message, field, inner);
        message.extend(unknown(level));
        message
    };
    let mut items = Vec::new();
    for trace in [1, 2] {
        let mut span = Span {
            trace_id: vec![trace; 16],
            ..Span::default()
        }
        .encode_to_vec();
        span.extend(unknown(3));
        write::delimited(&mut items, scope_group::ITEMS, &span);
    }
    items.extend(unknown(2));
    let body = wrapped(
        0,
        request::RESOURCE_GROUPS,
        &wrapped(1, resource_group::SCOPE_GROUPS, &items),
    );
    let placed = place(
        &body,
        KafkaRecords::Trace,
        KafkaPartitioner::SaramaCompat,
        1,
    )
    .expect("a request");
    assert_eq!(placed.records.len(), 2);
    for record in &placed.records {
        for level in 0..4 {
            let field = unknown(level);
            let n_found = record
                .value
                .windows(field.len())
                .filter(|window| *window == field)
                .count();
            assert_eq!(n_found, 1, "level {level}");
        }
    }
}

/// Readers use the last of several trace ids, so the last id decides the span's partition.
#[test]
fn the_last_trace_id_of_a_span_counts() {
    let mut span = Vec::new();
    write::delimited(&mut span, span::TRACE_ID, &[1; 16]);
    write::delimited(&mut span, span::TRACE_ID, &[2; 16]);
    let mut body = Vec::new();
    write::message(&mut body, request::RESOURCE_GROUPS, |body| {
        write::message(body, resource_group::SCOPE_GROUPS, |body| {
            write::delimited(body, scope_group::ITEMS, &span);
        });
    });
    let placed = place(
        &body,
        KafkaRecords::Trace,
        KafkaPartitioner::SaramaCompat,
        1,
    )
    .expect("a request");
    assert_eq!(placed.records[0].key, TraceId::try_new(&[2; 16]));
}
