//! Pure. The outline of a trace in, its tool calls in order out: values unwrapped, one entry per call, steps and parallel groups. What
//! only the models' messages tell is joined by `joins`.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::doubts;
use super::haystack;
use super::joins;
use super::messages;
use super::outline::{LeftOut, Outline, RunIdx};
use super::payload::{self, Opened};
use super::recognise::Recogniser;
use super::tool_call::{Doubt, ToolCall};
use super::tree::SpanIdx;
use crate::span::Status;

/// The name of a call whose span tells none.
pub(super) const UNNAMED: &str = "(unnamed)";

/// How many calls of one id and name are looked at for a twin: more are made by a sender that repeats its ids.
const MAX_TWINS: usize = 8;

/// A call on its way into the trajectory.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) call: ToolCall,
    pub(super) span: SpanIdx,
    /// Whose turn it belongs to.
    pub(super) owner: Owner,
    /// The call that it was made in.
    pub(super) inside: Option<SpanIdx>,
    /// The name says little (a class): a better one is welcome.
    pub(super) poorly_named: bool,
    /// Its own span tells whether it failed, by an error or by the status OK.
    settled: bool,
    /// When the last failed attempt within it ended.
    failed_until: u64,
}

/// Model turns are counted by agent run and agent name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) run: Option<RunIdx>,
    pub(super) agent: Option<Arc<str>>,
}

/// The model turns of a trace.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Outermost model spans in order, with their starts.
    by_owner: HashMap<Owner, Vec<(u64, SpanIdx)>>,
    /// The place of a model span among those of its owner.
    steps: HashMap<SpanIdx, u32>,
    /// Where model spans lie: in which run, for which agent, within which call.
    scopes: HashSet<(Owner, Option<SpanIdx>)>,
}

impl Turns {
    pub(super) fn new(outline: &Outline<'_>, models: &[SpanIdx]) -> Self {
        let mut turns = Self::default();
        for &model in models {
            let owner = owner(outline, model);
            turns.scopes.insert((owner.clone(), outline.call_above[model]));
            let models = turns.by_owner.entry(owner).or_default();
            turns.steps.insert(model, u32::try_from(models.len()).unwrap_or(u32::MAX));
            models.push((outline.tree.start[model], model));
        }
        turns
    }

    /// How many models of this owner had started before: the step is one less.
    fn started_before(&self, owner: &Owner, start: u64) -> usize {
        self.by_owner.get(owner).map_or(0, |models| models.partition_point(|&(model_start, _)| model_start < start))
    }

    /// The model span that asked for the calls of a step.
    pub(super) fn model_at(&self, owner: &Owner, step: u32) -> Option<SpanIdx> {
        self.by_owner.get(owner)?.get(step as usize).map(|&(_, model)| model)
    }
}

pub(super) fn owner(outline: &Outline<'_>, span_idx: SpanIdx) -> Owner {
    Owner { run: outline.run_above[span_idx], agent: outline.agent_of(span_idx).map(|name| Arc::from(&*name)) }
}

/// The calls of a trace that has tool spans, in order; of one that was cut short, with what could still change about them.
pub(super) fn from_spans(outline: &Outline<'_>, recogniser: &Recogniser, cut_short: bool) -> Vec<ToolCall> {
    let Folded { kept: mut drafts, same } = fold(outline, recogniser);
    for (into, draft) in same {
        absorb(&mut drafts[into], draft);
    }
    let models = outline.models();
    let turns = Turns::new(outline, &models);
    for draft in &mut drafts {
        draft.call.step = step(&turns, draft);
    }
    let announced = joins::join(outline, recogniser, &models, &turns, &mut drafts);
    // Before the position in the reply: start, then depth. After it: end, then span id.
    drafts.sort_by_key(|draft| {
        let (start, depth, end, span_id) = outline.rank(draft.span);
        let place = draft.call.call_id.as_ref().and_then(|id| announced.get(&**id)).copied().unwrap_or(usize::MAX);
        (start, depth, place, end, span_id)
    });
    set_groups(&turns, &mut drafts);
    if cut_short {
        doubts::cast(outline, recogniser, &mut drafts);
    }
    drafts.into_iter().map(|draft| draft.call).collect()
}

/// A model's reply, and whose turn it is.
struct Reply {
    calls: Vec<messages::Announced>,
    span: SpanIdx,
    owner: Owner,
    step: u32,
}

/// The calls that the replies of a trace's models ask for, where no span tells of any; and whether some of the replies are cut, so that there
/// may have been more.
pub(super) fn from_messages(outline: &Outline<'_>, recogniser: &Recogniser) -> (Vec<ToolCall>, bool) {
    let models = outline.models();
    let turns = Turns::new(outline, &models);
    let is_cut = |model: SpanIdx| {
        let records = outline.records_of.get(&model).into_iter().flatten();
        std::iter::once(&outline.views[model]).chain(records).any(messages::is_cut)
    };
    let mut cut = models.iter().any(|&model| is_cut(model));
    let mut replies: Vec<Reply> = (models.iter().zip(joins::replies(outline, recogniser, &models)))
        .map(|(&span, calls)| Reply { calls, span, owner: owner(outline, span), step: turns.steps.get(&span).copied().unwrap_or_default() })
        .collect();
    let mut results = joins::responses(outline, recogniser);
    let mut failed: HashSet<String> = HashSet::new();
    for span in (0..outline.spans.len()).filter(|&span| outline.conventions[span] == haystack::HAYSTACK.name) {
        let conversation = haystack::conversation(&outline.views[span], recogniser.tools.max_value_size).unwrap_or_default();
        cut |= conversation.cut;
        for haystack::Answer { call_id, result, failed: has_failed } in conversation.answers {
            failed.extend(has_failed.then(|| call_id.clone()));
            results.entry(call_id).or_insert(result);
        }
        let own_run = outline.runs.iter().position(|run| run.span == span);
        let own = own_run.map(|run| Owner { run: Some(run), agent: Some(Arc::from(&*outline.runs[run].name)) });
        let owner = own.unwrap_or_else(|| owner(outline, span));
        replies.extend((0..).zip(conversation.replies).map(|(step, calls)| Reply { calls, span, owner: owner.clone(), step }));
    }
    let mut seen: HashSet<String> = HashSet::new();
    let mut calls = Vec::new();
    let mut next_group = 1;
    for Reply { calls: reply, span: span_idx, owner, step } in replies {
        let (span, mark) = &outline.spans[span_idx];
        let n_before = calls.len();
        for messages::Announced { name, call_id, args } in reply {
            if outline.leaves_out(&name, recogniser) || call_id.as_ref().is_some_and(|id| !seen.insert(id.clone())) {
                continue;
            }
            calls.push(ToolCall {
                name: name.into(),
                args,
                result: call_id.as_ref().and_then(|id| results.get(id.as_str())).cloned(),
                error: call_id.as_ref().is_some_and(|id| failed.contains(id)),
                call_id: call_id.map(Arc::from),
                agent: owner.agent.clone(),
                agent_run: owner.run,
                step,
                parallel_group: None,
                span_id: Some(span.span_id),
                start_unix_nanos: outline.tree.end[span_idx],
                end_unix_nanos: outline.tree.end[span_idx],
                convention: format!("{}.messages", outline.conventions[span_idx]).into(),
                partial: mark.partial || span.end_unix_nanos == 0,
                doubt: Doubt::default(),
            });
        }
        if calls.len() - n_before > 1 {
            calls[n_before..].iter_mut().for_each(|call| call.parallel_group = Some(next_group));
            next_group += 1;
        }
    }
    (calls, cut)
}

/// The call of a span, folded ones too.
fn draft(outline: &Outline<'_>, recogniser: &Recogniser, span_idx: SpanIdx) -> Option<Draft> {
    let call = outline.calls[span_idx].as_ref()?;
    let (span, mark) = &outline.spans[span_idx];
    let max_size = recogniser.tools.max_value_size;
    let args = call.args.map(|raw| payload::open_args(raw, call.args_in, max_size));
    let result = call.result.map(|raw| payload::open_result(raw, call.result_in, max_size));
    let (result, opened) = match result {
        Some(Opened { payload, call_id, name, failed }) => (Some(payload), (call_id, name, failed)),
        None => (None, (None, None, false)),
    };
    let name = call.name.as_deref().map(str::to_owned).or_else(|| opened.1.filter(|name| !recogniser.ignores(name)));
    let owner = Owner {
        run: outline.run_above[span_idx],
        agent: (call.agent.as_deref().map(Arc::from))
            .or_else(|| outline.run_above[span_idx].map(|run| Arc::from(&*outline.runs[run].name))),
    };
    let failed = call.failed || opened.2 || (span.status == Status::Error && !call.status_lies);
    Some(Draft {
        poorly_named: name.is_none(),
        settled: failed || span.status == Status::Ok,
        failed_until: 0,
        span: span_idx,
        inside: outline.call_above[span_idx],
        call: ToolCall {
            name: name.or_else(|| call.last_name.map(str::to_owned)).map_or_else(|| UNNAMED.into(), Arc::from),
            call_id: call.call_id.as_deref().map(Arc::from).or_else(|| opened.0.map(Arc::from)),
            args,
            result,
            error: failed,
            agent: owner.agent.clone(),
            agent_run: owner.run,
            step: 0,
            parallel_group: None,
            span_id: Some(span.span_id),
            start_unix_nanos: outline.tree.start[span_idx],
            end_unix_nanos: outline.tree.end[span_idx],
            convention: outline.conventions[span_idx].into(),
            partial: mark.partial || span.end_unix_nanos == 0,
            doubt: Doubt::default(),
        },
        owner,
    })
}

/// One draft a call, in order, and those that are the same call as one of these.
struct Folded {
    kept: Vec<Draft>,
    /// A position in `kept`, and what that draft takes from this one if it lacks it.
    same: Vec<(usize, Draft)>,
}

fn fold(outline: &Outline<'_>, recogniser: &Recogniser) -> Folded {
    let mut drafts: Vec<Draft> = (0..outline.spans.len()).filter_map(|span_idx| draft(outline, recogniser, span_idx)).collect();
    drafts.sort_by_key(|draft| outline.rank(draft.span));
    let mut kept: Vec<Draft> = Vec::with_capacity(drafts.len());
    let mut place: HashMap<SpanIdx, usize> = HashMap::new();
    let mut by_id: HashMap<(Arc<str>, Arc<str>), Vec<usize>> = HashMap::new();
    let mut folded = Vec::new();
    for draft in drafts {
        if let Some(LeftOut::Folded(into)) = outline.left_out[draft.span] {
            folded.push((into, draft));
            continue;
        }
        if let Some(id) = &draft.call.call_id {
            let same_id = by_id.entry((id.clone(), draft.call.name.clone())).or_default();
            if let Some(&twin) = same_id.iter().rev().take(MAX_TWINS).find(|&&other| is_twin(outline, &kept[other], &draft)) {
                folded.push((kept[twin].span, draft));
                continue;
            }
            same_id.push(kept.len());
        }
        place.insert(draft.span, kept.len());
        kept.push(draft);
    }
    let same = folded.into_iter().filter_map(|(into, draft)| Some((*place.get(&into)?, draft))).collect();
    Folded { kept, same }
}

/// Which spans tell of a call that another span stands for: the span, and that other one.
pub(super) fn told_twice(outline: &Outline<'_>, recogniser: &Recogniser) -> HashMap<SpanIdx, SpanIdx> {
    let Folded { kept, same } = fold(outline, recogniser);
    same.into_iter().map(|(into, draft)| (draft.span, kept[into].span)).collect()
}

/// The same call told twice, by two instrumentations or from two processes: one id, one name, at one time. What ran one after the other
/// was done twice, and siblings never fold.
fn is_twin(outline: &Outline<'_>, kept: &Draft, draft: &Draft) -> bool {
    let overlap = draft.call.start_unix_nanos < kept.call.end_unix_nanos;
    outline.tree.parent[kept.span] != outline.tree.parent[draft.span] && overlap
}

fn absorb(kept: &mut Draft, draft: Draft) {
    // Another span of the same call, still to come, could be asked before this one.
    kept.call.doubt.args |= kept.call.args.is_none();
    kept.call.doubt.result |= kept.call.result.is_none();
    kept.call.args = kept.call.args.take().or(draft.call.args);
    kept.call.result = kept.call.result.take().or(draft.call.result);
    kept.call.call_id = kept.call.call_id.take().or(draft.call.call_id);
    if kept.poorly_named && !draft.poorly_named {
        kept.call.name = draft.call.name;
        kept.poorly_named = false;
    }
    // A client often leaves the status unset where its server failed. Attempts within it come in order: one that succeeds makes up for those
    // that had failed before it began.
    if kept.settled {
        return;
    }
    if draft.call.error {
        kept.call.error = true;
        kept.failed_until = kept.failed_until.max(draft.call.end_unix_nanos);
    } else if kept.call.error && draft.call.start_unix_nanos >= kept.failed_until {
        kept.call.error = false;
    }
}

fn step(turns: &Turns, draft: &Draft) -> u32 {
    u32::try_from(turns.started_before(&draft.owner, draft.call.start_unix_nanos).saturating_sub(1)).unwrap_or(u32::MAX)
}

/// Calls of one reply share a group, also when they ran one by one; where no model span tells, those that overlap in time do.
fn set_groups(turns: &Turns, drafts: &mut [Draft]) {
    for (number, group) in (1..).zip(groups(turns, drafts)) {
        for draft_idx in group {
            drafts[draft_idx].call.parallel_group = Some(number);
        }
    }
}

fn groups(turns: &Turns, drafts: &[Draft]) -> Vec<Vec<usize>> {
    let mut members: Vec<Vec<usize>> = Vec::new();
    let mut by_reply: HashMap<(&Owner, Option<SpanIdx>, u32), usize> = HashMap::new();
    let mut by_time: HashMap<(&Owner, Option<SpanIdx>), (usize, u64)> = HashMap::new();
    for (draft_idx, draft) in drafts.iter().enumerate() {
        let scope = (&draft.owner, draft.inside);
        let (start, end) = (draft.call.start_unix_nanos, draft.call.end_unix_nanos);
        let has_models = turns.scopes.contains(&(draft.owner.clone(), draft.inside));
        if has_models && turns.started_before(&draft.owner, start) > 0 {
            let group = *by_reply.entry((scope.0, scope.1, draft.call.step)).or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[group].push(draft_idx);
            continue;
        }
        let open = by_time.get(&scope).copied().filter(|&(_, until)| start < until);
        let (group, until) = open.unwrap_or_else(|| {
            members.push(Vec::new());
            (members.len() - 1, 0)
        });
        members[group].push(draft_idx);
        by_time.insert(scope, (group, until.max(end)));
    }
    members.retain(|group| group.len() > 1);
    members
}
