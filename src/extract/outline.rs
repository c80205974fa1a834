//! Pure. The spans of a trace in; what each of them is and what lies above it out: agent runs, tool
//! calls folded to one entry each, outermost model spans. Knows the tree and the marks; does not
//! parse a value.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};

use super::claude_code;
use super::convention::{AnyOf, Call, View};
use super::gen_ai;
use super::handoffs;
use super::keys;
use super::llama_index;
use super::openinference;
use super::recognise::{Recogniser, filled, own_agent};
use super::tree::{SpanIdx, Tree};
use super::vercel_ai;
use crate::assemble::{Mark, Trace};
use crate::span::{Span, SpanId};

/// What each span of a trace is, and what lies above it; the vectors are indexed by span.
pub(super) struct Outline<'a> {
    pub(super) spans: &'a [(Span, Mark)],
    /// Log records with messages of the models.
    pub(super) records: Vec<View<'a>>,
    /// Those of them that were written in a span, in order.
    pub(super) records_of: HashMap<SpanIdx, Vec<View<'a>>>,
    pub(super) views: Vec<View<'a>>,
    /// The built-in keys of which any of the spans has an attribute.
    pub(super) present: AnyOf,
    pub(super) tree: Tree,
    /// The call that a span is, if it is counted as one.
    pub(super) calls: Vec<Option<Call<'a>>>,
    /// The convention of each span that was recognised; see [`Outline::convention`].
    conventions: Vec<&'a str>,
    /// What became of tool spans that are no calls of their own.
    pub(super) left_out: Vec<Option<LeftOut>>,
    /// The agent run that a span lies in, its own left out.
    pub(super) run_above: Vec<Option<RunIdx>>,
    /// The tool call that a span lies in, its own left out; folded spans are skipped.
    pub(super) call_above: Vec<Option<SpanIdx>>,
    /// The outermost model span that a span lies in or is, up to the next call or run.
    pub(super) model: Vec<Option<SpanIdx>>,
    /// Model spans within others.
    pub(super) models_below: Vec<bool>,
    /// The agents of spans in workflows that have several.
    agent_of_turn: HashMap<SpanIdx, &'a str>,
    /// Agent runs in the order of their starts; directly nested ones of one name are one.
    pub(super) runs: Vec<Run<'a>>,
    /// Was any span a tool call by its marks, counted or not?
    pub(super) has_tool_spans: bool,
}

/// A position in `Outline::runs`.
pub(super) type RunIdx = usize;

/// An agent run.
pub(super) struct Run<'a> {
    pub(super) span: SpanIdx,
    pub(super) name: Cow<'a, str>,
    pub(super) parent: Option<RunIdx>,
}

/// Why a tool span is no call of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// It is the same call as the one of this span.
    Folded(SpanIdx),
    /// `tools.ignore` names it.
    Ignored,
    /// It hands control to another agent.
    Handoff,
    /// The framework made it up.
    Synthesized,
}

impl<'a> Outline<'a> {
    pub(super) fn new(trace: &'a Trace, recogniser: &'a Recogniser) -> Self {
        let spans = &*trace.spans;
        let tree = Tree::new(spans);
        let n_spans = spans.len();
        let records: Vec<View<'a>> = trace
            .records
            .iter()
            .map(|(record, _)| View::new(record))
            .collect();
        let views: Vec<View<'a>> = spans.iter().map(|(span, _)| View::new(span)).collect();
        let mut outline = Self {
            spans,
            records_of: records_of(spans, &records),
            records,
            present: views
                .iter()
                .fold(AnyOf::default(), |present, view| present.or(view.present())),
            views,
            tree,
            calls: Vec::with_capacity(n_spans),
            conventions: Vec::with_capacity(n_spans),
            left_out: vec![None; n_spans],
            run_above: vec![None; n_spans],
            call_above: vec![None; n_spans],
            model: vec![None; n_spans],
            models_below: vec![false; n_spans],
            agent_of_turn: HashMap::new(),
            runs: Vec::new(),
            has_tool_spans: false,
        };
        let mut agents = Vec::with_capacity(n_spans);
        let mut is_model = Vec::with_capacity(n_spans);
        for span_idx in 0..n_spans {
            let view = &outline.views[span_idx];
            let recognised = recogniser.recognise_marked(view, spans[span_idx].1);
            let call = recognised
                .teller
                .map(|teller| filled(teller.call(view), view, recognised.agent.is_some()));
            outline.has_tool_spans |= call.is_some() || recognised.synthesized;
            if recognised.synthesized {
                outline.left_out[span_idx] = Some(LeftOut::Synthesized);
            }
            outline.calls.push(call);
            outline.conventions.push(recognised.convention);
            agents.push(recognised.agent);
            // A span that no convention knows is a model's if the messages of one were recorded in
            // it.
            let is_recorded = outline.records_of.contains_key(&span_idx)
                && outline.calls[span_idx].is_none()
                && agents[span_idx].is_none();
            is_model.push(recognised.model || is_recorded);
        }
        if outline.present.has(keys::AI_OPERATION) {
            outline.drop_plain_completions(&mut agents);
        }
        if outline.present.has(keys::SMOLAGENTS_STEPS) {
            outline.add_managed_agents(&agents);
        }
        if outline.present.has(keys::INPUT_VALUE) {
            outline.name_workflow_agents(&mut agents);
        }
        outline.fail_calls();
        outline.leave_out(&agents, recogniser);
        outline.walk(agents, &is_model);
        outline.sort_runs();
        outline
    }

    /// The convention that recognised a span. A span that none knows is a model's if the messages
    /// of one were recorded in it.
    pub(super) fn convention(&self, span_idx: SpanIdx, recogniser: &'a Recogniser) -> &'a str {
        let recognised = || recogniser.recognise(&self.views[span_idx]).convention;
        let known = Some(self.conventions[span_idx])
            .filter(|known| !known.is_empty())
            .unwrap_or_else(recognised);
        if known.is_empty() && self.records_of.contains_key(&span_idx) {
            gen_ai::GEN_AI.name
        } else {
            known
        }
    }

    /// Vercel's SDK marks a plain completion like an agent's run: it is one only with a tool call
    /// beneath it or with tools to choose from.
    fn drop_plain_completions(&self, agents: &mut [Option<Cow<'_, str>>]) {
        let mut uses_tools: Vec<bool> = self.calls.iter().map(Option::is_some).collect();
        for &span_idx in self.tree.parents_first.iter().rev() {
            let span = &self.views[span_idx];
            if let Some(parent) = self.tree.parent[span_idx] {
                uses_tools[parent] |= uses_tools[span_idx] || vercel_ai::offers_tools(span);
            }
            if agents[span_idx].is_some() && !uses_tools[span_idx] && vercel_ai::is_run(span) {
                agents[span_idx] = None;
            }
        }
    }

    /// smolagents reports a managed agent, which the model calls like a tool, as nothing but a run
    /// below another run.
    fn add_managed_agents(&mut self, agents: &[Option<Cow<'_, str>>]) {
        let mut below_agent = vec![false; self.spans.len()];
        for &span_idx in &self.tree.parents_first {
            let Some(parent) = self.tree.parent[span_idx] else {
                continue;
            };
            below_agent[span_idx] = below_agent[parent] || agents[parent].is_some();
            if below_agent[span_idx] && agents[span_idx].is_some() && self.calls[span_idx].is_none()
            {
                self.calls[span_idx] = openinference::managed_agent(&self.views[span_idx]);
                self.has_tool_spans |= self.calls[span_idx].is_some();
            }
        }
    }

    /// LlamaIndex tells whose turn it is in spans below the workflow's, which thereby is an agent's
    /// run.
    fn name_workflow_agents(&mut self, agents: &mut [Option<Cow<'a, str>>]) {
        let mut turns: BTreeMap<SpanIdx, Vec<(u64, &'a str)>> = BTreeMap::new();
        for (span_idx, view) in self.views.iter().enumerate() {
            if let (Some(workflow), Some(name)) =
                (self.tree.parent[span_idx], llama_index::agent_of_turn(view))
            {
                turns
                    .entry(workflow)
                    .or_default()
                    .push((self.tree.start[span_idx], name));
            }
        }
        for (&workflow, turns) in &mut turns {
            turns.sort_unstable();
            agents[workflow] = agents[workflow]
                .take()
                .or_else(|| turns.first().map(|&(_, name)| Cow::Borrowed(name)));
        }
        if turns
            .values()
            .all(|turns| turns.iter().all(|(_, name)| *name == turns[0].1))
        {
            return;
        }
        for span_idx in 0..self.views.len() {
            let nearest = self
                .tree
                .ancestors(span_idx)
                .find(|&above| agents[above].is_some());
            let Some(turns) = nearest.and_then(|workflow| turns.get(&workflow)) else {
                continue;
            };
            let n_begun = turns.partition_point(|&(start, _)| start <= self.tree.start[span_idx]);
            let Some(&(_, name)) = n_begun.checked_sub(1).and_then(|turn| turns.get(turn)) else {
                continue;
            };
            self.agent_of_turn.insert(span_idx, name);
            if let Some(call) = &mut self.calls[span_idx] {
                call.agent.get_or_insert(Cow::Borrowed(name));
            }
        }
    }

    /// Claude Code tells of a failure in a span below the call's.
    fn fail_calls(&mut self) {
        for span_idx in 0..self.views.len() {
            if let Some(call) =
                self.tree.parent[span_idx].and_then(|parent| self.calls[parent].as_mut())
            {
                call.failed |= claude_code::is_failed_execution(&self.views[span_idx]);
            }
        }
    }

    /// Takes out what `tools.ignore` names, and transfers between agents.
    fn leave_out(&mut self, agents: &[Option<Cow<'_, str>>], recogniser: &Recogniser) {
        let known_agents = || self.agent_names(agents.iter().flatten().map(|name| &**name));
        let mut known: Option<HashSet<String>> = None;
        let mut left_out = Vec::new();
        for (span_idx, call) in self.calls.iter().enumerate() {
            let Some(name) = call
                .as_ref()
                .and_then(|call| call.name.as_deref().or(call.last_name))
            else {
                continue;
            };
            if recogniser.ignores(name) {
                left_out.push((span_idx, LeftOut::Ignored));
            } else if handoffs::is_handoff(name, &recogniser.tools.handoffs, |name| {
                known.get_or_insert_with(known_agents).contains(name)
            }) {
                left_out.push((span_idx, LeftOut::Handoff));
            }
        }
        for (span_idx, why) in left_out {
            self.calls[span_idx] = None;
            self.left_out[span_idx] = Some(why);
        }
    }

    /// One pass from the top down: runs, models, and calls folded into the call above them.
    fn walk(&mut self, agents: Vec<Option<Cow<'a, str>>>, is_model: &[bool]) {
        let mut own_run: Vec<Option<RunIdx>> = vec![None; self.spans.len()];
        let mut agents = agents;
        for at in 0..self.tree.parents_first.len() {
            let span_idx = self.tree.parents_first[at];
            if let Some(parent) = self.tree.parent[span_idx] {
                self.run_above[span_idx] = own_run[parent].or(self.run_above[parent]);
                self.call_above[span_idx] = match self.left_out[parent] {
                    Some(LeftOut::Folded(into)) => Some(into),
                    _ if self.calls[parent].is_some() => Some(parent),
                    _ => self.call_above[parent],
                };
                if self.calls[parent].is_none() && own_run[parent].is_none() {
                    self.model[span_idx] = self.model[parent];
                }
            }
            if let Some(name) = agents[span_idx].take() {
                own_run[span_idx] = Some(self.run_of(span_idx, name));
            }
            if is_model[span_idx] {
                self.models_below[span_idx] = self.model[span_idx].is_some();
                self.model[span_idx] = self.model[span_idx].or(Some(span_idx));
            }
            if let Some(into) = self.same_call_above(span_idx, &own_run) {
                self.left_out[span_idx] = Some(LeftOut::Folded(into));
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
        self.runs.push(Run {
            span: span_idx,
            name,
            parent: self.run_above[span_idx],
        });
        self.runs.len() - 1
    }

    /// Client, server and wrapper each report one call: the outermost stands for all. A retry is a
    /// sibling, and two ids are two calls.
    fn same_call_above(&self, span_idx: SpanIdx, own_run: &[Option<RunIdx>]) -> Option<SpanIdx> {
        let call = self.calls[span_idx].as_ref()?;
        let above_idx = self.call_above[span_idx]?;
        let above = self.calls[above_idx].as_ref()?;
        // An agent that runs in between made a call of its own.
        if self.run_above[span_idx] != own_run[above_idx].or(self.run_above[above_idx]) {
            return None;
        }
        let same = match (&call.call_id, &above.call_id) {
            (Some(id), Some(id_above)) => id == id_above,
            _ => call.name == above.name && call.name.is_some(),
        };
        same.then_some(above_idx)
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
        let mut runs: Vec<Option<Run<'a>>> = std::mem::take(&mut self.runs)
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
    pub(super) fn rank(&self, span_idx: SpanIdx) -> (u64, u32, u64, SpanId) {
        (
            self.tree.start[span_idx],
            self.tree.depth[span_idx],
            self.tree.end[span_idx],
            self.spans[span_idx].0.span_id,
        )
    }

    /// The name of the agent that a span names as its own, or of the run that it lies in.
    pub(super) fn agent_of(&self, span_idx: SpanIdx) -> Option<Cow<'_, str>> {
        let of_turn = || {
            self.agent_of_turn
                .get(&span_idx)
                .map(|name| Cow::Borrowed(*name))
        };
        own_agent(&self.views[span_idx])
            .or_else(of_turn)
            .or_else(|| self.run_above[span_idx].map(|run| Cow::Borrowed(&*self.runs[run].name)))
    }

    /// The agents that the trace names, in letters and digits: those of its runs, and those that
    /// spans name as their own.
    fn agent_names<'n>(&self, of_runs: impl Iterator<Item = &'n str>) -> HashSet<String> {
        of_runs
            .map(handoffs::letters)
            .chain(
                self.views
                    .iter()
                    .filter_map(own_agent)
                    .map(|name| handoffs::letters(&name)),
            )
            .collect()
    }

    /// Is a call of this name none, by the settings: ignored, or a transfer?
    pub(super) fn leaves_out(&self, name: &str, recogniser: &Recogniser) -> bool {
        let is_agent = |name: &str| {
            self.agent_names(self.runs.iter().map(|run| &*run.name))
                .contains(name)
        };
        recogniser.ignores(name) || handoffs::is_handoff(name, &recogniser.tools.handoffs, is_agent)
    }

    /// The outermost model spans, in order.
    pub(super) fn models(&self) -> Vec<SpanIdx> {
        let mut models: Vec<SpanIdx> = (0..self.spans.len())
            .filter(|&span_idx| self.model[span_idx] == Some(span_idx))
            .collect();
        models.sort_by_key(|&span_idx| self.rank(span_idx));
        models
    }
}

/// The records by the spans that they were written in.
fn records_of<'a>(spans: &[(Span, Mark)], records: &[View<'a>]) -> HashMap<SpanIdx, Vec<View<'a>>> {
    let mut of: HashMap<SpanIdx, Vec<View<'a>>> = HashMap::new();
    if records.is_empty() {
        return of;
    }
    let by_id: HashMap<SpanId, SpanIdx> = spans
        .iter()
        .enumerate()
        .map(|(span_idx, (span, _))| (span.span_id, span_idx))
        .collect();
    for record in records {
        if let Some(&span_idx) = record
            .span
            .parent_id
            .and_then(|span_id| by_id.get(&span_id))
        {
            of.entry(span_idx).or_default().push(*record);
        }
    }
    of
}
