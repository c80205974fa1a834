//! Pure. Patterns over one call, as `tool_calls` writes them: a string or a map in, a checked
//! pattern out, and whether a call fits it. Knows one call at a time; what is required, disallowed
//! or in sequence is the evaluator's.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::field_aliases::Hinted;
use super::optional::written;
use super::pattern::Pattern;
use crate::evaluate::comparison::captured::{CapturedValues, Known, Tri};

/// A call that must be made.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequiredCall {
    /// Pattern of the tool's name.
    pub name: Pattern,
    /// Pattern of the argument `command`; a call of that name without it is an error.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub command: Option<Pattern>,
    /// Pattern of the argument `path`; a call of that name without it is an error.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub path: Option<Pattern>,
    /// Patterns of string arguments; a call without one of them does not match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, Pattern>,
    /// Pattern of the result's text.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub result: Option<Pattern>,
    /// How many such calls there must be, at least 1.
    #[serde(default, skip_serializing_if = "MinCount::is_one")]
    pub min_count: MinCount,
    /// The call must be the trajectory's last.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    /// The call must belong to exactly this step, counted from 0.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "AtStep")]
    pub at_step: Option<AtStep>,
    /// The call must belong to a step below this one, at least 1.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "BeforeStep")]
    pub before_step: Option<BeforeStep>,
}

/// A call that must not be made.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisallowedCall {
    /// Pattern of the tool's name.
    pub name: Pattern,
    /// Pattern of the argument `command`; a call of that name without it is an error.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub command: Option<Pattern>,
    /// Pattern of the argument `path`; a call of that name without it is an error.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub path: Option<Pattern>,
    /// Patterns of string arguments; a call without one of them does not match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, Pattern>,
    /// Pattern of the result's text.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub result: Option<Pattern>,
}

/// A call in its turn.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SequenceCall {
    /// Pattern of the tool's name.
    pub name: Pattern,
    /// Pattern of the argument `command`; a call of that name without it is an error.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub command: Option<Pattern>,
    /// Pattern of the argument `path`; a call of that name without it is an error.
    #[serde(
        default,
        deserialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Pattern")]
    pub path: Option<Pattern>,
    /// Patterns of string arguments; a call without one of them does not match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, Pattern>,
}

// === what the three have in common ===

/// What is asked of one call, whatever list it stands in.
#[derive(Clone, Copy)]
pub(crate) struct CallPattern<'a> {
    pub(crate) name: &'a Pattern,
    /// `command` and `path`: the argument of that name.
    shortcuts: [(&'static str, Option<&'a Pattern>); 2],
    args: &'a BTreeMap<String, Pattern>,
    pub(crate) result: Option<&'a Pattern>,
}

/// How a call fits a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It does, does not, or that is not known.
    Known(Tri),
    /// The name fits, but the call has no such string argument, which `command` or `path` reads.
    Lacks(&'static str),
}

impl CallPattern<'_> {
    /// Looks at arguments and result of a call of this name, whose position is not ruled out.
    pub(crate) fn fit(
        &self,
        position: Tri,
        call_idx: usize,
        captured: &mut CapturedValues<'_>,
    ) -> Fit {
        let mut fit = position;
        let args = match self.reads_shortcut() || !self.args.is_empty() {
            true => captured.args(call_idx),
            false => Known::None,
        };
        for (argument, pattern) in self.shortcuts {
            let Some(pattern) = pattern else { continue };
            match string_argument(args, argument) {
                Known::Value(text) => fit = fit.min(Tri::from(pattern.is_match(text))),
                Known::None => return Fit::Lacks(argument),
                Known::Unknown => fit = fit.min(Tri::Maybe),
            }
        }
        for (argument, pattern) in self.args {
            fit = fit.min(match string_argument(args, argument) {
                Known::Value(text) => Tri::from(pattern.is_match(text)),
                Known::None => Tri::No,
                Known::Unknown => Tri::Maybe,
            });
        }
        if let Some(pattern) = self.result.filter(|_| fit > Tri::No) {
            fit = fit.min(
                captured
                    .result(call_idx)
                    .map_or(Tri::Maybe, |text| Tri::from(pattern.is_match(text))),
            );
        }
        Fit::Known(fit)
    }

    /// Can a call be at fault for lacking an argument?
    pub(crate) fn reads_shortcut(&self) -> bool {
        self.shortcuts.iter().any(|(_, pattern)| pattern.is_some())
    }

    /// The arguments and the result that are asked for, by name: "`command` and `result`"; empty
    /// where only the name is.
    pub(crate) fn asks_for(&self) -> String {
        let shortcuts = self
            .shortcuts
            .iter()
            .filter(|(_, pattern)| pattern.is_some())
            .map(|(argument, _)| *argument);
        let fields = shortcuts
            .chain(self.args.keys().map(String::as_str))
            .chain(self.result.map(|_| "result"));
        fields
            .map(|field| format!("`{field}`"))
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

fn string_argument<'a>(args: Known<&'a serde_json::Value>, argument: &str) -> Known<&'a str> {
    match args {
        Known::Value(args) => args
            .get(argument)
            .and_then(serde_json::Value::as_str)
            .map_or(Known::None, Known::Value),
        Known::None => Known::None,
        Known::Unknown => Known::Unknown,
    }
}

impl RequiredCall {
    pub(crate) fn pattern(&self) -> CallPattern<'_> {
        CallPattern {
            name: &self.name,
            shortcuts: shortcuts(&self.command, &self.path),
            args: &self.args,
            result: self.result.as_ref(),
        }
    }
}

impl DisallowedCall {
    pub(crate) fn pattern(&self) -> CallPattern<'_> {
        CallPattern {
            name: &self.name,
            shortcuts: shortcuts(&self.command, &self.path),
            args: &self.args,
            result: self.result.as_ref(),
        }
    }
}

impl SequenceCall {
    pub(crate) fn pattern(&self) -> CallPattern<'_> {
        CallPattern {
            name: &self.name,
            shortcuts: shortcuts(&self.command, &self.path),
            args: &self.args,
            result: None,
        }
    }
}

fn shortcuts<'a>(
    command: &'a Option<Pattern>,
    path: &'a Option<Pattern>,
) -> [(&'static str, Option<&'a Pattern>); 2] {
    [("command", command.as_ref()), ("path", path.as_ref())]
}

// === as written: a string for the name alone, or a map ===

/// An entry of a list of patterns: a string, which is the pattern of the name, or a map.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Entry<T>(pub T);

/// What an entry can hold.
pub trait Written: for<'de> Deserialize<'de> {
    /// The entry that a string stands for.
    fn from_name(name: Pattern) -> Self;

    /// What is wrong between its fields.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Written for RequiredCall {
    fn from_name(name: Pattern) -> Self {
        Self {
            name,
            command: None,
            path: None,
            args: BTreeMap::new(),
            result: None,
            min_count: MinCount::default(),
            is_final: false,
            at_step: None,
            before_step: None,
        }
    }

    fn check(&self) -> Result<(), String> {
        match (self.at_step, self.before_step) {
            (Some(AtStep(at)), Some(BeforeStep(before))) if at >= before => Err(format!(
                "`at_step: {at}` is not below `before_step: {before}`, so no call can satisfy both: leave one of them out"
            )),
            _ => Ok(()),
        }
    }
}

impl Written for DisallowedCall {
    fn from_name(name: Pattern) -> Self {
        Self {
            name,
            command: None,
            path: None,
            args: BTreeMap::new(),
            result: None,
        }
    }
}

impl Written for SequenceCall {
    fn from_name(name: Pattern) -> Self {
        Self {
            name,
            command: None,
            path: None,
            args: BTreeMap::new(),
        }
    }
}

impl<'de, T: Written> Deserialize<'de> for Entry<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor<T>(PhantomData<T>);
        impl<'de, T: Written> Visitor<'de> for EntryVisitor<T> {
            type Value = Entry<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern of the tool's name, or a map with `name` and more")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Entry<T>, E> {
                Pattern::try_new(name)
                    .map(|name| Entry(T::from_name(name)))
                    .map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry<T>, A::Error> {
                let read = T::deserialize(Hinted(MapAccessDeserializer::new(map)))?;
                read.check().map_err(A::Error::custom)?;
                Ok(Entry(read))
            }
        }
        deserializer.deserialize_any(EntryVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Entry<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [generator.subschema_for::<Pattern>(), generator.subschema_for::<T>()] })
    }
}

/// How many calls there must be, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct MinCount(#[schemars(range(min = 1))] pub u32);

/// A step, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct AtStep(pub u32);

/// A step that is not reached, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct BeforeStep(#[schemars(range(min = 1))] pub u32);

impl Default for MinCount {
    fn default() -> Self {
        Self(1)
    }
}

impl MinCount {
    fn is_one(&self) -> bool {
        self.0 == 1
    }
}

impl<'de> Deserialize<'de> for MinCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole_number(deserializer, "`min_count`", 1).map(Self)
    }
}

impl<'de> Deserialize<'de> for AtStep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole_number(deserializer, "`at_step`", 0).map(Self)
    }
}

impl<'de> Deserialize<'de> for BeforeStep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole_number(deserializer, "`before_step`", 1).map(Self)
    }
}

fn whole_number<'de, D: Deserializer<'de>>(
    deserializer: D,
    field: &'static str,
    least: u32,
) -> Result<u32, D::Error> {
    struct NumberVisitor(&'static str, u32);
    impl NumberVisitor {
        fn read<E: Error>(&self, n: Option<u32>, found: impl fmt::Display) -> Result<u32, E> {
            let Self(field, least) = self;
            n.filter(|n| n >= least).ok_or_else(|| {
                E::custom(format_args!(
                    "{field} is a whole number, {least} or more; found {found}"
                ))
            })
        }
    }
    impl Visitor<'_> for NumberVisitor {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number, {} or more", self.1)
        }

        fn visit_u64<E: de::Error>(self, n: u64) -> Result<u32, E> {
            self.read(u32::try_from(n).ok(), n)
        }

        fn visit_i64<E: de::Error>(self, n: i64) -> Result<u32, E> {
            self.read(u32::try_from(n).ok(), n)
        }

        fn visit_f64<E: de::Error>(self, n: f64) -> Result<u32, E> {
            self.read(None, n)
        }
    }
    deserializer.deserialize_any(NumberVisitor(field, least))
}
