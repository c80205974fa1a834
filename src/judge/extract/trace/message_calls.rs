//! The calls that models' replies request, in a trace whose tools have no spans. No span shows that
//! these calls were made.

use std::sync::Arc;

use hashbrown::HashMap;

use super::call_report::args_differ;
use super::capture::{CallRecorder, Capturing, lacks_part};
use super::draft::MAX_TWINS;
use super::interner::Interner;
use super::joins::{self, RequestResults};
use super::span_roles::SpanRoles;
use super::turns::{Owner, Turns};
use crate::extract::spans::{Recogniser, SpanIdx};
use crate::extract::tool_call::{CapturedParts, Payload, ToolCall};
use crate::extract::uncertainty::CallUncertainty;
use crate::extract::values::{AnnouncedCall, Announcement, ConversationResult};

/// The calls of a trace without tool spans.
#[derive(Debug)]
pub(crate) struct MessageCalls {
    pub(crate) calls: Vec<ToolCall>,
    /// True if a reply or conversation is cut, so that there may have been more calls.
    pub(crate) cut: bool,
}

struct Reply {
    calls: Vec<AnnouncedCall>,
    span: SpanIdx,
    owner: Owner,
    step: u32,
}

#[derive(Default)]
struct Results {
    of_requests: RequestResults,
    /// Results in runs that are recorded in one span.
    of_conversations: HashMap<String, Payload>,
    /// True for a call id if the result reports a failure.
    failed: HashMap<String, bool>,
}

pub(crate) fn from_messages(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    interner: &mut Interner,
) -> MessageCalls {
    let models = roles.models();
    let turns = Turns::new(roles, &models, interner);
    let steps: HashMap<SpanIdx, u32> = turns.steps().collect();
    let mut announcements = joins::replies(roles, recogniser, &models);
    let of_requests = joins::results(roles, recogniser, &models);
    let next_request = |model: SpanIdx| {
        let step = steps.get(&model)?.saturating_add(1);
        turns.model_at(Owner::of(roles, model, interner), step)
    };
    joins::take_answered_ids(
        roles,
        recogniser,
        &of_requests,
        next_request,
        &models,
        &mut announcements,
    );
    let mut cut = announcements.iter().any(|reply| reply.cut);
    let mut replies: Vec<Reply> = (models.iter())
        .zip(announcements)
        .map(|(&span, Announcement { calls, .. })| Reply {
            calls,
            span,
            owner: Owner::of(roles, span, interner),
            step: steps.get(&span).copied().unwrap_or_default(),
        })
        .collect();
    let mut results = Results {
        of_requests,
        ..Results::default()
    };
    for span in 0..roles.spans.len() {
        cut |= add_conversation(
            span,
            roles,
            recogniser,
            interner,
            &mut replies,
            &mut results,
        );
    }
    let calls = listed(roles, recogniser, interner, replies, &results);
    MessageCalls { calls, cut }
}

/// Adds the replies and results of a run that this one span records. Returns true if calls of the
/// run may be missing.
fn add_conversation(
    span: SpanIdx,
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    interner: &mut Interner,
    replies: &mut Vec<Reply>,
    results: &mut Results,
) -> bool {
    let conversation = roles.conversation(span, recogniser.tools.max_value_size);
    let Some(conversation) = conversation else {
        return false;
    };
    // Newer releases of the framework also record model spans, which have no call ids. The
    // conversation does not contain the replies of an agent that the run called.
    let repeats = |reply: &Reply| {
        let mut above = roles.tree.ancestors(reply.span);
        let nearest_run = above.find(|&above| roles.roles[above].own_run.is_some());
        roles.roles[reply.span].model_of.is_some() && nearest_run == Some(span)
    };
    if conversation.cut && replies.iter().any(repeats) {
        return false;
    }
    replies.retain(|reply| !repeats(reply));
    for ConversationResult {
        call_id,
        result,
        failed,
    } in conversation.results
    {
        if let Some(failed) = failed {
            *results.failed.entry_ref(call_id.as_str()).or_default() |= failed;
        }
        results.of_conversations.entry(call_id).or_insert(result);
    }
    let owner = match roles.roles[span].own_run {
        Some(run) => Owner {
            run: Some(run),
            agent: Some(interner.symbol(&roles.runs[run].name)),
        },
        None => Owner::of(roles, span, interner),
    };
    let turns = (0..).zip(conversation.replies);
    replies.extend(turns.map(|(step, calls)| Reply {
        calls,
        span,
        owner,
        step,
    }));
    conversation.cut
}

/// Returns the calls of the replies. A call that several replies repeat is listed once.
fn listed(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    interner: &mut Interner,
    replies: Vec<Reply>,
    results: &Results,
) -> Vec<ToolCall> {
    // The calls of each id. There may be several, because a model may reuse an id for another call.
    let mut of_id: HashMap<String, Vec<usize>> = HashMap::new();
    let mut calls: Vec<ToolCall> = Vec::new();
    // The span whose reply requests each call.
    let mut spans: Vec<SpanIdx> = Vec::new();
    let mut next_group = 1;
    for reply in replies {
        let span = &roles.spans[reply.span];
        let n_before = calls.len();
        for AnnouncedCall {
            name,
            call_id,
            args,
        } in reply.calls
        {
            let is_same = |&other: &usize| {
                let other: &ToolCall = &calls[other];
                *other.name == name && !args_differ(other.args.as_ref(), args.as_ref())
            };
            let others = call_id.as_ref().and_then(|id| of_id.get(id));
            let is_repeated =
                others.is_some_and(|others| others.iter().rev().take(MAX_TWINS).any(is_same));
            if is_repeated || roles.excludes(&name, recogniser) {
                continue;
            }
            if let Some(id) = &call_id {
                of_id.entry_ref(id.as_str()).or_default().push(calls.len());
            }
            spans.push(reply.span);
            let result = call_id.as_ref().and_then(|id| {
                let asked_at = roles.tree.start[reply.span];
                let of_requests = &results.of_requests;
                of_requests
                    .of_call(roles, id, asked_at, Some(reply.span))
                    .or_else(|| results.of_conversations.get(id))
            });
            let failed = call_id
                .as_ref()
                .and_then(|id| results.failed.get(id).copied());
            calls.push(ToolCall {
                name: name.into(),
                args,
                result: result.cloned(),
                captured: CapturedParts::default(),
                error: failed == Some(true),
                call_id: call_id.map(Arc::from),
                agent: reply.owner.agent.map(|agent| interner.text(agent)),
                agent_run: reply.owner.run,
                step: reply.step,
                parallel_group: None,
                span_id: Some(span.span_id),
                start_unix_nanos: roles.tree.end[reply.span],
                end_unix_nanos: roles.tree.end[reply.span],
                convention: format!("{}.messages", roles.roles[reply.span].convention).into(),
                partial: span.class.partial || span.end_unix_nanos == 0,
                untimed: span.is_untimed(),
                uncertainty: CallUncertainty {
                    error: failed.is_none(),
                    ..CallUncertainty::default()
                },
            });
        }
        if calls.len() - n_before > 1 {
            calls[n_before..]
                .iter_mut()
                .for_each(|call| call.parallel_group = Some(next_group));
            next_group += 1;
        }
    }
    // A result names only an id, so it may belong to any call with this id.
    for call in &mut calls {
        let others = call.call_id.as_ref().and_then(|id| of_id.get(&**id));
        if others.is_some_and(|others| others.len() > 1) {
            (call.result, call.error) = (None, false);
            call.uncertainty.error = true;
        }
    }
    if calls.iter().any(lacks_part) {
        let recorders = || spans.iter().map(|&span| CallRecorder::of(roles, span));
        let capturing = Capturing::new(recorders().zip(&calls));
        for (call, recorder) in calls.iter_mut().zip(recorders()) {
            call.captured = capturing.parts_of(&recorder);
        }
    }
    calls
}
