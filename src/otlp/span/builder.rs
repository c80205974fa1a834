//! Writes the stored attributes of successive spans into one text.

use std::io::Write;
use std::sync::Arc;

use super::TraceId;
use super::attribute::{Attribute, Value};
use super::entries::{
    Entries, EntryRange, MAX_SUFFIX, NUMBER_SIZE, SharedText, StoredEntry, StoredText, Tag,
};
use super::index::IndexedAttributes;
use super::key_set::KeyId;
use super::stored_attributes::StoredAttributes;

/// Minimum bytes of a value that gets a separate UTF-8 check, which is fast on long text.
const LONG: usize = 128;

/// Capacity in bytes of every text of a request after the first. A text that grew beyond its
/// capacity would be copied.
const CHUNK: usize = 32 << 10;
/// Free bytes below which a text is published, so that the next span starts a new text. Most spans
/// are smaller.
const SPAN_ROOM: usize = 8 << 10;

/// Builds the [`StoredAttributes`] of a request's spans, which share a few texts.
#[derive(Debug, Default)]
pub struct StoredAttributesBuilder {
    entries: Vec<StoredEntry>,
    text: String,
    /// The end of the text, not validated yet. One UTF-8 check covers many short values, because
    /// separate checks would cost a tenth of the scan.
    tail: Vec<u8>,
    /// The unpublished text that contains the attributes returned by [`Self::take`].
    shared: Option<SharedText>,
    /// Start of the current span: its index in `entries`, and its offset in `text` followed by
    /// `tail`.
    first_entry: usize,
    start: usize,
    in_event: bool,
    size: usize,
}

impl StoredAttributesBuilder {
    /// Bytes of an attribute or event in addition to its suffix and value.
    pub const HEAD_SIZE: usize = StoredEntry::SIZE;
    /// Maximum bytes of a bool, integer or double.
    pub const NUMBER_SIZE: usize = NUMBER_SIZE;
    /// Maximum bytes of a key's suffix; a longer suffix is cut.
    pub const MAX_SUFFIX: usize = MAX_SUFFIX;

    /// Adds the name, which must be UTF-8. An empty name need not be added.
    #[inline]
    pub fn name(&mut self, name: impl AsRef<[u8]>) {
        self.fixed(Tag::Name, name.as_ref());
    }

    /// Adds the W3C trace state, which must be UTF-8.
    pub fn trace_state(&mut self, trace_state: impl AsRef<[u8]>) {
        self.fixed(Tag::Context, trace_state.as_ref());
    }

    /// Adds the trace that a log record names.
    pub fn named_trace(&mut self, trace_id: TraceId) {
        self.fixed(Tag::Context, trace_id.to_string().as_bytes());
    }

    /// Adds a string attribute. The suffix and the text must be UTF-8.
    #[inline]
    pub fn utf8(&mut self, key: KeyId, suffix: &[u8], text: &[u8], cut: bool) {
        self.push(Tag::Str, key, suffix, text, cut);
    }

    /// Adds an attribute to the open event, or to the span if no event is open.
    pub fn attribute(&mut self, attribute: Attribute<'_>) {
        let Attribute {
            key,
            suffix,
            value,
            cut,
        } = attribute;
        let mut digits = [0; NUMBER_SIZE];
        let mut number = |bits: u64| {
            let mut rest = &mut digits[..];
            // Always fits, because a hexadecimal digit is four bits.
            let _ = write!(rest, "{bits:x}");
            NUMBER_SIZE - rest.len()
        };
        let (tag, text, n_digits) = match value {
            Value::Str(text) => (Tag::Str, text, 0),
            Value::Json(text) => (Tag::Json, text, 0),
            Value::Bytes(text) => (Tag::Bytes, text, 0),
            Value::Bool(value) => (Tag::Bool, "", number(value.into())),
            Value::Int(value) => (Tag::Int, "", number(value as u64)),
            Value::Double(value) => (Tag::Double, "", number(value.to_bits())),
        };
        let value = if n_digits == 0 { text.as_bytes() } else { &digits[..n_digits] };
        self.push(tag, key, suffix.as_bytes(), value, cut);
    }

    /// Opens an event; the next attributes belong to it.
    pub fn begin_event(&mut self, name: KeyId) {
        self.in_event = false;
        self.push(Tag::Event, name, b"", b"", false);
        self.in_event = true;
    }

    /// Closes the open event.
    pub fn end_event(&mut self) {
        self.in_event = false;
    }

    /// Ends a span and returns its attributes, which are readable after [`Self::publish`].
    #[inline]
    pub fn take(&mut self) -> StoredAttributes {
        let n_entries = self.entries.len() - self.first_entry;
        if n_entries == 0 {
            return StoredAttributes::default();
        }
        let range = EntryRange {
            first: self.first_entry as u32,
            len: n_entries as u32,
        };
        self.first_entry = self.entries.len();
        self.start = self.text_len();
        self.in_event = false;
        let kept = StoredAttributes::new(Arc::clone(self.shared.get_or_insert_default()), range);
        if self.start > CHUNK - SPAN_ROOM {
            let n_entries = self.first_entry;
            self.seal();
            self.text.reserve_exact(CHUNK);
            self.entries.reserve_exact(n_entries);
        }
        kept
    }

    /// Returns the attributes of the current span.
    pub fn current(&mut self) -> IndexedAttributes<'_> {
        self.flush();
        IndexedAttributes::new(self.current_entries())
    }

    /// Returns the bytes of the current span's attributes.
    pub fn current_size(&mut self) -> usize {
        let n_entries = self.entries.len() - self.first_entry;
        n_entries * StoredEntry::SIZE + self.text_len() - self.start
    }

    /// Calls `keep` for each attribute of the current span whose key `concerns` accepts, and stores
    /// the result instead; `None` removes the attribute. Removes the events that `keep_event`
    /// rejects. The remaining events keep their attributes.
    pub fn retain(
        &mut self,
        concerns: impl Fn(KeyId) -> bool,
        keep: impl for<'a> Fn(Attribute<'a>) -> Option<Attribute<'a>>,
        keep_event: impl Fn(KeyId) -> bool,
    ) {
        self.flush();
        let all = self.current_entries();
        let stays = |nth: &usize| match all.entries[*nth] {
            entry if entry.tag() == Tag::Event => keep_event(entry.key),
            entry if entry.is_attribute() && concerns(entry.key) => {
                all.attribute(*nth).is_some_and(|it| keep(it) == Some(it))
            }
            _ => true,
        };
        let n_unchanged = (0..all.entries.len()).take_while(stays).count();
        // Most spans do not change and return here. Only entries from the first change on are
        // written again.
        let Some(changed) = all.entries.get(n_unchanged) else {
            return;
        };
        let start = changed.at as usize;
        let old = StoredText::alone(Entries::new(&all.entries[n_unchanged..], &self.text));
        self.entries.truncate(self.first_entry + n_unchanged);
        self.text.truncate(start);
        let entries = old.all();
        let mut is_event_kept = true;
        for (nth, entry) in entries.entries.iter().enumerate() {
            match entries.attribute(nth) {
                Some(attribute) if entry.is_inner() => {
                    if is_event_kept {
                        self.attribute(attribute);
                    }
                }
                Some(attribute) => {
                    self.end_event();
                    let kept = if concerns(entry.key) { keep(attribute) } else { Some(attribute) };
                    if let Some(attribute) = kept {
                        self.attribute(attribute);
                    }
                }
                None if entry.tag() == Tag::Event => {
                    is_event_kept = keep_event(entry.key);
                    if is_event_kept {
                        self.begin_event(entry.key);
                    }
                }
                None => self.fixed(entry.tag(), entries.split(nth).1.as_bytes()),
            }
        }
    }

    fn current_entries(&self) -> Entries<'_> {
        Entries::new(&self.entries[self.first_entry..], &self.text)
    }

    /// Drops the attributes of the current span.
    pub fn discard(&mut self) {
        self.entries.truncate(self.first_entry);
        let kept = self.start.saturating_sub(self.text.len());
        self.tail.truncate(kept);
        self.text.truncate(self.start);
        self.in_event = false;
    }

    /// Makes all returned attributes readable. Returns the bytes of the texts that the request's
    /// spans share.
    pub fn publish(&mut self) -> usize {
        self.seal();
        std::mem::take(&mut self.size)
    }

    /// Returns the attributes of a single span in a separate text, which is readable immediately.
    pub fn finish(&mut self) -> StoredAttributes {
        let kept = self.take();
        self.publish();
        kept
    }

    fn seal(&mut self) {
        self.flush();
        let mut kept = StoredText {
            entries: std::mem::take(&mut self.entries),
            text: std::mem::take(&mut self.text),
        };
        // Many texts can be in the scoring queue, so their spare capacity would add up.
        kept.shrink();
        (self.first_entry, self.start) = (0, 0);
        self.size += kept.size();
        if let Some(shared) = self.shared.take() {
            // This cannot fail, because no other code sets a shared text.
            let _ = shared.set(kept);
        }
    }

    #[inline]
    fn fixed(&mut self, tag: Tag, text: &[u8]) {
        self.end_event();
        self.push(tag, KeyId::NONE, b"", text, false);
    }

    #[inline]
    fn push(&mut self, tag: Tag, key: KeyId, suffix: &[u8], value: &[u8], cut: bool) {
        let suffix = cut_at_char(suffix, MAX_SUFFIX);
        // Requests are smaller than 4 GiB; anything beyond is dropped.
        let Ok(end) = u32::try_from(self.text_len() + suffix.len() + value.len()) else {
            return;
        };
        let at = end - (suffix.len() + value.len()) as u32;
        let place = (at, suffix.len() as u8);
        self.entries
            .push(StoredEntry::new(tag, key, place, self.in_event, cut));
        self.tail.extend_from_slice(suffix);
        if value.len() < LONG {
            self.tail.extend_from_slice(value);
        } else {
            self.flush();
            self.text
                .push_str(simdutf8::basic::from_utf8(value).unwrap_or_default());
        }
    }

    fn text_len(&self) -> usize {
        self.text.len() + self.tail.len()
    }

    /// Moves `tail` to `text`, or drops `tail` if it is not UTF-8.
    fn flush(&mut self) {
        if self.text.capacity() == 0 {
            self.text = String::from_utf8(std::mem::take(&mut self.tail)).unwrap_or_default();
        } else {
            self.text
                .push_str(simdutf8::basic::from_utf8(&self.tail).unwrap_or_default());
            self.tail.clear();
        }
    }
}

/// Returns the longest prefix of UTF-8 text that has at most `size` bytes and splits no character.
#[inline]
pub fn cut_at_char(text: &[u8], size: usize) -> &[u8] {
    let is_inside_char = |end: usize| text.get(end).is_some_and(|byte| byte & 0xc0 == 0x80);
    let mut end = size.min(text.len());
    while is_inside_char(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns true if the text begins like a map or a list of maps, in JSON or Python, but lacks the
/// closing bracket.
pub fn is_unfinished_json(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let (begins, end) = match text.strip_prefix(b"[") {
        Some(first) => (first, b']'),
        None => (text, b'}'),
    };
    let mut begins = begins.iter().filter(|byte| !byte.is_ascii_whitespace());
    begins.next() == Some(&b'{')
        && matches!(begins.next(), Some(b'"' | b'\''))
        && text.last() != Some(&end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [Value<'_>; 7] = [
        Value::Str("über"),
        Value::Bool(true),
        Value::Int(i64::MIN),
        Value::Int(-1),
        Value::Double(-0.5),
        Value::Json("[1]"),
        Value::Str(""),
    ];

    const LAST: KeyId = KeyId(KeyId::NONE.0 - 1);

    fn attribute(key: u16, value: Value<'_>) -> Attribute<'_> {
        Attribute {
            key: KeyId(key),
            suffix: "ä.0",
            value,
            cut: key.is_multiple_of(2),
        }
    }

    fn written() -> StoredAttributesBuilder {
        let mut builder = StoredAttributesBuilder::default();
        builder.name("näme");
        builder.trace_state("a=1");
        (0..)
            .zip(VALUES)
            .for_each(|(key, value)| builder.attribute(attribute(key, value)));
        builder.begin_event(KeyId(300));
        (0..)
            .zip(VALUES)
            .for_each(|(key, value)| builder.attribute(attribute(key + 100, value)));
        builder.attribute(Attribute {
            key: KeyId(200),
            suffix: "",
            value: Value::Bytes("inner"),
            cut: false,
        });
        builder.end_event();
        builder.begin_event(KeyId(301));
        builder.end_event();
        builder.attribute(Attribute {
            key: LAST,
            suffix: "",
            value: Value::Bytes("last"),
            cut: true,
        });
        builder
    }

    #[test]
    fn packed_attributes_are_read_again() {
        let sample = written().finish();
        let kept = sample.index();
        assert_eq!((kept.name(), kept.trace_state()), ("näme", "a=1"));
        let expected: Vec<_> = (0..)
            .zip(VALUES)
            .map(|(key, value)| attribute(key, value))
            .collect();
        assert!(
            kept.attributes()
                .take(expected.len())
                .eq(expected.iter().copied())
        );
        assert!(
            expected
                .iter()
                .all(|attribute| kept.attribute(attribute.key) == Some(*attribute))
        );
        let events: Vec<_> = kept
            .events()
            .map(|event| (event.name, event.attributes().collect::<Vec<_>>()))
            .collect();
        let inner: Vec<_> = (100..)
            .zip(VALUES)
            .map(|(key, value)| attribute(key, value))
            .collect();
        let (in_first, with_bytes) = events[0].1.split_at(inner.len());
        assert_eq!(
            (events[0].0, in_first, with_bytes.len()),
            (KeyId(300), &*inner, 1)
        );
        assert_eq!(events[1..], [(KeyId(301), Vec::new())]);
        let last = kept.attribute(LAST).unwrap();
        assert_eq!(
            (with_bytes[0].value, last.value, last.cut),
            (Value::Bytes("inner"), Value::Bytes("last"), true)
        );
        assert_eq!(
            (kept.get(KeyId(100)), kept.get(KeyId(300))),
            (None, None),
            "an attribute of an event is none of the span"
        );
    }

    #[test]
    fn only_retained_attributes_are_held() {
        let mut builder = written();
        builder.retain(
            |_| true,
            |attribute| Some(Attribute { ..attribute }),
            |_| true,
        );
        assert_eq!(builder.finish(), written().finish());
        let mut builder = written();
        builder.retain(
            |_| true,
            |attribute| matches!(attribute.value, Value::Int(_)).then_some(attribute),
            |_| false,
        );
        let mut expected = StoredAttributesBuilder::default();
        expected.name("näme");
        expected.trace_state("a=1");
        expected.attribute(attribute(2, Value::Int(i64::MIN)));
        expected.attribute(attribute(3, Value::Int(-1)));
        assert_eq!(builder.finish(), expected.finish());
    }

    #[test]
    fn attributes_without_a_name_and_no_attributes_are_read_too() {
        let mut builder = StoredAttributesBuilder::default();
        assert_eq!(builder.finish(), StoredAttributes::default());
        assert_eq!(
            (
                StoredAttributes::default().index().name(),
                StoredAttributes::default().size()
            ),
            ("", 0)
        );
        builder.attribute(attribute(1, Value::Str("only")));
        let only = builder.finish();
        let kept = only.index();
        assert_eq!(
            (kept.name(), kept.trace_state(), kept.get(KeyId(1))),
            ("", "", Some(Value::Str("only")))
        );
        builder.name("only");
        assert_eq!(builder.finish().index().name(), "only");
    }

    #[test]
    fn spans_of_one_request_share_a_text() {
        let mut builder = StoredAttributesBuilder::default();
        let names: Vec<String> = (0..1_000).map(|n| format!("span {n}")).collect();
        let kept: Vec<StoredAttributes> = names
            .iter()
            .map(|name| {
                builder.name("dropped");
                builder.discard();
                builder.attribute(attribute(2, Value::Int(7)));
                builder.name(name);
                builder.take()
            })
            .collect();
        assert_eq!(kept[0].index().name(), "", "the text is not published");
        let size = builder.publish();
        assert!(kept.iter().map(|kept| kept.index().name()).eq(&names));
        assert!(
            kept.iter()
                .all(|kept| kept.index().get(KeyId(2)) == Some(Value::Int(7)))
        );
        assert!(size >= kept.iter().map(StoredAttributes::size).sum());
    }
}
