//! The paths that `same` lists, at which two calls must agree. [`super::super::rules`] decides
//! whether calls agree; this module shows the values and their differences.

use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use text::{code, counted};

use super::field_aliases::Hinted;
use super::limits::min_length;
use super::shown_values::ShownValues;
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::copies::{Copied, Source, TextLeaves};
use crate::evaluate::comparison::score::Judgement;
use crate::evaluate::comparison::value_path::ValuePath;
use crate::extract::equality;

/// A pair of values that must agree: one path for both calls, or a path for each.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[schemars(inline, transform = or_one_path)]
pub struct Same {
    /// The path in `a`.
    pub(crate) a: ValuePath,
    /// The path in `b`.
    pub(crate) b: ValuePath,
    /// The relation that the two values must have.
    #[serde(default, skip_serializing_if = "Compare::is_equal")]
    compare: Compare,
    /// The minimum length of a shared text, in characters.
    #[serde(default, deserialize_with = "min_length")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 16))]
    pub min_length: Option<u32>,
}

impl Same {
    /// Returns the kind of copy that the calls must share; `None` if their values must be equal.
    pub(crate) fn copied(&self) -> Option<Copied> {
        match self.compare {
            Compare::Equal => None,
            Compare::AInB => Some(Copied::AInB),
            Compare::BInA => Some(Copied::BInA),
            Compare::SharedText => {
                let least = self.min_length.unwrap_or(DEFAULT_LENGTH);
                Some(Copied::Shared(least as usize))
            }
        }
    }

    /// Returns "the same `args.path`", or "a literal copy of `result` in `args.body`", with the
    /// number of characters if it is known.
    pub(crate) fn describe(&self, n_chars: Option<usize>) -> String {
        let (a, b) = (code(self.a.as_str()), code(self.b.as_str()));
        let copied = self.copied();
        let (of, place) = match copied {
            None if self.a == self.b => return format!("the same {a}"),
            None => return format!("the same {b} as {a}"),
            Some(Copied::BInA) => (b, a),
            Some(_) => (a, b),
        };
        match (n_chars, copied) {
            (Some(n_chars), _) => {
                let characters = counted(n_chars, "character", "characters");
                format!("a literal copy of {characters} of {of} in {place}")
            }
            (None, Some(Copied::Shared(least))) => {
                format!("a literal copy of at least {least} characters of {of} in {place}")
            }
            (None, _) => format!("a literal copy of {of} in {place}"),
        }
    }

    /// Adds the value of one call, `a` or `b`, whose counterpart differs. Returns the value's path.
    pub(crate) fn show_value(
        &self,
        call: usize,
        is_b: bool,
        judgement: &Judgement<'_>,
        values: &mut ShownValues,
    ) -> &ValuePath {
        let compare = serde_json::to_value(self.compare).unwrap_or_default();
        let operator = compare.as_str().unwrap_or_default().to_owned();
        let path = if is_b { &self.b } else { &self.a };
        values.add(call, path, [(operator, None)], judgement);
        path
    }

    /// Returns true if both calls have values and the values certainly do not agree.
    pub(crate) fn differs(&self, [a, b]: [usize; 2], captured: &mut CapturedValues<'_>) -> bool {
        let both = (captured.at(a, &self.a), captured.at(b, &self.b));
        let (Some(of_a), Some(of_b)) = both else {
            return false;
        };
        let (a_values, b_values) = (of_a.present(), of_b.present());
        let n_pairs = a_values.count() as u64 * b_values.count() as u64;
        if n_pairs == 0 || of_a.is_cut() || of_b.is_cut() || !captured.spend(n_pairs) {
            return false;
        }
        if self.copied().is_some() {
            let copy = self.copy([a, b], captured);
            return copy.is_some_and(|(is_copied, _)| is_copied == Tri::No);
        }
        let mut values = of_a.present();
        values.all(|one| {
            let mut others = of_b.present();
            others.all(|other| equality::equal(one, other) == Some(false))
        })
    }

    /// Returns the number of copied characters; `None` if the captured values show no copy.
    pub(crate) fn n_copied(
        &self,
        pair: [usize; 2],
        captured: &mut CapturedValues<'_>,
    ) -> Option<usize> {
        let (is_copied, n_chars) = self.copy(pair, captured)?;
        (is_copied == Tri::Yes).then_some(n_chars)
    }

    fn copy(&self, [a, b]: [usize; 2], captured: &mut CapturedValues<'_>) -> Option<(Tri, usize)> {
        let copied = self.copied()?;
        let a = TextLeaves::new(&captured.at(a, &self.a)?);
        let b = TextLeaves::new(&captured.at(b, &self.b)?);
        let spend = &mut |cost| captured.spend(cost);
        Source::new(copied, &a, spend).copy_in(&b, spend)
    }
}

// === as written ===

pub(crate) fn at_least_one_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Same>, D::Error> {
    let same = Vec::<Same>::deserialize(deserializer)?;
    if same.is_empty() {
        Err(de::Error::custom(
            "`same` names no path: write one such as `args.path`, or leave `same` out",
        ))
    } else {
        Ok(same)
    }
}

/// The relation that two calls must have at their paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Compare {
    /// The values are equal as JSON.
    #[default]
    Equal,
    /// A text of `a`, of at least 8 characters, is inside a text of `b`.
    AInB,
    /// Every text or number of `b` is in a text of `a` as a whole word.
    BInA,
    /// The values share at least `min_length` consecutive characters.
    SharedText,
}

impl Compare {
    fn is_equal(&self) -> bool {
        *self == Self::Equal
    }
}

const DEFAULT_LENGTH: u32 = 24;

impl<'de> Deserialize<'de> for Same {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SameVisitor;
        impl<'de> Visitor<'de> for SameVisitor {
            type Value = Same;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a path such as `args.path`, or a map with a path for `a` and one for `b`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Same, E> {
                let path = ValuePath::parse(text).map_err(E::custom)?;
                Ok(Same {
                    a: path.clone(),
                    b: path,
                    compare: Compare::Equal,
                    min_length: None,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Same, A::Error> {
                let same = Same::deserialize(Hinted::new(MapAccessDeserializer::new(map)))?;
                if same.min_length.is_some() && same.compare != Compare::SharedText {
                    return Err(de::Error::custom(
                        "`min_length` is for `compare: shared_text`: leave it out",
                    ));
                }
                Ok(same)
            }
        }
        deserializer.deserialize_any(SameVisitor)
    }
}

impl Serialize for Same {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Same::serialize(self, serializer)
    }
}

fn or_one_path(path_each: &mut Schema) {
    let path = json_schema!({ "type": "string", "pattern": ValuePath::PATTERN });
    *path_each = json_schema!({ "anyOf": [path, path_each] });
}
