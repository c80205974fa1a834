//! Tests the scan against prost: it accepts the bytes that prost accepts, except ids of a wrong
//! length, and yields what an oracle finds in prost's messages. The inputs are random bytes,
//! mutated captures, and messages generated from OTLP's descriptors, with rare but legal forms, and
//! many illegal ones. The targets prove nothing about bodies larger than a few dozen KiB.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use otlp::span::{KeyRule, KeySet, Retention};
use otlp::{scan, scan_logs, scan_metrics};
use prost::Message;

use crate::captures::{self, Signal};
use crate::{corpus, generate, oracle};

/// Returns a key set with the rules `Value`, `Reply`, `Request` and `Presence`, for keys that the
/// captures and the generator use. Values are cut early, so that cuts are frequent.
pub(crate) fn key_set() -> KeySet {
    let rule = |key, rule| KeyRule { key, rule };
    let mut keys = KeySet::new(&[
        rule("tool.name", Retention::Value),
        rule("gen_ai.tool.name", Retention::Value),
        rule("gen_ai.tool.call.arguments", Retention::Value),
        rule("gen_ai.operation.name", Retention::Value),
        rule("gen_ai.output.messages", Retention::Reply),
        rule("gen_ai.input.messages", Retention::Request),
        rule("llm.output_messages.", Retention::Reply),
        rule("openinference.span.kind", Retention::Value),
        rule("input.value", Retention::Value),
        rule("output.value", Retention::Value),
        rule("error.type", Retention::Presence),
        rule("exception", Retention::Presence),
        rule("exception.message", Retention::Value),
        rule("service.*", Retention::Value),
        rule("metadata*", Retention::Value),
    ]);
    keys.max_value_size = 20;
    keys.max_messages_size = 1 << 20;
    keys
}

pub(crate) fn check_traces(body: &[u8], keys: &KeySet) {
    let expected = oracle::scan(body);
    let scanned = scan::scan(body, Some(keys));
    match (&scanned, &expected) {
        (Ok(scanned), Ok(expected)) => oracle::compare(scanned, expected, keys),
        (Err(error), Err(_)) => assert!(error.offset() <= body.len()),
        _ => panic!(
            "scan: {:?}, prost: {:?}",
            scanned.map(|scanned| scanned.n_spans),
            expected.map(|expected| expected.n_spans)
        ),
    }
    let counted = scan::scan(body, None);
    assert_eq!(
        counted.as_ref().map(|counted| counted.n_spans).ok(),
        expected.as_ref().map(|expected| expected.n_spans).ok()
    );
    assert!(counted.is_ok_and(|counted| counted.batch.spans.is_empty()) || expected.is_err());
}

fn check_logs(body: &[u8]) {
    let expected = ExportLogsServiceRequest::decode(body).map(|request| {
        let scopes = request
            .resource_logs
            .iter()
            .flat_map(|resource| &resource.scope_logs);
        scopes.map(|scope| scope.log_records.len()).sum::<usize>()
    });
    assert_eq!(
        scan_logs::scan(body, Some(&key_set()))
            .map(|scanned| scanned.n_records)
            .ok(),
        expected.clone().ok(),
        "prost: {expected:?}"
    );
}

fn check_metrics(body: &[u8]) {
    let expected =
        ExportMetricsServiceRequest::decode(body).map(|request| oracle::count_points(&request));
    assert_eq!(
        scan_metrics::scan(body).ok(),
        expected.clone().ok(),
        "prost: {expected:?}"
    );
}

pub(crate) fn check(signal: Signal, body: &[u8], keys: &KeySet) {
    match signal {
        Signal::Traces => check_traces(body, keys),
        Signal::Logs => check_logs(body),
        Signal::Metrics => check_metrics(body),
    }
}

#[test]
fn captures_are_read_as_prost_reads_them() {
    let keys = key_set();
    for capture in captures::protobuf() {
        check(capture.signal, &capture.body, &keys);
        // Every seventh prefix suffices: over all captures, the prefixes end at every kind of
        // position within a field. All prefixes are malformed except the empty one and those that
        // end between top-level fields.
        for end in (0..capture.body.len()).step_by(7) {
            check(capture.signal, &capture.body[..end], &keys);
        }
    }
}

#[test]
fn any_bytes_are_read_as_prost_reads_them() {
    let keys = key_set();
    let check_input = |body: &[u8]| {
        check_traces(body, &keys);
        check_logs(body);
        check_metrics(body);
    };
    corpus::replay("wire::any_bytes_are_read_as_prost_reads_them", check_input);
    bolero::check!()
        .with_iterations(3_000)
        .with_max_len(256)
        .for_each(check_input);
}

#[test]
fn mutated_captures_are_read_as_prost_reads_them() {
    let keys = key_set();
    let captures: Vec<_> = captures::protobuf()
        .into_iter()
        .filter(|capture| capture.body.len() < 8 << 10)
        .collect();
    let check_input = |recipe: &[u8]| {
        let mut dice = generate::Dice::new(recipe);
        let capture = &captures[dice.up_to(captures.len())];
        check(
            capture.signal,
            &generate::mutate(&capture.body, &mut dice),
            &keys,
        );
    };
    corpus::replay(
        "wire::mutated_captures_are_read_as_prost_reads_them",
        check_input,
    );
    bolero::check!()
        .with_iterations(3_000)
        .with_max_len(64)
        .for_each(check_input);
}

#[test]
fn generated_requests_are_read_as_prost_reads_them() {
    let keys = key_set();
    let generator = generate::Generator::new();
    let check_input = |recipe: &[u8]| {
        let mut dice = generate::Dice::new(recipe);
        let signal = [
            Signal::Traces,
            Signal::Traces,
            Signal::Logs,
            Signal::Metrics,
        ][dice.up_to(4)];
        check(signal, &generator.request(signal, &mut dice), &keys);
    };
    corpus::replay(
        "wire::generated_requests_are_read_as_prost_reads_them",
        check_input,
    );
    bolero::check!()
        .with_iterations(4_000)
        .with_max_len(64)
        .for_each(check_input);
}

#[test]
fn the_generator_makes_good_and_bad_requests() {
    // A property that only ever sees rejected bodies proves little.
    let generator = generate::Generator::new();
    for signal in [Signal::Traces, Signal::Logs, Signal::Metrics] {
        let n_good = (0..500u32)
            .filter(|seed| {
                let body = generator.request(signal, &mut generate::Dice::new(&seed.to_le_bytes()));
                match signal {
                    Signal::Traces => {
                        scan::scan(&body, None).is_ok_and(|scanned| scanned.n_spans > 0)
                    }
                    Signal::Logs => {
                        scan_logs::scan(&body, None).is_ok_and(|scanned| scanned.n_records > 0)
                    }
                    Signal::Metrics => scan_metrics::scan(&body).is_ok_and(|n| n > 0),
                }
            })
            .count();
        assert!(
            (25..475).contains(&n_good),
            "{signal:?}: {n_good} of 500 good"
        );
    }
}
