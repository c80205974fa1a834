//! The messages that the model of one span or log record was asked with. They repeat the whole
//! conversation and only the last ones are read, so they wait here until all of them are known.
//! Follows the key set; does not know what the messages say.

use super::call_words::{ANSWER_ROLES, Words, names_tool_call};
use super::value::{ScannedValue, VALUE, ValueKind};
use crate::span::{Kept, KeptAttributesBuilder};
use crate::wire::number_of;

/// One attribute with messages: a whole list, or one field of one message.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestPart<'b> {
    pub(super) kept: Kept<'b>,
    pub(super) value: ScannedValue<'b>,
    pub(super) encoded: &'b [u8],
    /// The words of a list.
    words: Words,
}

/// The messages of one span or log record, as its attributes bring them.
#[derive(Debug, Default)]
pub(super) struct RequestMessages<'b>(Vec<RequestPart<'b>>);

impl<'b> RequestMessages<'b> {
    pub(super) fn push(&mut self, kept: Kept<'b>, value: ScannedValue<'b>, encoded: &'b [u8]) {
        let is_read = match value.kind {
            ValueKind::Str => !(kept.suffix.is_empty() && value.bytes.is_empty()),
            kind => kind == ValueKind::Nested && kept.suffix.is_empty(),
        };
        if is_read && kept.suffix.len() <= KeptAttributesBuilder::MAX_SUFFIX {
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

    /// Do they repeat an answer of the model? `None` if there are none, or if some may be missing:
    /// the SDK `has_dropped` attributes, or has cut a list.
    pub(super) fn repeat_answers(&self, has_dropped: bool) -> Option<bool> {
        if self.0.iter().any(RequestPart::holds_answer) {
            return Some(true);
        }
        let is_whole = !has_dropped && self.0.iter().all(RequestPart::is_whole);
        (is_whole && !self.0.is_empty()).then_some(false)
    }

    /// The whole lists that may hold a tool's result.
    pub(super) fn lists(&self) -> impl Iterator<Item = RequestPart<'b>> {
        self.0.iter().filter(|part| part.words.call).copied()
    }

    /// Is a tool's result among the single fields? Their keys show it.
    pub(super) fn has_result_field(&self) -> bool {
        let mut parts = self.0.iter();
        parts.any(|part| names_tool_call(part.kept.suffix))
    }

    /// The number of the first message that is kept, if there is no room for all of them: it and
    /// those after it fit, in whatever order the sender wrote them.
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

    /// The fields of the messages from this number on.
    pub(super) fn fields_from(&self, first: u32) -> impl Iterator<Item = RequestPart<'b>> {
        let is_kept =
            move |part: &&RequestPart<'_>| !part.kept.suffix.is_empty() && part.number() >= first;
        self.0.iter().filter(is_kept).copied()
    }
}

impl RequestPart<'_> {
    /// Is it an answer, or a list with one?
    fn holds_answer(&self) -> bool {
        let is_answer = self.kept.suffix.ends_with(b".role");
        self.words.answer || is_answer && ANSWER_ROLES.contains(&self.value.bytes)
    }

    /// A list of messages has an end, and holds some.
    fn is_whole(&self) -> bool {
        let text = self.value.bytes.trim_ascii();
        let is_list_text = self.kept.suffix.is_empty() && self.value.kind == ValueKind::Str;
        !is_list_text || (text.len() > 2 && text.ends_with(b"]"))
    }

    /// `3.message.content` is a field of message 3.
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

/// Bytes of a message beyond its value. Messages of one text are few; fields are many.
pub(super) fn overhead(kept: Kept<'_>) -> usize {
    if kept.suffix.is_empty() {
        0
    } else {
        KeptAttributesBuilder::HEAD_SIZE + kept.suffix.len()
    }
}
