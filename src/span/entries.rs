//! Pure. The layout of kept facts: entries as one text in, found again by key. Knows how they lie
//! in memory; does not know which keys somebody reads, nor what they mean.
//!
//! The text is: the number of entries, a head of eight bytes for each, the span's name, then for
//! each entry what followed the prefix of its key, and its payload. Numbers and heads are written
//! in seven bits to a byte. So all of it is UTF-8, and no reading of a string has to check that
//! again, which would be a tenth of all a span costs; and a key is found by comparing heads that
//! stand side by side.

use std::fmt;

use super::{Attribute, KeyId, Value};

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
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
    const ALL: [Self; 8] = [
        Self::TraceState,
        Self::Event,
        Self::Str,
        Self::Bool,
        Self::Int,
        Self::Double,
        Self::Json,
        Self::Bytes,
    ];
}

/// What a head says, in eight bytes of seven bits each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// As it stands in memory: key (2 bytes, the low bits first); tag (3 bits), whether it belongs
    /// to the event before it, whether the value was cut, the highest bit of the suffix length; the
    /// other bits of the suffix length.
    what: u32,
    /// Where the suffix begins, behind the heads.
    start: u32,
}

pub(super) const HEAD_SIZE: usize = 8;
/// What stands before the heads.
pub(super) const COUNT_SIZE: usize = 4;
/// Longest suffix, in bytes; longer keys are no key of ours.
pub(super) const MAX_SUFFIX: usize = 255;
/// No entry begins behind this.
pub(super) const MAX_START: usize = (1 << 28) - 1;

const KEY: u32 = 0x7f7f;
const TAG: u32 = 7 << 16;
const INNER: u32 = 1 << 19;
const CUT: u32 = 1 << 20;

impl Head {
    #[inline]
    pub(super) fn new(
        tag: Tag,
        key: KeyId,
        is_inner: bool,
        suffix_len: usize,
        start: usize,
        cut: bool,
    ) -> Self {
        let inner = if is_inner { INNER } else { 0 };
        let cut = if cut { CUT } else { 0 };
        let suffix_len = suffix_len.min(MAX_SUFFIX) as u32;
        let suffix_len = (suffix_len >> 7) << 21 | (suffix_len & 0x7f) << 24;
        Self {
            what: spread_key(key) | (tag as u32) << 16 | inner | cut | suffix_len,
            start: start.min(MAX_START) as u32,
        }
    }

    #[inline]
    fn read([a, b, c, d, e, f, g, h]: [u8; HEAD_SIZE]) -> Self {
        Self {
            what: u32::from_le_bytes([a, b, c, d]),
            start: gather([e, f, g, h]),
        }
    }

    #[inline]
    pub(super) fn to_bytes(self) -> [u8; HEAD_SIZE] {
        let ([a, b, c, d], [e, f, g, h]) = (self.what.to_le_bytes(), spread(self.start));
        [a, b, c, d, e, f, g, h]
    }

    #[inline]
    fn key(self) -> KeyId {
        KeyId((self.what & 0x7f | (self.what & 0x7f00) >> 1) as u16)
    }

    #[inline]
    fn tag(self) -> Tag {
        Tag::ALL[((self.what & TAG) >> 16) as usize]
    }

    #[inline]
    fn is_inner(self) -> bool {
        self.what & INNER != 0
    }

    #[inline]
    fn suffix_len(self) -> usize {
        ((self.what >> 21 & 1) << 7 | self.what >> 24) as usize
    }

    #[inline]
    fn start(self) -> usize {
        self.start as usize
    }

    #[inline]
    fn is_cut(self) -> bool {
        self.what & CUT != 0
    }

    /// Is it an attribute that belongs to no event?
    #[inline]
    fn is_attribute(self) -> bool {
        self.what & INNER == 0 && self.what & TAG > (Tag::Event as u32) << 16
    }
}

/// A key as it stands in a head.
#[inline]
fn spread_key(key: KeyId) -> u32 {
    let key = u32::from(key.0.min(KeyId::NONE.0));
    key & 0x7f | (key & 0x3f80) << 1
}

/// The entries of some facts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries<'a> {
    heads: &'a [[u8; HEAD_SIZE]],
    /// What stands behind the heads.
    text: &'a str,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) tag: Tag,
    pub(super) key: KeyId,
    /// Does it belong to the event before it?
    pub(super) is_inner: bool,
    pub(super) suffix: &'a str,
    pub(super) payload: &'a str,
    pub(super) cut: bool,
}

impl<'a> Entries<'a> {
    #[inline]
    pub(super) fn new(packed: &'a str) -> Self {
        let n_heads = packed
            .as_bytes()
            .first_chunk()
            .map_or(0, |count| gather(*count) as usize);
        let (heads, text) = packed
            .get(COUNT_SIZE..)
            .and_then(|rest| rest.split_at_checked(n_heads * HEAD_SIZE))
            .unwrap_or_default();
        Self {
            heads: heads.as_bytes().as_chunks().0,
            text,
        }
    }

    /// What stands before the first entry.
    #[inline]
    pub(super) fn name(self) -> &'a str {
        self.text.get(..self.start(0)).unwrap_or_default()
    }

    /// The trace state comes before all other entries.
    pub(super) fn trace_state(self) -> Option<&'a str> {
        self.iter()
            .next()
            .filter(|entry| entry.tag == Tag::TraceState)
            .map(|entry| entry.payload)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        (0..self.heads.len()).map(move |nth| self.entry(nth))
    }

    /// The keys of attributes that belong to no event.
    #[inline]
    pub(super) fn keys(self) -> impl Iterator<Item = KeyId> + use<'a> {
        self.heads
            .iter()
            .map(|head| Head::read(*head))
            .filter(|head| head.is_attribute())
            .map(Head::key)
    }

    /// Is there an event among them?
    #[inline]
    pub(super) fn has_events(self) -> bool {
        self.heads
            .iter()
            .any(|head| Head::read(*head).tag() == Tag::Event)
    }

    /// The place of the first attribute with this key that belongs to no event.
    #[inline]
    pub(super) fn find(self, key: KeyId) -> Option<usize> {
        let wanted = spread_key(key);
        self.heads.iter().position(|head| {
            let head = Head::read(*head);
            head.what & KEY == wanted && head.is_attribute()
        })
    }

    /// The entries of each event, after its key.
    pub(super) fn events(self) -> impl Iterator<Item = (KeyId, Self)> + use<'a> {
        let heads = move |nth: usize| self.heads.get(nth).map(|head| Head::read(*head));
        (0..self.heads.len()).filter_map(move |nth| {
            let event = heads(nth).filter(|head| head.tag() == Tag::Event)?;
            let n_inner = (nth + 1..)
                .map_while(heads)
                .take_while(|head| head.is_inner())
                .count();
            let end = self.start(nth + 1 + n_inner);
            Some((
                event.key(),
                Self {
                    heads: self.heads.get(nth + 1..=nth + n_inner)?,
                    text: self.text.get(..end)?,
                },
            ))
        })
    }

    pub(super) fn value(self, entry: Entry<'a>) -> Option<Value<'a>> {
        Some(match entry.tag {
            Tag::Str => Value::Str(entry.payload),
            Tag::Json => Value::Json(entry.payload),
            Tag::Bool => Value::Bool(read_number(entry.payload)? == 1),
            Tag::Int => Value::Int(read_number(entry.payload)? as i64),
            Tag::Double => Value::Double(f64::from_bits(read_number(entry.payload)?)),
            Tag::Bytes => Value::Bytes(Bytes(entry.payload)),
            Tag::TraceState | Tag::Event => return None,
        })
    }

    /// The string at a place.
    #[inline]
    pub(super) fn text(self, nth: usize) -> Option<&'a str> {
        let head = Head::read(*self.heads.get(nth)?);
        if head.tag() == Tag::Str {
            self.text
                .get(head.start() + head.suffix_len()..self.start(nth + 1))
        } else {
            None
        }
    }

    /// `None` for what is no attribute.
    pub(super) fn attribute(self, entry: Entry<'a>) -> Option<Attribute<'a>> {
        let Entry {
            key, suffix, cut, ..
        } = entry;
        Some(Attribute {
            key,
            suffix,
            value: self.value(entry)?,
            cut,
        })
    }

    /// The entry at a place that there is.
    #[inline]
    pub(super) fn entry(self, nth: usize) -> Entry<'a> {
        let head = Head::read(self.heads[nth]);
        let whole = self
            .text
            .get(head.start()..self.start(nth + 1))
            .unwrap_or_default();
        let (suffix, payload) = whole
            .split_at_checked(head.suffix_len())
            .unwrap_or_default();
        Entry {
            tag: head.tag(),
            key: head.key(),
            is_inner: head.is_inner(),
            suffix,
            payload,
            cut: head.is_cut(),
        }
    }

    /// Where the n-th begins, or, for as many as there are, where all end.
    #[inline]
    fn start(self, nth: usize) -> usize {
        self.heads
            .get(nth)
            .map_or(self.text.len(), |head| Head::read(*head).start())
    }
}

// === Seven bits to a byte ===

/// 28 bits in four bytes.
#[inline]
pub(super) const fn spread(bits: u32) -> [u8; 4] {
    let bits = (bits & 0x3fff) | (bits & 0x0fff_c000) << 2;
    ((bits & 0x007f_007f) | (bits & 0x3f80_3f80) << 1).to_le_bytes()
}

/// What was spread.
#[inline]
fn gather(bytes: [u8; 4]) -> u32 {
    let bits = u32::from_le_bytes(bytes);
    let bits = (bits & 0x007f_007f) | (bits & 0x7f00_7f00) >> 1;
    (bits & 0x3fff) | (bits & 0x3fff_0000) >> 2
}

/// What a number takes.
pub(super) const NUMBER_SIZE: usize = 10;

/// A number in ten bytes.
pub(super) fn number(number: u64) -> [u8; NUMBER_SIZE] {
    std::array::from_fn(|nth| (number >> (7 * nth)) as u8 & 0x7f)
}

fn read_number(text: &str) -> Option<u64> {
    let bytes: &[u8; NUMBER_SIZE] = text.as_bytes().try_into().ok()?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 7 | u64::from(*byte)),
    )
}

/// A value that is bytes, as it is kept: seven bits to a byte like all else.
#[derive(Clone, Copy, PartialEq)]
pub struct Bytes<'a>(&'a str);

impl<'a> Bytes<'a> {
    /// The bytes themselves.
    pub fn to_vec(self) -> Vec<u8> {
        let groups = self.0.as_bytes().chunks(8);
        let read = |group: &[u8]| {
            group
                .iter()
                .rev()
                .fold(0, |bits, byte| bits << 7 | u64::from(*byte))
        };
        groups
            .flat_map(|group| read(group).to_le_bytes().into_iter().take(group.len() - 1))
            .collect()
    }

    pub(super) fn packed(self) -> &'a str {
        self.0
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_vec().fmt(f)
    }
}

/// Every seven bytes in eight, what is left in one more than it is.
pub(super) fn pack_bytes(bytes: &[u8]) -> Vec<u8> {
    let read = |group: &[u8]| {
        group
            .iter()
            .rev()
            .fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    };
    bytes
        .chunks(7)
        .flat_map(|group| number(read(group)).into_iter().take(group.len() + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_number_are_packed_and_read_again() {
        for n_bytes in 0..40 {
            let bytes: Vec<u8> = (0..n_bytes).map(|nth| 255 - nth * 3).collect();
            let packed = String::from_utf8(pack_bytes(&bytes)).unwrap();
            assert_eq!(Bytes(&packed).to_vec(), bytes);
            assert_eq!(packed.len(), bytes.len() + bytes.len().div_ceil(7));
        }
    }
}
