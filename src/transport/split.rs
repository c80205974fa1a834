//! Pure. A request body that was too large for the peer in, two bodies that together hold the same items out.
//! Knows on which field numbers the items of each signal lie; does not know what is in them, nor who sends them.

use bytes::Bytes;

use crate::config::Signal;

/// Field numbers that lead one level closer to the items. Where a level has several, they are the arms of a `oneof`.
type Level = &'static [u32];

/// `resource_spans`, `scope_spans`, `spans`; logs are numbered alike.
const SPANS_OR_RECORDS: &[Level] = &[&[1], &[2], &[2]];
/// `resource_metrics`, `scope_metrics`, `metrics`, then gauge, sum, histogram, exponential histogram or summary, then `data_points`.
const POINTS: &[Level] = &[&[1], &[2], &[2], &[5, 7, 9, 10, 11], &[1]];

/// From here on a body is not split when its resource or scope is most of it: both halves would carry that along, nothing would
/// get small enough, and a megabyte of resource times a thousand spans would eat the memory.
const HEAVY: usize = 256 << 10;

/// Halves `body`, which holds `n_items` spans, log records or metric points, by size: between resources, else between scopes, else
/// between items. Enclosing fields, unknown ones too, go into both halves; items are copied as they are, never decoded.
/// `None` if there is nothing to split: a single item, or bytes that are no such message.
pub(crate) fn split(signal: Signal, body: &Bytes, n_items: u64) -> Option<[(Bytes, u64); 2]> {
    let levels = match signal {
        Signal::Traces | Signal::Logs => SPANS_OR_RECORDS,
        Signal::Metrics => POINTS,
    };
    let [first, second] = match between_resources(body, levels) {
        Some(halves) => halves,
        None => halve(body, levels)?.map(Bytes::from),
    };
    // The second half is what the first leaves, so that the books balance whatever the receiver counted.
    let n_first = count(&first, levels)?.min(n_items);
    Some([(first, n_first), (second, n_items - n_first)])
}

/// The usual large request has many resources and nothing else at the top: its halves are slices of it, without a copy.
fn between_resources(body: &Bytes, levels: &[Level]) -> Option<[Bytes; 2]> {
    let fields = fields(body)?;
    let children = levels.first()?;
    if fields.len() < 2 || fields.iter().any(|field| !field.is_child(children)) {
        return None;
    }
    let middle: usize =
        fields[..cut(&fields.iter().map(|field| field.raw.len()).collect::<Vec<_>>())].iter().map(|field| field.raw.len()).sum();
    Some([body.slice(..middle), body.slice(middle..)])
}

fn halve(message: &[u8], levels: &[Level]) -> Option<[Vec<u8>; 2]> {
    let (children, below) = levels.split_first()?;
    let fields = fields(message)?;
    let child_idxs: Vec<usize> = (0..fields.len()).filter(|&idx| fields[idx].is_child(children)).collect();
    let n_child_bytes: usize = child_idxs.iter().map(|&idx| fields[idx].raw.len()).sum();
    if message.len() > HEAVY && n_child_bytes < message.len() / 8 {
        return None;
    }
    match child_idxs[..] {
        [] => None,
        [only] => {
            let halves = halve(fields[only].content?, below)?;
            Some(halves.map(|half| {
                let mut wrapped = Vec::with_capacity(message.len() - n_child_bytes + half.len() + 12);
                for (idx, field) in fields.iter().enumerate() {
                    if idx == only {
                        put_varint(&mut wrapped, u64::from(field.number) << 3 | 2);
                        put_varint(&mut wrapped, half.len() as u64);
                        wrapped.extend_from_slice(&half);
                    } else {
                        wrapped.extend_from_slice(field.raw);
                    }
                }
                wrapped
            }))
        }
        // A oneof that occurs twice is merged by whoever reads it: taking it apart would change what it says.
        _ if children.len() > 1 => None,
        _ => {
            let first_of_second = child_idxs[cut(&child_idxs.iter().map(|&idx| fields[idx].raw.len()).collect::<Vec<_>>())];
            let n_first_bytes: usize = child_idxs.iter().filter(|&&idx| idx < first_of_second).map(|&idx| fields[idx].raw.len()).sum();
            let mut halves = [n_child_bytes - n_first_bytes, n_first_bytes].map(|n_others| Vec::with_capacity(message.len() - n_others));
            for (idx, field) in fields.iter().enumerate() {
                let in_first = !field.is_child(children) || idx < first_of_second;
                let in_second = !field.is_child(children) || idx >= first_of_second;
                for (half, is_in) in halves.iter_mut().zip([in_first, in_second]) {
                    if is_in {
                        half.extend_from_slice(field.raw);
                    }
                }
            }
            Some(halves)
        }
    }
}

/// Where to cut a row of sizes so that both sides are as equal as can be; at least one stays on either side.
fn cut(sizes: &[usize]) -> usize {
    let total: usize = sizes.iter().sum();
    let mut before = 0;
    for (idx, size) in sizes.iter().enumerate() {
        // The one across the middle goes where more of it lies.
        if before + size / 2 >= total / 2 {
            return idx.clamp(1, sizes.len() - 1);
        }
        before += size;
    }
    sizes.len() - 1
}

/// Items of a message.
fn count(message: &[u8], levels: &[Level]) -> Option<u64> {
    let Some((children, below)) = levels.split_first() else { return Some(1) };
    fields(message)?.iter().filter(|field| field.is_child(children)).map(|field| count(field.content?, below)).sum()
}

// === the wire ===

struct Field<'a> {
    number: u32,
    /// Tag, length and content, as they came.
    raw: &'a [u8],
    /// Of length-delimited fields.
    content: Option<&'a [u8]>,
}

impl Field<'_> {
    fn is_child(&self, children: &[u32]) -> bool {
        self.content.is_some() && children.contains(&self.number)
    }
}

fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let start = rest;
        let (number, content) = skip_field(&mut rest, 0)?;
        fields.push(Field { number, raw: &start[..start.len() - rest.len()], content });
    }
    Some(fields)
}

/// Steps over one field. `None` for what is no field; the receiver has validated the bytes, so that is theory.
fn skip_field<'a>(rest: &mut &'a [u8], depth: u32) -> Option<(u32, Option<&'a [u8]>)> {
    let tag = varint(rest)?;
    let number = u32::try_from(tag >> 3).ok()?;
    let content = match tag & 7 {
        0 => {
            varint(rest)?;
            None
        }
        1 => rest.split_off(..8).and(None),
        2 => {
            let len = usize::try_from(varint(rest)?).ok()?;
            Some(rest.split_off(..len)?)
        }
        3 if depth < 100 => {
            loop {
                let mut ahead = *rest;
                let inner = varint(&mut ahead)?;
                if inner == (tag & !7 | 4) {
                    *rest = ahead;
                    break;
                }
                skip_field(rest, depth + 1)?;
            }
            None
        }
        5 => rest.split_off(..4).and(None),
        _ => return None,
    };
    Some((number, content))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
    use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
    use opentelemetry_proto::tonic::metrics::v1::{Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, metric};
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
    use proptest::prelude::{Strategy, any, prop, proptest};
    use prost::Message;

    use super::*;

    fn resource(name: &str) -> Option<Resource> {
        let value = Some(AnyValue { value: Some(any_value::Value::StringValue(name.to_owned())) });
        Some(Resource {
            attributes: vec![KeyValue { key: "service.name".to_owned(), value, ..KeyValue::default() }],
            ..Resource::default()
        })
    }

    fn scope(name: &str) -> Option<InstrumentationScope> {
        Some(InstrumentationScope { name: name.to_owned(), ..InstrumentationScope::default() })
    }

    /// Names of spans by scope by resource.
    type Shape = Vec<Vec<Vec<String>>>;

    fn spans(shape: &Shape) -> ExportTraceServiceRequest {
        let scope_spans = |scopes: &Vec<Vec<String>>| {
            let spans = |names: &Vec<String>| names.iter().map(|name| Span { name: name.clone(), ..Span::default() }).collect();
            scopes
                .iter()
                .enumerate()
                .map(|(idx, names)| ScopeSpans { scope: scope(&format!("scope{idx}")), spans: spans(names), schema_url: "url".to_owned() })
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

    /// Every span with all that encloses it.
    fn flat(body: &[u8]) -> Vec<String> {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        let mut flat = Vec::new();
        for resource_spans in request.resource_spans {
            for scope_spans in resource_spans.scope_spans {
                for span in scope_spans.spans {
                    flat.push(format!(
                        "{:?} {} {:?} {} {span:?}",
                        resource_spans.resource, resource_spans.schema_url, scope_spans.scope, scope_spans.schema_url
                    ));
                }
            }
        }
        flat
    }

    /// Splits until nothing can be split; checks every count on the way.
    fn split_up(signal: Signal, body: Bytes, n_items: u64, smallest: &mut Vec<(Bytes, u64)>) {
        match split(signal, &body, n_items) {
            Some(halves) => {
                assert_eq!(halves.iter().map(|(_, n)| n).sum::<u64>(), n_items);
                halves.into_iter().for_each(|(half, n)| split_up(signal, half, n, smallest));
            }
            None => smallest.push((body, n_items)),
        }
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        prop::collection::vec(prop::collection::vec(prop::collection::vec("[a-z]{0,40}", 0..6), 0..4), 0..4)
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
            assert_eq!(smallest.iter().flat_map(|(part, _)| flat(part)).collect::<Vec<_>>(), flat(&body));
        }

        #[test]
        fn bytes_that_are_no_request_are_left_alone_or_cut_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
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
    fn many_resources_are_cut_without_a_copy() {
        let body: Bytes = spans(&vec![vec![vec!["a".to_owned()]]; 4]).encode_to_vec().into();
        let [(first, n_first), (second, n_second)] = split(Signal::Traces, &body, 4).unwrap();
        assert_eq!((n_first, n_second), (2, 2));
        assert_eq!([first.as_ptr(), second.as_ptr()], [body.as_ptr(), body[first.len()..].as_ptr()]);
    }

    #[test]
    fn unknown_fields_of_what_encloses_go_into_both_halves() {
        let scope_spans =
            ScopeSpans { spans: vec![Span { name: "a".to_owned(), ..Span::default() }; 2], ..ScopeSpans::default() }.encode_to_vec();
        // Field 77 as a group that holds field 1, then the scope, then field 78, fixed 32 bits.
        let mut resource_spans = vec![0xeb, 0x04, 0x08, 0x05, 0xec, 0x04, 0x12, u8::try_from(scope_spans.len()).unwrap()];
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
        assert_eq!(split(Signal::Traces, &request.encode_to_vec().into(), 2), None);
    }

    #[test]
    fn log_records_are_split_like_spans() {
        let log_records = ["a", "b", "c"].map(|name| LogRecord { event_name: name.to_owned(), ..LogRecord::default() }).to_vec();
        let scope_logs = vec![ScopeLogs { scope: scope("s"), log_records, ..ScopeLogs::default() }];
        let request = ExportLogsServiceRequest {
            resource_logs: vec![ResourceLogs { resource: resource("r"), scope_logs, ..ResourceLogs::default() }],
        };
        let mut smallest = Vec::new();
        split_up(Signal::Logs, request.encode_to_vec().into(), 3, &mut smallest);
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
        let point = |time_unix_nano| NumberDataPoint { time_unix_nano, ..NumberDataPoint::default() };
        let sum = Sum { data_points: vec![point(1), point(2), point(3)], aggregation_temporality: 2, is_monotonic: true };
        let gauge = Gauge { data_points: vec![point(4)] };
        let metrics = vec![
            Metric { name: "calls".to_owned(), data: Some(metric::Data::Sum(sum)), ..Metric::default() },
            Metric { name: "load".to_owned(), data: Some(metric::Data::Gauge(gauge)), ..Metric::default() },
        ];
        let scope_metrics = vec![ScopeMetrics { scope: scope("s"), metrics, ..ScopeMetrics::default() }];
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics { resource: resource("r"), scope_metrics, ..ResourceMetrics::default() }],
        };
        let mut smallest = Vec::new();
        split_up(Signal::Metrics, request.encode_to_vec().into(), 4, &mut smallest);
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
                Some(metric::Data::Sum(sum)) => {
                    (metric.name, sum.is_monotonic, sum.data_points.iter().map(|point| point.time_unix_nano).collect::<Vec<_>>())
                }
                Some(metric::Data::Gauge(gauge)) => {
                    (metric.name, false, gauge.data_points.iter().map(|point| point.time_unix_nano).collect())
                }
                _ => unreachable!("only these were sent"),
            })
            .collect();
        let expected = [("calls", true, 1), ("calls", true, 2), ("calls", true, 3), ("load", false, 4)];
        assert_eq!(metrics, expected.map(|(name, is_monotonic, time)| (name.to_owned(), is_monotonic, vec![time])));
    }
}
