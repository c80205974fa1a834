//! Searches messages for the words by which they mark tool calls, results and the model's answers.
//! Does not parse them.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::value::{ScannedValue, ValueKind};
use crate::wire::delimited_fields;

/// What the words of messages show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// A tool call or its result may be among them.
    pub(super) call: bool,
    /// There is a message with a role of the model: the word alone as a JSON text, and no key, or
    /// encoded with its length.
    pub(super) answer: bool,
}

/// The roles of a message that is the model's answer.
pub(super) const ANSWER_ROLES: [&[u8]; 2] = [b"assistant", b"model"];

/// Stems of the words by which the known message formats mark tool calls and results (`tool_call`,
/// `toolCallId`, `tool-result`, `toolUse`, `ToolMessage`, `function_call`, `functionResponse`, …),
/// without their first letter, which is written in either case.
const CALL_STEMS: [&[u8]; 2] = [b"ool", b"unction"];

/// All words that are searched for, in one pass over the text.
static SEARCHER: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let mut builder = AhoCorasick::builder();
    builder.match_kind(MatchKind::LeftmostFirst);
    let words = CALL_STEMS.into_iter().chain(ANSWER_ROLES);
    builder.build(words).expect("four short words")
});

impl Words {
    /// The words of messages: of a text, or of the field `field` of `encoded`.
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

/// Looks for the words by which the known message formats mark tool calls and results, at the speed
/// of a substring search. A false positive costs memory only.
pub(super) fn names_tool_call(text: &[u8]) -> bool {
    let mut is_found = false;
    visit(text, |word, at| {
        is_found = word < CALL_STEMS.len() && is_call_word(text, at, word);
        is_found
    });
    is_found
}

/// Calls `is_enough` with the number and the place of each word, until it returns true.
fn visit(text: &[u8], mut is_enough: impl FnMut(usize, usize) -> bool) {
    for found in SEARCHER.find_iter(text) {
        if is_enough(found.pattern().as_usize(), found.start()) {
            return;
        }
    }
}

/// Is the stem at this place part of a word that marks a call: behind its first letter, and
/// followed by one of the endings, with or without a separator?
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

/// Is the word at this place a role?
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
