//! The written form of rules over calls. Each rule is a template with its fields: `total`, or a
//! template of the language DECLARE.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, DeserializeSeed, EnumAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, forward_to_deserialize_any};
use serde_json::Value;
use text::nearest;

use super::call_pattern::{CallPattern, Calls};
use super::condition::DecimalBound;
use super::field_aliases::read_with_hints;
use super::limits::{Period, count};
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
    #[serde(default)]
    pub min: Min,
}

/// A maximum number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AtMost {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The maximum number of calls; 0 if left out.
    #[serde(default)]
    pub max: Max,
}

/// An exact number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExactlyMany {
    /// The calls that the rule checks.
    pub a: Calls,
    /// The required number of calls, at least 1.
    #[serde(default)]
    pub count: ExactCount,
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
    bounds: (rule.min.0, u32::MAX),
    ..RuleShape::of_one(&rule.a)
});
fields!(AtMost, [a], rule => RuleShape {
    bounds: (0, rule.max.0),
    ..RuleShape::of_one(&rule.a)
});
fields!(ExactlyMany, [a], rule => RuleShape {
    bounds: (rule.count.0, rule.count.0),
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

// === counts ===

count!(Min, "`min`", 1, "How many calls there must be, at least 1.");
count!(Max, "`max`", 0, "How many calls there may be.");
count!(
    ExactCount,
    "`count`",
    1,
    "How many calls there must be, no more and no fewer, at least 1."
);

// === words that are not templates ===

/// Words that people try instead of a template, and the remedy for each.
const REWRITES: &[(&[&str], &str)] = &[
    (
        &["choice"],
        "write `existence: { a: \"^(x|y)$\" }`, with both names in one pattern",
    ),
    (
        &["exclusive_choice"],
        "write two rules, `existence: { a: \"^(x|y)$\" }` and `not_coexistence: { a: \"^x$\", b: \
         \"^y$\" }`",
    ),
    (
        &[
            "not_response",
            "not_precedence",
            "alternate_not_succession",
            "not_alternate_succession",
            "not_before",
        ],
        "write `not_succession`, which forbids an a before a b",
    ),
    (
        &[
            "not_chain",
            "chain_not_succession",
            "nonchainsuccession",
            "not_chain_response",
            "not_chain_precedence",
        ],
        "write `not_chain_succession`",
    ),
    (&["not_existence", "never", "forbidden"], "write `absence`"),
    (&["nonsuccession"], "write `not_succession`"),
    (
        &[
            "noncoexistence",
            "not_responded_existence",
            "not_co_existence",
        ],
        "write `not_coexistence`",
    ),
    (&["altresponse"], "write `alternate_response`"),
    (&["altprecedence"], "write `alternate_precedence`"),
    (&["altsuccession"], "write `alternate_succession`"),
    (
        &["exactly_one", "exactly_once"],
        "write `exactly`, whose `count` is 1 if left out",
    ),
    (&["co_existence"], "write `coexistence`"),
    (
        &["before", "requires"],
        "write `precedence: { a, b }`, which requires an a before each b",
    ),
    (
        &["after"],
        "write `response: { a, b }`, which requires a b after each a",
    ),
    (
        &["next"],
        "write `chain_response: { a, b }`, which requires a b right after each a",
    ),
    (&["first"], "write `init`"),
    (&["last"], "write `end`"),
    (
        &["eventually", "participation", "at_least_one", "required"],
        "write `existence`",
    ),
    (&["at_most_one"], "write `absence` with `max: 1`"),
    (&["at_least"], "write `existence` with `min`"),
    (&["at_most"], "write `absence` with `max`"),
    (&["sum"], "write `total`"),
    (
        &["any_of"],
        "write a list of patterns as `a` or `b`, of which a call matches one",
    ),
];

/// The templates that forbid a relation of two kinds of calls.
const BANS: [&str; 3] = ["not_coexistence", "not_succession", "not_chain_succession"];
const BANS_REMEDY: &str = "rules that forbid something are `absence`, `not_coexistence`, \
                           `not_succession` and `not_chain_succession`";

/// A deserializer that rejects words that are not templates, and suggests the remedy.
struct Templates<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Templates<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Template(visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

/// Wraps a visitor of templates, or the access to a variant. ([`Word`] wraps the seed that parses
/// the variant's name.)
struct Template<T>(T);

impl<'de, V: Visitor<'de>> Visitor<'de> for Template<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule such as `precedence: { a: \"^read$\", b: \"^write$\" }`")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Template(data))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Template<A> {
    type Error = A::Error;
    type Variant = A::Variant;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, A::Variant), A::Error> {
        self.0.variant_seed(Word(seed))
    }
}

struct Word<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Word<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Word<S> {
    type Value = S::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a template's name")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<S::Value, E> {
        let known = REWRITES.iter().find(|(words, _)| words.contains(&word));
        let is_new_ban = || word.starts_with("not_") && nearest(word, BANS).is_none();
        let rewrite = match known {
            Some((_, rewrite)) => *rewrite,
            None if is_new_ban() => BANS_REMEDY,
            None => return self.0.deserialize(de::value::StrDeserializer::new(word)),
        };
        Err(E::custom(format_args!(
            "`{word}` is not a rule template: {rewrite}"
        )))
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Rule::deserialize(Templates(deserializer))
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Rule::serialize(self, serializer)
    }
}
