//! Searches messages, without parsing them, for words that mark tool calls, results and a model's
//! answers.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::value::{ScannedValue, ValueKind};
use crate::wire::delimited_fields;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// True if the messages may contain a tool call or its result.
    pub(super) call: bool,
    /// True if a message has the role of a model. The role must be a whole quoted string that is
    /// not a key, or a protobuf string preceded by its length.
    pub(super) answer: bool,
}

/// Roles of messages that are a model's answers.
pub(super) const ANSWER_ROLES: [&[u8]; 2] = [b"assistant", b"model"];

/// Stems of the words that mark tool calls and results in known message formats (`tool_call`,
/// `toolCallId`, `tool-result`, `toolUse`, `ToolMessage`, `function_call`, `functionResponse`, …),
/// without the first letter, which can be upper or lower case.
const CALL_STEMS: [&[u8]; 2] = [b"ool", b"unction"];

static SEARCHER: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let mut builder = AhoCorasick::builder();
    builder.match_kind(MatchKind::LeftmostFirst);
    let words = CALL_STEMS.into_iter().chain(ANSWER_ROLES);
    builder.build(words).expect("four short words")
});

impl Words {
    /// Searches messages, which are a text or the field `field` of `encoded`.
    pub(super) fn of(value: ScannedValue<'_>, encoded: &[u8], field: u64) -> Self {
        let mut words = Self::default();
        match value.kind {
            ValueKind::Str | ValueKind::Bytes => words.add(value.bytes),
            ValueKind::Nested => delimited_fields(encoded, field).for_each(|text| words.add(text)),
            _ => {}
        }
        words
    }

    fn add(&mut self, text: &[u8]) {
        visit(text, |word, at| {
            match word {
                stem @ 0..2 => self.call |= is_call_word(text, at, stem),
                role => {
                    self.answer |= is_role(text, at, ANSWER_ROLES[role - CALL_STEMS.len()].len())
                }
            }
            self.call && self.answer
        });
    }
}

/// Returns true if the suffix or the value may contain a tool call or its result. A nested value is
/// read from the field `field` of `encoded`.
pub(super) fn may_contain_call(
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

/// Returns true if the text contains a word that marks tool calls or results in known message
/// formats. As fast as a substring search; a false positive only costs memory.
pub(super) fn names_tool_call(text: &[u8]) -> bool {
    let mut is_found = false;
    visit(text, |word, at| {
        is_found = word < CALL_STEMS.len() && is_call_word(text, at, word);
        is_found
    });
    is_found
}

/// Calls `is_enough` with the number and position of each word until it returns true.
fn visit(text: &[u8], mut is_enough: impl FnMut(usize, usize) -> bool) {
    for found in SEARCHER.find_iter(text) {
        if is_enough(found.pattern().as_usize(), found.start()) {
            return;
        }
    }
}

/// Returns true if the stem at position `at` is part of a word that marks a call: it must follow
/// the word's first letter and precede an ending, with or without a separator.
fn is_call_word(text: &[u8], at: usize, stem: usize) -> bool {
    const FIRST: [u8; 2] = [b't', b'f'];
    const ENDINGS: [&[&[u8]]; 2] = [
        &[
            b"call",
            b"use",
            b"result",
            b"request",
            b"response",
            b"message",
        ],
        &[b"call", b"response"],
    ];
    let after = &text[at + CALL_STEMS[stem].len()..];
    let after = after
        .strip_prefix(b"_")
        .or_else(|| after.strip_prefix(b"-"))
        .unwrap_or(after);
    let begins = |ending: &&[u8]| {
        let word = after.get(..ending.len());
        word.is_some_and(|word| word.eq_ignore_ascii_case(ending))
    };
    at > 0 && text[at - 1].eq_ignore_ascii_case(&FIRST[stem]) && ENDINGS[stem].iter().any(begins)
}

fn is_role(text: &[u8], at: usize, len: usize) -> bool {
    let after = &text[at + len..];
    match text[..at].last().copied() {
        Some(quote @ (b'"' | b'\'')) => {
            let after = after.strip_prefix(&[quote]).map(<[u8]>::trim_ascii_start);
            after.is_some_and(|after| !after.starts_with(b":"))
        }
        before => before.map(usize::from) == Some(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_answer(text: &[u8]) -> bool {
        let mut words = Words::default();
        words.add(text);
        words.answer
    }

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
