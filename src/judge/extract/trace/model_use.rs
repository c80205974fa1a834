//! Counts the model calls of a trace and their tokens. Each token counts once, at the model call
//! that used it. The total that an agent recorded counts only if its run made no model call itself;
//! if other runs have model calls, it only raises the upper bound of the trace.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::span_roles::SpanRoles;
use super::uncertainty::Gates;
use crate::extract::model_use::ModelUse;
use crate::extract::spans::usage::{Usage, UsageReport};
use crate::extract::spans::{Recogniser, SpanIdx, keys};

/// The model calls of a trace, and the model calls that each agent run made itself.
pub(crate) struct ModelUses {
    pub(crate) of_trace: ModelUse,
    pub(crate) of_runs: Vec<ModelUse>,
}

impl ModelUses {
    /// Counts the model calls. `gates` is given for a trace that was cut short, and shows which
    /// model spans may be within another model span.
    pub(crate) fn new(
        roles: &SpanRoles<'_>,
        recogniser: &Recogniser,
        evaluated: SpanIdx,
        gates: Option<&Gates<'_>>,
    ) -> Self {
        let unseen = ModelUse {
            is_usage_stored: recogniser.reads_usage,
            ..ModelUse::default()
        };
        let mut uses = Self {
            of_trace: unseen,
            of_runs: vec![unseen; roles.runs.len()],
        };
        let has_model = runs_that_hold_models(roles);
        let has_usage = roles.present.intersects(keys::USAGE);
        let beside = calls_beside(roles);
        let mut of_inner = None;
        for (call, role) in roles.roles.iter().enumerate() {
            // A model span that is also an agent run records the total of the models within it.
            let is_total = |run: usize| roles.runs[run].span == call && has_model[run];
            let is_other = beside.is_certain.get(&call).copied();
            let is_counted = role.model_of == Some(call) || is_other.is_some();
            if !is_counted || role.own_run.is_some_and(is_total) {
                continue;
            }
            let mut usage_of = |call: SpanIdx| {
                let own = Usage::of(&roles.recognised[call].view);
                let usage = Usage::or_within(own, || {
                    let of_inner = has_usage
                        .then(|| of_inner.get_or_insert_with(|| of_inner_models(roles, &beside)));
                    of_inner?.get(&call).copied()
                });
                usage.unwrap_or(Usage::UNRECORDED)
            };
            let usage = usage_of(call);
            let mut least = usage.tokens;
            for other in beside.doubtful_of.get(&call).into_iter().flatten() {
                least = usage_of(*other).least_of_one_call(least);
            }
            let is_own = gates.is_some_and(|gates| gates.of_span[call].is_none());
            let span = &roles.spans[call];
            let has_ended = span.end_unix_nanos != 0 && !span.class.partial;
            // A span that has not ended may turn out to report another span's call.
            let is_whole = gates.is_none() || (is_own && has_ended);
            let is_certain = is_whole && is_other != Some(false);
            if !is_certain {
                least = [0; 3];
            }
            let of_run = role.own_run.or(role.run_above);
            let of_run = of_run.map(|run| &mut uses.of_runs[run]);
            for counted in [Some(&mut uses.of_trace), of_run].into_iter().flatten() {
                counted.n_calls += 1;
                counted.n_certain += u64::from(is_certain);
                add(counted, usage, least);
                for (tokens, is_whole) in counted.sums().zip(usage.is_whole) {
                    tokens.n_without += u64::from(!is_whole);
                }
            }
        }
        if has_usage {
            uses.add_totals(roles, evaluated, &has_model, gates.is_some());
        }
        uses
    }

    /// Adds the totals of agent runs: to a run that made no model call itself and, unless the run
    /// contains model calls of other runs, to the trace. In a trace that was cut short, no total is
    /// certain, because more model calls may arrive.
    fn add_totals(
        &mut self,
        roles: &SpanRoles<'_>,
        evaluated: SpanIdx,
        has_model: &[bool],
        cut_short: bool,
    ) {
        let has_models = self.of_trace.n_calls > 0;
        if roles.runs.is_empty() && !has_models {
            let total = Usage::of(&roles.recognised[evaluated].view);
            add_total(&mut self.of_trace, total, !cut_short);
        }
        let totals = totals_of_runs(roles);
        let mut has_run = vec![false; totals.len()];
        let mut is_covered = vec![false; totals.len()];
        for &span_idx in &roles.tree.parents_first {
            if let Some(run) = roles.roles[span_idx].own_run
                && let Some(parent) = roles.runs[run].parent
            {
                has_run[parent] = true;
                let is_total = totals[parent].is_some() && !has_model[parent];
                is_covered[run] = is_covered[parent] || is_total;
            }
        }
        for (run, total) in totals.iter().copied().enumerate() {
            if self.of_runs[run].n_calls == 0 {
                // The total of a run that contains other runs may or may not include the tokens of
                // those runs.
                let is_alone = !has_run[run] && !has_model[run];
                add_total(&mut self.of_runs[run], total, is_alone && !cut_short);
            }
            if is_covered[run] || has_model[run] {
                continue;
            }
            let is_topmost = roles.runs[run].parent.is_none();
            match total {
                // The model calls that were seen may belong to this run.
                Some(total) if has_models => add(&mut self.of_trace, total, [0; 3]),
                Some(_) => add_total(&mut self.of_trace, total, !cut_short),
                None if is_topmost && !has_models => {
                    add(&mut self.of_trace, Usage::UNRECORDED, [0; 3]);
                }
                None => {}
            }
        }
    }
}

/// Adds the usage of a call, of which at least `least` tokens are certain.
fn add(model_use: &mut ModelUse, usage: Usage, least: [u64; 3]) {
    let parts = usage.tokens.into_iter().zip(usage.is_whole).zip(least);
    for (tokens, ((n, is_whole), least)) in model_use.sums().zip(parts) {
        let most = if is_whole { n } else { u64::MAX };
        tokens.least = tokens.least.saturating_add(least);
        tokens.most = tokens.most.saturating_add(most);
    }
}

fn add_total(model_use: &mut ModelUse, total: Option<Usage>, is_certain: bool) {
    if let Some(total) = total {
        model_use.from_agent = true;
        let least = if is_certain { total.tokens } else { [0; 3] };
        add(model_use, total, least);
    }
}

/// Returns true for each run that contains a model span other than its own.
fn runs_that_hold_models(roles: &SpanRoles<'_>) -> Vec<bool> {
    let mut has_model = vec![false; roles.runs.len()];
    for (span, role) in roles.recognised.iter().zip(&roles.roles) {
        let mut run = role.run_above.filter(|_| span.is_model);
        while let Some(holder) = run.filter(|run| !has_model[*run]) {
            has_model[holder] = true;
            run = roles.runs[holder].parent;
        }
    }
    has_model
}

/// Returns the total that each agent run recorded, from its outermost span with a total.
fn totals_of_runs(roles: &SpanRoles<'_>) -> Vec<Option<Usage>> {
    let mut totals = vec![None; roles.runs.len()];
    for &span_idx in &roles.tree.parents_first {
        let span = &roles.recognised[span_idx];
        if let Some(run) = roles.roles[span_idx].own_run.filter(|_| !span.is_model) {
            totals[run] = totals[run].or_else(|| Usage::of(&span.view));
        }
    }
    totals
}

/// Model spans that look like further reports of a sibling's model call, but whose usage shows, or
/// may show, that they report separate calls.
#[derive(Default)]
struct CallsBeside {
    /// True if the span certainly reports a separate call, false if it may.
    is_certain: HashMap<SpanIdx, bool>,
    /// For each call, the spans that may be other reports of it.
    doubtful_of: HashMap<SpanIdx, Vec<SpanIdx>>,
}

fn calls_beside(roles: &SpanRoles<'_>) -> CallsBeside {
    let mut beside = CallsBeside::default();
    let mut calls: HashMap<SpanIdx, Vec<(SpanIdx, UsageReport<'_>)>> = HashMap::new();
    let report = |span_idx: SpanIdx| UsageReport::of(&roles.recognised[span_idx].view);
    for &span_idx in &roles.tree.parents_first {
        let role = &roles.roles[span_idx];
        let Some(twin) = role.twin_of.filter(|twin| role.model_of == Some(*twin)) else {
            continue;
        };
        let (calls, own) = (
            calls
                .entry(twin)
                .or_insert_with(|| vec![(twin, report(twin))]),
            report(span_idx),
        );
        let mut may_be = Vec::new();
        let of_one = calls.iter_mut().find(|(call, reported)| {
            let is_of_one_call = reported.is_of_one_call(&own);
            may_be.extend(is_of_one_call.is_none().then_some(*call));
            is_of_one_call == Some(true)
        });
        match of_one {
            Some((_, reported)) => reported.complete(own),
            None => {
                calls.push((span_idx, own));
                beside.is_certain.insert(span_idx, may_be.is_empty());
                for call in may_be {
                    beside.doubtful_of.entry(call).or_default().push(span_idx);
                }
            }
        }
    }
    beside
}

/// Returns the usage of each counted model span: its own, else that of its inner spans, else that
/// of its twins.
fn of_inner_models(roles: &SpanRoles<'_>, beside: &CallsBeside) -> HashMap<SpanIdx, Usage> {
    let mut below: HashMap<SpanIdx, Usage> = HashMap::new();
    let mut twins: HashMap<SpanIdx, Usage> = HashMap::new();
    for &span_idx in roles.tree.parents_first.iter().rev() {
        let role = &roles.roles[span_idx];
        let Some(outermost) = role.model_of else {
            continue;
        };
        let mut usage = below.remove(&span_idx);
        let span = &roles.recognised[span_idx];
        if span.is_model {
            let own = Usage::or_within(Usage::of(&span.view), || usage);
            let own = Usage::or_within(own, || twins.remove(&span_idx));
            usage = own.or(Some(Usage::UNRECORDED));
        }
        let Some(usage) = usage else { continue };
        let (sums, at) = match (role.twin_of, roles.tree.parent[span_idx]) {
            _ if span_idx == outermost || beside.is_certain.contains_key(&span_idx) => {
                (&mut below, span_idx)
            }
            (Some(twin), _) => {
                let of_twin = twins.entry(twin).or_insert(usage);
                if *of_twin == Usage::UNRECORDED {
                    *of_twin = usage;
                }
                continue;
            }
            (None, Some(parent)) => (&mut below, parent),
            (None, None) => continue,
        };
        match sums.entry(at) {
            Entry::Occupied(mut sum) => *sum.get_mut() = sum.get().and(usage),
            Entry::Vacant(place) => drop(place.insert(usage)),
        }
    }
    below
}
