//! Measures a run's effort in each quantity that a limit can apply to, with bounds if evidence is
//! missing.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde_json::Value;

use crate::evaluate::comparison::agreement::Numbering;
use crate::evaluate::comparison::captured::{Known, Tri};
use crate::evaluate::comparison::order::{Concurrency, Intervals};
use crate::evaluate::comparison::score::UnknownTokens;
use crate::evaluate::parameters::call_pattern::{CallPattern, CallReader};
use crate::extract::{Trajectory, equality};

/// Maximum number of calls in a block that is searched for repetition.
const MAX_BLOCK: usize = 6;
/// Maximum number of calls that a text names.
const MAX_NAMED: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Limit {
    Calls,
    Errors,
    Retries,
    Repeats,
    Duplicates,
    Duration,
    ModelCalls,
    InputTokens,
    OutputTokens,
    Tokens,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct LimitFound {
    pub(crate) limit: Limit,
    /// The limit's value; milliseconds for the duration.
    pub(crate) most: u64,
    pub(crate) kept: Tri,
    /// The measured count, or the measured milliseconds rounded up; `None` if unknown.
    pub(crate) actual: Option<u64>,
    /// Some of the calls that exceed the limit; empty if it is not exceeded, and for limits on the
    /// duration and on models.
    pub(crate) calls: Vec<usize>,
    /// The number of calls in the repeated block; 1 for other limits, and if the limit is not
    /// exceeded.
    pub(crate) block: usize,
    /// True if `actual` is only a lower bound.
    pub(crate) at_least: bool,
    /// True if `actual` is a total that agents recorded, and no model call was seen.
    pub(crate) from_agent: bool,
}

/// Bounds of a quantity, and the calls to blame if it is too high.
struct Amount {
    least: u64,
    most: u64,
    calls: Vec<usize>,
    block: usize,
}

impl Amount {
    fn known(n: usize, calls: Vec<usize>) -> Self {
        Self {
            least: n as u64,
            most: n as u64,
            calls,
            block: 1,
        }
    }
}

impl LimitFound {
    fn new(limit: Limit, most: u64, kept: Tri, actual: Option<u64>) -> Self {
        Self {
            limit,
            most,
            kept,
            actual,
            calls: Vec::new(),
            block: 1,
            at_least: false,
            from_agent: false,
        }
    }

    pub(crate) fn prefix(&self) -> &'static str {
        if self.at_least { "at least " } else { "" }
    }
}

impl Limit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "max_calls",
            Self::Errors => "max_errors",
            Self::Retries => "max_retries",
            Self::Repeats => "max_repeats",
            Self::Duplicates => "max_duplicates",
            Self::Duration => "max_duration",
            Self::ModelCalls => "max_model_calls",
            Self::InputTokens => "max_input_tokens",
            Self::OutputTokens => "max_output_tokens",
            Self::Tokens => "max_tokens",
        }
    }

    pub(crate) fn is_on_models(self) -> bool {
        self >= Self::ModelCalls
    }

    /// Returns true if a run that has exceeded the limit can never satisfy it again.
    pub(crate) fn stays_exceeded(self) -> bool {
        matches!(self, Self::Calls | Self::Errors | Self::Duplicates) || self.is_on_models()
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Duration => " ms",
            _ => "",
        }
    }
}

/// Returns the run's known effort by limit key: calls, errors, retries, repeats.
pub(crate) fn effort(trajectory: &Trajectory) -> [(&'static str, Option<u64>); 4] {
    let mut look = EffortLook::new(&[], trajectory, 0);
    [Limit::Calls, Limit::Errors, Limit::Retries, Limit::Repeats].map(|limit| {
        let Amount { least, most, .. } = look.amount(limit, 0);
        (limit.as_str(), (least == most).then_some(most))
    })
}

/// Measures the calls of a trajectory, except the ignored calls.
pub(crate) struct EffortLook<'a> {
    trajectory: &'a Trajectory,
    pub(crate) reader: CallReader<'a>,
    /// Indices in the trajectory.
    calls: Vec<usize>,
    /// True if it is uncertain whether some calls count.
    is_unsure: bool,
}

/// A call's name and arguments, each represented by a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Made {
    name: u32,
    /// `None` if the arguments are unknown or cannot be compared, `Some(None)` if the call had
    /// none.
    args: Option<Option<u32>>,
}

impl Made {
    fn is(self, other: Self) -> Tri {
        match (self.name == other.name, self.args, other.args) {
            (false, ..) => Tri::No,
            (true, Some(args), Some(others)) => Tri::from(args == others),
            (true, ..) => Tri::Maybe,
        }
    }
}

impl<'a> EffortLook<'a> {
    /// Selects the calls that no entry of `ignore` matches. Matching spends at most `max_search`
    /// units of work.
    pub(crate) fn new(ignore: &[CallPattern], trajectory: &'a Trajectory, max_search: u64) -> Self {
        let mut reader = CallReader::new(trajectory, max_search);
        let (mut calls, mut is_unsure) = (Vec::new(), false);
        for call_idx in 0..trajectory.tool_calls.len() {
            let mut is_ignored = Tri::No;
            for pattern in ignore {
                is_ignored = is_ignored.max(reader.fit(pattern, Tri::Yes, call_idx));
                if is_ignored == Tri::Yes {
                    break;
                }
            }
            is_unsure |= is_ignored == Tri::Maybe;
            if is_ignored != Tri::Yes {
                calls.push(call_idx);
            }
        }
        Self {
            calls,
            is_unsure,
            trajectory,
            reader,
        }
    }

    /// Returns the quantity that a limit on calls applies to, and the calls to blame if it exceeds
    /// `most`.
    fn amount(&mut self, limit: Limit, most: usize) -> Amount {
        match limit {
            Limit::Errors => self.errors(most),
            Limit::Retries => self.retries(),
            Limit::Repeats => self.repeats(),
            Limit::Duplicates => self.duplicates(most),
            _ => {
                let beyond = self.calls.iter().skip(most).copied();
                Amount::known(self.calls.len(), beyond.collect())
            }
        }
    }

    pub(crate) fn judge(&mut self, limit: Limit, most: u64) -> LimitFound {
        if limit == Limit::Duration {
            self.duration(most)
        } else if limit.is_on_models() {
            self.of_models(limit, most)
        } else {
            let amount = self.amount(limit, usize::try_from(most).unwrap_or(usize::MAX));
            self.found(limit, most, amount)
        }
    }

    fn found(&self, limit: Limit, most: u64, amount: Amount) -> LimitFound {
        let kept = match (amount.most <= most, amount.least > most) {
            _ if self.is_unsure => Tri::Maybe,
            (true, _) if self.trajectory.cut_short => Tri::Maybe,
            (true, _) => Tri::Yes,
            (_, true) if self.trajectory.cut_short && !limit.stays_exceeded() => Tri::Maybe,
            (_, true) => Tri::No,
            (false, false) => Tri::Maybe,
        };
        let mut calls = match kept {
            Tri::No => amount.calls,
            Tri::Maybe | Tri::Yes => Vec::new(),
        };
        calls.truncate(MAX_NAMED.max(amount.block));
        LimitFound {
            calls,
            block: if kept == Tri::No { amount.block } else { 1 },
            ..LimitFound::new(limit, most, kept, (!self.is_unsure).then_some(amount.least))
        }
    }

    fn failed(&mut self) -> Vec<Tri> {
        let failed = |call_idx: &usize| self.reader.captured.error(*call_idx);
        self.calls.iter().map(failed).collect()
    }

    fn errors(&mut self, most: usize) -> Amount {
        let failed = self.failed();
        let n_of = |least: Tri| failed.iter().filter(|failed| **failed >= least).count();
        let certain = (self.calls.iter().zip(&failed))
            .filter(|(_, failed)| **failed == Tri::Yes)
            .map(|(call_idx, _)| *call_idx);
        Amount {
            most: n_of(Tri::Maybe) as u64,
            ..Amount::known(n_of(Tri::Yes), certain.skip(most).collect())
        }
    }

    /// Returns the length of the longest chain of retries, and its calls.
    fn retries(&mut self) -> Amount {
        let failed = self.failed();
        let intervals = Intervals::new(self.trajectory, Concurrency::Interval).only(&self.calls);
        let mut groups: BTreeMap<(&str, Option<usize>), Vec<usize>> = BTreeMap::new();
        for (at, call_idx) in self.calls.iter().enumerate() {
            let call = &self.trajectory.tool_calls[*call_idx];
            groups
                .entry((&*call.name, call.agent_run))
                .or_default()
                .push(at);
        }
        // For each counted call, the call of the same name and run that ended last before its
        // start, and the length of the chain that ends with the counted call.
        let mut previous: Vec<Option<usize>> = vec![None; self.calls.len()];
        let mut longest = [(0_u64, None); 2];
        let mut chains = [vec![0_u64; self.calls.len()], vec![0; self.calls.len()]];
        for places in groups.values_mut() {
            if let Some(untimed) = places.iter().find(|at| intervals.is_unplaced(**at)) {
                let missing = &mut self.reader.captured.missing;
                missing.untimed.get_or_insert(self.calls[*untimed]);
                // Each call of the group may be a retry of any failed call in the group.
                let failed = places
                    .iter()
                    .filter(|at| failed[**at] >= Tri::Maybe)
                    .count();
                let most = failed.min(places.len() - 1) as u64;
                longest[1].0 = longest[1].0.max(most);
                continue;
            }
            let mut by_end = places.clone();
            by_end.sort_by_key(|at| intervals.end[*at]);
            places.sort_by_key(|at| intervals.start[*at]);
            for &at in places.iter() {
                let n_before =
                    by_end.partition_point(|before| intervals.end[*before] < intervals.start[at]);
                let Some(before) = n_before.checked_sub(1).map(|last| by_end[last]) else {
                    continue;
                };
                previous[at] = Some(before);
                for (level, least) in [Tri::Yes, Tri::Maybe].into_iter().enumerate() {
                    if failed[before] >= least {
                        chains[level][at] = chains[level][before] + 1;
                        if chains[level][at] > longest[level].0 {
                            longest[level] = (chains[level][at], Some(at));
                        }
                    }
                }
            }
        }
        let (least, mut at) = longest[0];
        let mut calls = Vec::new();
        for _ in 0..=least {
            let Some(place) = at else { break };
            calls.push(self.calls[place]);
            at = previous[place];
        }
        calls.reverse();
        Amount {
            least,
            most: longest[1].0,
            calls,
            block: 1,
        }
    }

    fn made(&mut self) -> Vec<Made> {
        let mut names: HashMap<&str, u32> = HashMap::new();
        let mut numbering = Numbering::default();
        let mut made = Vec::with_capacity(self.calls.len());
        for call_idx in &self.calls {
            let next = names.len() as u32;
            let name = *names
                .entry(&*self.trajectory.tool_calls[*call_idx].name)
                .or_insert(next);
            let args = match self.reader.captured.args(*call_idx) {
                // An empty map counts as absent arguments.
                Known::Value(Value::Object(args)) if args.is_empty() => Some(None),
                Known::Value(value) if equality::is_comparable(value) => {
                    Some(Some(numbering.of_value(value)))
                }
                Known::Value(_) => {
                    self.reader
                        .captured
                        .missing
                        .incomparable
                        .get_or_insert(*call_idx);
                    None
                }
                Known::None => Some(None),
                Known::Unknown => None,
            };
            made.push(Made { name, args });
        }
        made
    }

    /// Returns the highest number of immediate repetitions of a block, and the repeated calls.
    fn repeats(&mut self) -> Amount {
        let made = self.made();
        let is_untimed = |call: &&usize| self.trajectory.tool_calls[**call].untimed;
        if let Some(untimed) = self.calls.iter().find(is_untimed).copied() {
            // A call without a time may begin, prolong or interrupt a series of repetitions.
            self.reader.captured.missing.untimed.get_or_insert(untimed);
            let mut by_name: HashMap<u32, u64> = HashMap::new();
            for of_call in &made {
                *by_name.entry(of_call.name).or_default() += 1;
            }
            return Amount {
                most: by_name.values().max().map_or(0, |n| n - 1),
                ..Amount::known(0, Vec::new())
            };
        }
        let (mut least, mut most) = ((0, 0, 1), 0);
        for block in 1..=MAX_BLOCK {
            let (mut certain, mut possible) = (0, 0);
            for at in block..made.len() {
                let is_again = made[at].is(made[at - block]);
                certain = if is_again == Tri::Yes { certain + 1 } else { 0 };
                possible = if is_again == Tri::No { 0 } else { possible + 1 };
                if certain / block > least.0 {
                    least = (certain / block, at, block);
                }
                most = most.max(possible / block);
            }
        }
        let (n, last, block) = least;
        let first = (last + 1).saturating_sub(block * (n + 1));
        let calls: Vec<usize> = match (n, block) {
            (0, _) => Vec::new(),
            // Report only the last call of the series.
            (_, 1) => self.calls[first..=last]
                .iter()
                .rev()
                .take(1)
                .copied()
                .collect(),
            _ => self.calls[first..first + block].to_vec(),
        };
        Amount {
            least: n as u64,
            most: most as u64,
            calls,
            block,
        }
    }

    /// Returns the number of calls with the name and the arguments of an earlier call.
    fn duplicates(&mut self, most: usize) -> Amount {
        let made = self.made();
        let mut seen: HashMap<Made, usize> = HashMap::new();
        // The number of distinct known argument values of each name.
        let mut distinct: HashMap<u32, usize> = HashMap::new();
        let mut again = Vec::new();
        for (of_call, call_idx) in made.iter().zip(&self.calls) {
            let n_distinct = distinct.entry(of_call.name).or_default();
            if of_call.args.is_none() {
                continue;
            }
            match seen.insert(*of_call, *call_idx) {
                Some(_) => again.push(*call_idx),
                None => *n_distinct += 1,
            }
        }
        let n_needed: usize = distinct.values().map(|n| (*n).max(1)).sum();
        Amount {
            most: (made.len() - n_needed) as u64,
            ..Amount::known(again.len(), again.iter().skip(most).copied().collect())
        }
    }

    fn duration(&mut self, most: u64) -> LimitFound {
        let calls = &self.trajectory.tool_calls;
        let untimed = calls.iter().any(|call| call.untimed);
        let (start, end) = match &self.trajectory.subject {
            Some(subject) => (subject.start_unix_nanos, subject.end_unix_nanos),
            None => {
                let starts = calls.iter().map(|call| call.start_unix_nanos);
                let ends = calls.iter().map(|call| call.end_unix_nanos);
                (starts.min().unwrap_or(0), ends.max().unwrap_or(0))
            }
        };
        // Calls read from log records have no enclosing span.
        let is_known = if self.trajectory.subject.is_some() {
            start != 0 && end >= start
        } else {
            !untimed && (end != 0 || calls.is_empty())
        };
        self.reader.captured.missing.no_duration |= !is_known;
        let is_certain = !self.trajectory.cut_short
            || (self.trajectory.subject.is_some() && !self.trajectory.uncertainty.subject);
        let nanos = end.saturating_sub(start);
        let is_kept = nanos <= most.saturating_mul(1_000_000);
        let kept = if is_known && is_certain { Tri::from(is_kept) } else { Tri::Maybe };
        let millis = nanos.div_ceil(1_000_000);
        LimitFound::new(Limit::Duration, most, kept, is_known.then_some(millis))
    }

    fn of_models(&mut self, limit: Limit, most: u64) -> LimitFound {
        let used = &self.trajectory.model_use;
        let tokens = match limit {
            Limit::InputTokens => Some(used.input),
            Limit::OutputTokens => Some(used.output),
            Limit::Tokens => Some(used.total),
            _ => None,
        };
        let (least, greatest) = match tokens {
            Some(tokens) => (tokens.least, tokens.most),
            None => (used.n_certain, used.n_calls),
        };
        let is_known = match tokens {
            Some(_) => used.from_agent,
            None => used.others_have_models,
        };
        let is_seen = used.n_calls > 0 || is_known;
        let cut_short = self.trajectory.cut_short;
        let kept = if is_seen && least > most {
            Tri::No
        } else if is_seen && greatest <= most && !cut_short {
            Tri::Yes
        } else {
            Tri::Maybe
        };
        if kept == Tri::Maybe {
            let n_without = tokens.map_or(0, |tokens| tokens.n_without);
            let missing = &mut self.reader.captured.missing;
            missing.unknown_tokens = missing.unknown_tokens.or(if !is_seen {
                Some(UnknownTokens::NoModel)
            } else if n_without > 0 && !used.is_usage_stored {
                Some(UnknownTokens::NotStored)
            } else if n_without > 0 {
                let has_neither = [used.input, used.output].map(|side| side.n_without)
                    == [used.total.n_without; 2];
                Some(UnknownTokens::Unrecorded {
                    n_calls: u32::try_from(n_without).unwrap_or(u32::MAX),
                    what: match limit {
                        _ if has_neither => "recorded no usage",
                        Limit::InputTokens => "recorded no input tokens",
                        Limit::OutputTokens => "recorded no output tokens",
                        _ => "did not record both input and output tokens",
                    },
                })
            } else {
                // In a trace that was cut short, the missing spans are the reason, not the totals.
                (greatest > most && !cut_short).then_some(UnknownTokens::Totals)
            });
        }
        LimitFound {
            at_least: is_seen && (cut_short || least != greatest),
            from_agent: used.from_agent && tokens.is_some(),
            ..LimitFound::new(limit, most, kept, is_seen.then_some(least))
        }
    }
}
