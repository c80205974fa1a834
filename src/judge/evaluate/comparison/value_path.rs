//! Paths into the arguments and the result of a call: how they are written, and the values to which
//! they lead.

use std::borrow::Cow;
use std::slice;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use smallvec::SmallVec;

use crate::extract::ToolCall;

/// A path: `args` or `result`, then keys, indices or `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValuePath {
    text: String,
    /// `result`, not `args`.
    pub(crate) of_result: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Step {
    /// A key of an object, or a position in a list.
    Key(String),
    /// Every element of a list.
    Each,
}

impl ValuePath {
    /// Reads `args.lines.*.amount`.
    ///
    /// # Errors
    /// What is wrong with the path.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split('.');
        let of_result = match words.next() {
            Some("args") => false,
            Some("result") => true,
            Some(word) if word.starts_with("args[") || word.starts_with("result[") => {
                let dotted = text.replace('[', ".").replace(']', "");
                return Err(format!("the path `{text}` has brackets: write `{dotted}`"));
            }
            _ => {
                return Err(format!(
                    "the path `{text}` leads nowhere: it begins with `args` or `result`, then come \
                     keys, indices or `*`, such as `args.path` or `result.items.*.id`"
                ));
            }
        };
        let steps = words.map(|word| match word {
            "" => Err(format!(
                "the path `{text}` has an empty key: write keys with one dot between them"
            )),
            "*" => Ok(Step::Each),
            key => Ok(Step::Key(key.to_owned())),
        });
        Ok(Self {
            text: text.to_owned(),
            of_result,
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Does it ask for a key of arguments that are no map? No text and null are no arguments.
    pub(crate) fn lacks_map(&self, args: &Value) -> bool {
        let Some(Step::Key(key)) = self.steps.first().filter(|_| !self.of_result) else {
            return false;
        };
        match args {
            Value::Object(_) | Value::Null => false,
            Value::Array(_) => key.parse::<usize>().is_err(),
            Value::String(text) => !text.trim().is_empty(),
            Value::Bool(_) | Value::Number(_) => true,
        }
    }

    /// The values it leads to; null is none.
    pub(crate) fn values<'v>(&self, value: &'v Value) -> SmallVec<[&'v Value; 1]> {
        let mut values = self.follow(value, &[]).values;
        values.retain(|value| !value.is_null());
        values
    }

    /// The values that it leads to in a call. `None` where they were not captured, or were cut.
    pub fn values_in<'v>(&self, call: &'v ToolCall) -> Option<Vec<&'v Value>> {
        let part = call.part(self.of_result);
        match part.payload {
            Some(payload) if payload.is_cut() => None,
            Some(payload) => Some(self.values(payload.json()).into_vec()),
            None => part.is_captured.then(Vec::new),
        }
    }

    /// The JSON of the values that it leads to in a call, of a single text the text itself. `None`
    /// where they are not known, or there are none.
    pub(crate) fn text_of_values(&self, call: &ToolCall) -> Option<String> {
        match self.values_in(call)?.as_slice() {
            [] => None,
            [Value::String(text)] => Some(text.clone()),
            [value] => Some(value.to_string()),
            values => serde_json::to_string(values).ok(),
        }
    }

    /// The values it leads to, null among them. Of a value that was cut, some parts are incomplete.
    pub(crate) fn follow<'v>(&self, value: &'v Value, incomplete: &[&'v Value]) -> PathValues<'v> {
        let mut found = PathValues {
            values: SmallVec::from_buf([value]),
            is_open: false,
            n_visited: 1,
        };
        for step in &self.steps {
            let mut values = SmallVec::new();
            for value in found.values {
                let (children, is_whole) = match (step, value) {
                    (Step::Each, Value::Array(items)) => (items.as_slice(), false),
                    (Step::Key(key), Value::Object(fields)) => {
                        let child = fields.get(key);
                        (child.map_or(&[][..], slice::from_ref), child.is_some())
                    }
                    (Step::Key(key), Value::Array(items)) => {
                        let child = key.parse().ok().and_then(|at: usize| items.get(at));
                        let is_position = key.parse::<usize>().is_ok();
                        let is_whole = child.is_some() || !is_position;
                        (child.map_or(&[][..], slice::from_ref), is_whole)
                    }
                    _ => (&[][..], true),
                };
                found.is_open |= !is_whole && is_one_of(value, incomplete);
                values.extend(children);
            }
            found.n_visited += values.len() as u64;
            found.values = values;
        }
        found
    }
}

/// The values at a path.
#[derive(Default)]
pub(crate) struct PathValues<'v> {
    pub(crate) values: SmallVec<[&'v Value; 1]>,
    /// More of them may lie behind a cut.
    pub(crate) is_open: bool,
    /// How many values were looked at.
    pub(crate) n_visited: u64,
}

/// Is this value itself among these?
pub(crate) fn is_one_of(value: &Value, values: &[&Value]) -> bool {
    values.iter().any(|other| std::ptr::eq(*other, value))
}

// === as written ===

impl<'de> Deserialize<'de> for ValuePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl Serialize for ValuePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl JsonSchema for ValuePath {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ValuePath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(args|result)(\\.[^.]+)*$" })
    }
}
