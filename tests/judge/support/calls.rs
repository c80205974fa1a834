//! Trajectories written as plain lists of calls, for tests of judging. They do not prove how spans
//! become calls.

use std::sync::Arc;

use judge::assemble::CloseReason;
use judge::evaluate::{Criterion, Evaluation, Expectations, Explain, judge_run};
use judge::extract::{
    AgentRun, CASE_ID, CRITERIA, CallUncertainty, CapturedParts, EXPECT, ExpectationAttributes,
    ModelUse, Payload, StatedValue, Subject, Tokens, ToolCall, Trajectory, set_captured,
};
use otlp::span::{Resource, SpanId, StoredAttributes, TraceId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A call as a test writes it: a name or a map.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) args: Option<Value>,
    pub(crate) result: Option<Value>,
    pub(crate) step: u32,
    /// True if the call's span has not ended.
    pub(crate) partial: bool,
    /// True if the call's span has no start, or ends before it starts.
    pub(crate) untimed: bool,
    /// True if only the beginning of the call's arguments and result was stored.
    pub(crate) cut: bool,
    pub(crate) run: Option<usize>,
    /// True if the call failed. If omitted, the call succeeded, but with `from_messages` this is
    /// unknown.
    pub(crate) error: Option<bool>,
    /// Start and end in milliseconds. By default, a call starts 10 ms after the previous call and
    /// lasts 5 ms.
    pub(crate) at: Option<(u64, u64)>,
    /// The number of the model reply that requested this call together with others.
    pub(crate) group: Option<u32>,
}

/// A trajectory as a test writes it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Written {
    pub(crate) calls: Vec<Call>,
    /// The calls of each turn of a session, instead of `calls`. The times of each turn begin 1,000
    /// seconds after those of the previous turn.
    pub(crate) turns: Vec<Vec<Call>>,
    pub(crate) cut_short: bool,
    pub(crate) from_messages: bool,
    pub(crate) service: String,
    pub(crate) root: String,
    pub(crate) agent: Option<String>,
    pub(crate) attributes: Map<String, Value>,
    pub(crate) nodes: Vec<String>,
    /// Agent runs in order of their starts: the name, and the index of the enclosing run.
    pub(crate) runs: Vec<(String, Option<usize>)>,
    /// The input tokens and output tokens that each model call recorded.
    pub(crate) models: Vec<[Option<u64>; 2]>,
    /// The totals that the agent recorded for all its model calls.
    pub(crate) total: Option<[u64; 2]>,
    /// True if other traces of the service have model spans.
    pub(crate) others_have_models: bool,
}

impl<'de> Deserialize<'de> for Call {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Value::deserialize(deserializer)?;
        let Value::Object(mut fields) = written else {
            return Ok(Self {
                name: written.as_str().unwrap_or("(not a name)").to_owned(),
                ..Self::default()
            });
        };
        let mut take = |key: &str| fields.shift_remove(key).filter(|value| !value.is_null());
        let call = Self {
            name: take("name")
                .and_then(|name| name.as_str().map(str::to_owned))
                .unwrap_or_default(),
            args: take("args"),
            result: take("result"),
            step: take("step").and_then(|step| step.as_u64()).unwrap_or(0) as u32,
            partial: take("partial").is_some_and(|partial| partial == json!(true))
                || take("completed") == Some(json!(false)),
            untimed: take("untimed") == Some(json!(true)),
            cut: take("cut").is_some_and(|cut| cut == json!(true)),
            run: take("run")
                .and_then(|run| run.as_u64())
                .map(|run| run as usize),
            error: take("error").and_then(|error| error.as_bool()),
            at: take("at").and_then(|at| serde_json::from_value(at).ok()),
            group: take("group")
                .and_then(|group| group.as_u64())
                .map(|group| group as u32),
        };
        fields.retain(|key, value| {
            !value.is_null() || !["args", "result", "step"].contains(&key.as_str())
        });
        match fields
            .keys()
            .find(|key| !["id", "completed", "partial", "cut", "run"].contains(&key.as_str()))
        {
            Some(key) => Err(serde::de::Error::custom(format!("a call has no `{key}`"))),
            None => Ok(call),
        }
    }
}

fn model_use(written: &Written) -> ModelUse {
    let tokens = |of: &dyn Fn(&[Option<u64>; 2]) -> Option<u64>| {
        let recorded = || written.models.iter().map(of);
        let n_without = recorded().filter(Option::is_none).count() as u64;
        let least = recorded().flatten().sum();
        let total = written
            .total
            .as_ref()
            .and_then(|total| of(&total.map(Some)));
        let least = total.unwrap_or(least);
        Tokens {
            least,
            most: if n_without > 0 { u64::MAX } else { least },
            n_without,
        }
    };
    let n_calls = written.models.len() as u64;
    ModelUse {
        n_calls,
        n_certain: n_calls,
        from_agent: written.total.is_some(),
        is_usage_stored: true,
        others_have_models: written.others_have_models,
        input: tokens(&|[input, _]| *input),
        output: tokens(&|[_, output]| *output),
        total: tokens(&|[input, output]| Some((*input)? + (*output)?)),
    }
}

/// Builds a trajectory from written calls, without the pipeline.
pub(crate) fn trajectory(written: &Written) -> Trajectory {
    let resource = Arc::new(Resource {
        encoded: Box::default(),
        service: written.service.as_str().into(),
        kept: StoredAttributes::default(),
    });
    let subject = |name: &str, at: usize, attributes: Vec<(Arc<str>, Arc<str>)>| Subject {
        span_id: SpanId::try_new(&(at as u64 + 1).to_be_bytes()).expect("not zero"),
        name: name.into(),
        start_unix_nanos: at as u64 + 1,
        end_unix_nanos: 1_000_001,
        flags: 0,
        trace_state: "".into(),
        resource: resource.clone(),
        attributes,
    };
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let attributes = written
        .attributes
        .iter()
        .map(|(key, value)| (key.as_str().into(), text(value).into()))
        .collect();
    let tool_calls = written.calls.iter().enumerate().map(|(at, call)| {
        let payload = |value: &Value| Payload::new(text(value), value.clone(), call.cut);
        let (start, end) = call.at.unwrap_or((at as u64 * 10, at as u64 * 10 + 5));
        ToolCall {
            name: call.name.as_str().into(),
            call_id: None,
            args: call.args.as_ref().map(payload),
            result: call.result.as_ref().map(payload),
            captured: CapturedParts::default(),
            error: call.error == Some(true),
            agent: None,
            agent_run: call.run,
            step: call.step,
            parallel_group: call.group,
            span_id: SpanId::try_new(&(at as u64 + 1_000).to_be_bytes()),
            start_unix_nanos: start * 1_000_000,
            end_unix_nanos: end * 1_000_000,
            convention: "tool_name".into(),
            partial: call.partial,
            untimed: call.untimed,
            uncertainty: CallUncertainty {
                error: written.from_messages && call.error.is_none(),
                ..CallUncertainty::default()
            },
        }
    });
    let mut tool_calls: Vec<ToolCall> = tool_calls.collect();
    set_captured(&mut tool_calls);
    Trajectory {
        subject: Some(subject(&written.root, 0, attributes)),
        service: written.service.as_str().into(),
        root: written.root.as_str().into(),
        agent: written.agent.as_deref().map(Into::into),
        completeness: if written.cut_short {
            CloseReason::Inactive
        } else {
            CloseReason::RootEnded
        },
        cut_short: written.cut_short,
        from_messages: written.from_messages,
        n_spans: written.calls.len(),
        latest_end_unix_nanos: 1_000_000,
        model_use: model_use(written),
        agent_runs: written
            .runs
            .iter()
            .enumerate()
            .map(|(at, (name, parent))| AgentRun {
                name: name.as_str().into(),
                subject: subject(&format!("invoke_agent {name}"), at, Vec::new()),
                parent: *parent,
                ended: true,
                may_merge: false,
                model_use: ModelUse::default(),
                session: None,
            })
            .collect(),
        node_visits: written
            .nodes
            .iter()
            .map(|name| name.as_str().into())
            .collect(),
        expectation_attributes: expectation_attributes(&written.attributes).into(),
        ..Trajectory::of_calls(TraceId::try_new(&[7; 16]).expect("not zero"), tool_calls)
    }
}

/// Joins the turns of a session as the pipeline does.
fn session(written: &Written) -> Trajectory {
    let turns = written.turns.iter().zip(1_u8..).map(|(calls, number)| {
        let mut turn = trajectory(&Written {
            calls: calls.clone(),
            turns: Vec::new(),
            cut_short: false,
            ..written.clone()
        });
        let offset = u64::from(number) * 1_000_000_000_000;
        for call in &mut turn.tool_calls {
            call.start_unix_nanos += offset;
            call.end_unix_nanos += offset;
        }
        Arc::new(Trajectory {
            trace_id: TraceId::try_new(&[number; 16]).expect("not zero"),
            session: Some("s".into()),
            ..turn
        })
    });
    let turns: Vec<Arc<Trajectory>> = turns.collect();
    let completeness = if written.cut_short { CloseReason::NotWhole } else { CloseReason::Silent };
    Trajectory::merge(&turns, completeness).expect("a session has turns")
}

/// Judges one trajectory by loaded criteria and by the expectations of single runs.
pub(crate) fn judged(
    criteria: &[Arc<Criterion>],
    expectations: &Expectations,
    written: &Written,
    explain: &Explain,
) -> Vec<Evaluation> {
    let make = if written.turns.is_empty() { trajectory } else { session };
    let trajectory = Arc::new(make(written));
    let mut evaluations = Vec::new();
    judge_run(
        criteria,
        expectations,
        expectations.case_of(&trajectory),
        &trajectory,
        explain,
        &mut |evaluation| evaluations.push(evaluation),
    );
    evaluations
}

/// Returns the expectations in the attributes of the evaluated span.
fn expectation_attributes(attributes: &Map<String, Value>) -> ExpectationAttributes {
    let said = |key: &str| {
        let value = attributes.get(key)?;
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        Some(StatedValue {
            span_id: SpanId::try_new(&1_u64.to_be_bytes()),
            text: Some(text.into()),
            cut: false,
        })
    };
    let case_id = said(CASE_ID).and_then(|said| said.text);
    ExpectationAttributes {
        case_id,
        criteria: said(CRITERIA).into_iter().collect(),
        expect: said(EXPECT).into_iter().collect(),
    }
}
