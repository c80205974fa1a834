//! Derives the tool calls of a trace that has tool spans: unwraps values, merges the reports of a
//! call, and sets order, steps and parallel groups. `joins` adds the models' messages.

use std::sync::Arc;

use hashbrown::HashMap;
use otlp::span::Status;

use super::call_report::{args_differ, is_clear, more_of};
use super::capture::{CallRecorder, Capturing, lacks_part};
use super::draft::{A_FEW, Draft, MAX_TWINS, UNNAMED};
use super::interner::Interner;
use super::joins;
use super::span_roles::{Exclusion, SpanRoles};
use super::turns::{Owner, TurnScope, Turns};
use super::uncertainty::{self, Gates};
use crate::extract::spans::{Recogniser, SpanIdx, View, keys};
use crate::extract::tool_call::{CapturedParts, Payload, ToolCall};
use crate::extract::uncertainty::CallUncertainty;
use crate::extract::values::payload;

/// Returns the calls of a trace that has tool spans, in order. `gates` is given if the trace was
/// cut short; each call then gets its uncertainty.
pub(crate) fn from_spans(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    gates: Option<&Gates<'_>>,
    interner: &mut Interner,
) -> Vec<ToolCall> {
    let Folded {
        kept: mut drafts,
        duplicates,
    } = fold(roles, recogniser, interner);
    for (of, duplicate) in duplicates {
        absorb(&mut drafts[of], duplicate);
    }
    let models = roles.models();
    let turns = Turns::new(roles, &models, interner);
    for draft in &mut drafts {
        let args = draft.call.args.as_ref().filter(|_| gates.is_some());
        draft.has_clear_map = args.is_some_and(|args| args.json().is_object() && is_clear(args));
        draft.n_turns = turns.started_before(draft.owner, draft.call.start_unix_nanos);
        draft.call.step = u32::try_from(draft.n_turns.saturating_sub(1)).unwrap_or(u32::MAX);
    }
    // Drafts are sorted by start and depth. For drafts with equal starts and depths, the replies
    // show which call was requested first.
    let time_and_depth =
        |draft: &Draft| (roles.tree.start[draft.span], roles.tree.depth[draft.span]);
    let has_ties = !drafts.is_sorted_by(|draft, next| time_and_depth(draft) < time_and_depth(next));
    let announced = joins::join(roles, recogniser, &models, &turns, &mut drafts, has_ties);
    if has_ties {
        // Sort keys: start, depth, position in the reply, end, span id.
        drafts.sort_by_key(|draft| {
            let (start, depth, end, span_id) = roles.rank(draft.span);
            let id = draft.call.call_id.as_ref();
            let place = id.and_then(|id| announced.get(&**id)).copied();
            (start, depth, place.unwrap_or(usize::MAX), end, span_id)
        });
    }
    set_groups(&turns, &mut drafts);
    if let Some(gates) = gates {
        uncertainty::set_for_calls(roles, recogniser, gates, &mut drafts);
    }
    drafts.into_iter().map(|draft| draft.call).collect()
}

/// Returns the draft of a span's call, even if the span repeats the call of another span.
fn draft(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    span_idx: SpanIdx,
    interner: &mut Interner,
) -> Option<Draft> {
    let call = roles.recognised[span_idx].call.as_ref()?;
    let span = &roles.spans[span_idx];
    let max_size = recogniser.tools.max_value_size;
    let args = call
        .args
        .map(|raw| payload::open_args(raw, call.args_in, max_size));
    let opened = call
        .result
        .map(|raw| payload::open_result(raw, call.result_in, max_size));
    let failed_in_result = opened.as_ref().is_some_and(|opened| opened.failed);
    let (result, id_in_result, name_in_result) = match opened {
        Some(opened) => (Some(opened.payload), opened.call_id, opened.name),
        None => (None, None, None),
    };
    let name_in_result =
        name_in_result.filter(|name| call.name.is_none() && !recogniser.ignores(name));
    let name = call.name.as_deref().or(name_in_result.as_deref());
    let run = roles.roles[span_idx].run_above;
    let run_name = || run.map(|run| &*roles.runs[run].name);
    let agent = call.agent.as_deref().or_else(run_name);
    let owner = Owner {
        run,
        agent: agent.map(|agent| interner.symbol(agent)),
    };
    let has_error_status = span.status == Status::Error && !call.ignores_error_status;
    let failed = call.failed || failed_in_result || has_error_status;
    let call_id = call.call_id.as_deref().map(Arc::from);
    Some(Draft {
        poorly_named: name.is_none(),
        settled: failed || span.status == Status::Ok,
        has_clear_map: false,
        failed_until: 0,
        span: span_idx,
        inside: roles.roles[span_idx].call_above,
        n_turns: 0,
        call: ToolCall {
            name: interner.shared(name.or(call.poor_name).unwrap_or(UNNAMED)),
            call_id: call_id.or_else(|| id_in_result.map(Arc::from)),
            args,
            result,
            captured: CapturedParts::default(),
            error: failed,
            agent: owner.agent.map(|agent| interner.text(agent)),
            agent_run: run,
            step: 0,
            parallel_group: None,
            span_id: Some(span.span_id),
            start_unix_nanos: roles.tree.start[span_idx],
            end_unix_nanos: roles.tree.end[span_idx],
            convention: interner.shared(roles.roles[span_idx].convention),
            partial: span.class.partial || span.end_unix_nanos == 0,
            untimed: span.is_untimed(),
            uncertainty: CallUncertainty::default(),
        },
        owner,
    })
}

struct Folded {
    /// One draft per call, in order.
    kept: Vec<Draft>,
    /// Further drafts of calls, which fill in missing fields, each after the index of its call.
    duplicates: Vec<(usize, Draft)>,
}

/// Returns true if the SDK may have dropped attributes or events of the span.
fn is_torn(span: &View<'_>) -> bool {
    span.has(keys::LOST_REQUEST)
}

fn fold(roles: &SpanRoles<'_>, recogniser: &Recogniser, interner: &mut Interner) -> Folded {
    let mut drafts = Vec::with_capacity(roles.n_calls());
    drafts.extend(
        (0..roles.spans.len()).filter_map(|span_idx| draft(roles, recogniser, span_idx, interner)),
    );
    if drafts.iter().any(|draft| lacks_part(&draft.call)) {
        let recorder = |draft: &Draft| CallRecorder::of(roles, draft.span);
        let recorders: Vec<CallRecorder<'_>> = drafts.iter().map(recorder).collect();
        let calls = drafts.iter().map(|draft| &draft.call);
        let capturing = Capturing::new(recorders.iter().copied().zip(calls));
        for (draft, recorder) in drafts.iter_mut().zip(&recorders) {
            let captured = capturing.parts_of(recorder);
            // The SDK may have dropped the attribute or event with the missing part.
            let dropped = (captured.args && draft.call.args.is_none()
                || captured.result && draft.call.result.is_none())
                && is_torn(&roles.recognised[draft.span].view);
            if !dropped {
                draft.call.captured = captured;
            }
        }
    }
    drafts.sort_by_key(|draft| roles.rank(draft.span));
    if are_distinct(roles, &drafts) {
        return Folded {
            kept: drafts,
            duplicates: Vec::new(),
        };
    }
    let originals = originals(roles, &drafts);
    let mut kept: Vec<Draft> = Vec::with_capacity(drafts.len());
    let mut positions: HashMap<SpanIdx, usize> = HashMap::new();
    let mut folded = Vec::new();
    for (draft, original) in drafts.into_iter().zip(originals) {
        match original {
            Some(original) => folded.push((original, draft)),
            None => {
                positions.insert(draft.span, kept.len());
                kept.push(draft);
            }
        }
    }
    let duplicates = folded.into_iter();
    let duplicates = duplicates.filter_map(|(of, draft)| Some((*positions.get(&of)?, draft)));
    Folded {
        duplicates: duplicates.collect(),
        kept,
    }
}

/// Returns true if each draft is certainly a separate call, without building a table. Most traces
/// have few calls and no call twice.
fn are_distinct(roles: &SpanRoles<'_>, drafts: &[Draft]) -> bool {
    let is_folded = |draft: &Draft| {
        let excluded = roles.roles[draft.span].excluded;
        matches!(excluded, Some(Exclusion::Folded(_)))
    };
    let is_repeated = |at: usize| {
        let id = &drafts[at].call.call_id;
        id.is_some() && drafts[..at].iter().any(|draft| draft.call.call_id == *id)
    };
    drafts.len() <= A_FEW && !drafts.iter().any(is_folded) && !(0..drafts.len()).any(is_repeated)
}

/// Returns for each draft, in order, the span of the earlier draft of the same call, if any.
fn originals(roles: &SpanRoles<'_>, drafts: &[Draft]) -> Vec<Option<SpanIdx>> {
    // For each id and name, the latest draft that is not a duplicate; for each draft, the previous
    // draft with its id and name.
    let mut latest: HashMap<(&str, &str), usize> = HashMap::with_capacity(drafts.len());
    let mut before: Vec<Option<usize>> = vec![None; drafts.len()];
    // For each call, the most complete arguments of the reports folded into it.
    let mut folded: HashMap<SpanIdx, &Payload> = HashMap::new();
    let excluded = |draft: &Draft| roles.roles[draft.span].excluded;
    for draft in drafts {
        if let Some(Exclusion::Folded(into)) = excluded(draft) {
            let more = more_of(folded.get(&into).copied(), draft.call.args.as_ref());
            folded.extend(more.map(|args| (into, args)));
        }
    }
    let mut twins: HashMap<SpanIdx, SpanIdx> = HashMap::new();
    for (at, draft) in drafts.iter().enumerate() {
        let Some(id) = draft.call.call_id.as_deref() else {
            continue;
        };
        if matches!(excluded(draft), Some(Exclusion::Folded(_))) {
            continue;
        }
        let args = complete_args(draft, &folded);
        let id_and_name = (id, &*draft.call.name);
        let last = latest.get(&id_and_name).copied();
        let kept = std::iter::successors(last, |&other| before[other]);
        let mut kept = kept.take(MAX_TWINS).map(|other| &drafts[other]);
        let twin = kept.find(|kept| {
            is_twin(roles, kept, draft) && !args_differ(complete_args(kept, &folded), args)
        });
        match twin.map(|twin| twin.span) {
            Some(twin) => {
                let more = more_of(folded.get(&twin).copied(), args);
                folded.extend(more.map(|args| (twin, args)));
                twins.insert(draft.span, twin);
            }
            None => before[at] = latest.insert(id_and_name, at),
        }
    }
    let original = |draft: &Draft| match excluded(draft) {
        Some(Exclusion::Folded(into)) => Some(*twins.get(&into).unwrap_or(&into)),
        _ => twins.get(&draft.span).copied(),
    };
    drafts.iter().map(original).collect()
}

/// Returns the more complete arguments: those of the draft, or of the reports folded into it.
fn complete_args<'d>(
    draft: &'d Draft,
    folded: &HashMap<SpanIdx, &'d Payload>,
) -> Option<&'d Payload> {
    more_of(draft.call.args.as_ref(), folded.get(&draft.span).copied())
}

/// Maps each span that repeats another span's call to that other span.
pub(crate) fn repeated_calls(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
) -> HashMap<SpanIdx, SpanIdx> {
    let folded = fold(roles, recogniser, &mut Interner::default());
    let duplicates = folded.duplicates.into_iter();
    duplicates
        .map(|(of, draft)| (draft.span, folded.kept[of].span))
        .collect()
}

/// Returns true if two instrumentations or processes may report the same call with this id and
/// name: the spans have different parents, and their times overlap. Siblings, and calls that ran
/// one after the other, are separate calls. With a millisecond clock, one of two reports of a call
/// may seem to start when the other ends, or to last no time.
fn is_twin(roles: &SpanRoles<'_>, kept: &Draft, draft: &Draft) -> bool {
    let parent = |draft: &Draft| roles.spans[draft.span].parent_id;
    let overlap = draft.call.start_unix_nanos <= kept.call.end_unix_nanos;
    parent(kept) != parent(draft) && overlap
}

fn absorb(kept: &mut Draft, draft: Draft) {
    // A span of the same call that is still missing could take precedence over this span.
    kept.call.uncertainty.args |= kept.call.args.is_none();
    kept.call.uncertainty.result |= kept.call.result.is_none();
    kept.call.captured.args |= draft.call.captured.args;
    kept.call.captured.result |= draft.call.captured.result;
    kept.call.args = more_of(kept.call.args.take(), draft.call.args);
    kept.call.result = kept.call.result.take().or(draft.call.result);
    kept.call.call_id = kept.call.call_id.take().or(draft.call.call_id);
    if kept.poorly_named && !draft.poorly_named {
        kept.call.name = draft.call.name;
        kept.poorly_named = false;
    }
    // A client often sets no status if its server failed. Attempts within the call are in order, so
    // a successful attempt cancels the failures that ended before it began.
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

/// Assigns groups: calls of one reply share a group, even if they ran one by one; without a model
/// span, calls that overlap in time share one.
fn set_groups(turns: &Turns, drafts: &mut [Draft]) {
    let (group_of, sizes) = groups(turns, drafts);
    // Groups of several calls are numbered in the order of their first calls.
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

/// The latest group of one owner's calls within one enclosing call.
#[derive(Clone, Copy)]
struct LatestGroup {
    group: usize,
    /// The step of the group's calls; `None` if they follow no model.
    step: Option<u32>,
    /// The latest end of the group's calls.
    until: u64,
}

/// Returns the group of each draft, and the sizes of the groups. Drafts are sorted by start, so
/// drafts of one owner within one call are sorted by step, and only the latest group can grow.
fn groups(turns: &Turns, drafts: &[Draft]) -> (Vec<usize>, Vec<usize>) {
    let mut group_of = Vec::with_capacity(drafts.len());
    let mut sizes: Vec<usize> = Vec::with_capacity(drafts.len());
    let mut latest: HashMap<TurnScope, LatestGroup> = HashMap::new();
    // Most traces have one scope, which needs no table.
    let mut current: Option<(TurnScope, LatestGroup)> = None;
    for draft in drafts {
        let call = &draft.call;
        let scope = TurnScope {
            owner: draft.owner,
            call: draft.inside,
        };
        let before = match current {
            Some((current, group)) if current == scope => Some(group),
            Some((current, group)) => {
                latest.insert(current, group);
                latest.get(&scope).copied()
            }
            None => None,
        };
        let step = (draft.n_turns > 0 && turns.any_within(&scope)).then_some(call.step);
        let goes_on = |group: &LatestGroup| match step {
            Some(_) => group.step == step,
            None => call.start_unix_nanos < group.until,
        };
        let group = before.filter(goes_on).map_or_else(
            || {
                sizes.push(0);
                sizes.len() - 1
            },
            |before| before.group,
        );
        let until = before.filter(goes_on).map_or(0, |before| before.until);
        sizes[group] += 1;
        group_of.push(group);
        let until = until.max(call.end_unix_nanos);
        current = Some((scope, LatestGroup { group, step, until }));
    }
    (group_of, sizes)
}
