//! Pure. What is kept of a span beyond its fixed fields, packed into one text, and read from it
//! again. Knows what can be kept; does not know which keys somebody reads, nor what they mean.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::KeyId;
use super::arena::{Place, Shared};
use super::entries::{
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
    /// Which key, or which prefix of keys.
    pub key: KeyId,
    /// What followed the prefix; empty for a whole key.
    pub suffix: &'a str,
    /// Its value, possibly cut.
    pub value: Value<'a>,
    /// The value was longer than what is kept of one: never compare it as if it were whole.
    pub cut: bool,
}

/// One kept span event.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Which name.
    pub name: KeyId,
    entries: Entries<'a>,
}

impl<'a> Event<'a> {
    /// Its kept attributes.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let entries = self.entries;
        entries
            .iter()
            .filter_map(move |entry| entries.attribute(entry))
    }
}

/// What is kept of a span beyond its fixed fields, packed together: name, trace state, attributes,
/// events. Two equal `Facts` mean the same thing, and their order, which means nothing, breaks ties
/// between versions of a span.
#[derive(Clone)]
pub struct Facts(Packed);

#[derive(Clone)]
enum Packed {
    /// With those of other spans in one text.
    Shared(Shared, Place),
    Alone(Arc<str>),
    Nothing,
}

impl Facts {
    pub(super) fn shared(text: Shared, place: Place) -> Self {
        Self(if place.len() > 0 {
            Packed::Shared(text, place)
        } else {
            Packed::Nothing
        })
    }

    /// As they are written.
    #[inline]
    pub(super) fn packed(&self) -> &str {
        match &self.0 {
            Packed::Shared(text, place) => text.get().map_or("", |text| place.of(text)),
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

    /// The kept attributes, in the order they were sent.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        let entries = self.entries();
        entries
            .iter()
            .filter(|entry| !entry.is_inner)
            .filter_map(move |entry| entries.attribute(entry))
    }

    /// The keys of the kept attributes, in the order they were sent. Does not look at values.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.entries().keys()
    }

    /// The kept events, in the order they were sent.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.entries()
            .events()
            .map(|(name, entries)| Event { name, entries })
    }

    /// The value of the first attribute with this key (OTLP asks for unique keys; where a sender
    /// repeats one, the first counts).
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.opened()
            .attribute(key)
            .map(|attribute| attribute.value)
    }

    /// The first attribute with this key.
    pub fn attribute(&self, key: KeyId) -> Option<Attribute<'_>> {
        self.opened().attribute(key)
    }

    /// For who reads many attributes.
    pub fn opened(&self) -> Opened<'_> {
        Opened(self.entries())
    }

    /// The same with each attribute as `keep` gives it back, and without the attributes and whole
    /// events that are refused.
    pub fn retain(
        &mut self,
        mut keep: impl for<'a> FnMut(Attribute<'a>) -> Option<Attribute<'a>>,
        keep_event: impl Fn(KeyId) -> bool,
    ) {
        let entries = self.entries();
        let mut kept = FactsBuilder::default();
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

    /// Of these, what is not shared with other spans.
    pub(super) fn alone_size(&self) -> usize {
        if let Packed::Alone(text) = &self.0 {
            text.len()
        } else {
            0
        }
    }

    #[inline]
    fn entries(&self) -> Entries<'_> {
        Entries::new(self.packed())
    }
}

impl Default for Facts {
    fn default() -> Self {
        Self(Packed::Nothing)
    }
}

impl PartialEq for Facts {
    fn eq(&self, other: &Self) -> bool {
        self.packed() == other.packed()
    }
}

impl Eq for Facts {}

impl PartialOrd for Facts {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Facts {
    fn cmp(&self, other: &Self) -> Ordering {
        self.packed().cmp(other.packed())
    }
}

/// Facts of which much is read.
#[derive(Debug, Clone, Copy)]
pub struct Opened<'a>(Entries<'a>);

impl<'a> Opened<'a> {
    /// The span's name.
    pub fn name(self) -> &'a str {
        self.0.name()
    }

    /// The keys of the kept attributes, in the order they were sent.
    #[inline]
    pub fn keys(self) -> impl Iterator<Item = KeyId> + use<'a> {
        self.0.keys()
    }

    /// Are there events?
    #[inline]
    pub fn has_events(self) -> bool {
        self.0.has_events()
    }

    /// The first attribute with this key.
    #[inline]
    pub fn attribute(self, key: KeyId) -> Option<Attribute<'a>> {
        self.0.attribute(self.0.entry(self.0.find(key)?))
    }

    /// The value of the same, if it is a string.
    #[inline]
    pub fn text(self, key: KeyId) -> Option<&'a str> {
        self.0.text(self.0.find(key)?)
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facts")
            .field("name", &self.name())
            .field("attributes", &self.attributes().collect::<Vec<_>>())
            .field("n_events", &self.events().count())
            .finish()
    }
}

// === impl FactsBuilder ===

/// Builds [`Facts`]; one builder serves a whole request, since its scratch space is kept.
#[derive(Debug, Default)]
pub struct FactsBuilder {
    /// The heads of the entries.
    heads: Vec<[u8; HEAD_SIZE]>,
    /// The name, then what belongs to each head.
    text: Vec<u8>,
    /// All of it, to be checked at once.
    packed: Vec<u8>,
    /// Is an event open?
    in_event: bool,
}

impl FactsBuilder {
    /// What an attribute or an event takes beyond its suffix and value, in bytes.
    pub const HEAD_SIZE: usize = HEAD_SIZE;
    /// What a bool, an integer or a double takes, in bytes.
    pub const NUMBER_SIZE: usize = NUMBER_SIZE;
    /// Longest suffix of a key that is kept whole, in bytes.
    pub const MAX_SUFFIX: usize = MAX_SUFFIX;

    /// Set the span's name, which is UTF-8: nothing else may have been added before. An empty one
    /// need not be set.
    #[inline]
    pub fn name(&mut self, name: impl AsRef<[u8]>) {
        if self.heads.is_empty() {
            self.text.clear();
            self.text.extend_from_slice(name.as_ref());
        }
    }

    /// Set the W3C trace state, which is UTF-8: only the name may have been set before.
    pub fn trace_state(&mut self, trace_state: impl AsRef<[u8]>) {
        self.push(
            Tag::TraceState,
            KeyId::NONE,
            b"",
            trace_state.as_ref(),
            false,
        );
    }

    /// Add an attribute whose key's suffix and whose value the caller knows to be UTF-8. That is
    /// checked once for all in `finish`; what is not UTF-8 spoils the whole.
    #[inline]
    pub fn utf8(&mut self, key: KeyId, suffix: &[u8], text: &[u8], cut: bool) {
        self.push(Tag::Str, key, suffix, text, cut);
    }

    /// Add an attribute; between `begin_event` and `end_event` it belongs to that event.
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

    /// Add an attribute whose value is bytes; they take a seventh more than they are.
    pub fn bytes(&mut self, key: KeyId, suffix: &[u8], bytes: &[u8], cut: bool) {
        self.push(Tag::Bytes, key, suffix, &pack_bytes(bytes), cut);
    }

    /// Open an event: the attributes that follow are its own.
    pub fn begin_event(&mut self, name: KeyId) {
        self.in_event = false;
        self.push(Tag::Event, name, b"", b"", false);
        self.in_event = true;
    }

    /// Close the open event.
    pub fn end_event(&mut self) {
        self.in_event = false;
    }

    /// Nothing kept yet?
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.text.is_empty()
    }

    /// Hand out what was built, in an allocation of its own size, and start anew.
    pub fn finish(&mut self) -> Facts {
        Facts(if self.is_empty() {
            Packed::Nothing
        } else {
            Packed::Alone(self.pack().into())
        })
    }

    /// What was built takes so many bytes.
    pub(super) fn size(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            COUNT_SIZE + self.heads.len() * HEAD_SIZE + self.text.len()
        }
    }

    /// What was built, and start anew.
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
        // The scan lets through less of a span.
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

/// UTF-8 up to a size, less what would split a character.
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

    fn sample() -> Facts {
        let mut builder = FactsBuilder::default();
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
    fn what_was_packed_is_read_again() {
        let facts = sample();
        assert_eq!((facts.name(), facts.trace_state()), ("näme", "a=1"));
        let expected: Vec<_> = (0..)
            .zip(VALUES)
            .map(|(key, value)| attribute(key, value))
            .collect();
        let keys = expected.iter().map(|attribute| attribute.key).chain([LAST]);
        assert!(facts.keys().eq(keys));
        assert!(
            facts
                .attributes()
                .take(expected.len())
                .eq(expected.iter().copied())
        );
        assert!(
            expected
                .iter()
                .all(|attribute| facts.attribute(attribute.key) == Some(*attribute))
        );
        let events: Vec<_> = facts
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
        let last = facts.attribute(LAST).unwrap();
        assert_eq!(
            (bytes(with_bytes[0]), bytes(last), last.cut),
            (b"inner".to_vec(), b"\xff\x00last".to_vec(), true)
        );
        assert_eq!(
            (facts.get(KeyId(100)), facts.get(KeyId(300))),
            (None, None),
            "what an event holds is no attribute of the span"
        );
    }

    #[test]
    fn what_is_retained_is_all_that_is_held() {
        let mut facts = sample();
        facts.retain(|attribute| Some(Attribute { ..attribute }), |_| true);
        assert_eq!(facts, sample());
        facts.retain(
            |attribute| matches!(attribute.value, Value::Int(_)).then_some(attribute),
            |_| false,
        );
        let mut expected = FactsBuilder::default();
        expected.name("näme");
        expected.trace_state("a=1");
        expected.attribute(attribute(2, Value::Int(i64::MIN)));
        expected.attribute(attribute(3, Value::Int(-1)));
        assert_eq!(facts, expected.finish());
    }

    #[test]
    fn facts_without_a_name_or_without_anything_are_read_too() {
        let mut builder = FactsBuilder::default();
        assert_eq!(builder.finish(), Facts::default());
        assert_eq!((Facts::default().name(), Facts::default().size()), ("", 0));
        builder.attribute(attribute(1, Value::Str("only")));
        let facts = builder.finish();
        assert_eq!(
            (facts.name(), facts.trace_state(), facts.get(KeyId(1))),
            ("", "", Some(Value::Str("only")))
        );
        builder.name("only");
        assert_eq!(builder.finish().name(), "only");
    }
}
