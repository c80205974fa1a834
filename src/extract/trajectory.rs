//! Pure. The outline of a closed trace in, its trajectory out: whose it is, which span is judged,
//! how far it can be trusted, and its calls.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashSet;

use super::autogen;
use super::brought::{Brought, brought};
use super::calls;
use super::convention::{AnyOf, View, first_text, text};
use super::doubts;
use super::keys;
use super::log_calls;
use super::outline::Outline;
use super::recognise::{Recogniser, attribute_text, metadata, own_agent};
use super::tool_call::ToolCall;
use super::tree::SpanIdx;
use super::words::Words;
use crate::assemble::{CloseReason, Trace};
use crate::span::{KeyId, Resource, SpanId, TraceId};

/// What one agent did in one trace: its tool calls in the order they were made.
#[derive(Debug, Clone)]
pub struct Trajectory {
    /// The trace it was taken from.
    pub trace_id: TraceId,
    /// The evaluated span; score spans become its children. `None` for trajectories made of log
    /// records.
    pub subject: Option<Subject>,
    /// `service.name` of the evaluated span's resource.
    pub service: Arc<str>,
    /// Name of the topmost span above the evaluated one.
    pub root: Arc<str>,
    /// Name of the agent of the evaluated span.
    pub agent: Option<Arc<str>>,
    /// Session or conversation id.
    pub session: Option<Arc<str>>,
    /// Why the trace was closed.
    pub completeness: CloseReason,
    /// Was the trace cut short? Then only a verdict that no further call could change is given
    /// (DESIGN 4).
    pub cut_short: bool,
    /// Taken from model messages alone: cut short, such a trajectory is never certain, since the
    /// first tool span replaces it.
    pub from_messages: bool,
    /// What its calls lack may be told of by other traces.
    pub told_elsewhere: bool,
    /// What the rest of a trace that was cut short could change about whose trajectory it is.
    pub doubts: Doubts,
    /// A span of another resource started before its parent, and was ordered as if shifted.
    pub clock_adjusted: bool,
    /// How many spans the trace has.
    pub n_spans: usize,
    /// Latest end of any span, Unix nanoseconds.
    pub latest_end_unix_nanos: u64,
    /// The calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// The agent runs, by start; `ToolCall::agent_run` points into it. Runs of one name directly
    /// nested are one.
    pub agent_runs: Vec<AgentRun>,
    /// Agent runs and graph nodes in start order, immediate repeats folded (`execution_order` with
    /// `over: nodes`).
    pub node_visits: Vec<Arc<str>>,
    /// What the run says about its own judgement.
    pub brought: Brought,
    /// Position of the trace by first arrival.
    pub arrival: u64,
}

/// The evaluated span, as far as scores need it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its id.
    pub span_id: SpanId,
    /// Its name.
    pub name: Arc<str>,
    /// Its start, Unix nanoseconds.
    pub start_unix_nanos: u64,
    /// Its end, Unix nanoseconds; 0 where it has none.
    pub end_unix_nanos: u64,
    /// Its OTLP span flags.
    pub flags: u32,
    /// Its W3C trace state.
    pub trace_state: Arc<str>,
    /// Its resource.
    pub resource: Arc<Resource>,
    /// Its kept attributes by key, then those of its resource that it does not have itself, as the
    /// text that selectors compare and scores copy (numbers and booleans as their JSON text);
    /// looked up with [`Subject::attribute`].
    pub attributes: Vec<(Arc<str>, Arc<str>)>,
}

/// One agent run of a trace.
#[derive(Debug, Clone)]
pub struct AgentRun {
    /// The agent's name.
    pub name: Arc<str>,
    /// Its span, as far as scores need it.
    pub subject: Subject,
    /// The run that contains it, a position in `Trajectory::agent_runs`.
    pub parent: Option<usize>,
    /// Has its span ended?
    pub ended: bool,
    /// Its own session, where it differs.
    pub session: Option<Arc<str>>,
    /// The trace was cut short, and the rest may show that it is part of an outer run of the same
    /// name.
    pub may_merge: bool,
}

/// What the rest of a trace that was cut short could change about whose trajectory it is. Nothing
/// for a trace that is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Another span may turn out to be the evaluated one: another agent, other attributes.
    pub subject: bool,
    /// Another span may turn out to be the topmost one.
    pub root: bool,
    /// The evaluated span may turn out to be another service's.
    pub service: bool,
    /// Nothing that is said of it is certain: the agent run may turn out to be none that is judged
    /// on its own, for one.
    pub all: bool,
}

impl Subject {
    /// The text of an attribute of the span, else of its resource.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|(key, _)| **key == *name)
            .map(|(_, text)| &**text)
    }
}

impl Trajectory {
    /// The runs that `scope: agent` judges: all but those that have no calls of their own and
    /// contain another run.
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

    /// The same, of which nothing is certain.
    pub fn doubtful(&self) -> Self {
        Self {
            doubts: Doubts {
                all: true,
                ..self.doubts
            },
            ..self.clone()
        }
    }

    /// The same, narrowed to the calls that one agent run made itself: a sub-agent's calls belong
    /// to the sub-agent, the delegating call to the run that delegates. The list of runs stays
    /// whole. A run that is not there gives a trajectory without calls.
    pub fn for_agent_run(&self, run: usize) -> Self {
        let mut narrowed = self.clone();
        narrowed
            .tool_calls
            .retain(|call| call.agent_run == Some(run));
        if let Some(AgentRun {
            name,
            subject,
            session,
            ended,
            may_merge,
            ..
        }) = self.agent_runs.get(run)
        {
            // A run without calls of its own is judged only until it turns out to contain another.
            let all = *may_merge || (self.cut_short && narrowed.tool_calls.is_empty());
            narrowed.doubts = Doubts {
                subject: self.cut_short && !ended,
                service: false,
                all,
                ..self.doubts
            };
            narrowed.agent = Some(name.clone());
            narrowed.service = subject.resource.service.clone();
            narrowed.subject = Some(subject.clone());
            narrowed.session = session.clone().or(narrowed.session);
        }
        narrowed
    }
}

/// The trajectory of a closed trace. `None` for a trace with neither a tool call nor an agent run,
/// which says nothing of its own judgement either: it is counted, and not judged.
pub fn trajectory(trace: &Trace, recogniser: &Recogniser) -> Option<Trajectory> {
    let outline = Outline::new(trace, recogniser);
    let from_messages = !outline.has_tool_spans;
    let cut_short = cut_short(trace, &outline);
    let mut words = Words::default();
    let (tool_calls, messages_cut) = match from_messages {
        true => calls::from_messages(&outline, recogniser, &mut words),
        false => (
            calls::from_spans(&outline, recogniser, cut_short, &mut words),
            false,
        ),
    };
    let evaluated = evaluated(&outline)?;
    let brought = brought(&outline, recogniser, evaluated);
    // Something is expected of one that did nothing at all, too.
    if tool_calls.is_empty() && outline.runs.is_empty() && brought.asks_nothing() {
        return None;
    }
    let subject = subject(&outline, recogniser, evaluated);
    let session = session(&outline, evaluated);
    let runs = &outline.runs;
    let may_merge = if cut_short {
        doubts::runs_that_may_merge(&outline, recogniser)
    } else {
        vec![false; runs.len()]
    };
    let agent_runs = (runs.iter().zip(may_merge))
        .map(|(run, may_merge)| {
            let (span, mark) = &trace.spans[run.span];
            let own_session = own_session(&outline.views[run.span])
                .filter(|own| session.as_deref() != Some(&**own));
            AgentRun {
                name: words.held(&run.name),
                subject: if run.span == evaluated {
                    subject.clone()
                } else {
                    self::subject(&outline, recogniser, run.span)
                },
                parent: run.parent,
                ended: span.end_unix_nanos != 0 && !mark.partial,
                session: own_session.map(Arc::from),
                may_merge,
            }
        })
        .collect();
    let topmost = outline.tree.topmost(evaluated);
    let agent_of_run = runs
        .iter()
        .find(|run| run.span == evaluated)
        .map(|run| Cow::Borrowed(&*run.name));
    let mut trajectory = Trajectory {
        trace_id: trace.trace_id,
        service: subject.resource.service.clone(),
        root: if topmost == evaluated {
            subject.name.clone()
        } else {
            outline.views[topmost].name().into()
        },
        agent: agent_of_run
            .or_else(|| own_agent(&outline.views[evaluated]))
            .map(|name| words.held(&name)),
        subject: Some(subject),
        session: session.map(Arc::from),
        completeness: trace.reason,
        cut_short,
        from_messages: from_messages && !tool_calls.is_empty(),
        told_elsewhere: from_messages || autogen::takes_part(trace),
        doubts: if cut_short {
            doubts::of_subject(&outline, evaluated)
        } else {
            Doubts::default()
        },
        clock_adjusted: outline.tree.clock_adjusted,
        n_spans: trace.spans.len(),
        latest_end_unix_nanos: trace
            .spans
            .iter()
            .map(|(span, _)| span.end_unix_nanos)
            .max()
            .unwrap_or_default(),
        tool_calls,
        agent_runs,
        node_visits: node_visits(&outline, &mut words),
        brought,
        arrival: trace.arrival,
    };
    // Calls may have gone with the end of messages that were too long, which is as if the trace had
    // been.
    if messages_cut {
        (trajectory.completeness, trajectory.cut_short) = (CloseReason::SizeLimit, true);
    }
    if log_calls::is_made_of_logs(trace) {
        log_calls::finish(&mut trajectory, trace);
    }
    Some(trajectory)
}

/// The earliest agent run among the topmost; else the earliest top span; else the earliest topmost
/// span present.
fn evaluated(outline: &Outline<'_>) -> Option<SpanIdx> {
    // Runs are in order, so that the first of the topmost is the earliest. One that a tool call is
    // or holds was called by an agent above it, though that has no run of its own (OpenInference
    // marks LangGraph's agents only if their name says so).
    let is_called = |span_idx: SpanIdx| {
        outline.calls[span_idx].is_some() || outline.call_above[span_idx].is_some()
    };
    if let Some(run) = outline
        .runs
        .iter()
        .find(|run| run.parent.is_none() && !is_called(run.span))
    {
        return Some(run.span);
    }
    let mut holds_agent = vec![false; outline.spans.len()];
    for &span_idx in outline.tree.parents_first.iter().rev() {
        holds_agent[span_idx] |=
            outline.calls[span_idx].is_some() || outline.model[span_idx] == Some(span_idx);
        if let Some(parent) = outline.tree.parent[span_idx] {
            holds_agent[parent] |= holds_agent[span_idx];
        }
    }
    let is_top = |span_idx: SpanIdx| {
        let span = &outline.spans[span_idx].0;
        span.parent_id.is_none()
            || (span.parent_is_remote()
                && outline.calls[span_idx].is_none()
                && holds_agent[span_idx])
    };
    let mut tops: Vec<SpanIdx> = outline.tree.tops().collect();
    tops.sort_by_key(|&span_idx| outline.rank(span_idx));
    tops.iter()
        .copied()
        .find(|&span_idx| is_top(span_idx))
        .or_else(|| tops.first().copied())
}

/// A closed trace is judged in full if its root has ended; without that, if nothing of it can be
/// missing above or beside what is there.
fn cut_short(trace: &Trace, outline: &Outline<'_>) -> bool {
    match trace.reason {
        CloseReason::RootEnded => false,
        CloseReason::Inactive | CloseReason::NoRoot => {
            let runs: HashSet<SpanIdx> = outline.runs.iter().map(|run| run.span).collect();
            let is_finished_run = |span_idx: SpanIdx| {
                let (span, mark) = &trace.spans[span_idx];
                span.end_unix_nanos != 0 && !mark.partial && runs.contains(&span_idx)
            };
            trace.parent_missing && !outline.tree.tops().all(is_finished_run)
        }
        _ => true,
    }
}

fn subject(outline: &Outline<'_>, recogniser: &Recogniser, span_idx: SpanIdx) -> Subject {
    let span = &outline.spans[span_idx].0;
    let own = recogniser.readable().iter().filter_map(|(key, name)| {
        let value = span.get(*key).or_else(|| span.resource.kept.get(*key))?;
        Some((name.clone(), Arc::from(&*attribute_text(value)?)))
    });
    Subject {
        span_id: span.span_id,
        name: span.name().into(),
        start_unix_nanos: span.start_unix_nanos,
        end_unix_nanos: span.end_unix_nanos,
        flags: span.flags,
        trace_state: span.kept.trace_state().into(),
        resource: span.resource.clone(),
        attributes: own.collect(),
    }
}

// === sessions ===

pub(super) const SESSIONS: &[KeyId] = &[
    keys::CONVERSATION_ID,
    keys::SESSION_ID,
    keys::JUDGMENT_SESSION,
    keys::LANGFUSE_SESSION,
    keys::TRACELOOP_SESSION,
    keys::TRACELOOP_THREAD,
    keys::LANGSMITH_SESSION,
    keys::LANGSMITH_THREAD,
    keys::PLAIN_CONVERSATION_ID,
    keys::ADK_SESSION,
    keys::AI_SESSION_METADATA,
    keys::AI_SESSION_CONTEXT,
    keys::MASTRA_SESSION,
];

/// Of the evaluated span, else of those above it, else of the earliest span that names one: often
/// only model spans do.
fn session<'a>(outline: &Outline<'a>, evaluated: SpanIdx) -> Option<Cow<'a, str>> {
    let of = |span_idx: SpanIdx| own_session(&outline.views[span_idx]);
    of(evaluated)
        .or_else(|| outline.tree.ancestors(evaluated).find_map(of))
        .or_else(|| {
            let naming =
                (0..outline.spans.len()).filter_map(|span_idx| Some((span_idx, of(span_idx)?)));
            naming
                .min_by_key(|&(span_idx, _)| outline.rank(span_idx))
                .map(|(_, session)| session)
        })
}

fn own_session<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    if span.has_any_of(AnyOf::new(SESSIONS)) {
        first_text(span, SESSIONS)
    } else {
        None
    }
}

// === node visits ===

/// Agent runs, and the nodes of LangGraph, which every span of a node repeats: its topmost ones
/// count.
fn node_visits(outline: &Outline<'_>, words: &mut Words) -> Vec<Arc<str>> {
    let has_nodes = outline.present.has_any_of(MAY_BE_NODE);
    let nodes: Vec<Option<Node<'_>>> = if has_nodes {
        outline.views.iter().map(Node::of).collect()
    } else {
        Vec::new()
    };
    let mut visits: Vec<(SpanIdx, Arc<str>)> = outline
        .runs
        .iter()
        .map(|run| (run.span, words.held(&run.name)))
        .collect();
    for (span_idx, node) in nodes.iter().enumerate() {
        let Some(node) = node else { continue };
        let above = outline.tree.parent[span_idx].and_then(|parent| nodes[parent].as_ref());
        if above != Some(node) {
            visits.push((span_idx, words.held(&node.name)));
        }
    }
    // A run that is a node itself comes as run and node; they fold if they are of one name.
    visits.sort_by_key(|(span_idx, _)| outline.rank(*span_idx));
    let mut names: Vec<Arc<str>> = visits.into_iter().map(|(_, name)| name).collect();
    names.dedup();
    names
}

/// Keys without which a span is of no node.
const MAY_BE_NODE: AnyOf = AnyOf::new(&[
    keys::LANGFUSE_NODE,
    keys::LANGSMITH_NODE,
    keys::TRACELOOP_NODE,
    keys::METADATA,
]);

#[derive(PartialEq)]
struct Node<'a> {
    name: Cow<'a, str>,
    step: Option<Cow<'a, str>>,
}

impl<'a> Node<'a> {
    fn of(span: &View<'a>) -> Option<Self> {
        if !span.has_any_of(MAY_BE_NODE) {
            return None;
        }
        let spelled = [
            (keys::LANGFUSE_NODE, keys::LANGFUSE_STEP),
            (keys::LANGSMITH_NODE, keys::LANGSMITH_STEP),
            (keys::TRACELOOP_NODE, keys::TRACELOOP_STEP),
        ];
        let found = spelled.iter().find_map(|&(node, step)| {
            Some(Self {
                name: text(span, node)?,
                step: text(span, step),
            })
        });
        found.or_else(|| {
            Some(Self {
                name: metadata(span, "langgraph_node")?,
                step: metadata(span, "langgraph_step"),
            })
        })
    }
}
