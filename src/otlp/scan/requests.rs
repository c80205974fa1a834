//! Collects the messages of the request to a model, for one span or log record. Messages repeat the
//! whole conversation. Extraction reads only the last ones, and which they are is known only at the
//! end of the span, so the messages are collected until then.

use super::call_words::{ANSWER_ROLES, Words, names_tool_call};
use super::value::{ScannedValue, VALUE, ValueKind};
use crate::span::{MatchedKey, StoredAttributesBuilder};
use crate::wire::number_of;

/// One attribute with messages: a whole list, or one field of one message.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestPart<'b> {
    pub(super) kept: MatchedKey<'b>,
    pub(super) value: ScannedValue<'b>,
    pub(super) encoded: &'b [u8],
    /// The result of the search in a list; empty for a single field.
    words: Words,
}

#[derive(Debug, Default)]
pub(super) struct RequestMessages<'b>(Vec<RequestPart<'b>>);

impl<'b> RequestMessages<'b> {
    pub(super) fn push(
        &mut self,
        kept: MatchedKey<'b>,
        value: ScannedValue<'b>,
        encoded: &'b [u8],
    ) {
        let is_read = match value.kind {
            ValueKind::Str => !(kept.suffix.is_empty() && value.bytes.is_empty()),
            kind => kind == ValueKind::Nested && kept.suffix.is_empty(),
        };
        if is_read && kept.suffix.len() <= StoredAttributesBuilder::MAX_SUFFIX {
            let is_list = kept.suffix.is_empty();
            self.0.push(RequestPart {
                words: if is_list {
                    Words::of(value, encoded, number_of(VALUE))
                } else {
                    Words::default()
                },
                kept,
                value,
                encoded,
            });
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns true if the messages contain an answer of the model. `None` if there are no
    /// messages, or if some may be missing because the SDK dropped attributes (`has_dropped`) or
    /// cut a list.
    pub(super) fn repeat_answers(&self, has_dropped: bool) -> Option<bool> {
        if self.0.iter().any(RequestPart::has_answer) {
            return Some(true);
        }
        let is_whole = !has_dropped && self.0.iter().all(RequestPart::is_whole);
        (is_whole && !self.0.is_empty()).then_some(false)
    }

    /// Returns the lists that may contain a tool call or its result.
    pub(super) fn lists(&self) -> impl Iterator<Item = RequestPart<'b>> {
        self.0.iter().filter(|part| part.words.call).copied()
    }

    /// Returns true if the key of a field names a tool call or its result.
    pub(super) fn has_result_field(&self) -> bool {
        let mut parts = self.0.iter();
        parts.any(|part| names_tool_call(part.kept.suffix))
    }

    /// Returns the number of the first message to store; `None` if all fields fit into `room`
    /// bytes. The message and all later messages fit, in any order of the fields.
    pub(super) fn first_that_fits(&self, room: usize, max_value_size: usize) -> Option<u32> {
        let size = |part: &RequestPart<'_>| {
            overhead(part.kept) + part.value.bytes.len().min(max_value_size)
        };
        let fields = || self.0.iter().filter(|part| !part.kept.suffix.is_empty());
        if fields().map(size).sum::<usize>() <= room {
            return None;
        }
        let numbered = fields().map(|part| (part.number(), size(part)));
        let mut sizes: Vec<(u32, usize)> = numbered.collect();
        sizes.sort_unstable_by_key(|&(number, _)| std::cmp::Reverse(number));
        let mut left = room;
        let mut of_messages = sizes.chunk_by(|(one, _), (other, _)| one == other);
        let too_many = of_messages.find(|fields| {
            let size: usize = fields.iter().map(|(_, size)| size).sum();
            let fits = size <= left;
            left = left.saturating_sub(size);
            !fits
        });
        too_many.map(|fields| fields[0].0.saturating_add(1))
    }

    pub(super) fn fields_from(&self, first: u32) -> impl Iterator<Item = RequestPart<'b>> {
        let is_kept =
            move |part: &&RequestPart<'_>| !part.kept.suffix.is_empty() && part.number() >= first;
        self.0.iter().filter(is_kept).copied()
    }
}

impl RequestPart<'_> {
    /// Returns true for an answer of the model, or a list that contains an answer.
    fn has_answer(&self) -> bool {
        let is_answer = self.kept.suffix.ends_with(b".role");
        self.words.answer || is_answer && ANSWER_ROLES.contains(&self.value.bytes)
    }

    /// Returns false for a list that is empty or lacks its end.
    fn is_whole(&self) -> bool {
        let text = self.value.bytes.trim_ascii();
        let is_list_text = self.kept.suffix.is_empty() && self.value.kind == ValueKind::Str;
        !is_list_text || (text.len() > 2 && text.ends_with(b"]"))
    }

    /// Parses the message's number: `3.message.content` is a field of message 3.
    fn number(&self) -> u32 {
        let digits = self
            .kept
            .suffix
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number: u32, digit| {
            let digit = u32::from(digit - b'0');
            number.saturating_mul(10).saturating_add(digit)
        })
    }
}

/// Returns the bytes stored for a message part besides its value. A whole list has no suffix and
/// counts as 0, because lists are few.
pub(super) fn overhead(kept: MatchedKey<'_>) -> usize {
    if kept.suffix.is_empty() {
        0
    } else {
        StoredAttributesBuilder::HEAD_SIZE + kept.suffix.len()
    }
}
