//! Conditions under `where` on the values of a call: parses them, and decides whether values
//! satisfy them.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};
use text::abbreviated;
use text::decimal::Decimal;

use super::field_aliases::{Hinted, leading_sign};
use super::optional::written;
use super::pattern::Pattern;
use crate::evaluate::comparison::captured::{CapturedValues, Tri, kind_of};
use crate::evaluate::comparison::score::ReadBy;
use crate::evaluate::comparison::value_path::{PathValues, ValuePath};
use crate::extract::equality;

/// Conditions by path; a call must satisfy all of them.
pub(crate) type Where = BTreeMap<ValuePath, Condition>;

/// `where` restricts a call pattern by values in the call's arguments and result. It maps paths to
/// conditions, and a call matches only if it satisfies all of them. A path is `args` or `result`,
/// then keys, indices (from 0) or `*` for every element of a list: `args.amount`,
/// `result.items.*.id`. A result that is JSON text is parsed first. `spanscore inspect --path
/// args.amount` shows the values at a path in recorded runs.
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
/// | `equals`, `not_equals`, `in`, `not_in` | equality as JSON: `7` equals `7.0`, but not `"7"` |
/// | `gt`, `gte`, `lt`, `lte` | exact decimal order; a lower and an upper bound may be combined |
/// | `regex`, `contains`, `not_contains` | search a text, or the JSON text of a number or boolean |
/// | `exists: true`, `exists: false` | there is a value other than null, or there is none |
///
/// The short forms in the first two rows reject texts such as `>= 5`: write `{ equals: ">= 5" }`.
///
/// - *Several values.* A path with `*` can select several values. The condition is satisfied if one
///   value satisfies all its operators together, so `lt` and `gte` are not opposites. `not_equals`,
///   `not_in` and `not_contains` are different: they are satisfied if there is at least one value,
///   and none of the values is equal, is in the list, or contains the text. So
///   `{ gt: 1000, not_equals: 5000 }` requires one value above 1000, and no value 5000.
/// - *No value.* If there is no value, only `exists: false` is satisfied. To match a missing value
///   too, add a second pattern with `exists: false`, except in `required` and `sequence`, whose
///   entries must all be satisfied.
///   Null counts as a value only for `equals` or `in` with null. If no call that matches the rest
///   of the pattern has a value at the path, the explanation says that the path may be misspelt. If
///   no run has a value there, `/v1/status` and `replay` say so, too. If only some calls have a
///   value there, or only some elements under `*`, the explanation and `/v1/status` name the first
///   call without one, unless another condition excludes that call or the condition also has
///   `exists`.
/// - *Not a text.* `regex` and `contains` match no list and no map; such values satisfy
///   `not_contains`. The explanation and `/v1/status` name the path and the call of the first such
///   value, unless another condition excludes the call.
/// - *Not a number.* `gt`, `gte`, `lt` and `lte` read JSON numbers, and texts that are a plain
///   number such as `-1000.50`, but not `1,000`, `+5`, `.5` or `1e3`. For any other value the
///   answer is open, and the explanation names its path and call: an amount written as `1,000` may
///   prevent a verdict.
/// - A pattern under `args`, such as `args: { x: "^y" }`, matches texts only.
///
/// `where` is allowed in every call pattern: in `tool_calls`, `constraints`, and `ignore` of
/// `efficiency`. With `explain.values: true` explanations show a value as JSON: the text `"1000"`
/// has quotes.
///
/// The evidence for a value decides the answer of a condition; *open* means that the answer is
/// unknown:
///
/// | evidence | answer |
/// |---|---|
/// | the value was captured | yes or no |
/// | arguments or result were not captured | open, also for `exists` |
/// | the captured arguments lack the value | no; for `exists: false` yes |
/// | arguments are a text or a list, and the path names a key | open |
/// | the value lies behind a cut | open; a value that ends before the cut is known |
/// | `contains` or `shared_text`, found before the cut | yes |
/// | `contains` or `shared_text`, not found, and the text is cut | open |
/// | `regex` of a text that is cut | open |
/// | `a_in_b`: `a` is cut, and its beginning is not in an uncut `b` | no |
/// | `equals` with a text that is cut, and differs before the cut | no |
/// | `NaN`, or not a number for `gt`, `gte`, `lt` or `lte` | open |
/// | the search exceeds its budget (usually 0.5 s a criterion, 2 s a trace) | open |
///
/// A cut value is parsed up to the cut. If a sender writes a key twice and the second value is
/// behind the cut, the first value counts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, remote = "Self", deny_unknown_fields)]
#[schemars(transform = with_short_forms)]
pub struct Condition {
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    equals: Option<Value>,
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    not_equals: Option<Value>,
    #[serde(rename = "in")]
    #[serde(deserialize_with = "one_of", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Value>", length(min = 1))]
    one_of: Option<Vec<Value>>,
    #[serde(deserialize_with = "not_in", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<Value>", length(min = 1))]
    not_in: Option<Vec<Value>>,
    #[serde(deserialize_with = "gt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DecimalBound")]
    gt: Option<DecimalBound>,
    #[serde(deserialize_with = "gte", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DecimalBound")]
    gte: Option<DecimalBound>,
    #[serde(deserialize_with = "lt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DecimalBound")]
    lt: Option<DecimalBound>,
    #[serde(deserialize_with = "lte", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DecimalBound")]
    lte: Option<DecimalBound>,
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Pattern")]
    regex: Option<Pattern>,
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    contains: Option<String>,
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    not_contains: Option<String>,
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    exists: Option<bool>,
    /// The key under which serde_json passes numbers that no primitive type can represent.
    #[serde(rename = "$serde_json::private::Number")]
    #[serde(deserialize_with = "written", skip_serializing)]
    #[schemars(skip)]
    number: Option<String>,
}

/// A bound as it was written: a JSON number, or a text that is a number.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, extend("type" = ["number", "string"]))]
pub(crate) struct DecimalBound(Value);

type HoldsFor = fn(Ordering) -> bool;

/// The index of a call, and a path in the call.
type Place<'p> = (usize, &'p ValuePath);

impl Condition {
    fn equal_to(value: Value) -> Self {
        Self {
            equals: Some(value),
            ..Self::default()
        }
    }

    pub(crate) fn fit(
        &self,
        found: &PathValues<'_>,
        place: Place<'_>,
        captured: &mut CapturedValues<'_>,
    ) -> Tri {
        captured.forgetting(|captured| {
            let behind_cut = if found.is_open { Tri::Maybe } else { Tri::No };
            if found.is_cut() {
                captured.note_cut(place.0);
            }
            let (mut exists, mut some, mut hit) = (behind_cut, behind_cut, behind_cut);
            for value in &found.values {
                let is_cut = found.is_incomplete(value);
                if !captured.spend_searching(self.cost(value)) {
                    return Tri::Maybe;
                }
                some = some.max(self.is_satisfied(value, is_cut, place, captured));
                if !value.is_null() {
                    exists = Tri::Yes;
                    hit = hit.max(self.is_hit(value, is_cut, place, captured));
                }
            }
            let existence = self
                .exists
                .map(|asked| if asked { exists } else { !exists });
            let answers = [
                existence,
                self.requires_value().then_some(some),
                self.forbids_values().then(|| exists.min(!hit)),
            ];
            answers.into_iter().flatten().min().unwrap_or(Tri::Yes)
        })
    }

    /// Returns true if at least one value must satisfy an operator.
    fn requires_value(&self) -> bool {
        self.allowed().is_some()
            || self.regex.is_some()
            || self.contains.is_some()
            || self.bounds().next().is_some()
    }

    fn forbids_values(&self) -> bool {
        self.excluded().is_some() || self.not_contains.is_some()
    }

    /// Returns the values under `equals` and `in`; `None` if both are absent.
    fn allowed(&self) -> Option<impl Iterator<Item = &Value>> {
        any_of(&self.equals, &self.one_of)
    }

    /// Returns the values under `not_equals` and `not_in`; `None` if both are absent.
    fn excluded(&self) -> Option<impl Iterator<Item = &Value>> {
        any_of(&self.not_equals, &self.not_in)
    }

    /// Returns each bound and the comparison that a value must satisfy.
    fn bounds(&self) -> impl Iterator<Item = (&DecimalBound, HoldsFor)> {
        let bounds = [
            (&self.gt, Ordering::is_gt as HoldsFor),
            (&self.gte, Ordering::is_ge),
            (&self.lt, Ordering::is_lt),
            (&self.lte, Ordering::is_le),
        ];
        let bounds = bounds.into_iter();
        bounds.filter_map(|(bound, holds)| Some((bound.as_ref()?, holds)))
    }

    /// Returns whether `value` satisfies all positive operators: `equals`, `in`, the bounds,
    /// `regex` and `contains`.
    fn is_satisfied(
        &self,
        value: &Value,
        is_cut: bool,
        (call_idx, path): Place<'_>,
        captured: &mut CapturedValues<'_>,
    ) -> Tri {
        let mut fit = match self.allowed() {
            Some(allowed) => equals_one(allowed, value, is_cut, call_idx, captured),
            None => Tri::Yes,
        };
        for (bound, holds) in self.bounds() {
            fit = fit.min(match number_of(value) {
                _ if is_cut => Tri::Maybe,
                Some(number) => Tri::from(holds(number.cmp(&bound.number()))),
                None if value.is_null() => Tri::No,
                None => {
                    captured.note_no_number(call_idx, path);
                    Tri::Maybe
                }
            });
        }
        let reads_spelling = self.regex.is_some() || self.contains.is_some();
        if reads_spelling && captured.may_be_respelled(value, call_idx, path) {
            return fit.min(Tri::Maybe);
        }
        if let Some(pattern) = &self.regex {
            fit = fit.min(match text_of(value) {
                None => Tri::No,
                Some(_) if is_cut => Tri::Maybe,
                Some(text) => {
                    captured.search(pattern.search_cost(&text), || pattern.is_match(&text))
                }
            });
        }
        let part = self.contains.as_ref();
        fit.min(part.map_or(Tri::Yes, |part| contains(part, value, is_cut)))
    }

    /// Returns whether `not_equals`, `not_in` or `not_contains` forbids `value`.
    fn is_hit(
        &self,
        value: &Value,
        is_cut: bool,
        (call_idx, path): Place<'_>,
        captured: &mut CapturedValues<'_>,
    ) -> Tri {
        let is_excluded = match self.excluded() {
            Some(excluded) => equals_one(excluded, value, is_cut, call_idx, captured),
            None => Tri::No,
        };
        let part = self.not_contains.as_ref();
        if part.is_some() && captured.may_be_respelled(value, call_idx, path) {
            return is_excluded.max(Tri::Maybe);
        }
        is_excluded.max(part.map_or(Tri::No, |part| contains(part, value, is_cut)))
    }

    /// Returns the cost of comparing a value, in units of the search budget. Excludes `regex`.
    fn cost(&self, value: &Value) -> u64 {
        let length = match value {
            Value::String(text) => text.len(),
            Value::Number(number) => number.as_str().len(),
            Value::Array(items) => items.len(),
            _ => 0,
        };
        let lists = self.one_of.iter().chain(&self.not_in);
        let n_compared = 1 + lists.map(Vec::len).sum::<usize>();
        n_compared.max(length) as u64
    }

    pub(crate) fn requires_absence(&self) -> bool {
        self.exists == Some(false)
    }

    pub(crate) fn takes_null(&self) -> bool {
        self.allowed()
            .is_some_and(|mut allowed| allowed.any(Value::is_null))
    }

    /// Returns the kind of a value that an operator never matches, if another value could have
    /// changed the answer. The value is a list or a map instead of a text, or it is missing and the
    /// condition has no `exists`.
    pub(crate) fn unmatched(
        &self,
        found: &PathValues<'_>,
        holds: Tri,
    ) -> Option<(&'static str, ReadBy)> {
        let operators = [
            ("regex", self.regex.is_some() && holds != Tri::Yes),
            ("contains", self.contains.is_some() && holds != Tri::Yes),
            (
                "not_contains",
                self.not_contains.is_some() && holds != Tri::No,
            ),
        ];
        let operator = operators
            .into_iter()
            .find(|(_, is_undecided)| *is_undecided);
        let structures = found
            .present()
            .filter(|value| value.is_array() || value.is_object());
        let mut no_texts = structures.filter_map(kind_of);
        if let Some((operator, kind)) = operator.and_then(|of| Some((of.0, no_texts.next()?))) {
            return Some((kind, ReadBy::Operator(operator)));
        }
        let is_undecided = found.values.is_empty()
            || (self.requires_value() && holds != Tri::Yes)
            || (self.forbids_values() && holds != Tri::No);
        let lack = found.lack(self.takes_null());
        let lack = lack.filter(|_| self.exists.is_none() && is_undecided)?;
        Some((lack, ReadBy::Condition))
    }

    pub(crate) fn pattern_mut(&mut self) -> Option<&mut Pattern> {
        self.regex.as_mut()
    }

    pub(crate) fn parts(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(parts)) => parts,
            _ => Map::new(),
        }
    }

    /// Returns a text that YAML 1.1 parses as a boolean. Texts in capitals are not reported,
    /// because `NO` is more likely a code, such as Norway's.
    pub(crate) fn yaml_boolean(&self) -> Option<&str> {
        const WORDS: [&str; 8] = ["yes", "no", "on", "off", "Yes", "No", "On", "Off"];
        let values = self.allowed().into_iter().flatten();
        let values = values.chain(self.excluded().into_iter().flatten());
        let mut texts = values.filter_map(Value::as_str);
        texts.find(|text| WORDS.contains(text))
    }

    /// Returns an error if the condition is empty, if no value can satisfy it, or if an operator is
    /// superfluous.
    fn contradiction(&self) -> Option<String> {
        let parts = self.parts();
        let n_of_some = parts
            .keys()
            .filter(|name| !name.starts_with("not_") && *name != "exists")
            .count();
        let is_excluded = |value: &Value| {
            let mut excluded = self.excluded().into_iter().flatten();
            excluded.any(|other| equality::equal(other, value) == Some(true))
        };
        let message = if parts.is_empty() {
            "there is no condition: write a value, a list of values, or operators such as `gt: 5`"
        } else if self.requires_absence() && parts.len() > 1 {
            "`exists: false` is satisfied only if there is no value: write no other operator \
             beside it"
        } else if (self.allowed())
            .is_some_and(|mut allowed| n_of_some > 1 || allowed.all(is_excluded))
        {
            "`equals` and `in` name every allowed value, so another operator adds nothing or \
             excludes them all: leave it out"
        } else if self.gt.is_some() && self.gte.is_some() {
            "`gt` and `gte` are two lower bounds: keep one"
        } else if self.lt.is_some() && self.lte.is_some() {
            "`lt` and `lte` are two upper bounds: keep one"
        } else {
            return self.gap();
        };
        Some(message.to_owned())
    }

    /// Returns an error if no number lies between the two bounds.
    fn gap(&self) -> Option<String> {
        let (low, above) = match (&self.gt, &self.gte) {
            (Some(low), _) => (low, "above"),
            (None, low) => (low.as_ref()?, "at least"),
        };
        let (high, below) = match (&self.lt, &self.lte) {
            (Some(high), _) => (high, "below"),
            (None, high) => (high.as_ref()?, "at most"),
        };
        let order = low.number().cmp(&high.number());
        let takes_both = self.gte.is_some() && self.lte.is_some();
        let remedy = match order {
            Ordering::Equal if !takes_both => "write `gte` and `lte`",
            Ordering::Greater => "exchange the two",
            _ => return None,
        };
        let (low, high) = (low.text(), high.text());
        Some(format!(
            "no number is {above} {low} and {below} {high}: {remedy}"
        ))
    }
}

fn any_of<'c>(
    one: &'c Option<Value>,
    list: &'c Option<Vec<Value>>,
) -> Option<impl Iterator<Item = &'c Value>> {
    let is_any = one.is_some() || list.is_some();
    is_any.then(|| one.iter().chain(list.iter().flatten()))
}

/// Returns whether `value` is equal as JSON to one of the expected values. A cut text is compared
/// up to the cut.
fn equals_one<'e>(
    mut expected: impl Iterator<Item = &'e Value>,
    value: &Value,
    is_cut: bool,
    call_idx: usize,
    captured: &mut CapturedValues<'_>,
) -> Tri {
    if is_cut {
        let may_be_equal = expected.any(|expected| match (expected, value) {
            (Value::String(expected), Value::String(kept)) => expected.starts_with(kept.as_str()),
            (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
            _ => false,
        });
        return if may_be_equal { Tri::Maybe } else { Tri::No };
    }
    let equal = expected.map(|expected| Tri::from(equality::equal(expected, value)));
    let is_equal = equal.max().unwrap_or(Tri::No);
    if is_equal == Tri::Maybe {
        captured.missing.incomparable.get_or_insert(call_idx);
    }
    is_equal
}

fn contains(part: &str, value: &Value, is_cut: bool) -> Tri {
    match text_of(value) {
        Some(text) if text.contains(part) => Tri::Yes,
        Some(_) if is_cut => Tri::Maybe,
        _ => Tri::No,
    }
}

/// Parses a JSON number, or a text that is a plain decimal number.
pub(crate) fn number_of(value: &Value) -> Option<Decimal<'_>> {
    match value {
        Value::Number(number) => Decimal::parse(number.as_str()),
        Value::String(text) => Decimal::parse_plain(text),
        _ => None,
    }
}

/// Returns a text unchanged, or the JSON text of a number or a boolean.
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

/// Formats as "gt 1000".
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 60;
        for (at, (name, value)) in self.parts().iter().enumerate() {
            let and = if at == 0 { "" } else { " and " };
            let value = value.to_string();
            write!(f, "{and}{name} {}", abbreviated(&value, MAX_CHARS))?;
        }
        Ok(())
    }
}

// === as written ===

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

/// Parses and checks an operator's value, so that an error shows the value's position.
macro_rules! checked {
    ($($read:ident: $type:ty = $check:path, $operator:literal;)+) => {$(
        fn $read<'de, D: Deserializer<'de>>(value: D) -> Result<Option<$type>, D::Error> {
            let value = Deserialize::deserialize(value)?;
            $check($operator, value).map(Some).map_err(de::Error::custom)
        }
    )+};
}

checked! {
    gt: DecimalBound = DecimalBound::new, "gt";
    gte: DecimalBound = DecimalBound::new, "gte";
    lt: DecimalBound = DecimalBound::new, "lt";
    lte: DecimalBound = DecimalBound::new, "lte";
    one_of: Vec<Value> = at_least_one, "in";
    not_in: Vec<Value> = at_least_one, "not_in";
}

fn at_least_one(operator: &str, list: Vec<Value>) -> Result<Vec<Value>, String> {
    let asks = if operator == "in" { "matches" } else { "excludes" };
    if list.is_empty() {
        Err(format!(
            "`{operator}` {asks} nothing: list at least one value"
        ))
    } else {
        Ok(list)
    }
}

/// Rejects a short form that was probably meant as a comparison, such as `>= 5` or `[">=", 5]`.
fn refuse_sign<E: de::Error>(text: &str, operator: &str) -> Result<(), E> {
    match leading_sign(text) {
        None => Ok(()),
        Some((sign, meant)) => Err(E::custom(format_args!(
            "`{text}` begins with the comparison sign `{sign}`: write an operator such as \
             `{meant}: 5`, or `{operator}` before the value if the text itself is meant"
        ))),
    }
}

/// Parses a plain value, the short form of `equals`.
macro_rules! visit_values {
    ($($visit:ident: $type:ty,)+) => {$(
        fn $visit<E: de::Error>(self, value: $type) -> Result<Condition, E> {
            let value = serde_json::to_value(value).map_err(E::custom)?;
            Ok(Condition::equal_to(value))
        }
    )+};
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ConditionVisitor;
        impl<'de> Visitor<'de> for ConditionVisitor {
            type Value = Condition;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, a list of values, or a map with operators such as `gt`")
            }

            visit_values! {
                visit_bool: bool,
                visit_u64: u64,
                visit_i64: i64,
                visit_u128: u128,
                visit_i128: i128,
                visit_f64: f64,
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Condition, E> {
                refuse_sign(text, "equals")?;
                Ok(Condition::equal_to(text.into()))
            }

            fn visit_unit<E>(self) -> Result<Condition, E> {
                Ok(Condition::equal_to(Value::Null))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Condition, A::Error> {
                let list = Vec::<Value>::deserialize(SeqAccessDeserializer::new(items))?;
                let mut texts = list.iter().filter_map(Value::as_str);
                texts.try_for_each(|text| refuse_sign(text, "in"))?;
                if list.is_empty() {
                    return Err(de::Error::custom(
                        "an empty list matches nothing: list at least one value, or write \
                         `equals: []` for the empty list",
                    ));
                }
                Ok(Condition {
                    one_of: Some(list),
                    ..Condition::default()
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Condition, A::Error> {
                let map = MapAccessDeserializer::new(map);
                let condition = Condition::deserialize(Hinted::new(map))?;
                if let Some(number) = condition.number {
                    let number = number.parse::<Number>().map_err(de::Error::custom)?;
                    return Ok(Condition::equal_to(number.into()));
                }
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
        Condition::serialize(self, serializer)
    }
}

fn with_short_forms(operators: &mut Schema) {
    operators.remove("description");
    operators.insert("minProperties".to_owned(), 1.into());
    *operators = json_schema!({
        "description": "The condition on the values at a path: a value that one of them equals, a \
                        list that contains one of them, or operators.",
        "anyOf": [
            { "type": ["string", "number", "boolean", "null"] },
            { "type": "array", "minItems": 1 },
            operators,
        ],
    });
}
