//! A question of a caller in (a trajectory or OTLP spans, and criteria), evaluations out. Nothing
//! of it is kept. Pure but for its bounds: it runs beside telemetry, so what it may cost is bounded
//! before it begins.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::merge::Registered;
use super::problem::ApiError;
use crate::assemble::{CloseReason, Settings};
use crate::config::{self, Problems};
use crate::evaluate::{self, Criterion};
use crate::export::score_line;
use crate::extract::{AgentRun, Brought, Doubt, Doubts, Payload, Subject, ToolCall, Trajectory};
use crate::pipeline::{Pipeline, Rules};
use crate::receive::{json as otlp_json, scan};
use crate::span::{KeptAttributes, Now, Resource, SpanId, TraceId};

/// Most calls that are judged at once.
const MAX_CALLS: usize = 10_000;
/// Most criteria that come along.
const MAX_CRITERIA: usize = 1_000;
/// Most work: the bytes of all criteria times the calls they are held to. Ten seconds of one core
/// at the very worst.
const MAX_COST: usize = 256 << 20;
/// Most patterns times the bytes of names, arguments and results that they look at: a search takes
/// time pattern × text at worst, and the criteria above are measured in bytes as written, of which
/// a costly pattern needs few.
const MAX_SEARCH: usize = 16 << 20;

/// What is asked, as REST takes it. The caller says what is expected: what spans bring themselves
/// (`spanscore.expect`, `spanscore.criteria`, `test.case.id`) is not looked at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    /// Calls as `spanscore inspect --format jsonl` shows them.
    #[serde(default)]
    trajectory: Option<Written>,
    /// An OTLP/JSON trace request.
    #[serde(default)]
    traces: Option<Value>,
    /// The same as protobuf, from gRPC.
    #[serde(skip)]
    protobuf: Option<Vec<u8>>,
    /// What to judge by.
    #[serde(default)]
    criteria: Option<Vec<Criterion>>,
    /// Or which of the registered.
    #[serde(default)]
    names: Option<Vec<String>>,
}

/// A trajectory as it is written. What `inspect` shows and judging does not need is read and let
/// go.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    trace_id: Option<String>,
    span_id: Option<String>,
    service: Option<String>,
    root: Option<String>,
    agent: Option<String>,
    session: Option<String>,
    completeness: Option<String>,
    spans: Option<u32>,
    tool_calls: Vec<WrittenCall>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCall {
    name: String,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    args: Option<Value>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    error: Option<bool>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    step: Option<u32>,
    #[serde(default)]
    parallel_group: Option<u32>,
    #[serde(default)]
    span_id: Option<String>,
    #[serde(default)]
    start: Option<String>,
    #[serde(default)]
    end: Option<String>,
    #[serde(default)]
    convention: Option<String>,
}

impl Question {
    /// Reads one, YAML or JSON.
    pub(super) fn read(text: &str) -> Result<Self, Problems> {
        config::document(
            text,
            "a question",
            "write `trajectory:` or `traces:`, and `criteria:` or `names:`",
        )
    }

    /// The same with spans as protobuf.
    pub(super) fn with_protobuf(mut self, protobuf: Option<Vec<u8>>) -> Self {
        self.protobuf = protobuf;
        self
    }
}

/// Judges.
pub(super) fn judge(
    question: Question,
    registered: &Registered,
    rules: &Rules,
    now: Now,
) -> Result<Value, ApiError> {
    let Question {
        trajectory,
        traces,
        protobuf,
        criteria,
        names,
    } = question;
    let criteria = chosen(criteria, names, registered)?;
    // Selectors of criteria that come along may read attributes that nobody kept so far; what they
    // ask for is kept for this question only.
    let rules = rules.judging_by(criteria);
    let trajectories = match (trajectory, traces, protobuf) {
        (Some(written), None, None) => vec![Arc::new(written.trajectory()?)],
        (None, Some(traces), None) => {
            let body = otlp_json::traces(traces.to_string().as_bytes()).map_err(|error| {
                ApiError::Argument {
                    name: "traces",
                    detail: error.to_string(),
                }
            })?;
            trajectories(&body, &rules, now)?
        }
        (None, None, Some(body)) => trajectories(&body, &rules, now)?,
        (None, None, None) => {
            return Err(ApiError::Argument {
                name: "trajectory",
                detail: "nothing to judge: send `trajectory` or `traces`".to_owned(),
            });
        }
        _ => {
            return Err(ApiError::Argument {
                name: "traces",
                detail: "send either `trajectory` or `traces`".to_owned(),
            });
        }
    };
    let n_calls: usize = trajectories
        .iter()
        .map(|trajectory| trajectory.tool_calls.len())
        .sum();
    let n_searched: usize = trajectories
        .iter()
        .map(|trajectory| evaluate::searched_size(&trajectory.tool_calls))
        .sum();
    let (mut size, mut n_patterns) = (0_usize, 0_usize);
    for criterion in &rules.criteria {
        let criterion = json!(criterion);
        size += criterion.to_string().len();
        n_patterns += super::n_patterns(&criterion);
    }
    if n_patterns.saturating_mul(n_searched) > MAX_SEARCH {
        let detail = format!(
            "{n_searched} bytes of calls to be searched with {n_patterns} patterns are too many at once: ask in several questions"
        );
        return Err(ApiError::TooLarge(detail));
    }
    if n_calls > MAX_CALLS || size.saturating_mul(n_calls) > MAX_COST {
        let detail = format!(
            "{n_calls} calls held to {} criteria are too many at once: ask in several questions",
            rules.criteria.len()
        );
        return Err(ApiError::TooLarge(detail));
    }
    let evaluations: Vec<Value> = trajectories
        .iter()
        .flat_map(|trajectory| evaluate::judge(&rules.criteria, trajectory, &rules.explain))
        .map(|evaluation| {
            let mut line = score_line::json(&evaluation);
            line.insert(
                "criterion_revision".to_owned(),
                json!(evaluation.criterion.revision()),
            );
            Value::Object(line)
        })
        .collect();
    Ok(json!({ "evaluations": evaluations }))
}

/// What to judge by: what comes along, what is named, or all that is registered.
fn chosen(
    criteria: Option<Vec<Criterion>>,
    names: Option<Vec<String>>,
    registered: &Registered,
) -> Result<Vec<Arc<Criterion>>, ApiError> {
    let mut chosen: Vec<Arc<Criterion>> = match (&criteria, &names) {
        (None, None) => registered.in_force().into_iter().cloned().collect(),
        _ => Vec::new(),
    };
    for name in names.into_iter().flatten() {
        chosen.push(
            registered
                .get(&name)
                .ok_or_else(|| super::not_registered(&name))?
                .criterion
                .clone(),
        );
    }
    let mut n_patterns = 0;
    for criterion in criteria.into_iter().flatten() {
        n_patterns += super::check_criterion(&criterion)?;
        chosen.push(criterion.into());
    }
    if chosen.len() > MAX_CRITERIA || n_patterns > super::MAX_PATTERNS {
        return Err(ApiError::TooLarge(format!(
            "more than {MAX_CRITERIA} criteria, or more than {} patterns in them: ask in several questions",
            super::MAX_PATTERNS
        )));
    }
    Ok(chosen)
}

/// The trajectories of a trace request: assembled as a recording is, by end of input.
fn trajectories(body: &[u8], rules: &Rules, now: Now) -> Result<Vec<Arc<Trajectory>>, ApiError> {
    let scanned = scan::scan(body, Some(rules.keys())).map_err(|error| ApiError::Argument {
        name: "traces",
        detail: format!("not an OTLP trace request: {error}"),
    })?;
    let settings = Settings::replay();
    let mut pipeline = Pipeline::new(settings, now);
    pipeline.accept(rules, scanned.batch, now);
    // Judged below, once it is known what that costs.
    let without = rules.judging_by(Vec::new());
    Ok(pipeline.end_of_input(&without, now, |_| ()).trajectories)
}

impl Written {
    fn trajectory(self) -> Result<Trajectory, ApiError> {
        let Self {
            trace_id,
            span_id,
            service,
            root,
            agent,
            session,
            completeness,
            spans,
            tool_calls,
        } = self;
        if tool_calls.len() > MAX_CALLS {
            return Err(ApiError::TooLarge(format!(
                "more than {MAX_CALLS} calls: ask in several questions"
            )));
        }
        let completeness = match completeness.as_deref() {
            None => CloseReason::RootEnded,
            Some(word) => CloseReason::ALL.into_iter().find(|reason| reason.as_str() == word).ok_or_else(|| ApiError::Argument {
                name: "trajectory.completeness",
                detail: format!("`{word}` is no reason to close a trace: `root_ended` is the one for a run that came to its end"),
            })?,
        };
        let service: Arc<str> = service.unwrap_or_default().into();
        let resource = Arc::new(Resource {
            encoded: Box::default(),
            service: (*service).into(),
            kept: KeptAttributes::default(),
        });
        let root: Arc<str> = root.unwrap_or_default().into();
        let subject = |name: &str, span_id: SpanId| Subject {
            span_id,
            name: name.into(),
            start_unix_nanos: 0,
            end_unix_nanos: 0,
            flags: 0,
            trace_state: "".into(),
            resource: resource.clone(),
            attributes: Vec::new(),
        };
        let calls: Vec<ToolCall> = tool_calls
            .into_iter()
            .enumerate()
            .map(|(at, call)| call.tool_call(at))
            .collect::<Result<_, _>>()?;
        let mut names: Vec<Arc<str>> = calls.iter().filter_map(|call| call.agent.clone()).collect();
        names.sort();
        names.dedup();
        // One run for each agent that is named: a written trajectory tells no more.
        let agent_runs: Vec<AgentRun> = names
            .iter()
            .enumerate()
            .map(|(at, name)| AgentRun {
                name: name.clone(),
                subject: subject(name, numbered_span(at + 1)),
                parent: None,
                ended: true,
                session: None,
                may_merge: false,
            })
            .collect();
        let tool_calls = calls
            .into_iter()
            .map(|call| ToolCall {
                agent_run: call
                    .agent
                    .as_ref()
                    .and_then(|agent| names.iter().position(|name| name == agent)),
                ..call
            })
            .collect();
        Ok(Trajectory {
            trace_id: id(trace_id, "trajectory.trace_id", TraceId::try_new)?
                .unwrap_or_else(|| numbered_trace(1)),
            subject: Some(subject(
                &root,
                id(span_id, "trajectory.span_id", SpanId::try_new)?
                    .unwrap_or_else(|| numbered_span(1)),
            )),
            service,
            root,
            agent: agent.map(Into::into),
            session: session.map(Into::into),
            completeness,
            cut_short: !matches!(completeness, CloseReason::RootEnded | CloseReason::NoRoot),
            from_messages: false,
            told_elsewhere: false,
            doubts: Doubts::default(),
            clock_adjusted: false,
            n_spans: spans.unwrap_or_default() as usize,
            latest_end_unix_nanos: 0,
            brought: Brought::default(),
            node_visits: names.clone(),
            agent_runs,
            tool_calls,
            arrival: 0,
        })
    }
}

impl WrittenCall {
    fn tool_call(self, at: usize) -> Result<ToolCall, ApiError> {
        let Self {
            name,
            call_id,
            args,
            result,
            error,
            agent,
            step,
            parallel_group,
            span_id,
            start,
            end,
            convention,
        } = self;
        let time = |text: Option<String>, otherwise: u64| match text {
            None => Ok(otherwise),
            Some(text) => text.parse().map_err(|_| ApiError::Argument {
                name: "trajectory.tool_calls",
                detail: format!(
                    "`start` and `end` of call {} are decimal Unix nanoseconds",
                    at + 1
                ),
            }),
        };
        let payload = |value: Value| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            Payload::new(text, value, false)
        };
        Ok(ToolCall {
            name: name.into(),
            call_id: call_id.map(Into::into),
            args: args.map(payload),
            result: result.map(payload),
            error: error.unwrap_or_default(),
            agent: agent.map(Into::into),
            agent_run: None,
            step: step.unwrap_or_default(),
            parallel_group,
            span_id: id(span_id, "trajectory.tool_calls", SpanId::try_new)?,
            start_unix_nanos: time(start, at as u64 * 2)?,
            end_unix_nanos: time(end, at as u64 * 2 + 1)?,
            convention: convention.unwrap_or_default().into(),
            partial: false,
            doubt: Doubt::default(),
        })
    }
}

/// An id as hex; an empty one is none.
fn id<T>(
    text: Option<String>,
    name: &'static str,
    of: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    match text.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            let bytes = data_encoding::HEXLOWER_PERMISSIVE
                .decode(text.as_bytes())
                .ok();
            let id = bytes.and_then(|bytes| of(&bytes));
            id.map(Some).ok_or_else(|| ApiError::Argument {
                name,
                detail: "an id is hex, and not all zero".to_owned(),
            })
        }
    }
}

fn numbered_span(number: usize) -> SpanId {
    SpanId::try_new(&(number as u64).max(1).to_be_bytes()).expect("not zero")
}

fn numbered_trace(number: u8) -> TraceId {
    TraceId::try_new(&[number; 16]).expect("not zero")
}
