//! Judges the calls of one trajectory by one rule at a time: finds the calls that the rule checks,
//! decides whether they satisfy the rule, and bounds how the rest of a cut trace could change that.

use std::rc::Rc;

use hashbrown::HashMap;

use super::activations::{Activation, Breach, MAX_LISTED, NearMiss, RuleFound, Tally};
use super::keys::ReadPaths;
use super::pairs::{Between, Direction, Pair, kept_in_some};
use super::templates::requirements;
use super::total::Total;
use crate::assemble::TurnsSeen;
use crate::evaluate::comparison::captured::Tri;
use crate::evaluate::comparison::order::{ANY_DISTANCE, Concurrency, Intervals};
use crate::evaluate::parameters::call_pattern::{CallPattern, CallReader, Calls};
use crate::evaluate::parameters::rule::{Overlap, Rule, RuleShape, TotalOf};
use crate::extract::Trajectory;

/// An upper bound of the share after a violation, however many activations are satisfied.
const NEARLY_ONE: f64 = 1.0 - 1e-9;

/// Maximum number of patterns whose matches are cached between rules.
const MAX_PATTERNS: usize = 64;

/// Maximum number of calls that are compared with a violating call, for the explanation.
const MAX_NEAR: usize = 8;

pub(crate) struct RuleJudge<'a> {
    trajectory: &'a Trajectory,
    pub(crate) reader: CallReader<'a>,
    read_paths: ReadPaths<'a>,
    /// The distinct tool names.
    names: Vec<&'a str>,
    /// For each call, the index of its name in `names`.
    name_of: Vec<u32>,
    /// For each call, whether it has ended; `Maybe` for a span without start and end.
    ended: Vec<Tri>,
    /// For each pattern, whether it matches each call.
    fits: Vec<(&'a CallPattern, Rc<[Tri]>)>,
    intervals: Intervals,
    /// The intervals with time reversed, computed on first use.
    backwards: Option<Intervals>,
}

impl<'a> RuleJudge<'a> {
    /// Creates a judge that spends at most `max_search` units of work on searching.
    pub(crate) fn new(
        trajectory: &'a Trajectory,
        concurrency: Concurrency,
        max_search: u64,
    ) -> Self {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut names = Vec::new();
        let name_of = trajectory.tool_calls.iter().map(|call| {
            *numbers.entry(&*call.name).or_insert_with(|| {
                names.push(&*call.name);
                names.len() as u32 - 1
            })
        });
        let name_of = name_of.collect();
        Self {
            trajectory,
            reader: CallReader::new(trajectory, max_search),
            read_paths: ReadPaths::default(),
            names,
            name_of,
            ended: (trajectory.tool_calls.iter())
                .map(|call| match (call.partial, call.untimed) {
                    (false, _) => Tri::Yes,
                    (true, true) => Tri::Maybe,
                    (true, false) => Tri::No,
                })
                .collect(),
            fits: Vec::new(),
            intervals: Intervals::new(trajectory, concurrency),
            backwards: None,
        }
    }

    /// Returns the rule's share and its bounds, and what was found.
    pub(crate) fn judge(&mut self, rule: &'a Rule) -> ([f64; 3], RuleFound) {
        let tally = self.activations(rule);
        let share = tally.shares();
        let mut found = RuleFound::new(tally);
        if let Some(earlier) = &self.trajectory.earlier_turns
            && found.wants_earlier(rule)
            && self.earlier_turn(rule.shape().a).is_none()
        {
            found.n_earlier_turns = earlier.n_turns;
        }
        found.nearest = self.nearest(rule, &found);
        let share = if self.trajectory.cut_short {
            let concurrency = self.intervals.concurrency();
            for_good(rule, share, &found, concurrency, || self.has_ended(rule))
        } else {
            share
        };
        (share, found)
    }

    /// Returns the call most similar to the partner that the first violation lacks: a call that
    /// differs only on `same`, or else a call that matches only the partner's name.
    fn nearest(&mut self, rule: &'a Rule, found: &RuleFound) -> Option<NearMiss> {
        let (shape, (violating, breach)) = (rule.shape(), found.first.as_ref()?);
        let is_b = breach.kinds().1?;
        let wanted = if is_b { shape.b.unwrap_or(shape.a) } else { shape.a };
        let calls = 0..self.name_of.len();
        let beside = calls.filter(|call| breach.is_beside(*violating, *call));
        if let Some(violating) = violating.filter(|_| !shape.same.is_empty()) {
            let fits = self.fits(wanted);
            let near = beside.clone().filter(|call| fits[*call] == Tri::Yes);
            for call in near.take(MAX_NEAR) {
                let pair = if is_b { [violating, call] } else { [call, violating] };
                let same = self.reader.captured.aside(|captured| {
                    let entries = 0..shape.same.len();
                    let mut differs = |at: &usize| shape.same[*at].differs(pair, captured);
                    entries.filter(|at| differs(at)).collect::<Vec<_>>()
                });
                if !same.is_empty() {
                    return Some(NearMiss::Differs { call, same });
                }
            }
        }
        let mut patterns = wanted.patterns().enumerate();
        patterns.find_map(|(at, pattern)| {
            let call = self.reader.nearest(pattern, beside.clone())?;
            Some(NearMiss::ByName { call, pattern: at })
        })
    }

    /// Returns the value of [`Missing::earlier_turn`] for calls of this kind.
    fn earlier_turn(&mut self, a: &Calls) -> Option<Option<usize>> {
        let earlier = self.trajectory.earlier_turns.as_ref()?;
        let mut names = earlier.names.iter();
        let named = names.position(|name| {
            a.patterns()
                .any(|pattern| self.reader.fits_name(pattern, name) > Tri::No)
        });
        (named.is_some() || earlier.seen != TurnsSeen::All).then_some(named)
    }

    fn activations(&mut self, rule: &'a Rule) -> Tally {
        let shape = rule.shape();
        match rule {
            Rule::Existence(_) | Rule::Absence(_) | Rule::Exactly(_) => self.count(&shape),
            Rule::Total(total) => self.total(total),
            Rule::Init(_) => self.edge(&shape, true),
            Rule::End(_) => self.edge(&shape, false),
            _ => self.pair(rule, &shape),
        }
    }

    /// For each call, returns whether it matches at least one of the patterns.
    fn fits(&mut self, calls: &'a Calls) -> Rc<[Tri]> {
        let mut patterns = calls.patterns();
        let first = patterns.next().map(|pattern| self.fits_pattern(pattern));
        let first = first.expect("a kind of calls has a pattern since it was read");
        patterns.fold(first, |fits, pattern| {
            let others = self.fits_pattern(pattern);
            fits.iter()
                .zip(&*others)
                .map(|(one, other)| *one.max(other))
                .collect()
        })
    }

    fn fits_pattern(&mut self, pattern: &'a CallPattern) -> Rc<[Tri]> {
        if let Some((_, fits)) = self.fits.iter().find(|(known, _)| *known == pattern) {
            return fits.clone();
        }
        let fits: Rc<[Tri]> = self.new_fits(pattern).into();
        if self.fits.len() == MAX_PATTERNS {
            self.fits.clear();
        }
        self.fits.push((pattern, fits.clone()));
        fits
    }

    fn new_fits(&mut self, pattern: &CallPattern) -> Vec<Tri> {
        let by_name: Vec<Tri> = (self.names.iter())
            .map(|name| self.reader.fits_name(pattern, name))
            .collect();
        (0..self.name_of.len())
            .map(|call_idx| {
                let named = by_name[self.name_of[call_idx] as usize];
                self.reader.fit_named(pattern, named, call_idx)
            })
            .collect()
    }

    /// Requires at least `min` calls `a` that have ended, and at most `max` calls `a`, ended or
    /// not.
    fn count(&mut self, shape: &RuleShape<'a>) -> Tally {
        let (fits, (min, max)) = (self.fits(shape.a), shape.bounds);
        let n_of = |least: Tri, ended: bool| {
            let counted = fits.iter().zip(&self.ended);
            let counted = counted.filter(|(fit, end)| **fit >= least && !(ended && **end < least));
            u32::try_from(counted.count()).unwrap_or(u32::MAX)
        };
        let between = |yes: bool, possible: bool| match (yes, possible) {
            (true, _) => Tri::Yes,
            (false, true) => Tri::Maybe,
            (false, false) => Tri::No,
        };
        let reached = between(n_of(Tri::Yes, true) >= min, n_of(Tri::Maybe, true) >= min);
        let not_exceeded = between(n_of(Tri::Maybe, false) <= max, n_of(Tri::Yes, false) <= max);
        let kept_so_far = n_of(Tri::Yes, true) >= min && n_of(Tri::Yes, false) <= max;
        let calls = (0..fits.len()).filter(|&call_idx| fits[call_idx] == Tri::Yes);
        let may_have_ended = |call: usize| self.ended[call] == Tri::Maybe && fits[call] > Tri::No;
        if reached == Tri::Maybe && (0..fits.len()).any(may_have_ended) {
            let untimed = self.intervals.first_untimed(may_have_ended);
            let missing = &mut self.reader.captured.missing;
            missing.untimed = missing.untimed.or(untimed);
        }
        of_run(reached.min(not_exceeded), kept_so_far, || Breach::Count {
            n_made: n_of(Tri::Yes, false) as usize,
            // If `min` is 0, calls that have not ended count as well.
            n_ended: n_of(Tri::Yes, min > 0) as usize,
            beyond: calls.skip(max as usize).take(MAX_LISTED).collect(),
        })
    }

    /// Judges the first calls (no other call is before them) or the last calls (no other call is
    /// after them).
    fn edge(&mut self, shape: &RuleShape<'a>, is_first: bool) -> Tally {
        let fits = self.fits(shape.a);
        let earlier_turn = if is_first { self.earlier_turn(shape.a) } else { None };
        let intervals = if is_first {
            &self.intervals
        } else {
            backwards(&mut self.backwards, &self.intervals)
        };
        let Some(first_end) = intervals.end.iter().min() else {
            return Tally::default();
        };
        let at_edge: Vec<usize> = (0..fits.len())
            .filter(|&call_idx| intervals.start[call_idx] <= *first_end)
            .collect();
        let is_unplaced = at_edge.iter().any(|call| intervals.is_unplaced(*call));
        let kept_at = |least: Tri| {
            let mut is_such =
                (at_edge.iter()).map(|&call_idx| fits[call_idx].min(self.ended[call_idx]) >= least);
            match (is_such.clone().all(|is| is), is_such.any(|is| is)) {
                (true, _) => Tri::Yes,
                (false, true) if is_unplaced => Tri::Maybe,
                (false, true) => kept_in_some(shape.overlap.unwrap_or(Overlap::Fail)),
                (false, false) => Tri::No,
            }
        };
        let (now, at_best) = (kept_at(Tri::Yes), kept_at(Tri::Maybe));
        let is_right = |call: usize| fits[call].min(self.ended[call]) == Tri::Yes;
        let breach = || {
            let at_fault = at_edge.iter().copied().filter(|&call| !is_right(call));
            let (unended, misfits) = at_fault.partition(|&call| fits[call] == Tri::Yes);
            Breach::Edge {
                misfits,
                unended,
                beside: at_edge.iter().copied().find(|&call| is_right(call)),
            }
        };
        let missing = &mut self.reader.captured.missing;
        if is_unplaced && now.max(at_best) == Tri::Maybe {
            missing.untimed = missing.untimed.or(self.intervals.first_untimed(|_| true));
        } else {
            missing.overlap |= now == Tri::Maybe;
        }
        let mut kept = if now == at_best { now } else { Tri::Maybe };
        if kept == Tri::No && earlier_turn.is_some() {
            kept = Tri::Maybe;
            missing.earlier_turn = missing.earlier_turn.or(earlier_turn);
        }
        of_run(kept, now == Tri::Yes, breach)
    }

    fn total(&mut self, total: &'a TotalOf) -> Tally {
        let fits = self.fits(&total.a);
        let captured = &mut self.reader.captured;
        let agreement = self
            .read_paths
            .agreement(&total.same, [&fits, &fits], true, captured);
        let is_timed = !self.trajectory.from_messages;
        if total.within.is_some() && !is_timed && fits.iter().any(|fit| *fit > Tri::No) {
            captured.missing.only_messages = true;
        }
        let judged = Total {
            rule: total,
            is_untimed: !is_timed,
            fits: &fits,
            values: &self.read_paths,
            agreement: &agreement,
            intervals: &self.intervals,
        };
        let tally = judged.tally(captured);
        let missing = &mut captured.missing;
        missing.no_value |= tally.lacks_values;
        missing.too_much |= agreement.too_many;
        let untimed = self.intervals.first_untimed(|call| fits[call] > Tri::No);
        missing.untimed = missing.untimed.or(untimed);
        tally
    }

    fn pair(&mut self, rule: &Rule, shape: &RuleShape<'a>) -> Tally {
        let a = self.fits(shape.a);
        let b = self.fits(shape.b.unwrap_or(shape.a));
        let any = |fits: &[Tri]| fits.iter().any(|fit| *fit > Tri::No);
        if !any(&a) && !any(&b) {
            return Tally::default();
        }
        let earlier_turn = match rule {
            Rule::Precedence(_)
            | Rule::AlternatePrecedence(_)
            | Rule::ChainPrecedence(_)
            | Rule::Succession(_)
            | Rule::AlternateSuccession(_) => self.earlier_turn(shape.a),
            _ => None,
        };
        // If one of the kinds has no calls, no values need to be compared.
        let same = if any(&a) && any(&b) { shape.same } else { &[] };
        let captured = &mut self.reader.captured;
        let requirements = requirements(rule);
        let own_kind = requirements
            .iter()
            .any(|requirement| requirement.between == Between::NotOwnKind);
        let agreement = self
            .read_paths
            .agreement(same, [&a, &b], own_kind, captured);
        let is_timed = !self.trajectory.from_messages;
        let near = match shape.within {
            None => Some(ANY_DISTANCE),
            Some(within) if is_timed => Some(within.nanos()),
            Some(_) => None,
        };
        if near.is_none() && any(&a) && any(&b) {
            captured.missing.only_messages = true;
        }
        let pair = Pair {
            fits: [&a, &b],
            values: &self.read_paths,
            agreement: &agreement,
            near,
            ended: &self.ended,
            ends_may_come: self.trajectory.cut_short,
            may_be_earlier: earlier_turn.is_some(),
        };
        let mut tally = Tally::default();
        for requirement in requirements {
            let intervals = match requirement.place {
                Direction::Before => backwards(&mut self.backwards, &self.intervals),
                Direction::Anywhere | Direction::After => &self.intervals,
            };
            let answers = pair.judge(requirement, intervals, captured);
            let missing = &mut captured.missing;
            missing.too_much |= answers.is_exhausted || agreement.too_many;
            if answers.wants_earlier {
                missing.earlier_turn = missing.earlier_turn.or(earlier_turn);
            }
            if answers.is_unplaced {
                let is_of = |call: usize| a[call].max(b[call]) > Tri::No;
                missing.untimed = missing.untimed.or(self.intervals.first_untimed(is_of));
            } else if shape.overlap == Some(Overlap::NotEvaluated) {
                missing.overlap |= answers.is_open;
            }
            tally.extend(answers.tally);
        }
        tally
    }

    /// Returns true if a call `b` has ended, as `responded_existence` requires. Returns true for
    /// every other rule.
    fn has_ended(&mut self, rule: &'a Rule) -> bool {
        let (Rule::RespondedExistence(_), Some(b)) = (rule, rule.shape().b) else {
            return true;
        };
        let fits = self.fits(b);
        let mut ended = fits.iter().zip(&self.ended);
        ended.any(|(fit, ended)| *fit.min(ended) == Tri::Yes)
    }
}

fn backwards<'l>(mirrored: &'l mut Option<Intervals>, intervals: &Intervals) -> &'l Intervals {
    mirrored.get_or_insert_with(|| intervals.mirrored())
}

/// Counts the single activation of a rule about the whole run.
fn of_run(kept: Tri, kept_so_far: bool, breach: impl FnOnce() -> Breach) -> Tally {
    let mut tally = Tally::default();
    let activation = Activation {
        is_certain: true,
        kept,
        kept_so_far,
        call: None,
    };
    tally.add(activation, breach);
    tally
}

/// Returns the share with bounds for the rest of a cut trace. Further calls may have any position,
/// so they can satisfy or violate most rules.
fn for_good(
    rule: &Rule,
    [share, ..]: [f64; 3],
    found: &RuleFound,
    concurrency: Concurrency,
    has_ended: impl FnOnce() -> bool,
) -> [f64; 3] {
    let shape = rule.shape();
    let is_kept = found.n_violations == 0 && found.n_open == 0;
    let stays_kept = match rule {
        Rule::Existence(_) => is_kept,
        Rule::RespondedExistence(_) | Rule::Coexistence(_) => {
            let is_plain = shape.within.is_none() && shape.same.is_empty();
            let is_both = found.n_activations > 0 || matches!(rule, Rule::RespondedExistence(_));
            is_plain && is_kept && is_both && has_ended()
        }
        _ => false,
    };
    let stays_violated = match rule {
        Rule::Exactly(_) => exceeds(found),
        Rule::Total(_) => found.n_violations > 0 && !found.may_shrink,
        _ => found.n_violations > 0,
    };
    let least = if stays_kept { 1.0 } else { 0.0 };
    let most = if stays_violated { most_after_violation(rule, concurrency) } else { 1.0 };
    [share, least, most]
}

/// Returns the highest share that a violated rule can reach with further calls. If calls of one
/// reply are concurrent, a late model span may change the groups, so no order is certain.
pub(crate) fn most_after_violation(rule: &Rule, concurrency: Concurrency) -> f64 {
    match rule {
        Rule::Absence(_) | Rule::Exactly(_) => 0.0,
        Rule::NotSuccession(_) if concurrency != Concurrency::Reply => NEARLY_ONE,
        Rule::NotCoexistence(_) | Rule::Total(_) => NEARLY_ONE,
        _ => 1.0,
    }
}

fn exceeds(found: &RuleFound) -> bool {
    matches!(&found.first, Some((None, Breach::Count { beyond, .. })) if !beyond.is_empty())
}
