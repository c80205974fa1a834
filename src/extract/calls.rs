//! Pure. The outline of a trace in, its tool calls in order out: values unwrapped, one entry per
//! call, steps and parallel groups. What only the models' messages tell is joined by `joins`.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::doubts;
use super::haystack;
use super::joins;
use super::messages;
use super::outline::{LeftOut, Outline};
use super::payload::{self, Opened};
use super::recognise::Recogniser;
use super::tool_call::{Doubt, ToolCall};
use super::tree::SpanIdx;
use super::turns::{Owner, Turns};
use super::words::Words;
use crate::span::Status;

/// The name of a call whose span tells none.
pub(super) const UNNAMED: &str = "(unnamed)";

/// How many calls of one id and name are looked at for a twin: more are made by a sender that
/// repeats its ids.
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

/// The calls of a trace that has tool spans, in order; of one that was cut short, with what could
/// still change about them.
pub(super) fn from_spans(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    cut_short: bool,
    words: &mut Words,
) -> Vec<ToolCall> {
    let Folded {
        kept: mut drafts,
        same,
    } = fold(outline, recogniser, words);
    for (into, draft) in same {
        absorb(&mut drafts[into], draft);
    }
    let models = outline.models();
    let turns = Turns::new(outline, &models, words);
    for draft in &mut drafts {
        draft.call.step = step(&turns, draft);
    }
    // Drafts come in order. Only where two began at one time and depth do replies tell which was
    // asked for first.
    let place = |draft: &Draft| {
        (
            outline.tree.start[draft.span],
            outline.tree.depth[draft.span],
        )
    };
    let has_ties = !drafts.is_sorted_by(|draft, next| place(draft) < place(next));
    let announced = joins::join(outline, recogniser, &models, &turns, &mut drafts, has_ties);
    if has_ties {
        // Before the position in the reply: start, then depth. After it: end, then span id.
        drafts.sort_by_key(|draft| {
            let (start, depth, end, span_id) = outline.rank(draft.span);
            let place = draft
                .call
                .call_id
                .as_ref()
                .and_then(|id| announced.get(&**id))
                .copied()
                .unwrap_or(usize::MAX);
            (start, depth, place, end, span_id)
        });
    }
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

/// The calls that the replies of a trace's models ask for, where no span tells of any; and whether
/// some of the replies are cut, so that there may have been more.
pub(super) fn from_messages(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    words: &mut Words,
) -> (Vec<ToolCall>, bool) {
    let models = outline.models();
    let steps: HashMap<SpanIdx, u32> = Turns::new(outline, &models, words).steps().collect();
    let is_cut = |model: SpanIdx| {
        let records = outline.records_of.get(&model).into_iter().flatten();
        std::iter::once(&outline.views[model])
            .chain(records)
            .any(messages::is_cut)
    };
    let mut cut = models.iter().any(|&model| is_cut(model));
    let mut replies: Vec<Reply> = (models
        .iter()
        .zip(joins::replies(outline, recogniser, &models)))
    .map(|(&span, calls)| {
        let step = steps.get(&span).copied().unwrap_or_default();
        Reply {
            calls,
            span,
            owner: Owner::of(outline, span, words),
            step,
        }
    })
    .collect();
    let mut results = joins::responses(outline, recogniser);
    let mut failed: HashSet<String> = HashSet::new();
    for span in (0..outline.spans.len())
        .filter(|&span| outline.convention(span, recogniser) == haystack::HAYSTACK.name)
    {
        let conversation =
            haystack::conversation(&outline.views[span], recogniser.tools.max_value_size)
                .unwrap_or_default();
        cut |= conversation.cut;
        for haystack::Answer {
            call_id,
            result,
            failed: has_failed,
        } in conversation.answers
        {
            failed.extend(has_failed.then(|| call_id.clone()));
            results.entry(call_id).or_insert(result);
        }
        let own_run = outline.runs.iter().position(|run| run.span == span);
        let own = own_run.map(|run| Owner {
            run: Some(run),
            agent: Some(words.number(&outline.runs[run].name)),
        });
        let owner = own.unwrap_or_else(|| Owner::of(outline, span, words));
        replies.extend((0..).zip(conversation.replies).map(|(step, calls)| Reply {
            calls,
            span,
            owner,
            step,
        }));
    }
    let mut seen: HashSet<String> = HashSet::new();
    let mut calls = Vec::new();
    let mut next_group = 1;
    for Reply {
        calls: reply,
        span: span_idx,
        owner,
        step,
    } in replies
    {
        let (span, mark) = &outline.spans[span_idx];
        let n_before = calls.len();
        for messages::Announced {
            name,
            call_id,
            args,
        } in reply
        {
            if outline.leaves_out(&name, recogniser)
                || call_id.as_ref().is_some_and(|id| !seen.insert(id.clone()))
            {
                continue;
            }
            calls.push(ToolCall {
                name: name.into(),
                args,
                result: call_id
                    .as_ref()
                    .and_then(|id| results.get(id.as_str()))
                    .cloned(),
                error: call_id.as_ref().is_some_and(|id| failed.contains(id)),
                call_id: call_id.map(Arc::from),
                agent: owner.agent.map(|agent| words.text(agent)),
                agent_run: owner.run,
                step,
                parallel_group: None,
                span_id: Some(span.span_id),
                start_unix_nanos: outline.tree.end[span_idx],
                end_unix_nanos: outline.tree.end[span_idx],
                convention: format!("{}.messages", outline.convention(span_idx, recogniser)).into(),
                partial: mark.partial || span.end_unix_nanos == 0,
                doubt: Doubt::default(),
            });
        }
        if calls.len() - n_before > 1 {
            calls[n_before..]
                .iter_mut()
                .for_each(|call| call.parallel_group = Some(next_group));
            next_group += 1;
        }
    }
    (calls, cut)
}

/// The call of a span, folded ones too.
fn draft(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    span_idx: SpanIdx,
    words: &mut Words,
) -> Option<Draft> {
    let call = outline.calls[span_idx].as_ref()?;
    let (span, mark) = &outline.spans[span_idx];
    let max_size = recogniser.tools.max_value_size;
    let args = call
        .args
        .map(|raw| payload::open_args(raw, call.args_in, max_size));
    let result = call
        .result
        .map(|raw| payload::open_result(raw, call.result_in, max_size));
    let (result, opened) = match result {
        Some(Opened {
            payload,
            call_id,
            name,
            failed,
        }) => (Some(payload), (call_id, name, failed)),
        None => (None, (None, None, false)),
    };
    let named_in_result = opened
        .1
        .filter(|name| call.name.is_none() && !recogniser.ignores(name));
    let name = call.name.as_deref().or(named_in_result.as_deref());
    let run = outline.run_above[span_idx];
    let agent = call
        .agent
        .as_deref()
        .or_else(|| run.map(|run| &*outline.runs[run].name));
    let owner = Owner {
        run,
        agent: agent.map(|agent| words.number(agent)),
    };
    let failed = call.failed || opened.2 || (span.status == Status::Error && !call.status_lies);
    Some(Draft {
        poorly_named: name.is_none(),
        settled: failed || span.status == Status::Ok,
        failed_until: 0,
        span: span_idx,
        inside: outline.call_above[span_idx],
        call: ToolCall {
            name: words.held(name.or(call.last_name).unwrap_or(UNNAMED)),
            call_id: call
                .call_id
                .as_deref()
                .map(Arc::from)
                .or_else(|| opened.0.map(Arc::from)),
            args,
            result,
            error: failed,
            agent: owner.agent.map(|agent| words.text(agent)),
            agent_run: run,
            step: 0,
            parallel_group: None,
            span_id: Some(span.span_id),
            start_unix_nanos: outline.tree.start[span_idx],
            end_unix_nanos: outline.tree.end[span_idx],
            convention: words.held(outline.convention(span_idx, recogniser)),
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

fn fold(outline: &Outline<'_>, recogniser: &Recogniser, words: &mut Words) -> Folded {
    let mut drafts = Vec::with_capacity(outline.calls.iter().flatten().count());
    drafts.extend(
        (0..outline.spans.len()).filter_map(|span_idx| draft(outline, recogniser, span_idx, words)),
    );
    drafts.sort_by_key(|draft| outline.rank(draft.span));
    let into = same_calls(outline, &drafts);
    if into.iter().all(Option::is_none) {
        return Folded {
            kept: drafts,
            same: Vec::new(),
        };
    }
    let mut kept: Vec<Draft> = Vec::with_capacity(drafts.len());
    let mut place: HashMap<SpanIdx, usize> = HashMap::new();
    let mut folded = Vec::new();
    for (draft, into) in drafts.into_iter().zip(into) {
        match into {
            Some(into) => folded.push((into, draft)),
            None => {
                place.insert(draft.span, kept.len());
                kept.push(draft);
            }
        }
    }
    let same = folded
        .into_iter()
        .filter_map(|(into, draft)| Some((*place.get(&into)?, draft)))
        .collect();
    Folded { kept, same }
}

/// Of each draft, in order, the span of the one that stands for the same call.
fn same_calls(outline: &Outline<'_>, drafts: &[Draft]) -> Vec<Option<SpanIdx>> {
    // The latest of those that are kept with an id and a name, and the one of the same before it.
    let mut latest: HashMap<(&str, &str), usize> = HashMap::with_capacity(drafts.len());
    let mut before: Vec<Option<usize>> = vec![None; drafts.len()];
    (drafts.iter().enumerate())
        .map(|(at, draft)| {
            if let Some(LeftOut::Folded(into)) = outline.left_out[draft.span] {
                return Some(into);
            }
            let same = (draft.call.call_id.as_deref()?, &*draft.call.name);
            let kept = std::iter::successors(latest.get(&same).copied(), |&other| before[other]);
            if let Some(twin) = kept
                .take(MAX_TWINS)
                .find(|&other| is_twin(outline, &drafts[other], draft))
            {
                return Some(drafts[twin].span);
            }
            before[at] = latest.insert(same, at);
            None
        })
        .collect()
}

/// Which spans tell of a call that another span stands for: the span, and that other one.
pub(super) fn told_twice(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
) -> HashMap<SpanIdx, SpanIdx> {
    let Folded { kept, same } = fold(outline, recogniser, &mut Words::default());
    same.into_iter()
        .map(|(into, draft)| (draft.span, kept[into].span))
        .collect()
}

/// The same call told twice, by two instrumentations or from two processes: one id, one name, at
/// one time. What ran one after the other was done twice, and siblings never fold.
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
    // A client often leaves the status unset where its server failed. Attempts within it come in
    // order: one that succeeds makes up for those that had failed before it began.
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
    u32::try_from(
        turns
            .started_before(draft.owner, draft.call.start_unix_nanos)
            .saturating_sub(1),
    )
    .unwrap_or(u32::MAX)
}

/// Calls of one reply share a group, also when they ran one by one; where no model span tells,
/// those that overlap in time do.
fn set_groups(turns: &Turns, drafts: &mut [Draft]) {
    let (group_of, sizes) = groups(turns, drafts);
    // Groups of several are numbered in the order of their first calls.
    let mut number = 0;
    let numbers: Vec<Option<u32>> = (sizes.iter())
        .map(|&size| {
            number += u32::from(size > 1);
            (size > 1).then_some(number)
        })
        .collect();
    for (draft, group) in drafts.iter_mut().zip(group_of) {
        draft.call.parallel_group = numbers[group];
    }
}

/// The group of each draft, and the sizes of the groups.
fn groups(turns: &Turns, drafts: &[Draft]) -> (Vec<usize>, Vec<usize>) {
    let mut sizes: Vec<usize> = Vec::new();
    let mut by_reply: HashMap<(Owner, Option<SpanIdx>, u32), usize> = HashMap::new();
    let mut by_time: HashMap<(Owner, Option<SpanIdx>), (usize, u64)> = HashMap::new();
    let group_of = (drafts.iter())
        .map(|draft| {
            let (start, end) = (draft.call.start_unix_nanos, draft.call.end_unix_nanos);
            let mut new = || {
                sizes.push(0);
                sizes.len() - 1
            };
            let follows_model = turns.any_within(draft.owner, draft.inside)
                && turns.started_before(draft.owner, start) > 0;
            let group = if follows_model {
                *by_reply
                    .entry((draft.owner, draft.inside, draft.call.step))
                    .or_insert_with(new)
            } else {
                let scope = (draft.owner, draft.inside);
                let open = by_time
                    .get(&scope)
                    .copied()
                    .filter(|&(_, until)| start < until);
                let (group, until) = open.unwrap_or_else(|| (new(), 0));
                by_time.insert(scope, (group, until.max(end)));
                group
            };
            sizes[group] += 1;
            group
        })
        .collect();
    (group_of, sizes)
}
