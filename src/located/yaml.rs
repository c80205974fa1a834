//! Writes a JSON value as YAML, with comments after keys, as a person would. (The parser's own
//! writer writes no comments.)

use std::fmt::Write as _;

use serde_json::{Map, Value};
use text::safe_json;

use super::interpolate::escaped;

/// Maximum characters of a list of plain values that is written on one line.
const MAX_FLOW_CHARS: usize = 100;

/// Writes YAML in block style, short lists on one line. `comment` returns the comment for a key, by
/// its path.
pub fn to_commented_yaml(value: &Value, comment: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut out, map, 0, "", comment),
        Value::Array(items) if !items.is_empty() => write_list(&mut out, items, 0, "", comment),
        other => {
            let _ = writeln!(out, "{}", flow(other));
        }
    }
    out
}

pub fn to_yaml(value: &Value) -> String {
    to_commented_yaml(value, &|_| None)
}

fn write_map(
    out: &mut String,
    map: &Map<String, Value>,
    indent: usize,
    path: &str,
    comment: &dyn Fn(&str) -> Option<String>,
) {
    for (key_idx, (key, value)) in map.iter().enumerate() {
        if key_idx > 0 || !out.ends_with("- ") {
            let _ = write!(out, "{:indent$}", "");
        }
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let _ = write!(out, "{}:", scalar(key));
        write_value(out, value, indent, &path, comment);
    }
}

fn write_value(
    out: &mut String,
    value: &Value,
    indent: usize,
    path: &str,
    comment: &dyn Fn(&str) -> Option<String>,
) {
    let remark = comment(path)
        .map(|remark| format!("  # {remark}"))
        .unwrap_or_default();
    match value {
        Value::Object(map) if !map.is_empty() => {
            let _ = writeln!(out, "{remark}");
            write_map(out, map, indent + 2, path, comment);
        }
        Value::Array(items) if !items.is_empty() && !is_short(items) => {
            let _ = writeln!(out, "{remark}");
            write_list(out, items, indent + 2, path, comment);
        }
        other => {
            let _ = writeln!(out, " {}{remark}", flow(other));
        }
    }
}

fn write_list(
    out: &mut String,
    items: &[Value],
    indent: usize,
    path: &str,
    comment: &dyn Fn(&str) -> Option<String>,
) {
    for item in items {
        let _ = write!(out, "{:indent$}- ", "");
        match item {
            Value::Object(map) if !map.is_empty() => write_map(out, map, indent + 2, path, comment),
            other => {
                let _ = writeln!(out, "{}", flow(other));
            }
        }
    }
}

fn is_short(items: &[Value]) -> bool {
    items
        .iter()
        .all(|item| !item.is_object() && !item.is_array())
        && items.iter().map(|item| flow(item).len() + 2).sum::<usize>() <= MAX_FLOW_CHARS
}

pub fn flow(value: &Value) -> String {
    match value {
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(flow).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", scalar(key), flow(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        Value::String(text) => scalar(&escaped(text)),
        other => other.to_string(),
    }
}

/// Writes a text, quoted unless it is safe everywhere: inside `[ ]` and `{ }`, and for YAML 1.1
/// parsers (`no`, `1e3`).
pub(crate) fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ')'))
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
    let is_amount = text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| c.is_ascii_alphabetic())
        && text
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .chars()
            .all(|c| c.is_ascii_alphabetic())
        && !text.contains(['e', 'E', 'x', 'o']);
    let is_reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    if (is_word || is_amount) && !is_reserved {
        text.to_owned()
    } else {
        safe_json(Value::from(text).to_string())
    }
}
