//! Conditions on the values of a call, as `where` lists them: how they are written, and whether
//! values satisfy them. Knows one path at a time.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Number, Value};
use text::decimal::Decimal;
use text::{abbreviated, nearest};

use super::pattern::Pattern;
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::value_path::{PathValues, ValuePath, is_one_of};
use crate::extract::equality;

/// Conditions by path; all of them must hold.
pub(crate) type Where = BTreeMap<ValuePath, Condition>;

/// A pattern of a call says more about one call with `where`: a map from paths to conditions, all
/// of which must hold. A path is `args` or `result`, then keys, positions (from 0) or `*` for
/// every element of a list: `args.amount`, `result.items.*.id`. The text of a result is read as
/// JSON if it is JSON. `spanscore inspect --path args.amount` shows the values at a path in
/// recorded runs.
///
/// ```yaml
/// evaluate:
///   tool_calls:
///     disallowed:
///       - { name: "^transfer$", where: { args.amount: { gt: 1000 }, args.currency: EUR } }
///       - { name: "^refund$", where: { args.country: [DE, AT], args.paid: { exists: false } } }
/// ```
///
/// | written | means |
/// |---|---|
/// | `EUR`, `7`, `true` | `equals` |
/// | `[DE, AT]` | `in` |
/// | `{ equals: [1, 2] }` | equals this list |
/// | `equals`, `not_equals`, `in`, `not_in` | equality of JSON: `7` is `7.0`, and not `"7"` |
/// | `gt`, `gte`, `lt`, `lte` | exact order of decimals; a lower and an upper bound together |
/// | `regex`, `contains`, `not_contains` | of a text, or of the JSON text of a number or boolean |
/// | `exists: true`, `exists: false` | a value other than null is there, or none is |
///
/// - *Several values.* A path with `*` leads to several: some value must satisfy all operators of
///   its condition together. `not_equals`, `not_in` and `not_contains` hold if there is a value
///   and none is equal, in the list, or contains the text. So `lt` and `gte` are no opposites
///   under `*`, and `{ gt: 1000, not_equals: 5000 }` asks `gt` of some value and `not_equals` of
///   all.
/// - *No value.* Only `exists: false` holds where there is no value. If absence counts, write a
///   second entry. Null is no value, except where `equals` or `in` names it. If no call that fits
///   the rest of the pattern has anything at the path, the explanation says so, and if that is so
///   in all runs, `/v1/status` and `replay`: the path may be misspelt.
/// - *No text.* `regex`, `contains` and `not_contains` match no list and no map: the explanation
///   and `/v1/status` name the first one that they met.
/// - *No number.* An order reads JSON numbers and texts that are wholly a number, `-1000.50`; not
///   `1,000`, `+5`, `.5`, `1e3`. Any other value keeps the verdict open, and the explanation names
///   it: a transfer whose amount is written differently does not pass.
/// - `args: { x: "^y" }` beside `where` matches texts only.
///
/// What is known of a value decides what is known of a condition:
///
/// | evidence | answer |
/// |---|---|
/// | the value was captured | yes or no |
/// | arguments or result were not captured | open, `exists` too |
/// | the value is not in captured arguments | no; `exists: false` yes |
/// | arguments are a text or a list, and the path asks for a key | open |
/// | the value lies behind a cut | open; a value that ends before the cut is known |
/// | `contains` or `shared_text`, found in the kept part | yes |
/// | `contains` or `shared_text`, not found, and the text is cut | open |
/// | `regex` of a text that is cut | open |
/// | `a_in_b`: `a` is cut, and its kept part is not in a whole `b` | no |
/// | `equals` with a text that is cut and differs already | no |
/// | `NaN`, or no number where an order is asked | open |
/// | the work that searching may take is used up | open |
///
/// A value that was cut is read as its beginning. If a sender writes one key twice, the second of
/// which is behind the cut, the first counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition(Vec<Operator>);

#[derive(Debug, Clone, PartialEq)]
enum Operator {
    Equals(Value),
    NotEquals(Value),
    In(Vec<Value>),
    NotIn(Vec<Value>),
    Gt(DecimalBound),
    Gte(DecimalBound),
    Lt(DecimalBound),
    Lte(DecimalBound),
    Regex(Pattern),
    Contains(String),
    NotContains(String),
    Exists(bool),
}

/// A number as it was written: a JSON number, or a text that is one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecimalBound(Value);

/// Why it is not known whether values satisfy a condition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Doubts {
    /// A value is no number where an order is asked.
    pub(crate) no_number: bool,
    /// A value cannot be compared.
    pub(crate) incomparable: bool,
    /// A value lies behind a cut.
    pub(crate) cut: bool,
}

impl Doubts {
    /// Notes them for a call whose answer they keep open.
    pub(crate) fn note(self, call_idx: usize, path: &ValuePath, captured: &mut CapturedValues<'_>) {
        if self.no_number {
            captured.note_no_number(call_idx, path);
        }
        if self.incomparable {
            captured.note_incomparable(call_idx);
        }
        if self.cut {
            captured.note_cut(call_idx);
        }
    }
}

impl Condition {
    /// Do these values satisfy it? Some of them may be incomplete.
    pub(crate) fn fit(
        &self,
        found: &PathValues<'_>,
        incomplete: &[&Value],
        captured: &mut CapturedValues<'_>,
    ) -> (Tri, Doubts) {
        let mut doubts = Doubts::default();
        let behind_cut = if found.is_open { Tri::Maybe } else { Tri::No };
        let exists = (found.values.iter())
            .map(|value| Tri::from(!value.is_null()))
            .fold(behind_cut, Tri::max);
        let mut of_value = |operator: &Operator, value: &Value| {
            let is_cut = is_one_of(value, incomplete);
            doubts.cut |= is_cut;
            operator.fit(value, is_cut, captured, &mut doubts)
        };
        let is_of_all = |operator: &&Operator| operator.is_of_all_values();
        let mut answer = Tri::Yes;
        for operator in self.0.iter().filter(is_of_all) {
            let holds = match operator {
                Operator::Exists(_) => !exists,
                _ => {
                    let values = found.values.iter().filter(|value| !value.is_null());
                    let fits = values.map(|value| of_value(operator, value));
                    exists.min(!fits.fold(behind_cut, Tri::max))
                }
            };
            answer = answer.min(holds);
        }
        if !self.0.iter().all(|operator| operator.is_of_all_values()) {
            let mut some = behind_cut;
            for value in &found.values {
                let operators = self
                    .0
                    .iter()
                    .filter(|operator| !operator.is_of_all_values());
                let fits = operators.map(|operator| of_value(operator, value));
                some = some.max(fits.min().unwrap_or(Tri::Yes));
                if some == Tri::Yes {
                    break;
                }
            }
            answer = answer.min(some);
        }
        doubts.cut |= found.is_open;
        (answer, doubts)
    }

    /// Is it satisfied where there is no value?
    pub(crate) fn asks_for_absence(&self) -> bool {
        self.0.contains(&Operator::Exists(false))
    }

    /// An operator on texts and a list or map that it never matches, where a text would have
    /// changed the answer.
    pub(crate) fn unreadable<'v>(
        &self,
        values: &[&'v Value],
        holds: Tri,
    ) -> Option<(&'static str, &'v Value)> {
        let operator = self.0.iter().find(|operator| match operator {
            Operator::Regex(_) | Operator::Contains(_) => holds != Tri::Yes,
            Operator::NotContains(_) => holds != Tri::No,
            _ => false,
        })?;
        let mut values = values.iter();
        let value = values.find(|value| value.is_array() || value.is_object())?;
        Some((operator.name(), value))
    }

    /// The pattern under `regex`.
    pub(crate) fn pattern_mut(&mut self) -> Option<&mut Pattern> {
        self.0.iter_mut().find_map(|operator| match operator {
            Operator::Regex(pattern) => Some(pattern),
            _ => None,
        })
    }

    /// Each operator and its value, for details.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.0
            .iter()
            .map(|operator| (operator.name(), operator.value()))
    }

    /// A text that YAML 1.1 takes for a boolean. In capitals it is rather a code, such as Norway's.
    pub(crate) fn yaml_boolean(&self) -> Option<&str> {
        let is_boolean = |text: &&str| matches!(*text, "yes" | "no" | "on" | "off");
        self.0.iter().find_map(|operator| match operator {
            Operator::Equals(value) | Operator::NotEquals(value) => {
                value.as_str().filter(is_boolean)
            }
            Operator::In(values) | Operator::NotIn(values) => {
                values.iter().filter_map(Value::as_str).find(is_boolean)
            }
            _ => None,
        })
    }

    /// A condition that no value satisfies, or that says one thing twice.
    fn contradiction(&self) -> Option<String> {
        let bounds = |of: fn(&Operator) -> Option<(&DecimalBound, bool)>| {
            self.0.iter().filter_map(of).collect::<Vec<_>>()
        };
        let lower = bounds(|operator| match operator {
            Operator::Gt(bound) => Some((bound, true)),
            Operator::Gte(bound) => Some((bound, false)),
            _ => None,
        });
        let upper = bounds(|operator| match operator {
            Operator::Lt(bound) => Some((bound, true)),
            Operator::Lte(bound) => Some((bound, false)),
            _ => None,
        });
        let (mut allowed, mut excluded) = (Vec::new(), Vec::new());
        for operator in &self.0 {
            match operator {
                Operator::Equals(value) => allowed.push(value),
                Operator::In(list) => allowed.extend(list),
                Operator::NotEquals(value) => excluded.push(value),
                Operator::NotIn(list) => excluded.extend(list),
                _ => {}
            }
        }
        let is_excluded = |value: &&Value| {
            let mut excluded = excluded.iter();
            excluded.any(|other| equality::equal(other, value) == Some(true))
        };
        let mut of_some = self
            .0
            .iter()
            .filter(|operator| !operator.is_of_all_values());
        if self.asks_for_absence() && self.0.len() > 1 {
            return Some(
                "`exists: false` holds where there is no value, and nothing else does: write it \
                 alone"
                    .to_owned(),
            );
        }
        if !allowed.is_empty() && (of_some.nth(1).is_some() || allowed.iter().all(is_excluded)) {
            return Some(
                "`equals` and `in` name every value that is asked for, so another operator says \
                 nothing more or excludes them all: leave it out"
                    .to_owned(),
            );
        }
        match (lower.as_slice(), upper.as_slice()) {
            ([_, _, ..], _) => Some("`gt` and `gte` are two lower bounds: keep one".to_owned()),
            (_, [_, _, ..]) => Some("`lt` and `lte` are two upper bounds: keep one".to_owned()),
            ([(low, is_above)], [(high, is_below)]) => {
                let is_empty = match low.number().cmp(&high.number()) {
                    Ordering::Less => false,
                    Ordering::Equal => *is_above || *is_below,
                    Ordering::Greater => true,
                };
                is_empty.then(|| {
                    let (above, below) = (
                        if *is_above { "above" } else { "at least" },
                        if *is_below { "below" } else { "at most" },
                    );
                    let (low, high) = (low.text(), high.text());
                    let remedy =
                        if low == high { "write `gte` and `lte`" } else { "exchange the two" };
                    format!("no number is {above} {low} and {below} {high}: {remedy}")
                })
            }
            _ if self.0.is_empty() => Some(format!(
                "nothing is asked for: write a value, a list of values, or one of {}",
                quoted(&OPERATORS)
            )),
            _ => None,
        }
    }
}

impl Operator {
    /// Is it about all values at the path, not about some?
    fn is_of_all_values(&self) -> bool {
        matches!(
            self,
            Self::NotEquals(_) | Self::NotIn(_) | Self::NotContains(_) | Self::Exists(false)
        )
    }

    /// Does a value satisfy it? For `not_…`, what is not to be satisfied.
    fn fit(
        &self,
        value: &Value,
        is_cut: bool,
        captured: &mut CapturedValues<'_>,
        doubts: &mut Doubts,
    ) -> Tri {
        let is_left = captured.spend_searching(self.cost(value));
        match self {
            _ if !is_left => Tri::Maybe,
            Self::Equals(expected) | Self::NotEquals(expected) => {
                equals(expected, value, is_cut, doubts)
            }
            Self::In(list) | Self::NotIn(list) => {
                let fits = list
                    .iter()
                    .map(|expected| equals(expected, value, is_cut, doubts));
                fits.max().unwrap_or(Tri::No)
            }
            _ if value.is_null() => Tri::No,
            Self::Exists(_) => Tri::Yes,
            Self::Gt(bound) => order(bound, value, is_cut, doubts, Ordering::is_gt),
            Self::Gte(bound) => order(bound, value, is_cut, doubts, Ordering::is_ge),
            Self::Lt(bound) => order(bound, value, is_cut, doubts, Ordering::is_lt),
            Self::Lte(bound) => order(bound, value, is_cut, doubts, Ordering::is_le),
            Self::Regex(pattern) => match text_of(value) {
                None => Tri::No,
                Some(_) if is_cut => Tri::Maybe,
                Some(text) => {
                    captured.search(pattern.search_cost(&text), || pattern.is_match(&text))
                }
            },
            Self::Contains(part) | Self::NotContains(part) => match text_of(value) {
                None => Tri::No,
                Some(text) if text.contains(part) => Tri::Yes,
                Some(_) if is_cut => Tri::Maybe,
                Some(_) => Tri::No,
            },
        }
    }

    /// The work of looking at a value, but for that of a pattern.
    fn cost(&self, value: &Value) -> u64 {
        let length = match value {
            Value::String(text) => text.len(),
            Value::Number(number) => number.as_str().len(),
            Value::Array(items) => items.len(),
            _ => 0,
        };
        let n_compared = match self {
            Self::In(list) | Self::NotIn(list) => list.len(),
            Self::Regex(_) | Self::Exists(_) => return 1,
            _ => 1,
        };
        n_compared.max(length) as u64
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Equals(_) => "equals",
            Self::NotEquals(_) => "not_equals",
            Self::In(_) => "in",
            Self::NotIn(_) => "not_in",
            Self::Gt(_) => "gt",
            Self::Gte(_) => "gte",
            Self::Lt(_) => "lt",
            Self::Lte(_) => "lte",
            Self::Regex(_) => "regex",
            Self::Contains(_) => "contains",
            Self::NotContains(_) => "not_contains",
            Self::Exists(_) => "exists",
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Equals(value) | Self::NotEquals(value) => value.clone(),
            Self::In(values) | Self::NotIn(values) => values.clone().into(),
            Self::Gt(bound) | Self::Gte(bound) | Self::Lt(bound) | Self::Lte(bound) => {
                bound.0.clone()
            }
            Self::Regex(pattern) => pattern.as_str().into(),
            Self::Contains(part) | Self::NotContains(part) => part.as_str().into(),
            Self::Exists(exists) => (*exists).into(),
        }
    }
}

/// Equal as JSON; of a text that was cut, its beginning is known.
fn equals(expected: &Value, value: &Value, is_cut: bool, doubts: &mut Doubts) -> Tri {
    let may_be_equal = match (expected, value) {
        (Value::String(expected), Value::String(kept)) => expected.starts_with(kept.as_str()),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => false,
    };
    if is_cut {
        return if may_be_equal { Tri::Maybe } else { Tri::No };
    }
    let equal = equality::equal(expected, value);
    doubts.incomparable |= equal.is_none();
    Tri::from(equal)
}

fn order(
    bound: &DecimalBound,
    value: &Value,
    is_cut: bool,
    doubts: &mut Doubts,
    holds: fn(Ordering) -> bool,
) -> Tri {
    match number_of(value).filter(|_| !is_cut) {
        Some(number) => Tri::from(holds(number.cmp(&bound.number()))),
        None => {
            doubts.no_number |= !is_cut;
            Tri::Maybe
        }
    }
}

/// A JSON number, or a text that is wholly a decimal number.
pub(crate) fn number_of(value: &Value) -> Option<Decimal<'_>> {
    match value {
        Value::Number(number) => Decimal::parse(number.as_str()),
        Value::String(text) => Decimal::parse_plain(text),
        _ => None,
    }
}

/// The text of a value: itself, or the JSON text of a number or a boolean.
fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) => Some(number.as_str().into()),
        Value::Bool(value) => Some(if *value { "true" } else { "false" }.into()),
        _ => None,
    }
}

impl DecimalBound {
    pub(crate) fn new(operator: &str, value: Value) -> Result<Self, String> {
        match number_of(&value) {
            Some(_) => Ok(Self(value)),
            None => Err(format!(
                "`{operator}` needs a number, found `{}`: write one such as 1000 or 0.5",
                Self(value).text()
            )),
        }
    }

    pub(crate) fn number(&self) -> Decimal<'_> {
        number_of(&self.0).expect("a bound is a number since it was read")
    }

    pub(crate) fn text(&self) -> Cow<'_, str> {
        text_of(&self.0).unwrap_or_else(|| self.0.to_string().into())
    }
}

impl Serialize for DecimalBound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for DecimalBound {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DecimalBound".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["number", "string"] })
    }
}

/// "gt 1000".
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 60;
        for (at, (name, value)) in self.parts().enumerate() {
            let and = if at == 0 { "" } else { " and " };
            write!(
                f,
                "{and}{name} {}",
                abbreviated(&value.to_string(), MAX_CHARS)
            )?;
        }
        Ok(())
    }
}

// === as written ===

const OPERATORS: [&str; 12] = [
    "equals",
    "not_equals",
    "in",
    "not_in",
    "gt",
    "gte",
    "lt",
    "lte",
    "regex",
    "contains",
    "not_contains",
    "exists",
];

/// Words that people try, and the operators that they mean.
const SPELLINGS: [(&str, &str); 12] = [
    ("eq", "equals"),
    ("is", "equals"),
    ("ne", "not_equals"),
    ("one_of", "in"),
    ("greater_than", "gt"),
    ("above", "gt"),
    ("min", "gte"),
    ("less_than", "lt"),
    ("below", "lt"),
    ("max", "lte"),
    ("matches", "regex"),
    ("pattern", "regex"),
];

/// The key under which serde_json passes on a number that no primitive type holds.
const NUMBER: &str = "$serde_json::private::Number";

fn quoted(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Reads `where`: at least one path.
pub(crate) fn at_least_one_condition<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Where, D::Error> {
    let conditions = Where::deserialize(deserializer)?;
    if conditions.is_empty() {
        Err(de::Error::custom(
            "`where` names no path: write one such as `args.amount: { gt: 1000 }`, or leave \
             `where` out",
        ))
    } else {
        Ok(conditions)
    }
}

/// The name of an operator, or [`NUMBER`].
struct OperatorName(&'static str);

impl<'de> Deserialize<'de> for OperatorName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = OperatorName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an operator")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<OperatorName, E> {
                let name = OPERATORS
                    .into_iter()
                    .chain([NUMBER])
                    .find(|name| *name == word);
                if let Some(name) = name {
                    return Ok(OperatorName(name));
                }
                let meant = SPELLINGS.iter().find(|(spelling, _)| *spelling == word);
                let meant = meant.map(|(_, name)| *name);
                Err(match meant.or_else(|| nearest(word, OPERATORS)) {
                    Some(name) => E::custom(format_args!(
                        "unknown operator `{word}`: did you mean `{name}`?"
                    )),
                    None => E::custom(format_args!(
                        "unknown operator `{word}`: write one of {}; a key is part of the path, \
                         such as `args.{word}: …`",
                        quoted(&OPERATORS)
                    )),
                })
            }
        }
        deserializer.deserialize_identifier(NameVisitor)
    }
}

/// Reads a value and checks it, so that an error is placed at the value.
struct Checked<T, F>(F, PhantomData<T>);

impl<'de, T: Deserialize<'de>, U, F: FnOnce(T) -> Result<U, String>> DeserializeSeed<'de>
    for Checked<T, F>
{
    type Value = U;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<U, D::Error> {
        let value = T::deserialize(deserializer)?;
        (self.0)(value).map_err(de::Error::custom)
    }
}

fn read_operator<'de, A: MapAccess<'de>>(
    name: &'static str,
    map: &mut A,
) -> Result<Operator, A::Error> {
    let bound = |map: &mut A| {
        map.next_value_seed(Checked(
            |value| DecimalBound::new(name, value),
            PhantomData::<Value>,
        ))
    };
    let list = |map: &mut A| {
        let at_least_one = |list: Vec<Value>| {
            let asks = if name == "in" { "matches" } else { "excludes" };
            let why = || format!("`{name}` {asks} nothing: list at least one value");
            if list.is_empty() { Err(why()) } else { Ok(list) }
        };
        map.next_value_seed(Checked(at_least_one, PhantomData))
    };
    Ok(match name {
        "equals" => Operator::Equals(map.next_value()?),
        "not_equals" => Operator::NotEquals(map.next_value()?),
        "in" => Operator::In(list(map)?),
        "not_in" => Operator::NotIn(list(map)?),
        "gt" => Operator::Gt(bound(map)?),
        "gte" => Operator::Gte(bound(map)?),
        "lt" => Operator::Lt(bound(map)?),
        "lte" => Operator::Lte(bound(map)?),
        "regex" => Operator::Regex(map.next_value()?),
        "contains" => Operator::Contains(map.next_value()?),
        "not_contains" => Operator::NotContains(map.next_value()?),
        "exists" => Operator::Exists(map.next_value()?),
        _ => {
            let number: String = map.next_value()?;
            let number = number.parse::<Number>().map_err(de::Error::custom)?;
            Operator::Equals(Value::Number(number))
        }
    })
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ConditionVisitor;
        impl ConditionVisitor {
            fn equals<E>(value: impl Into<Value>) -> Result<Condition, E> {
                Ok(Condition(vec![Operator::Equals(value.into())]))
            }
        }
        impl<'de> Visitor<'de> for ConditionVisitor {
            type Value = Condition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list of values, or a map with operators such as `gt`")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Condition, E> {
                Self::equals(value)
            }

            fn visit_u64<E>(self, value: u64) -> Result<Condition, E> {
                Self::equals(value)
            }

            fn visit_i64<E>(self, value: i64) -> Result<Condition, E> {
                Self::equals(value)
            }

            fn visit_u128<E: de::Error>(self, value: u128) -> Result<Condition, E> {
                Self::equals(Number::from_u128(value).map(Value::Number))
            }

            fn visit_i128<E: de::Error>(self, value: i128) -> Result<Condition, E> {
                Self::equals(Number::from_i128(value).map(Value::Number))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Condition, E> {
                Self::equals(value)
            }

            fn visit_str<E>(self, value: &str) -> Result<Condition, E> {
                Self::equals(value)
            }

            fn visit_unit<E: de::Error>(self) -> Result<Condition, E> {
                Self::equals(Value::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Condition, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                if list.is_empty() {
                    Err(de::Error::custom(
                        "an empty list matches nothing: list at least one value, or write \
                         `equals: []` for the empty list",
                    ))
                } else {
                    Ok(Condition(vec![Operator::In(list)]))
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Condition, A::Error> {
                let mut operators = Vec::new();
                while let Some(OperatorName(name)) = map.next_key()? {
                    operators.push(read_operator(name, &mut map)?);
                }
                let condition = Condition(operators);
                match condition.contradiction() {
                    Some(message) => Err(de::Error::custom(message)),
                    None => Ok(condition),
                }
            }
        }
        deserializer.deserialize_any(ConditionVisitor)
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.parts() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

impl JsonSchema for Condition {
    fn schema_name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let bound = DecimalBound::json_schema(generator);
        let list = json_schema!({ "type": "array", "minItems": 1 });
        let text = json_schema!({ "type": "string" });
        json_schema!({
            "description": "What the values at a path must satisfy: a value that one of them \
                            equals, a list that holds one of them, or operators.",
            "anyOf": [
                { "type": ["string", "number", "boolean", "null"] },
                list,
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": false,
                    "properties": {
                        "equals": true, "not_equals": true, "in": list, "not_in": list,
                        "gt": bound, "gte": bound, "lt": bound, "lte": bound,
                        "regex": generator.subschema_for::<Pattern>(),
                        "contains": text, "not_contains": text, "exists": { "type": "boolean" },
                    },
                },
            ],
        })
    }
}
