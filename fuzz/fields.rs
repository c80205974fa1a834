//! Checks every field of every OTLP message, one by one: compares the descriptors with the messages
//! of `opentelemetry-proto`, and the scan's tables with both. The check does not find a field that
//! only `opentelemetry-proto` has.

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use prost::encoding::encode_varint;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

use crate::captures::Signal;
use crate::generate::{descriptors, request_descriptor};
use crate::wire::{check, key_set};

const SIGNALS: [Signal; 3] = [Signal::Traces, Signal::Logs, Signal::Metrics];

#[test]
fn descriptors_and_crate_know_the_same_fields() {
    let pool = descriptors();
    for signal in SIGNALS {
        // Only one member of a `oneof` can be set, so there are as many rounds as the largest
        // `oneof` has members.
        for round in 0..8 {
            let request = request_descriptor(&pool, signal);
            let full = full(&request, round, 0).encode_to_vec();
            let of_crate = match signal {
                Signal::Traces => ExportTraceServiceRequest::decode(full.as_slice())
                    .unwrap()
                    .encode_to_vec(),
                Signal::Logs => ExportLogsServiceRequest::decode(full.as_slice())
                    .unwrap()
                    .encode_to_vec(),
                Signal::Metrics => ExportMetricsServiceRequest::decode(full.as_slice())
                    .unwrap()
                    .encode_to_vec(),
            };
            assert!(full.len() > 500, "{signal:?}: {} bytes", full.len());
            // The bytes differ, because the two encoders write a `oneof` at different positions.
            assert_eq!(
                of_crate.len(),
                full.len(),
                "{signal:?}, round {round}: a field was lost"
            );
            let decode = |bytes: &[u8]| DynamicMessage::decode(request.clone(), bytes).unwrap();
            assert!(
                decode(&of_crate) == decode(&full),
                "{signal:?}, round {round}: a field was misread"
            );
        }
    }
}

/// Returns a message with every field set, except that each `oneof` has a single member, chosen by
/// `round`.
fn full(message: &MessageDescriptor, round: usize, depth: usize) -> DynamicMessage {
    let mut full = DynamicMessage::new(message.clone());
    for field in message.fields() {
        if let Some(oneof) = field.containing_oneof()
            && oneof.fields().nth(round % oneof.fields().len()).as_ref() != Some(&field)
        {
            continue;
        }
        let value = match field.kind() {
            Kind::Message(_) if depth > 10 => continue,
            Kind::Message(inner) => Value::Message(self::full(&inner, round, depth + 1)),
            Kind::String => Value::String(field.name().to_owned()),
            Kind::Bytes => Value::Bytes(vec![7; 8].into()),
            Kind::Bool => Value::Bool(true),
            Kind::Double => Value::F64(1.5),
            Kind::Enum(_) => Value::EnumNumber(2),
            Kind::Int32 | Kind::Sint32 => Value::I32(-3),
            Kind::Int64 | Kind::Sfixed64 => Value::I64(-4),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(5),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(6),
            other => panic!("{other:?}: OTLP has no such field yet"),
        };
        full.set_field(
            &field,
            if field.is_list() { Value::List(vec![value.clone(), value]) } else { value },
        );
    }
    full
}

#[test]
fn each_field_is_checked_as_prost_checks_it() {
    let pool = descriptors();
    for signal in SIGNALS {
        let mut n_checked = 0;
        check_message(
            signal,
            &request_descriptor(&pool, signal),
            &[],
            &mut BTreeSet::new(),
            &mut n_checked,
        );
        assert!(n_checked > 300, "{signal:?}: {n_checked} checks");
    }
}

/// Sends each field alone, with each wire type and with contents that only some kinds of fields
/// accept.
fn check_message(
    signal: Signal,
    message: &MessageDescriptor,
    way: &[FieldDescriptor],
    seen: &mut BTreeSet<String>,
    n_checked: &mut usize,
) {
    if !seen.insert(message.full_name().to_owned()) {
        return;
    }
    let keys = key_set();
    for field in message.fields() {
        let key = |wire_type: u32| {
            let mut key = Vec::new();
            encode_varint(u64::from(field.number() << 3 | wire_type), &mut key);
            key
        };
        let contents: [&[u8]; 13] = [
            &[&key(0)[..], b"\x01"].concat(),
            &[&key(1)[..], b"12345678"].concat(),
            &[&key(2)[..], b"\x00"].concat(),
            &[&key(2)[..], b"\x01\xff"].concat(),
            &[&key(2)[..], b"\x02\x80\x80"].concat(),
            &[&key(2)[..], b"\x02\x80\x01"].concat(),
            &[&key(2)[..], b"\x0812345678"].concat(),
            &[&key(2)[..], "\x08\u{fc}\u{fc}\u{fc}\u{fc}".as_bytes()].concat(),
            &[&key(2)[..], b"\x0a0123456789"].concat(),
            &[&key(3)[..], &key(4)[..]].concat(),
            &key(4),
            &[&key(5)[..], b"1234"].concat(),
            &[&key(6)[..], b"1"].concat(),
        ];
        for content in contents {
            let mut body = content.to_vec();
            for parent in way.iter().rev() {
                let mut outer = Vec::new();
                encode_varint(u64::from(parent.number() << 3 | 2), &mut outer);
                encode_varint(body.len() as u64, &mut outer);
                outer.append(&mut body);
                body = outer;
            }
            check(signal, &body, &keys);
            *n_checked += 1;
        }
        if let Kind::Message(inner) = field.kind() {
            check_message(signal, &inner, &[way, &[field]].concat(), seen, n_checked);
        }
    }
}
