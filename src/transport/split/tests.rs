//! Tests `split` on requests built with the generated types and on arbitrary bytes. The tests do
//! not prove anything about peers.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, metric,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use proptest::prelude::{Strategy, any, prop, proptest};
use prost::Message;

use super::*;

fn resource(name: &str) -> Option<Resource> {
    let value = Some(AnyValue {
        value: Some(any_value::Value::StringValue(name.to_owned())),
    });
    Some(Resource {
        attributes: vec![KeyValue {
            key: "service.name".to_owned(),
            value,
            ..KeyValue::default()
        }],
        ..Resource::default()
    })
}

fn scope(name: &str) -> Option<InstrumentationScope> {
    Some(InstrumentationScope {
        name: name.to_owned(),
        ..InstrumentationScope::default()
    })
}

/// The names of the spans of each scope of each resource.
type Shape = Vec<Vec<Vec<String>>>;

fn spans(shape: &Shape) -> ExportTraceServiceRequest {
    let scope_spans = |scopes: &Vec<Vec<String>>| {
        let spans = |names: &Vec<String>| {
            names
                .iter()
                .map(|name| Span {
                    name: name.clone(),
                    ..Span::default()
                })
                .collect()
        };
        scopes
            .iter()
            .enumerate()
            .map(|(idx, names)| ScopeSpans {
                scope: scope(&format!("scope{idx}")),
                spans: spans(names),
                schema_url: "url".to_owned(),
            })
            .collect()
    };
    let resource_spans = shape
        .iter()
        .enumerate()
        .map(|(idx, scopes)| ResourceSpans {
            resource: resource(&format!("service{idx}")),
            scope_spans: scope_spans(scopes),
            schema_url: "url".to_owned(),
        })
        .collect();
    ExportTraceServiceRequest { resource_spans }
}

/// Returns each span with everything that encloses it.
fn flat(body: &[u8]) -> Vec<String> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let mut flat = Vec::new();
    for resource_spans in request.resource_spans {
        for scope_spans in resource_spans.scope_spans {
            for span in scope_spans.spans {
                flat.push(format!(
                    "{:?} {} {:?} {} {span:?}",
                    resource_spans.resource,
                    resource_spans.schema_url,
                    scope_spans.scope,
                    scope_spans.schema_url
                ));
            }
        }
    }
    flat
}

/// Splits until nothing can be split, and checks every count at each step.
fn split_up(signal: Signal, body: Bytes, n_items: u64, smallest: &mut Vec<(Bytes, u64)>) {
    match split(signal, &body, n_items) {
        Some(halves) => {
            assert_eq!(halves.iter().map(|(_, n)| n).sum::<u64>(), n_items);
            halves
                .into_iter()
                .for_each(|(half, n)| split_up(signal, half, n, smallest));
        }
        None => smallest.push((body, n_items)),
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop::collection::vec(
        prop::collection::vec(prop::collection::vec("[a-z]{0,40}", 0..6), 0..4),
        0..4,
    )
}

proptest! {
    #[test]
    fn the_smallest_parts_hold_every_span_once_under_its_own_resource_and_scope(shape in shapes()) {
        let body: Bytes = spans(&shape).encode_to_vec().into();
        let n_spans = shape.iter().flatten().flatten().count() as u64;
        let mut smallest = Vec::new();
        split_up(Signal::Traces, body.clone(), n_spans, &mut smallest);
        for (part, n_items) in &smallest {
            assert!(*n_items <= 1, "a part with {n_items} spans could still be split");
            assert_eq!(flat(part).len() as u64, *n_items);
        }
        let spans: Vec<_> = smallest.iter().flat_map(|(part, _)| flat(part)).collect();
        assert_eq!(spans, flat(&body));
    }

    #[test]
    fn bytes_that_are_no_request_are_left_alone_or_cut_but_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        for signal in Signal::ALL {
            let _ = split(signal, &bytes.clone().into(), 3);
        }
    }
}

#[test]
fn a_row_is_cut_in_the_middle_of_its_bytes() {
    assert_eq!(cut(&[10, 10, 10, 10]), 2);
    assert_eq!(cut(&[100, 1, 1, 1]), 1);
    assert_eq!(cut(&[1, 1, 1, 100]), 3);
    assert_eq!(cut(&[0, 0]), 1);
}

#[test]
fn many_resources_are_cut_between_resources() {
    let body: Bytes = spans(&vec![vec![vec!["a".to_owned()]]; 4])
        .encode_to_vec()
        .into();
    let [(first, n_first), (second, n_second)] = split(Signal::Traces, &body, 4).unwrap();
    assert_eq!((n_first, n_second), (2, 2));
    assert_eq!([first, second].concat(), body);
}

#[test]
fn unknown_fields_of_enclosing_messages_go_into_both_halves() {
    let scope_spans = ScopeSpans {
        spans: vec![
            Span {
                name: "a".to_owned(),
                ..Span::default()
            };
            2
        ],
        ..ScopeSpans::default()
    }
    .encode_to_vec();
    // Write field 77 as a group that contains field 1, then the scope, then field 78, a fixed 32
    // bits.
    let mut resource_spans = vec![
        0xeb,
        0x04,
        0x08,
        0x05,
        0xec,
        0x04,
        0x12,
        u8::try_from(scope_spans.len()).unwrap(),
    ];
    resource_spans.extend_from_slice(&scope_spans);
    resource_spans.extend_from_slice(&[0xf5, 0x04, 1, 2, 3, 4]);
    let mut body = vec![0x0a, u8::try_from(resource_spans.len()).unwrap()];
    body.extend_from_slice(&resource_spans);
    for (half, n_items) in split(Signal::Traces, &body.into(), 2).unwrap() {
        assert_eq!((n_items, flat(&half).len()), (1, 1));
        assert_eq!(half[2..7], [0xeb, 0x04, 0x08, 0x05, 0xec]);
        assert!(half.ends_with(&[0xf5, 0x04, 1, 2, 3, 4]));
    }
}

#[test]
fn a_resource_that_is_all_the_weight_is_not_multiplied() {
    let mut request = spans(&vec![vec![vec!["a".to_owned(), "b".to_owned()]]]);
    request.resource_spans[0].resource = resource(&"x".repeat(HEAVY));
    assert_eq!(
        split(Signal::Traces, &request.encode_to_vec().into(), 2),
        None
    );
}

#[test]
fn log_records_are_split_like_spans() {
    let log_records = ["a", "b", "c"]
        .map(|name| LogRecord {
            event_name: name.to_owned(),
            ..LogRecord::default()
        })
        .to_vec();
    let scope_logs = vec![ScopeLogs {
        scope: scope("s"),
        log_records,
        ..ScopeLogs::default()
    }];
    let request = ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: resource("r"),
            scope_logs,
            ..ResourceLogs::default()
        }],
    };
    let mut smallest = Vec::new();
    split_up(
        Signal::Logs,
        request.encode_to_vec().into(),
        3,
        &mut smallest,
    );
    let names: Vec<_> = smallest
        .iter()
        .map(|(part, _)| {
            ExportLogsServiceRequest::decode(part.clone())
                .unwrap()
                .resource_logs
                .remove(0)
                .scope_logs
                .remove(0)
                .log_records
                .remove(0)
                .event_name
        })
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[test]
fn one_metric_with_many_points_is_split_between_points() {
    let point = |time_unix_nano| NumberDataPoint {
        time_unix_nano,
        ..NumberDataPoint::default()
    };
    let sum = Sum {
        data_points: vec![point(1), point(2), point(3)],
        aggregation_temporality: 2,
        is_monotonic: true,
    };
    let gauge = Gauge {
        data_points: vec![point(4)],
    };
    let metrics = vec![
        Metric {
            name: "calls".to_owned(),
            data: Some(metric::Data::Sum(sum)),
            ..Metric::default()
        },
        Metric {
            name: "load".to_owned(),
            data: Some(metric::Data::Gauge(gauge)),
            ..Metric::default()
        },
    ];
    let scope_metrics = vec![ScopeMetrics {
        scope: scope("s"),
        metrics,
        ..ScopeMetrics::default()
    }];
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: resource("r"),
            scope_metrics,
            ..ResourceMetrics::default()
        }],
    };
    let mut smallest = Vec::new();
    split_up(
        Signal::Metrics,
        request.encode_to_vec().into(),
        4,
        &mut smallest,
    );
    let metrics: Vec<_> = smallest
        .iter()
        .map(|(part, _)| {
            ExportMetricsServiceRequest::decode(part.clone())
                .unwrap()
                .resource_metrics
                .remove(0)
                .scope_metrics
                .remove(0)
                .metrics
                .remove(0)
        })
        .map(|metric| match metric.data {
            Some(metric::Data::Sum(sum)) => (
                metric.name,
                sum.is_monotonic,
                sum.data_points
                    .iter()
                    .map(|point| point.time_unix_nano)
                    .collect::<Vec<_>>(),
            ),
            Some(metric::Data::Gauge(gauge)) => (
                metric.name,
                false,
                gauge
                    .data_points
                    .iter()
                    .map(|point| point.time_unix_nano)
                    .collect(),
            ),
            _ => unreachable!("only these were sent"),
        })
        .collect();
    let expected = [
        ("calls", true, 1),
        ("calls", true, 2),
        ("calls", true, 3),
        ("load", false, 4),
    ];
    assert_eq!(
        metrics,
        expected.map(|(name, is_monotonic, time)| (name.to_owned(), is_monotonic, vec![time]))
    );
}
