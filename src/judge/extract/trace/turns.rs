//! The model turns of a trace: the agent of each turn, and the turn that each call follows. Does
//! not read the models' messages.

use super::interner::{Interner, Symbol};
use super::span_roles::{RunIdx, SpanRoles};
use crate::extract::spans::SpanIdx;

/// The owner of a turn or call. Turns are counted separately for each agent run and agent name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) run: Option<RunIdx>,
    pub(crate) agent: Option<Symbol>,
}

impl Owner {
    pub(crate) fn of(roles: &SpanRoles<'_>, span_idx: SpanIdx, interner: &mut Interner) -> Self {
        Self {
            run: roles.roles[span_idx].run_above,
            agent: roles.agent_of(span_idx).map(|name| interner.symbol(&name)),
        }
    }
}

/// A model turn, represented by its outermost model span.
#[derive(Debug)]
struct Turn {
    owner: Owner,
    start: u64,
    model: SpanIdx,
}

/// The agent run, the agent and the enclosing call in which a model span or tool call was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TurnScope {
    pub(crate) owner: Owner,
    pub(crate) call: Option<SpanIdx>,
}

#[derive(Debug)]
pub(crate) struct Turns {
    /// Sorted by owner, then by start.
    turns: Vec<Turn>,
    /// Sorted, without duplicates.
    scopes: Vec<TurnScope>,
}

impl Turns {
    /// Creates the turns of model spans, which must be in order.
    pub(crate) fn new(roles: &SpanRoles<'_>, models: &[SpanIdx], interner: &mut Interner) -> Self {
        let turn = |&model: &SpanIdx| Turn {
            owner: Owner::of(roles, model, interner),
            start: roles.tree.start[model],
            model,
        };
        let mut turns: Vec<Turn> = models.iter().map(turn).collect();
        let scope = |turn: &Turn| TurnScope {
            owner: turn.owner,
            call: roles.roles[turn.model].call_above,
        };
        let mut scopes: Vec<TurnScope> = turns.iter().map(scope).collect();
        turns.sort_by_key(|turn| turn.owner);
        scopes.sort_unstable();
        scopes.dedup();
        Self { turns, scopes }
    }

    fn of(&self, owner: Owner) -> &[Turn] {
        // Fast path: most traces have a single owner.
        let mut ends = self.turns.first().into_iter().chain(self.turns.last());
        if ends.all(|turn| turn.owner == owner) {
            return &self.turns;
        }
        let start = self.turns.partition_point(|turn| turn.owner < owner);
        let len = self.turns[start..].partition_point(|turn| turn.owner == owner);
        &self.turns[start..start + len]
    }

    /// Returns the number of the owner's turns that had started before a time. A call's step is one
    /// less, but at least 0.
    pub(crate) fn started_before(&self, owner: Owner, time: u64) -> usize {
        self.of(owner).partition_point(|turn| turn.start < time)
    }

    /// Returns the model span that requested the calls of a step.
    pub(crate) fn model_at(&self, owner: Owner, step: u32) -> Option<SpanIdx> {
        self.of(owner).get(step as usize).map(|turn| turn.model)
    }

    pub(crate) fn any_within(&self, scope: &TurnScope) -> bool {
        self.scopes.binary_search(scope).is_ok()
    }

    /// Returns each model span with its position among the turns of its owner.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (SpanIdx, u32)> {
        let mut before: Option<(Owner, u32)> = None;
        self.turns.iter().map(move |turn| {
            let step = before
                .filter(|&(owner, _)| owner == turn.owner)
                .map_or(0, |(_, step)| step.saturating_add(1));
            before = Some((turn.owner, step));
            (turn.model, step)
        })
    }
}
