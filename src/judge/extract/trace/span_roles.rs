//! The role of each span in its trace: agent runs, tool calls merged to one entry each, outermost
//! model spans, and the enclosing run, call and model of each span.

use std::borrow::Cow;

use hashbrown::{HashMap, HashSet};
use otlp::span::{KeyBits, SpanClass, SpanId, SpanRow};
use smallvec::{SmallVec, smallvec};

use super::call_report::{CallReport, more_of};
use super::handoffs;
use super::tree::Tree;
use crate::assemble::{Trace, TraceSpans};
use crate::extract::spans::conventions::refines;
use crate::extract::spans::shared_keys::{complete_call, own_agent};
use crate::extract::spans::{
    ConventionId, ConventionRef, RecognisedSpan, RecognisedSpans, Recogniser, SpanCall, SpanIdx,
    View, is_synthesized, keys, model_messages,
};
use crate::extract::tool_call::Payload;
use crate::extract::values::{Conversation, payload};

/// The roles of a trace's spans; `recognised` and `roles` are indexed by span.
pub(crate) struct SpanRoles<'a> {
    pub(crate) trace: &'a TraceSpans,
    pub(crate) spans: &'a [SpanRow],
    /// The role that each span has by itself, corrected by the conventions' hooks. Ignored calls
    /// and transfers are removed, and agents are moved to `runs`.
    pub(crate) recognised: Vec<RecognisedSpan<'a>>,
    pub(crate) roles: Vec<Role<'a>>,
    /// The built-in keys that occur in the spans.
    pub(crate) present: KeyBits,
    pub(crate) tree: Tree,
    /// The log records with messages of models.
    pub(crate) records: Vec<View<'a>>,
    /// The records written in each span, in order.
    pub(crate) records_of: HashMap<SpanIdx, Vec<View<'a>>>,
    /// The agent whose turn a span belongs to, if one run has turns of several agents.
    turn_agents: HashMap<SpanIdx, &'a str>,
    /// The agent runs in the order of their starts; directly nested runs of one name are one run.
    pub(crate) runs: Vec<RunSpan<'a>>,
    /// True if any span is marked as a tool call, counted or not.
    pub(crate) has_tool_spans: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Role<'a> {
    /// The convention that recognised the span; empty if there is none.
    pub(crate) convention: &'a str,
    /// The built-in convention that recognised the span as an agent run. Stays set if `refine` then
    /// decides that the span is no run.
    run_convention: Option<ConventionId>,
    pub(crate) excluded: Option<Exclusion>,
    /// The run that the span starts or continues.
    pub(crate) own_run: Option<RunIdx>,
    /// The enclosing agent run, without the span's own run.
    pub(crate) run_above: Option<RunIdx>,
    /// The enclosing tool call, without the span's own call; folded spans are skipped.
    pub(crate) call_above: Option<SpanIdx>,
    /// The outermost model span above this span, with no call or run in between. For a model span
    /// without one: `twin_of`, or else the span itself.
    pub(crate) model_of: Option<SpanIdx>,
    /// The sibling with which another instrumentation reports the same model call.
    pub(crate) twin_of: Option<SpanIdx>,
}

/// The run, the call and the outermost model span above a span.
#[derive(Default)]
struct Above {
    run: Option<RunIdx>,
    call: Option<SpanIdx>,
    model: Option<SpanIdx>,
}

/// Maximum number of siblings of a model span that are searched for another report of its call.
const MAX_SIBLINGS: usize = 16;

/// The spans that report one model call.
type Reports = SmallVec<[SpanIdx; 2]>;

/// An index in `SpanRoles::runs`.
pub(crate) type RunIdx = usize;

pub(crate) struct RunSpan<'a> {
    pub(crate) span: SpanIdx,
    pub(crate) name: Cow<'a, str>,
    pub(crate) parent: Option<RunIdx>,
}

/// The reason why a tool span is not a separate call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exclusion {
    /// The span reports the same call as this other span.
    Folded(SpanIdx),
    /// `tools.ignore` names the tool.
    Ignored,
    /// The call hands control to another agent.
    Handoff,
    /// The framework invented the call.
    Synthesized,
}

impl<'a> SpanRoles<'a> {
    pub(crate) fn new(trace: &'a Trace, recogniser: &'a Recogniser) -> Self {
        let spans = trace.spans.rows();
        let view = |span: &SpanRow| View::new(trace.spans.attributes(span), span);
        let records: Vec<View<'a>> = trace.spans.records().iter().map(view).collect();
        let mut records_of: HashMap<SpanIdx, Vec<View<'a>>> = HashMap::new();
        for (record, at) in records.iter().zip(spans.len()..) {
            if let Some(span_idx) = trace.shape.parent(at).filter(|&at| at < spans.len()) {
                records_of.entry(span_idx).or_default().push(*record);
            }
        }
        let mut roles = Self {
            trace: &trace.spans,
            spans,
            recognised: Vec::with_capacity(spans.len()),
            roles: Vec::with_capacity(spans.len()),
            present: KeyBits::NONE,
            tree: Tree::new(trace),
            records_of,
            records,
            turn_agents: HashMap::new(),
            runs: Vec::new(),
            has_tool_spans: false,
        };
        for (span_idx, span) in spans.iter().enumerate() {
            roles.recognise(span_idx, view(span), span.class, recogniser);
        }
        roles.refine();
        roles.has_tool_spans |= roles.recognised.iter().any(|span| span.call.is_some());
        roles.exclude(recogniser);
        roles.walk(recogniser.tools.max_value_size);
        roles.sort_runs();
        roles
    }

    /// Recognises one span by itself and adds it.
    fn recognise(
        &mut self,
        span_idx: SpanIdx,
        view: View<'a>,
        class: SpanClass,
        recogniser: &'a Recogniser,
    ) {
        let found = recogniser.recall(&view, class.recognition);
        let source = recogniser.source(found.call);
        let run = recogniser.source(found.agent);
        let agent = run.and_then(|run| run.agent_run(&view));
        self.has_tool_spans |= is_synthesized(found);
        let mut convention = recogniser.convention(found);
        let mut is_model = found.model != 0;
        // A span that is neither a call nor a run is a model span if messages were recorded in it.
        if source.is_none() && agent.is_none() && self.records_of.contains_key(&span_idx) {
            is_model = true;
            if convention.is_empty() {
                convention = ConventionId::GEN_AI.get().name;
            }
        }
        self.present = self.present.union(view.present());
        self.roles.push(Role {
            convention,
            run_convention: run.and_then(ConventionRef::built_in),
            excluded: is_synthesized(found).then_some(Exclusion::Synthesized),
            own_run: None,
            run_above: None,
            call_above: None,
            model_of: None,
            twin_of: None,
        });
        let is_agent_run = agent.is_some();
        self.recognised.push(RecognisedSpan {
            view,
            call: None,
            agent,
            is_model,
        });
        // Build the call in place, because a call is expensive to move, and most spans are not
        // calls.
        if let (Some(source), Some(span)) = (source, self.recognised.last_mut()) {
            let call = span.call.insert(source.call(&view));
            complete_call(call, &view, is_agent_run);
        }
    }

    /// Applies the conventions' corrections of roles that depend on several spans.
    fn refine(&mut self) {
        for refine in refines() {
            if self.present.intersects(refine.when) {
                (refine.apply)(&mut RecognisedSpans {
                    spans: &mut self.recognised,
                    parent: &self.tree.parent,
                    parents_first: &self.tree.parents_first,
                    start: &self.tree.start,
                    turn_agents: &mut self.turn_agents,
                });
            }
        }
    }

    /// Returns the whole run that a span records; `None` unless its convention has the hook
    /// `conversation`.
    pub(crate) fn conversation(&self, span_idx: SpanIdx, max_size: usize) -> Option<Conversation> {
        let convention = self.roles[span_idx].run_convention?.get();
        (convention.conversation?)(&self.recognised[span_idx].view, max_size)
    }

    /// Excludes calls that `tools.ignore` names, and transfers between agents.
    fn exclude(&mut self, recogniser: &Recogniser) {
        let all_agents = || {
            let of_runs = self
                .recognised
                .iter()
                .filter_map(|span| span.agent.as_deref());
            self.agent_names(of_runs)
        };
        let mut known: Option<HashSet<String>> = None;
        let mut exclusions = Vec::new();
        for (span_idx, span) in self.recognised.iter().enumerate() {
            let Some(call) = &span.call else { continue };
            let Some(name) = call.name.as_deref().or(call.poor_name) else {
                continue;
            };
            let is_agent = |name: &str| known.get_or_insert_with(all_agents).contains(name);
            let mode = span.view.str(keys::TRANSFER_MODE);
            if recogniser.ignores(name) {
                exclusions.push((span_idx, Exclusion::Ignored));
            } else if handoffs::is_handoff(name, mode, &recogniser.tools.handoffs, is_agent) {
                exclusions.push((span_idx, Exclusion::Handoff));
            }
        }
        for (span_idx, exclusion) in exclusions {
            self.recognised[span_idx].call = None;
            self.roles[span_idx].excluded = Some(exclusion);
        }
    }

    /// Sets the runs, the models, and the calls folded into the call above, in one walk from the
    /// roots.
    fn walk(&mut self, max_size: usize) {
        let mut known = KnownCalls::default();
        let mut models: HashMap<SpanIdx, Vec<Reports>> = HashMap::new();
        for at in 0..self.tree.parents_first.len() {
            let span_idx = self.tree.parents_first[at];
            let parent = self.tree.parent[span_idx];
            let above = parent.map_or_else(Above::default, |parent| self.above_child_of(parent));
            let role = &mut self.roles[span_idx];
            role.run_above = above.run;
            role.call_above = above.call;
            role.model_of = above.model;
            if self.recognised[span_idx].is_model {
                let siblings = parent.map(|parent| models.entry(parent).or_default());
                let twin =
                    siblings.and_then(|siblings| self.twin_of_model(span_idx, siblings, max_size));
                let outer = above.model.or(twin);
                let role = &mut self.roles[span_idx];
                role.twin_of = twin;
                role.model_of = outer.or(Some(span_idx));
            }
            if let Some(name) = self.recognised[span_idx].agent.take() {
                self.roles[span_idx].own_run = Some(self.run_of(span_idx, name));
            }
            if let Some(into) = self.same_call_above(span_idx, &mut known, max_size) {
                self.roles[span_idx].excluded = Some(Exclusion::Folded(into));
            }
        }
    }

    fn above_child_of(&self, parent: SpanIdx) -> Above {
        let role = &self.roles[parent];
        let is_call = self.recognised[parent].call.is_some();
        Above {
            run: role.own_run.or(role.run_above),
            call: match role.excluded {
                Some(Exclusion::Folded(into)) => Some(into),
                _ if is_call => Some(parent),
                _ => role.call_above,
            },
            model: role.model_of.filter(|_| !is_call && role.own_run.is_none()),
        }
    }

    /// Returns the sibling with which another instrumentation reports the same model call: one span
    /// ran within the time of the other, and their replies do not name different calls. Adds the
    /// span to the reports of that call, or as a separate call.
    fn twin_of_model(
        &self,
        span_idx: SpanIdx,
        siblings: &mut Vec<Reports>,
        max_size: usize,
    ) -> Option<SpanIdx> {
        let (start, end) = (&self.tree.start, &self.tree.end);
        let lies_in = |inner: SpanIdx, outer: SpanIdx| {
            start[outer] <= start[inner] && end[inner] <= end[outer]
        };
        let is_twin = |&other: &SpanIdx| {
            let spans = [span_idx, other].map(|span_idx| &self.spans[span_idx]);
            spans[0].scope != spans[1].scope
                && spans.iter().all(|span| span.end_unix_nanos != 0)
                && (lies_in(span_idx, other) || lies_in(other, span_idx))
                && !self.announce_other_calls([span_idx, other], max_size)
        };
        let mut latest = siblings.iter_mut().rev().take(MAX_SIBLINGS);
        let is_one =
            |reports: &&mut Reports| reports.len() < MAX_SIBLINGS && reports.iter().all(is_twin);
        match latest.find(is_one) {
            Some(reports) => {
                reports.push(span_idx);
                reports.first().copied()
            }
            None => {
                siblings.push(smallvec![span_idx]);
                None
            }
        }
    }

    /// Returns true if both replies name calls by id, and no id is in both.
    fn announce_other_calls(&self, models: [SpanIdx; 2], max_size: usize) -> bool {
        let [one, other] = models.map(|model| {
            let reply = model_messages::announcement(&self.recognised[model].view, max_size);
            let ids = reply.calls.into_iter().filter_map(|call| call.call_id);
            ids.collect::<HashSet<String>>()
        });
        !one.is_empty() && !other.is_empty() && one.is_disjoint(&other)
    }

    /// Returns a new run, or the run above if it has the same name, and this span and the spans in
    /// between are no calls.
    fn run_of(&mut self, span_idx: SpanIdx, name: Cow<'a, str>) -> RunIdx {
        let role = &self.roles[span_idx];
        if let Some(above) = role.run_above
            && self.runs[above].name == name
            && self.recognised[span_idx].call.is_none()
            && role
                .call_above
                .is_none_or(|call| self.tree.depth[call] <= self.tree.depth[self.runs[above].span])
        {
            return above;
        }
        let parent = role.run_above;
        self.runs.push(RunSpan {
            span: span_idx,
            name,
            parent,
        });
        self.runs.len() - 1
    }

    /// Returns the enclosing call if its span and this span report the same call: client, server
    /// and wrapper each report a call, and the outermost report represents it. A retry is a
    /// sibling, and two ids are two calls.
    fn same_call_above(
        &self,
        span_idx: SpanIdx,
        known: &mut KnownCalls<'a>,
        max_size: usize,
    ) -> Option<SpanIdx> {
        let call = self.recognised[span_idx].call.as_ref()?;
        let role = &self.roles[span_idx];
        let above_idx = role.call_above?;
        let above = self.recognised[above_idx].call.as_ref()?;
        // An agent run in between means a separate call.
        let role_above = &self.roles[above_idx];
        if role.run_above != role_above.own_run.or(role_above.run_above) {
            return None;
        }
        let own = KnownCall::new(call, max_size);
        let above = known
            .entry(above_idx)
            .or_insert_with(|| KnownCall::new(above, max_size));
        let is_same = own.report().agrees_with(&above.report());
        if is_same {
            above.complete(own);
        }
        is_same.then_some(above_idx)
    }

    fn sort_runs(&mut self) {
        if self.runs.len() < 2 {
            return;
        }
        let mut order: Vec<RunIdx> = (0..self.runs.len()).collect();
        order.sort_by_key(|&run_idx| self.rank(self.runs[run_idx].span));
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let mut runs: Vec<Option<RunSpan<'a>>> = std::mem::take(&mut self.runs)
            .into_iter()
            .map(Some)
            .collect();
        self.runs = order.iter().filter_map(|&old| runs[old].take()).collect();
        let of_spans = self.roles.iter_mut();
        let of_spans = of_spans.flat_map(|role| [&mut role.own_run, &mut role.run_above]);
        for run in self
            .runs
            .iter_mut()
            .map(|run| &mut run.parent)
            .chain(of_spans)
        {
            *run = run.map(|old| place[old]);
        }
    }

    pub(crate) fn n_calls(&self) -> usize {
        let spans = self.recognised.iter();
        spans.filter(|span| span.call.is_some()).count()
    }

    pub(crate) fn rank(&self, span_idx: SpanIdx) -> (u64, u32, u64, SpanId) {
        (
            self.tree.start[span_idx],
            self.tree.depth[span_idx],
            self.tree.end[span_idx],
            self.spans[span_idx].span_id,
        )
    }

    /// Returns the innermost run if this run only wraps it, as a workflow does, else this run. A
    /// wrapper makes no tool or model call itself, and the runs directly below it have one name.
    pub(crate) fn innermost_of_wrappers(&self, mut run: RunIdx) -> RunIdx {
        if self.runs.iter().all(|inner| inner.parent != Some(run)) {
            return run;
        }
        let has_own = self.runs_with_work();
        let mut below: Vec<Option<RunIdx>> = vec![None; self.runs.len()];
        let mut has_several = vec![false; self.runs.len()];
        for (inner, parent) in (0..).zip(self.runs.iter().map(|run| run.parent)) {
            let Some(parent) = parent else { continue };
            let first = *below[parent].get_or_insert(inner);
            has_several[parent] |= self.runs[first].name != self.runs[inner].name;
        }
        while let Some(inner) = below[run].filter(|_| !has_own[run] && !has_several[run]) {
            run = inner;
        }
        run
    }

    /// Returns true for each run that has calls of tools or models outside its inner runs.
    pub(crate) fn runs_with_work(&self) -> Vec<bool> {
        let mut has_own = vec![false; self.runs.len()];
        for (span, role) in self.recognised.iter().zip(&self.roles) {
            let works = span.call.is_some() || span.is_model || role.excluded.is_some();
            if let Some(run) = role.run_above.filter(|_| works) {
                has_own[run] = true;
            }
        }
        has_own
    }

    /// Returns the agent that a span names as its own, else the agent of its turn, else the agent
    /// of the enclosing run.
    pub(crate) fn agent_of(&self, span_idx: SpanIdx) -> Option<Cow<'_, str>> {
        let of_turn = || self.turn_agents.get(&span_idx).copied().map(Cow::Borrowed);
        let of_run = |run: RunIdx| Cow::Borrowed(&*self.runs[run].name);
        own_agent(&self.recognised[span_idx].view)
            .or_else(of_turn)
            .or_else(|| self.roles[span_idx].run_above.map(of_run))
    }

    /// Returns the names of the trace's agents, reduced to lower-case letters and digits: those of
    /// its agent runs, and those that spans name as their own.
    fn agent_names<'n>(&self, of_runs: impl Iterator<Item = &'n str>) -> HashSet<String> {
        let own = (self.recognised.iter()).filter_map(|span| own_agent(&span.view));
        of_runs
            .map(handoffs::letters)
            .chain(own.map(|name| handoffs::letters(&name)))
            .collect()
    }

    /// Returns true if the settings exclude a call of this name, as ignored or as a transfer.
    pub(crate) fn excludes(&self, name: &str, recogniser: &Recogniser) -> bool {
        let is_agent = |name: &str| {
            self.agent_names(self.runs.iter().map(|run| &*run.name))
                .contains(name)
        };
        let handoffs = &recogniser.tools.handoffs;
        recogniser.ignores(name) || handoffs::is_handoff(name, None, handoffs, is_agent)
    }

    /// Returns true for a model span that is within another one, or reports a sibling's call again.
    pub(crate) fn is_inner_model(&self, span_idx: SpanIdx) -> bool {
        self.recognised[span_idx].is_model && self.roles[span_idx].model_of != Some(span_idx)
    }

    /// Returns the outermost model spans, in order.
    pub(crate) fn models(&self) -> Vec<SpanIdx> {
        let mut models: Vec<SpanIdx> = (0..self.spans.len())
            .filter(|&span_idx| self.roles[span_idx].model_of == Some(span_idx))
            .collect();
        models.sort_by_key(|&span_idx| self.rank(span_idx));
        models
    }
}

/// Calls that enclose other calls, keyed by their spans, and completed by the reports folded into
/// them.
type KnownCalls<'a> = HashMap<SpanIdx, KnownCall<'a>>;

/// The known parts of a call while reports are folded into it.
struct KnownCall<'a> {
    call_id: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    args: Option<Payload>,
}

impl<'a> KnownCall<'a> {
    fn new(call: &SpanCall<'a>, max_size: usize) -> Self {
        let args = call.args;
        Self {
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            args: args.map(|args| payload::open_args(args, call.args_in, max_size)),
        }
    }

    fn report(&self) -> CallReport<'_> {
        CallReport {
            call_id: self.call_id.as_deref(),
            name: self.name.as_deref(),
            args: self.args.as_ref(),
        }
    }

    fn complete(&mut self, other: Self) {
        self.call_id = self.call_id.take().or(other.call_id);
        self.name = self.name.take().or(other.name);
        self.args = more_of(self.args.take(), other.args);
    }
}
