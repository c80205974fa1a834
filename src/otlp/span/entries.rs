//! Stored attributes in memory: a list of entries, and one text with their suffixes and values. The
//! entries of one span are adjacent, and so are their texts.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::attribute::{Attribute, Value};
use super::key_set::KeyId;

#[derive(Debug, Clone, Default)]
pub(super) struct StoredText {
    pub(super) entries: Vec<StoredEntry>,
    pub(super) text: String,
}

/// A [`StoredText`] that is shared before its content is complete, and readable once the content is
/// set.
pub(super) type SharedText = Arc<OnceLock<StoredText>>;

/// The position of one span's entries in a `StoredText`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryRange {
    pub(super) first: u32,
    pub(super) len: u32,
}

impl EntryRange {
    /// Returns the range that covers all entries of the text with this index.
    pub(super) fn large(idx: u32) -> Self {
        Self {
            first: idx,
            len: u32::MAX,
        }
    }

    /// Returns the index of the text if this range covers all entries of a text.
    #[inline]
    pub(super) fn large_idx(self) -> Option<u32> {
        (self.len == u32::MAX).then_some(self.first)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Tag {
    /// Of a span or log record.
    Name,
    /// A span's trace state, or the id of the trace that a log record names.
    Context,
    /// The name of an event, whose attributes follow as inner entries.
    Event,
    Str,
    Json,
    Bytes,
    Bool,
    Int,
    Double,
}

impl Tag {
    const ALL: [Self; 9] = [
        Self::Name,
        Self::Context,
        Self::Event,
        Self::Str,
        Self::Json,
        Self::Bytes,
        Self::Bool,
        Self::Int,
        Self::Double,
    ];
}

pub(super) const MAX_SUFFIX: usize = 255;
/// Maximum bytes of a bool, integer or double: 64 bits as hexadecimal digits.
pub(super) const NUMBER_SIZE: usize = 16;

/// One entry. Suffix and value end where the next entry starts; not storing their ends saves a
/// third of the memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredEntry {
    /// Start of the suffix in the text; the value follows the suffix.
    pub(super) at: u32,
    pub(super) key: KeyId,
    pub(super) suffix_len: u8,
    /// The tag, with [`INNER`] and [`CUT`].
    pub(super) bits: u8,
}

/// The bit of an entry that belongs to the preceding event.
const INNER: u8 = 1 << 4;
/// The bit of a value that is not whole.
const CUT: u8 = 1 << 5;

impl StoredEntry {
    pub(super) const SIZE: usize = size_of::<Self>();

    #[inline]
    pub(super) fn new(
        tag: Tag,
        key: KeyId,
        (at, suffix_len): (u32, u8),
        is_inner: bool,
        cut: bool,
    ) -> Self {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        Self {
            at,
            key,
            suffix_len,
            bits: tag as u8 | flag(is_inner, INNER) | flag(cut, CUT),
        }
    }

    #[inline]
    pub(super) fn tag(self) -> Tag {
        Tag::ALL[usize::from(self.bits & 0xf).min(Tag::ALL.len() - 1)]
    }

    #[inline]
    pub(super) fn is_inner(self) -> bool {
        self.bits & INNER != 0
    }

    #[inline]
    pub(super) fn is_cut(self) -> bool {
        self.bits & CUT != 0
    }

    /// Returns true for an attribute outside events.
    #[inline]
    pub(super) fn is_attribute(self) -> bool {
        // `INNER` is above all tags, so the range excludes inner entries.
        (Tag::Str as u8..INNER).contains(&(self.bits & !CUT))
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entries<'a> {
    pub(super) entries: &'a [StoredEntry],
    /// End of the last entry.
    end: u32,
    text: &'a str,
}

impl StoredText {
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.entries.capacity() * StoredEntry::SIZE + self.text.capacity()
    }

    /// Frees spare capacity if it is more than an eighth.
    pub(super) fn shrink(&mut self) {
        if self.text.len() + self.text.len() / 8 < self.text.capacity() {
            self.text.shrink_to_fit();
        }
        if self.entries.len() + self.entries.len() / 8 < self.entries.capacity() {
            self.entries.shrink_to_fit();
        }
    }

    pub(super) fn alone(entries: Entries<'_>) -> Self {
        let mut alone = Self {
            entries: Vec::with_capacity(entries.entries.len()),
            text: String::with_capacity(entries.own_text().len()),
        };
        alone.append(entries);
        alone
    }

    #[inline]
    pub(super) fn all(&self) -> Entries<'_> {
        Entries::new(&self.entries, &self.text)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() * StoredEntry::SIZE + self.text.len()
    }

    pub(super) fn append(&mut self, added: Entries<'_>) -> EntryRange {
        let range = EntryRange {
            first: self.entries.len() as u32,
            len: added.entries.len() as u32,
        };
        let at = self.text.len() as u32;
        let start = added.entries.first().map_or(0, |entry| entry.at);
        self.text.push_str(added.own_text());
        self.entries
            .extend(added.entries.iter().map(|entry| StoredEntry {
                at: entry.at - start + at,
                ..*entry
            }));
        range
    }

    /// Returns the entries of one span; none if the range exceeds this text.
    #[inline]
    pub(super) fn entries(&self, range: EntryRange) -> Entries<'_> {
        let (first, len) = (range.first as usize, range.len as usize);
        let after = self.entries.get(first + len);
        Entries {
            entries: self.entries.get(first..first + len).unwrap_or_default(),
            end: after.map_or(self.text.len() as u32, |entry| entry.at),
            text: &self.text,
        }
    }
}

impl<'a> Entries<'a> {
    /// Creates entries, the last of which ends at the end of `text`.
    pub(super) fn new(entries: &'a [StoredEntry], text: &'a str) -> Self {
        Self {
            entries,
            end: text.len() as u32,
            text,
        }
    }

    pub(super) fn size(self) -> usize {
        self.entries.len() * StoredEntry::SIZE + self.own_text().len()
    }

    pub(super) fn own_text(self) -> &'a str {
        let first = self.entries.first();
        first.map_or("", |first| self.between(first.at, self.end))
    }

    /// Returns the name. Searches from the end, because the scan writes the name last.
    #[inline]
    pub(super) fn name(self) -> &'a str {
        self.value_of(Tag::Name).unwrap_or_default()
    }

    /// Returns the trace state, or the id of the trace that a log record names.
    pub(super) fn context(self) -> Option<&'a str> {
        self.value_of(Tag::Context)
    }

    #[inline]
    fn value_of(self, tag: Tag) -> Option<&'a str> {
        let nth = self.entries.iter().rposition(|entry| entry.tag() == tag)?;
        Some(self.split(nth).1)
    }

    pub(super) fn attributes(self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        (0..self.entries.len())
            .filter(move |&nth| self.entries[nth].is_attribute())
            .filter_map(move |nth| self.attribute(nth))
    }

    /// Returns the position of the first attribute with this key outside events.
    #[inline]
    pub(super) fn find(self, key: KeyId) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|entry| entry.key == key && entry.is_attribute())
    }

    /// Returns the key of each event, and the entries that belong to the event.
    pub(super) fn events(self) -> impl Iterator<Item = (KeyId, Self)> + use<'a> {
        let numbered = self.entries.iter().enumerate();
        let events = numbered.filter(|(_, entry)| entry.tag() == Tag::Event);
        events.map(move |(nth, event)| {
            let after = &self.entries[nth + 1..];
            let n_inner = after.iter().take_while(|entry| entry.is_inner()).count();
            let inner = Self {
                entries: &after[..n_inner],
                end: after.get(n_inner).map_or(self.end, |entry| entry.at),
                ..self
            };
            (event.key, inner)
        })
    }

    /// Returns the suffix and the encoded value of the entry at position `nth`.
    #[inline]
    pub(super) fn split(self, nth: usize) -> (&'a str, &'a str) {
        let entry = self.entries[nth];
        let end = self.entries.get(nth + 1).map_or(self.end, |next| next.at);
        let whole = self.between(entry.at, end);
        whole
            .split_at_checked(entry.suffix_len.into())
            .unwrap_or_default()
    }

    #[inline]
    fn between(self, start: u32, end: u32) -> &'a str {
        let text = self.text.get(start as usize..end as usize);
        text.unwrap_or_default()
    }

    /// Returns the attribute at position `nth`; `None` if the entry is a name, context or event.
    pub(super) fn attribute(self, nth: usize) -> Option<Attribute<'a>> {
        let entry = self.entries[nth];
        let (suffix, written) = self.split(nth);
        let bits = || u64::from_str_radix(written, 16).ok();
        let value = match entry.tag() {
            Tag::Name | Tag::Context | Tag::Event => return None,
            Tag::Str => Value::Str(written),
            Tag::Json => Value::Json(written),
            Tag::Bytes => Value::Bytes(written),
            Tag::Bool => Value::Bool(bits()? == 1),
            Tag::Int => Value::Int(bits()? as i64),
            Tag::Double => Value::Double(f64::from_bits(bits()?)),
        };
        Some(Attribute {
            key: entry.key,
            suffix,
            value,
            cut: entry.is_cut(),
        })
    }

    fn parts(self) -> impl Iterator<Item = (KeyId, u8, (&'a str, &'a str))> {
        let numbered = self.entries.iter().enumerate();
        numbered.map(move |(nth, entry)| (entry.key, entry.bits, self.split(nth)))
    }
}

impl PartialEq for Entries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.parts().eq(other.parts())
    }
}

impl Eq for Entries<'_> {}

impl PartialOrd for Entries<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entries<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(other.parts())
    }
}
