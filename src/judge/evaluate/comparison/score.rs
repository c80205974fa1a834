//! What an evaluator answers: a value, how far missing evidence could still move it, and the
//! evidence itself. Knows no single evaluator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use text::abbreviated;

use super::rows::AlignmentRow;
use super::value_path::ValuePath;

/// The label of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The score reached the threshold.
    Pass,
    /// It did not.
    Fail,
    /// Evidence is missing, or the trace was cut short and more calls could change the verdict.
    NotEvaluated,
    /// The criterion cannot be applied to this trajectory.
    Error,
}

impl Verdict {
    /// All labels, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Pass, Self::Fail, Self::NotEvaluated, Self::Error];

    /// The label of a word that [`Self::as_str`] returns.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|label| label.as_str() == word)
    }

    /// The word in `gen_ai.evaluation.score.label`, in metrics and in the jsonl lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotEvaluated => "not_evaluated",
            Self::Error => "error",
        }
    }

    /// The reference's `success` and `passed`: `None` where nothing is known for certain.
    pub(crate) fn success(self) -> Option<bool> {
        match self {
            Self::Pass => Some(true),
            Self::Fail => Some(false),
            Self::NotEvaluated | Self::Error => None,
        }
    }
}

/// The `explain` section: whether explanations show values, and how much of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Show argument and result values in explanations, details and score spans.
    pub values: bool,
    /// Longest value shown, in characters.
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
    /// A value, shortened to the length that may be shown; `None` where values are private.
    pub(crate) fn value(&self, text: &str) -> Option<String> {
        self.values
            .then(|| abbreviated(text, self.max_value_length).into_owned())
    }
}

/// Why an evaluation has the label `error`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EvaluationError {
    /// A short word for `error.type`, such as `missing_argument`.
    pub kind: &'static str,
    /// The mistake and its remedy.
    pub message: String,
}

/// The result of an evaluator for one trajectory, before the threshold is applied.
#[derive(Debug)]
pub(crate) struct Score<E> {
    /// 0 to 1, for the trajectory as it is; missing evidence counts as not matching.
    pub(crate) value: f64,
    /// The least it can become, whatever the missing evidence is and whatever further calls the
    /// rest of a cut trace holds.
    pub(crate) least: f64,
    /// The most it can become.
    pub(crate) most: f64,
    /// A call to which the criterion cannot be applied.
    pub(crate) fault: Option<CallError>,
    /// The rest of a cut trace may hold such a call.
    pub(crate) may_fault: bool,
    /// Evidence that was looked for and not captured.
    pub(crate) missing: Missing,
    /// The first value that a pattern or condition could not match, since it is no text, or that a
    /// sum lacks.
    pub(crate) unusable: Option<UnusableValue>,
    /// Where its paths lead.
    pub(crate) paths: PathsSeen,
    /// How many calls were expected.
    pub(crate) n_expected: usize,
    /// The work spent on searching texts with patterns.
    pub(crate) searched: u64,
    /// Everything the text shows that does not follow from the names of the calls.
    pub(crate) evidence: E,
}

impl<E> Score<E> {
    /// A score that stays between two bounds, whatever else becomes known.
    pub(crate) fn between(value: f64, least: f64, most: f64, evidence: E) -> Self {
        Self {
            value,
            least,
            most,
            fault: None,
            may_fault: false,
            missing: Missing::default(),
            unusable: None,
            paths: PathsSeen::default(),
            n_expected: 0,
            searched: 0,
            evidence,
        }
    }

    /// Wraps the evidence and leaves the score as it is.
    pub(crate) fn map<T>(self, wrap: impl FnOnce(E) -> T) -> Score<T> {
        Score {
            value: self.value,
            least: self.least,
            most: self.most,
            fault: self.fault,
            may_fault: self.may_fault,
            missing: self.missing,
            unusable: self.unusable,
            paths: self.paths,
            n_expected: self.n_expected,
            searched: self.searched,
            evidence: wrap(self.evidence),
        }
    }
}

/// 1 or 0: the score of an evaluator that gives no partial credit.
pub(crate) fn all_or_nothing(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// What a reader is shown of a judgement.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    /// For people, in one or two sentences.
    pub(crate) text: String,
    /// The calls to blame, positions in the trajectory.
    pub(crate) offending: Vec<usize>,
    /// What was expected beside what was called.
    pub(crate) rows: Vec<AlignmentRow>,
    /// The reference evaluator's own justification fields, a JSON object.
    pub(crate) details: Value,
}

impl<E> Score<Option<E>> {
    /// The score of two orders that are too long to align: known only if they must be equal, and
    /// `differ` for good.
    pub(crate) fn unaligned(n_expected: usize, differ: bool) -> Self {
        let mut score = Self::between(0.0, 0.0, all_or_nothing(!differ), None);
        score.missing.too_much = !differ;
        score.n_expected = n_expected;
        score
    }
}

/// A call that lacks something the criterion reads, and will lack it whatever else becomes known.
#[derive(Debug)]
pub(crate) struct CallError {
    /// The call, a position in the trajectory.
    pub(crate) call_idx: usize,
    /// The mistake and its remedy.
    pub(crate) error: EvaluationError,
}

/// A value that is no text, so that no pattern matches it; or one that is missing in a sum.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UnusableValue {
    /// Its call, a position in the trajectory.
    pub(crate) call_idx: usize,
    /// Its path.
    pub(crate) path: String,
    /// "a number", or "missing".
    pub(crate) kind: &'static str,
    pub(crate) reader: ReadBy,
}

/// What reads a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ReadBy {
    /// A pattern under `args`.
    Args,
    /// An operator under `where`.
    Operator(&'static str),
    /// `of` of a `total`.
    Addend,
    /// `same` of a `total`.
    Key,
}

/// Where the paths of a criterion lead, for the calls that fit the rest of a pattern: a bit for
/// each of the first 64 paths.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PathsSeen {
    /// Some call has a value there.
    pub(crate) somewhere: u64,
    /// There are such calls, and none of them has a value there.
    pub(crate) nowhere: u64,
}

/// Evidence that an evaluator looked for and that was not captured.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// No call of the trajectory carries arguments.
    pub(crate) no_args: bool,
    /// No call of the trajectory carries a result.
    pub(crate) no_results: bool,
    /// The first call whose arguments are captured nowhere where it was recorded, although those of
    /// other calls are.
    pub(crate) uncaptured_args: Option<usize>,
    /// The first call whose result is captured nowhere, although that of other calls is.
    pub(crate) uncaptured_result: Option<usize>,
    /// The calls are known from model messages alone, which tell neither when a call ran nor
    /// whether it failed.
    pub(crate) only_messages: bool,
    /// Calls overlapped, and the criterion asks for no verdict then.
    pub(crate) overlap: bool,
    /// There was more to compare than is looked at.
    pub(crate) too_much: bool,
    /// Searching all texts with the criterion's patterns would have taken more work than is left.
    pub(crate) too_long_to_search: bool,
    /// The evaluated span has no start or no end, or ends before it starts.
    pub(crate) no_duration: bool,
    /// Why the tokens of model calls, or their number, are not known.
    pub(crate) unknown_tokens: Option<UnknownTokens>,
    /// The first call whose time is not known.
    pub(crate) untimed: Option<usize>,
    /// The first call of which only the beginning of a value was kept, or whose span had not ended.
    pub(crate) cut: Option<usize>,
    /// An earlier turn of the session may have made the call that a rule asks for: one that called
    /// a tool of such a name, a position in `EarlierTurns::names`, or else one that was not seen.
    pub(crate) earlier_turn: Option<Option<usize>>,
    /// The first call with an argument that cannot be compared: NaN, an infinity, or a number
    /// beyond all doubles.
    pub(crate) incomparable: Option<usize>,
    /// The first call with a value that is no number where an order or a sum is asked, and its
    /// path.
    pub(crate) no_number: Option<Box<(usize, ValuePath)>>,
    /// The first call whose arguments are no map where a key of them is asked for.
    pub(crate) no_map: Option<usize>,
    /// The first call up to which the values at a path add up to more digits than a sum may have.
    pub(crate) long_sum: Option<Box<(usize, ValuePath)>>,
    /// No call has a value to add up.
    pub(crate) no_value: bool,
}

/// Why the tokens of model calls, or their number, are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownTokens {
    /// No model call was seen, and no total of an agent.
    NoModel,
    /// Totals that agents recorded do not settle it.
    Totals,
    /// No criterion asked for them when the run was seen.
    NotKept,
    /// So many of the model calls "recorded no usage", or only a part of it.
    Unrecorded { n_calls: u32, what: &'static str },
}

impl Missing {
    /// Was everything captured?
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
