//! The stored name, trace state, attributes and events of a span or log record.

use std::cmp::Ordering;
use std::fmt;

use super::attribute::Attribute;
use super::entries::{Entries, EntryRange, SharedText};
use super::key_set::KeyId;

/// One stored span event.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// The event's name, as the number of a key.
    pub name: KeyId,
    entries: Entries<'a>,
}

impl<'a> Event<'a> {
    pub(super) fn new((name, entries): (KeyId, Entries<'a>)) -> Self {
        Self { name, entries }
    }

    /// Returns the stored attributes.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let entries = self.entries;
        (0..entries.entries.len()).filter_map(move |nth| entries.attribute(nth))
    }
}

/// The stored name, trace state, attributes and events of a span or log record. Equality compares
/// the content. The order only breaks ties between versions of a span.
#[derive(Clone, Default)]
pub struct StoredAttributes {
    text: Option<SharedText>,
    range: EntryRange,
}

impl StoredAttributes {
    pub(super) fn new(text: SharedText, range: EntryRange) -> Self {
        Self {
            text: Some(text),
            range,
        }
    }

    /// Returns the bytes that the attributes use in their text.
    #[inline]
    pub fn size(&self) -> usize {
        self.entries().size()
    }

    #[inline]
    pub(super) fn entries(&self) -> Entries<'_> {
        let text = self.text.as_ref().and_then(|text| text.get());
        text.map_or_else(Entries::default, |text| text.entries(self.range))
    }
}

impl PartialEq for StoredAttributes {
    fn eq(&self, other: &Self) -> bool {
        self.entries() == other.entries()
    }
}

impl Eq for StoredAttributes {}

impl PartialOrd for StoredAttributes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StoredAttributes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.entries().cmp(&other.entries())
    }
}

impl fmt::Debug for StoredAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredAttributes")
            .field("name", &self.index().name())
            .field("attributes", &self.index().attributes().collect::<Vec<_>>())
            .field("n_events", &self.index().events().count())
            .finish()
    }
}
