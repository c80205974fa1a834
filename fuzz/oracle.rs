//! Computes the expected result of the scan from the messages that prost decodes. The computation
//! is slow and simple, and has no limits for huge spans.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::ScannedSpans;
use otlp::span::{Attribute, KeyId, KeySet, Retention, ScopeHash, SpanId, Status, TraceId, Value};
use prost::Message;

pub(crate) struct Expected {
    pub(crate) n_spans: usize,
    n_without_ids: usize,
    claims_own_scope: bool,
    spans: Vec<(Span, Resource, ScopeHash)>,
}

/// Returns the expected result of the scan, or an error if prost rejects the body or an id has the
/// wrong length.
pub(crate) fn scan(body: &[u8]) -> Result<Expected, String> {
    let request = ExportTraceServiceRequest::decode(body).map_err(|error| error.to_string())?;
    let mut expected = Expected {
        n_spans: 0,
        n_without_ids: 0,
        claims_own_scope: false,
        spans: Vec::new(),
    };
    for resource_spans in request.resource_spans {
        let resource = resource_spans.resource.unwrap_or_default();
        for scope_spans in resource_spans.scope_spans {
            let scope = scope_spans.scope.unwrap_or_default();
            let scope = ScopeHash::new(scope.name.as_bytes());
            expected.claims_own_scope |= scope == ScopeHash::OWN;
            for span in scope_spans.spans {
                expected.n_spans += 1;
                check_ids(&span)?;
                let has_ids = [&span.trace_id, &span.span_id]
                    .iter()
                    .all(|id| id.iter().any(|&byte| byte != 0));
                if has_ids {
                    expected.spans.push((span, resource.clone(), scope));
                } else {
                    expected.n_without_ids += 1;
                }
            }
        }
    }
    Ok(expected)
}

fn check_ids(span: &Span) -> Result<(), String> {
    let trace_ids =
        std::iter::once(&span.trace_id).chain(span.links.iter().map(|link| &link.trace_id));
    let span_ids = [&span.span_id, &span.parent_span_id]
        .into_iter()
        .chain(span.links.iter().map(|link| &link.span_id));
    let good = trace_ids.into_iter().all(|id| matches!(id.len(), 0 | 16))
        && span_ids.into_iter().all(|id| matches!(id.len(), 0 | 8));
    if good { Ok(()) } else { Err("id length".to_owned()) }
}

pub(crate) fn compare(scanned: &ScannedSpans, expected: &Expected, keys: &KeySet) {
    assert_eq!(scanned.n_spans, expected.n_spans);
    assert_eq!(scanned.batch.n_without_ids, expected.n_without_ids);
    assert_eq!(scanned.batch.spans.len(), expected.spans.len());
    assert_eq!(scanned.claims_own_scope, expected.claims_own_scope);
    for (span, (expected, resource, scope)) in scanned.batch.spans.iter().zip(&expected.spans) {
        assert_eq!(span.scope, *scope);
        assert_eq!(Some(span.trace_id), TraceId::try_new(&expected.trace_id));
        assert_eq!(Some(span.span_id), SpanId::try_new(&expected.span_id));
        assert_eq!(span.parent_id, SpanId::try_new(&expected.parent_span_id));
        assert_eq!(span.start_unix_nanos, expected.start_time_unix_nano);
        assert_eq!(span.end_unix_nanos, expected.end_time_unix_nano);
        assert_eq!(span.flags, expected.flags as u16);
        let n_attributes = expected.attributes.len().min(u16::MAX.into());
        assert_eq!(usize::from(span.n_attributes), n_attributes);
        let status = match expected.status.as_ref().map_or(0, |status| status.code) {
            1 => Status::Ok,
            2 => Status::Error,
            _ => Status::Unset,
        };
        assert_eq!(span.status, status);
        assert_eq!(span.kept.index().name(), expected.name);
        assert_eq!(span.kept.index().trace_state(), expected.trace_state);
        compare_span_attributes(span.kept.index().attributes(), &expected.attributes, keys);
        let expected_events = expected.events.iter().filter_map(|event| {
            let kept = keys
                .find(event.name.as_bytes())
                .filter(|kept| kept.suffix.is_empty())?;
            Some((kept.key, &event.attributes))
        });
        let expected_events: Vec<_> = expected_events.collect();
        assert_eq!(span.kept.index().events().count(), expected_events.len());
        for (event, (name, attributes)) in span.kept.index().events().zip(expected_events) {
            assert_eq!(event.name, name);
            compare_attributes(event.attributes(), attributes, keys);
        }

        // Compare the encoded bytes, because NaN is not equal to itself.
        assert_eq!(
            Resource::decode(&*span.resource.encoded)
                .unwrap()
                .encode_to_vec(),
            resource.encode_to_vec()
        );
        compare_attributes(
            span.resource.kept.index().attributes(),
            &resource.attributes,
            keys,
        );
        assert_eq!(span.resource.kept.index().name(), "");
        let service = resource
            .attributes
            .iter()
            .find(|attribute| attribute.key == "service.name");
        let service = service.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
        assert_eq!(
            &*span.resource.service,
            if let Some(Any::StringValue(name)) = service { name } else { "" }
        );
    }
    for (i, span) in scanned.batch.spans.iter().enumerate() {
        for other in &scanned.batch.spans[..i] {
            let is_same = std::ptr::eq(&*span.resource, &*other.resource);
            assert_eq!(
                is_same,
                span.resource.encoded == other.resource.encoded,
                "equal resources are shared"
            );
        }
    }
}

/// Compares the attributes of a span. The scan stores model requests after all other attributes.
fn compare_span_attributes<'a>(
    actual: impl Iterator<Item = Attribute<'a>>,
    expected: &[KeyValue],
    keys: &KeySet,
) {
    let is_request = |attribute: &&KeyValue| {
        let kept = keys.find(attribute.key.as_bytes());
        kept.is_some_and(|kept| kept.rule == Retention::Request)
    };
    let requests = expected.iter().filter(is_request);
    let requests = requests.filter_map(|request| expected_attribute(request, keys));
    let others = expected.iter().filter(|attribute| !is_request(attribute));
    let expected = others.filter_map(|attribute| expected_attribute(attribute, keys));
    assert_eq!(
        actual.map(as_expected).collect::<Vec<_>>(),
        expected.chain(requests).collect::<Vec<_>>()
    );
}

/// Compares attributes of a resource or event. The scan stores no model requests for them.
fn compare_attributes<'a>(
    actual: impl Iterator<Item = Attribute<'a>>,
    expected: &[KeyValue],
    keys: &KeySet,
) {
    let is_request = |key: &str| {
        let kept = keys.find(key.as_bytes());
        kept.is_some_and(|kept| kept.rule == Retention::Request)
    };
    let expected = expected
        .iter()
        .filter(|attribute| !is_request(&attribute.key))
        .filter_map(|attribute| expected_attribute(attribute, keys));
    assert_eq!(
        actual.map(as_expected).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}

fn as_expected(attribute: Attribute<'_>) -> (KeyId, String, String, bool) {
    (
        attribute.key,
        attribute.suffix.to_owned(),
        text_of(attribute.value),
        attribute.cut,
    )
}

/// Returns a value as text that includes its type.
fn text_of(value: Value<'_>) -> String {
    match value {
        Value::Str(text) => format!("str {text}"),
        Value::Json(text) => format!("json {text}"),
        Value::Bytes(text) => format!("bytes {text}"),
        Value::Bool(value) => format!("bool {value}"),
        Value::Int(value) => format!("int {value}"),
        Value::Double(value) => format!("double {:x}", value.to_bits()),
    }
}

fn expected_attribute(
    attribute: &KeyValue,
    keys: &KeySet,
) -> Option<(KeyId, String, String, bool)> {
    let kept = keys.find(attribute.key.as_bytes())?;
    let suffix = std::str::from_utf8(kept.suffix).unwrap();
    if suffix.len() > 255 {
        return None;
    }
    let value = attribute.value.as_ref()?.value.as_ref()?;
    let limit = match kept.rule {
        Retention::Reply if kept.suffix.is_empty() => keys.max_messages_size,
        Retention::Request => keys.max_messages_size,
        _ => keys.max_value_size,
    };
    let (text, cut) = match value {
        Any::StringValueStrindex(_) => return None,
        _ if kept.rule == Retention::Presence => ("str ".to_owned(), false),
        Any::StringValue(text) if kept.rule == Retention::Request && text.is_empty() => {
            return None;
        }
        Any::ArrayValue(_) | Any::KvlistValue(_)
            if matches!(kept.rule, Retention::Reply | Retention::Request) && !suffix.is_empty() =>
        {
            return None;
        }
        Any::BytesValue(_) | Any::BoolValue(_) | Any::IntValue(_) | Any::DoubleValue(_)
            if kept.rule == Retention::Request =>
        {
            return None;
        }
        Any::StringValue(text) => (format!("str {}", head(text, limit)), text.len() > limit),
        Any::BytesValue(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            (format!("bytes {}", head(&text, limit)), text.len() > limit)
        }
        Any::BoolValue(value) => (text_of(Value::Bool(*value)), false),
        Any::IntValue(value) => (text_of(Value::Int(*value)), false),
        Any::DoubleValue(value) => (text_of(Value::Double(*value)), false),
        Any::ArrayValue(_) | Any::KvlistValue(_) => {
            let json = json_of(value);
            (format!("json {}", head(&json, limit)), json.len() > limit)
        }
    };
    let is_message = matches!(kept.rule, Retention::Reply | Retention::Request);
    if is_message && !mentions_call(attribute) && !speaks_of_tools(suffix) {
        return None;
    }
    Some((kept.key, suffix.to_owned(), text, cut))
}

/// Returns true if a text mentions tools in a spelling that the captures or the generator use.
fn speaks_of_tools(text: &str) -> bool {
    text.contains("tool_call") || text.contains("toolCall") || text.contains("toolResult")
}

fn mentions_call(attribute: &KeyValue) -> bool {
    let value = attribute
        .value
        .as_ref()
        .and_then(|value| value.value.as_ref());
    let messages = match value {
        Some(Any::StringValue(text)) => text.clone(),
        Some(Any::BytesValue(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(value @ (Any::ArrayValue(_) | Any::KvlistValue(_))) => json_of(value),
        _ => String::new(),
    };
    speaks_of_tools(&messages)
}

fn head(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end))
        .unwrap();
    &text[..end]
}

fn json_of(value: &Any) -> String {
    let of_any = |any: &AnyValue| any.value.as_ref().map_or("null".to_owned(), json_of);
    match value {
        Any::StringValue(text) => serde_json::to_string(text).unwrap(),
        Any::BoolValue(value) => value.to_string(),
        Any::IntValue(value) => value.to_string(),
        Any::DoubleValue(value) if value.is_nan() => "\"NaN\"".to_owned(),
        Any::DoubleValue(value) if value.is_infinite() => {
            if *value > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" }.to_owned()
        }
        Any::DoubleValue(value) => serde_json::to_string(value).unwrap(),
        Any::BytesValue(bytes) => format!("\"{}\"", data_encoding::BASE64.encode(bytes)),
        Any::StringValueStrindex(_) => "null".to_owned(),
        Any::ArrayValue(array) => format!(
            "[{}]",
            array
                .values
                .iter()
                .map(of_any)
                .collect::<Vec<_>>()
                .join(",")
        ),
        Any::KvlistValue(list) => {
            let members = list.values.iter().map(|member| {
                let value = member.value.as_ref().map_or("null".to_owned(), of_any);
                format!("{}:{value}", serde_json::to_string(&member.key).unwrap())
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
    }
}

pub(crate) fn count_points(request: &ExportMetricsServiceRequest) -> usize {
    let scopes = request
        .resource_metrics
        .iter()
        .flat_map(|resource| &resource.scope_metrics);
    let metrics = scopes.flat_map(|scope| &scope.metrics);
    metrics
        .map(|metric| match &metric.data {
            None => 0,
            Some(Data::Gauge(data)) => data.data_points.len(),
            Some(Data::Sum(data)) => data.data_points.len(),
            Some(Data::Histogram(data)) => data.data_points.len(),
            Some(Data::ExponentialHistogram(data)) => data.data_points.len(),
            Some(Data::Summary(data)) => data.data_points.len(),
        })
        .sum()
}
