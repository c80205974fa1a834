//! Guesses from one span which attributes a framework uses for tool calls, and writes the `tools`
//! setting that reads these attributes.

use serde_json::json;

use super::yaml;

/// Attribute values that mark a span as a tool call.
const MARKS: [&str; 5] = [
    "tool",
    "tool_call",
    "function",
    "function_call",
    "tool-call",
];
/// Length in characters up to which a value is probably a mark, a name or an id. Attributes with
/// longer values are tried last.
const LONGEST_MARK: usize = 40;

/// A guess at the attributes that a framework uses for tool calls.
#[derive(Debug, PartialEq, Eq)]
pub struct Spelling<'a> {
    /// An attribute and value that mark a span as a tool call.
    mark: Option<(&'a str, &'a str)>,
    name: Option<&'a str>,
    args: Option<&'a str>,
    result: Option<&'a str>,
    call_id: Option<&'a str>,
}

impl<'a> Spelling<'a> {
    /// Returns a guess; `None` if the span does not look like a tool call.
    pub fn guess(attributes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut attributes: Vec<(&str, &str)> = attributes.into_iter().collect();
        attributes.sort_by_key(|(_, value)| value.chars().nth(LONGEST_MARK).is_some());
        let is_mark = |value: &str| MARKS.iter().any(|mark| mark.eq_ignore_ascii_case(value));
        let mark = attributes.iter().copied().find(|(_, value)| is_mark(value));
        let key = |fits: &dyn Fn(&str) -> bool| {
            let keys = attributes.iter().map(|(key, _)| *key);
            let mut others = keys.filter(|key| mark.is_none_or(|(marking, _)| marking != *key));
            others.find(|key| fits(&key.to_ascii_lowercase()))
        };
        let ends_like = |key: &str, ends: &[&str]| ends.iter().any(|end| key.ends_with(end));
        let names_tool = |key: &str| {
            key.ends_with("tool")
                || (key.contains("tool") || key.contains("function")) && key.ends_with("name")
        };
        let name =
            key(&names_tool).or_else(|| mark.and_then(|_| key(&|key| key.ends_with("name"))));
        const ARGS: [&str; 5] = ["args", "arguments", "input", "parameters", "params"];
        const RESULT: [&str; 3] = ["result", "output", "response"];
        (mark.is_some() || name.is_some()).then(|| Self {
            mark,
            name,
            args: key(&|key| ends_like(key, &ARGS)),
            result: key(&|key| ends_like(key, &RESULT)),
            call_id: key(&|key| key.contains("call") && key.ends_with("id")),
        })
    }

    /// Returns true if an attribute marks the span as a tool call. A mark is stronger evidence than
    /// a name.
    pub fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    /// Returns the setting to try, as YAML.
    pub fn setting(&self) -> String {
        let Some((key, value)) = self.mark else {
            let name = self.name.unwrap_or_default();
            return yaml(&json!({ "tools": { "name_attributes": ["tool.name", name] } }));
        };
        let mut convention = json!({ "name": "house", "match": { key: value } });
        for (word, key) in [
            ("name_from", self.name),
            ("args_from", self.args),
            ("result_from", self.result),
            ("id_from", self.call_id),
        ] {
            if let Some(key) = key {
                convention[word] = key.into();
            }
        }
        yaml(&json!({ "tools": { "conventions": [convention] } }))
    }
}
