//! The kept parts of a span or log record beyond its fixed fields, packed into one text.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::TraceId;
use super::attribute::{Attribute, Value};
use super::key_set::KeyId;
use super::layout::Entries;
use super::seven_bits::unpack_bytes;
use super::shared_text::{SharedText, TextRange};

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

    /// The kept attributes.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let entries = self.entries;
        entries
            .iter()
            .filter_map(move |entry| entries.attribute(entry))
    }
}

/// The kept parts of a span or log record beyond its fixed fields: name, trace state, attributes,
/// events. Equal `KeptAttributes` mean the same; their order has no meaning, but breaks ties
/// between versions of a span.
#[derive(Clone)]
pub struct KeptAttributes(Packed);

#[derive(Clone)]
enum Packed {
    /// In one text with those of other spans.
    Shared(SharedText, TextRange),
    Alone(Arc<str>),
    Nothing,
}

impl KeptAttributes {
    /// In an allocation of their own; nothing for an empty text.
    pub(super) fn alone(packed: &str) -> Self {
        Self(if packed.is_empty() { Packed::Nothing } else { Packed::Alone(packed.into()) })
    }

    pub(super) fn shared(text: SharedText, place: TextRange) -> Self {
        Self(if place.len() > 0 { Packed::Shared(text, place) } else { Packed::Nothing })
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
        self.entries().context().unwrap_or_default()
    }

    /// The id of the trace that a log record names.
    pub fn named_trace(&self) -> Option<TraceId> {
        TraceId::try_new(&unpack_bytes(self.entries().context()?))
    }

    /// The kept attributes, in the order in which they were sent.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        self.entries().attributes()
    }

    /// The kept attributes with wanted keys, in the order in which they were sent. Does not look at
    /// the values of others.
    pub fn attributes_with(
        &self,
        is_wanted: impl Fn(KeyId) -> bool,
    ) -> impl Iterator<Item = Attribute<'_>> {
        let entries = self.entries();
        let wanted = (0..)
            .zip(entries.head_keys())
            .filter(move |(_, key)| key.is_some_and(&is_wanted));
        wanted.filter_map(move |(nth, _)| entries.attribute(entries.entry(nth)))
    }

    /// The keys of the kept attributes, in the order in which they were sent. Does not look at
    /// values.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.entries().head_keys().flatten()
    }

    /// Returns true if an event is kept.
    pub fn has_events(&self) -> bool {
        self.entries().has_events()
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
        if let Packed::Alone(text) = &self.0 { text.len() } else { 0 }
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
