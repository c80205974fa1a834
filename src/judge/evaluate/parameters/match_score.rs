//! The scores of calls that are compared with expected calls, the formulas of these scores, and
//! presets that reproduce the scores of other tools.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evaluate::comparison::order::Concurrency;
use crate::evaluate::comparison::score::all_or_nothing;

/// Formulas that turn the number of pairs into a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchScore {
    /// The expected calls in the expected order, and no other calls.
    Exact,
    /// The expected calls in the expected order.
    InOrder,
    /// The expected calls, and no other calls.
    AnyOrder,
    /// Only expected calls.
    Subset,
    /// All expected calls.
    Superset,
    /// The number of matches, as a share of the calls made.
    Precision,
    /// The number of matches, as a share of the expected calls.
    Recall,
    /// The harmonic mean of precision and recall.
    F1,
    /// The longest common subsequence, as a share of the expected calls.
    LcsRatio,
    /// 1 minus the smallest number of changes that turn one list into the other, as a share of the
    /// longer list.
    Edit,
}

/// A score of another tool. Each preset agrees with its package's own function within 1e-12: uipath
/// 2.14.44, pydantic-evals 2.62.0, agentevals 0.0.9, google-adk 2.13.0, deepeval 4.3.1,
/// azure-ai-evaluation 1.18.10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline, description = "")]
pub enum Preset {
    Uipath,
    UipathStrict,
    DeepevalOrdering,
    DeepevalExact,
    AzureExact,
    AzureInOrder,
    AzureAnyOrder,
    AzurePrecision,
    AzureRecall,
    AzureF1,
    #[serde(rename = "pydantic_exact")]
    ExactWithoutFailed,
    #[serde(rename = "pydantic_in_order")]
    InOrderWithoutFailed,
    #[serde(rename = "pydantic_any_order")]
    AnyOrderWithoutFailed,
    AdkExact,
    AdkInOrder,
    AdkAnyOrder,
    AgentevalsStrict,
    AgentevalsUnordered,
    AgentevalsSubset,
    AgentevalsSuperset,
}

/// The settings, taken from the fields or from the preset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) score: MatchScore,
    pub(crate) ordered: bool,
    pub(crate) exact_args: bool,
    pub(crate) include_failed: bool,
    pub(crate) concurrency: Concurrency,
}

/// Returns the settings for a score that compares names only and orders calls by their starts.
fn plain(score: MatchScore) -> Mode {
    Mode {
        score,
        ordered: false,
        exact_args: false,
        include_failed: true,
        concurrency: Concurrency::None,
    }
}

fn without_failed(score: MatchScore, ordered: bool) -> Mode {
    Mode {
        ordered,
        include_failed: false,
        ..plain(score)
    }
}

fn exact_args(score: MatchScore) -> Mode {
    Mode {
        exact_args: true,
        ..plain(score)
    }
}

impl Preset {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Uipath | Self::DeepevalOrdering => plain(MatchScore::LcsRatio),
            Self::UipathStrict | Self::DeepevalExact | Self::AzureExact => plain(MatchScore::Exact),
            Self::AzureInOrder => plain(MatchScore::InOrder),
            Self::AzureAnyOrder => plain(MatchScore::Superset),
            Self::AzurePrecision => plain(MatchScore::Precision),
            Self::AzureRecall => plain(MatchScore::Recall),
            Self::AzureF1 => plain(MatchScore::F1),
            Self::ExactWithoutFailed => without_failed(MatchScore::Exact, false),
            Self::InOrderWithoutFailed => without_failed(MatchScore::F1, true),
            Self::AnyOrderWithoutFailed => without_failed(MatchScore::F1, false),
            Self::AdkExact => exact_args(MatchScore::Exact),
            Self::AdkInOrder => exact_args(MatchScore::InOrder),
            Self::AdkAnyOrder | Self::AgentevalsSuperset => exact_args(MatchScore::Superset),
            Self::AgentevalsStrict => Mode {
                concurrency: Concurrency::Reply,
                ..exact_args(MatchScore::Exact)
            },
            Self::AgentevalsUnordered => exact_args(MatchScore::AnyOrder),
            Self::AgentevalsSubset => exact_args(MatchScore::Subset),
        }
    }

    /// Returns true if the preset's package rejects an empty list of expected calls.
    pub(crate) fn refuses_nothing(self) -> bool {
        matches!(
            self,
            Self::AzureExact
                | Self::AzureInOrder
                | Self::AzureAnyOrder
                | Self::AzurePrecision
                | Self::AzureRecall
                | Self::AzureF1
        )
    }
}

impl MatchScore {
    pub(crate) fn is_graded(self) -> bool {
        matches!(
            self,
            Self::Precision | Self::Recall | Self::F1 | Self::LcsRatio | Self::Edit
        )
    }

    /// Returns the score of `matched` pairs, for `n` expected calls and `m` calls made.
    pub(crate) fn value(self, matched: usize, n: usize, m: usize) -> f64 {
        if self.is_graded() && (n == 0 || m == 0) {
            return all_or_nothing(n == m);
        }
        let of = |matched: usize, all: usize| matched as f64 / all as f64;
        match self {
            Self::Exact | Self::AnyOrder => all_or_nothing(matched == n && matched == m),
            Self::InOrder | Self::Superset => all_or_nothing(matched == n),
            Self::Subset => all_or_nothing(matched == m),
            Self::Precision => of(matched, m),
            Self::Recall | Self::LcsRatio => of(matched, n),
            Self::F1 => of(2 * matched, n + m),
            // `matched` is the length of the longer list, minus the changes.
            Self::Edit => of(matched, n.max(m)),
        }
    }

    /// Returns the highest possible score if `extra` calls have no partner.
    pub(crate) fn most_with_extra(self, extra: usize, n: usize) -> f64 {
        if extra == 0 {
            return 1.0;
        }
        let of = |n: usize, all: usize| n as f64 / all as f64;
        match self {
            Self::Exact | Self::AnyOrder | Self::Subset => 0.0,
            _ if self.is_graded() && n == 0 => 0.0,
            Self::Precision | Self::Edit => of(n, n + extra),
            Self::F1 => of(2 * n, 2 * n + extra),
            Self::InOrder | Self::Superset | Self::Recall | Self::LcsRatio => 1.0,
        }
    }
}

impl Mode {
    pub(crate) fn is_in_order(self) -> bool {
        match self.score {
            MatchScore::Exact | MatchScore::InOrder | MatchScore::LcsRatio | MatchScore::Edit => {
                true
            }
            MatchScore::Precision | MatchScore::Recall | MatchScore::F1 => self.ordered,
            MatchScore::AnyOrder | MatchScore::Subset | MatchScore::Superset => false,
        }
    }
}
