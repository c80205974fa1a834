//! The result of an evaluator: a value, the bounds within which missing evidence could move it, and
//! the evidence.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use text::abbreviated;

use super::lcs::{self, Subsequence};
use super::rows::AlignmentRow;
use super::value_path::ValuePath;
use crate::extract::Trajectory;

/// The label of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The score reached the threshold.
    Pass,
    /// The score did not reach the threshold.
    Fail,
    /// Evidence is missing, or the trace was cut short and more calls could change the verdict.
    NotEvaluated,
    /// The criterion cannot be applied to this trajectory.
    Error,
}

impl Verdict {
    /// All labels, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Pass, Self::Fail, Self::NotEvaluated, Self::Error];

    /// Parses a word that [`Self::as_str`] returns.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|label| label.as_str() == word)
    }

    /// Returns the word used in `gen_ai.evaluation.score.label`, in metrics and in jsonl lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotEvaluated => "not_evaluated",
            Self::Error => "error",
        }
    }

    /// Returns the value of `success` or `passed` in the details; `None` if there is no verdict.
    pub(crate) fn success(self) -> Option<bool> {
        match self {
            Self::Pass => Some(true),
            Self::Fail => Some(false),
            Self::NotEvaluated | Self::Error => None,
        }
    }
}

/// The `explain` section: whether explanations show values, and up to which length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Show argument and result values in explanations, details and score spans.
    pub values: bool,
    /// Maximum length of a shown value, in characters.
    pub max_value_length: usize,
}

impl Default for Explain {
    fn default() -> Self {
        Self {
            values: false,
            max_value_length: 256,
        }
    }
}

impl Explain {
    /// Returns a value, abbreviated to the maximum length; `None` if `values` is off.
    pub(crate) fn value(&self, text: &str) -> Option<String> {
        self.values
            .then(|| abbreviated(text, self.max_value_length).into_owned())
    }
}

/// The reason for the label `error`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EvaluationError {
    /// A short word for `error.type`, such as `missing_argument`.
    pub kind: &'static str,
    /// The mistake and, for most mistakes, its remedy.
    pub message: String,
}

/// The result of an evaluator for one trajectory, before the threshold is applied. (The evidence,
/// from which the explanation is rendered later, is separate.)
#[derive(Debug, Default)]
pub(crate) struct Score {
    /// The score from 0 to 1 for the trajectory as it is. Missing evidence counts as no match.
    pub(crate) value: f64,
    /// The lowest value that the missing evidence and the rest of a cut trace could cause.
    pub(crate) least: f64,
    /// The highest value that the missing evidence and the rest of a cut trace could cause.
    pub(crate) most: f64,
    /// A call to which the criterion cannot be applied.
    pub(crate) fault: Option<CallError>,
    /// True if the rest of a cut trace may contain a call to which the criterion cannot be applied.
    pub(crate) may_fault: bool,
    pub(crate) missing: Missing,
    pub(crate) unusable: Option<UnusableValue>,
    pub(crate) paths: PathsSeen,
    pub(crate) n_expected: usize,
    /// The units of work spent on searching texts with patterns.
    pub(crate) searched: u64,
}

impl Score {
    pub(crate) fn between(value: f64, least: f64, most: f64) -> Self {
        Self {
            value,
            least,
            most,
            ..Self::default()
        }
    }

    /// Scores an order by the share of the expected names in the longest common subsequence; with
    /// `is_exact`, 1 if both orders are equal, else 0. Returns the subsequence; `None` if the
    /// orders are too long to align. Then the score is open, unless the orders must be equal and
    /// certainly differ.
    pub(crate) fn of_order(
        actual: &[u32],
        expected: &[u32],
        is_exact: bool,
        cut_short: bool,
    ) -> (Self, Option<Subsequence>) {
        let is_equal = actual == expected;
        let found = lcs::common_subsequence(actual, expected);
        let n_found = found.as_ref().map_or(0, Vec::len);
        let share = n_found as f64 / expected.len() as f64;
        let value = if is_exact { all_or_nothing(is_equal) } else { share };
        let differ = is_exact && !cut_short && !is_equal;
        let mut score = match (&found, cut_short, is_exact) {
            (None, ..) => Self::between(0.0, 0.0, all_or_nothing(!differ)),
            (_, false, _) => Self::between(value, value, value),
            (_, true, false) => Self::between(value, value, 1.0),
            // Further calls can make the orders equal only if every call is matched.
            (_, true, true) => Self::between(value, 0.0, all_or_nothing(n_found == actual.len())),
        };
        score.missing.too_much = found.is_none() && !differ;
        score.n_expected = expected.len();
        (score, found)
    }
}

pub(crate) fn all_or_nothing(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// The judgement whose evidence is rendered.
#[derive(Clone, Copy)]
pub(crate) struct Judgement<'a> {
    pub(crate) trajectory: &'a Trajectory,
    pub(crate) verdict: Verdict,
    pub(crate) explain: &'a Explain,
    /// True to render rows, which are read only when somebody inspects one run.
    pub(crate) with_rows: bool,
}

impl Judgement<'_> {
    pub(crate) fn rows(&self, make: impl FnOnce() -> Vec<AlignmentRow>) -> Vec<AlignmentRow> {
        if self.with_rows { make() } else { Vec::new() }
    }
}

/// A judgement in the form that outputs show.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    /// The explanation.
    pub(crate) text: String,
    /// The calls to blame, as indices in the trajectory.
    pub(crate) offending: Vec<usize>,
    pub(crate) rows: Vec<AlignmentRow>,
    /// The evaluator's details, a JSON object. Fields that a reproduced evaluator of another tool
    /// also has keep that evaluator's names.
    pub(crate) details: Value,
}

/// A call that lacks a value that the criterion reads. The rest of a cut trace cannot supply it.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) call_idx: usize,
    pub(crate) error: EvaluationError,
}

/// A value that no pattern matches because it is not text, or a value that is missing although a
/// condition, a sum or `same` reads it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UnusableValue {
    pub(crate) call_idx: usize,
    pub(crate) path: String,
    /// Text such as "a number" or "missing".
    pub(crate) kind: &'static str,
    pub(crate) reader: ReadBy,
}

/// The parameter that reads a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ReadBy {
    /// A pattern under `args`.
    Args,
    /// An operator under `where` that reads texts.
    Operator(&'static str),
    /// A condition under `where`.
    Condition,
    /// `of` of a `total`.
    Addend,
    /// `same`.
    Key,
}

/// The paths of a criterion at which calls have values, and those at which none has one. A path in
/// neither mask is unknown. Calls that do not match the rest of the pattern are ignored. A mask has
/// one bit for each of the first 64 paths.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PathsSeen {
    pub(crate) somewhere: u64,
    pub(crate) nowhere: u64,
}

/// The reasons why an evaluator may not be able to decide: evidence that was not captured or cannot
/// be used, and limits that a comparison exceeded. If there is no verdict, the explanation names
/// the reasons.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// True if no call of the trajectory has arguments.
    pub(crate) no_args: bool,
    /// True if no call of the trajectory has a result.
    pub(crate) no_results: bool,
    /// The first call recorded by an instrumentation that captures no arguments, if other calls
    /// have arguments.
    pub(crate) uncaptured_args: Option<usize>,
    /// The first call recorded by an instrumentation that captures no results, if other calls have
    /// results.
    pub(crate) uncaptured_result: Option<usize>,
    /// True if the calls are known from model messages only, which record neither times nor
    /// failures.
    pub(crate) only_messages: bool,
    /// True if calls overlapped, and the criterion gives no verdict in that case.
    pub(crate) overlap: bool,
    /// True if a comparison exceeded its limit.
    pub(crate) too_much: bool,
    /// True if searching all texts with the criterion's patterns exceeded the budget.
    pub(crate) too_long_to_search: bool,
    /// True if the evaluated span has no start or no end, or ends before it starts.
    pub(crate) no_duration: bool,
    pub(crate) unknown_tokens: Option<UnknownTokens>,
    /// The first call whose time is unknown.
    pub(crate) untimed: Option<usize>,
    /// The first call with a value that is cut, is in no message, or may still change because the
    /// trace was cut short.
    pub(crate) cut: Option<usize>,
    /// Set if an earlier turn of the session may have made the call that a rule requires: an index
    /// in `EarlierTurns::names`, or `None` if only an unseen turn could have made the call.
    pub(crate) earlier_turn: Option<Option<usize>>,
    /// The first call with a value that cannot be compared: NaN, an infinity, or a number outside
    /// the range of an `f64`.
    pub(crate) incomparable: Option<usize>,
    /// The first call with a value that is not a number although an order or a sum reads it, and
    /// the value's path.
    pub(crate) no_number: Option<Box<(usize, ValuePath)>>,
    /// The first call whose arguments are not a map although a path names a key.
    pub(crate) no_map: Option<usize>,
    /// The call at which the sum of the values at a path gets too many digits, and the path.
    pub(crate) long_sum: Option<Box<(usize, ValuePath)>>,
    /// True if no call has a value to add up.
    pub(crate) no_value: bool,
}

/// The reason why the tokens of model calls, or their number, are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownTokens {
    /// Neither a model call nor an agent's total was seen.
    NoModel,
    /// The totals that agents recorded do not show whether the limit was exceeded.
    Totals,
    /// The tokens were not stored, because no criterion read tokens when the run arrived.
    NotStored,
    /// Some model calls recorded no usage, or only a part of it. `what` is text such as "recorded
    /// no usage".
    Unrecorded { n_calls: u32, what: &'static str },
}

impl Missing {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
