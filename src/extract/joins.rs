//! Pure. What other spans tell of a call: the models' replies announce call ids, arguments and
//! order, later requests hold results. The drafts of a trace's calls in, the same filled in out.
//! Never invents a call.

use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::Value as Json;

use super::calls::{Draft, UNNAMED};
use super::messages::{self, Announced};
use super::outline::Outline;
use super::recognise::Recogniser;
use super::tool_call::{Payload, ToolCall};
use super::tree::SpanIdx;
use super::turns::Turns;

/// Fills in what replies and later requests tell of the calls; answers with the place of each
/// announced call id in the order of all announcements, if that is wanted.
pub(super) fn join(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
    turns: &Turns,
    drafts: &mut [Draft],
    wants_places: bool,
) -> HashMap<String, usize> {
    let places = match wants_places || !drafts.iter().all(tells_all) {
        true => join_replies(outline, recogniser, models, turns, drafts),
        false => HashMap::new(),
    };
    if drafts
        .iter()
        .any(|draft| draft.call.result.is_none() && !draft.call.error)
    {
        let responses = responses(outline, recogniser);
        for draft in drafts
            .iter_mut()
            .filter(|draft| draft.call.result.is_none() && !draft.call.error)
        {
            draft.call.result = draft
                .call
                .call_id
                .as_ref()
                .and_then(|id| responses.get(&**id))
                .cloned();
        }
    }
    places
}

/// Is there nothing that a reply could add? Asked before any of them is parsed; arguments are
/// parsed only where they do not look like JSON's.
fn tells_all(draft: &Draft) -> bool {
    let is_object = |args: &Payload| {
        args.text.starts_with("{\"") || &*args.text == "{}" || args.json().is_object()
    };
    draft.call.call_id.is_some()
        && !draft.poorly_named
        && draft.call.args.as_ref().is_some_and(is_object)
}

fn join_replies(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
    turns: &Turns,
    drafts: &mut [Draft],
) -> HashMap<String, usize> {
    let replies = replies(outline, recogniser, models);
    let mut announced: Vec<Slot> = Vec::new();
    let mut of_model: HashMap<SpanIdx, Vec<usize>> = HashMap::new();
    for (&model, reply) in models.iter().zip(replies) {
        for call in reply {
            of_model.entry(model).or_default().push(announced.len());
            announced.push(Slot { call, taken: false });
        }
    }
    let by_id: HashMap<String, usize> = announced
        .iter()
        .enumerate()
        .rev()
        .filter_map(|(at, slot)| Some((slot.call.call_id.clone()?, at)))
        .collect();
    let mut joined = vec![false; drafts.len()];
    for (draft, joined) in drafts.iter_mut().zip(&mut joined) {
        if let Some(&at) = draft.call.call_id.as_ref().and_then(|id| by_id.get(&**id)) {
            announced[at].give(draft);
            *joined = true;
        }
    }
    // Where one side has no id, a call is the n-th of its name in the reply of its turn; equal
    // arguments go first, since calls of one turn can start in any order.
    for by_args in [true, false] {
        for (draft, joined) in drafts
            .iter_mut()
            .zip(&mut joined)
            .filter(|(_, joined)| !**joined)
        {
            let Some(model) = turns.model_at(draft.owner, draft.call.step) else {
                continue;
            };
            let slots = of_model.get(&model).map(Vec::as_slice).unwrap_or_default();
            if let Some(&at) = slots
                .iter()
                .find(|&&at| announced[at].fits(&draft.call, by_args))
            {
                // A model's turn that is still to come could move the call to another reply.
                draft.call.doubt.args |= announced[at].gives_args(draft);
                draft.call.doubt.result |= draft.call.result.is_none();
                announced[at].give(draft);
                *joined = true;
            }
        }
    }
    by_id
}

/// What each outermost model span announces; those within it say the same again, and are asked only
/// if it says nothing.
pub(super) fn replies(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    models: &[SpanIdx],
) -> Vec<Vec<Announced>> {
    let max_size = recogniser.tools.max_value_size;
    let place: HashMap<SpanIdx, usize> = models
        .iter()
        .enumerate()
        .map(|(at, &model)| (model, at))
        .collect();
    let mut replies: Vec<Vec<Announced>> = models
        .iter()
        .map(|&model| announced(outline, model, max_size))
        .collect();
    for &span_idx in &outline.tree.parents_first {
        let Some(&at) = outline.model[span_idx]
            .filter(|&model| model != span_idx)
            .and_then(|model| place.get(&model))
        else {
            continue;
        };
        if replies[at].is_empty() && outline.models_below[span_idx] {
            replies[at] = announced(outline, span_idx, max_size);
        }
    }
    replies
}

/// What a model span announces, or else the log records that were written in it.
fn announced(outline: &Outline<'_>, model: SpanIdx, max_size: usize) -> Vec<Announced> {
    let own = messages::announced(&outline.views[model], max_size);
    match outline.records_of.get(&model) {
        Some(records) if own.is_empty() => records
            .iter()
            .flat_map(|record| messages::announced(record, max_size))
            .collect(),
        _ => own,
    }
}

/// Tool results among the models' requests, by call id; the first that tells one.
pub(super) fn responses(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
) -> HashMap<String, Payload> {
    let mut responses = HashMap::new();
    let models = outline.models();
    for view in models
        .iter()
        .map(|&model| &outline.views[model])
        .chain(&outline.records)
    {
        for (id, result) in messages::responses(view, recogniser.tools.max_value_size) {
            responses.entry(id).or_insert(result);
        }
    }
    responses
}

struct Slot {
    call: Announced,
    taken: bool,
}

impl Slot {
    fn fits(&self, call: &ToolCall, by_args: bool) -> bool {
        let named = self.call.name == *call.name || &*call.name == UNNAMED;
        let ids_agree = self.call.call_id.is_none() || call.call_id.is_none();
        !self.taken
            && named
            && ids_agree
            && (!by_args || same_args(self.call.args.as_ref(), call.args.as_ref()))
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
            announced.json() == made.json() || lost_its_name(Some(made), Some(announced))
        }
        _ => false,
    }
}

/// No arguments at all, or the bare text of a tool with a single one, whose name only the reply
/// tells.
fn lost_its_name(made: Option<&Payload>, announced: Option<&Payload>) -> bool {
    let (made, announced) = match (made, announced) {
        (_, None) => return false,
        (None, Some(_)) => return true,
        (Some(made), Some(announced)) => (made, announced),
    };
    let Json::Object(named) = announced.json() else {
        return false;
    };
    !made.is_cut()
        && !made.json().is_object()
        && named.len() == 1
        && named
            .values()
            .all(|value| value == made.json() || value.as_str() == Some(&made.text))
}
