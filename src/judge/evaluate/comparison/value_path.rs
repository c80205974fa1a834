//! Parses paths into the arguments and the result of a call, and finds the values at a path.

use std::slice;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smallvec::SmallVec;

use crate::extract::ToolCall;

/// A path: `args` or `result`, then keys, indices or `*`.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = ValuePath::PATTERN), description = "")]
pub struct ValuePath {
    text: String,
    /// True for `result`, false for `args`.
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
    /// Regular expression that valid paths match.
    pub(crate) const PATTERN: &str = "^(args|result)(\\.[^.]+)*$";

    /// Parses a path such as `args.lines.*.amount`.
    ///
    /// # Errors
    /// Returns the mistake in the path, and the remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split('.');
        if words.clone().any(is_bracketed) {
            let dotted = text.replace('[', ".").replace(']', "");
            return Err(format!("the path `{text}` has brackets: write `{dotted}`"));
        }
        let of_result = match words.next() {
            Some("args") => false,
            Some("result") => true,
            _ => {
                return Err(format!(
                    "the path `{text}` is not valid: write `args` or `result`, then keys, indices \
                     or `*`, such as `args.path` or `result.items.*.id`"
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

    /// Returns the path as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if the path names a key of arguments that are not a map. Blank text and null
    /// count as absent arguments.
    fn lacks_map(&self, args: &Value) -> bool {
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

    /// Returns the values at the path in a call; a cut value yields only the part before the cut.
    /// `None` if nothing is known.
    pub fn values_in<'v>(&self, call: &'v ToolCall) -> Option<PathValues<'v>> {
        let part = call.part(self.of_result);
        match part.payload {
            Some(payload) => {
                let (json, incomplete) = payload.as_far_as_stored()?;
                Some(self.follow(json, incomplete))
            }
            None => part.is_captured.then(PathValues::of_nothing),
        }
    }

    /// Returns the values at the path in a call as JSON. `None` if there are none, or if one of
    /// them is unknown.
    pub(crate) fn json_in(&self, call: &ToolCall) -> Option<String> {
        let found = self.values_in(call)?;
        let values: Vec<&Value> = found.present().collect();
        match values.as_slice() {
            _ if found.is_cut() => None,
            [] => None,
            [value] => Some(value.to_string()),
            values => serde_json::to_string(values).ok(),
        }
    }

    /// Follows the path in a value. `incomplete` lists the parts of the value that end at a cut.
    pub(crate) fn follow<'v>(
        &self,
        value: &'v Value,
        incomplete: Vec<&'v Value>,
    ) -> PathValues<'v> {
        let mut found = PathValues {
            values: SmallVec::from_buf([value]),
            is_open: false,
            lacks_value: false,
            lacks_map: self.lacks_map(value),
            n_visited: 1,
            incomplete,
        };
        for step in &self.steps {
            let mut values = SmallVec::new();
            for value in std::mem::take(&mut found.values) {
                let (children, is_whole) = match (step, value) {
                    (Step::Each, Value::Array(items)) => (items.as_slice(), false),
                    (Step::Key(key), Value::Object(fields)) => {
                        let child = fields.get(key);
                        (child.map_or(&[][..], slice::from_ref), child.is_some())
                    }
                    (Step::Key(key), Value::Array(items)) => {
                        let position = key.parse::<usize>().ok();
                        let child = position.and_then(|at| items.get(at));
                        let is_whole = child.is_some() || position.is_none();
                        (child.map_or(&[][..], slice::from_ref), is_whole)
                    }
                    _ => (&[][..], true),
                };
                let is_open = !is_whole && found.is_incomplete(value);
                let is_empty_list = *step == Step::Each && value.is_array();
                found.is_open |= is_open;
                found.lacks_value |= children.is_empty() && !is_open && !is_empty_list;
                values.extend(children);
            }
            found.n_visited += values.len() as u64;
            found.values = values;
        }
        found
    }
}

/// Returns true for `args[x]`, and for a key with an index as other path languages write it, such
/// as `lines[0]` or `lines[*]`.
fn is_bracketed(word: &str) -> bool {
    let is_index = |text: &str| text == "*" || text.parse::<usize>().is_ok();
    let inner = word
        .strip_suffix(']')
        .and_then(|rest| rest.rsplit_once('['));
    let is_indexed = inner.is_some_and(|(key, index)| !key.is_empty() && is_index(index));
    is_indexed || word.starts_with("args[") || word.starts_with("result[")
}

/// The values at a path in a call.
#[derive(Default)]
pub struct PathValues<'v> {
    /// The values, including null.
    pub(crate) values: SmallVec<[&'v Value; 1]>,
    /// True if more values may lie behind a cut.
    pub(crate) is_open: bool,
    /// True if there is no value at the path, or none in at least one element under `*`. An empty
    /// list under `*` lacks nothing, and a value behind a cut may exist.
    lacks_value: bool,
    pub(crate) lacks_map: bool,
    pub(crate) n_visited: u64,
    /// The parts of the arguments or the result that end at a cut.
    incomplete: Vec<&'v Value>,
}

impl<'v> PathValues<'v> {
    /// Returns the values at a path of absent arguments, or of an absent result.
    pub(crate) fn of_nothing() -> Self {
        Self {
            lacks_value: true,
            ..Self::default()
        }
    }

    /// Returns true if there is a value at the path; `None` if unknown. Null counts only with
    /// `takes_null`.
    pub(crate) fn led(&self, takes_null: bool) -> Option<bool> {
        let mut values = self.values.iter();
        let has_value = values.any(|value| takes_null || !value.is_null());
        (has_value || !self.is_open).then_some(has_value)
    }

    /// Returns "missing", or "missing in an element" if another element has a value; `None` unless
    /// a value is certainly missing.
    pub(crate) fn lack(&self, takes_null: bool) -> Option<&'static str> {
        let has_null = !takes_null && self.values.iter().any(|value| value.is_null());
        (self.lacks_value || has_null).then(|| {
            if self.led(takes_null) == Some(true) {
                "missing in an element"
            } else {
                "missing"
            }
        })
    }

    /// Returns the values that are not null.
    pub fn present(&self) -> impl Iterator<Item = &'v Value> {
        let values = self.values.iter().copied();
        values.filter(|value| !value.is_null())
    }

    /// Returns true if a value is cut, or if more values may lie behind a cut.
    pub fn is_cut(&self) -> bool {
        self.is_open || self.values.iter().any(|value| self.is_incomplete(value))
    }

    /// Returns true if the value, or something inside it, ends at a cut.
    pub(crate) fn is_incomplete(&self, value: &Value) -> bool {
        self.incomplete
            .iter()
            .any(|other| std::ptr::eq(*other, value))
    }
}

// === as written ===

impl TryFrom<String> for ValuePath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<ValuePath> for String {
    fn from(path: ValuePath) -> Self {
        path.text
    }
}
