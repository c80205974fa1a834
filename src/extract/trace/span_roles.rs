//! Pure. The role of each span in its trace: agent runs, tool calls folded to one entry each,
//! outermost model spans, and what lies above each span. Knows the tree and what each span was
//! recognised as; parses no value but
//! the arguments of a call within a call.

use std::borrow::Cow;

use hashbrown::{HashMap, HashSet};

use super::call_report::CallReport;
use super::handoffs;
use super::log_trajectory::ReadableTrace;
use super::tree::Tree;
use crate::assemble::Trace;
use crate::extract::spans::conventions::refines;
use crate::extract::spans::shared_keys::{complete_call, own_agent};
use crate::extract::spans::{
    ConventionId, ConventionRef, KeyBits, RecognisedSpans, Recogniser, SpanCall, SpanIdx, View,
};
use crate::extract::tool_call::Payload;
use crate::extract::values::{Conversation, payload};
use crate::span::SpanClass;
use crate::span::{Span, SpanId};

/// The roles of a trace's spans; the vectors are indexed by span.
pub(crate) struct SpanRoles<'a> {
    pub(crate) spans: &'a [(Span, SpanClass)],
    pub(crate) views: Vec<View<'a>>,
    /// The built-in keys that any of the spans has.
    pub(crate) present: KeyBits,
    pub(crate) tree: Tree,
    /// Log records with messages of the models.
    pub(crate) records: Vec<View<'a>>,
    /// Those of them that were written in a span, in order.
    pub(crate) records_of: HashMap<SpanIdx, Vec<View<'a>>>,
    /// The convention that recognised a span, empty for none.
    pub(crate) conventions: Vec<&'a str>,
    /// The convention that recognised a span as an agent's run, also one that turned out to be
    /// none.
    pub(crate) run_conventions: Vec<Option<ConventionId>>,
    /// The call that a span is, if it counts as one.
    pub(crate) calls: Vec<Option<SpanCall<'a>>>,
    /// Why a tool span is no call of its own.
    pub(crate) excluded: Vec<Option<Exclusion>>,
    /// The agent run that a span lies in, its own left out.
    pub(crate) run_above: Vec<Option<RunIdx>>,
    /// The tool call that a span lies in, its own left out; folded spans are skipped.
    pub(crate) call_above: Vec<Option<SpanIdx>>,
    /// The outermost model span that a span lies in or is, up to the next call or run.
    pub(crate) model_of: Vec<Option<SpanIdx>>,
    /// Is it a model span within another?
    pub(crate) is_inner_model: Vec<bool>,
    /// The agent whose turn a span belongs to, where one run has turns of several agents.
    turn_agents: HashMap<SpanIdx, &'a str>,
    /// Agent runs in the order of their starts; directly nested ones of one name are one.
    pub(crate) runs: Vec<RunSpan<'a>>,
    /// Was any span a tool call by its marks, counted or not?
    pub(crate) has_tool_spans: bool,
}

/// A position in `SpanRoles::runs`.
pub(crate) type RunIdx = usize;

/// An agent run.
pub(crate) struct RunSpan<'a> {
    pub(crate) span: SpanIdx,
    pub(crate) name: Cow<'a, str>,
    pub(crate) parent: Option<RunIdx>,
}

/// Why a tool span is no call of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exclusion {
    /// It is the same call as the one of this span.
    Folded(SpanIdx),
    /// `tools.ignore` names it.
    Ignored,
    /// It hands control to another agent.
    Handoff,
    /// The framework made it up.
    Synthesized,
}

impl<'a> SpanRoles<'a> {
    pub(crate) fn new(readable: &'a ReadableTrace<'_>, recogniser: &'a Recogniser) -> Self {
        let trace: &'a Trace = &readable.trace;
        let spans = &*trace.spans;
        let n_spans = spans.len();
        let records = trace.records.iter().map(View::of_record).collect();
        let view = if readable.is_made_of_records {
            View::of_record_span
        } else {
            View::new
        };
        let views: Vec<View<'a>> = spans.iter().map(|(span, _)| view(span)).collect();
        let present = views
            .iter()
            .fold(KeyBits::NONE, |present, view| present.union(view.present()));
        let mut roles = Self {
            spans,
            views,
            present,
            tree: Tree::new(spans),
            records_of: records_of(trace),
            records,
            conventions: Vec::with_capacity(n_spans),
            run_conventions: Vec::with_capacity(n_spans),
            calls: Vec::with_capacity(n_spans),
            excluded: vec![None; n_spans],
            run_above: vec![None; n_spans],
            call_above: vec![None; n_spans],
            model_of: vec![None; n_spans],
            is_inner_model: vec![false; n_spans],
            turn_agents: HashMap::new(),
            runs: Vec::new(),
            has_tool_spans: false,
        };
        let mut single = roles.recognise(recogniser);
        roles.refine(&mut single.agents);
        roles.has_tool_spans |= roles.calls.iter().any(Option::is_some);
        roles.exclude(&single.agents, recogniser);
        roles.walk(single, recogniser.tools.max_value_size);
        roles.sort_runs();
        roles
    }

    /// Each span on its own.
    fn recognise(&mut self, recogniser: &'a Recogniser) -> SingleRoles<'a> {
        let n_spans = self.spans.len();
        let mut single = SingleRoles {
            agents: Vec::with_capacity(n_spans),
            is_model: Vec::with_capacity(n_spans),
        };
        for (span_idx, (view, (_, class))) in self.views.iter().zip(self.spans).enumerate() {
            let recognised = recogniser.recall(view, class.recognition);
            let agent = recognised.agent.and_then(|run| run.agent_run(view));
            let is_run = agent.is_some();
            let call = recognised
                .call
                .map(|source| complete_call(source.call(view), view, is_run));
            if recognised.synthesized {
                self.excluded[span_idx] = Some(Exclusion::Synthesized);
                self.has_tool_spans = true;
            }
            let mut convention = recognised.convention();
            let mut is_model = recognised.model.is_some();
            // A span that no convention knows is a model's if messages were recorded in it.
            if self.records_of.contains_key(&span_idx) && call.is_none() && !is_run {
                is_model = true;
                if convention.is_empty() {
                    convention = ConventionId::GEN_AI.get().name;
                }
            }
            self.conventions.push(convention);
            self.run_conventions
                .push(recognised.agent.and_then(ConventionRef::built_in));
            self.calls.push(call);
            single.agents.push(agent);
            single.is_model.push(is_model);
        }
        single
    }

    /// Lets the conventions correct what several spans show together.
    fn refine(&mut self, agents: &mut [Option<Cow<'a, str>>]) {
        for refine in refines() {
            if self.present.intersects(refine.when) {
                (refine.apply)(&mut RecognisedSpans {
                    views: &self.views,
                    parent: &self.tree.parent,
                    parents_first: &self.tree.parents_first,
                    start: &self.tree.start,
                    calls: &mut self.calls,
                    agents,
                    turn_agents: &mut self.turn_agents,
                });
            }
        }
    }

    /// The whole run that a span tells by itself, if its convention writes such spans.
    pub(crate) fn conversation(&self, span_idx: SpanIdx, max_size: usize) -> Option<Conversation> {
        let convention = self.run_conventions[span_idx]?.get();
        (convention.conversation?)(&self.views[span_idx], max_size)
    }

    /// Excludes calls that `tools.ignore` names, and transfers between agents.
    fn exclude(&mut self, agents: &[Option<Cow<'_, str>>], recogniser: &Recogniser) {
        let all_agents = || self.agent_names(agents.iter().flatten().map(|name| &**name));
        let mut known: Option<HashSet<String>> = None;
        let mut exclusions = Vec::new();
        for (span_idx, call) in self.calls.iter().enumerate() {
            let Some(call) = call else { continue };
            let Some(name) = call.name.as_deref().or(call.poor_name) else {
                continue;
            };
            let is_agent = |name: &str| known.get_or_insert_with(all_agents).contains(name);
            if recogniser.ignores(name) {
                exclusions.push((span_idx, Exclusion::Ignored));
            } else if handoffs::is_handoff(name, &recogniser.tools.handoffs, is_agent) {
                exclusions.push((span_idx, Exclusion::Handoff));
            }
        }
        for (span_idx, exclusion) in exclusions {
            self.calls[span_idx] = None;
            self.excluded[span_idx] = Some(exclusion);
        }
    }

    /// One pass from the top down: runs, models, and calls folded into the call above them.
    fn walk(&mut self, mut single: SingleRoles<'a>, max_size: usize) {
        let mut own_run: Vec<Option<RunIdx>> = vec![None; self.spans.len()];
        let mut known = KnownCalls::default();
        for at in 0..self.tree.parents_first.len() {
            let span_idx = self.tree.parents_first[at];
            if let Some(parent) = self.tree.parent[span_idx] {
                self.run_above[span_idx] = own_run[parent].or(self.run_above[parent]);
                self.call_above[span_idx] = match self.excluded[parent] {
                    Some(Exclusion::Folded(into)) => Some(into),
                    _ if self.calls[parent].is_some() => Some(parent),
                    _ => self.call_above[parent],
                };
                if self.calls[parent].is_none() && own_run[parent].is_none() {
                    self.model_of[span_idx] = self.model_of[parent];
                }
            }
            if let Some(name) = single.agents[span_idx].take() {
                own_run[span_idx] = Some(self.run_of(span_idx, name));
            }
            if single.is_model[span_idx] {
                self.is_inner_model[span_idx] = self.model_of[span_idx].is_some();
                self.model_of[span_idx] = self.model_of[span_idx].or(Some(span_idx));
            }
            if let Some(into) = self.same_call_above(span_idx, &own_run, &mut known, max_size) {
                self.excluded[span_idx] = Some(Exclusion::Folded(into));
            }
        }
    }

    /// A new run, or the one above if that is of the same name and nothing was called in between.
    fn run_of(&mut self, span_idx: SpanIdx, name: Cow<'a, str>) -> RunIdx {
        if let Some(above) = self.run_above[span_idx]
            && self.runs[above].name == name
            && self.calls[span_idx].is_none()
            && self.call_above[span_idx]
                .is_none_or(|call| self.tree.depth[call] <= self.tree.depth[self.runs[above].span])
        {
            return above;
        }
        self.runs.push(RunSpan {
            span: span_idx,
            name,
            parent: self.run_above[span_idx],
        });
        self.runs.len() - 1
    }

    /// Client, server and wrapper each report one call: the outermost stands for all. A retry is a
    /// sibling, and two ids are two calls.
    fn same_call_above(
        &self,
        span_idx: SpanIdx,
        own_run: &[Option<RunIdx>],
        known: &mut KnownCalls<'a>,
        max_size: usize,
    ) -> Option<SpanIdx> {
        let call = self.calls[span_idx].as_ref()?;
        let above_idx = self.call_above[span_idx]?;
        let above = self.calls[above_idx].as_ref()?;
        // An agent that runs in between made a call of its own.
        if self.run_above[span_idx] != own_run[above_idx].or(self.run_above[above_idx]) {
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
        for run in self
            .runs
            .iter_mut()
            .map(|run| &mut run.parent)
            .chain(&mut self.run_above)
        {
            *run = run.map(|old| place[old]);
        }
    }

    /// Start, depth, end, span id: the order of spans that nothing else orders.
    pub(crate) fn rank(&self, span_idx: SpanIdx) -> (u64, u32, u64, SpanId) {
        (
            self.tree.start[span_idx],
            self.tree.depth[span_idx],
            self.tree.end[span_idx],
            self.spans[span_idx].0.span_id,
        )
    }

    /// The name of the agent that a span names as its own, or of the run that it lies in.
    pub(crate) fn agent_of(&self, span_idx: SpanIdx) -> Option<Cow<'_, str>> {
        let of_turn = || self.turn_agents.get(&span_idx).copied().map(Cow::Borrowed);
        let of_run = |run: RunIdx| Cow::Borrowed(&*self.runs[run].name);
        own_agent(&self.views[span_idx])
            .or_else(of_turn)
            .or_else(|| self.run_above[span_idx].map(of_run))
    }

    /// The agents of the trace, in letters and digits: those of its runs, and those that spans name
    /// as their own.
    fn agent_names<'n>(&self, of_runs: impl Iterator<Item = &'n str>) -> HashSet<String> {
        let own = self.views.iter().filter_map(own_agent);
        of_runs
            .map(handoffs::letters)
            .chain(own.map(|name| handoffs::letters(&name)))
            .collect()
    }

    /// Do the settings exclude a call of this name, as ignored or as a transfer?
    pub(crate) fn excludes(&self, name: &str, recogniser: &Recogniser) -> bool {
        let is_agent = |name: &str| {
            self.agent_names(self.runs.iter().map(|run| &*run.name))
                .contains(name)
        };
        recogniser.ignores(name) || handoffs::is_handoff(name, &recogniser.tools.handoffs, is_agent)
    }

    /// The outermost model spans, in order.
    pub(crate) fn models(&self) -> Vec<SpanIdx> {
        let mut models: Vec<SpanIdx> = (0..self.spans.len())
            .filter(|&span_idx| self.model_of[span_idx] == Some(span_idx))
            .collect();
        models.sort_by_key(|&span_idx| self.rank(span_idx));
        models
    }
}

/// The roles of spans on their own, indexed by span.
struct SingleRoles<'a> {
    /// The agent whose run a span is.
    agents: Vec<Option<Cow<'a, str>>>,
    is_model: Vec<bool>,
}

/// The calls within which other calls lie, by their spans: what the reports folded into them so far
/// say.
type KnownCalls<'a> = HashMap<SpanIdx, KnownCall<'a>>;

/// What is known of a call while reports are folded into it.
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

    /// Adds the parts that another report of it has.
    fn complete(&mut self, other: Self) {
        self.call_id = self.call_id.take().or(other.call_id);
        self.name = self.name.take().or(other.name);
        self.args = self.args.take().or(other.args);
    }
}

/// The records by the spans that they were written in.
fn records_of(trace: &Trace) -> HashMap<SpanIdx, Vec<View<'_>>> {
    let mut records_of: HashMap<SpanIdx, Vec<View<'_>>> = HashMap::new();
    if trace.records.is_empty() {
        return records_of;
    }
    let ids = trace.spans.iter().map(|(span, _)| span.span_id);
    let by_id: HashMap<SpanId, SpanIdx> = ids.zip(0..).collect();
    for record in &trace.records {
        let parent = record.span_id;
        if let Some(&span_idx) = parent.and_then(|span_id| by_id.get(&span_id)) {
            let view = View::of_record(record);
            records_of.entry(span_idx).or_default().push(view);
        }
    }
    records_of
}
