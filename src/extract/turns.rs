//! Pure. The model turns of a trace: whose they are, and which of them a call follows. The
//! outermost model spans in, steps out. Does not read what the models said.

use super::outline::{Outline, RunIdx};
use super::tree::SpanIdx;
use super::words::{Word, Words};

/// Model turns are counted by agent run and agent name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Owner {
    pub(super) run: Option<RunIdx>,
    pub(super) agent: Option<Word>,
}

impl Owner {
    /// Whose turn a span belongs to.
    pub(super) fn of(outline: &Outline<'_>, span_idx: SpanIdx, words: &mut Words) -> Self {
        Self {
            run: outline.run_above[span_idx],
            agent: outline.agent_of(span_idx).map(|name| words.number(&name)),
        }
    }
}

/// The model turns of a trace.
#[derive(Debug)]
pub(super) struct Turns {
    /// Outermost model spans and their starts: by owner, then in order.
    of_owners: Vec<(Owner, u64, SpanIdx)>,
    /// Where model spans lie: in which run, for which agent, within which call. Sorted.
    scopes: Vec<(Owner, Option<SpanIdx>)>,
}

impl Turns {
    /// Of model spans in their order.
    pub(super) fn new(outline: &Outline<'_>, models: &[SpanIdx], words: &mut Words) -> Self {
        let mut of_owners: Vec<(Owner, u64, SpanIdx)> = models
            .iter()
            .map(|&model| {
                (
                    Owner::of(outline, model, words),
                    outline.tree.start[model],
                    model,
                )
            })
            .collect();
        let mut scopes: Vec<(Owner, Option<SpanIdx>)> = of_owners
            .iter()
            .map(|&(owner, _, model)| (owner, outline.call_above[model]))
            .collect();
        of_owners.sort_by_key(|&(owner, ..)| owner);
        scopes.sort_unstable();
        scopes.dedup();
        Self { of_owners, scopes }
    }

    fn of(&self, owner: Owner) -> &[(Owner, u64, SpanIdx)] {
        let start = self.of_owners.partition_point(|&(other, ..)| other < owner);
        let len = self.of_owners[start..].partition_point(|&(other, ..)| other == owner);
        &self.of_owners[start..start + len]
    }

    /// How many models of this owner had started before: the step is one less.
    pub(super) fn started_before(&self, owner: Owner, start: u64) -> usize {
        self.of(owner)
            .partition_point(|&(_, model_start, _)| model_start < start)
    }

    /// The model span that asked for the calls of a step.
    pub(super) fn model_at(&self, owner: Owner, step: u32) -> Option<SpanIdx> {
        self.of(owner).get(step as usize).map(|&(.., model)| model)
    }

    /// Was a model asked for this owner, within this call?
    pub(super) fn any_within(&self, owner: Owner, call: Option<SpanIdx>) -> bool {
        self.scopes.binary_search(&(owner, call)).is_ok()
    }

    /// The place of each model span among those of its owner.
    pub(super) fn steps(&self) -> impl Iterator<Item = (SpanIdx, u32)> {
        let mut before: Option<(Owner, u32)> = None;
        self.of_owners.iter().map(move |&(owner, _, model)| {
            let step = before
                .filter(|&(other, _)| other == owner)
                .map_or(0, |(_, step)| step.saturating_add(1));
            before = Some((owner, step));
            (model, step)
        })
    }
}
