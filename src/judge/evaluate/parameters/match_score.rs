//! The scores of calls that are compared with expected calls, the formulas of these scores, and
//! presets that reproduce the scores of other tools.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

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

/// A score of another tool, by its index in [`PRESETS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset(usize);

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
const fn plain(score: MatchScore) -> Mode {
    Mode {
        score,
        ordered: false,
        exact_args: false,
        include_failed: true,
        concurrency: Concurrency::None,
    }
}

const fn without_failed(score: MatchScore, ordered: bool) -> Mode {
    Mode {
        ordered,
        include_failed: false,
        ..plain(score)
    }
}

const fn exact_args(score: MatchScore) -> Mode {
    Mode {
        exact_args: true,
        ..plain(score)
    }
}

/// Each preset agrees with its package's own function within 1e-12: uipath 2.14.44, pydantic-evals
/// 2.62.0, agentevals 0.0.9, google-adk 2.13.0, deepeval 4.3.1, azure-ai-evaluation 1.18.10.
const PRESETS: [(&str, Mode); 20] = [
    ("uipath", plain(MatchScore::LcsRatio)),
    ("uipath_strict", plain(MatchScore::Exact)),
    ("deepeval_ordering", plain(MatchScore::LcsRatio)),
    ("deepeval_exact", plain(MatchScore::Exact)),
    ("azure_exact", plain(MatchScore::Exact)),
    ("azure_in_order", plain(MatchScore::InOrder)),
    ("azure_any_order", plain(MatchScore::Superset)),
    ("azure_precision", plain(MatchScore::Precision)),
    ("azure_recall", plain(MatchScore::Recall)),
    ("azure_f1", plain(MatchScore::F1)),
    ("pydantic_exact", without_failed(MatchScore::Exact, false)),
    ("pydantic_in_order", without_failed(MatchScore::F1, true)),
    ("pydantic_any_order", without_failed(MatchScore::F1, false)),
    ("adk_exact", exact_args(MatchScore::Exact)),
    ("adk_in_order", exact_args(MatchScore::InOrder)),
    ("adk_any_order", exact_args(MatchScore::Superset)),
    (
        "agentevals_strict",
        Mode {
            concurrency: Concurrency::Reply,
            ..exact_args(MatchScore::Exact)
        },
    ),
    ("agentevals_unordered", exact_args(MatchScore::AnyOrder)),
    ("agentevals_subset", exact_args(MatchScore::Subset)),
    ("agentevals_superset", exact_args(MatchScore::Superset)),
];

/// The preset names for the error message; serde requires a static list.
const PRESET_NAMES: [&str; PRESETS.len()] = {
    let mut names = [""; PRESETS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = PRESETS[at].0;
        at += 1;
    }
    names
};

impl Preset {
    pub(crate) fn mode(self) -> Mode {
        PRESETS[self.0].1
    }

    fn as_str(self) -> &'static str {
        PRESETS[self.0].0
    }

    /// Returns true if the preset's package rejects an empty list of expected calls.
    pub(crate) fn refuses_nothing(self) -> bool {
        self.as_str().starts_with("azure")
    }
}

impl MatchScore {
    pub(crate) fn is_graded(self) -> bool {
        matches!(
            self,
            Self::Precision | Self::Recall | Self::F1 | Self::LcsRatio | Self::Edit
        )
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::InOrder => "in_order",
            Self::AnyOrder => "any_order",
            Self::Subset => "subset",
            Self::Superset => "superset",
            Self::Precision => "precision",
            Self::Recall => "recall",
            Self::F1 => "f1",
            Self::LcsRatio => "lcs_ratio",
            Self::Edit => "edit",
        }
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

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let at = PRESET_NAMES.iter().position(|known| *known == name);
        at.map(Self)
            .ok_or_else(|| de::Error::unknown_variant(&name, &PRESET_NAMES))
    }
}

impl Serialize for Preset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_str().serialize(serializer)
    }
}

impl JsonSchema for Preset {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Preset".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": PRESET_NAMES })
    }
}
