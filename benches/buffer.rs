//! Measures the CPU time per span that the trace buffer needs to insert spans, close traces and
//! remember the closed traces, with few and with many open traces. Prints ratios to few open traces
//! and to a prost decode of similar spans, because nanoseconds vary with the machine. The ratios
//! say nothing about the cost of the whole sidecar; see benches/README.md.
//!
//! Run it with `cargo bench --bench buffer`. Without `--bench` (as in `cargo test --benches`), it
//! runs one short round.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use judge::assemble::{CloseReason, Memo, Settings, TraceBuffer};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as ProtoSpan};
use otlp::span::{
    Attribute, KeyId, Now, PeerId, Resource, Span, SpanClass, SpanId, SpanRow, Status,
    StoredAttributes, StoredAttributesBuilder, TraceId, Value,
};
use prost::Message;
use rustix::time::{ClockId, clock_gettime};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OPEN: [u64; 3] = [64, 5_000, 40_000];
const SPANS_PER_TRACE: u64 = 12;
const SPANS_PER_BATCH: usize = 512;

#[derive(Default)]
struct Nothing;

impl Memo for Nothing {
    fn size(&self) -> usize {
        0
    }
}

fn main() -> io::Result<()> {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let (n_rounds, n_spans) = if is_bench { (9, 960_000) } else { (1, 24_000) };
    let mut out = io::stdout().lock();
    let mut rounds = Vec::new();
    for round in 0..n_rounds {
        let buffers =
            OPEN.map(|n_open| buffer_nanos(n_open.min(n_spans / SPANS_PER_TRACE), n_spans, round));
        rounds.push((buffers, decode_nanos(n_spans)));
    }
    writeln!(
        out,
        "trace buffer, insert + close + remember, CPU per span; medians of {n_rounds} rounds"
    )?;
    for (idx, n_open) in OPEN.iter().enumerate() {
        let nanos = median(rounds.iter().map(|(buffers, _)| buffers[idx]));
        let to_few = median(rounds.iter().map(|(buffers, _)| buffers[idx] / buffers[0]));
        let to_decode = median(rounds.iter().map(|(buffers, decode)| buffers[idx] / decode));
        writeln!(
            out,
            "{n_open:>6} open: {nanos:>4.0} ns   {to_few:.2} x 64 open   {to_decode:.2} x prost \
             decode"
        )?;
    }
    let n_traces = 10_000;
    let size = open_size(n_traces);
    let kept: usize = (0..SPANS_PER_TRACE).map(|n| kept(n).size()).sum();
    writeln!(
        out,
        "memory of an open trace of {SPANS_PER_TRACE} spans: {size} B, \
         of which {kept} B are kept names, attributes and arguments"
    )
}

/// Returns the nanoseconds per span. The spans of `n_open` traces are interleaved, and each root
/// arrives last, so about `n_open` traces are open at a time.
fn buffer_nanos(n_open: u64, n_spans: u64, round: u64) -> f64 {
    let resource = resource();
    let n_traces = n_spans / SPANS_PER_TRACE;
    let first = round * n_traces + 1;
    let spans: Vec<Span> = (first..first + n_traces)
        .step_by(n_open as usize)
        .flat_map(|from| {
            (0..SPANS_PER_TRACE).flat_map(move |n| {
                (from..(from + n_open).min(first + n_traces)).map(move |trace| (trace, n))
            })
        })
        .map(|(trace, n)| span(trace, n, &resource))
        .collect();
    let settings = Settings {
        settle: Duration::ZERO,
        inactive: Duration::from_secs(180),
        max_recent_size: 48 << 20,
        ..Settings::replay()
    };
    let now = begin();
    let mut buffer = TraceBuffer::<Nothing>::new(settings, now);
    let (mut n_inserted, mut n_closed) = (0, 0);
    let cpu = cpu_nanos();
    for span in spans {
        buffer.insert(span, PeerId::default(), now);
        n_inserted += 1;
        if n_inserted % SPANS_PER_BATCH == 0 {
            for closed in buffer.close_due(now, usize::MAX) {
                n_closed += 1;
                buffer.remember(closed, now);
            }
        }
    }
    let nanos = (cpu_nanos() - cpu) / n_inserted as f64;
    buffer.make_all_due(CloseReason::Shutdown, now);
    n_closed += buffer.close_due(now, usize::MAX).len();
    assert_eq!(n_closed as u64, n_traces, "every trace is closed once");
    nanos
}

fn open_size(n_traces: u64) -> usize {
    let now = begin();
    let mut buffer = TraceBuffer::<Nothing>::new(Settings::replay(), now);
    let resource = resource();
    for (trace, n) in (1..=n_traces).flat_map(|trace| (0..SPANS_PER_TRACE).map(move |n| (trace, n)))
    {
        buffer.insert(span(trace, n, &resource), PeerId::default(), now);
    }
    buffer.stats().open_size / n_traces as usize
}

/// Returns span `n` of a trace with five tool calls, four model spans and two inner spans, all
/// below the root, which is the last span.
fn span(trace: u64, n: u64, resource: &Arc<Resource>) -> Span {
    // The hash makes ids look as random as real ones.
    let trace_id = u128::from(trace)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        .to_be_bytes();
    let is_root = n + 1 == SPANS_PER_TRACE;
    let span_id = |n: u64| {
        SpanId::try_new(
            &(trace * SPANS_PER_TRACE + n + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_be_bytes(),
        )
    };
    Span {
        trace_id: TraceId::try_new(&trace_id).expect("an odd factor maps no trace to zero"),
        row: SpanRow {
            parent_id: if is_root { None } else { span_id(SPANS_PER_TRACE - 1) },
            start_unix_nanos: 1_700_000_000_000_000_000 + n,
            end_unix_nanos: 1_700_000_001_000_000_000 + n,
            flags: 0x101,
            n_attributes: 8,
            status: Status::Ok,
            class: SpanClass {
                tool_call: n < 5,
                model: (5..9).contains(&n),
                agent_run: is_root,
                ..SpanClass::default()
            },
            ..SpanRow::new(span_id(n).expect("an odd factor maps no span to zero"))
        },
        resource: Arc::clone(resource),
        kept: kept(n),
    }
}

fn kept(n: u64) -> StoredAttributes {
    let mut builder = StoredAttributesBuilder::default();
    builder.name("execute_tool search");
    let kept: &[(u16, &str)] = if n < 5 {
        &[
            (1, "execute_tool"),
            (2, "search"),
            (3, r#"{"query":"cats and dogs"}"#),
        ]
    } else {
        &[(1, "chat")]
    };
    for &(key, value) in kept {
        builder.attribute(Attribute {
            key: KeyId(key),
            suffix: "",
            value: Value::Str(value),
            cut: false,
        });
    }
    builder.finish()
}

fn resource() -> Arc<Resource> {
    Arc::new(Resource {
        encoded: vec![0; 200].into(),
        service: "shop".into(),
        kept: StoredAttributes::default(),
    })
}

/// Returns the nanoseconds per span that prost takes to decode requests of 512 spans with 8 short
/// attributes, like the lean payload of docs/performance.md.
fn decode_nanos(n_spans: u64) -> f64 {
    let attribute = |n: u64| KeyValue {
        key: format!("gen_ai.attribute.{n}"),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(format!("a short value {n}"))),
        }),
        ..KeyValue::default()
    };
    let span = |n: u64| ProtoSpan {
        trace_id: u128::from(n / SPANS_PER_TRACE + 1).to_be_bytes().to_vec(),
        span_id: (n + 1).to_be_bytes().to_vec(),
        parent_span_id: 1u64.to_be_bytes().to_vec(),
        name: "execute_tool search".to_owned(),
        start_time_unix_nano: 1_700_000_000_000_000_000 + n,
        end_time_unix_nano: 1_700_000_001_000_000_000 + n,
        attributes: (0..8).map(attribute).collect(),
        ..ProtoSpan::default()
    };
    let spans = (0..SPANS_PER_BATCH as u64).map(span).collect();
    let scope_spans = vec![ScopeSpans {
        spans,
        ..ScopeSpans::default()
    }];
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans,
            ..ResourceSpans::default()
        }],
    };
    let requests: Vec<Vec<u8>> = (0..8).map(|_| request.encode_to_vec()).collect();
    let n_requests = (n_spans as usize / SPANS_PER_BATCH / 4).max(8);
    let cpu = cpu_nanos();
    for body in requests.iter().cycle().take(n_requests) {
        std::hint::black_box(
            ExportTraceServiceRequest::decode(body.as_slice()).expect("we have encoded it"),
        );
    }
    (cpu_nanos() - cpu) / (n_requests * SPANS_PER_BATCH) as f64
}

fn cpu_nanos() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can be had in no other way; nothing here measures with it"
)]
fn begin() -> Now {
    Now {
        instant: Instant::now(),
        unix_nanos: 1_800_000_000_000_000_000,
    }
}
