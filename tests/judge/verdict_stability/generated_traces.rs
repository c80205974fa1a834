//! Generates traces in which missing spans matter: wrappers of a call in one process or across two
//! processes with different clocks, calls reported twice by their ids, hand-offs, agents called as
//! tools, model replies that contain names and arguments, equal starts. No single framework sends
//! all of these.

use fastrand::Rng;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use serde_json::json;

const TOOLS: &[&str] = &["a", "b", "c", "transfer_to_helper"];
const AGENTS: &[&str] = &["lead", "helper", "clerk"];
const LOCAL: u32 = 0x100;
const REMOTE: u32 = 0x300;

pub(crate) fn request(random: &mut Rng) -> Vec<u8> {
    let mut made = Made {
        random,
        spans: Vec::new(),
        now: 1_700_000_000_000_000_000,
        n_ids: 0,
        knows_flags: false,
        skews: [0, 0],
    };
    made.knows_flags = made.random.u8(..4) > 0;
    made.skews[1] = made.random.i64(-40..40);
    let root = made.start(0, None, "root");
    if made.random.bool() {
        made.mark_run(root, "lead");
    }
    made.work(0, root, 0);
    made.end(root);
    let of_process = |process: usize| {
        let spans: Vec<Span> = made
            .spans
            .iter()
            .filter(|(of, _)| *of == process)
            .map(|(_, span)| span.clone())
            .collect();
        let resource = Resource {
            attributes: vec![attribute("service.name", ["front", "server"][process])],
            ..Resource::default()
        };
        ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans {
                spans,
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }
    };
    ExportTraceServiceRequest {
        resource_spans: vec![of_process(0), of_process(1)],
    }
    .encode_to_vec()
}

struct Made<'a> {
    random: &'a mut Rng,
    spans: Vec<(usize, Span)>,
    now: u64,
    n_ids: u32,
    knows_flags: bool,
    /// The lead of each process's clock in nanoseconds.
    skews: [i64; 2],
}

struct Call {
    name: &'static str,
    id: Option<String>,
    args: &'static str,
    bare: bool,
}

impl Made<'_> {
    /// Generates turns of a model and the calls that it requested.
    fn work(&mut self, process: usize, above: usize, depth: u32) {
        for _ in 0..self.random.u8(1..4) {
            let calls: Vec<Call> = (0..self.random.u8(0..3)).map(|_| self.call()).collect();
            if self.random.u8(..3) > 0 {
                let model = self.start(process, Some(above), "chat");
                self.set(model, "gen_ai.operation.name", "chat");
                if self.random.bool() {
                    let parts: Vec<_> = calls
                        .iter()
                        .map(|call| {
                            let args: serde_json::Value = serde_json::from_str(call.args).unwrap();
                            json!({
                                "type": "tool_call",
                                "id": call.id,
                                "name": call.name,
                                "arguments": args,
                            })
                        })
                        .collect();
                    let messages = json!([{ "role": "assistant", "parts": parts }]).to_string();
                    self.set(model, "gen_ai.output.messages", &messages);
                }
                self.end(model);
            }
            let above = if self.random.u8(..4) == 0 {
                self.start(process, Some(above), "tools")
            } else {
                above
            };
            for call in calls {
                self.make(process, above, &call, depth);
            }
            if depth < 2 && self.random.u8(..5) == 0 {
                self.run(process, above, depth + 1);
            }
        }
    }

    fn run(&mut self, process: usize, above: usize, depth: u32) {
        let run = self.start(process, Some(above), "run");
        let name = AGENTS[self.random.usize(..AGENTS.len())];
        self.mark_run(run, name);
        self.work(process, run, depth);
        self.end(run);
    }

    fn call(&mut self) -> Call {
        self.n_ids += 1;
        let id = (self.random.u8(..3) > 0).then(|| format!("call_{}", self.n_ids));
        let args = [
            "{\"x\":\"one\"}",
            "{\"x\":\"two\",\"command\":\"rm\"}",
            "{}",
            "{\"n\":1000}",
        ][self.random.usize(..4)];
        Call {
            name: TOOLS[self.random.usize(..TOOLS.len())],
            id,
            args,
            bare: self.random.u8(..6) == 0,
        }
    }

    /// Generates the spans of one call: alone, inside a wrapper, enclosing the report of another
    /// process or an agent's run, or repeated by another instrumentation.
    fn make(&mut self, process: usize, above: usize, call: &Call, depth: u32) {
        let outer = self.tell(process, above, call);
        match self.random.u8(..10) {
            0..=2 => {
                let plain = if self.random.bool() {
                    self.start(process, Some(outer), "send")
                } else {
                    outer
                };
                let inner_process = if self.random.bool() { 1 - process } else { process };
                for _ in 0..self.random.u8(1..3) {
                    let inner = self.tell(inner_process, plain, call);
                    self.end(inner);
                }
                self.end(plain);
            }
            3 if depth < 2 => self.run(process, outer, depth + 1),
            _ => {}
        }
        self.end(outer);
        if call.id.is_some() && self.random.u8(..8) == 0 {
            let beside = self.start(process, Some(above), "beside");
            let mut twin = self.spans[outer].1.clone();
            twin.span_id = self.spans[beside]
                .1
                .span_id
                .iter()
                .map(|byte| byte ^ 0x80)
                .collect();
            twin.parent_span_id
                .clone_from(&self.spans[beside].1.span_id);
            self.spans.push((process, twin));
            self.end(beside);
        }
    }

    fn tell(&mut self, process: usize, above: usize, call: &Call) -> usize {
        let tool = self.start(process, Some(above), "execute_tool");
        self.set(tool, "gen_ai.operation.name", "execute_tool");
        if self.random.u8(..20) > 0 {
            self.set(tool, "gen_ai.tool.name", call.name);
        }
        let id = call.id.as_deref().filter(|_| self.random.u8(..4) > 0);
        if let Some(id) = id {
            self.set(tool, "gen_ai.tool.call.id", id);
        }
        let args = match call.args {
            "{\"x\":\"one\"}" if call.bare => "one",
            "{\"n\":1000}" if self.random.bool() => "{\"n\":1000.0}",
            // This span reports other arguments than the model requested.
            _ if id.is_none() && self.random.u8(..8) == 0 => "{\"n\":10}",
            args => args,
        };
        if self.random.u8(..3) > 0 {
            self.set(tool, "gen_ai.tool.call.arguments", args);
        }
        if self.random.u8(..3) > 0 {
            self.set(tool, "gen_ai.tool.call.result", "ok");
        }
        tool
    }

    fn mark_run(&mut self, at: usize, name: &str) {
        self.set(at, "gen_ai.operation.name", "invoke_agent");
        self.set(at, "gen_ai.agent.name", name);
    }

    fn start(&mut self, process: usize, above: Option<usize>, name: &str) -> usize {
        // Clocks with millisecond resolution give equal starts.
        self.now += self.random.u64(0..4) * 5;
        let is_remote = above.is_some_and(|above| self.spans[above].0 != process);
        let span = Span {
            trace_id: vec![7; 16],
            span_id: (self.spans.len() as u64 + 1).to_be_bytes().to_vec(),
            parent_span_id: above
                .map(|above| self.spans[above].1.span_id.clone())
                .unwrap_or_default(),
            name: name.to_owned(),
            start_time_unix_nano: self.now.saturating_add_signed(self.skews[process]),
            flags: match (self.knows_flags, is_remote) {
                (false, _) => 0,
                (true, true) => REMOTE,
                (true, false) => LOCAL,
            },
            ..Span::default()
        };
        self.spans.push((process, span));
        self.spans.len() - 1
    }

    fn end(&mut self, at: usize) {
        self.now += self.random.u64(1..10);
        let (process, span) = &mut self.spans[at];
        span.end_time_unix_nano = self.now.saturating_add_signed(self.skews[*process]);
    }

    fn set(&mut self, at: usize, key: &str, text: &str) {
        self.spans[at].1.attributes.push(attribute(key, text));
    }
}

fn attribute(key: &str, text: &str) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(any_value::Value::StringValue(text.to_owned())),
    });
    KeyValue {
        key: key.to_owned(),
        value,
        ..KeyValue::default()
    }
}
