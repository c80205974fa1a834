//! Searches messages for the words by which they mark tool calls, results and the model's answers.
//! Does not parse them.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::value::{ScannedValue, ValueKind};
use crate::wire::delimited_fields;

/// Can these messages, the field `field` of `encoded`, contain a tool call or its result, by their
/// text or their key?
pub(super) fn may_hold_call(
    suffix: &[u8],
    value: ScannedValue<'_>,
    encoded: &[u8],
    field: u64,
) -> bool {
    names_tool_call(suffix)
        || match value.kind {
            ValueKind::Str | ValueKind::Bytes => names_tool_call(value.bytes),
            ValueKind::Nested => delimited_fields(encoded, field).any(names_tool_call),
            _ => false,
        }
}

/// The roles of a message that is the model's answer.
pub(super) const ANSWER_ROLES: [&[u8]; 2] = [b"assistant", b"model"];

/// Is there a message with such a role: the word alone as a JSON text, and no key, or encoded with
/// its length?
pub(super) fn names_answer(text: &[u8]) -> bool {
    static FINDERS: LazyLock<[Finder<'_>; 2]> = LazyLock::new(|| ANSWER_ROLES.map(Finder::new));
    let is_role = |at: usize, len: usize| {
        let (before, after) = (text[..at].last().copied(), &text[at + len..]);
        match before {
            Some(quote @ (b'"' | b'\'')) => {
                let after = after.strip_prefix(&[quote]).map(<[u8]>::trim_ascii_start);
                after.is_some_and(|after| !after.starts_with(b":"))
            }
            before => before.map(usize::from) == Some(len),
        }
    };
    let mut finders = FINDERS.iter();
    finders.any(|finder| {
        let len = finder.needle().len();
        finder.find_iter(text).any(|at| is_role(at, len))
    })
}

/// Looks for the words by which the known message formats mark tool calls and results
/// (`tool_call`, `toolCallId`, `tool-result`, `toolUse`, `ToolMessage`, `function_call`,
/// `functionResponse`, …), at the speed of a substring search. A false positive costs memory
/// only.
pub(super) fn names_tool_call(text: &[u8]) -> bool {
    static TOOL: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"ool"));
    static FUNCTION: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"unction"));
    const AFTER_TOOL: [&[u8]; 6] = [
        b"call",
        b"use",
        b"result",
        b"request",
        b"response",
        b"message",
    ];
    const AFTER_FUNCTION: [&[u8]; 2] = [b"call", b"response"];
    !text.is_empty()
        && (holds_word(text, &TOOL, b't', &AFTER_TOOL)
            || holds_word(text, &FUNCTION, b'f', &AFTER_FUNCTION))
}

/// Is there a word that begins with `first` (in either case) and the stem, followed by one of
/// `endings`, with or without a separator?
fn holds_word(text: &[u8], stem: &Finder<'_>, first: u8, endings: &[&[u8]]) -> bool {
    stem.find_iter(text).any(|at| {
        let after = &text[at + stem.needle().len()..];
        let after = after
            .strip_prefix(b"_")
            .or_else(|| after.strip_prefix(b"-"))
            .unwrap_or(after);
        let starts = at > 0 && text[at - 1].eq_ignore_ascii_case(&first);
        starts
            && endings.iter().any(|ending| {
                after
                    .get(..ending.len())
                    .is_some_and(|word| word.eq_ignore_ascii_case(ending))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_known_by_its_role_alone() {
        let answers: [&[u8]; 5] = [
            br#"[{"role":"user"},{"role":"assistant","parts":[]}]"#,
            br#"[{"role": "model" }]"#,
            br#"{"role":"assistant"}"#,
            b"[{'role': 'assistant', 'content': 'x'}]",
            b"\x0a\x0b\x0a\x04role\x12\x0b\x0a\x09assistant",
        ];
        for text in answers {
            assert!(names_answer(text), "{}", text.escape_ascii());
        }
        let others: [&[u8]; 5] = [
            b"",
            br#"[{"role":"system","content":"You are a helpful assistant"}]"#,
            br#"[{"role":"user","content":"Say \"assistant\"."}]"#,
            br#"[{"role":"user","model": "gpt-4o"}]"#,
            b"assistant",
        ];
        for text in others {
            assert!(!names_answer(text), "{}", text.escape_ascii());
        }
    }
}
