//! Rules over calls as they are written, one DECLARE template each. Knows which fields may be
//! written together, not what a rule means.

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

/// Defines the rules from the one list of templates.
macro_rules! templates {
    ($($(#[$doc:meta])* $template:ident($fields:ident) = $name:literal,)+) => {
        /// One rule: a template and what it is about. `a` is first in time wherever there is an
        /// order.
        #[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case", remote = "Self")]
        pub enum Rule {
            $($(#[$doc])* $template($fields),)+
        }

        /// Every template by name, and whether its rules are about two kinds of calls.
        pub const RULE_TEMPLATES: &[(&str, bool)] = &[$(($name, $fields::HAS_B),)+];

        impl Rule {
            /// The template's name.
            pub(crate) fn template(&self) -> &'static str {
                match self {
                    $(Self::$template(_) => $name,)+
                }
            }

            /// What the rule is about.
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
    /// At least `min` calls a.
    Existence(AtLeast) = "existence",
    /// At most `max` calls a.
    Absence(AtMost) = "absence",
    /// Exactly `count` calls a.
    Exactly(ExactlyMany) = "exactly",
    /// The first call is an a.
    Init(Edge) = "init",
    /// The last call is an a.
    End(Edge) = "end",
    /// For each a, some b anywhere.
    RespondedExistence(Unordered) = "responded_existence",
    /// For each a some b, and for each b some a.
    Coexistence(Unordered) = "coexistence",
    /// Not both an a and a b.
    NotCoexistence(Unordered) = "not_coexistence",
    /// After each a comes a b.
    Response(Ordered) = "response",
    /// After each a comes a b, before the next a.
    AlternateResponse(Ordered) = "alternate_response",
    /// The next call after each a is a b.
    ChainResponse(Ordered) = "chain_response",
    /// Before each b came an a.
    Precedence(Ordered) = "precedence",
    /// Before each b came an a, after the b before it.
    AlternatePrecedence(Ordered) = "alternate_precedence",
    /// The call right before each b is an a.
    ChainPrecedence(Ordered) = "chain_precedence",
    /// `response` and `precedence`.
    Succession(Ordered) = "succession",
    /// `alternate_response` and `alternate_precedence`.
    AlternateSuccession(Ordered) = "alternate_succession",
    /// `chain_response` and `chain_precedence`.
    ChainSuccession(Ordered) = "chain_succession",
    /// No a came before a b.
    NotSuccession(Ordered) = "not_succession",
    /// No a came right before a b.
    NotChainSuccession(Ordered) = "not_chain_succession",
    /// At no call, the values of the calls a up to it add up to more than `max`.
    Total(TotalOf) = "total",
}

/// The fields of a rule, whatever its template.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleShape<'r> {
    pub(crate) a: &'r Calls,
    /// `None` for a rule about one kind of calls.
    pub(crate) b: Option<&'r Calls>,
    /// How many calls a there must be at least, and at most.
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

    /// The one or two kinds of calls.
    pub(crate) fn kinds(self) -> impl Iterator<Item = &'r Calls> {
        [Some(self.a), self.b].into_iter().flatten()
    }

    /// The patterns of both.
    pub(crate) fn patterns(self) -> impl Iterator<Item = &'r CallPattern> {
        self.kinds().flat_map(Calls::patterns)
    }
}

/// A minimum number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AtLeast {
    /// The calls it is about.
    pub a: Calls,
    /// How many there must be, at least 1.
    #[serde(default)]
    pub min: Min,
}

/// A maximum number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct AtMost {
    /// The calls it is about.
    pub a: Calls,
    /// How many there may be; 0 if left out.
    #[serde(default)]
    pub max: Max,
}

/// An exact number of calls.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ExactlyMany {
    /// The calls it is about.
    pub a: Calls,
    /// How many there must be, at least 1.
    #[serde(default)]
    pub count: ExactCount,
}

/// The first or the last call.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Edge {
    /// The calls it is about.
    pub a: Calls,
    /// The verdict where calls overlap so that the rule is kept in some orders only.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Overlap")]
    pub overlap: Option<Overlap>,
}

/// Two kinds of calls in no order.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Unordered {
    /// The first kind of calls.
    pub a: Calls,
    /// The second kind of calls.
    pub b: Calls,
    /// Most time between the end of the earlier call and the start of the later.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub within: Option<Period>,
    /// Where both calls must agree.
    #[serde(default, deserialize_with = "at_least_one_path")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub same: Vec<Same>,
}

/// Two kinds of calls in an order.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Ordered {
    /// The calls that come first.
    pub a: Calls,
    /// The calls that come second.
    pub b: Calls,
    /// Most time between the end of the earlier call and the start of the later.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub within: Option<Period>,
    /// Where both calls must agree.
    #[serde(default, deserialize_with = "at_least_one_path")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub same: Vec<Same>,
    /// The verdict where calls overlap so that the rule is kept in some orders only.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Overlap")]
    pub overlap: Option<Overlap>,
}

/// A sum over calls of one kind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TotalOf {
    /// The calls it is about.
    pub a: Calls,
    /// The path of the values that are added up, such as `args.amount`.
    pub of: ValuePath,
    /// The greatest sum that keeps the rule.
    #[serde(deserialize_with = "max_of_sum")]
    pub(crate) max: DecimalBound,
    /// How long before a call the others may have started that are added to it.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub within: Option<Period>,
    /// Where calls must agree to be added up.
    #[serde(default, deserialize_with = "own_paths")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub same: Vec<Same>,
}

fn max_of_sum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DecimalBound, D::Error> {
    DecimalBound::new("max", Value::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// All calls of a sum are of one kind, so they share values at one path.
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

/// The verdict on a rule that is kept in some of the orders which overlapping calls could have had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is violated.
    Fail,
    /// It is kept.
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

/// What the fields are about: calls a, or calls a and b.
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
    /// All its patterns, below a path.
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

// === words that are no template ===

/// Words that people try, and what to write.
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
        "write `precedence: { a, b }`, which asks for an a before each b",
    ),
    (
        &["after"],
        "write `response: { a, b }`, which asks for a b after each a",
    ),
    (
        &["next"],
        "write `chain_response: { a, b }`, which asks for a b right after each a",
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
];

/// The templates that forbid something of two kinds of calls.
const BANS: [&str; 3] = ["not_coexistence", "not_succession", "not_chain_succession"];
const BANS_REMEDY: &str = "rules that forbid something are `absence`, `not_coexistence`, \
                           `not_succession` and `not_chain_succession`";

/// A deserializer that refuses words that are no template, and says what to write instead.
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

/// A visitor of templates, the variant of one, or the word of one.
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
