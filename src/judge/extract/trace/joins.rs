//! Completes the drafts of a trace's calls from model spans: replies announce call ids, arguments
//! and order, and later requests repeat results. Never adds a call.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::call_report::{args_differ, lost_its_name};
use super::draft::{A_FEW, Draft, UNNAMED};
use super::span_roles::SpanRoles;
use super::turns::Turns;
use crate::extract::spans::conventions::is_reply_above;
use crate::extract::spans::{Recogniser, SpanIdx, model_messages};
use crate::extract::tool_call::{Payload, ToolCall};
use crate::extract::values::{AnnouncedCall, Announcement, equality};

/// Completes the drafts from replies and later requests. Returns the position of each announced
/// call id among all announcements; may return none unless `wants_places`.
pub(crate) fn join(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
    turns: &Turns,
    drafts: &mut [Draft],
    wants_places: bool,
) -> HashMap<String, usize> {
    let places = if wants_places || !drafts.iter().all(is_complete) {
        join_replies(roles, recogniser, models, turns, drafts)
    } else {
        HashMap::new()
    };
    let lacks_result = |draft: &Draft| draft.call.result.is_none() && !draft.call.error;
    if drafts.iter().any(lacks_result) {
        let results = results(roles, recogniser, models);
        let is_reused = reused_ids(drafts);
        for (draft, is_reused) in drafts.iter_mut().zip(is_reused) {
            if !lacks_result(draft) {
                continue;
            }
            draft.call.captured.result &= !is_reused;
            let id = draft.call.call_id.as_ref().filter(|_| !is_reused);
            let made_at = draft.call.start_unix_nanos;
            let found = id.and_then(|id| results.of_call(roles, id, made_at, None));
            let lost = || results.cut.then(Payload::lost);
            draft.call.result = found.cloned().or_else(lost);
        }
    }
    places
}

/// Returns true for each draft whose id several successful drafts have. A result names only an id,
/// so it may belong to any of them.
fn reused_ids(drafts: &[Draft]) -> Vec<bool> {
    let ids = || {
        let succeeded = |draft: &&Draft| !draft.call.error;
        let ids = drafts.iter().filter(succeeded);
        ids.filter_map(|draft| draft.call.call_id.as_deref())
    };
    // Fast path: most traces have few calls, and no id twice.
    let differs_from_rest = |(next, id): (usize, &str)| ids().skip(next).all(|other| other != id);
    if drafts.len() <= A_FEW && (1..).zip(ids()).all(differs_from_rest) {
        return vec![false; drafts.len()];
    }
    let mut n_of_id: HashMap<&str, usize> = HashMap::new();
    ids().for_each(|id| *n_of_id.entry(id).or_default() += 1);
    let is_reused = |draft: &Draft| {
        let id = draft.call.call_id.as_deref();
        id.is_some_and(|id| n_of_id.get(id).is_some_and(|&n| n > 1))
    };
    drafts.iter().map(is_reused).collect()
}

/// Returns true if no reply could add anything. Checked before any reply is parsed; arguments are
/// parsed only if they do not look like a JSON object.
fn is_complete(draft: &Draft) -> bool {
    let is_object = |args: &Payload| {
        args.text.starts_with("{\"") || &*args.text == "{}" || args.json().is_object()
    };
    draft.call.call_id.is_some()
        && !draft.poorly_named
        && draft.call.args.as_ref().is_some_and(is_object)
}

fn join_replies(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
    turns: &Turns,
    drafts: &mut [Draft],
) -> HashMap<String, usize> {
    let replies = replies(roles, recogniser, models);
    let mut announced: Vec<Slot> = Vec::new();
    let mut of_model: HashMap<SpanIdx, Vec<usize>> = HashMap::new();
    let mut by_id: HashMap<String, OfId> = HashMap::new();
    let is_cut = replies.iter().any(|reply| reply.cut);
    for (&model, reply) in models.iter().zip(replies) {
        for call in reply.calls {
            let at = announced.len();
            of_model.entry(model).or_default().push(at);
            if let Some(id) = &call.call_id {
                let of_id = by_id.entry_ref(id.as_str()).or_insert(OfId {
                    first: at,
                    is_reused: false,
                });
                let first = announced.get(of_id.first);
                of_id.is_reused |= first.is_some_and(|first: &Slot| first.differs_from(&call));
            }
            announced.push(Slot { call, taken: false });
        }
    }
    let mut joined = vec![false; drafts.len()];
    for (draft, joined) in drafts.iter_mut().zip(&mut joined) {
        let id = draft.call.call_id.as_ref();
        let found = id.and_then(|id| by_id.get(&**id)).and_then(|of_id| {
            let is_it = |&at: &usize| announced[at].is_of_id(draft);
            if !of_id.is_reused {
                return Some(of_id.first).filter(is_it);
            }
            // Only the reply of the call's own turn can contain the call.
            let model = turns.model_at(draft.owner, draft.call.step)?;
            let mut own_turn = of_model.get(&model)?.iter().copied().filter(is_it);
            own_turn.next().filter(|_| own_turn.next().is_none())
        });
        if let Some(at) = found {
            announced[at].give(draft);
            *joined = true;
        }
    }
    // If a call or an announced call has no id, the two are matched in order: a turn's n-th call of
    // a name matches the reply's n-th announced call of that name. Equal arguments match first,
    // because calls of one turn can start in any order. Calls that have only a class name come
    // last. They match by their arguments, and only if a single tool has these arguments.
    for by in [MatchBy::NameAndArgs, MatchBy::Name, MatchBy::Args] {
        for (draft, joined) in drafts
            .iter_mut()
            .zip(&mut joined)
            .filter(|(draft, joined)| !**joined && (by != MatchBy::Args || draft.poorly_named))
        {
            let Some(model) = turns.model_at(draft.owner, draft.call.step) else {
                continue;
            };
            let slots = of_model.get(&model).map(Vec::as_slice).unwrap_or_default();
            let mut fitting =
                (slots.iter().copied()).filter(|&at| announced[at].fits(&draft.call, by));
            let found = fitting.next();
            let mut is_one_tool = |at: usize| {
                let name = &announced[at].call.name;
                by != MatchBy::Args || fitting.all(|other| announced[other].call.name == *name)
            };
            if let Some(at) = found
                && is_one_tool(at)
            {
                // A model turn that has not arrived could move the call to another reply.
                draft.call.uncertainty.args |= announced[at].gives_args(draft);
                draft.call.uncertainty.result |= draft.call.result.is_none();
                announced[at].give(draft);
                *joined = true;
            }
        }
    }
    if is_cut {
        let unjoined = drafts.iter_mut().zip(joined).filter(|(_, joined)| !joined);
        unjoined.for_each(|(draft, _)| lose_args(&mut draft.call));
    }
    by_id
        .into_iter()
        .map(|(id, of_id)| (id, of_id.first))
        .collect()
}

/// Marks arguments that are absent, or that are not an object, as incomplete: the missing part of a
/// reply may contain the call's arguments, or the name of its only argument.
fn lose_args(call: &mut ToolCall) {
    call.args = Some(match call.args.take() {
        None => Payload::lost(),
        Some(args) if args.json().is_object() => args,
        Some(args) => args.into_cut(),
    });
}

/// Returns the calls that each outermost model span announces. Inner model spans, and siblings that
/// report the same model call, repeat the calls; they are read only if the outermost span announces
/// no call, or none with an id.
pub(crate) fn replies(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
) -> Vec<Announcement> {
    let max_size = recogniser.tools.max_value_size;
    let place: HashMap<SpanIdx, usize> = models
        .iter()
        .enumerate()
        .map(|(at, &model)| (model, at))
        .collect();
    let mut replies: Vec<Announcement> = models
        .iter()
        .map(|&model| announcement(roles, model, max_size))
        .collect();
    for &span_idx in &roles.tree.parents_first {
        let Some(&at) = roles.roles[span_idx]
            .model_of
            .filter(|&model| model != span_idx)
            .and_then(|model| place.get(&model))
        else {
            continue;
        };
        let outer = &mut replies[at];
        let lacks_ids = outer.calls.iter().all(|call| call.call_id.is_none());
        if lacks_ids && roles.is_inner_model(span_idx) {
            let inner = announcement(roles, span_idx, max_size);
            if !outer.calls.is_empty() {
                take_ids(outer, inner);
            } else if !inner.calls.is_empty()
                || inner.cut && !is_reply_above(roles.roles[span_idx].convention)
            {
                *outer = inner;
            }
        }
    }
    replies
}

/// Copies the call ids of an inner reply to the outer reply, if both list the same names in the
/// same order.
fn take_ids(outer: &mut Announcement, inner: Announcement) {
    let names = |reply: &Announcement| -> Vec<String> {
        reply.calls.iter().map(|call| call.name.clone()).collect()
    };
    if names(outer) == names(&inner) {
        for (call, same) in outer.calls.iter_mut().zip(inner.calls) {
            call.call_id = same.call_id;
        }
    }
}

/// Returns the calls that a model span announces. If there are none, or the reply is cut, prefers
/// the calls in the log records written in the span.
fn announcement(roles: &SpanRoles<'_>, model: SpanIdx, max_size: usize) -> Announcement {
    let own = model_messages::announcement(&roles.recognised[model].view, max_size);
    let records = roles.records_of.get(&model);
    let Some(records) = records.filter(|_| own.calls.is_empty() || own.cut) else {
        return own;
    };
    let mut of_records = Announcement::default();
    for record in records {
        let of_record = model_messages::announcement(record, max_size);
        of_records.calls.extend(of_record.calls);
        of_records.cut |= of_record.cut;
    }
    if of_records.calls.is_empty() && own.cut { own } else { of_records }
}

/// Replaces the ids of a reply's calls with the ids that the next request answers. Some
/// instrumentations announce calls under their own ids (`fc_…`), while results refer to the
/// provider's ids (`call_…`). If no request answers any of a reply's calls, but the next request
/// has equally many results for ids that no reply announced, these results answer the reply's
/// calls, in order.
pub(crate) fn take_answered_ids(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    results: &RequestResults,
    mut next_request: impl FnMut(SpanIdx) -> Option<SpanIdx>,
    models: &[SpanIdx],
    replies: &mut [Announcement],
) {
    let ids = |reply: &Announcement| -> Option<Vec<String>> {
        reply
            .calls
            .iter()
            .map(|call| call.call_id.clone())
            .collect()
    };
    let announced: HashSet<String> = replies.iter().filter_map(ids).flatten().collect();
    for (&model, reply) in models.iter().zip(replies) {
        let Some(own) = ids(reply).filter(|own| !own.is_empty()) else {
            continue;
        };
        let Some(next) = next_request(model) else {
            continue;
        };
        if own.iter().any(|id| results.by_id.contains_key(id)) {
            continue;
        }
        let max_size = recogniser.tools.max_value_size;
        let answers = model_messages::tool_results(&roles.recognised[next].view, max_size).results;
        if answers.len() == own.len() && !answers.iter().any(|(id, _)| announced.contains(id)) {
            for (call, (id, _)) in reply.calls.iter_mut().zip(answers) {
                call.call_id = Some(id);
            }
        }
    }
}

/// The tool results in the models' requests and in log records.
#[derive(Debug, Default)]
pub(crate) struct RequestResults {
    /// The results in the order of the requests; results of log records are last.
    by_id: HashMap<String, SmallVec<[RequestResult; 1]>>,
    /// True if messages are missing, so that there may be more results.
    pub(crate) cut: bool,
}

#[derive(Debug)]
struct RequestResult {
    /// The model span whose request has the result; `None` for a log record.
    model: Option<SpanIdx>,
    payload: Payload,
}

impl RequestResults {
    /// Returns the first result with this id in a request that another model span made at or after
    /// `asked_at`, or else in a log record. A request repeats only earlier calls.
    pub(crate) fn of_call(
        &self,
        roles: &SpanRoles<'_>,
        id: &str,
        asked_at: u64,
        own_model: Option<SpanIdx>,
    ) -> Option<&Payload> {
        let of_id = self.by_id.get(id)?;
        let is_earlier = |result: &RequestResult| {
            let start = result.model.map(|model| roles.tree.start[model]);
            start.is_some_and(|start| start < asked_at)
        };
        let mut later = of_id[of_id.partition_point(is_earlier)..].iter();
        let found = later.find(|result| result.model.is_none() || result.model != own_model);
        found.map(|result| &result.payload)
    }
}

pub(crate) fn results(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
) -> RequestResults {
    let mut results = RequestResults::default();
    let of_models = models
        .iter()
        .map(|&model| (Some(model), &roles.recognised[model].view));
    let of_records = roles.records.iter().map(|record| (None, record));
    for (model, view) in of_models.chain(of_records) {
        let repeated = model_messages::tool_results(view, recogniser.tools.max_value_size);
        results.cut |= repeated.cut;
        for (id, payload) in repeated.results {
            let of_id = results.by_id.entry(id).or_default();
            of_id.push(RequestResult { model, payload });
        }
    }
    results
}

/// The properties that must agree between an announced call and a call, if one of them has no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatchBy {
    NameAndArgs,
    Name,
    Args,
}

struct OfId {
    first: usize,
    /// True if a different call was also announced with this id.
    is_reused: bool,
}

/// An announced call; `taken` is true once a draft has matched it.
struct Slot {
    call: AnnouncedCall,
    taken: bool,
}

impl Slot {
    fn fits(&self, call: &ToolCall, by: MatchBy) -> bool {
        let named = self.call.name == *call.name || &*call.name == UNNAMED;
        let ids_agree = self.call.call_id.is_none() || call.call_id.is_none();
        !self.taken
            && ids_agree
            && (named || by == MatchBy::Args)
            && (by == MatchBy::Name || same_args(self.call.args.as_ref(), call.args.as_ref()))
    }

    /// Returns true if `call` is certainly not the slot's call.
    fn differs_from(&self, call: &AnnouncedCall) -> bool {
        self.call.name != call.name || args_differ(self.call.args.as_ref(), call.args.as_ref())
    }

    fn is_of_id(&self, draft: &Draft) -> bool {
        self.call.call_id.as_deref() == draft.call.call_id.as_deref()
            && (self.call.name == *draft.call.name || draft.poorly_named)
    }

    fn give(&mut self, draft: &mut Draft) {
        self.taken = true;
        if draft.poorly_named {
            draft.call.name = self.call.name.as_str().into();
        }
        if draft.call.call_id.is_none() {
            draft.call.call_id = self.call.call_id.as_deref().map(Arc::from);
        }
        if self.gives_args(draft) {
            draft.call.args = self.call.args.clone();
        }
    }

    fn gives_args(&self, draft: &Draft) -> bool {
        lost_its_name(draft.call.args.as_ref(), self.call.args.as_ref())
    }
}

fn same_args(announced: Option<&Payload>, made: Option<&Payload>) -> bool {
    match (announced, made) {
        (Some(announced), Some(made)) => {
            equality::equal(announced.json(), made.json()) == Some(true)
                || lost_its_name(Some(made), Some(announced))
        }
        _ => false,
    }
}
