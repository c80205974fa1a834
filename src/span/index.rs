//! Pure. A table from key to attribute, for code that reads many attributes of one span. Knows the
//! numbers of keys; does not know which of them are read.

use super::attribute::{Attribute, Value};
use super::kept_attributes::{Event, KeptAttributes};
use super::key_set::KeyId;
use super::layout::Entries;

/// Number of keys in the table: those with the lowest numbers.
const N_KEYS: usize = IndexedAttributes::N_INDEXED_KEYS;
const N_WORDS: usize = IndexedAttributes::N_WORDS;

/// [`KeptAttributes`] with a table from key to place: reading a key costs the same whatever the
/// number of attributes. Making the table costs one look at each attribute's head, not at its
/// value.
#[derive(Debug, Clone, Copy)]
pub struct IndexedAttributes<'a> {
    entries: Entries<'a>,
    /// A bit for each key that has an attribute.
    present: [u64; N_WORDS],
    /// One more than the place of the first attribute with this key. 0 if there is none, or if its
    /// place does not fit.
    places: [u8; N_KEYS],
    may_have_events: bool,
}

impl<'a> IndexedAttributes<'a> {
    /// Keys with lower numbers than this are found in the table, any other by a search.
    pub const N_INDEXED_KEYS: usize = 160;
    /// Number of words with a bit for each of these keys.
    pub const N_WORDS: usize = Self::N_INDEXED_KEYS.div_ceil(64);

    // Inlined into its callers: a copy of the table would cost as much as making it.
    #[inline(always)]
    pub(super) fn new(entries: Entries<'a>) -> Self {
        let mut index = Self {
            entries,
            present: [0; N_WORDS],
            places: [0; N_KEYS],
            may_have_events: false,
        };
        for (nth, key) in entries.head_keys().enumerate() {
            let Some(key) = key else {
                index.may_have_events = true;
                continue;
            };
            let key = usize::from(key.0);
            if let Some(place) = index.places.get_mut(key)
                && *place == 0
            {
                index.present[key / 64] |= 1 << (key % 64);
                *place = u8::try_from(nth + 1).unwrap_or_default();
            }
        }
        index
    }

    /// The span's name.
    #[inline]
    pub fn name(&self) -> &'a str {
        self.entries.name()
    }

    /// A bit for each of the first keys, set if there is an attribute with this key.
    #[inline]
    pub fn present(&self) -> [u64; N_WORDS] {
        self.present
    }

    /// Is there an attribute with this key?
    #[inline]
    pub fn has(&self, key: KeyId) -> bool {
        let at = usize::from(key.0);
        if at < N_KEYS {
            self.present[at / 64] >> (at % 64) & 1 == 1
        } else {
            self.entries.find(key).is_some()
        }
    }

    /// The first attribute with this key.
    #[inline]
    pub fn attribute(&self, key: KeyId) -> Option<Attribute<'a>> {
        self.entries.attribute(self.entries.entry(self.place(key)?))
    }

    /// The value of the first attribute with this key (OTLP asks for unique keys; if a sender
    /// repeats one, the first counts).
    #[inline]
    pub fn get(&self, key: KeyId) -> Option<Value<'a>> {
        self.attribute(key).map(|attribute| attribute.value)
    }

    /// The value of the first attribute with this key, if it is a string.
    #[inline]
    pub fn text(&self, key: KeyId) -> Option<&'a str> {
        self.entries.text(self.place(key)?)
    }

    /// The kept attributes, in the order in which they were sent.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        self.entries.attributes()
    }

    /// The kept events, in the order in which they were sent.
    pub fn events(&self) -> impl Iterator<Item = Event<'a>> + use<'a> {
        self.may_have_events
            .then(|| self.entries.events())
            .into_iter()
            .flatten()
            .map(Event::new)
    }

    #[inline]
    fn place(&self, key: KeyId) -> Option<usize> {
        match self.places.get(usize::from(key.0)) {
            Some(0) if !self.has(key) => None,
            Some(0) | None => self.entries.find(key),
            Some(place) => Some(usize::from(*place) - 1),
        }
    }
}

impl KeptAttributes {
    /// A table of the attributes by key, for code that reads many of them.
    #[inline(always)]
    pub fn index(&self) -> IndexedAttributes<'_> {
        IndexedAttributes::new(self.entries())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::KeptAttributesBuilder;

    /// Adds the key's number as a value.
    fn add(builder: &mut KeptAttributesBuilder, key: u16) {
        builder.attribute(Attribute {
            key: KeyId(key),
            suffix: "",
            value: Value::Int(key.into()),
            cut: false,
        });
    }

    #[test]
    fn the_index_finds_every_attribute_that_a_search_finds() {
        let mut builder = KeptAttributesBuilder::default();
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
        // More than a place in the table can hold.
        (0..300).for_each(|_| add(&mut builder, 10));
        add(&mut builder, 159);
        add(&mut builder, 160);
        add(&mut builder, 191);
        let kept = builder.finish();
        let index = kept.index();
        for key in (0..600).map(KeyId) {
            assert_eq!(index.attribute(key), kept.attribute(key), "{key:?}");
            assert_eq!(index.has(key), kept.get(key).is_some(), "{key:?}");
        }
        assert_eq!(index.get(KeyId(7)), Some(Value::Int(7)));
        assert_eq!((index.name(), index.events().count()), ("span", 1));
        assert_eq!(index.attributes().count(), kept.attributes().count());
        let empty = KeptAttributes::default();
        assert_eq!(
            (empty.index().name(), empty.index().events().count()),
            ("", 0)
        );
    }
}
