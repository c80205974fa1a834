//! Writes kept attributes into the packed layout.

use super::TraceId;
use super::attribute::{Attribute, Value};
use super::kept_attributes::KeptAttributes;
use super::key_set::KeyId;
use super::layout::{COUNT_SIZE, HEAD_SIZE, Head, MAX_START, MAX_SUFFIX, Tag};
use super::seven_bits::{NUMBER_SIZE, number, pack_bytes, spread};

/// Builds [`KeptAttributes`]. One builder serves a whole request and keeps its scratch space.
#[derive(Debug, Default)]
pub struct KeptAttributesBuilder {
    /// The heads of the entries.
    heads: Vec<[u8; HEAD_SIZE]>,
    /// The name, then the suffix and payload of each entry.
    text: Vec<u8>,
    /// The whole layout, to be validated at once.
    packed: Vec<u8>,
    /// True while an event is open.
    in_event: bool,
}

impl KeptAttributesBuilder {
    /// Size of an attribute or event beyond its suffix and value, in bytes.
    pub const HEAD_SIZE: usize = HEAD_SIZE;
    /// Size of a bool, an integer or a double, in bytes.
    pub const NUMBER_SIZE: usize = NUMBER_SIZE;
    /// Longest suffix of a key that is kept whole, in bytes.
    pub const MAX_SUFFIX: usize = MAX_SUFFIX;

    /// Sets the name, which must be UTF-8, before anything else is added. An empty one need not be
    /// set.
    #[inline]
    pub fn name(&mut self, name: impl AsRef<[u8]>) {
        if self.heads.is_empty() {
            self.text.clear();
            self.text.extend_from_slice(name.as_ref());
        }
    }

    /// Sets the W3C trace state, which must be UTF-8, before any attribute or event is added.
    pub fn trace_state(&mut self, trace_state: impl AsRef<[u8]>) {
        self.push(Tag::Context, KeyId::NONE, b"", trace_state.as_ref(), false);
    }

    /// Sets the trace that a log record names, before any attribute is added.
    pub fn named_trace(&mut self, trace_id: TraceId) {
        let packed = pack_bytes(trace_id.as_bytes());
        self.push(Tag::Context, KeyId::NONE, b"", &packed, false);
    }

    /// Adds an attribute whose suffix and value the caller knows to be UTF-8. `finish` validates
    /// all texts at once; if one is not UTF-8, nothing is kept.
    #[inline]
    pub fn utf8(&mut self, key: KeyId, suffix: &[u8], text: &[u8], cut: bool) {
        self.push(Tag::Str, key, suffix, text, cut);
    }

    /// Adds an attribute; between `begin_event` and `end_event` it belongs to that event.
    pub fn attribute(&mut self, attribute: Attribute<'_>) {
        let Attribute {
            key,
            suffix,
            value,
            cut,
        } = attribute;
        let suffix = suffix.as_bytes();
        match value {
            Value::Str(text) => self.push(Tag::Str, key, suffix, text.as_bytes(), cut),
            Value::Json(text) => self.push(Tag::Json, key, suffix, text.as_bytes(), cut),
            Value::Bytes(bytes) => {
                self.push(Tag::Bytes, key, suffix, bytes.packed().as_bytes(), cut)
            }
            Value::Bool(value) => self.push(Tag::Bool, key, suffix, &number(u64::from(value)), cut),
            Value::Int(value) => self.push(Tag::Int, key, suffix, &number(value as u64), cut),
            Value::Double(value) => {
                self.push(Tag::Double, key, suffix, &number(value.to_bits()), cut)
            }
        }
    }

    /// Adds an attribute whose value is bytes, which take a seventh more than their length.
    pub fn bytes(&mut self, key: KeyId, suffix: &[u8], bytes: &[u8], cut: bool) {
        self.push(Tag::Bytes, key, suffix, &pack_bytes(bytes), cut);
    }

    /// Opens an event: the attributes that follow are its own.
    pub fn begin_event(&mut self, name: KeyId) {
        self.in_event = false;
        self.push(Tag::Event, name, b"", b"", false);
        self.in_event = true;
    }

    /// Closes the open event.
    pub fn end_event(&mut self) {
        self.in_event = false;
    }

    /// Returns true if nothing is kept yet.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.text.is_empty()
    }

    /// Hands out the result in an allocation of its exact size, and starts anew.
    pub fn finish(&mut self) -> KeptAttributes {
        KeptAttributes::alone(self.pack())
    }

    /// Size of the result, in bytes.
    pub(super) fn size(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            COUNT_SIZE + self.heads.len() * HEAD_SIZE + self.text.len()
        }
    }

    /// Writes the packed text and starts anew.
    pub(super) fn pack(&mut self) -> &str {
        self.in_event = false;
        self.packed.clear();
        if !self.is_empty() {
            self.packed
                .extend_from_slice(&spread(self.heads.len() as u32));
            self.packed.extend_from_slice(self.heads.as_flattened());
            self.packed.extend_from_slice(&self.text);
        }
        self.heads.clear();
        self.text.clear();
        simdutf8::basic::from_utf8(&self.packed).unwrap_or_default()
    }

    #[inline]
    fn push(&mut self, tag: Tag, key: KeyId, suffix: &[u8], payload: &[u8], cut: bool) {
        let start = self.text.len();
        // Never reached: the scan keeps less than this of one span.
        if start > MAX_START {
            return;
        }
        let suffix = cut_at_char(suffix, MAX_SUFFIX);
        self.heads
            .push(Head::new(tag, key, self.in_event, suffix.len(), start, cut).to_bytes());
        if !suffix.is_empty() {
            self.text.extend_from_slice(suffix);
        }
        self.text.extend_from_slice(payload);
    }
}

impl KeptAttributes {
    /// Replaces each attribute by what `keep` returns for it, and removes the attributes and events
    /// that are refused. The builder lends its scratch space.
    pub fn retain(
        &mut self,
        builder: &mut KeptAttributesBuilder,
        mut keep: impl for<'a> FnMut(Attribute<'a>) -> Option<Attribute<'a>>,
        keep_event: impl Fn(KeyId) -> bool,
    ) {
        let entries = self.entries();
        builder.name(entries.name());
        let mut is_event_kept = true;
        for entry in entries.iter() {
            match entries.attribute(entry) {
                Some(attribute) if entry.is_inner => {
                    if is_event_kept {
                        builder.attribute(attribute);
                    }
                }
                Some(attribute) => {
                    builder.end_event();
                    keep(attribute)
                        .into_iter()
                        .for_each(|attribute| builder.attribute(attribute));
                }
                None if entry.tag == Tag::Event => {
                    is_event_kept = keep_event(entry.key);
                    if is_event_kept {
                        builder.begin_event(entry.key);
                    }
                }
                None => builder.push(
                    Tag::Context,
                    KeyId::NONE,
                    b"",
                    entry.payload.as_bytes(),
                    false,
                ),
            }
        }
        *self = builder.finish();
    }
}

/// The longest prefix of UTF-8 text up to a size that does not split a character.
#[inline]
pub fn cut_at_char(text: &[u8], size: usize) -> &[u8] {
    let is_inside_char = |end: usize| text.get(end).is_some_and(|byte| byte & 0xc0 == 0x80);
    let mut end = size.min(text.len());
    while is_inside_char(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns true if the text begins like a map or a list of maps, in JSON or Python, and does not
/// end like one.
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

    fn sample() -> KeptAttributes {
        let mut builder = KeptAttributesBuilder::default();
        builder.name("näme");
        builder.trace_state("a=1");
        (0..)
            .zip(VALUES)
            .for_each(|(key, value)| builder.attribute(attribute(key, value)));
        builder.begin_event(KeyId(300));
        (0..)
            .zip(VALUES)
            .for_each(|(key, value)| builder.attribute(attribute(key + 100, value)));
        builder.bytes(KeyId(200), b"", b"inner", false);
        builder.end_event();
        builder.begin_event(KeyId(301));
        builder.end_event();
        builder.bytes(LAST, b"", b"\xff\x00last", true);
        builder.finish()
    }

    #[test]
    fn packed_attributes_are_read_again() {
        let kept = sample();
        assert_eq!((kept.name(), kept.trace_state()), ("näme", "a=1"));
        let expected: Vec<_> = (0..)
            .zip(VALUES)
            .map(|(key, value)| attribute(key, value))
            .collect();
        let keys = expected.iter().map(|attribute| attribute.key).chain([LAST]);
        assert!(kept.keys().eq(keys));
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
        let bytes = |attribute: Attribute<'_>| match attribute.value {
            Value::Bytes(bytes) => bytes.to_vec(),
            other => panic!("{other:?}"),
        };
        let last = kept.attribute(LAST).unwrap();
        assert_eq!(
            (bytes(with_bytes[0]), bytes(last), last.cut),
            (b"inner".to_vec(), b"\xff\x00last".to_vec(), true)
        );
        assert_eq!(
            (kept.get(KeyId(100)), kept.get(KeyId(300))),
            (None, None),
            "an attribute of an event is none of the span"
        );
    }

    #[test]
    fn attributes_with_wanted_keys_are_found_in_order() {
        let kept = sample();
        let wanted = kept.attributes_with(|key| key == KeyId(4) || key == KeyId(1) || key == LAST);
        let keys: Vec<KeyId> = wanted.map(|attribute| attribute.key).collect();
        assert_eq!(keys, [KeyId(1), KeyId(4), LAST]);
        let of_an_event = kept.attributes_with(|key| key == KeyId(100));
        assert_eq!(
            of_an_event.count(),
            0,
            "an attribute of an event is none of the span"
        );
    }

    #[test]
    fn only_retained_attributes_are_held() {
        let mut builder = KeptAttributesBuilder::default();
        let mut kept = sample();
        kept.retain(
            &mut builder,
            |attribute| Some(Attribute { ..attribute }),
            |_| true,
        );
        assert_eq!(kept, sample());
        kept.retain(
            &mut builder,
            |attribute| matches!(attribute.value, Value::Int(_)).then_some(attribute),
            |_| false,
        );
        let mut expected = KeptAttributesBuilder::default();
        expected.name("näme");
        expected.trace_state("a=1");
        expected.attribute(attribute(2, Value::Int(i64::MIN)));
        expected.attribute(attribute(3, Value::Int(-1)));
        assert_eq!(kept, expected.finish());
    }

    #[test]
    fn attributes_without_a_name_and_no_attributes_are_read_too() {
        let mut builder = KeptAttributesBuilder::default();
        assert_eq!(builder.finish(), KeptAttributes::default());
        assert_eq!(
            (
                KeptAttributes::default().name(),
                KeptAttributes::default().size()
            ),
            ("", 0)
        );
        builder.attribute(attribute(1, Value::Str("only")));
        let kept = builder.finish();
        assert_eq!(
            (kept.name(), kept.trace_state(), kept.get(KeyId(1))),
            ("", "", Some(Value::Str("only")))
        );
        builder.name("only");
        assert_eq!(builder.finish().name(), "only");
    }
}
