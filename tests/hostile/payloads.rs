//! Builds the requests that the attackers send.

use std::io::Write;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Ids, RST_STREAM, SETTINGS, asked, call,
    ended_traces, field, frame, headers, open_traces, post, preface, request, root,
};

pub(crate) fn unfinished_headers() -> Vec<u8> {
    let mut request = b"POST /v1/traces HTTP/1.1\r\n".to_vec();
    for number in 0..90 {
        request.extend(format!("x-{number}: {}\r\n", "x".repeat(4_000)).into_bytes());
    }
    request
}

/// Returns a frame of an unknown kind without its last byte.
pub(crate) fn unfinished_frame() -> Vec<u8> {
    let mut bytes = preface();
    let mut frame = frame(0xfa, 0, 0, &vec![0; 1 << 16]);
    frame.pop();
    bytes.extend(frame);
    bytes
}

/// Returns requests on 100 streams, the maximum, none of which ends. Without an `encoding`, each
/// request has large headers; with one, each declares its message compressed.
pub(crate) fn large_headers(encoding: &str) -> Vec<u8> {
    let mut bytes = preface();
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let filler = "x".repeat(if encoding.is_empty() { 14_000 } else { 10 });
    for stream in 0..100 {
        let mut more = vec![("content-type", "application/grpc"), ("x-filler", &filler)];
        if !encoding.is_empty() {
            more.push(("grpc-encoding", encoding));
        }
        let block = headers(path, &more);
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * stream + 1, &block));
        bytes.extend(frame(DATA, 0, 2 * stream + 1, &[1, 0, 0, 16, 0, 0x28]));
    }
    bytes
}

pub(crate) fn all_but_a_byte(size: usize) -> Vec<u8> {
    let mut request = post("/v1/traces", "", &vec![0x0a; size]);
    request.pop();
    request
}

pub(crate) fn bomb() -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    // Writing to a vector does not fail.
    let _ = encoder.write_all(&vec![0; 64 << 20]);
    post(
        "/v1/traces",
        "content-encoding: gzip\r\n",
        &encoder.finish().unwrap_or_default(),
    )
}

pub(crate) fn nested() -> Vec<u8> {
    let mut value = Vec::new();
    for _ in 0..10_000 {
        value = field(5, &field(1, &value));
    }
    value
}

pub(crate) fn nested_json() -> Vec<u8> {
    let body = "[".repeat(1 << 20);
    asked(
        "POST",
        "/v1/traces",
        "application/json",
        "",
        body.as_bytes(),
    )
}

/// Returns a request with two contradictory lengths: a proxy in front might use one of them, and
/// the sidecar the other.
pub(crate) fn smuggled() -> Vec<u8> {
    b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4\r\n\
      transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/status HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        .to_vec()
}

pub(crate) fn rapid_reset() -> Vec<u8> {
    let block = headers("/v1/traces", &[]);
    let streams = (0..2_000_u32).map(|stream| {
        let number = 2 * stream + 1;
        let mut bytes = frame(HEADERS, END_HEADERS, number, &block);
        bytes.extend(frame(RST_STREAM, 0, number, &[0, 0, 0, 8]));
        bytes
    });
    streams.flatten().collect()
}

pub(crate) fn continuations() -> Vec<u8> {
    let mut bytes = frame(HEADERS, 0, 1, &headers("/v1/traces", &[]));
    bytes.extend(frame(CONTINUATION, 0, 1, &[]).repeat(10_000));
    bytes
}

pub(crate) fn empty_data() -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, 1, &headers("/v1/traces", &[]));
    bytes.extend(frame(DATA, 0, 1, &[]).repeat(10_000));
    bytes
}

/// Returns requests whose answers cannot be sent, because the window is 0.
pub(crate) fn stalled_window() -> Vec<u8> {
    let mut bytes = preface();
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for stream in 0..100 {
        let block = headers("/v1/nothing", &[]);
        bytes.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            2 * stream + 1,
            &block,
        ));
    }
    bytes
}

pub(crate) fn alias_bomb() -> Vec<u8> {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    asked(
        "PUT",
        "/v1/criteria/bomb",
        "application/yaml",
        "",
        text.as_bytes(),
    )
}

/// Returns a request that asks the API to judge runs of 3.8 MB in total.
pub(crate) fn large_question() -> Vec<u8> {
    let text = "ignore ".repeat(1_400);
    let span = |number: usize| {
        format!(
            r#"{{"traceId":"{:032x}","spanId":"{:016x}","name":"read","startTimeUnixNano":"1",
            "endTimeUnixNano":"2","attributes":[
            {{"key":"gen_ai.operation.name","value":{{"stringValue":"execute_tool"}}}},
            {{"key":"gen_ai.tool.name","value":{{"stringValue":"read"}}}},
            {{"key":"gen_ai.tool.call.result","value":{{"stringValue":"{text}"}}}}]}}"#,
            number + 1,
            number + 1,
        )
    };
    let spans: Vec<String> = (0..370).map(span).collect();
    let question = format!(
        r#"{{"traces":{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{}]}}]}}]}},"criteria":[
        {{"name":"a","evaluate":{{"tool_calls":{{"disallowed":["x"]}}}}}}]}}"#,
        spans.join(",")
    );
    asked(
        "POST",
        "/v1/evaluate",
        "application/json",
        "",
        question.as_bytes(),
    )
}

/// Returns the start of a TLS handshake: the client's first message if `whole`, else only the first
/// 100 bytes of that message.
pub(crate) fn begun_handshake(config: &Arc<ClientConfig>, whole: bool) -> Vec<u8> {
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = rustls::ClientConnection::new(Arc::clone(config), name).expect("a client");
    let mut bytes = Vec::new();
    // Writing to a vector does not fail.
    let _ = client.write_tls(&mut bytes);
    bytes.truncate(if whole { bytes.len() } else { 100 });
    bytes
}

/// Returns requests of 50,000 traces each. The traces remain open, because the parents of their
/// spans never arrive.
pub(crate) fn waiting_traces() -> Vec<Vec<u8>> {
    (0..8)
        .map(|nth| post("/v1/traces", "", &open_traces(nth * 50_000, 50_000)))
        .collect()
}

/// Returns requests of 5,000 complete traces each: 400,000 in total.
pub(crate) fn closing_traces() -> Vec<Vec<u8>> {
    (0..80)
        .map(|nth| post("/v1/traces", "", &ended_traces(nth * 5_000, 5_000)))
        .collect()
}

/// Returns runs of one span each, with an attribute of 500 kB that no convention reads.
pub(crate) fn bulky_runs() -> Vec<Vec<u8>> {
    let text = "x".repeat(500_000);
    let run = |number: u64| request(&[root(Ids::new(12, number), &[("note", &text)])]);
    (0..20).map(run).collect()
}

/// Returns short, complete runs, 300 in each request.
pub(crate) fn short_runs() -> Vec<Vec<u8>> {
    let run = |number: u64| {
        let ids = Ids::new(10, number);
        [call(ids, 2, "a", ""), root(ids, &[])].concat()
    };
    let batch = |nth: u64| request(&(0..300).map(|n| run(nth * 300 + n)).collect::<Vec<_>>());
    (0..20).map(batch).collect()
}

/// Returns four runs of 10,000 calls each, one in each request.
pub(crate) fn long_run() -> Vec<Vec<u8>> {
    let batch = |number: u64| {
        let ids = Ids::new(11, number);
        let mut spans: Vec<_> = (2..10_002).map(|span| call(ids, span, "a", "")).collect();
        spans.push(root(ids, &[]));
        request(&spans)
    };
    (0..4).map(batch).collect()
}

/// Returns eight complete runs of 2,000 calls, and then repeatedly one late call of each run.
pub(crate) fn late_calls() -> Vec<Vec<u8>> {
    let run = |number: u64| {
        let ids = Ids::new(12, number);
        let mut spans: Vec<_> = (2..2_002).map(|span| call(ids, span, "a", "")).collect();
        spans.push(root(ids, &[]));
        request(&spans)
    };
    let late = |nth: u64| {
        let calls = (0..8).map(|number| call(Ids::new(12, number), 10_000 + nth, "b", ""));
        request(&calls.collect::<Vec<_>>())
    };
    (0..8).map(run).chain((0..500).map(late)).collect()
}

/// Returns runs with a megabyte of results to search, each with its own expectation that contains a
/// slow pattern.
pub(crate) fn long_results() -> Vec<Vec<u8>> {
    let pattern = slow_evaluator();
    let text = "ignore ".repeat(2_300);
    let run = |number: u64| {
        let ids = Ids::new(13, number);
        let mut spans: Vec<_> = (2..66).map(|span| call(ids, span, "read", &text)).collect();
        spans.push(root(ids, &[("spanscore.expect", &pattern)]));
        request(&spans)
    };
    (0..20).map(run).collect()
}

/// Returns a request that registers a criterion with the slow pattern through the API.
pub(crate) fn slow_criterion() -> Vec<u8> {
    let criterion = format!(r#"{{"evaluate":{}}}"#, slow_evaluator());
    asked(
        "PUT",
        "/v1/criteria/by-api",
        "application/json",
        "",
        criterion.as_bytes(),
    )
}

fn slow_evaluator() -> String {
    let entry = r#"{"name":"read","result":"(?i)ignore.{0,1000}instructions"}"#;
    format!(r#"{{"tool_calls":{{"disallowed":[{entry}]}}}}"#)
}
