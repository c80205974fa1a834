//! Compares a window of runs with a baseline. There are six measures; each has the probability that
//! chance alone causes a difference as large.

use std::collections::{BTreeMap, BTreeSet};

use super::baseline::{Baseline, BaselineGroup, RunRow};
use super::{GroupKey, names};
use crate::extract::Trajectory;

/// The minimum number of random assignments of runs to baseline and window for one group. The
/// maximum is this number times the number of compared groups. With the minimum and one group, the
/// smallest p value is 0.001, and 0.006 after Holm's correction for six measures.
const N_PERMUTATIONS: usize = 999;

/// Maximum number of permutations of one group, however many groups are compared. With this number,
/// the smallest p value reaches [`MAX_P`] even after the correction for sixteen hundred groups.
const MAX_PERMUTATIONS: usize = 999_999;

/// [`N_PERMUTATIONS`] are enough for a group if at least this many permutations produce, in each
/// measure, a difference as large as the observed one (Besag and Clifford, 1991). Mainly groups
/// that drift need more.
const ENOUGH_AS_LARGE: usize = 20;

/// A measure drifted only if its corrected p value is at most this.
const MAX_P: f64 = 0.01;

/// Minimum difference of a tool's share that counts.
const MIN_TOOL_USE: f64 = 0.05;

const MAX_NAMED_VARIANTS: usize = 10;

/// A property of a group of runs that can drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The share of the runs that call a tool, for the tool whose share differs most significantly.
    ToolUse,
    /// Each tool's share of all calls.
    ToolMix,
    /// Each tool sequence's share of all runs; immediate repeats are merged.
    Variants,
    /// The share of runs in which a call failed.
    Errors,
    /// The number of calls of a run.
    Calls,
    /// The duration of a run.
    Duration,
}

/// The result of one measure for a group: the window compared with the baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The property that was compared.
    pub measure: Measure,
    /// The distance of the window from the baseline: a difference of shares (`ToolUse`, `Errors`),
    /// a Jensen-Shannon distance with base 2 (`ToolMix`, `Variants`), a difference of the means of
    /// ln(1 + x) (`Calls`, `Duration`). `None` if there were too few runs, or no durations.
    pub value: Option<f64>,
    /// The probability that chance causes a difference at least as large, after Holm's correction
    /// for all measures of all groups.
    pub p: Option<f64>,
}

/// The measurements of one group, its new and vanished tools, and its new sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDrift {
    /// The group's key.
    pub key: GroupKey,
    /// The number of runs in the baseline; 0 for a group that is not in the baseline.
    pub n_baseline: usize,
    /// The number of runs in the window.
    pub n_runs: usize,
    /// One measurement for each measure, in the order of [`Measure::ALL`].
    pub measurements: Vec<Measurement>,
    /// The tool that `ToolUse` measures, with the share of runs that call it in the baseline and in
    /// the window. `None` if there were too few runs, or no calls.
    pub tool_use: Option<(String, [f64; 2])>,
    /// Tools that only the window's runs called.
    pub new_tools: Vec<String>,
    /// Tools that only the baseline's runs called; empty if the window has no runs.
    pub vanished_tools: Vec<String>,
    /// The most frequent sequences that occur only in the window, at most ten, with their shares.
    pub new_variants: Vec<(Vec<String>, f64)>,
}

/// The drift of each group.
#[derive(Debug, Clone, PartialEq)]
pub struct DriftReport {
    /// The groups of the baseline and of the window, in the order of their keys.
    pub groups: Vec<GroupDrift>,
}

impl Measure {
    /// All measures, in the order in which they are reported.
    pub const ALL: [Self; 6] = [
        Self::ToolUse,
        Self::ToolMix,
        Self::Variants,
        Self::Errors,
        Self::Calls,
        Self::Duration,
    ];

    /// Returns the name used in outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ToolUse => "tool_use",
            Self::ToolMix => "tool_mix",
            Self::Variants => "variants",
            Self::Errors => "errors",
            Self::Calls => "calls",
            Self::Duration => "duration",
        }
    }

    /// Returns the smallest difference that counts as drift.
    fn threshold(self) -> f64 {
        match self {
            Self::Errors => 0.02,
            Self::ToolUse => MIN_TOOL_USE,
            Self::ToolMix | Self::Variants | Self::Calls | Self::Duration => 0.1,
        }
    }
}

impl Measurement {
    /// Returns true if the measure drifted; `None` if there was too little to compare.
    pub fn has_drifted(&self) -> Option<bool> {
        let (value, p) = (self.value?, self.p?);
        Some(value.abs() >= self.measure.threshold() && p <= MAX_P)
    }
}

impl DriftReport {
    /// Returns true if any measure drifted.
    pub fn has_drifted(&self) -> bool {
        self.measurements()
            .any(|measurement| measurement.has_drifted() == Some(true))
    }

    /// Returns true if no measure could be compared.
    pub fn is_empty(&self) -> bool {
        self.measurements()
            .all(|measurement| measurement.has_drifted().is_none())
    }

    fn measurements(&self) -> impl Iterator<Item = &Measurement> {
        self.groups.iter().flat_map(|group| &group.measurements)
    }
}

/// Compares groups of runs with a baseline. A group that has fewer than `min_runs` stored runs in
/// the baseline, or fewer runs in the window, has no measured values. The order of the runs does
/// not matter.
pub fn compare(
    baseline: &Baseline,
    window: &BTreeMap<GroupKey, Vec<&Trajectory>>,
    min_runs: usize,
) -> DriftReport {
    let known: BTreeMap<GroupKey, &BaselineGroup> = baseline
        .groups
        .iter()
        .map(|group| (group.key(), group))
        .collect();
    let keys: BTreeSet<&GroupKey> = known.keys().chain(window.keys()).collect();
    let is_comparable = |key: &GroupKey| {
        let enough = min_runs.max(1);
        known
            .get(key)
            .is_some_and(|group| group.runs.len() >= enough)
            && window.get(key).is_some_and(|runs| runs.len() >= enough)
    };
    let n_compared = keys.iter().filter(|key| is_comparable(key)).count();
    let n_permutations = (N_PERMUTATIONS * n_compared).min(MAX_PERMUTATIONS);
    let seed = baseline.seed();
    let mut groups: Vec<GroupDrift> = keys
        .into_iter()
        .enumerate()
        .map(|(group_idx, key)| {
            let runs = window.get(key).map(Vec::as_slice).unwrap_or_default();
            let pool = Pool::new(known.get(key).copied(), runs);
            let random = is_comparable(key).then_some(Random(seed ^ group_idx as u64));
            pool.compare(key, random, n_permutations)
        })
        .collect();
    correct(&mut groups);
    DriftReport { groups }
}

fn correct(groups: &mut [GroupDrift]) {
    let mut values: Vec<&mut f64> = groups
        .iter_mut()
        .flat_map(|group| &mut group.measurements)
        .filter_map(|measurement| measurement.p.as_mut())
        .collect();
    values.sort_by(|left, right| left.total_cmp(right));
    let n = values.len();
    let mut largest: f64 = 0.0;
    for (rank, p) in values.into_iter().enumerate() {
        largest = largest.max(*p * (n - rank) as f64).min(1.0);
        *p = largest;
    }
}

struct Pool<'a> {
    sequences: Vec<Sequence<'a>>,
    tools: Vec<&'a str>,
    n_variants: usize,
    /// The baseline's runs come first.
    runs: Vec<Features>,
    n_baseline: usize,
    /// The number of runs in the baseline before its rows were sampled.
    n_learned: usize,
}

struct Sequence<'a> {
    names: Vec<&'a str>,
    counts: Vec<(usize, usize)>,
    /// Equal for sequences that differ only in immediate repeats.
    variant: usize,
}

struct Features {
    sequence: usize,
    failed: bool,
    ln_calls: f64,
    ln_duration: Option<f64>,
}

/// The values of all measures for one assignment of runs, in the order of [`Measure::ALL`].
type Values = [Option<f64>; 6];

#[derive(Debug, Clone, Copy, Default)]
struct ToolUse {
    tool: usize,
    /// The shares in the baseline and in the window.
    shares: [f64; 2],
    /// The difference of the shares in standard deviations; 0 if the difference is below
    /// [`MIN_TOOL_USE`].
    deviations: f64,
}

impl<'a> Pool<'a> {
    fn new(baseline: Option<&'a BaselineGroup>, window: &[&'a Trajectory]) -> Self {
        let mut pool = Self {
            sequences: Vec::new(),
            tools: Vec::new(),
            n_variants: 0,
            runs: Vec::new(),
            n_baseline: 0,
            n_learned: baseline.map_or(0, |group| group.n_runs),
        };
        let mut rows: Vec<(Vec<&str>, usize, Option<u64>)> = Vec::new();
        for RunRow(sequence, errors, duration) in baseline.iter().flat_map(|group| &group.runs) {
            let names = baseline.and_then(|group| group.sequences.get(*sequence));
            let names = names.into_iter().flatten().map(String::as_str).collect();
            rows.push((names, *errors, *duration));
        }
        pool.n_baseline = rows.len();
        let of_run = |run: &&'a Trajectory| {
            let (errors, duration) = (
                super::baseline::n_failed(run),
                super::baseline::duration_ms(run),
            );
            (names(run), errors, duration)
        };
        let mut later: Vec<_> = window.iter().map(of_run).collect();
        later.sort_unstable();
        rows.extend(later);

        let (mut sequence_ids, mut tool_ids, mut variant_ids) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (names, n_failed, duration) in rows {
            let n_calls = names.len();
            let next = sequence_ids.len();
            let sequence = *sequence_ids.entry(names.clone()).or_insert(next);
            if sequence == next {
                let mut counts = BTreeMap::new();
                for name in &names {
                    let next = tool_ids.len();
                    let tool = *tool_ids.entry(*name).or_insert(next);
                    if tool == next {
                        pool.tools.push(name);
                    }
                    *counts.entry(tool).or_default() += 1;
                }
                let mut folded = names.clone();
                folded.dedup();
                let next = variant_ids.len();
                pool.sequences.push(Sequence {
                    names,
                    counts: counts.into_iter().collect(),
                    variant: *variant_ids.entry(folded).or_insert(next),
                });
            }
            pool.runs.push(Features {
                sequence,
                failed: n_failed > 0,
                ln_calls: (n_calls as f64).ln_1p(),
                ln_duration: duration.map(|ms| (ms as f64).ln_1p()),
            });
        }
        pool.n_variants = variant_ids.len();
        pool
    }

    /// Compares the runs. Without `random`, the measurements have no values.
    fn compare(&self, key: &GroupKey, random: Option<Random>, n_permutations: usize) -> GroupDrift {
        let (old, new) = self.runs.split_at(self.n_baseline);
        let tool_use = random.is_some().then(|| {
            let all: Vec<usize> = (0..self.runs.len()).collect();
            let (old, new) = all.split_at(self.n_baseline);
            self.tool_use(&self.totals(old), &self.totals(new))
        });
        let (mut values, ps) = match random {
            Some(random) => self.test(random, n_permutations),
            None => ([None; 6], [None; 6]),
        };
        if let Some(ToolUse { shares, .. }) = tool_use {
            values[0] = Some(shares[1] - shares[0]);
        }
        let tools = |runs: &[Features]| -> BTreeSet<usize> {
            runs.iter()
                .flat_map(|run| &self.sequences[run.sequence].counts)
                .map(|(tool, _)| *tool)
                .collect()
        };
        let (old_tools, new_tools) = (tools(old), tools(new));
        let named = |tools: &BTreeSet<usize>, without: &BTreeSet<usize>| -> Vec<String> {
            let mut names: Vec<String> = tools
                .difference(without)
                .map(|tool| self.tools[*tool].to_owned())
                .collect();
            names.sort_unstable();
            names
        };
        GroupDrift {
            key: key.clone(),
            n_baseline: self.n_learned,
            n_runs: new.len(),
            measurements: Measure::ALL
                .into_iter()
                .zip(values.into_iter().zip(ps))
                .map(|(measure, (value, p))| Measurement { measure, value, p })
                .collect(),
            tool_use: tool_use
                .and_then(|found| Some(((*self.tools.get(found.tool)?).to_owned(), found.shares))),
            new_tools: named(&new_tools, &old_tools),
            vanished_tools: if new.is_empty() { Vec::new() } else { named(&old_tools, &new_tools) },
            new_variants: self.new_variants(),
        }
    }

    fn new_variants(&self) -> Vec<(Vec<String>, f64)> {
        let (old, new) = self.runs.split_at(self.n_baseline);
        let variant = |run: &Features| self.sequences[run.sequence].variant;
        let known: BTreeSet<usize> = old.iter().map(variant).collect();
        let mut shares: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for run in new.iter().filter(|run| !known.contains(&variant(run))) {
            shares.entry(variant(run)).or_insert((0, run.sequence)).0 += 1;
        }
        let mut named: Vec<(Vec<String>, f64)> = shares
            .into_values()
            .map(|(count, sequence)| {
                let mut names = self.sequences[sequence].names.clone();
                names.dedup();
                let names = names.into_iter().map(str::to_owned).collect();
                (names, count as f64 / new.len() as f64)
            })
            .collect();
        named.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
        named.truncate(MAX_NAMED_VARIANTS);
        named
    }

    /// Returns the measured values, and for each value the share of assignments (random ones, and
    /// the observed one) that give a difference at least as large.
    fn test(&self, mut random: Random, n_permutations: usize) -> (Values, Values) {
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        let observed = self.measure(&order);
        let mut n_as_large = [0_usize; 6];
        let n_window = self.runs.len() - self.n_baseline;
        let mut n_tried = 0;
        let is_settled = |n_as_large: &[usize; 6]| {
            let mut measured = n_as_large.iter().zip(observed);
            measured.all(|(count, observed)| observed.is_none() || *count >= ENOUGH_AS_LARGE)
        };
        while n_tried < n_permutations && (n_tried < N_PERMUTATIONS || !is_settled(&n_as_large)) {
            n_tried += 1;
            // Choose random runs for the window, which is at the end of `order`. The order of all
            // other runs does not matter.
            for place in 0..n_window {
                let last = order.len() - 1 - place;
                order.swap(last, random.below(last + 1));
            }
            let values = self.measure(&order);
            for ((count, value), observed) in n_as_large.iter_mut().zip(values).zip(observed) {
                // Sums computed in another order differ in the last digits.
                if let (Some(value), Some(observed)) = (value, observed)
                    && value.abs() >= observed.abs() - 1e-12
                {
                    *count += 1;
                }
            }
        }
        let mut ps = [None; 6];
        for ((p, count), observed) in ps.iter_mut().zip(n_as_large).zip(observed) {
            *p = observed.map(|_| (count + 1) as f64 / (n_tried + 1) as f64);
        }
        (observed, ps)
    }

    /// Returns the measures, given that the first `n_baseline` runs of `order` are the baseline.
    /// For tool use, the measure is the significance of the difference.
    fn measure(&self, order: &[usize]) -> Values {
        let (old, new) = order.split_at(self.n_baseline);
        let (old, new) = (self.totals(old), self.totals(new));
        [
            Some(self.tool_use(&old, &new).deviations),
            distance(&old.tools, &new.tools),
            distance(&old.variants, &new.variants),
            difference(old.failed, new.failed),
            difference(old.ln_calls, new.ln_calls),
            difference(old.ln_duration, new.ln_duration),
        ]
    }

    /// Returns the tool whose share of runs differs most significantly; if no difference counts,
    /// the tool with the largest difference. Differences are measured in standard deviations: in
    /// varied runs, chance alone changes the share of a frequent tool by more than a rare tool's
    /// share can change at all.
    fn tool_use(&self, old: &Totals, new: &Totals) -> ToolUse {
        let of_tool = |tool: usize| {
            let used = [old.runs_with[tool], new.runs_with[tool]].map(|n| n as f64);
            let [n_old, n_new] = [old, new].map(|totals| totals.failed.1.max(1) as f64);
            let shares = [used[0] / n_old, used[1] / n_new];
            let difference = (shares[1] - shares[0]).abs();
            let pooled = (used[0] + used[1]) / (n_old + n_new);
            let variance = pooled * (1.0 - pooled) * (1.0 / n_old + 1.0 / n_new);
            // If no run or every run calls the tool, its share has no variance.
            let deviations = if difference >= MIN_TOOL_USE && variance > 0.0 {
                difference / variance.sqrt()
            } else {
                0.0
            };
            let found = ToolUse {
                tool,
                shares,
                deviations,
            };
            (found, difference)
        };
        let all = (0..self.tools.len()).map(of_tool);
        let clearest = all.reduce(|best, next| {
            let is_clearer = (next.0.deviations, next.1) > (best.0.deviations, best.1);
            if is_clearer { next } else { best }
        });
        clearest.map(|(found, _)| found).unwrap_or_default()
    }

    fn totals(&self, order: &[usize]) -> Totals {
        let mut totals = Totals {
            runs_with: vec![0; self.tools.len()],
            tools: vec![0; self.tools.len()],
            variants: vec![0; self.n_variants],
            failed: (0.0, 0),
            ln_calls: (0.0, 0),
            ln_duration: (0.0, 0),
        };
        let mut by_sequence = vec![0; self.sequences.len()];
        for run in order.iter().map(|run_idx| &self.runs[*run_idx]) {
            by_sequence[run.sequence] += 1;
            add(&mut totals.failed, f64::from(u8::from(run.failed)));
            add(&mut totals.ln_calls, run.ln_calls);
            if let Some(ln_duration) = run.ln_duration {
                add(&mut totals.ln_duration, ln_duration);
            }
        }
        for (sequence, n) in self.sequences.iter().zip(by_sequence) {
            totals.variants[sequence.variant] += n;
            if n > 0 {
                for (tool, count) in &sequence.counts {
                    totals.tools[*tool] += n * count;
                    totals.runs_with[*tool] += n;
                }
            }
        }
        totals
    }
}

/// Totals over some runs. A mean is stored as sum and count.
struct Totals {
    runs_with: Vec<usize>,
    tools: Vec<usize>,
    variants: Vec<usize>,
    failed: (f64, usize),
    ln_calls: (f64, usize),
    ln_duration: (f64, usize),
}

fn add(mean: &mut (f64, usize), value: f64) {
    mean.0 += value;
    mean.1 += 1;
}

/// Returns the difference of two means; `None` if one of them has no values.
fn difference(old: (f64, usize), new: (f64, usize)) -> Option<f64> {
    (old.1 > 0 && new.1 > 0).then(|| new.0 / new.1 as f64 - old.0 / old.1 as f64)
}

/// Returns the Jensen-Shannon distance of two distributions, given as counts. It is the square root
/// of the divergence with base 2, from 0 to 1. The distance between runs without calls and runs
/// with calls is 1.
fn distance(old: &[usize], new: &[usize]) -> Option<f64> {
    let (n_old, n_new) = (old.iter().sum::<usize>(), new.iter().sum::<usize>());
    if n_old == 0 || n_new == 0 {
        return Some(f64::from(u8::from(n_old != n_new)));
    }
    let divergence: f64 = old
        .iter()
        .zip(new)
        .map(|(old, new)| {
            let (p, q) = (*old as f64 / n_old as f64, *new as f64 / n_new as f64);
            let middle = (p + q) / 2.0;
            let term = |share: f64| {
                if share > 0.0 { share * (share / middle).log2() } else { 0.0 }
            };
            (term(p) + term(q)) / 2.0
        })
        .sum();
    Some(divergence.max(0.0).sqrt())
}

/// A random number generator (SplitMix64) whose numbers need not be secret.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((u128::from(bits) * n as u128) >> 64) as usize
    }
}
