//! Converts numbers that JSON cannot write, NaN and the infinities, to the strings that OTLP/JSON
//! uses.

use memchr::memmem;

const NAN: &str = "NaN";
const INFINITY: &str = "Infinity";
const NEGATIVE_INFINITY: &str = "-Infinity";

/// Returns the word for a double that is not finite.
pub(crate) fn word(value: f64) -> &'static str {
    match value {
        f64::INFINITY => INFINITY,
        f64::NEG_INFINITY => NEGATIVE_INFINITY,
        _ => NAN,
    }
}

/// Quotes `NaN` and `Infinity` outside strings, as Python's `json.dumps` writes them. `None` if
/// neither word occurs.
pub(crate) fn quoted(text: &str) -> Option<String> {
    let has = |word: &str| memmem::find(text.as_bytes(), word.as_bytes()).is_some();
    if !has(NAN) && !has(INFINITY) {
        return None;
    }
    let mut quoted = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let words = [NAN, INFINITY, NEGATIVE_INFINITY];
        if let Some(word) = words.into_iter().find(|word| rest.starts_with(word)) {
            quoted.extend(["\"", word, "\""]);
            rest = &rest[word.len()..];
            continue;
        }
        let end = match first {
            '"' => end_of_string(rest),
            _ => first.len_utf8(),
        };
        quoted.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    Some(quoted)
}

/// Returns the end of the quoted string with which the text begins.
fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_strings_are_quoted() {
        for (text, expected) in [
            (
                r#"{"a": NaN, "b": [Infinity, -Infinity]}"#,
                Some(r#"{"a": "NaN", "b": ["Infinity", "-Infinity"]}"#),
            ),
            (
                r#"{"a\"NaN": "x \\", "é": NaN}"#,
                Some(r#"{"a\"NaN": "x \\", "é": "NaN"}"#),
            ),
            (r#"{"a": "NaN"#, Some(r#"{"a": "NaN"#)),
            (r#"{"a": nan}"#, None),
        ] {
            assert_eq!(quoted(text).as_deref(), expected, "{text}");
        }
    }
}
