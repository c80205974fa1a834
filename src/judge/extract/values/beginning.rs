//! Completes the prefix of a cut value to valid JSON.

use serde_json::Value;

use super::payload::parse;
use crate::extract::tool_call::{Beginning, Payload, StoredPart};

impl Payload {
    /// Returns the value, or the prefix of a cut value together with its incomplete inner values,
    /// the outermost first. `None` if the prefix is unusable.
    pub(crate) fn as_far_as_stored(&self) -> Option<(&Value, Vec<&Value>)> {
        if !self.is_cut() {
            return Some((self.json(), Vec::new()));
        }
        let read = || Beginning::new(&self.text, self.kept()).map(Box::new);
        let Beginning { json, path } = &**self.beginning.get_or_init(read).as_ref()?;
        let mut incomplete = vec![json];
        for key in path {
            let child = match incomplete.last() {
                Some(Value::Object(fields)) => fields.get(key),
                Some(Value::Array(items)) => items.last(),
                _ => None,
            };
            incomplete.extend(child);
        }
        Some((json, incomplete))
    }
}

impl Beginning {
    /// Parses the stored prefix of a cut value; `None` for a whole value or an unusable prefix.
    fn new(text: &str, kept: StoredPart) -> Option<Self> {
        match kept {
            StoredPart::Whole | StoredPart::Unreadable => None,
            StoredPart::BeginningOfText => Some(Self::of_text(text)),
            StoredPart::Beginning if text.trim_start().starts_with(['{', '[']) => {
                let (json, path) = closed(text.trim_start())?;
                let (json, kept) = parse(&json);
                let is_json = kept == StoredPart::Whole && !json.is_string();
                is_json.then_some(Self { json, path })
            }
            StoredPart::Beginning => {
                // The prefix of a JSON string, number or word proves nothing.
                let may_be_scalar =
                    text.trim_start().starts_with('"') || !text.bytes().any(is_not_of_scalar);
                (!may_be_scalar).then(|| Self::of_text(text))
            }
        }
    }

    fn of_text(text: &str) -> Self {
        Self {
            json: Value::String(text.to_owned()),
            path: Vec::new(),
        }
    }
}

/// Returns true if the byte cannot belong to a number, `true`, `false` or `null`.
fn is_not_of_scalar(byte: u8) -> bool {
    !(byte.is_ascii_digit() || b"+-.eE \t\n\rtrufalsn".contains(&byte))
}

/// An open container.
struct Level<'t> {
    is_object: bool,
    /// The key whose value follows, in quotes.
    key: Option<&'t str>,
}

/// Closes all strings, arrays and objects that the prefix of a JSON container leaves open. Returns
/// the JSON, and the path to the innermost incomplete value. A number or word at the end is
/// dropped, because its rest is unknown.
fn closed(text: &str) -> Option<(String, Vec<String>)> {
    let bytes = text.as_bytes();
    let mut levels: Vec<Level<'_>> = Vec::new();
    // The end of the last complete value or opening bracket, and a string that is cut.
    let (mut end, mut tail) = (0, None);
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            open @ (b'{' | b'[') => {
                levels.push(Level {
                    is_object: open == b'{',
                    key: None,
                });
                (at, end) = (at + 1, at + 1);
            }
            b'}' | b']' => {
                levels.pop();
                if levels.is_empty() {
                    return None;
                }
                (at, end) = (at + 1, at + 1);
            }
            b'"' => {
                let level = levels.last_mut()?;
                let is_key = level.is_object && level.key.is_none();
                let Some(length) = string_length(&bytes[at..]) else {
                    if !is_key {
                        tail = Some(whole_characters(&text[at + 1..])?);
                    }
                    break;
                };
                if is_key {
                    level.key = Some(&text[at..at + length])
                } else {
                    end = at + length
                }
                at += length;
            }
            b',' => {
                levels.last_mut()?.key = None;
                at += 1;
            }
            b':' | b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            _ => {
                let is_scalar = |byte: &u8| !b",:]}[{\" \t\n\r".contains(byte);
                let length = bytes[at..]
                    .iter()
                    .take_while(|byte| is_scalar(byte))
                    .count();
                at += length;
                if at < bytes.len() {
                    end = at;
                }
            }
        }
    }
    let mut json = match tail {
        // Copy everything up to the cut string, with the comma or key before it.
        Some(tail) => format!("{}\"{tail}\"", &text[..at]),
        None => text[..end].to_owned(),
    };
    json.extend(
        levels
            .iter()
            .rev()
            .map(|level| if level.is_object { '}' } else { ']' }),
    );
    let n_inside = levels.len() - usize::from(tail.is_none());
    let keys = levels.iter().take(n_inside).map(|level| match level.key {
        Some(key) => serde_json::from_str(key).ok(),
        None => Some(String::new()),
    });
    Some((json, keys.collect::<Option<_>>()?))
}

/// Returns the length of a string with both quotes; `None` if it does not end.
fn string_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Returns the inside of a cut string, without a partial escape or half a surrogate pair at its
/// end. `None` if it is not a JSON string.
fn whole_characters(text: &str) -> Option<&str> {
    let is_whole = |text: &str| serde_json::from_str::<String>(&format!("\"{text}\"")).is_ok();
    // The longest escape is a pair, `\ud83d\ude00`.
    let escapes = text.rmatch_indices('\\').map(|(at, _)| at);
    let ends = escapes.take_while(|at| at + 12 > text.len());
    let texts = std::iter::once(text.len())
        .chain(ends)
        .map(|end| &text[..end]);
    texts.into_iter().find(|text| is_whole(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn beginning(text: &str) -> Payload {
        Payload::read(text, Value::Null, StoredPart::Beginning)
    }

    #[test]
    fn values_before_the_cut_are_kept() {
        for (text, expected, n_incomplete) in [
            (r#"{"a": 1, "b": 12"#, json!({"a": 1}), 1),
            (r#"{"a": 1, "b": "x\ny"#, json!({"a": 1, "b": "x\ny"}), 2),
            (r#"{"a": [1, {"b": 2, "c"#, json!({"a": [1, {"b": 2}]}), 3),
            (r#"{"a": [[1], [2"#, json!({"a": [[1], []]}), 3),
            (r#"{"a": {"b": 1}, "c": "#, json!({"a": {"b": 1}}), 1),
            (r#"{"a": "x\ud83d\ud"#, json!({"a": "x"}), 2),
            (r#"{"a\"b": [true, fal"#, json!({"a\"b": [true]}), 2),
            ("{", json!({}), 1),
            ("[NaN, ", json!(["NaN"]), 1),
            ("some log line", json!("some log line"), 1),
        ] {
            let payload = beginning(text);
            let (json, incomplete) = payload.as_far_as_stored().unwrap();
            assert_eq!(*json, expected, "{text}");
            assert_eq!(incomplete.len(), n_incomplete, "{text}");
        }
    }

    #[test]
    fn a_beginning_that_may_be_of_anything_tells_nothing() {
        let deep = "[".repeat(200);
        for text in [
            "", "12", "-1.5e", "nul", "\"quoted", "[INFO] x", "{'a': 1", "{}", &deep,
        ] {
            assert!(beginning(text).as_far_as_stored().is_none(), "{text}");
        }
        let broken = beginning("{\"a\": \"\n");
        assert!(
            broken.as_far_as_stored().is_none(),
            "a line break in a string"
        );
    }

    proptest::proptest! {
        /// Every complete value of a prefix is at the same path in the whole value.
        #[test]
        fn what_is_kept_is_of_the_whole(cut in 1_usize..200) {
            let whole = json!({
                "a": [1, 2.50, "x\u{1f600}\"y"], "b": {"c": null, "d": [[], [true, false]]},
                "e": "long enough", "f": -7,
            });
            let text = whole.to_string();
            let cut = text.floor_char_boundary(cut.min(text.len() - 1));
            let payload = beginning(&text[..cut]);
            let (json, incomplete) = payload.as_far_as_stored().unwrap();
            assert_kept(json, &whole, &incomplete);
        }
    }

    fn assert_kept(kept: &Value, whole: &Value, incomplete: &[&Value]) {
        let is_incomplete = incomplete.iter().any(|value| std::ptr::eq(*value, kept));
        match (kept, whole) {
            (Value::Object(kept), Value::Object(whole)) if is_incomplete => {
                kept.iter()
                    .for_each(|(key, kept)| assert_kept(kept, &whole[key], incomplete));
            }
            (Value::Array(kept), Value::Array(whole)) if is_incomplete => {
                let items = kept.iter().zip(whole);
                items.for_each(|(kept, whole)| assert_kept(kept, whole, incomplete));
            }
            (Value::String(kept), Value::String(whole)) if is_incomplete => {
                assert!(whole.starts_with(kept.as_str()), "{kept}");
            }
            _ => assert_eq!(kept, whole),
        }
    }
}
