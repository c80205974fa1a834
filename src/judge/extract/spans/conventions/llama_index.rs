//! LlamaIndex's agent workflows under OpenInference: no attribute names the agent and no span is
//! marked as its run, but every turn begins with a span `….setup_agent` whose input is the `repr`
//! of an event with the agent's name. The span above it is the run. If one workflow has several
//! agents, each agent has the calls that follow the start of its turn.

use otlp::span::KeyBits;
use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::convention::{Convention, Prune, RecognisedSpans, Refine, SpanIdx};
use super::super::keys;
use super::super::view::View;

/// - Agent run: the parent of a span `….setup_agent`; the agent is `current_agent_name` in that
///   span's `input.value`. Everything else is recognised as `openinference`.
pub(super) const LLAMA_INDEX: Convention = Convention {
    name: "llama_index",
    prune: Some(Prune {
        key: keys::INPUT_VALUE,
        applies_to: |span, _| begins_turn(span.name()),
        shorten: agent_field,
    }),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::INPUT_VALUE]),
        apply: name_workflow_agents,
    }),
    ..Convention::NONE
};

const AGENT_FIELD: &str = "current_agent_name='";

fn begins_turn(span_name: &str) -> bool {
    span_name.ends_with(".setup_agent")
}

/// Returns `current_agent_name='…'` from the input. The last match is the event's own field.
fn agent_field(input: &str) -> Option<&str> {
    let start = input.rfind(AGENT_FIELD)?;
    let name = &input[start + AGENT_FIELD.len()..];
    let name_len = name.find('\'').filter(|&len| len > 0)?;
    Some(&input[start..start + AGENT_FIELD.len() + name_len + 1])
}

fn agent_of_turn<'a>(span: &View<'a>) -> Option<&'a str> {
    if !begins_turn(span.name()) {
        return None;
    }
    agent_field(span.str(keys::INPUT_VALUE)?)?
        .strip_prefix(AGENT_FIELD)?
        .strip_suffix('\'')
}

/// The start of an agent's turn. Starts are ordered by time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Turn<'a> {
    start: u64,
    agent: &'a str,
}

fn name_workflow_agents(spans: &mut RecognisedSpans<'_, '_>) {
    let mut turns_of: BTreeMap<SpanIdx, Vec<Turn<'_>>> = BTreeMap::new();
    for (span_idx, span) in spans.spans.iter().enumerate() {
        if let (Some(workflow), Some(agent)) = (spans.parent[span_idx], agent_of_turn(&span.view)) {
            let start = spans.start[span_idx];
            let turns = turns_of.entry(workflow).or_default();
            turns.push(Turn { start, agent });
        }
    }
    for (&workflow, turns) in &mut turns_of {
        turns.sort_unstable();
        let agent = &mut spans.spans[workflow].agent;
        if agent.is_none() {
            *agent = turns.first().map(|turn| Cow::Borrowed(turn.agent));
        }
    }
    let mut all_turns = turns_of.values();
    if all_turns.all(|turns| turns.iter().all(|turn| turn.agent == turns[0].agent)) {
        return;
    }
    for span_idx in 0..spans.spans.len() {
        let above = std::iter::successors(spans.parent[span_idx], |&above| spans.parent[above]);
        let mut runs_above = above.filter(|&above| spans.spans[above].agent.is_some());
        let Some(turns) = runs_above.next().and_then(|run| turns_of.get(&run)) else {
            continue;
        };
        let n_begun = turns.partition_point(|turn| turn.start <= spans.start[span_idx]);
        let Some(turn) = n_begun.checked_sub(1).and_then(|latest| turns.get(latest)) else {
            continue;
        };
        spans.turn_agents.insert(span_idx, turn.agent);
        if let Some(call) = &mut spans.spans[span_idx].call {
            call.agent.get_or_insert(Cow::Borrowed(turn.agent));
        }
    }
}
