//! Evaluates a trajectory or OTLP spans that a caller sends, and stores nothing. Telemetry uses the
//! same CPUs, so a request that would cost too much is refused first.

use std::sync::Arc;

use judge::assemble::{CloseReason, Settings};
use judge::evaluate::{
    self, Criterion, FieldError, PatternCompiler, SearchBudget, WrittenCriterion,
};
use judge::extract::{
    AgentRun, CallUncertainty, CapturedParts, ModelUse, Payload, Subject, ToolCall, Trajectory,
    set_captured,
};
use judge::pipeline::{Pipeline, Rules};
use otlp::span::{Now, Resource, SpanId, StoredAttributes, TraceId};
use otlp::{json as otlp_json, scan};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{ApiError, not_registered};
use super::limits::{MAX_PATTERNS, PATTERN_LIMITS, check_criterion, check_runs};
use super::merge::CriteriaSet;
use super::set::Register;
use super::view::EvaluationsView;
use crate::config::{self, Problems};
use crate::export::score_line;

const MAX_CALLS: usize = 10_000;
const MAX_CRITERIA: usize = 1_000;
/// Maximum work: the bytes of all criteria times the calls that they judge. Ten seconds of one core
/// in the worst case.
const MAX_COST: usize = 256 << 20;
/// Maximum number of patterns times the bytes of names, arguments and results that they search: in
/// the worst case, a search takes time proportional to pattern × text. `MAX_COST` counts the bytes
/// of a criterion as written, but a short pattern can be expensive.
const MAX_SEARCH: usize = 16 << 20;

/// The body of `POST /v1/evaluate`. The caller states the expectations: expectations in the spans
/// (`spanscore.expect`, `spanscore.criteria`, `test.case.id`) are ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EvaluateRequest<C = Criterion> {
    /// A trajectory as `spanscore inspect --format jsonl` prints it.
    #[serde(default)]
    trajectory: Option<TrajectoryBody>,
    /// An OTLP/JSON trace request.
    #[serde(default)]
    traces: Option<Value>,
    /// A trace request as protobuf, from gRPC.
    #[serde(skip)]
    protobuf: Option<Vec<u8>>,
    criteria: Option<Vec<C>>,
    /// Names of registered criteria to judge by.
    #[serde(default)]
    names: Option<Vec<String>>,
}

/// A trajectory in a request. Fields that `inspect` prints and judging does not need are accepted
/// and ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TrajectoryBody {
    trace_id: Option<String>,
    span_id: Option<String>,
    service: Option<String>,
    root: Option<String>,
    agent: Option<String>,
    session: Option<String>,
    completeness: Option<String>,
    spans: Option<u32>,
    tool_calls: Vec<ToolCallBody>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolCallBody {
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

impl EvaluateRequest<WrittenCriterion> {
    fn compile(self, compiler: &mut PatternCompiler) -> Result<EvaluateRequest, Vec<FieldError>> {
        let (mut criteria, mut errors) = (Vec::new(), Vec::new());
        for (at, source) in self.criteria.iter().flatten().enumerate() {
            match source.clone().compile(compiler) {
                Ok(criterion) => criteria.push(criterion),
                Err(found) => {
                    let keys = ["criteria", &at.to_string()];
                    errors.extend(found.into_iter().map(|error| error.below(&keys)));
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(EvaluateRequest {
            trajectory: self.trajectory,
            traces: self.traces,
            protobuf: self.protobuf,
            criteria: self.criteria.map(|_| criteria),
            names: self.names,
        })
    }
}

impl EvaluateRequest {
    pub(super) fn read(text: &str) -> Result<Self, Problems> {
        let mut compiler = PatternCompiler::new(PATTERN_LIMITS);
        config::document_compiled(
            text,
            "an evaluate request",
            "write `trajectory:` or `traces:`, and `criteria:` or `names:`",
            |request: EvaluateRequest<WrittenCriterion>| request.compile(&mut compiler),
        )
    }

    pub(super) fn with_protobuf(mut self, protobuf: Option<Vec<u8>>) -> Self {
        self.protobuf = protobuf;
        self
    }
}

impl Register {
    pub(super) fn evaluate(&self, request: EvaluateRequest) -> Result<EvaluationsView, ApiError> {
        evaluate(
            request,
            &self.0.set.load(),
            &self.0.rules.load(),
            (self.0.clock)(),
        )
    }
}

fn evaluate(
    request: EvaluateRequest,
    set: &CriteriaSet,
    rules: &Rules,
    now: Now,
) -> Result<EvaluationsView, ApiError> {
    let EvaluateRequest {
        trajectory,
        traces,
        protobuf,
        criteria,
        names,
    } = request;
    let criteria = chosen(criteria, names, set)?;
    // Selectors of the request's criteria may read attributes that no registered criterion reads.
    // These attributes are scanned for this request only.
    let rules = rules.judging_by(criteria);
    let trajectories = match (trajectory, traces, protobuf) {
        (Some(written), None, None) => vec![Arc::new(written.trajectory()?)],
        (None, Some(traces), None) => {
            let text = traces.to_string();
            drop(traces);
            let body = otlp_json::traces(text.as_bytes()).map_err(|error| ApiError::Argument {
                name: "traces",
                detail: error.to_string(),
            })?;
            drop(text);
            trajectories(body, &rules, now)?
        }
        (None, None, Some(body)) => trajectories(body, &rules, now)?,
        (None, None, None) => {
            return Err(ApiError::Argument {
                name: "trajectory",
                detail: "missing: send `trajectory` or `traces`".to_owned(),
            });
        }
        _ => {
            return Err(ApiError::Argument {
                name: "traces",
                detail: "send either `trajectory` or `traces`, not both".to_owned(),
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
        size += json!(criterion).to_string().len();
        // Most patterns of other evaluators read names only, and the search budget bounds all.
        if criterion.evaluate.name() == "tool_calls" {
            n_patterns += criterion.n_patterns();
        }
    }
    if n_patterns.saturating_mul(n_searched) > MAX_SEARCH {
        let detail = format!(
            "searching {n_searched} bytes of calls with {n_patterns} patterns is too much work: \
             split the request"
        );
        return Err(ApiError::TooLarge(detail));
    }
    if n_calls > MAX_CALLS || size.saturating_mul(n_calls) > MAX_COST {
        let detail = format!(
            "judging {n_calls} calls by {} criteria is too much work: split the request",
            rules.criteria.len()
        );
        return Err(ApiError::TooLarge(detail));
    }
    // All trajectories share one budget, as if they were one trace, because a request may contain
    // many.
    let mut budget = SearchBudget::default();
    let evaluations = trajectories
        .iter()
        .flat_map(|trajectory| {
            evaluate::judge_within(&rules.criteria, trajectory, &rules.explain, &mut budget)
        })
        .map(|evaluation| {
            let mut line = score_line::json(&evaluation);
            line.insert(
                "criterion_revision".to_owned(),
                json!(evaluation.criterion.revision()),
            );
            line
        })
        .collect();
    Ok(EvaluationsView { evaluations })
}

/// Returns the criteria to judge by: those that the request contains or names, else all active
/// ones.
fn chosen(
    criteria: Option<Vec<Criterion>>,
    names: Option<Vec<String>>,
    set: &CriteriaSet,
) -> Result<Vec<Arc<Criterion>>, ApiError> {
    let mut chosen: Vec<Arc<Criterion>> = match (&criteria, &names) {
        (None, None) => set.active().into_iter().cloned().collect(),
        _ => Vec::new(),
    };
    for name in names.into_iter().flatten() {
        let registered = set.get(&name).ok_or_else(|| not_registered(&name))?;
        check_runs(registered.criterion)?;
        chosen.push(registered.criterion.clone());
    }
    let mut n_patterns = 0;
    for criterion in criteria.into_iter().flatten() {
        n_patterns += check_criterion(&criterion)?;
        check_runs(&criterion)?;
        chosen.push(criterion.into());
    }
    if chosen.len() > MAX_CRITERIA || n_patterns > MAX_PATTERNS {
        return Err(ApiError::TooLarge(format!(
            "more than {MAX_CRITERIA} criteria, or more than {MAX_PATTERNS} patterns in them: \
             split the request"
        )));
    }
    Ok(chosen)
}

/// Returns the trajectories of a trace request, assembled like a recording: all traces end with the
/// input.
fn trajectories(body: Vec<u8>, rules: &Rules, now: Now) -> Result<Vec<Arc<Trajectory>>, ApiError> {
    let scanned = scan::scan(&body, Some(rules)).map_err(|error| ApiError::Argument {
        name: "traces",
        detail: format!("not an OTLP trace request: {error}"),
    })?;
    drop(body);
    let settings = Settings::replay();
    let mut pipeline = Pipeline::new(settings, now);
    pipeline.take(scanned.batch, now);
    // The trajectories are judged later, once the cost is known.
    let without_criteria = rules.judging_by(Vec::new());
    Ok(pipeline.finish(&without_criteria, now).trajectories)
}

impl TrajectoryBody {
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
                "more than {MAX_CALLS} calls: split the request"
            )));
        }
        let completeness = match completeness.as_deref() {
            None => CloseReason::RootEnded,
            Some(word) => CloseReason::ALL
                .into_iter()
                .find(|reason| reason.as_str() == word)
                .ok_or_else(|| ApiError::Argument {
                    name: "trajectory.completeness",
                    detail: format!("unknown value `{word}`; a run that finished has `root_ended`"),
                })?,
        };
        let service: Arc<str> = service.unwrap_or_default().into();
        let resource = Arc::new(Resource {
            encoded: Box::default(),
            service: (*service).into(),
            kept: StoredAttributes::default(),
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
        let has_times = tool_calls.iter().any(ToolCallBody::has_time);
        let mut calls: Vec<ToolCall> = tool_calls
            .into_iter()
            .enumerate()
            .map(|(at, call)| call.tool_call(at, has_times))
            .collect::<Result<_, _>>()?;
        set_captured(&mut calls);
        let mut names: Vec<Arc<str>> = calls.iter().filter_map(|call| call.agent.clone()).collect();
        names.sort();
        names.dedup();
        // A request lists no agent runs, so each named agent gets one.
        let agent_runs: Arc<[AgentRun]> = names
            .iter()
            .enumerate()
            .map(|(at, name)| AgentRun {
                name: name.clone(),
                subject: subject(name, numbered_span(at + 1)),
                parent: None,
                ended: true,
                session: None,
                may_merge: false,
                model_use: ModelUse::default(),
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
            n_spans: spans.unwrap_or_default() as usize,
            node_visits: names.as_slice().into(),
            agent_runs,
            ..Trajectory::of_calls(
                id(trace_id, "trajectory.trace_id", TraceId::try_new)?
                    .unwrap_or_else(|| numbered_trace(1)),
                tool_calls,
            )
        })
    }
}

impl ToolCallBody {
    fn has_time(&self) -> bool {
        self.start.is_some() || self.end.is_some()
    }

    /// Converts a call. If no call has times, the calls count as sequential.
    fn tool_call(self, at: usize, has_times: bool) -> Result<ToolCall, ApiError> {
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
        let time = |text: Option<String>, default: u64| match text {
            None => Ok(default),
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
        let lacks_time = has_times && (start.is_none() || end.is_none());
        let start_unix_nanos = time(start, at as u64 * 2)?;
        let end_unix_nanos = time(end, at as u64 * 2 + 1)?;
        Ok(ToolCall {
            name: name.into(),
            call_id: call_id.map(Into::into),
            args: args.map(payload),
            result: result.map(payload),
            captured: CapturedParts::default(),
            error: error.unwrap_or_default(),
            agent: agent.map(Into::into),
            agent_run: None,
            step: step.unwrap_or_default(),
            parallel_group,
            span_id: id(span_id, "trajectory.tool_calls", SpanId::try_new)?,
            start_unix_nanos,
            end_unix_nanos,
            convention: convention.unwrap_or_default().into(),
            partial: false,
            untimed: lacks_time || end_unix_nanos < start_unix_nanos,
            uncertainty: CallUncertainty::default(),
        })
    }
}

fn id<T>(
    text: Option<String>,
    name: &'static str,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    match text.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            let bytes = data_encoding::HEXLOWER_PERMISSIVE
                .decode(text.as_bytes())
                .ok();
            let id = bytes.and_then(|bytes| parse(&bytes));
            id.map(Some).ok_or_else(|| ApiError::Argument {
                name,
                detail: "an id must be hex and not all zeros".to_owned(),
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
