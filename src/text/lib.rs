//! Text utilities: truncation, counts with a noun, hexadecimal digits, durations, exact decimal
//! numbers, the nearest of several words. Independent of spanscore.

pub mod decimal;
mod did_you_mean;

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::time::Duration;

use data_encoding::HEXLOWER;

pub use did_you_mean::nearest;

/// Returns the first `max_chars` characters of a text.
pub fn truncated(text: &str, max_chars: usize) -> &str {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Like [`truncated`], but replaces the rest with `…`.
pub fn abbreviated(text: &str, max_chars: usize) -> Cow<'_, str> {
    let start = truncated(text, max_chars);
    if start.len() == text.len() {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{start}…"))
    }
}

/// Breaks lines longer than `width` characters at spaces, and within a word that is longer than a
/// line. Continuation lines are indented by two more spaces than the line. Colour codes have no
/// width. Without a width, no line is broken.
pub fn wrapped(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let Some(width) = width else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for line in text.split_inclusive('\n') {
        wrap_line(&mut out, line, width);
    }
    Cow::Owned(out)
}

fn wrap_line(out: &mut String, line: &str, width: usize) {
    let plain = if line.starts_with(ESCAPE) {
        line.split_once('m').map_or(line, |(_, plain)| plain)
    } else {
        line
    };
    let indent = plain.len() - plain.trim_start_matches(' ').len();
    let hanging = (indent + 2).min(width / 2);
    let break_line = |out: &mut String| {
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', hanging));
    };
    let mut column = 0;
    for word in line.split_inclusive(' ') {
        let n_chars = n_visible(word.trim_end());
        let fits_a_line = hanging + n_chars <= width;
        if fits_a_line && column > hanging.max(indent) && column + n_chars > width {
            break_line(out);
            column = hanging;
        }
        let mut is_code = false;
        for c in word.chars() {
            let is_visible = !is_code && c != ESCAPE;
            is_code = c == ESCAPE || (is_code && c != 'm');
            if is_visible && column >= width && !c.is_whitespace() {
                break_line(out);
                column = hanging;
            }
            out.push(c);
            column += usize::from(is_visible);
        }
    }
}

const ESCAPE: char = '\u{1b}';

/// Returns the number of characters without colour codes (ESC [ … m).
fn n_visible(text: &str) -> usize {
    let mut is_code = false;
    let is_visible = |c: &char| {
        let is_visible = !is_code && *c != ESCAPE;
        is_code = *c == ESCAPE || (is_code && *c != 'm');
        is_visible
    };
    text.chars().filter(is_visible).count()
}

/// Returns true if the character could change a terminal's screen, break a line, or reorder its
/// text: control characters (C0 and C1), line separators, and marks of the writing direction.
pub fn is_unsafe_on_terminals(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
                | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Escapes the characters in JSON strings that are unsafe on terminals: JSON itself allows C1 and
/// bidirectional controls. The result parses to the same JSON value.
pub fn safe_json(json: String) -> String {
    if !json.chars().any(|c| is_unsafe_on_terminals(c) && c != '\n') {
        return json;
    }
    let escaped = |c: char| match c {
        // JSON escapes line breaks in strings, so a raw one only separates the values of indented
        // JSON.
        '\n' => c.to_string(),
        c if is_unsafe_on_terminals(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escaped).collect()
}

/// Returns a number and its noun: "1 entry", "3 entries".
pub fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Parses `500ms`, `2s`, `15m`, `1h`, or `0`.
pub fn duration_from(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.trim().parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// Returns a duration in the largest unit in which it is a whole number: `90s`, `2m`. Omits
/// fractions of a millisecond.
pub fn duration_text(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0s".to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        _ => format!("{millis}ms"),
    }
}

/// A text from outside that is displayed safely on a terminal. Names come from the network. A
/// control character in a name could rewrite the screen, a line break could fake a line, and a
/// change of writing direction could reorder one.
pub struct Clean<'a>(pub &'a str);

impl fmt::Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_unsafe_on_terminals(c) {
                write!(f, "{}", c.escape_default())?
            } else {
                f.write_char(c)?
            }
        }
        Ok(())
    }
}

/// Formats a name from outside as code in a sentence: escaped by [`Clean`], and between double
/// backticks if it contains a backtick, as in Markdown.
pub fn code(name: &str) -> String {
    let quote = if name.contains('`') { "``" } else { "`" };
    format!("{quote}{}{quote}", Clean(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_counts_characters_and_marks_only_what_is_cut() {
        assert_eq!(truncated("añb", 2), "añ");
        assert_eq!(truncated("añb", 3), "añb");
        assert_eq!(abbreviated("añb", 2), "añ…");
        assert_eq!(abbreviated("añb", 3), "añb");
        assert_eq!(abbreviated("", 0), "");
    }

    #[test]
    fn long_lines_are_wrapped_with_a_hanging_indent_and_colours_take_no_room() {
        let text = "  one two three four\nfive\n\n    \u{1b}[1mbold\u{1b}[0m words\n";
        let expected =
            "  one two\n    three\n    four\nfive\n\n    \u{1b}[1mbold\u{1b}[0m\n     words\n";
        assert_eq!(wrapped(text, Some(10)), expected);
        assert_eq!(wrapped(text, Some(40)), text);
        assert_eq!(wrapped(text, None), text);
        let too_long = wrapped("see a-word-that-is-too-long b", Some(8));
        assert_eq!(too_long, "see a-wo\n  rd-tha\n  t-is-t\n  oo-lon\n  g b");
    }

    #[test]
    fn json_is_safe_on_terminals_and_stays_the_same_value() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{9b}2J\n", "\u{2028}", "é"] });
        for json in [value.to_string(), format!("{value:#}")] {
            let safe = safe_json(json.clone());
            assert!(!safe.contains(['\u{202e}', '\u{9b}', '\u{2028}']), "{safe}");
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&safe).unwrap(),
                value
            );
        }
        assert_eq!(safe_json("\"é\"".to_owned()), "\"é\"");
    }

    #[test]
    fn a_name_in_a_sentence_can_forge_nothing() {
        assert_eq!(code("search"), "`search`");
        assert_eq!(code("a`b"), "``a`b``");
        assert_eq!(code("a\u{1b}[2J\n\u{202e}é"), "`a\\u{1b}[2J\\n\\u{202e}é`");
    }
}
