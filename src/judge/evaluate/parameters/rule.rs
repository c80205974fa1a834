//! The written form of rules over calls. Each rule is a template with its fields: `total`, or a
//! template of the language DECLARE.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

use super::call_pattern::{CallPattern, Calls};
use super::condition::DecimalBound;
use super::field_aliases::read_with_hints;
use super::limits::{Period, count, max, min, one};
use super::optional::written;
use super::pattern::PlacedPattern;
use super::same::{Same, at_least_one_path};
use crate::evaluate::comparison::value_path::ValuePath;

/// Defines the rules from a single list of templates.
macro_rules! templates {
    ($($(#[$doc:meta])* $template:ident($fields:ident) = $name:literal,)+) => {
        /// One rule: a template with its fields. In templates with an order, `a` is the earlier
        /// call.
        #[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case", remote = "Self")]
        pub enum Rule {
            $($(#[$doc])* $template($fields),)+
        }

        /// The name of every template, and whether its rules relate two kinds of calls.
        pub const RULE_TEMPLATES: &[(&str, bool)] = &[$(($name, $fields::HAS_B),)+];

        impl Rule {
            pub(crate) fn template(&self) -> &'static str {
                match self {
                    $(Self::$template(_) => $name,)+
                }
            }

            pub(crate) fn shape(&self) -> RuleShape<'_> {
                match self {
                    $(Self::$template(fields) => fields.shape(),)+
                }
            }

            fn entries_mut(&mut self) -> Vec<(&'static str, &mut Calls)> {
                match self {
                    $(Self::$template(fields) => fields.entries_mut(),)+
                }
            }
        }
    };
}

templates! {
    /// At least `min` calls match `a`.
    Existence(AtLeast) = "existence",
    /// At most `max` calls match `a`.
    Absence(AtMost) = "absence",
    /// Exactly `count` calls match `a`.
    Exactly(ExactlyMany) = "exactly",
    /// The first call matches `a`.
    Init(Edge) = "init",
    /// The last call matches `a`.
    End(Edge) = "end",
    /// Every `a` needs a `b`, in any order.
    RespondedExistence(Unordered) = "responded_existence",
    /// Every `a` needs a `b` and every `b` an `a`, in any order.
    Coexistence(Unordered) = "coexistence",
    /// There is no `a`, or no `b`.
    NotCoexistence(Unordered) = "not_coexistence",
    /// Every `a` is followed by a `b`.
    Response(Ordered) = "response",
    /// Every `a` is followed by a `b` before the next `a`.
    AlternateResponse(Ordered) = "alternate_response",
    /// The next call after every `a` is a `b`.
    ChainResponse(Ordered) = "chain_response",
    /// Every `b` is preceded by an `a`.
    Precedence(Ordered) = "precedence",
    /// Every `b` is preceded by an `a` after the previous `b`.
    AlternatePrecedence(Ordered) = "alternate_precedence",
    /// The call directly before every `b` is an `a`.
    ChainPrecedence(Ordered) = "chain_precedence",
    /// `response` and `precedence`.
    Succession(Ordered) = "succession",
    /// `alternate_response` and `alternate_precedence`.
    AlternateSuccession(Ordered) = "alternate_succession",
    /// `chain_response` and `chain_precedence`.
    ChainSuccession(Ordered) = "chain_succession",
    /// No `b` follows an `a`.
    NotSuccession(Ordered) = "not_succession",
    /// No `b` directly follows an `a`.
    NotChainSuccession(Ordered) = "not_chain_succession",
    /// For every `a`, the values of all calls `a` up to this one add up to at most `max`.
    Total(TotalOf) = "total",
}

/// The fields of a rule, in a form shared by all templates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleShape<'r> {
    pub(crate) a: &'r Calls,
    /// `None` for a rule about one kind of calls.
    pub(crate) b: Option<&'r Calls>,
    /// The minimum and the maximum number of calls `a`.
    pub(crate) bounds: (u32, u32),
    pub(crate) within: Option<Period>,
    pub(crate) same: &'r [Same],
    pub(crate) overlap: Option<Overlap>,
}

impl<'r> RuleShape<'r> {
    fn of_one(a: &'r Calls) -> Self {
        Self {
            a,
            b: None,
            bounds: (0, u32::MAX),
            within: None,
            same: &[],
            overlap: None,
        }
    }

    pub(crate) fn kinds(self) -> impl Iterator<Item = &'r Calls> {
        [Some(self.a), self.b].into_iter().flatten()
    }

    pub(crate) fn patterns(self) -> impl Iterator<Item = &'r CallPattern> {
        self.kinds().flat_map(Calls::patterns)
    }
}

/// A minimum number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AtLeast {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The minimum number of calls, at least 1.
    #[serde(default = "one", deserialize_with = "min")]
    #[schemars(range(min = 1))]
    pub min: u32,
}

/// A maximum number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AtMost {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The maximum number of calls; 0 if left out.
    #[serde(default, deserialize_with = "max")]
    pub max: u32,
}

/// An exact number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExactlyMany {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The required number of calls, at least 1.
    #[serde(default = "one", deserialize_with = "count")]
    #[schemars(range(min = 1))]
    pub count: u32,
}

/// The first or the last call.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Edge {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The outcome if calls overlap and only some of their possible orders satisfy the rule.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Overlap")]
    pub overlap: Option<Overlap>,
}

/// Two kinds of calls, in any order.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Unordered {
    /// The first kind of calls.
    pub a: Calls,
    /// The second kind of calls.
    pub b: Calls,
    /// The longest time between the end of the earlier call and the start of the later.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub within: Option<Period>,
    /// Paths at which both calls must agree.
    #[serde(default, deserialize_with = "at_least_one_path")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub same: Vec<Same>,
}

/// Two kinds of calls, in this order.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Ordered {
    /// The earlier calls.
    pub a: Calls,
    /// The later calls.
    pub b: Calls,
    /// The longest time between the end of the earlier call and the start of the later.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub within: Option<Period>,
    /// Paths at which both calls must agree.
    #[serde(default, deserialize_with = "at_least_one_path")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub same: Vec<Same>,
    /// The outcome if calls overlap and only some of their possible orders satisfy the rule.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Overlap")]
    pub overlap: Option<Overlap>,
}

/// A sum over calls of one kind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TotalOf {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The path of the values to add up, such as `args.amount`.
    pub of: ValuePath,
    /// The highest sum that satisfies the rule.
    #[serde(deserialize_with = "max_of_sum")]
    pub(crate) max: DecimalBound,
    /// Only calls that started at most this long before a call count towards its sum.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub within: Option<Period>,
    /// Paths at which calls must agree to be added up.
    #[serde(default, deserialize_with = "own_paths")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub same: Vec<Same>,
}

fn max_of_sum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DecimalBound, D::Error> {
    DecimalBound::new("max", Value::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// Parses `same` of a `total`. Rejects different paths for `a` and `b`, and copies: all calls of a
/// sum are of one kind.
fn own_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Same>, D::Error> {
    let same = at_least_one_path(deserializer)?;
    if same
        .iter()
        .all(|same| same.a == same.b && same.copied().is_none())
    {
        Ok(same)
    } else {
        Err(de::Error::custom(
            "the calls of a `total` are of one kind: write one path under `same`, such as \
             `args.account`",
        ))
    }
}

/// The outcome of a rule that only some possible orders of overlapping calls satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The rule is violated.
    Fail,
    /// The rule is satisfied.
    Pass,
    /// There is no verdict.
    NotEvaluated,
}

read_with_hints!(Rule);
read_with_hints!(AtLeast);
read_with_hints!(AtMost);
read_with_hints!(ExactlyMany);
read_with_hints!(Edge);
read_with_hints!(Unordered);
read_with_hints!(Ordered);
read_with_hints!(TotalOf);

/// Converts a template's fields to [`RuleShape`], for calls `a`, or for calls `a` and `b`.
macro_rules! fields {
    ($name:ident, [$($kind:ident),+], $rule:ident => $shape:expr) => {
        impl $name {
            const HAS_B: bool = [$(stringify!($kind)),+].len() == 2;

            fn shape(&self) -> RuleShape<'_> {
                let $rule = self;
                $shape
            }

            fn entries_mut(&mut self) -> Vec<(&'static str, &mut Calls)> {
                vec![$((stringify!($kind), &mut self.$kind)),+]
            }
        }
    };
}

fields!(AtLeast, [a], rule => RuleShape {
    bounds: (rule.min, u32::MAX),
    ..RuleShape::of_one(&rule.a)
});
fields!(AtMost, [a], rule => RuleShape {
    bounds: (0, rule.max),
    ..RuleShape::of_one(&rule.a)
});
fields!(ExactlyMany, [a], rule => RuleShape {
    bounds: (rule.count, rule.count),
    ..RuleShape::of_one(&rule.a)
});
fields!(Edge, [a], rule => RuleShape {
    overlap: rule.overlap,
    ..RuleShape::of_one(&rule.a)
});
fields!(Unordered, [a, b], rule => RuleShape {
    b: Some(&rule.b),
    within: rule.within,
    same: &rule.same,
    ..RuleShape::of_one(&rule.a)
});
fields!(Ordered, [a, b], rule => RuleShape {
    b: Some(&rule.b),
    within: rule.within,
    same: &rule.same,
    overlap: rule.overlap,
    ..RuleShape::of_one(&rule.a)
});

fields!(TotalOf, [a], rule => RuleShape {
    within: rule.within,
    same: &rule.same,
    ..RuleShape::of_one(&rule.a)
});

impl Rule {
    pub(crate) fn patterns_mut(&mut self, path: &[&str]) -> Vec<PlacedPattern<'_>> {
        let template = self.template();
        let entries = self.entries_mut().into_iter();
        let patterns =
            entries.flat_map(|(key, calls)| calls.patterns_mut(&[path, &[template, key]].concat()));
        patterns.collect()
    }
}
