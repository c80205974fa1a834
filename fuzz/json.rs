//! Tests OTLP/JSON. After transcoding, a document must have the content that prost-reflect, which
//! implements protobuf's JSON mapping, reads from it (with ids converted to base64). Input of real
//! SDKs that deviates from the mapping must be read as intended. These tests do not prove that the
//! protobuf is read correctly; the other files of this folder do.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::{json, scan};
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use crate::captures::{self, Signal};
use crate::corpus;
use crate::generate::{Dice, Generator, descriptors, request_descriptor};

#[test]
fn captures_mean_the_same_as_protobuf() {
    for capture in captures::json() {
        let message = request_descriptor(&descriptors(), capture.signal);
        let mut value: Value = serde_json::from_slice(&capture.body).unwrap();
        ids_to_base64(&mut value);
        let options = prost_reflect::DeserializeOptions::new().deny_unknown_fields(false);
        let expected =
            DynamicMessage::deserialize_with_options(message.clone(), value, &options).unwrap();
        let transcoded = captures::transcode(&capture)
            .unwrap_or_else(|error| panic!("{}: {error}", capture.name));
        let expected =
            DynamicMessage::decode(message.clone(), expected.encode_to_vec().as_slice()).unwrap();
        assert_eq!(
            DynamicMessage::decode(message, transcoded.as_slice()).unwrap(),
            expected,
            "{}",
            capture.name
        );
        assert_eq!(
            transcoded.len(),
            expected.encoded_len(),
            "{}: no longer than needed",
            capture.name
        );
        match capture.signal {
            Signal::Traces => {
                let request = ExportTraceServiceRequest::decode(transcoded.as_slice()).unwrap();
                assert!(
                    request.resource_spans[0].scope_spans[0]
                        .spans
                        .iter()
                        .all(|span| span.trace_id.len() == 16)
                );
            }
            Signal::Logs => assert!(
                !ExportLogsServiceRequest::decode(transcoded.as_slice())
                    .unwrap()
                    .resource_logs
                    .is_empty()
            ),
            Signal::Metrics => assert!(
                !ExportMetricsServiceRequest::decode(transcoded.as_slice())
                    .unwrap()
                    .resource_metrics
                    .is_empty()
            ),
        }
    }
}

fn ids_to_base64(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text)
                        if ["traceId", "spanId", "parentSpanId"].contains(&name.as_str()) =>
                    {
                        let id = data_encoding::HEXLOWER_PERMISSIVE
                            .decode(text.as_bytes())
                            .unwrap();
                        *text = data_encoding::BASE64.encode(&id);
                    }
                    other => ids_to_base64(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(ids_to_base64),
        _ => {}
    }
}

#[test]
fn messages_of_every_kind_mean_what_prost_reflect_reads() {
    let generator = Generator::new();
    bolero::check!()
        .with_iterations(600)
        .with_max_len(64)
        .for_each(|recipe: &[u8]| {
            let mut dice = Dice::new(recipe);
            for signal in [Signal::Traces, Signal::Logs, Signal::Metrics] {
                let message = request_descriptor(&descriptors(), signal);
                let request = generator.request(signal, &mut dice);
                let Ok(request) = DynamicMessage::decode(message.clone(), request.as_slice())
                else {
                    continue;
                };
                let mut value = serde_json::to_value(&request).unwrap();
                ids_of_right_length(&mut value);
                let body = value.to_string();
                let transcoded = match signal {
                    Signal::Traces => json::traces(body.as_bytes()),
                    Signal::Logs => json::logs(body.as_bytes()),
                    Signal::Metrics => json::metrics(body.as_bytes()),
                };
                let transcoded = match transcoded {
                    Ok(transcoded) => transcoded,
                    // The JSON parser allows fewer levels than protobuf does.
                    Err(error) if error.to_string().contains("recursion limit") => continue,
                    Err(error) => panic!("{error}: {body}"),
                };
                ids_to_base64(&mut value);
                let expected = DynamicMessage::deserialize(message.clone(), value).unwrap();
                let read = DynamicMessage::decode(message, transcoded.as_slice()).unwrap();
                assert_eq!(read.encode_to_vec(), expected.encode_to_vec(), "{body}");
            }
        });
}

fn ids_of_right_length(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match name.as_str() {
                    "traceId" => *member = json!("5b8efff798038103d269b633813fc60c"),
                    "spanId" | "parentSpanId" => *member = json!("eee19b7ec3c1b174"),
                    _ => ids_of_right_length(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(ids_of_right_length),
        _ => {}
    }
}

fn request_of(span: Value) -> Vec<u8> {
    json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [span] }] }] })
        .to_string()
        .into_bytes()
}

fn span_of(span: Value) -> Span {
    let transcoded = json::traces(&request_of(span)).unwrap();
    let mut request = ExportTraceServiceRequest::decode(transcoded.as_slice()).unwrap();
    request
        .resource_spans
        .remove(0)
        .scope_spans
        .remove(0)
        .spans
        .remove(0)
}

/// Returns the decoded value of an attribute whose OTLP/JSON value is `value`.
fn value_of(value: Value) -> Option<Any> {
    let span = span_of(json!({ "attributes": [{ "key": "k", "value": value }] }));
    assert_eq!(span.attributes[0].key, "k");
    span.attributes.into_iter().next()?.value?.value
}

#[test]
fn ids_are_hexadecimal_in_either_case() {
    let lower = span_of(json!({
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "parentSpanId": "",
    }));
    let upper = span_of(json!({
        "traceId": "5B8EFFF798038103D269B633813FC60C",
        "spanId": "EEE19B7EC3C1B174",
        "parentSpanId": null,
    }));
    assert_eq!(lower, upper);
    assert_eq!(lower.trace_id[..4], [0x5b, 0x8e, 0xff, 0xf7]);
    assert!(lower.parent_span_id.is_empty());
    let snake = span_of(
        json!({ "trace_id": "5b8efff798038103d269b633813fc60c", "span_id": "eee19b7ec3c1b174" }),
    );
    assert_eq!(snake, lower);
}

#[test]
fn numbers_may_be_strings_and_times_may_be_floats() {
    let span = span_of(json!({
        "startTimeUnixNano": "18446744073709551615",
        "endTimeUnixNano": 1_795_000_000_000_000_001_u64,
        "flags": "257",
    }));
    assert_eq!(
        (
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.flags
        ),
        (u64::MAX, 1_795_000_000_000_000_001, 257)
    );
    assert_eq!(
        span_of(json!({ "startTimeUnixNano": 1.795e18 })).start_time_unix_nano,
        1_795_000_000_000_000_000
    );
    assert_eq!(
        value_of(json!({ "intValue": "9007199254740993" })),
        Some(Any::IntValue(9_007_199_254_740_993))
    );
    assert_eq!(value_of(json!({ "intValue": -7 })), Some(Any::IntValue(-7)));
    assert_eq!(
        value_of(json!({ "intValue": 0 })),
        Some(Any::IntValue(0)),
        "a zero in a oneof is not the same as nothing"
    );
    assert_eq!(
        value_of(json!({ "doubleValue": 3 })),
        Some(Any::DoubleValue(3.0))
    );
    assert_eq!(
        value_of(json!({ "doubleValue": "-Infinity" })),
        Some(Any::DoubleValue(f64::NEG_INFINITY))
    );
    assert!(matches!(
        value_of(json!({ "doubleValue": "NaN" })),
        Some(Any::DoubleValue(value)) if value.is_nan(),
    ));
}

#[test]
fn enums_may_be_names() {
    let span =
        span_of(json!({ "kind": "SPAN_KIND_CLIENT", "status": { "code": "STATUS_CODE_ERROR" } }));
    assert_eq!((span.kind, span.status.unwrap().code), (3, 2));
    assert_eq!(span_of(json!({ "kind": 4 })).kind, 4);
    assert_eq!(
        span_of(json!({ "kind": 77 })).kind,
        77,
        "a number nobody knows is handed on"
    );
}

#[test]
fn nulls_are_tolerated_anywhere() {
    let span = span_of(json!({
        "traceId": null,
        "parentSpanId": null,
        "name": null,
        "kind": null,
        "startTimeUnixNano": null,
        "status": null,
        "links": null,
        "events": [{ "name": "e", "attributes": null }],
        "attributes": [
            { "key": "a", "value": null },
            { "key": "b", "value": { "stringValue": null } },
            { "key": null, "value": { "intValue": null, "stringValue": "x" } },
        ],
    }));
    assert_eq!(span.events[0].name, "e");
    assert_eq!(span.attributes.len(), 3);
    assert_eq!(span.attributes[1].value.as_ref().unwrap().value, None);
    assert_eq!(
        span.attributes[2].value.as_ref().unwrap().value,
        Some(Any::StringValue("x".to_owned()))
    );
    for empty in [
        json!({}),
        json!({ "resourceSpans": null }),
        json!({ "resourceSpans": [] }),
    ] {
        assert_eq!(json::traces(empty.to_string().as_bytes()).unwrap(), b"");
    }
    // A null item retains its position.
    let array = value_of(
        json!({ "arrayValue": { "values": [{ "intValue": 1 }, null, { "intValue": 3 }] } }),
    );
    let Some(Any::ArrayValue(array)) = array else {
        panic!("{array:?}")
    };
    assert_eq!(
        array
            .values
            .iter()
            .map(|value| value.value.clone())
            .collect::<Vec<_>>(),
        [Some(Any::IntValue(1)), None, Some(Any::IntValue(3))]
    );
    let spans = json::traces(br#"{"resourceSpans":[null,{"scopeSpans":[null,{"spans":[null]}]}]}"#)
        .unwrap();
    assert_eq!(scan::scan(&spans, None).unwrap().n_spans, 1);
}

#[test]
fn unknown_fields_are_ignored_whatever_they_hold() {
    let span = span_of(json!({
        "name": "n",
        "$schema": { "traceId": "no id", "kind": [1, null, { "deep": {} }] },
        "extra": null,
    }));
    assert_eq!(
        span,
        Span {
            name: "n".to_owned(),
            ..Span::default()
        }
    );
}

#[test]
fn bytes_are_base64() {
    assert_eq!(
        value_of(json!({ "bytesValue": "AAEC/w==" })),
        Some(Any::BytesValue(vec![0, 1, 2, 255]))
    );
    assert_eq!(
        value_of(json!({ "bytesValue": "AAEC_w" })),
        Some(Any::BytesValue(vec![0, 1, 2, 255]))
    );
    assert_eq!(
        value_of(json!({ "bytesValue": "" })),
        Some(Any::BytesValue(vec![]))
    );
}

#[test]
fn half_a_surrogate_pair_becomes_the_replacement_character() {
    let body = concat!(
        r#"{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"#,
        r#""a\\ud83d \ud83d\ude00 \ud83d \ude00 \uD83Dx \\\udc00 \ud83d"}]}]}]}"#,
    );
    let transcoded = json::traces(body.as_bytes()).unwrap();
    let request = ExportTraceServiceRequest::decode(transcoded.as_slice()).unwrap();
    assert_eq!(
        request.resource_spans[0].scope_spans[0].spans[0].name,
        "a\\ud83d \u{1f600} \u{fffd} \u{fffd} \u{fffd}x \\\u{fffd} \u{fffd}"
    );
}

#[test]
fn metrics_lose_nothing() {
    let body = json!({ "resourceMetrics": [{ "scopeMetrics": [{ "metrics": [
        {
            "name": "m",
            "sum": {
                "isMonotonic": true,
                "aggregationTemporality": 2,
                "dataPoints": [{ "asInt": "9007199254740993", "timeUnixNano": "5" }],
            },
        },
        {
            "name": "h",
            "histogram": { "dataPoints": [{
                "count": "3",
                "sum": 1.5,
                "bucketCounts": ["1", 2],
                "explicitBounds": [0.5],
                "min": "NaN",
            }] },
        },
    ] }] }] });
    let transcoded = json::metrics(body.to_string().as_bytes()).unwrap();
    let request = ExportMetricsServiceRequest::decode(transcoded.as_slice()).unwrap();
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    let Some(Data::Sum(sum)) = &metrics[0].data else {
        panic!("{metrics:?}")
    };
    assert_eq!(
        sum.data_points[0].value,
        Some(number_data_point::Value::AsInt(9_007_199_254_740_993))
    );
    let Some(Data::Histogram(histogram)) = &metrics[1].data else {
        panic!("{metrics:?}")
    };
    assert_eq!(histogram.data_points[0].bucket_counts, [1, 2]);
    assert!(histogram.data_points[0].min.unwrap().is_nan());
}

#[test]
fn long_messages_get_long_lengths() {
    // The encoded lengths have one, two, three and four bytes.
    for len in [10, 127, 128, 300, 20_000, 3_000_000] {
        let text = "x".repeat(len);
        assert_eq!(
            value_of(json!({ "stringValue": text.clone() })),
            Some(Any::StringValue(text))
        );
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let span = |span: &str| {
        format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{{}},{span}]}}]}}]}}"#)
    };
    let cases = [
        (
            String::new(),
            "",
            "malformed JSON: EOF while parsing a value at line 1 column 0",
        ),
        (
            "[]".to_owned(),
            "",
            "malformed JSON: invalid type: sequence, expected an object \
             (ExportTraceServiceRequest) at line 1 column 0",
        ),
        (
            "null".to_owned(),
            "",
            "malformed JSON: invalid type: null, expected an object (ExportTraceServiceRequest) \
             at line 1 column 4",
        ),
        (
            "{} {}".to_owned(),
            "",
            "malformed JSON: trailing characters at line 1 column 4",
        ),
        (
            r#"{"resourceSpans":[{"scopeSpans":"#.to_owned(),
            "resourceSpans[0].scopeSpans",
            "malformed JSON in resourceSpans[0].scopeSpans: EOF while parsing a value at line 1 \
             column 32",
        ),
        (
            r#"{"resourceSpans":{}}"#.to_owned(),
            "resourceSpans",
            "malformed JSON in resourceSpans: invalid type: map, expected an array \
             (ResourceSpans) at line 1 column 17",
        ),
        (
            span(r#"{"traceId":"xyz"}"#),
            "resourceSpans[0].scopeSpans[0].spans[1].traceId",
            "malformed JSON in resourceSpans[0].scopeSpans[0].spans[1].traceId: invalid value: \
             string \"xyz\", expected an id of 32 hexadecimal digits at line 1 column 62",
        ),
        (
            span(r#"{"links":[{"spanId":"0102"}]}"#),
            "resourceSpans[0].scopeSpans[0].spans[1].links[0].spanId",
            "malformed JSON in resourceSpans[0].scopeSpans[0].spans[1].links[0].spanId: invalid \
             value: string \"0102\", expected an id of 16 hexadecimal digits at line 1 column 72",
        ),
        (
            span(r#"{"attributes":[{"key":"a","value":{"intValue":"1.5"}}]}"#),
            "resourceSpans[0].scopeSpans[0].spans[1].attributes[0].value.intValue",
            "malformed JSON in \
             resourceSpans[0].scopeSpans[0].spans[1].attributes[0].value.intValue: invalid digit \
             found in string at line 1 column 97",
        ),
    ];
    for (body, path, message) in cases {
        let error = json::traces(body.as_bytes()).unwrap_err();
        assert_eq!((error.path(), error.to_string().as_str()), (path, message));
    }
    let long = span(
        &json!({ "name": { "x": 1 }, "kind": 1 })
            .to_string()
            .replace(r#"{"x":1}"#, "7"),
    );
    assert!(
        json::traces(long.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("spans[1].name")
    );
    let quoted = span(&json!({ "links": "y".repeat(5_000) }).to_string());
    let message = json::traces(quoted.as_bytes()).unwrap_err().to_string();
    assert!(
        message.len() < 400 && message.contains("… at line 1 column"),
        "{message}"
    );
}

#[test]
fn ids_of_log_records_may_have_any_length() {
    let body = json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [{
        "traceId": "0102",
        "spanId": "",
        "body": { "stringValue": "b" },
    }] }] }] });
    let transcoded = json::logs(body.to_string().as_bytes()).unwrap();
    let request = ExportLogsServiceRequest::decode(transcoded.as_slice()).unwrap();
    assert_eq!(
        request.resource_logs[0].scope_logs[0].log_records[0].trace_id,
        [1, 2]
    );
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| {
        let value = format!(
            "{}{}{}",
            r#"{"arrayValue":{"values":["#.repeat(depth),
            r#"{"intValue":1}"#,
            "]}}".repeat(depth)
        );
        let span = format!(r#"{{"attributes":[{{"key":"k","value":{value}}}]}}"#);
        format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{span}]}}]}}]}}"#)
    };
    // The JSON parser accepts nothing that is too deep for protobuf.
    let deepest = (1..60)
        .rev()
        .find_map(|depth| json::traces(nested(depth).as_bytes()).ok())
        .unwrap();
    assert!(ExportTraceServiceRequest::decode(deepest.as_slice()).is_ok());
    assert!(scan::scan(&deepest, None).is_ok());
    let error = json::traces(nested(100_000).as_bytes()).unwrap_err();
    assert!(
        error.to_string().contains("recursion limit exceeded"),
        "{error}"
    );
    let error = json::traces("[".repeat(1_000_000).as_bytes()).unwrap_err();
    assert!(error.to_string().contains("expected an object"), "{error}");
    let unknown = format!(r#"{{"unknown":{}"#, "[".repeat(1_000_000));
    assert!(json::traces(unknown.as_bytes()).is_err());
}

#[test]
fn no_json_makes_it_panic() {
    let captures: Vec<_> = captures::json()
        .into_iter()
        .filter(|capture| capture.body.len() < 8 << 10)
        .collect();
    let check_input = |recipe: &[u8]| {
        let mut dice = crate::generate::Dice::new(recipe);
        let capture = &captures[dice.up_to(captures.len())];
        let body = crate::generate::mutate(&capture.body, &mut dice);
        // The output is well-formed, whatever the input.
        if let Ok(transcoded) = json::traces(&body) {
            assert!(scan::scan(&transcoded, None).is_ok());
        }
        if let Ok(transcoded) = json::logs(&body) {
            assert!(ExportLogsServiceRequest::decode(transcoded.as_slice()).is_ok());
        }
    };
    corpus::replay("json::no_json_makes_it_panic", check_input);
    bolero::check!()
        .with_iterations(1_500)
        .with_max_len(64)
        .for_each(check_input);
}
