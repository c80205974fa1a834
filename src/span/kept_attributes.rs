//! Pure. What is kept of a span or log record beyond its fixed fields, packed into one text. Knows
//! what can be kept; does not know which keys are read, nor what they mean.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::KeyId;
use super::arena::{Place, SharedText};
use super::layout::{
    Bytes, COUNT_SIZE, Entries, HEAD_SIZE, Head, MAX_START, MAX_SUFFIX, NUMBER_SIZE, Tag, number,
    pack_bytes, spread,
};

/// A value of an attribute, borrowed from where it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A string.
    Str(&'a str),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// An OTLP array or map, as compact JSON.
    Json(&'a str),
    /// Bytes.
    Bytes(Bytes<'a>),
}

/// One kept attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attribute<'a> {
    /// The number of its key, or of the kept prefix of its key.
    pub key: KeyId,
    /// The rest of its key behind a kept prefix; empty for a whole key.
    pub suffix: &'a str,
    /// Its value, possibly cut.
    pub value: Value<'a>,
    /// The value was longer than the limit: never compare it as if it were whole.
    pub cut: bool,
}

/// One kept span event.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// The number of its name among the keys.
    pub name: KeyId,
    entries: Entries<'a>,
}

impl<'a> Event<'a> {
    pub(super) fn new((name, entries): (KeyId, Entries<'a>)) -> Self {
        Self { name, entries }
    }

    /// Its kept attributes.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let entries = self.entries;
        entries
            .iter()
            .filter_map(move |entry| entries.attribute(entry))
    }
}

/// What is kept of a span or log record beyond its fixed fields: name, trace state, attributes,
/// events. Equal `KeptAttributes` mean the same; their order has no meaning, but breaks ties
/// between versions of a span.
#[derive(Clone)]
pub struct KeptAttributes(Packed);

#[derive(Clone)]
enum Packed {
    /// In one text with those of other spans.
    Shared(SharedText, Place),
    Alone(Arc<str>),
    Nothing,
}

impl KeptAttributes {
    pub(super) fn shared(text: SharedText, place: Place) -> Self {
        Self(if place.len() > 0 {
            Packed::Shared(text, place)
        } else {
            Packed::Nothing
        })
    }

    /// The packed text.
    #[inline]
    pub(super) fn packed(&self) -> &str {
        match &self.0 {
            Packed::Shared(text, place) => text.get().map_or("", |text| place.slice(text)),
            Packed::Alone(text) => text,
            Packed::Nothing => "",
        }
    }

    /// The span's name.
    pub fn name(&self) -> &str {
        self.entries().name()
    }

    /// The W3C trace state, empty where there was none.
    pub fn trace_state(&self) -> &str {
        self.entries().trace_state().unwrap_or_default()
    }

    /// The kept attributes, in the order in which they were sent.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        self.entries().attributes()
    }

    /// The keys of the kept attributes, in the order in which they were sent. Does not look at
    /// values.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.entries().head_keys().flatten()
    }

    /// The kept events, in the order in which they were sent.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.entries().events().map(Event::new)
    }

    /// The value of the first attribute with this key, found by a search: code that reads many
    /// attributes of a span makes an [index](Self::index) first.
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.attribute(key).map(|attribute| attribute.value)
    }

    /// The first attribute with this key, found by a search like [`Self::get`].
    pub fn attribute(&self, key: KeyId) -> Option<Attribute<'_>> {
        let entries = self.entries();
        entries.attribute(entries.entry(entries.find(key)?))
    }

    /// Replaces each attribute by what `keep` returns for it, and removes the attributes and events
    /// that are refused.
    pub fn retain(
        &mut self,
        mut keep: impl for<'a> FnMut(Attribute<'a>) -> Option<Attribute<'a>>,
        keep_event: impl Fn(KeyId) -> bool,
    ) {
        let entries = self.entries();
        let mut kept = KeptAttributesBuilder::default();
        kept.name(entries.name());
        let mut is_event_kept = true;
        for entry in entries.iter() {
            match entries.attribute(entry) {
                Some(attribute) if entry.is_inner => {
                    if is_event_kept {
                        kept.attribute(attribute);
                    }
                }
                Some(attribute) => {
                    kept.end_event();
                    keep(attribute)
                        .into_iter()
                        .for_each(|attribute| kept.attribute(attribute));
                }
                None if entry.tag == Tag::Event => {
                    is_event_kept = keep_event(entry.key);
                    if is_event_kept {
                        kept.begin_event(entry.key);
                    }
                }
                None => kept.trace_state(entry.payload),
            }
        }
        *self = kept.finish();
    }

    /// Bytes on the heap.
    #[inline]
    pub fn size(&self) -> usize {
        match &self.0 {
            Packed::Shared(_, place) => place.len(),
            Packed::Alone(text) => text.len(),
            Packed::Nothing => 0,
        }
    }

    /// Bytes on the heap that are not shared with other spans.
    pub(super) fn alone_size(&self) -> usize {
        if let Packed::Alone(text) = &self.0 {
            text.len()
        } else {
            0
        }
    }

    #[inline]
    pub(super) fn entries(&self) -> Entries<'_> {
        Entries::new(self.packed())
    }
}

impl Default for KeptAttributes {
    fn default() -> Self {
        Self(Packed::Nothing)
    }
}

impl PartialEq for KeptAttributes {
    fn eq(&self, other: &Self) -> bool {
        self.packed() == other.packed()
    }
}

impl Eq for KeptAttributes {}

impl PartialOrd for KeptAttributes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeptAttributes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.packed().cmp(other.packed())
    }
}

impl fmt::Debug for KeptAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptAttributes")
            .field("name", &self.name())
            .field("attributes", &self.attributes().collect::<Vec<_>>())
            .field("n_events", &self.events().count())
            .finish()
    }
}

// === impl FactsBuilder ===

/// Builds [`KeptAttributes`]. One builder serves a whole request and keeps its scratch space.
#[derive(Debug, Default)]
pub struct KeptAttributesBuilder {
    /// The heads of the entries.
    heads: Vec<[u8; HEAD_SIZE]>,
    /// The name, then the suffix and payload of each entry.
    text: Vec<u8>,
    /// The whole layout, to be validated at once.
    packed: Vec<u8>,
    /// Is an event open?
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
        self.push(
            Tag::TraceState,
            KeyId::NONE,
            b"",
            trace_state.as_ref(),
            false,
        );
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

    /// Is nothing kept yet?
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.text.is_empty()
    }

    /// Hands out the result in an allocation of its exact size, and starts anew.
    pub fn finish(&mut self) -> KeptAttributes {
        KeptAttributes(if self.is_empty() {
            Packed::Nothing
        } else {
            Packed::Alone(self.pack().into())
        })
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
    fn only_retained_attributes_are_held() {
        let mut kept = sample();
        kept.retain(|attribute| Some(Attribute { ..attribute }), |_| true);
        assert_eq!(kept, sample());
        kept.retain(
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
