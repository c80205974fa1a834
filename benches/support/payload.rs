//! The requests that the benchmarks send: agents' traces as an SDK exports them, from a seed. Traces of 12 spans (4 model calls, 5 tool calls,
//! 2 inner spans, the agent's span last), many of them open at once, so that a request mixes spans of many traces.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

/// What the spans carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// 8 short attributes, about 400 bytes a span.
    Lean,
    /// Model spans with 2 to 20 KB of messages, tool spans with 0.2 to 2 KB of arguments and results: about 3.7 KB a span.
    Genai,
}

impl Profile {
    /// As it is called in the goals.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lean => "lean",
            Self::Genai => "genai",
        }
    }
}

/// Spans in a trace.
pub(crate) const SPANS_PER_TRACE: usize = 12;
/// Tools in the order in which each trace calls them, unless two are swapped.
pub(crate) const TOOLS: [&str; 5] = ["validate_user", "check_inventory", "create_order", "send_receipt", "update_crm"];

/// Makes requests.
pub(crate) struct Payload {
    profile: Profile,
    random: fastrand::Rng,
    open: Vec<Trace>,
    clock_unix_nanos: u64,
}

struct Trace {
    id: [u8; 16],
    root: [u8; 8],
    n_sent: usize,
    conversation: u32,
    start_unix_nanos: u64,
    /// Tools in the order of this trace.
    tools: [&'static str; 5],
}

/// In the order of their ends: model, tools, …, inner spans, the agent's span.
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

#[derive(Clone, Copy)]
enum Kind {
    Model,
    Tool(usize),
    Inner,
    Agent,
}

impl Payload {
    /// `n_open` traces are open at any time.
    pub(crate) fn new(profile: Profile, seed: u64, n_open: usize) -> Self {
        let mut payload =
            Self { profile, random: fastrand::Rng::with_seed(seed), open: Vec::new(), clock_unix_nanos: 1_795_000_000_000_000_000 };
        for _ in 0..n_open {
            let mut trace = payload.begin();
            // Traces are not in step with each other.
            trace.n_sent = payload.random.usize(..SPANS_PER_TRACE);
            payload.open.push(trace);
        }
        payload
    }

    /// The encoded `ExportTraceServiceRequest` of the next `n_spans` spans.
    pub(crate) fn request(&mut self, n_spans: usize) -> Vec<u8> {
        let spans = (0..n_spans).map(|_| self.span()).collect();
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
        let scope = InstrumentationScope { name: "agent.tracer".to_owned(), version: "0.9.1".to_owned(), ..Default::default() };
        let scope_spans = ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() };
        let resource_spans = ResourceSpans { resource: Some(resource), scope_spans: vec![scope_spans], ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
    }

    fn begin(&mut self) -> Trace {
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let mut tools = TOOLS;
        if self.random.u8(..4) == 0 {
            let at = self.random.usize(..4);
            tools.swap(at, at + 1);
        }
        Trace {
            id,
            root: self.random.u64(1..).to_be_bytes(),
            n_sent: 0,
            conversation: self.random.u32(..),
            start_unix_nanos: self.clock_unix_nanos,
            tools,
        }
    }

    fn span(&mut self) -> Span {
        let at = self.random.usize(..self.open.len());
        let (kind, span) = self.next_of(at);
        if let Kind::Agent = kind {
            self.open[at] = self.begin();
        }
        span
    }

    fn next_of(&mut self, at: usize) -> (Kind, Span) {
        self.clock_unix_nanos += self.random.u64(1_000..2_000_000);
        let end = self.clock_unix_nanos;
        let start = end - self.random.u64(1_000..900_000);
        let random_id = self.random.u64(1..).to_be_bytes();
        let trace = &mut self.open[at];
        let kind = KINDS[trace.n_sent];
        trace.n_sent += 1;
        let (trace_id, root, conversation, trace_start) =
            (trace.id.to_vec(), trace.root.to_vec(), trace.conversation, trace.start_unix_nanos);
        let tool = if let Kind::Tool(nth) = kind { trace.tools[nth] } else { "" };
        let name = match kind {
            Kind::Model => "chat gpt-5-mini".to_owned(),
            Kind::Tool(_) => format!("execute_tool {tool}"),
            Kind::Inner => "POST /internal/step".to_owned(),
            Kind::Agent => "invoke_agent checkout".to_owned(),
        };
        let is_agent = matches!(kind, Kind::Agent);
        let mut attributes = vec![
            text("gen_ai.conversation.id", &format!("conversation-2026-11-21-{conversation:08x}")),
            text("gen_ai.agent.name", "checkout"),
        ];
        attributes.extend(self.attributes(kind, tool));
        let span = Span {
            trace_id,
            span_id: if is_agent { root.clone() } else { random_id.to_vec() },
            parent_span_id: if is_agent { Vec::new() } else { root },
            flags: 0x101,
            name,
            kind: 1,
            start_time_unix_nano: if is_agent { trace_start } else { start },
            end_time_unix_nano: end,
            attributes,
            status: Some(Default::default()),
            ..Span::default()
        };
        (kind, span)
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
                    text("gen_ai.response.id", &format!("chatcmpl-{:012x}", self.random.u64(..1 << 48))),
                ];
                if genai {
                    let input = self.prose(1_800, 18_000);
                    let output = self.prose(200, 2_000);
                    let call = self.random.u64(..1 << 48);
                    attributes.push(text(
                        "gen_ai.input.messages",
                        &format!(r#"[{{"role":"user","parts":[{{"type":"text","content":"{input}"}}]}}]"#),
                    ));
                    attributes.push(text(
                        "gen_ai.output.messages",
                        &format!(
                            r#"[{{"role":"assistant","parts":[{{"type":"text","content":"{output}"}},{{"type":"tool_call","id":"call_{call:012x}","name":"{}","arguments":{{"id":7}}}}],"finish_reason":"tool_calls"}}]"#,
                            TOOLS[0]
                        ),
                    ));
                }
                attributes
            }
            Kind::Tool(_) => {
                let (args, result) = if genai { (self.prose(200, 2_000), self.prose(200, 2_000)) } else { (String::new(), String::new()) };
                let id = self.random.u32(..10_000);
                let mut attributes = vec![
                    text("gen_ai.operation.name", "execute_tool"),
                    text("gen_ai.tool.name", tool),
                    text("gen_ai.tool.call.id", &format!("call_{:012x}", self.random.u64(..1 << 48))),
                    text("gen_ai.tool.type", "function"),
                    text(
                        "gen_ai.tool.call.arguments",
                        &if genai { format!(r#"{{"id":{id},"q":"{args}"}}"#) } else { format!(r#"{{"id":{id}}}"#) },
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

    /// English-looking text whose length is even in the logarithm: many short ones, a few long ones.
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
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
