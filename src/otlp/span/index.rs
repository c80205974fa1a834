//! An index of a span's attributes, for code that looks up many keys, most of which are absent.

use super::TraceId;
use super::attribute::{Attribute, Value};
use super::entries::{Entries, Tag};
use super::key_bits::KeyBits;
use super::key_set::KeyId;
use super::stored_attributes::{Event, StoredAttributes};

/// [`StoredAttributes`] with a bit for each present key below [`KeyBits::CAPACITY`]. Looking up an
/// absent one of these keys takes constant time; a present key is searched for among the entries.
/// For most spans, these searches cost less than filling a table of positions.
#[derive(Debug, Clone, Copy)]
pub struct IndexedAttributes<'a> {
    entries: Entries<'a>,
    /// The keys that the span has. Keys without a bit are searched for.
    present: KeyBits,
    may_have_events: bool,
}

impl<'a> IndexedAttributes<'a> {
    #[inline]
    pub(super) fn new(entries: Entries<'a>) -> Self {
        let mut present = KeyBits::NONE;
        let mut may_have_events = false;
        for entry in entries.entries {
            if entry.is_attribute() {
                present.insert(entry.key);
            } else {
                may_have_events |= entry.tag() == Tag::Event;
            }
        }
        Self {
            entries,
            present,
            may_have_events,
        }
    }

    /// Returns the span's name.
    #[inline]
    pub fn name(&self) -> &'a str {
        self.entries.name()
    }

    /// Returns the W3C trace state; empty if there was none.
    pub fn trace_state(&self) -> &'a str {
        self.entries.context().unwrap_or_default()
    }

    /// Returns the id of the trace that a log record names.
    pub fn named_trace(&self) -> Option<TraceId> {
        let id = u128::from_str_radix(self.entries.context()?, 16).ok()?;
        TraceId::try_new(&id.to_be_bytes())
    }

    /// Returns the keys that the span has, without those beyond [`KeyBits::CAPACITY`].
    #[inline]
    pub fn present(&self) -> KeyBits {
        self.present
    }

    /// Returns true if there is an attribute with this key.
    #[inline]
    pub fn has(&self, key: KeyId) -> bool {
        let bit = self.present.bit(key);
        bit.unwrap_or_else(|| self.entries.find(key).is_some())
    }

    /// Returns the first attribute with this key.
    #[inline]
    pub fn attribute(&self, key: KeyId) -> Option<Attribute<'a>> {
        self.entries.attribute(self.position(key)?)
    }

    /// Returns the value of the first attribute with this key. OTLP requires unique keys; if a
    /// sender repeats a key, the first attribute is used.
    #[inline]
    pub fn get(&self, key: KeyId) -> Option<Value<'a>> {
        self.attribute(key).map(|attribute| attribute.value)
    }

    /// Returns the value of the first attribute with this key, if it is a string.
    #[inline]
    pub fn str(&self, key: KeyId) -> Option<&'a str> {
        let nth = self.position(key)?;
        (self.entries.entries[nth].tag() == Tag::Str).then(|| self.entries.split(nth).1)
    }

    /// Returns the stored attributes, in the order in which they were stored.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        self.entries.attributes()
    }

    /// Returns false if there are certainly no events.
    #[inline]
    pub fn may_have_events(&self) -> bool {
        self.may_have_events
    }

    /// Returns the stored events, in the order in which they were sent.
    pub fn events(&self) -> impl Iterator<Item = Event<'a>> + use<'a> {
        self.may_have_events
            .then(|| self.entries.events())
            .into_iter()
            .flatten()
            .map(Event::new)
    }

    #[inline]
    fn position(&self, key: KeyId) -> Option<usize> {
        match self.present.bit(key) {
            Some(false) => None,
            _ => self.entries.find(key),
        }
    }
}

impl StoredAttributes {
    /// Indexes the attributes, for code that looks up many keys.
    #[inline]
    pub fn index(&self) -> IndexedAttributes<'_> {
        IndexedAttributes::new(self.entries())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::StoredAttributesBuilder;

    /// Adds an attribute whose value is the number of its key.
    fn add(builder: &mut StoredAttributesBuilder, key: u16) {
        builder.attribute(Attribute {
            key: KeyId(key),
            suffix: "",
            value: Value::Int(key.into()),
            cut: false,
        });
    }

    #[test]
    fn the_index_finds_every_attribute_that_a_search_finds() {
        let mut builder = StoredAttributesBuilder::default();
        builder.name("span");
        builder.trace_state("a=1");
        add(&mut builder, 500);
        add(&mut builder, 7);
        builder.utf8(
            KeyId(7),
            b"",
            b"a second value, which does not count",
            false,
        );
        builder.begin_event(KeyId(8));
        add(&mut builder, 9);
        builder.end_event();
        (0..300).for_each(|_| add(&mut builder, 10));
        add(&mut builder, 159);
        add(&mut builder, 160);
        add(&mut builder, 191);
        let kept = builder.finish();
        let index = kept.index();
        for key in (0..600).map(KeyId) {
            let found = index.attributes().find(|attribute| attribute.key == key);
            assert_eq!(index.attribute(key), found, "{key:?}");
            assert_eq!(index.has(key), found.is_some(), "{key:?}");
        }
        assert_eq!(index.get(KeyId(7)), Some(Value::Int(7)));
        assert_eq!((index.name(), index.events().count()), ("span", 1));
        let empty = StoredAttributes::default();
        assert_eq!(
            (empty.index().name(), empty.index().events().count()),
            ("", 0)
        );
    }
}
