//! Patterns for single calls: the entries of the lists of `tool_calls`, of `ignore`, and of the
//! calls of a rule. The evaluator decides what each list requires.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use smallvec::SmallVec;
use text::code;

use super::condition::{Condition, Where, at_least_one_condition};
use super::field_aliases::Hinted;
use super::limits::{at_step, before_step, min_count, one};
use super::optional::written;
use super::pattern::{Pattern, PlacedPattern};
use super::shown_values::ShownValues;
use crate::evaluate::comparison::captured::{CapturedValues, Known, Tri, kind_of};
use crate::evaluate::comparison::score::{CallError, EvaluationError, Judgement, ReadBy};
use crate::evaluate::comparison::value_path::ValuePath;
use crate::extract::Trajectory;

/// The conditions on one call. The list that contains the pattern decides which fields are allowed.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallPattern {
    /// Pattern of the tool's name.
    pub name: Pattern,
    /// Only calls that failed (`true`), or only calls that did not (`false`).
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub error: Option<bool>,
    /// Pattern of the argument `command`; a call that has the name but not the argument is an
    /// error.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Pattern")]
    pub command: Option<Pattern>,
    /// Pattern of the argument `path`; a call that has the name but not the argument is an error.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Pattern")]
    pub path: Option<Pattern>,
    /// Patterns of string arguments; a call without one of them does not match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, Pattern>,
    /// Pattern of the result's text.
    #[serde(default, deserialize_with = "written")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Pattern")]
    pub result: Option<Pattern>,
    /// Conditions on values, by path such as `args.amount`; a call must satisfy all of them.
    #[serde(default, rename = "where", deserialize_with = "at_least_one_condition")]
    #[serde(skip_serializing_if = "Where::is_empty")]
    #[schemars(with = "BTreeMap<String, Condition>", extend("minProperties" = 1))]
    #[schemars(extend("propertyNames" = { "pattern": ValuePath::PATTERN }))]
    pub conditions: Where,
    /// The minimum number of such calls, at least 1.
    #[serde(
        default = "one",
        deserialize_with = "min_count",
        skip_serializing_if = "is_one"
    )]
    #[schemars(range(min = 1))]
    pub min_count: u32,
    /// The call must be the trajectory's last.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    /// The call must belong to exactly this step, counted from 0.
    #[serde(default, deserialize_with = "at_step")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    pub at_step: Option<u32>,
    /// The call must belong to a step below this one, at least 1.
    #[serde(default, deserialize_with = "before_step")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 1))]
    pub before_step: Option<u32>,
}

/// Compares calls with patterns. Records the first call that lacks an argument read by `command` or
/// `path`.
pub(crate) struct CallReader<'a> {
    pub(crate) captured: CapturedValues<'a>,
    pub(crate) fault: Option<CallError>,
}

impl CallPattern {
    fn named(name: Pattern) -> Self {
        Self {
            name,
            error: None,
            command: None,
            path: None,
            args: BTreeMap::new(),
            result: None,
            conditions: Where::new(),
            min_count: 1,
            is_final: false,
            at_step: None,
            before_step: None,
        }
    }

    /// Returns a field that contradicts another field, and the reason.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        match (self.at_step, self.before_step) {
            (Some(at), Some(before)) if at >= before => {
                let message = format!(
                    "`at_step: {at}` is not below `before_step: {before}`, so no call can satisfy \
                     both: leave one of them out"
                );
                Some(("at_step", message))
            }
            _ => None,
        }
    }

    pub(crate) fn patterns_mut(&mut self, path: &[&str]) -> Vec<PlacedPattern<'_>> {
        let placed = |keys: &[&str], pattern| -> PlacedPattern<'_> {
            let path = path.iter().chain(keys).map(|key| (*key).to_owned());
            (path.collect(), pattern)
        };
        let fields = [
            ("name", Some(&mut self.name)),
            ("command", self.command.as_mut()),
            ("path", self.path.as_mut()),
            ("result", self.result.as_mut()),
        ];
        let fields = fields.into_iter();
        let fields = fields.filter_map(|(key, pattern)| Some(placed(&[key], pattern?)));
        let args = self.args.iter_mut();
        let args = args.map(|(argument, pattern)| placed(&["args", argument], pattern));
        let conditions = self.conditions.iter_mut().filter_map(|(at, condition)| {
            Some(placed(
                &["where", at.as_str(), "regex"],
                condition.pattern_mut()?,
            ))
        });
        fields.chain(args).chain(conditions).collect()
    }

    /// Returns the patterns of `command` and `path`; each reads the argument of that name.
    fn shortcuts(&self) -> impl Iterator<Item = (&'static str, &Pattern)> {
        let shortcuts = [("command", &self.command), ("path", &self.path)];
        shortcuts
            .into_iter()
            .filter_map(|(argument, pattern)| Some((argument, pattern.as_ref()?)))
    }

    /// Returns whether `error` matches the call's failure or success.
    fn fit_error(&self, call_idx: usize, captured: &mut CapturedValues<'_>) -> Tri {
        let Some(asked) = self.error else {
            return Tri::Yes;
        };
        let failed = captured.error(call_idx);
        if asked { failed } else { !failed }
    }

    /// Compares the arguments and the result of a call whose name and position match or may match.
    /// The error is a string argument that `command` or `path` reads, and that the call lacks.
    fn fit_values(
        &self,
        position: Tri,
        call_idx: usize,
        captured: &mut CapturedValues<'_>,
    ) -> Result<Tri, &'static str> {
        let mut fit = position;
        let args = if self.reads_shortcut() || !self.args.is_empty() {
            captured.args(call_idx)
        } else {
            Known::None
        };
        for (argument, pattern) in self.shortcuts() {
            match string_argument(args, argument) {
                Known::Value(text) => fit = fit.min(search(pattern, text, captured)),
                Known::None => return Err(argument),
                Known::Unknown => fit = fit.min(Tri::Maybe),
            }
        }
        let mut no_text = None;
        for (argument, pattern) in &self.args {
            fit = fit.min(match string_argument(args, argument) {
                Known::Value(text) => search(pattern, text, captured),
                Known::None => {
                    let value =
                        if let Known::Value(args) = args { args.get(argument) } else { None };
                    let kind = value.and_then(kind_of);
                    no_text = no_text.or(kind.map(|kind| (argument, kind)));
                    if kind.is_some() { Tri::Yes } else { Tri::No }
                }
                Known::Unknown => Tri::Maybe,
            });
        }
        let Some((argument, kind)) = no_text else {
            return Ok(self.fit_rest(fit, call_idx, captured));
        };
        captured.forgetting(|captured| {
            if self.fit_rest(fit, call_idx, captured) > Tri::No {
                let path = format!("args.{argument}");
                captured.note_unusable(call_idx, &path, kind, ReadBy::Args);
            }
            Tri::No
        });
        Ok(Tri::No)
    }

    /// Compares the result, and the values that conditions read.
    fn fit_rest(&self, mut fit: Tri, call_idx: usize, captured: &mut CapturedValues<'_>) -> Tri {
        if let Some(pattern) = self.result.as_ref().filter(|_| fit > Tri::No) {
            fit = fit.min(match captured.result(call_idx) {
                Some(text) => search(pattern, text, captured),
                None => Tri::Maybe,
            });
        }
        if !self.conditions.is_empty() && fit > Tri::No {
            fit = fit.min(self.fit_conditions(call_idx, captured));
        }
        fit
    }

    /// Returns whether the values of a call satisfy all conditions. Records values that are missing
    /// or of the wrong kind, unless a known value already excludes the call.
    fn fit_conditions(&self, call_idx: usize, captured: &mut CapturedValues<'_>) -> Tri {
        captured.forgetting(|captured| {
            let (mut fit, mut is_ruled_out) = (Tri::Yes, false);
            let mut followed: SmallVec<[_; 2]> = SmallVec::new();
            // Paths into arguments are sorted before those into results.
            for (path, condition) in &self.conditions {
                if is_ruled_out && path.of_result {
                    break;
                }
                let Some(found) = captured.at(call_idx, path) else {
                    followed.push((path, Tri::Maybe, None));
                    fit = fit.min(Tri::Maybe);
                    continue;
                };
                let holds = condition.fit(&found, (call_idx, path), captured);
                let unmatched = condition.unmatched(&found, holds);
                if !condition.requires_absence() {
                    let led = Tri::from(found.led(condition.takes_null()));
                    followed.push((path, led, unmatched));
                }
                is_ruled_out |= holds == Tri::No && unmatched.is_none();
                fit = fit.min(holds);
            }
            for (path, led, unmatched) in followed {
                let lack = match unmatched.filter(|_| !is_ruled_out) {
                    Some((kind, ReadBy::Condition)) => Some(kind),
                    Some((kind, reader)) => {
                        captured.note_unusable(call_idx, path.as_str(), kind, reader);
                        None
                    }
                    None => None,
                };
                if led == Tri::Yes || !is_ruled_out {
                    captured.note_followed(call_idx, path, (led, lack), ReadBy::Condition);
                }
            }
            fit
        })
    }

    /// Adds the conditions on a call to the details. If explanations show values, also adds the
    /// call's values to the details and the text.
    pub(crate) fn show_values(
        &self,
        call_idx: usize,
        judgement: &Judgement<'_>,
        values: &mut ShownValues,
    ) {
        for (path, condition) in &self.conditions {
            let parts = condition.parts().into_iter();
            let operators = parts.map(|(operator, expected)| (operator, Some(expected)));
            values.add(call_idx, path, operators, judgement);
        }
    }

    pub(crate) fn reads_result(&self) -> bool {
        self.result.is_some() || self.conditions.keys().any(|path| path.of_result)
    }

    /// Returns warnings about fields that no call can match, or that probably mean something else.
    /// `place` is the path of this call pattern. A pattern matches text only, so a pattern that
    /// looks like a number, a boolean or null was probably meant as a value.
    pub(crate) fn warnings(&self, place: &str) -> Vec<String> {
        let is_value = |text: &str| {
            serde_json::from_str::<Value>(text)
                .is_ok_and(|value| value.is_number() || value.is_boolean() || value.is_null())
        };
        let args = self.args.iter();
        let values = args
            .map(|(argument, pattern)| (argument, pattern.as_str()))
            .filter(|(_, pattern)| is_value(pattern))
            .map(|(argument, pattern)| {
                format!(
                    "`{place}.args.{argument}` is a pattern, which matches only text, never the \
                     JSON value {pattern}: compare values with `where`, or write \
                     `^{pattern}$` if the argument is a text"
                )
            });
        let never = (self.is_final && self.min_count > 1).then(|| {
            format!(
                "{self}: only one call can be the last, so `final` with `min_count` above 1 is \
                 never satisfied"
            )
        });
        let conditions = self.conditions.iter();
        let booleans = conditions.filter_map(|(path, condition)| {
            let word = condition.yaml_boolean()?;
            Some(format!(
                "`{place}.where.{}` compares with the text `{word}`: for a boolean write `true` or \
                 `false`",
                path.as_str()
            ))
        });
        never.into_iter().chain(values).chain(booleans).collect()
    }

    /// Returns true if a call that lacks an argument can cause an error.
    pub(crate) fn reads_shortcut(&self) -> bool {
        self.shortcuts().next().is_some()
    }
}

/// Formats as "`^bash$` with `command` and `result`".
impl fmt::Display for CallPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shortcuts = self.shortcuts().map(|(argument, _)| argument);
        let error = self
            .error
            .map(|failed| if failed { "error: true" } else { "error: false" });
        let fields = error
            .into_iter()
            .chain(shortcuts)
            .chain(self.args.keys().map(String::as_str))
            .chain(self.result.as_ref().map(|_| "result"));
        let conditions = self.conditions.iter();
        let conditions =
            conditions.map(|(path, condition)| format!("{} {condition}", path.as_str()));
        let fields: Vec<String> = fields
            .map(code)
            .chain(conditions.map(|text| code(&text)))
            .collect();
        f.write_str(&code(self.name.as_str()))?;
        if fields.is_empty() {
            Ok(())
        } else {
            write!(f, " with {}", fields.join(" and "))
        }
    }
}

impl<'a> CallReader<'a> {
    pub(crate) fn new(trajectory: &'a Trajectory, max_search: u64) -> Self {
        Self {
            captured: CapturedValues::within(trajectory, max_search),
            fault: None,
        }
    }

    /// Returns whether the call matches the pattern, given whether its position matches. Compares
    /// `error` before the arguments.
    pub(crate) fn fit(&mut self, pattern: &CallPattern, position: Tri, call_idx: usize) -> Tri {
        let name = &self.captured.trajectory().tool_calls[call_idx].name;
        let position = match position {
            Tri::No => Tri::No,
            _ => position.min(self.fits_name(pattern, name)),
        };
        self.fit_named(pattern, position, call_idx)
    }

    pub(crate) fn fits_name(&mut self, pattern: &CallPattern, name: &str) -> Tri {
        search(&pattern.name, name, &mut self.captured)
    }

    /// Like [`Self::fit`], for a call whose name matches.
    pub(crate) fn fit_named(
        &mut self,
        pattern: &CallPattern,
        position: Tri,
        call_idx: usize,
    ) -> Tri {
        let Trajectory {
            tool_calls,
            cut_short,
            ..
        } = self.captured.trajectory();
        let call = &tool_calls[call_idx];
        // In a trace that was cut short, the result of a call that has not ended may still arrive.
        let lacks_result = call.partial && !call.untimed && !cut_short;
        if position == Tri::No || (lacks_result && pattern.reads_result()) {
            return Tri::No;
        }
        let position = position.min(pattern.fit_error(call_idx, &mut self.captured));
        if position == Tri::No {
            return Tri::No;
        }
        match pattern.fit_values(position, call_idx, &mut self.captured) {
            Ok(fit) => fit,
            Err(argument) => {
                // If the position may turn out not to match, the missing argument is not certainly
                // an error.
                let is_first = (self.fault.as_ref()).is_none_or(|fault| call_idx < fault.call_idx);
                if position == Tri::Yes && is_first {
                    self.fault = Some(self.missing_argument(pattern, call_idx, argument));
                }
                Tri::No
            }
        }
    }

    /// Returns the first of these calls whose name matches and whose values may violate the
    /// conditions; `None` without conditions. Records no missing evidence.
    pub(crate) fn nearest(
        &mut self,
        pattern: &CallPattern,
        mut calls: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        if pattern.conditions.is_empty() {
            return None;
        }
        let all = &self.captured.trajectory().tool_calls;
        self.captured.aside(|captured| {
            calls.find(|&call| {
                search(&pattern.name, &all[call].name, captured) == Tri::Yes
                    && pattern.fit_conditions(call, captured) != Tri::Yes
            })
        })
    }

    fn missing_argument(
        &self,
        pattern: &CallPattern,
        call_idx: usize,
        argument: &str,
    ) -> CallError {
        CallError {
            call_idx,
            error: EvaluationError {
                kind: "missing_argument",
                message: format!(
                    "{} has no string argument `{argument}`, which {} reads of every \
                     call of that name: narrow `name`, or write a pattern for it under `args`",
                    self.captured.trajectory().called(call_idx),
                    code(pattern.name.as_str())
                ),
            },
        }
    }
}

fn search(pattern: &Pattern, text: &str, captured: &mut CapturedValues<'_>) -> Tri {
    captured.search(pattern.search_cost(text), || pattern.is_match(text))
}

fn string_argument<'a>(args: Known<&'a Value>, argument: &str) -> Known<&'a str> {
    match args {
        Known::Value(args) => args
            .get(argument)
            .and_then(Value::as_str)
            .map_or(Known::None, Known::Value),
        Known::None => Known::None,
        Known::Unknown => Known::Unknown,
    }
}

// === as written: a string (the name alone) or a map ===

/// Defines, for each list of call patterns, a function that parses the list and one that returns
/// its schema. The list decides which fields its entries may have.
macro_rules! call_lists {
    ($($read:ident, $schema:ident = $entry:literal, $description:literal, $fields:expr;)+) => {$(
        pub(crate) fn $read<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Vec<CallPattern>, D::Error> {
            deserializer.deserialize_seq(ListVisitor(EntryVisitor(&$fields)))
        }

        pub(crate) fn $schema(generator: &mut SchemaGenerator) -> Schema {
            let entry = entry_schema(generator, $entry, $description, &$fields);
            json_schema!({ "type": "array", "items": entry })
        }
    )+};
}

call_lists! {
    required, required_schema = "RequiredCall", "A call that must be made.", [
        "name", "error", "command", "path", "args", "result", "where", "min_count", "final",
        "at_step", "before_step",
    ];
    disallowed, disallowed_schema = "DisallowedCall", "A call that must not be made.", IN_RULE;
    sequence, sequence_schema = "SequenceCall", "A call in its turn.",
        ["name", "error", "command", "path", "args", "where"];
    ignored, ignored_schema = "IgnoredCall", "A call that does not count.",
        ["name", "error", "args", "result", "where"];
}

/// The fields of the calls that a rule is about.
const IN_RULE: [&str; 7] = [
    "name", "error", "command", "path", "args", "result", "where",
];

pub(crate) fn list_patterns_mut<'a>(
    list: &[&str],
    patterns: &'a mut [CallPattern],
) -> Vec<PlacedPattern<'a>> {
    let patterns = patterns.iter_mut().zip(0_usize..);
    patterns
        .flat_map(|(pattern, at)| pattern.patterns_mut(&[list, &[&at.to_string()]].concat()))
        .collect()
}

pub(crate) fn list_warnings(list: &str, patterns: &[CallPattern]) -> Vec<String> {
    let patterns = patterns.iter().enumerate();
    patterns
        .flat_map(|(at, pattern)| pattern.warnings(&format!("{list}[{at}]")))
        .collect()
}

/// Parses an entry: a string, which is the pattern of the name, or a map with these fields.
#[derive(Clone, Copy)]
struct EntryVisitor(&'static [&'static str]);

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = CallPattern;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern of the tool's name, or a map with `name` and more")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<CallPattern, E> {
        Ok(CallPattern::named(Pattern::from(name.to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CallPattern, A::Error> {
        let map = MapAccessDeserializer::new(map);
        CallPattern::deserialize(Hinted::with_fields(map, self.0))
    }
}

impl<'de> DeserializeSeed<'de> for EntryVisitor {
    type Value = CallPattern;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<CallPattern, D::Error> {
        deserializer.deserialize_any(self)
    }
}

struct ListVisitor(EntryVisitor);

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Vec<CallPattern>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<CallPattern>, A::Error> {
        let mut patterns = Vec::new();
        while let Some(pattern) = items.next_element_seed(self.0)? {
            patterns.push(pattern);
        }
        Ok(patterns)
    }
}

/// Returns the schema of an entry. An entry that is a map gets a definition of this name.
fn entry_schema(
    generator: &mut SchemaGenerator,
    name: &str,
    description: &str,
    fields: &[&str],
) -> Schema {
    let mut as_map = CallPattern::json_schema(generator);
    as_map.insert("description".to_owned(), description.into());
    if let Some(Value::Object(all)) = as_map.get_mut("properties") {
        all.retain(|field, _| fields.contains(&field.as_str()));
    }
    let definitions = generator.definitions_mut();
    definitions.insert(name.to_owned(), as_map.to_value());
    let path = &generator.settings().definitions_path;
    let as_map = Schema::new_ref(format!("#{path}/{name}"));
    json_schema!({ "anyOf": [generator.subschema_for::<Pattern>(), as_map] })
}

/// A kind of call: all calls that match at least one of the patterns.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    patterns: Vec<CallPattern>,
    /// True if the patterns were written as a list, even a list of one.
    is_list: bool,
}

impl Calls {
    /// Returns the patterns, at least one.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &CallPattern> {
        self.patterns.iter()
    }

    /// Returns each pattern with its index as the last step of a path, such as `[0]`; the step is
    /// empty if no list was written.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (String, &CallPattern)> {
        let place = |at| {
            if self.is_list { format!("[{at}]") } else { String::new() }
        };
        self.patterns()
            .enumerate()
            .map(move |(at, pattern)| (place(at), pattern))
    }

    pub(crate) fn patterns_mut(&mut self, path: &[&str]) -> Vec<PlacedPattern<'_>> {
        if self.is_list {
            list_patterns_mut(path, &mut self.patterns)
        } else {
            let one = self.patterns.iter_mut();
            one.flat_map(|pattern| pattern.patterns_mut(path)).collect()
        }
    }
}

/// Formats as "`^transfer$` or `^refund$`".
impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pattern) in self.patterns().enumerate() {
            write!(f, "{}{pattern}", if at == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CallsVisitor;
        const ONE: EntryVisitor = EntryVisitor(&IN_RULE);
        fn of_one(pattern: CallPattern) -> Calls {
            Calls {
                patterns: vec![pattern],
                is_list: false,
            }
        }
        impl<'de> Visitor<'de> for CallsVisitor {
            type Value = Calls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                ONE.expecting(f)?;
                f.write_str(", or a list of them")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Calls, E> {
                ONE.visit_str(name).map(of_one)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Calls, A::Error> {
                ONE.visit_map(map).map(of_one)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Calls, A::Error> {
                let patterns = ListVisitor(ONE).visit_seq(items)?;
                if patterns.is_empty() {
                    Err(Error::custom("no call fits an empty list: write a pattern"))
                } else {
                    Ok(Calls {
                        patterns,
                        is_list: true,
                    })
                }
            }
        }
        deserializer.deserialize_any(CallsVisitor)
    }
}

impl Serialize for Calls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.patterns.as_slice() {
            [pattern] => pattern.serialize(serializer),
            patterns => patterns.serialize(serializer),
        }
    }
}

impl JsonSchema for Calls {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Calls".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let description = "The calls that a rule is about.";
        let entry = entry_schema(generator, "CallOfRule", description, &IN_RULE);
        let list = json_schema!({ "type": "array", "items": entry, "minItems": 1 });
        json_schema!({ "anyOf": [entry, list] })
    }
}

/// Returns true if `min_count` is its default.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(min_count: &u32) -> bool {
    *min_count == 1
}
