//! Tests the scan with input that is legal but hostile or odd: huge spans, deep nesting, fields out
//! of order. Also tests the texts of the scan's errors. The tests do not prove what happens to the
//! request before the scan.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use otlp::scan::{ScannedSpans, scan};
use otlp::span::{KeyRule, KeySet, Retention, Value};
use prost::Message;
use prost::encoding::encode_varint;

use crate::wire::check_traces;

const KIB: usize = 1 << 10;

/// Returns a key set with the sizes of the default configuration.
fn keys() -> KeySet {
    let rule = |key, rule| KeyRule { key, rule };
    let mut keys = KeySet::new(&[
        rule("tool.name", Retention::Value),
        rule("input.value", Retention::Value),
        rule("output.messages", Retention::Reply),
        rule("llm.", Retention::Reply),
        rule("marked", Retention::Presence),
        rule("exception", Retention::Presence),
    ]);
    keys.max_value_size = 16 * KIB;
    keys.max_messages_size = 64 * KIB;
    keys
}

fn attribute(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Any::StringValue(value.to_owned()))
}

fn span(attributes: Vec<KeyValue>) -> Span {
    Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        attributes,
        ..Span::default()
    }
}

fn request(span: Span) -> Vec<u8> {
    let scope_spans = vec![ScopeSpans {
        spans: vec![span],
        ..ScopeSpans::default()
    }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans,
            ..ResourceSpans::default()
        }],
    }
    .encode_to_vec()
}

fn scan_one(span: Span) -> ScannedSpans {
    let scanned = scan(&request(span), Some(&keys())).unwrap();
    assert_eq!(scanned.batch.spans.len(), 1);
    scanned
}

/// Returns a length-delimited field, written by hand, because prost would merge or reorder the
/// bytes that these tests must send unchanged.
fn field(tag: u64, content: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    encode_varint(tag << 3 | 2, &mut field);
    encode_varint(content.len() as u64, &mut field);
    field.extend(content);
    field
}

#[test]
fn a_million_attributes_are_counted_and_few_are_kept() {
    let mut encoded = span(Vec::new()).encode_to_vec();
    let attribute = field(9, &text("tool.name", "t").encode_to_vec());
    for _ in 0..1_000_000 {
        encoded.extend_from_slice(&attribute);
    }
    let body = field(1, &field(2, &field(2, &encoded)));
    let scanned = scan(&body, Some(&keys())).unwrap();
    let span = &scanned.batch.spans[0];
    assert_eq!(span.n_attributes, u16::MAX);
    assert!(span.kept.size() <= 64 * KIB, "{}", span.kept.size());
    assert!(span.kept.index().attributes().count() > 1_000);
}

#[test]
fn huge_bytes_do_not_crowd_out_small_values() {
    let mut keys = keys();
    keys.max_value_size = 1024 * KIB;
    // Invalid UTF-8 counts as its replacement, which has three bytes for each byte.
    let bytes = [vec![b'x'; 1024 * KIB], vec![0xff; 1024 * KIB]];
    let [first, other] = bytes.map(|bytes| attribute("input.value", Any::BytesValue(bytes)));
    let mut attributes = vec![first, other.clone(), other.clone(), other.clone(), other];
    attributes.push(text("tool.name", "search"));
    let scanned = scan(&request(span(attributes)), Some(&keys)).unwrap();
    let facts = &scanned.batch.spans[0].kept;
    let kept: Vec<_> = facts.index().attributes().collect();
    let Value::Bytes(first) = kept[0].value else {
        panic!("{:?}", kept[0])
    };
    assert_eq!(
        (first.len(), kept[0].cut, kept[1].cut, kept[4].cut),
        (1024 * KIB, false, true, true)
    );
    assert_eq!((kept[5].value, kept[5].cut), (Value::Str("search"), false));
}

#[test]
fn huge_values_are_cut_and_do_not_crowd_out_small_ones() {
    let huge = "ü".repeat(50 * KIB);
    let mut attributes = vec![text("input.value", &huge); 100];
    attributes.push(text("tool.name", "search"));
    attributes.push(attribute("marked", Any::StringValue(huge)));
    let scanned = scan_one(span(attributes));
    let facts = &scanned.batch.spans[0].kept;
    assert!(facts.size() <= 128 * KIB, "{}", facts.size());
    let kept: Vec<_> = facts.index().attributes().collect();
    assert!(kept[..100].iter().all(|attribute| attribute.cut));
    let Value::Str(first) = kept[0].value else {
        panic!("{:?}", kept[0])
    };
    assert_eq!(first.len(), 16 * KIB);
    let Value::Str(last) = kept[99].value else {
        panic!("{:?}", kept[99])
    };
    assert_eq!(
        last.len(),
        256,
        "once the room is used up, the head of a huge value is kept"
    );
    assert_eq!(
        (kept[100].value, kept[100].cut),
        (Value::Str("search"), false)
    );
    assert_eq!((kept[101].value, kept[101].cut), (Value::Str(""), false));
}

#[test]
fn messages_share_their_own_room() {
    let message = format!(
        r#"[{{"type":"tool_call","content":"{}"}}]"#,
        "x".repeat(40 * KIB)
    );
    let array = Any::ArrayValue(ArrayValue {
        values: vec![
            AnyValue {
                value: Some(Any::StringValue(message.clone()))
            };
            3
        ],
    });
    let attributes = vec![
        text("output.messages", &"no call here ".repeat(10_000)),
        text("output.messages", &message),
        attribute("output.messages", array),
        text("output.messages", &message),
        text("llm.0.tool_calls.1.function.name", "search"),
        text("input.value", &"y".repeat(16 * KIB)),
    ];
    let scanned = scan_one(span(attributes));
    let kept: Vec<_> = scanned.batch.spans[0].kept.index().attributes().collect();
    assert_eq!(kept.len(), 3, "{kept:?}");
    assert_eq!((kept[0].value, kept[0].cut), (Value::Str(&message), false));
    let Value::Json(json) = kept[1].value else {
        panic!("{:?}", kept[1])
    };
    assert_eq!((json.len(), kept[1].cut), (64 * KIB - message.len(), true));
    assert!(!kept[2].cut, "other values are not touched by it");
}

#[test]
fn every_spelling_of_a_tool_call_in_messages_is_found() {
    let found = [
        "tool_calls",
        "toolCallId",
        "tool-call",
        "toolCall",
        "ToolCallBlock",
        "tool_use",
        "toolUse",
        "tool_result",
        "toolResult",
        "tool-result",
        "toolRequest",
        "tool_response",
        "function_call",
        "functionCall",
        "function_response",
        "functionResponse",
        "FunctionCall",
        "ToolMessage",
    ];
    let not_found = [
        "tool",
        "tools",
        "toolbox call",
        "a tool was called",
        "function",
        "functional",
        "cool_call",
        "junction_call",
        "tool__call",
        "tool_",
    ];
    for (words, n_expected) in [(&found[..], 1), (&not_found[..], 0)] {
        for word in words {
            for value in [
                format!(r#"[{{"type":"{word}"}}]"#),
                (*word).to_owned(),
                format!("übergroß {word}"),
            ] {
                let scanned = scan_one(span(vec![text("output.messages", &value)]));
                assert_eq!(
                    scanned.batch.spans[0].kept.index().attributes().count(),
                    n_expected,
                    "{value}"
                );
            }
        }
    }
}

#[test]
fn keys_that_look_alike_are_told_apart() {
    // The scan compares known keys word by word, so the test changes one byte at every position,
    // for every length below 40.
    let mut names = Vec::new();
    for len in 1..40 {
        let name: String = ('a'..='z').cycle().take(len).collect();
        for at in 0..len {
            let mut other = name.clone().into_bytes();
            other[at] = b'_';
            names.push(String::from_utf8(other).unwrap());
        }
        names.push(name);
    }
    let mut keys = KeySet::default();
    for name in &names {
        keys.add(name, Retention::Value);
    }
    keys.max_value_size = KIB;
    // Send each key twice in a row, then all keys in reverse order, so that a key follows itself
    // and similar keys.
    let sent: Vec<_> = names
        .iter()
        .flat_map(|name| [name, name])
        .chain(names.iter().rev())
        .collect();
    let spans = sent
        .chunks(100)
        .map(|names| span(names.iter().map(|name| text(name, name)).collect()))
        .collect();
    let scope_spans = vec![ScopeSpans {
        spans,
        ..ScopeSpans::default()
    }];
    let resource_spans = vec![ResourceSpans {
        scope_spans,
        ..ResourceSpans::default()
    }];
    let scanned = scan(
        &ExportTraceServiceRequest { resource_spans }.encode_to_vec(),
        Some(&keys),
    )
    .unwrap();
    let kept = scanned
        .batch
        .spans
        .iter()
        .flat_map(|span| span.kept.index().attributes());
    let kept: Vec<_> = kept
        .map(|attribute| (keys.name(attribute.key), attribute.value))
        .collect();
    assert_eq!(
        kept,
        sent.iter()
            .map(|name| (name.as_str(), Value::Str(name)))
            .collect::<Vec<_>>()
    );
    // After the scan has seen the valid key, each of its bytes in turn is invalid UTF-8.
    for len in 1..40 {
        for at in 0..len {
            let good: Vec<u8> = (b'a'..=b'z').cycle().take(len).collect();
            let mut bad = good.clone();
            bad[at] = 0xff;
            let attributes = [field(9, &field(1, &good)), field(9, &field(1, &bad))].concat();
            check_traces(&field(1, &field(2, &field(2, &attributes))), &keys);
        }
    }
}

#[test]
fn names_are_bounded() {
    let mut long = span(vec![text("tool.name", "t")]);
    long.name = "ü".repeat(100 * KIB);
    long.trace_state = "a=b,".repeat(100 * KIB);
    let scanned = scan_one(long);
    assert_eq!(scanned.batch.spans[0].kept.index().name().len(), KIB);
    assert_eq!(scanned.batch.spans[0].kept.index().trace_state(), "");
}

#[test]
fn a_huge_resource_is_cut_at_a_field() {
    let mut attributes = vec![
        text("service.name", "shop"),
        text("tool.name", "in a resource"),
    ];
    attributes.extend((0..10_000).map(|i| text(&format!("key.{i}"), "value")));
    let resource = Resource {
        attributes,
        ..Resource::default()
    };
    let scope_spans = vec![ScopeSpans {
        spans: vec![span(Vec::new())],
        ..ScopeSpans::default()
    }];
    let resource_spans = vec![ResourceSpans {
        resource: Some(resource.clone()),
        scope_spans,
        ..ResourceSpans::default()
    }];
    let scanned = scan(
        &ExportTraceServiceRequest { resource_spans }.encode_to_vec(),
        Some(&keys()),
    )
    .unwrap();
    let kept = &scanned.batch.spans[0].resource;
    assert!(kept.encoded.len() <= 64 * KIB && kept.encoded.len() > 63 * KIB);
    let decoded = Resource::decode(&*kept.encoded).unwrap();
    assert_eq!(
        decoded.attributes[..],
        resource.attributes[..decoded.attributes.len()]
    );
    assert_eq!(&*kept.service, "shop");
    assert_eq!(kept.kept.index().attributes().count(), 1);
}

#[test]
fn fields_count_wherever_they_stand() {
    let keys = keys();
    let attribute = field(9, &text("tool.name", "search").encode_to_vec());
    let ids = [field(1, &[1; 16]), field(2, &[2; 8])].concat();
    let event = field(
        11,
        &[
            field(3, &text("tool.name", "in an event").encode_to_vec()),
            field(2, b"exception"),
        ]
        .concat(),
    );
    // The name occurs before and after an attribute; the ids are last and follow a wrong id.
    let late = [
        field(1, b"short"),
        field(5, b"first"),
        attribute.clone(),
        field(3, b"k=v"),
        event,
        field(5, b"second"),
        ids.clone(),
    ]
    .concat();
    let own_scope = field(
        1,
        &InstrumentationScope {
            name: "spanscore".to_owned(),
            ..Default::default()
        }
        .encode_to_vec(),
    );
    let other_scope = field(
        1,
        &InstrumentationScope {
            name: "other".to_owned(),
            ..Default::default()
        }
        .encode_to_vec(),
    );
    let spans = field(
        2,
        &[field(2, &late), field(2, &ids), other_scope.clone()].concat(),
    );
    let own = field(
        2,
        &[field(2, &late), field(2, b""), other_scope, own_scope].concat(),
    );
    let resource_a = field(
        1,
        &Resource {
            attributes: vec![text("service.name", "shop")],
            ..Resource::default()
        }
        .encode_to_vec(),
    );
    let resource_b = field(
        1,
        &Resource {
            attributes: vec![text("tool.name", "kept")],
            ..Resource::default()
        }
        .encode_to_vec(),
    );
    // Each group has its resource in two fields: the first group behind spans, the second before.
    let body = [
        field(
            1,
            &[spans.clone(), resource_a.clone(), own, resource_b.clone()].concat(),
        ),
        field(1, &[resource_a, resource_b, spans].concat()),
        field(1, b""),
    ]
    .concat();
    check_traces(&body, &keys);
    let scanned = scan(&body, Some(&keys)).unwrap();
    assert_eq!(
        (
            scanned.n_spans,
            scanned.batch.spans.len(),
            scanned.batch.n_without_ids
        ),
        (6, 5, 1)
    );
    let first = &scanned.batch.spans[0];
    assert_eq!(
        (first.kept.index().name(), first.kept.index().trace_state()),
        ("second", "k=v")
    );
    assert_eq!(
        first
            .kept
            .index()
            .events()
            .next()
            .unwrap()
            .attributes()
            .count(),
        1
    );
    assert_eq!(
        (
            &*first.resource.service,
            first.resource.kept.index().attributes().count()
        ),
        ("shop", 1)
    );
    assert!(
        std::ptr::eq(&*first.resource, &*scanned.batch.spans[3].resource),
        "equal resources are shared"
    );
    assert_eq!(first.kept, scanned.batch.spans[2].kept);
}

#[test]
fn varints_end_where_prosts_end() {
    let keys = keys();
    let mut n_good = 0;
    for n_bytes in 0..12 {
        for last in [0x00, 0x01, 0x02, 0x03, 0x7f, 0x80, 0x81, 0xff] {
            for filler in [0x80, 0xff] {
                let varint = [vec![filler; n_bytes], vec![last]].concat();
                // The varint is the value of a number field, a status code, the key of a field, or
                // the length of a field.
                let number = [&[0x50][..], &varint].concat();
                let status = [
                    field(1, &[1; 16]),
                    field(2, &[2; 8]),
                    field(15, &[&[0x18][..], &varint].concat()),
                ]
                .concat();
                for span in [
                    number,
                    status,
                    varint.clone(),
                    [&[0x2a][..], &varint].concat(),
                ] {
                    let body = field(1, &field(2, &field(2, &span)));
                    check_traces(&body, &keys);
                    n_good += usize::from(scan(&body, None).is_ok());
                }
            }
        }
    }
    assert!((50..700).contains(&n_good), "{n_good} of 768 good");
}

#[test]
fn values_given_twice_are_merged_or_replaced() {
    let keys = keys();
    let text = |text: &str| field(1, text.as_bytes());
    let array = |item: &str| field(5, &field(1, &text(item)));
    let map = |name: &str| {
        field(
            6,
            &field(
                1,
                &[field(1, name.as_bytes()), field(2, &text("v"))].concat(),
            ),
        )
    };
    let pieces = [
        text("s"),
        array("a"),
        array("b"),
        map("k"),
        map("l"),
        b"\x10\x01".to_vec(),
        b"\x40\x01".to_vec(),
        Vec::new(),
    ];
    // Try every sequence of three pieces, in one field and spread over three fields, as a value and
    // as an item of an array.
    for first in &pieces {
        for second in &pieces {
            for third in &pieces {
                let together = field(2, &[first.as_slice(), second, third].concat());
                let apart = [field(2, first), field(2, second), field(2, third)].concat();
                let inner = field(
                    2,
                    &field(5, &field(1, &[first.as_slice(), second, third].concat())),
                );
                for value in [together, apart, inner] {
                    let attribute = field(9, &[field(1, b"input.value"), value].concat());
                    let span = [field(1, &[1; 16]), field(2, &[2; 8]), attribute].concat();
                    check_traces(&field(1, &field(2, &field(2, &span))), &keys);
                }
            }
        }
    }
}

#[test]
fn the_recursion_limit_is_prosts() {
    let keys = keys();
    // Arrays and maps as values, and groups as unknown fields, reach each limit and exceed it.
    for (opening, closing) in [(&[1_u64, 5][..], false), (&[2, 1, 6], false), (&[], true)] {
        let mut n_good = 0;
        for depth in 25..110 {
            let mut value = vec![0x0a, 1, b'x'];
            if closing {
                value = [vec![0x4b; depth], vec![0x4c; depth]].concat();
            } else {
                for _ in 0..depth {
                    for tag in opening {
                        value = field(*tag, &value);
                    }
                }
            }
            let body = field(
                1,
                &field(
                    2,
                    &field(
                        2,
                        &field(9, &[field(1, b"input.value"), field(2, &value)].concat()),
                    ),
                ),
            );
            check_traces(&body, &keys);
            n_good += usize::from(scan(&body, Some(&keys)).is_ok());
        }
        assert!(
            (1..85).contains(&n_good),
            "{n_good} of 85 good: both sides of the limit are seen"
        );
    }
}

#[test]
fn many_resources_are_handled_in_linear_time() {
    // Nothing is timed, but quadratic work on this many resources would exceed the test's time
    // limit.
    let resource_spans = (0..30_000)
        .map(|i| ResourceSpans {
            resource: Some(Resource {
                attributes: vec![text("service.name", &format!("service {}", i / 2))],
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans {
                spans: vec![span(Vec::new())],
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        })
        .collect();
    let scanned = scan(
        &ExportTraceServiceRequest { resource_spans }.encode_to_vec(),
        Some(&keys()),
    )
    .unwrap();
    assert_eq!(scanned.batch.spans.len(), 30_000);
    assert!(std::ptr::eq(
        &*scanned.batch.spans[0].resource,
        &*scanned.batch.spans[1].resource
    ));
    assert_eq!(
        &*scanned.batch.spans[29_999].resource.service,
        "service 14999"
    );
}

#[test]
fn an_error_says_what_and_where() {
    let in_span = |content: &[u8]| field(1, &field(2, &field(2, content)));
    let cases = [
        (
            b"\x0a\x05ab".to_vec(),
            "malformed protobuf: a field is longer than the rest of its message at byte 2",
        ),
        (
            b"not protobuf".to_vec(),
            "malformed protobuf: there is no wire type 6 at byte 1",
        ),
        (
            b"<html><body>".to_vec(),
            "malformed protobuf: a group ends that did not start at byte 1",
        ),
        (
            in_span(b"\x2a\x03ab\xff"),
            "malformed protobuf: a string is not valid UTF-8 in \
             resource_spans.scope_spans.spans.name at byte 10",
        ),
        (
            in_span(&field(1, b"abc")),
            "malformed protobuf: an id must have 16 bytes (or none), not 3 in \
             resource_spans.scope_spans.spans.trace_id at byte 8",
        ),
        (
            in_span(&field(13, &field(2, b"abc"))),
            "malformed protobuf: an id must have 8 bytes (or none), not 3 in \
             resource_spans.scope_spans.spans.links.span_id at byte 10",
        ),
        (
            in_span(&field(9, &field(2, b"\x08\x01"))),
            "malformed protobuf: wire type 0 does not fit the field in \
             resource_spans.scope_spans.spans.attributes.value.string_value at byte 11",
        ),
        (
            field(1, &field(1, &field(1, &field(1, b"\xc3\x28")))),
            "malformed protobuf: a string is not valid UTF-8 in \
             resource_spans.resource.attributes.key at byte 8",
        ),
    ];
    for (body, message) in cases {
        assert_eq!(scan(&body, None).unwrap_err().to_string(), message);
        assert_eq!(scan(&body, Some(&keys())).unwrap_err().to_string(), message);
    }
}

#[test]
fn an_empty_request_is_a_good_one() {
    let scanned = scan(b"", Some(&keys())).unwrap();
    assert_eq!((scanned.n_spans, scanned.batch.spans.len()), (0, 0));
}
