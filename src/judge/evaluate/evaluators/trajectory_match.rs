//! The evaluator `trajectory_match`: how well do the calls match a reference, by one of a
//! family of scores?

use hashbrown::HashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Evaluate, ToolName};
use crate::evaluate::comparison::arguments::{self, Agreement};
use crate::evaluate::comparison::best_order::{Fits, Pairs};
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::lcs::UNEXPECTED;
use crate::evaluate::comparison::matched::{Matched, alignment, words};
use crate::evaluate::comparison::order::{Concurrency, Intervals};
use crate::evaluate::comparison::rows::{AlignmentRow, RowKind};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score, all_or_nothing};
use crate::evaluate::parameters::expected_call::ExpectedCall;
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::match_score::{MatchScore, Mode, Preset};
use crate::evaluate::parameters::optional::written;
use crate::evaluate::parameters::pattern::FieldError;
use crate::extract::Trajectory;

/// How well do the calls match a reference, by a score of your choice?
///
/// # What it checks
/// Pairs expected calls one to one with calls that were made: as many as possible, in order or in
/// any order. The score is computed from M (pairs), n (expected calls) and m (calls made). If calls
/// overlap in time, the best order that their times allow is used. If dozens of calls overlap and
/// the search for that order takes too long, there is a verdict only if no other order could change
/// it.
///
/// # Why
/// A good run, or an entry of an evaluation set, can serve as a reference. Each framework scores
/// the match differently. Here the scores have common names, and a preset reproduces a framework's
/// numbers.
///
/// # Example
/// ```yaml
/// evaluate:
///   trajectory_match:
///     expected: [search, { name: book, args: { from: TXL } }, confirm]
///     score: f1
/// ```
/// Calls `search, book, look` with `from: TXL` score 2/3: two pairs among three expected calls and
/// three calls made.
///
/// # Parameters
/// - `expected`: the calls, each a name or a map with `name` and `args`. Names must be equal. A
///   call must have every argument under `args`, with a value equal as JSON; without `args`, or
///   with `args: null`, any arguments match. The other fields that ADK writes for a call are
///   accepted if they are `null`. An empty list loads with a warning; `azure_…` presets reject it.
/// - `score` or `preset`: set exactly one.
///
/// | `score` | pairs | value |
/// |---|---|---|
/// | `exact` | in order | 1 if M = n = m |
/// | `in_order` | in order | 1 if M = n |
/// | `any_order` | any order | 1 if M = n = m |
/// | `subset` | any order | 1 if M = m: only expected calls |
/// | `superset` | any order | 1 if M = n: all expected calls |
/// | `precision`, `recall`, `f1` | by `ordered` | M/m, M/n, 2M/(n + m) |
/// | `lcs_ratio` | in order | M/n |
/// | `edit` | in order of start | (max(n, m) − changes)/max(n, m) |
///
/// - *changes*: the fewest calls to insert, delete or replace to make both lists equal.
/// - `ordered` (false): `precision`, `recall` and `f1` count pairs in order.
/// - `exact_args` (false): further arguments are forbidden.
/// - `include_failed` (true): `false` excludes failed calls.
/// - `concurrency` (`interval`): as in `constraints`; `edit` always uses `none`.
/// - `preset`: sets everything except `expected` and `threshold`. Calls are in the order of their
///   starts, but `agentevals_strict` accepts the calls of one model reply in any order.
///
/// | `preset` | `score` | other settings |
/// |---|---|---|
/// | `uipath`, `deepeval_ordering` | `lcs_ratio` | |
/// | `uipath_strict`, `deepeval_exact`, `azure_exact` | `exact` | |
/// | `azure_in_order` | `in_order` | |
/// | `azure_any_order` | `superset` | |
/// | `azure_precision` | `precision` | |
/// | `azure_recall` | `recall` | |
/// | `azure_f1` | `f1` | |
/// | `pydantic_exact` | `exact` | `include_failed: false` |
/// | `pydantic_in_order` | `f1` | `include_failed: false`, `ordered: true` |
/// | `pydantic_any_order` | `f1` | `include_failed: false` |
/// | `adk_exact`, `agentevals_strict` | `exact` | `exact_args: true` |
/// | `adk_in_order` | `in_order` | `exact_args: true` |
/// | `adk_any_order`, `agentevals_superset` | `superset` | `exact_args: true` |
/// | `agentevals_unordered` | `any_order` | `exact_args: true` |
/// | `agentevals_subset` | `subset` | `exact_args: true` |
///
/// The graded scores (`precision`, `recall`, `f1`, `lcs_ratio`, `edit`) are 1 if both lists are
/// empty, and 0 if only one is.
///
/// Details: `score`, `expected` (n), `actual` (m), `matched` (M, not for `edit`), and `alignment`:
/// entries with `kind`, `expected` and `call` (counted from 1) that show how M was reached. Kinds
/// are `match`, `missing`, `extra`, `moved` (a pair out of order) and `substituted`. If there are
/// too many possible orders to search, the calls are compared in the order of their starts, and the
/// details contain `concurrency: none`. For scores that depend on order, it is unknown whether a
/// call without a valid start and end belongs to a pair.
///
/// # When the trace was cut short
/// `in_order` and `superset` can only grow, and so can `recall` and `lcs_ratio` unless `expected`
/// is empty. `exact`, `any_order` and `subset` fail once a call has no pair. `precision`, `f1` and
/// `edit` fail once so many calls have no pair that the score cannot reach the threshold.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TrajectoryMatch {
    /// The expected calls, in order.
    pub expected: Vec<ExpectedCall>,
    /// The score; set either `score` or `preset`.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MatchScore")]
    pub score: Option<MatchScore>,
    /// The name of another tool's score; it sets all other fields except `expected`.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Preset")]
    pub preset: Option<Preset>,
    /// `precision`, `recall` and `f1` count pairs in order.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub ordered: Option<bool>,
    /// Further arguments are forbidden.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub exact_args: Option<bool>,
    /// True if failed calls also count.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub include_failed: Option<bool>,
    /// The calls that count as overlapping.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Concurrency")]
    pub concurrency: Option<Concurrency>,
}

read_with_hints!(TrajectoryMatch);

/// The calls that count, and for each expected call the calls that match it.
struct Counted {
    /// Indices in the trajectory.
    calls: Vec<usize>,
    fits: Vec<Vec<Tri>>,
    /// True if it is uncertain whether some calls count.
    is_open: bool,
    /// True for each call whose position matters but is unknown.
    is_unplaced: Vec<bool>,
}

#[derive(Default)]
struct Paired {
    pairs: Pairs,
    substituted: Pairs,
    /// True if the search for the best order exceeded its limits.
    fell_back: bool,
}

impl Paired {
    fn value_count(&self, score: MatchScore, n: usize, m: usize) -> usize {
        match score {
            // A change is a substituted pair, or a call without a pair.
            MatchScore::Edit => {
                let n_paired = self.pairs.len() + self.substituted.len();
                let n_changes = self.substituted.len() + (n - n_paired) + (m - n_paired);
                n.max(m) - n_changes
            }
            _ => self.pairs.len(),
        }
    }
}

impl Evaluate for TrajectoryMatch {
    const NAME: &'static str = "trajectory_match";

    type Evidence = Matched;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, Matched) {
        let mode = self.mode();
        let mut captured = CapturedValues::new(trajectory);
        let all_intervals = Intervals::new(trajectory, mode.concurrency);
        let counted = self.counted(mode, &mut captured, &all_intervals);
        let intervals = all_intervals.only(&counted.calls);
        let (n, m) = (self.expected.len(), counted.calls.len());
        let has_unplaced = counted.is_unplaced.contains(&true);
        let is_doubtful =
            has_unplaced || counted.fits.iter().flatten().any(|fit| *fit == Tri::Maybe);
        let now = self.paired(mode, &counted, Tri::Yes, &intervals);
        let at_best = if is_doubtful {
            self.paired(mode, &counted, Tri::Maybe, &intervals)
        } else {
            None
        };
        let mut missing = captured.missing;
        if has_unplaced {
            missing.untimed =
                all_intervals.first_untimed(|call| counted.calls.binary_search(&call).is_ok());
        }
        let Some(now) = now else {
            missing.too_much = true;
            let score = Score::between(0.0, 0.0, 1.0);
            return (Score { missing, ..score }, Matched::default());
        };
        let best = at_best.as_ref().unwrap_or(&now);
        // After a fallback, `now` has the pairs in the order of starts. Another order that the
        // times allow may have more pairs.
        let fell_back = now.fell_back || best.fell_back;
        missing.too_much |= fell_back;
        let value = mode.score.value(now.value_count(mode.score, n, m), n, m);
        // The position of a call in the list affects the number of changes.
        let is_open = counted.is_open || (has_unplaced && mode.score == MatchScore::Edit);
        let (least, most) = match (trajectory.cut_short, is_open) {
            (false, false) => {
                let most_paired = if fell_back {
                    self.fits(&counted, Tri::Maybe).in_any_order().len()
                } else {
                    best.value_count(mode.score, n, m)
                };
                let most = mode.score.value(most_paired, n, m);
                (
                    value,
                    if is_doubtful && at_best.is_none() { 1.0 } else { most },
                )
            }
            (false, true) => (0.0, 1.0),
            (true, _) => self.for_good(mode, &counted, best),
        };
        let found = Matched {
            n_expected: n,
            n_calls: m,
            n_matched: (mode.score != MatchScore::Edit).then_some(now.pairs.len()),
            fell_back: now.fell_back,
            entries: alignment(
                (n, &counted.calls),
                &now.pairs,
                &now.substituted,
                mode.is_in_order() && mode.score != MatchScore::Edit,
                |expected, call| counted.fits[expected][call] == Tri::Yes,
            ),
        };
        let score = Score {
            missing,
            n_expected: n,
            ..Score::between(value, least, most)
        };
        (score, found)
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        ToolName::all_expected(self.expected.iter().map(|call| &*call.name))
    }

    fn reads_order(&self) -> bool {
        self.mode().is_in_order()
    }

    fn report(&self, found: &Matched, judgement: &Judgement<'_>) -> Rendered {
        let score = self.mode().score;
        let names: Vec<&str> = self.expected.iter().map(|call| &*call.name).collect();
        let (mut rows, mut alignment) = (Vec::new(), Vec::new());
        let counts_extra = score.most_with_extra(1, found.n_expected) < 1.0;
        let counts_missing = match score {
            MatchScore::Subset => false,
            // Without a call, precision is 0.
            MatchScore::Precision => found.n_calls == 0,
            _ => true,
        };
        for (kind, expected, call) in &found.entries {
            let is_fault = match kind {
                RowKind::Match => false,
                RowKind::Missing => counts_missing,
                RowKind::Extra => counts_extra,
                _ => true,
            };
            let row = AlignmentRow::new(*kind).of(*call).at_fault(is_fault);
            rows.push(match expected.and_then(|at| names.get(at)) {
                Some(expected) => row.expecting(*expected),
                None => row,
            });
            let mut entry = match kind {
                RowKind::Replaced => json!({ "kind": "substituted" }),
                kind => json!({ "kind": kind }),
            };
            for (key, at) in [("expected", expected), ("call", call)] {
                if let Some(at) = at {
                    entry[key] = json!(at + 1);
                }
            }
            alignment.push(entry);
        }
        let mut details = json!({
            "score": score,
            "expected": found.n_expected,
            "actual": found.n_calls,
            "alignment": alignment,
        });
        if let Some(n_matched) = found.n_matched {
            details["matched"] = json!(n_matched);
        }
        if found.fell_back {
            details["concurrency"] = json!("none");
        }
        let value = (
            details["score"].as_str().unwrap_or_default(),
            found.value(score),
        );
        let (text, offending) = words(value, found, &names, &judgement.trajectory.tool_calls);
        Rendered {
            text,
            offending,
            rows,
            details,
        }
    }

    fn check(&self) -> Result<(), FieldError> {
        match (self.score, self.preset) {
            (None, None) => Err(FieldError::of_key(
                &[],
                "there is no score: add `score: f1`, or another, or a `preset`",
            )),
            (Some(_), Some(_)) => Err(FieldError::of_key(
                &["score"],
                "`preset` is a score already: leave `score` out",
            )),
            (None, Some(preset)) => self.check_preset(preset),
            (Some(score), None) => self.check_score(score),
        }
    }

    fn warnings(&self) -> Vec<String> {
        if self.expected.is_empty() {
            vec!["`expected` is empty: it matches a run without calls".to_owned()]
        } else {
            Vec::new()
        }
    }
}

impl Matched {
    fn value(&self, score: MatchScore) -> f64 {
        let matched = self.n_matched.unwrap_or_else(|| self.n_unchanged());
        score.value(matched, self.n_expected, self.n_calls)
    }
}

impl TrajectoryMatch {
    fn check_preset(&self, preset: Preset) -> Result<(), FieldError> {
        let fixed = [
            ("ordered", self.ordered.is_some()),
            ("exact_args", self.exact_args.is_some()),
            ("include_failed", self.include_failed.is_some()),
            ("concurrency", self.concurrency.is_some()),
        ];
        if let Some((field, _)) = fixed.iter().find(|(_, is_written)| *is_written) {
            let message = format!("`preset` fixes `{field}`: leave one of the two out");
            return Err(FieldError::of_key(&[field], message));
        }
        if preset.refuses_nothing() && self.expected.is_empty() {
            return Err(FieldError::of_key(
                &["expected"],
                "`expected` is empty, which this preset refuses as its package does: add the \
                 expected calls",
            ));
        }
        let with_args = self.expected.iter().position(|call| call.args.is_some());
        match with_args.filter(|_| !preset.mode().exact_args) {
            Some(at) => Err(FieldError::of_key(
                &["expected", &at.to_string(), "args"],
                "this preset compares names only: leave `args` out",
            )),
            None => Ok(()),
        }
    }

    fn check_score(&self, score: MatchScore) -> Result<(), FieldError> {
        let takes_ordered = matches!(
            score,
            MatchScore::Precision | MatchScore::Recall | MatchScore::F1
        );
        let is_line = self.concurrency.is_none_or(|of| of == Concurrency::None);
        if self.ordered.is_some() && !takes_ordered {
            return Err(FieldError::of_key(
                &["ordered"],
                "`ordered` is for `precision`, `recall` and `f1` only: leave it out",
            ));
        }
        if score == MatchScore::Edit && !is_line {
            Err(FieldError::of_key(
                &["concurrency"],
                "`edit` compares lists in one order: leave `concurrency` out",
            ))
        } else {
            Ok(())
        }
    }

    fn mode(&self) -> Mode {
        if let Some(preset) = self.preset {
            return preset.mode();
        }
        let score = self.score.unwrap_or(MatchScore::Exact);
        Mode {
            score,
            ordered: self.ordered.unwrap_or(false),
            exact_args: self.exact_args.unwrap_or(false),
            include_failed: self.include_failed.unwrap_or(true),
            concurrency: match score {
                MatchScore::Edit => Concurrency::None,
                _ => self.concurrency.unwrap_or_default(),
            },
        }
    }

    fn counted(
        &self,
        mode: Mode,
        captured: &mut CapturedValues<'_>,
        intervals: &Intervals,
    ) -> Counted {
        let trajectory = captured.trajectory();
        let mut is_open = false;
        let mut calls = Vec::with_capacity(trajectory.tool_calls.len());
        for call_idx in 0..trajectory.tool_calls.len() {
            let counts = mode.include_failed
                || match captured.error(call_idx) {
                    Tri::Yes => false,
                    Tri::No => true,
                    Tri::Maybe => {
                        is_open = true;
                        // In a cut trace, a call without a pair lowers the highest possible score,
                        // so only calls that certainly count are included.
                        !trajectory.cut_short
                    }
                };
            if counts {
                calls.push(call_idx);
            }
        }
        let agreement = if mode.exact_args { Agreement::Equal } else { Agreement::Contained };
        let fits = self.expected.iter().map(|expected| {
            let fit = |call_idx: &usize| {
                if *trajectory.tool_calls[*call_idx].name != *expected.name {
                    return Tri::No;
                }
                match &expected.args {
                    None => Tri::Yes,
                    Some(args) => arguments::fit(args, *call_idx, captured, agreement),
                }
            };
            calls.iter().map(fit).collect()
        });
        let is_ordered = mode.is_in_order() && calls.len() > 1;
        let is_unplaced = |call: &usize| is_ordered && intervals.is_unplaced(*call);
        Counted {
            fits: fits.collect(),
            is_unplaced: calls.iter().map(is_unplaced).collect(),
            calls,
            is_open,
        }
    }

    /// Returns the pairs; `None` if the comparison exceeded its limit.
    fn paired(
        &self,
        mode: Mode,
        counted: &Counted,
        at_least: Tri,
        intervals: &Intervals,
    ) -> Option<Paired> {
        let fits = self.fits(counted, at_least);
        let mut paired = Paired::default();
        if mode.score == MatchScore::Edit {
            (paired.pairs, paired.substituted) = fits.by_edits()?;
        } else if !mode.is_in_order() {
            paired.pairs = fits.in_any_order();
        } else if let Some(pairs) = fits.in_best_order(intervals) {
            paired.pairs = pairs;
        } else {
            paired.pairs = fits.in_list_order()?;
            paired.fell_back = true;
        }
        Some(paired)
    }

    /// Returns the calls that match each expected call with at least this certainty. A call with an
    /// unknown position never matches with certainty.
    fn fits(&self, counted: &Counted, at_least: Tri) -> Fits {
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let (mut kinds, mut calls): (Vec<u32>, Vec<Vec<u32>>) = Default::default();
        let names_only = self.expected.iter().all(|expected| expected.args.is_none());
        for (expected, fits) in self.expected.iter().zip(&counted.fits) {
            let next = calls.len() as u32;
            let kind =
                if names_only { *numbers.entry(&expected.name).or_insert(next) } else { next };
            if kind == next {
                let is_fitting = |call: &usize| {
                    let is_placed = at_least < Tri::Yes || !counted.is_unplaced[*call];
                    is_placed && fits[*call] >= at_least
                };
                let fitting = (0..fits.len()).filter(is_fitting);
                calls.push(fitting.map(|call| call as u32).collect());
            }
            kinds.push(kind);
        }
        let n_calls = counted.calls.len();
        let only_kind = names_only.then(|| {
            let mut only_kind = vec![UNEXPECTED; n_calls];
            for (kind, calls) in calls.iter().enumerate() {
                for call in calls {
                    only_kind[*call as usize] = kind as u32;
                }
            }
            only_kind
        });
        Fits {
            kinds,
            calls,
            n_calls,
            only_kind,
        }
    }

    /// Returns the bounds of the final score of a cut trace. The order of the list is always
    /// possible, so its pairs are certain. Where the order may change, pairing in any order gives
    /// the highest number of pairs.
    fn for_good(&self, mode: Mode, counted: &Counted, best: &Paired) -> (f64, f64) {
        let (n, m) = (self.expected.len(), counted.calls.len());
        let sure = self.fits(counted, Tri::Yes);
        let sure = if mode.is_in_order() {
            sure.in_list_order().map_or(0, |pairs| pairs.len())
        } else {
            sure.in_any_order().len()
        };
        let grows = matches!(
            mode.score,
            MatchScore::InOrder | MatchScore::Superset | MatchScore::Recall | MatchScore::LcsRatio
        );
        let least = if grows && n > 0 {
            mode.score.value(sure, n, m.max(1))
        } else {
            all_or_nothing(grows && !mode.score.is_graded())
        };
        let most_paired = match (mode.score, mode.concurrency) {
            _ if counted.is_unplaced.contains(&true) => {
                self.fits(counted, Tri::Maybe).in_any_order().len()
            }
            (MatchScore::Edit, _) => {
                let possible = self.fits(counted, Tri::Maybe).in_list_order();
                possible.map_or(m, |pairs| pairs.len())
            }
            (_, Concurrency::Reply) => self.fits(counted, Tri::Maybe).in_any_order().len(),
            _ if best.fell_back => m,
            _ => best.pairs.len(),
        };
        (least, mode.score.most_with_extra(m - most_paired, n))
    }
}
