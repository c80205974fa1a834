//! Pure. What is kept of a span beyond its fixed fields, packed into bytes, and read from them again.
//! Knows how values lie in memory; does not know which keys somebody reads, nor what they mean.

use std::fmt;

use super::KeyId;

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
    Bytes(&'a [u8]),
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'a> {
    /// Which name.
    pub name: KeyId,
    bytes: &'a [u8],
}

impl<'a> Event<'a> {
    /// Its kept attributes.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        Entries { bytes: self.bytes }.filter_map(Entry::attribute)
    }
}

/// What is kept of a span beyond its fixed fields, packed into one allocation: name, trace state, attributes, events.
/// Two equal `Facts` mean the same thing, and their byte order breaks ties between versions of a span.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Facts(Box<[u8]>);

impl Facts {
    /// The span's name.
    pub fn name(&self) -> &str {
        self.entries().find(|entry| entry.tag == Tag::Name).map_or("", |entry| entry.str())
    }

    /// The W3C trace state, empty where there was none.
    pub fn trace_state(&self) -> &str {
        self.entries().find(|entry| entry.tag == Tag::TraceState).map_or("", |entry| entry.str())
    }

    /// The kept attributes, in the order they were sent.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        self.entries().filter_map(Entry::attribute)
    }

    /// The keys of the kept attributes, in the order they were sent. Does not look at values, as `attributes` does to see whether they are UTF-8.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.entries().filter(|entry| entry.tag.is_value()).map(|entry| entry.key)
    }

    /// The kept events, in the order they were sent.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.entries().filter(|entry| entry.tag == Tag::Event).map(|entry| Event { name: entry.key, bytes: entry.payload })
    }

    /// The value of the first attribute with this key (OTLP asks for unique keys; where a sender repeats one, the first counts).
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.attribute(key).map(|attribute| attribute.value)
    }

    /// The first attribute with this key.
    pub fn attribute(&self, key: KeyId) -> Option<Attribute<'_>> {
        self.entries().find(|entry| entry.key == key && entry.tag.is_value())?.attribute()
    }

    /// The same with each attribute as `keep` gives it back, and without the attributes and whole events that are refused.
    pub fn retain(&mut self, mut keep: impl for<'a> FnMut(Attribute<'a>) -> Option<Attribute<'a>>, keep_event: impl Fn(KeyId) -> bool) {
        let mut kept = FactsBuilder { bytes: Vec::with_capacity(self.0.len()), event: None };
        let mut rest = self.entries();
        loop {
            let before = rest.bytes;
            let Some(entry) = rest.next() else { break };
            let whole = &before[..before.len() - rest.bytes.len()];
            match entry.attribute() {
                None if entry.tag == Tag::Event && !keep_event(entry.key) => {}
                None => kept.bytes.extend_from_slice(whole),
                Some(attribute) => match keep(attribute) {
                    Some(same) if same == attribute => kept.bytes.extend_from_slice(whole),
                    Some(other) => kept.attribute(other),
                    None => {}
                },
            }
        }
        if kept.bytes.len() != self.0.len() {
            *self = kept.finish();
        }
    }

    /// Bytes on the heap.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    fn entries(&self) -> Entries<'_> {
        Entries { bytes: &self.0 }
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

/// Builds [`Facts`]; one builder serves a whole request, since its scratch space is kept.
#[derive(Debug, Default)]
pub struct FactsBuilder {
    bytes: Vec<u8>,
    /// Where the open event's payload starts.
    event: Option<usize>,
}

impl FactsBuilder {
    /// Set the span's name, which is UTF-8. An empty one need not be set.
    pub fn name(&mut self, name: impl AsRef<[u8]>) {
        self.push(Tag::Name, KeyId::NONE, b"", name.as_ref(), false);
    }

    /// Set the W3C trace state, which is UTF-8.
    pub fn trace_state(&mut self, trace_state: impl AsRef<[u8]>) {
        self.push(Tag::TraceState, KeyId::NONE, b"", trace_state.as_ref(), false);
    }

    /// Add an attribute whose key's suffix and whose value the caller knows to be UTF-8, without checking that again (what is not, reads as
    /// the empty string).
    pub fn utf8(&mut self, key: KeyId, suffix: &[u8], text: &[u8], cut: bool) {
        self.push(Tag::Str, key, suffix, text, cut);
    }

    /// Add an attribute; between `begin_event` and `end_event` it belongs to that event.
    pub fn attribute(&mut self, attribute: Attribute<'_>) {
        let Attribute { key, suffix, value, cut } = attribute;
        let suffix = suffix.as_bytes();
        match value {
            Value::Str(text) => self.push(Tag::Str, key, suffix, text.as_bytes(), cut),
            Value::Json(text) => self.push(Tag::Json, key, suffix, text.as_bytes(), cut),
            Value::Bytes(bytes) => self.push(Tag::Bytes, key, suffix, bytes, cut),
            Value::Bool(value) => self.push(Tag::Bool, key, suffix, &[u8::from(value)], cut),
            Value::Int(value) => self.push(Tag::Int, key, suffix, &value.to_le_bytes(), cut),
            Value::Double(value) => self.push(Tag::Double, key, suffix, &value.to_bits().to_le_bytes(), cut),
        }
    }

    /// Open an event: the attributes that follow are its own.
    pub fn begin_event(&mut self, name: KeyId) {
        self.bytes.push(Tag::Event as u8);
        self.bytes.extend_from_slice(&name.0.to_le_bytes());
        self.bytes.push(0);
        self.bytes.extend_from_slice(&[0; 4]);
        self.event = Some(self.bytes.len());
    }

    /// Close the open event.
    pub fn end_event(&mut self) {
        if let Some(start) = self.event.take() {
            let len = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
            self.bytes[start - 4..start].copy_from_slice(&len.to_le_bytes());
        }
    }

    /// How many bytes have been kept so far, so that a caller can bound a span.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing kept yet?
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Hand out what was built, in an allocation of its own size, and start anew.
    pub fn finish(&mut self) -> Facts {
        self.end_event();
        let facts = Facts(self.bytes.as_slice().into());
        self.bytes.clear();
        facts
    }

    /// Layout of an entry: tag (1), key (2), suffix length (1, 255 at most; longer keys are no key of ours), payload length (4), suffix, payload.
    fn push(&mut self, tag: Tag, key: KeyId, suffix: &[u8], payload: &[u8], cut: bool) {
        let suffix = suffix.get(..suffix.len().min(255)).unwrap_or_default();
        let tag = tag as u8 | if cut { CUT } else { 0 };
        let [key_0, key_1] = key.0.to_le_bytes();
        let [len_0, len_1, len_2, len_3] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
        self.bytes.reserve(8 + suffix.len() + payload.len());
        self.bytes.extend_from_slice(&[tag, key_0, key_1, suffix.len() as u8, len_0, len_1, len_2, len_3]);
        self.bytes.extend_from_slice(suffix);
        self.bytes.extend_from_slice(payload);
    }
}

const CUT: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Name,
    TraceState,
    Event,
    Str,
    Bool,
    Int,
    Double,
    Json,
    Bytes,
}

impl Tag {
    const ALL: [Self; 9] =
        [Self::Name, Self::TraceState, Self::Event, Self::Str, Self::Bool, Self::Int, Self::Double, Self::Json, Self::Bytes];

    fn is_value(self) -> bool {
        !matches!(self, Self::Name | Self::TraceState | Self::Event)
    }
}

#[derive(Clone, Copy)]
struct Entry<'a> {
    tag: Tag,
    cut: bool,
    key: KeyId,
    suffix: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Entry<'a> {
    fn str(self) -> &'a str {
        std::str::from_utf8(self.payload).unwrap_or_default()
    }

    fn attribute(self) -> Option<Attribute<'a>> {
        let value = match self.tag {
            Tag::Name | Tag::TraceState | Tag::Event => return None,
            Tag::Str => Value::Str(self.str()),
            Tag::Json => Value::Json(self.str()),
            Tag::Bytes => Value::Bytes(self.payload),
            Tag::Bool => Value::Bool(self.payload.first() == Some(&1)),
            Tag::Int => Value::Int(i64::from_le_bytes(self.payload.try_into().ok()?)),
            Tag::Double => Value::Double(f64::from_bits(u64::from_le_bytes(self.payload.try_into().ok()?))),
        };
        Some(Attribute { key: self.key, suffix: std::str::from_utf8(self.suffix).unwrap_or_default(), value, cut: self.cut })
    }
}

struct Entries<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (head, rest) = self.bytes.split_at_checked(8)?;
        let tag = *Tag::ALL.get(usize::from(head[0] & !CUT))?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (suffix, rest) = rest.split_at_checked(usize::from(head[3]))?;
        let (payload, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        Some(Entry { tag, cut: head[0] & CUT != 0, key: KeyId(u16::from_le_bytes([head[1], head[2]])), suffix, payload })
    }
}
