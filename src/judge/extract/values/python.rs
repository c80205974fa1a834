//! Converts Python literals and dataclasses, as `repr` writes them, to JSON. Returns `None` for
//! anything else; nesting is bounded.

use serde_json::{Map, Number, Value};
use text::decimal::Decimal;

use super::non_finite;

/// Maximum nesting, the same as in serde_json.
const MAX_DEPTH: usize = 128;

/// Parses a Python literal: dictionaries, lists, tuples, sets, strings, numbers, `None`, `True` and
/// `False`.
pub(crate) fn parse(text: &str) -> Option<Value> {
    whole(Parser {
        rest: text,
        objects: false,
    })
}

/// Like [`parse`], but also parses objects as `repr` writes them: `ToolCall(name='x', id=None)`
/// becomes `{"ToolCall": {"name": "x", "id": null}}`, `<Role.USER: 'user'>` becomes `"user"`; any
/// other text in angle brackets, and a bare name, becomes its text.
pub(crate) fn parse_objects(text: &str) -> Option<Value> {
    whole(Parser {
        rest: text,
        objects: true,
    })
}

fn whole(mut parser: Parser<'_>) -> Option<Value> {
    let value = parser.value(0)?;
    parser.skip_space();
    parser.rest.is_empty().then_some(value)
}

struct Parser<'a> {
    rest: &'a str,
    /// True if objects are also parsed.
    objects: bool,
}

impl<'a> Parser<'a> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth >= MAX_DEPTH {
            return None;
        }
        self.skip_space();
        if let Some(word) = self.not_finite() {
            return Some(Value::from(word));
        }
        if self.objects
            && let Some(object) = self.object(depth)
        {
            return object;
        }
        match self.rest.chars().next()? {
            '{' => self.braces(depth),
            '[' => self
                .items('[', ']', depth)
                .map(|(items, _)| Value::Array(items)),
            '(' => {
                let (mut items, comma) = self.items('(', ')', depth)?;
                // Parentheses around a single value are a tuple only with a comma.
                if items.len() == 1 && !comma { items.pop() } else { Some(Value::Array(items)) }
            }
            '\'' | '"' | 'r' | 'b' | 'u' | 'R' | 'B' | 'U' => self.string().map(Value::String),
            'N' => self.word("None").then_some(Value::Null),
            'T' => self.word("True").then_some(Value::Bool(true)),
            'F' => self.word("False").then_some(Value::Bool(false)),
            _ => self.number(),
        }
    }

    /// Parses an object, if one begins here; returns `Some(None)` if it is malformed.
    fn object(&mut self, depth: usize) -> Option<Option<Value>> {
        if let Some(inner) = self.rest.strip_prefix('<') {
            let quoted = inner
                .split_once(": ")
                .filter(|(name, _)| name.chars().all(is_of_name))
                .map(|(_, quoted)| quoted);
            if let Some(quoted) = quoted {
                self.rest = quoted;
                let value = self.value(depth + 1);
                return Some(value.filter(|_| self.eat('>')));
            }
            let (text, rest) = inner.split_once('>')?;
            self.rest = rest;
            return Some(Some(Value::from(text)));
        }
        let name = self
            .name()
            .filter(|name| !matches!(*name, "None" | "True" | "False"))?;
        let after = &self.rest[name.len()..];
        // A letter before a quote is a string prefix.
        if after.starts_with(['\'', '"']) {
            return None;
        }
        self.rest = after;
        if !self.eat('(') {
            return Some(Some(Value::from(name)));
        }
        let mut fields = Map::new();
        while !self.eat(')') {
            self.skip_space();
            let field = self
                .name()
                .filter(|field| self.rest[field.len()..].starts_with('='));
            if let Some(field) = field {
                self.rest = &self.rest[field.len() + 1..];
            }
            let Some(value) = self.value(depth + 1) else {
                return Some(None);
            };
            fields.insert(
                field.map_or_else(|| fields.len().to_string(), str::to_owned),
                value,
            );
            self.skip_space();
            if !self.eat(',') && !self.rest.starts_with(')') {
                return Some(None);
            }
            self.skip_space();
        }
        Some(Some(Value::Object(Map::from_iter([(
            name.to_owned(),
            Value::Object(fields),
        )]))))
    }

    /// Returns the dotted name that begins here.
    fn name(&self) -> Option<&'a str> {
        let end = self
            .rest
            .find(|char: char| !is_of_name(char))
            .unwrap_or(self.rest.len());
        let name = &self.rest[..end];
        name.starts_with(|char: char| char.is_alphabetic() || char == '_')
            .then_some(name)
    }

    fn braces(&mut self, depth: usize) -> Option<Value> {
        self.eat('{');
        let mut map = Map::new();
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if self.eat('}') {
                break;
            }
            let key = self.value(depth + 1)?;
            self.skip_space();
            if self.eat(':') {
                let value = self.value(depth + 1)?;
                map.insert(key_text(key)?, value);
            } else {
                items.push(key);
            }
            self.skip_space();
            if !self.eat(',') {
                if self.eat('}') {
                    break;
                }
                return None;
            }
        }
        match (map.is_empty(), items.is_empty()) {
            (false, false) => None,
            (true, false) => Some(Value::Array(items)),
            _ => Some(Value::Object(map)),
        }
    }

    /// Parses the items between two brackets. The returned boolean is true if there was a comma.
    fn items(&mut self, open: char, close: char, depth: usize) -> Option<(Vec<Value>, bool)> {
        self.eat(open);
        let mut items = Vec::new();
        let mut comma = false;
        loop {
            self.skip_space();
            if self.eat(close) {
                return Some((items, comma));
            }
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.eat(',') {
                comma = true;
            } else if self.eat(close) {
                return Some((items, comma));
            } else {
                return None;
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let prefix = self.rest.find(['\'', '"'])?;
        let (marks, rest) = self.rest.split_at(prefix);
        if prefix > 2 || !marks.chars().all(|mark| "rRbBuU".contains(mark)) {
            return None;
        }
        let raw = marks.contains(['r', 'R']);
        let quote = rest.chars().next()?;
        let mut chars = rest[1..].char_indices();
        let mut text = String::new();
        while let Some((at, char)) = chars.next() {
            match char {
                _ if char == quote => {
                    self.rest = &rest[1 + at + 1..];
                    return Some(text);
                }
                '\\' if !raw => {
                    let (at, char) = chars.next()?;
                    let n_digits = match char {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    if n_digits > 0 {
                        let digits = rest[1..].get(at + 1..at + 1 + n_digits)?;
                        text.push(
                            char::from_u32(u32::from_str_radix(digits, 16).ok()?)
                                .unwrap_or(char::REPLACEMENT_CHARACTER),
                        );
                        chars.nth(n_digits - 1);
                    } else {
                        match char {
                            'n' => text.push('\n'),
                            't' => text.push('\t'),
                            'r' => text.push('\r'),
                            '0' => text.push('\0'),
                            '\\' | '\'' | '"' => text.push(char),
                            '\n' => {}
                            _ => text.extend(['\\', char]),
                        }
                    }
                }
                _ => text.push(char),
            }
        }
        None
    }

    /// Parses a number with all its digits.
    fn number(&mut self) -> Option<Value> {
        let end = self
            .rest
            .find(|char: char| !(char.is_ascii_alphanumeric() || "+-._".contains(char)))
            .unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        let decimal = Decimal::parse(text)?;
        let number: Number = (text.parse().ok()).or_else(|| decimal.to_string().parse().ok())?;
        self.rest = rest;
        Some(Value::Number(number))
    }

    /// Parses `nan`, `inf` and `-inf`, which `repr` writes for doubles.
    fn not_finite(&mut self) -> Option<&'static str> {
        let words = [
            ("nan", f64::NAN),
            ("inf", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
        ];
        let found = words.into_iter().find(|(word, _)| self.word(word));
        found.map(|(_, value)| non_finite::word(value))
    }

    fn word(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word) {
            Some(rest) if !rest.starts_with(|char: char| char.is_alphanumeric() || char == '_') => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn eat(&mut self, char: char) -> bool {
        self.rest
            .strip_prefix(char)
            .inspect(|rest| self.rest = rest)
            .is_some()
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

fn is_of_name(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '.')
}

/// Formats a key as `json.dumps` does.
fn key_text(key: Value) -> Option<String> {
    match key {
        Value::String(text) => Some(text),
        Value::Array(_) | Value::Object(_) => None,
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::equality;
    use super::*;

    #[test]
    fn what_repr_writes_becomes_json() {
        let cases = [
            (
                "{'a': 1, 'b': None, 'c': True}",
                json!({"a": 1, "b": null, "c": true}),
            ),
            (
                "{'account': 'A-55', 'amount': 42.5, 'lines': ['x', -1e-05]}",
                json!({"account": "A-55", "amount": 42.5, "lines": ["x", -1e-05]}),
            ),
            (
                r#"{"it's": 'say "hi"', 'tab': 'a\tb\n', 'e': '\xe9\u2014\U0001f600'}"#,
                json!({"it's": "say \"hi\"", "tab": "a\tb\n", "e": "é—😀"}),
            ),
            ("(1, 'two',)", json!([1, "two"])),
            ("('alone')", json!("alone")),
            ("{1: 'one', True: 2}", json!({"1": "one", "true": 2})),
            ("{'x', 'y'}", json!(["x", "y"])),
            ("{}", json!({})),
            (
                "18446744073709551615",
                json!(18_446_744_073_709_551_615_u64),
            ),
            (
                "[12345678901234567890123, 0.1, nan, -inf]",
                serde_json::from_str(r#"[12345678901234567890123, 0.1, "NaN", "-Infinity"]"#)
                    .unwrap(),
            ),
            ("{'info': 'inf'}", json!({"info": "inf"})),
        ];
        for (text, expected) in cases {
            let parsed = parse(text).unwrap();
            assert_eq!(
                equality::equal(&parsed, &expected),
                Some(true),
                "{text}: {parsed}"
            );
        }
    }

    #[test]
    fn objects_become_maps_of_their_fields() {
        let text = concat!(
            r#"ChatMessage(_role=<ChatRole.TOOL: 'tool'>, _content=["#,
            r#"ToolCallResult(result="it's <b>", "#,
            r#"origin=ToolCall(tool_name='x', arguments={'a': 1}, id=None), error=True)], "#,
            r#"_meta={'at': datetime.datetime(2026, 1, 2), 'raw': <object at 0x7f>, 'n': nan})"#,
        );
        let expected = json!({ "ChatMessage": {
            "_role": "tool",
            "_content": [{ "ToolCallResult": {
                "result": "it's <b>",
                "origin": { "ToolCall": { "tool_name": "x", "arguments": { "a": 1 }, "id": null } },
                "error": true
            } }],
            "_meta": {
                "at": { "datetime.datetime": { "0": 2026, "1": 1, "2": 2 } },
                "raw": "object at 0x7f",
                "n": "NaN"
            }
        } });
        assert_eq!(parse_objects(text), Some(expected));
        for broken in [
            "A(b=",
            "A(b=1",
            "A(1 2)",
            "<A: 'b'",
            "A(b=c d)",
            &"A(".repeat(100_000),
        ] {
            assert_eq!(
                parse_objects(broken),
                None,
                "{}",
                &broken[..broken.len().min(20)]
            );
        }
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{'a': 1",
            "{'a' 1}",
            "ann@example.com",
            "<object at 0x7f>",
            "{'a': f()}",
            "'open",
            "{'a': 1} x",
            "nano",
            "inf(1)",
            "{[1]: 2}",
            "-",
            &deep,
        ] {
            assert_eq!(parse(text), None, "{}", &text[..text.len().min(20)]);
        }
    }
}
