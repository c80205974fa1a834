//! The requests that the benchmarks send: agents' traces as an SDK exports them, generated from a
//! seed. A trace has 12 spans (4 model calls, 5 tool calls, 2 inner spans and, last, the agent's
//! span). Many traces are open at the same time, so a request mixes spans of many traces.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// 8 short attributes, about 400 bytes a span.
    Lean,
    /// Model spans with 2 to 20 KB of messages, tool spans with 0.2 to 2 KB each of arguments and
    /// results: about 3.7 KB a span.
    Genai,
}

impl Profile {
    /// Returns the name that the goals use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lean => "lean",
            Self::Genai => "genai",
        }
    }
}

pub(crate) const SPANS_PER_TRACE: usize = 12;
/// Tools in the order in which each trace calls them; some traces swap two.
pub(crate) const TOOLS: [&str; 5] = [
    "validate_user",
    "check_inventory",
    "create_order",
    "send_receipt",
    "update_crm",
];

/// The spans of a trace in the order of their ends.
const KINDS: [Kind; SPANS_PER_TRACE] = [
    Kind::Model,
    Kind::Tool(0),
    Kind::Tool(1),
    Kind::Model,
    Kind::Tool(2),
    Kind::Inner,
    Kind::Model,
    Kind::Tool(3),
    Kind::Tool(4),
    Kind::Inner,
    Kind::Model,
    Kind::Agent,
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model,
    Tool(usize),
    Inner,
    Agent,
}

/// Requests that can be sent repeatedly, because their traces get new ids in each turn. The last
/// spans in the ring belong to traces that continue at its beginning, so that only the first traces
/// are incomplete however long a benchmark runs.
pub(crate) struct Ring {
    requests: Vec<Template>,
    traces_per_lane: u64,
    seed: u64,
}

struct Template {
    body: Vec<u8>,
    spans: Vec<Place>,
}

/// One span of a request, and the source of its ids.
struct Place {
    /// The position in the body at which the 16-byte trace id starts.
    offset: usize,
    lane: u32,
    /// The number of the trace in its lane. A lane has one open trace at a time.
    nth: u32,
    span_id: u64,
    is_root: bool,
}

pub(crate) struct Filled {
    /// An encoded `ExportTraceServiceRequest`.
    pub(crate) body: Vec<u8>,
    /// The number of traces whose last span is in the request.
    pub(crate) n_roots: u64,
    /// The sum of the [`digest`]s of the request's spans.
    pub(crate) digest: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipe {
    pub(crate) profile: Profile,
    /// The number of traces that are open at any time.
    pub(crate) n_open: usize,
    pub(crate) spans_per_request: usize,
    pub(crate) min_requests: usize,
    pub(crate) seed: u64,
}

/// Returns a number for a span. If the sender and the receiver compute the same sum of these
/// numbers, each span arrived once.
pub(crate) fn digest(trace_id: &[u8], span_id: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    mix(word(trace_id) ^ mix(word(trace_id.get(8..).unwrap_or_default()) ^ mix(word(span_id))))
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Ring {
    pub(crate) fn new(recipe: Recipe) -> Self {
        let Recipe {
            profile,
            n_open,
            spans_per_request,
            min_requests,
            seed,
        } = recipe;
        // A lane contains one trace after the other. A row has one span of every lane, in random
        // order. Lanes begin their traces at different rows.
        let mut traces_per_lane = 1;
        while !(n_open * SPANS_PER_TRACE * traces_per_lane).is_multiple_of(spans_per_request)
            || n_open * SPANS_PER_TRACE * traces_per_lane / spans_per_request < min_requests
        {
            traces_per_lane += 1;
        }
        let mut author = Author {
            profile,
            random: fastrand::Rng::with_seed(seed),
        };
        let traces: Vec<Trace> = (0..n_open * traces_per_lane)
            .map(|_| author.trace())
            .collect();
        let mut order: Vec<usize> = (0..n_open).collect();
        let mut requests = Vec::new();
        let mut batch = Vec::with_capacity(spans_per_request);
        for row in 0..SPANS_PER_TRACE * traces_per_lane {
            author.random.shuffle(&mut order);
            for &lane in &order {
                let at = row + lane % SPANS_PER_TRACE;
                let nth = at / SPANS_PER_TRACE;
                let trace = &traces[lane * traces_per_lane + nth % traces_per_lane];
                let span = author.span(trace, at % SPANS_PER_TRACE);
                let is_root = KINDS[at % SPANS_PER_TRACE] == Kind::Agent;
                let span_id = span
                    .span_id
                    .first_chunk()
                    .map_or(0, |bytes| u64::from_be_bytes(*bytes));
                batch.push((
                    span.encode_to_vec(),
                    Place {
                        offset: 0,
                        lane: lane as u32,
                        nth: nth as u32,
                        span_id,
                        is_root,
                    },
                ));
                if batch.len() == spans_per_request {
                    requests.push(Template::new(std::mem::take(&mut batch)));
                }
            }
        }
        Self {
            requests,
            traces_per_lane: traces_per_lane as u64,
            seed,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns the request at a position of an endless stream. Different streams have different
    /// trace ids.
    pub(crate) fn fill(&self, stream: u64, position: u64) -> Filled {
        let n_requests = self.requests.len() as u64;
        let template = &self.requests[(position % n_requests) as usize];
        let first = position / n_requests * self.traces_per_lane;
        let mut filled = Filled {
            body: template.body.clone(),
            n_roots: 0,
            digest: 0,
        };
        for place in &template.spans {
            let lane = mix(self.seed ^ mix(stream) ^ u64::from(place.lane));
            let trace = mix(lane ^ (first + u64::from(place.nth)));
            let trace_id = &mut filled.body[place.offset..place.offset + 16];
            trace_id[..8].copy_from_slice(&lane.to_le_bytes());
            trace_id[8..].copy_from_slice(&trace.to_le_bytes());
            filled.digest = filled
                .digest
                .wrapping_add(digest(trace_id, &place.span_id.to_be_bytes()));
            filled.n_roots += u64::from(place.is_root);
        }
        filled
    }
}

impl Template {
    /// Each span begins with its trace id, so the offset of the id is known while the request is
    /// built.
    fn new(spans: Vec<(Vec<u8>, Place)>) -> Self {
        let resource = Resource {
            attributes: vec![
                text("service.name", "checkout-agent"),
                text("service.version", "1.4.2"),
                text("telemetry.sdk.language", "python"),
                text("telemetry.sdk.name", "opentelemetry"),
                text("telemetry.sdk.version", "1.39.0"),
            ],
            ..Resource::default()
        };
        let scope = InstrumentationScope {
            name: "agent.tracer".to_owned(),
            version: "0.9.1".to_owned(),
            ..Default::default()
        };
        let mut scope_spans = ScopeSpans {
            scope: Some(scope),
            ..ScopeSpans::default()
        }
        .encode_to_vec();
        let mut places = Vec::with_capacity(spans.len());
        for (span, mut place) in spans {
            delimit(SPANS, span.len(), &mut scope_spans);
            place.offset = scope_spans.len() + TRACE_ID_AT;
            scope_spans.extend_from_slice(&span);
            places.push(place);
        }
        let mut resource_spans = ResourceSpans {
            resource: Some(resource),
            ..ResourceSpans::default()
        }
        .encode_to_vec();
        delimit(SCOPE_SPANS, scope_spans.len(), &mut resource_spans);
        let mut body = Vec::new();
        delimit(
            RESOURCE_SPANS,
            resource_spans.len() + scope_spans.len(),
            &mut body,
        );
        let before = body.len() + resource_spans.len();
        places.iter_mut().for_each(|place| place.offset += before);
        body.extend_from_slice(&resource_spans);
        body.extend_from_slice(&scope_spans);
        Self {
            body,
            spans: places,
        }
    }
}

const RESOURCE_SPANS: u32 = 1;
const SCOPE_SPANS: u32 = 2;
const SPANS: u32 = 2;
/// The offset of the trace id in a span, after the id's key and length.
const TRACE_ID_AT: usize = 2;

fn delimit(tag: u32, len: usize, out: &mut Vec<u8>) {
    prost::encoding::encode_key(tag, prost::encoding::WireType::LengthDelimited, out);
    prost::encoding::encode_varint(len as u64, out);
}

struct Trace {
    root: [u8; 8],
    conversation: u32,
    start_unix_nanos: u64,
    /// The tools in the order in which this trace calls them.
    tools: [&'static str; 5],
}

struct Author {
    profile: Profile,
    random: fastrand::Rng,
}

impl Author {
    fn trace(&mut self) -> Trace {
        let mut tools = TOOLS;
        if self.random.u8(..4) == 0 {
            let at = self.random.usize(..4);
            tools.swap(at, at + 1);
        }
        Trace {
            root: self.random.u64(1..).to_be_bytes(),
            conversation: self.random.u32(..),
            // A fixed time in the past, so that the requests do not depend on the machine's clock.
            start_unix_nanos: 1_700_000_000_000_000_000 + self.random.u64(..1_000_000_000_000),
            tools,
        }
    }

    fn span(&mut self, trace: &Trace, nth: usize) -> Span {
        const STEP: u64 = 2_000_000;
        let kind = KINDS[nth];
        let tool = if let Kind::Tool(nth) = kind { trace.tools[nth] } else { "" };
        let name = match kind {
            Kind::Model => "chat gpt-5-mini".to_owned(),
            Kind::Tool(_) => format!("execute_tool {tool}"),
            Kind::Inner => "POST /internal/step".to_owned(),
            Kind::Agent => "invoke_agent checkout".to_owned(),
        };
        let is_agent = matches!(kind, Kind::Agent);
        let start = trace.start_unix_nanos + if is_agent { 0 } else { (nth as u64 + 1) * STEP };
        let end = if is_agent {
            start + (SPANS_PER_TRACE as u64 + 2) * STEP
        } else {
            start + self.random.u64(1_000..900_000)
        };
        let mut attributes = vec![
            text(
                "gen_ai.conversation.id",
                &format!("conversation-2026-11-21-{:08x}", trace.conversation),
            ),
            text("gen_ai.agent.name", "checkout"),
        ];
        attributes.extend(self.attributes(kind, tool));
        Span {
            trace_id: vec![0xff; 16],
            span_id: if is_agent {
                trace.root.to_vec()
            } else {
                self.random.u64(1..).to_be_bytes().to_vec()
            },
            parent_span_id: if is_agent { Vec::new() } else { trace.root.to_vec() },
            flags: 0x101,
            name,
            kind: 1,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes,
            status: Some(Default::default()),
            ..Span::default()
        }
    }

    fn attributes(&mut self, kind: Kind, tool: &str) -> Vec<KeyValue> {
        let genai = self.profile == Profile::Genai;
        match kind {
            Kind::Model => {
                let mut attributes = vec![
                    text("gen_ai.operation.name", "chat"),
                    text("gen_ai.provider.name", "openai"),
                    text("gen_ai.request.model", "gpt-5-mini"),
                    int("gen_ai.usage.input_tokens", self.random.i64(100..9_000)),
                    int("gen_ai.usage.output_tokens", self.random.i64(10..900)),
                    text(
                        "gen_ai.response.id",
                        &format!("chatcmpl-{:012x}", self.random.u64(..1 << 48)),
                    ),
                ];
                if genai {
                    let input = self.prose(1_800, 18_000);
                    let output = self.prose(200, 2_000);
                    let call = self.random.u64(..1 << 48);
                    attributes.push(text(
                        "gen_ai.input.messages",
                        &format!(
                            r#"[{{"role":"user","parts":[{{"type":"text","content":"{input}"}}]}}]"#
                        ),
                    ));
                    let said = format!(r#"{{"type":"text","content":"{output}"}}"#);
                    let called = format!(
                        r#"{{"type":"tool_call","id":"call_{call:012x}","name":"{}",{}}}"#,
                        TOOLS[0], r#""arguments":{"id":7}"#
                    );
                    attributes.push(text(
                        "gen_ai.output.messages",
                        &format!(
                            r#"[{{"role":"assistant","parts":[{said},{called}],{}}}]"#,
                            r#""finish_reason":"tool_calls""#
                        ),
                    ));
                }
                attributes
            }
            Kind::Tool(_) => {
                let (args, result) = if genai {
                    (self.prose(200, 2_000), self.prose(200, 2_000))
                } else {
                    (String::new(), String::new())
                };
                let id = self.random.u32(..10_000);
                let mut attributes = vec![
                    text("gen_ai.operation.name", "execute_tool"),
                    text("gen_ai.tool.name", tool),
                    text(
                        "gen_ai.tool.call.id",
                        &format!("call_{:012x}", self.random.u64(..1 << 48)),
                    ),
                    text("gen_ai.tool.type", "function"),
                    text(
                        "gen_ai.tool.call.arguments",
                        &if genai {
                            format!(r#"{{"id":{id},"q":"{args}"}}"#)
                        } else {
                            format!(r#"{{"id":{id}}}"#)
                        },
                    ),
                    bool("tool.cached", id.is_multiple_of(2)),
                ];
                if genai {
                    attributes.push(text("gen_ai.tool.call.result", &result));
                }
                attributes
            }
            Kind::Inner => vec![
                text("http.request.method", "POST"),
                text("url.path", "/internal/step"),
                int("http.response.status_code", 200),
                text("server.address", "inventory.internal"),
                text("network.protocol.version", "1.1"),
                text("thread.name", "worker-3"),
            ],
            Kind::Agent => vec![
                text("gen_ai.operation.name", "invoke_agent"),
                text("gen_ai.provider.name", "openai"),
                text("gen_ai.request.model", "gpt-5-mini"),
                int("gen_ai.usage.input_tokens", self.random.i64(100..9_000)),
                int("gen_ai.usage.output_tokens", self.random.i64(10..900)),
                text("deployment.environment.name", "production"),
            ],
        }
    }

    /// Returns English-looking text with log-uniform length: many short texts, a few long ones.
    fn prose(&mut self, shortest: usize, longest: usize) -> String {
        const WORDS: [&str; 16] = [
            "the order",
            "was",
            "checked",
            "against",
            "inventory",
            "and",
            "customer",
            "asked for",
            "a refund of",
            "42.50 EUR,",
            "please",
            "confirm",
            "shipping",
            "to Berlin",
            "before",
            "Friday.",
        ];
        let (low, high) = ((shortest as f64).ln(), (longest as f64).ln());
        let len = (low + self.random.f64() * (high - low)).exp() as usize;
        let mut prose = String::with_capacity(len + 16);
        while prose.len() < len {
            prose.push_str(WORDS[self.random.usize(..WORDS.len())]);
            prose.push(' ');
        }
        prose
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn int(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn bool(key: &str, value: bool) -> KeyValue {
    attribute(key, Value::BoolValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
