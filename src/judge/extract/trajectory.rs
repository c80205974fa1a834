//! The tool calls of a closed trace, in order, with the evaluated span and the certainty of both.
//! Combines the results of `trace`.

use std::borrow::Cow;
use std::sync::Arc;

use otlp::span::{Resource, SpanId, SpanRow, TraceId};
use text::code;

use super::model_use::ModelUse;
use super::spans::shared_keys::{own_agent, own_session};
use super::spans::view::attribute_text;
use super::spans::{Recogniser, SpanIdx};
use super::tool_call::ToolCall;
use super::trace::cross_trace_results::is_carrier;
use super::trace::evaluated::{continues_session, evaluated_span, is_cut_short, session};
use super::trace::expectation_attributes::{ExpectationAttributes, expectation_attributes};
use super::trace::interner::Interner;
use super::trace::message_calls::{self, MessageCalls};
use super::trace::model_use::ModelUses;
use super::trace::node_visits::node_visits;
use super::trace::span_roles::{RunSpan, SpanRoles};
use super::trace::uncertainty::Gates;
use super::trace::{calls, log_trajectory, uncertainty};
use super::uncertainty::TrajectoryUncertainty;
use crate::assemble::{CloseReason, EarlierTurns, Trace};

/// The tool calls of one trace, one agent run or one session, in the order in which they were made.
#[derive(Debug, Clone)]
pub struct Trajectory {
    pub trace_id: TraceId,
    /// The evaluated span; score spans become its children. `None` for trajectories of log records.
    pub subject: Option<Subject>,
    /// `service.name` of the evaluated span's resource.
    pub service: Arc<str>,
    /// The name of the topmost span above the evaluated span.
    pub root: Arc<str>,
    /// The name of the evaluated span's agent.
    pub agent: Option<Arc<str>>,
    /// The session or conversation id.
    pub session: Option<Arc<str>>,
    /// The reason why the trace was closed, or why it counts as cut short.
    pub completeness: CloseReason,
    /// True if the trace was cut short. Then only a verdict that no further call could change is
    /// given (`docs/design.md#what-is-certain-in-a-cut-trace`).
    pub cut_short: bool,
    /// True if all calls of the run, or of a turn of the session, were read from model messages. If
    /// the trace was cut short, the trajectory is never certain, because a tool span that arrives
    /// later would replace it.
    pub from_messages: bool,
    /// True if other traces may contain arguments and results that the calls lack.
    pub completed_elsewhere: bool,
    /// True if the trajectory covers a single agent run, not the whole trace.
    pub is_agent_run: bool,
    /// True if the first model request repeated answers of earlier turns of the session; `None` if
    /// unknown.
    pub continues_session: Option<bool>,
    /// Earlier turns of the session; `None` without a session, for the first turn, and if sessions
    /// are not recorded.
    pub earlier_turns: Option<Arc<EarlierTurns>>,
    /// The turns of a session, if this trajectory joins several traces.
    pub turns: Option<Arc<SessionTurns>>,
    /// The ways in which the evaluated span could change if the trace was cut short.
    pub uncertainty: TrajectoryUncertainty,
    /// True if a span of another resource started before its parent, and was ordered with a shifted
    /// start.
    pub clock_adjusted: bool,
    /// The number of spans in the trace.
    pub n_spans: usize,
    /// The latest end of any span in Unix nanoseconds.
    pub latest_end_unix_nanos: u64,
    pub model_use: ModelUse,
    pub tool_calls: Vec<ToolCall>,
    /// The agent runs, ordered by start; `ToolCall::agent_run` is an index in this list. Directly
    /// nested runs of one name are one run. The trajectories of single runs share this list and the
    /// following `Arc` fields.
    pub agent_runs: Arc<[AgentRun]>,
    /// The agent runs and graph nodes, ordered by start, with immediate repeats merged
    /// (`execution_order` with `over: nodes`).
    pub node_visits: Arc<[Arc<str>]>,
    /// The attributes by which the run affects its own judgement.
    pub expectation_attributes: Arc<ExpectationAttributes>,
    /// The position of the trace in the order of first arrival.
    pub arrival: u64,
}

/// The turns that a session's trajectory joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTurns {
    /// The traces of the turns, ordered by start.
    pub traces: Vec<TraceId>,
    /// The turn of each call, an index in `traces`.
    pub(super) of_calls: Vec<usize>,
}

/// The fields of the evaluated span that scores need.
#[derive(Debug, Clone)]
pub struct Subject {
    pub span_id: SpanId,
    pub name: Arc<str>,
    /// The start in Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// The end in Unix nanoseconds; 0 if there is none.
    pub end_unix_nanos: u64,
    /// The OTLP span flags.
    pub flags: u32,
    /// The W3C trace state.
    pub trace_state: Arc<str>,
    pub resource: Arc<Resource>,
    /// The attributes that selectors read and those that scores copy, from the span or else from
    /// its resource. Each value is the text that selectors compare and scores copy; numbers and
    /// booleans are JSON text. Look up values with [`Subject::attribute`].
    pub attributes: Vec<(Arc<str>, Arc<str>)>,
}

/// An agent run of a trace.
#[derive(Debug, Clone)]
pub struct AgentRun {
    pub name: Arc<str>,
    /// The fields of the span that scores need.
    pub subject: Subject,
    /// The enclosing run, an index in `Trajectory::agent_runs`.
    pub parent: Option<usize>,
    /// True if the span has ended.
    pub ended: bool,
    /// The session, if it differs from the trajectory's.
    pub session: Option<Arc<str>>,
    /// True if spans missing from a cut trace may show that the run is part of an outer run of the
    /// same name, or that a workflow is no run.
    pub may_merge: bool,
    /// The model calls that the run made itself.
    pub model_use: ModelUse,
}

impl Subject {
    /// Returns the text of an attribute of the span or else of its resource.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(key, _)| **key == *name)
            .map(|(_, text)| &**text)
    }
}

impl Trajectory {
    /// Creates a complete trajectory of calls without a trace. Nothing else is known about the run.
    pub fn of_calls(trace_id: TraceId, tool_calls: Vec<ToolCall>) -> Self {
        Self {
            trace_id,
            subject: None,
            service: "".into(),
            root: "".into(),
            agent: None,
            session: None,
            completeness: CloseReason::RootEnded,
            cut_short: false,
            from_messages: false,
            completed_elsewhere: false,
            is_agent_run: false,
            continues_session: None,
            earlier_turns: None,
            turns: None,
            uncertainty: TrajectoryUncertainty::default(),
            clock_adjusted: false,
            n_spans: tool_calls.len(),
            latest_end_unix_nanos: 0,
            model_use: ModelUse::default(),
            tool_calls,
            agent_runs: Arc::default(),
            node_visits: Arc::default(),
            expectation_attributes: Arc::default(),
            arrival: 0,
        }
    }

    /// Returns the name of the evaluated run. The run may be a mere wrapper of the run of `agent`.
    pub(crate) fn own_run(&self) -> Option<&str> {
        let subject = self.subject.as_ref()?;
        let mut runs = self.agent_runs.iter();
        let run = runs.find(|run| run.subject.span_id == subject.span_id)?;
        Some(&run.name)
    }

    /// Returns true if this is a group of log records whose calls are all reported by spans. The
    /// group is then not a run.
    pub fn is_taken_over(&self) -> bool {
        self.subject.is_none() && self.tool_calls.is_empty()
    }

    /// Returns text such as "`transfer` (call 3)".
    pub(crate) fn called(&self, call_idx: usize) -> String {
        match self.tool_calls.get(call_idx) {
            Some(call) => format!("{} (call {})", code(&call.name), call_idx + 1),
            None => format!("call {}", call_idx + 1),
        }
    }

    /// Returns true if nothing shows a model call of the run (no span, no total, no message)
    /// although the model's tokens were read.
    pub(crate) fn shows_no_model(&self) -> bool {
        let used = &self.model_use;
        let has_none = used.n_calls == 0 && !used.from_agent && !self.from_messages;
        has_none && used.is_usage_stored && self.subject.is_some()
    }

    /// Returns the runs that `scope: agent` judges: all runs except those that contain another run
    /// and made no call themselves.
    pub fn judged_agent_runs(&self) -> Vec<usize> {
        let mut has_calls = vec![false; self.agent_runs.len()];
        let mut has_runs = has_calls.clone();
        for run in self.tool_calls.iter().filter_map(|call| call.agent_run) {
            has_calls[run] = true;
        }
        for parent in self.agent_runs.iter().filter_map(|run| run.parent) {
            has_runs[parent] = true;
        }
        (0..self.agent_runs.len())
            .filter(|&run| has_calls[run] || !has_runs[run])
            .collect()
    }

    /// Returns the trace of a call.
    pub fn trace_of(&self, call_idx: usize) -> TraceId {
        let turns = self.turns.as_ref();
        let turn = turns.and_then(|turns| turns.traces.get(*turns.of_calls.get(call_idx)?));
        turn.copied().unwrap_or(self.trace_id)
    }

    /// Returns the start of the evaluated span, or else of the first call.
    pub fn start_unix_nanos(&self) -> u64 {
        let first_call = self.tool_calls.first().map(|call| call.start_unix_nanos);
        let subject = self
            .subject
            .as_ref()
            .map(|subject| subject.start_unix_nanos);
        subject.or(first_call).unwrap_or_default()
    }

    /// Returns a copy in which nothing is certain.
    pub fn as_uncertain(&self) -> Self {
        Self {
            uncertainty: TrajectoryUncertainty {
                all: true,
                ..self.uncertainty
            },
            ..self.clone()
        }
    }

    /// Returns a copy with only the first calls, without their arguments and results. The only
    /// expectation attribute in the copy is the case id: the others contain values.
    pub fn without_values(&self, n_first: usize) -> Self {
        let calls = ToolCall::all_without_values(&self.tool_calls, n_first);
        let mut copy = self.with_calls(calls);
        if !self.expectation_attributes.is_empty() {
            copy.expectation_attributes = Arc::new(ExpectationAttributes {
                case_id: self.expectation_attributes.case_id.clone(),
                ..ExpectationAttributes::default()
            });
        }
        copy
    }

    /// Returns the trajectory with other calls. Everything that grows with the trace is shared.
    pub fn with_calls(&self, tool_calls: Vec<ToolCall>) -> Self {
        Self {
            trace_id: self.trace_id,
            subject: self.subject.clone(),
            service: self.service.clone(),
            root: self.root.clone(),
            agent: self.agent.clone(),
            session: self.session.clone(),
            tool_calls,
            agent_runs: self.agent_runs.clone(),
            node_visits: self.node_visits.clone(),
            expectation_attributes: self.expectation_attributes.clone(),
            earlier_turns: self.earlier_turns.clone(),
            turns: self.turns.clone(),
            ..*self
        }
    }

    /// Returns the indices of the calls that each agent run made itself: a sub-agent's calls belong
    /// to the sub-agent, the delegating call to the delegating run.
    pub fn calls_by_agent_run(&self) -> Vec<Vec<usize>> {
        let mut by_run = vec![Vec::new(); self.agent_runs.len()];
        for (call_idx, call) in self.tool_calls.iter().enumerate() {
            if let Some(run_idx) = call.agent_run {
                by_run[run_idx].push(call_idx);
            }
        }
        by_run
    }

    /// Returns the trajectory of one agent run, with the calls at these indices. The list of runs
    /// remains complete. A trace can have as many runs as calls, so the cost must not grow with the
    /// trace.
    pub fn for_agent_run(&self, run_idx: usize, call_idxs: &[usize]) -> Self {
        let own_calls = call_idxs.iter().map(|&call_idx| &self.tool_calls[call_idx]);
        let mut narrowed = self.with_calls(own_calls.cloned().collect());
        if let Some(run) = self.agent_runs.get(run_idx) {
            // A run without calls is judged only until it turns out to contain another run.
            let may_be_outer = self.cut_short && narrowed.tool_calls.is_empty();
            narrowed.uncertainty = TrajectoryUncertainty {
                subject: self.cut_short && !run.ended,
                service: false,
                all: run.may_merge || may_be_outer,
                ..self.uncertainty
            };
            narrowed.is_agent_run = true;
            let is_of_service = run.subject.resource.service == self.service;
            narrowed.model_use = ModelUse {
                others_have_models: self.model_use.others_have_models && is_of_service,
                ..run.model_use
            };
            narrowed.agent = Some(run.name.clone());
            narrowed.service = run.subject.resource.service.clone();
            narrowed.subject = Some(run.subject.clone());
            narrowed.session = run.session.clone().or(narrowed.session);
        }
        narrowed
    }

    /// Adjusts the trajectory of a trace that has only log records.
    fn adjust_for_records(&mut self, trace: &Trace) {
        // A missing parent does not count, because the parent of a record is always missing.
        self.cut_short = !matches!(trace.reason, CloseReason::Inactive | CloseReason::NoRoot);
        let named = log_trajectory::arrange(trace, self.cut_short, &mut self.tool_calls);
        self.trace_id = named.unwrap_or(trace.trace_id);
        self.subject = None;
        self.uncertainty = TrajectoryUncertainty {
            subject: self.cut_short,
            root: self.cut_short,
            ..TrajectoryUncertainty::default()
        };
    }
}

/// Returns the trajectory of a closed trace. `None` for a trace that is counted but not judged: it
/// has no tool call, no agent run, no expectation, and no cut message that may have contained
/// calls.
pub fn trajectory(trace: &Trace, recogniser: &Recogniser) -> Option<Trajectory> {
    let roles = SpanRoles::new(trace, recogniser);
    let mut interner = Interner::default();
    let shows_hole = is_cut_short(trace, &roles);
    // A span scanned before a reload may be a call whose attributes were not stored.
    let is_outdated = |span: &SpanRow| recogniser.reads_more_than_is_kept(span.class.recognition);
    let cut_short = shows_hole || roles.spans.iter().any(is_outdated);
    let gates = cut_short.then(|| Gates::new(&roles, recogniser));
    let from_messages = !roles.has_tool_spans;
    let MessageCalls {
        calls: tool_calls,
        cut: messages_cut,
    } = if from_messages {
        message_calls::from_messages(&roles, recogniser, &mut interner)
    } else {
        MessageCalls {
            calls: calls::from_spans(&roles, recogniser, gates.as_ref(), &mut interner),
            cut: false,
        }
    };
    let evaluated = evaluated_span(&roles)?;
    let expectation_attributes = expectation_attributes(&roles, recogniser, evaluated);
    // A run without any call is also judged if it has an expectation.
    let did_nothing = tool_calls.is_empty() && roles.runs.is_empty() && !messages_cut;
    if did_nothing && expectation_attributes.is_empty() {
        return None;
    }
    let session = session(&roles, evaluated);
    let subject = subject(&roles, recogniser, evaluated);
    let topmost = roles.tree.topmost(evaluated);
    let agent = match roles.roles[evaluated].own_run {
        Some(run) => Some(Cow::Borrowed(
            &*roles.runs[roles.innermost_of_wrappers(run)].name,
        )),
        None => own_agent(&roles.recognised[evaluated].view),
    };
    let model_uses = ModelUses::new(&roles, recogniser, evaluated, gates.as_ref());
    let ends = roles.spans.iter().map(|span| span.end_unix_nanos);
    let mut names = roles.recognised.iter().map(|span| span.view.name());
    let mut trajectory = Trajectory {
        trace_id: trace.trace_id,
        service: subject.resource.service.clone(),
        root: if topmost == evaluated {
            subject.name.clone()
        } else {
            roles.recognised[topmost].view.name().into()
        },
        agent: agent.map(|name| interner.shared(&name)),
        completeness: if cut_short && !shows_hole { CloseReason::Incomplete } else { trace.reason },
        cut_short,
        from_messages: from_messages && (messages_cut || !tool_calls.is_empty()),
        completed_elsewhere: from_messages || names.any(is_carrier),
        is_agent_run: false,
        continues_session: continues_session(&roles),
        earlier_turns: None,
        turns: None,
        uncertainty: if cut_short {
            uncertainty::of_trajectory(&roles, evaluated)
        } else {
            TrajectoryUncertainty::default()
        },
        clock_adjusted: roles.tree.clock_adjusted,
        n_spans: roles.spans.len(),
        latest_end_unix_nanos: ends.max().unwrap_or_default(),
        model_use: model_uses.of_trace,
        tool_calls,
        agent_runs: agent_runs(
            &roles,
            recogniser,
            gates.as_ref(),
            &model_uses.of_runs,
            Evaluated {
                span: evaluated,
                subject: &subject,
                session: session.as_deref(),
            },
            &mut interner,
        ),
        node_visits: node_visits(&roles, &mut interner),
        expectation_attributes: expectation_attributes.into(),
        session: session.map(Arc::from),
        subject: Some(subject),
        arrival: trace.arrival,
    };
    // A cut message may hide calls, as if the trace had been cut short.
    if messages_cut && !cut_short {
        trajectory.completeness = CloseReason::SizeLimit;
        trajectory.cut_short = true;
    }
    if trace.spans.is_made_of_records() {
        trajectory.adjust_for_records(trace);
    }
    Some(trajectory)
}

/// The evaluated span. Its run reuses `subject`; a run stores its session only if the session
/// differs from `session`.
struct Evaluated<'a> {
    span: SpanIdx,
    subject: &'a Subject,
    session: Option<&'a str>,
}

fn agent_runs(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    gates: Option<&Gates<'_>>,
    model_uses: &[ModelUse],
    evaluated: Evaluated<'_>,
    interner: &mut Interner,
) -> Arc<[AgentRun]> {
    let may_merge = match gates {
        Some(gates) => uncertainty::runs_that_may_merge(roles, gates),
        None => vec![false; roles.runs.len()],
    };
    let run = |((run, may_merge), model_use): ((&RunSpan<'_>, bool), &ModelUse)| {
        let span = &roles.spans[run.span];
        let own_session = own_session(&roles.recognised[run.span].view);
        let differs = |own: &Cow<'_, str>| evaluated.session != Some(&**own);
        AgentRun {
            name: interner.shared(&run.name),
            subject: if run.span == evaluated.span {
                evaluated.subject.clone()
            } else {
                subject(roles, recogniser, run.span)
            },
            parent: run.parent,
            ended: span.end_unix_nanos != 0 && !span.class.partial,
            session: own_session.filter(differs).map(Arc::from),
            may_merge,
            model_use: *model_use,
        }
    };
    let runs = roles.runs.iter().zip(may_merge).zip(model_uses);
    runs.map(run).collect()
}

fn subject(roles: &SpanRoles<'_>, recogniser: &Recogniser, span_idx: SpanIdx) -> Subject {
    let span = &roles.spans[span_idx];
    let view = &roles.recognised[span_idx].view;
    let resource = roles.trace.resource(span);
    let of_resource = resource.kept.index();
    let attributes = recogniser.readable().iter().filter_map(|(key, name)| {
        let value = view.get(*key).or_else(|| of_resource.get(*key))?;
        Some((name.clone(), Arc::from(&*attribute_text(value)?)))
    });
    Subject {
        span_id: span.span_id,
        name: view.name().into(),
        start_unix_nanos: span.start_unix_nanos,
        end_unix_nanos: span.end_unix_nanos,
        flags: span.flags.into(),
        trace_state: view.trace_state().into(),
        resource: Arc::clone(resource),
        attributes: attributes.collect(),
    }
}
