//! The layout of kept attributes in memory, and the search for an entry by its key. Private to
//! `span`: knows neither which keys are read, nor what they mean.
//!
//! ```text
//! +---------+--------+--------+-----+------+--------+---------+--------+---------+-----+
//! | n heads | head 0 | head 1 | ... | name | suffix | payload | suffix | payload | ... |
//! | 4 bytes | 8      | 8      |     |      | of entry 0       | of entry 1       |     |
//! +---------+--------+--------+-----+------+--------+---------+--------+---------+-----+
//!
//! A head, low bits first, 7 bits to a byte:
//! +------------+--------+-------------+-------+-------------------+--------------------+
//! | key        | tag    | in an event | cut   | length of suffix  | start of suffix    |
//! | 2 x 7 bits | 3 bits | 1 bit       | 1 bit | 1 + 7 bits        | 4 x 7 bits         |
//! +------------+--------+-------------+-------+-------------------+--------------------+
//! ```
//!
//! The suffix is the part of the attribute's key behind a kept prefix; an entry ends where the next
//! one starts. Numbers and heads are written in seven bits to a byte, so the whole is UTF-8 and is
//! validated once: validating each string again when it is read would cost a tenth of all
//! instructions a span takes. Heads lie side by side, so finding a key touches nothing else.

use super::attribute::{Attribute, Bytes, Value};
use super::key_set::KeyId;
use super::seven_bits::{gather, read_number, spread};

/// The content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    Context,
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
        Self::Context,
        Self::Event,
        Self::Str,
        Self::Bool,
        Self::Int,
        Self::Double,
        Self::Json,
        Self::Bytes,
    ];
}

/// The head of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// The first four bytes, as they lie in memory.
    bits: u32,
    /// Start of the suffix, behind the heads.
    start: u32,
}

pub(super) const HEAD_SIZE: usize = 8;
/// Size of the number of heads, in bytes.
pub(super) const COUNT_SIZE: usize = 4;
/// Longest suffix, in bytes; an attribute with a longer one is not kept.
pub(super) const MAX_SUFFIX: usize = 255;
/// No entry starts behind this.
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
            bits: spread_key(key) | (tag as u32) << 16 | inner | cut | suffix_len,
            start: start.min(MAX_START) as u32,
        }
    }

    #[inline]
    fn read(bytes: &[u8; HEAD_SIZE]) -> Self {
        // One load: taken apart byte by byte, the starts alone would cost ten instructions more.
        let whole = u64::from_le_bytes(*bytes);
        Self {
            bits: whole as u32,
            start: gather((whole >> 32) as u32),
        }
    }

    #[inline]
    pub(super) fn to_bytes(self) -> [u8; HEAD_SIZE] {
        let ([a, b, c, d], [e, f, g, h]) = (self.bits.to_le_bytes(), spread(self.start));
        [a, b, c, d, e, f, g, h]
    }

    #[inline]
    fn key(self) -> KeyId {
        KeyId((self.bits & 0x7f | (self.bits & 0x7f00) >> 1) as u16)
    }

    #[inline]
    fn tag(self) -> Tag {
        Tag::ALL[((self.bits & TAG) >> 16) as usize]
    }

    #[inline]
    fn is_inner(self) -> bool {
        self.bits & INNER != 0
    }

    #[inline]
    fn suffix_len(self) -> usize {
        ((self.bits >> 21 & 1) << 7 | self.bits >> 24) as usize
    }

    #[inline]
    fn start(self) -> usize {
        self.start as usize
    }

    #[inline]
    fn is_cut(self) -> bool {
        self.bits & CUT != 0
    }

    /// Returns true for an attribute outside events.
    #[inline]
    fn is_attribute(self) -> bool {
        // One comparison: the bit of an inner entry lies above those of the tag.
        ((Tag::Str as u32) << 16..INNER).contains(&(self.bits & (TAG | INNER)))
    }
}

/// A key as a head holds it.
#[inline]
fn spread_key(key: KeyId) -> u32 {
    let key = u32::from(key.0.min(KeyId::NONE.0));
    key & 0x7f | (key & 0x3f80) << 1
}

/// The entries of one packed text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries<'a> {
    heads: &'a [[u8; HEAD_SIZE]],
    /// The name, suffixes and payloads.
    text: &'a str,
}

/// One entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedEntry<'a> {
    pub(super) tag: Tag,
    pub(super) key: KeyId,
    /// True if the entry belongs to the event entry before it.
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
            .map_or(0, |count| gather(u32::from_le_bytes(*count)) as usize);
        let (heads, text) = packed
            .split_at_checked(COUNT_SIZE + n_heads * HEAD_SIZE)
            .unwrap_or_default();
        let heads = heads.as_bytes().get(COUNT_SIZE..).unwrap_or_default();
        Self {
            heads: heads.as_chunks().0,
            text,
        }
    }

    /// The text before the first entry.
    #[inline]
    pub(super) fn name(self) -> &'a str {
        self.text.get(..self.start(0)).unwrap_or_default()
    }

    /// The context comes before all other entries: a span's trace state, or the id of the trace
    /// that a log record names.
    pub(super) fn context(self) -> Option<&'a str> {
        self.iter()
            .next()
            .filter(|entry| entry.tag == Tag::Context)
            .map(|entry| entry.payload)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = PackedEntry<'a>> + use<'a> {
        (0..self.heads.len()).map(move |nth| self.entry(nth))
    }

    /// The attributes outside events.
    pub(super) fn attributes(self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        self.iter()
            .filter(|entry| !entry.is_inner)
            .filter_map(move |entry| self.attribute(entry))
    }

    /// The key of each entry that is an attribute outside events, `None` for any other entry.
    #[inline]
    pub(super) fn head_keys(self) -> impl Iterator<Item = Option<KeyId>> + use<'a> {
        self.heads.iter().map(|head| {
            let head = Head::read(head);
            head.is_attribute().then(|| head.key())
        })
    }

    /// The place of the first attribute with this key outside events.
    #[inline]
    pub(super) fn find(self, key: KeyId) -> Option<usize> {
        let wanted = spread_key(key);
        self.heads.iter().position(|head| {
            let head = Head::read(head);
            head.bits & KEY == wanted && head.is_attribute()
        })
    }

    pub(super) fn has_events(self) -> bool {
        let mut heads = self.heads.iter();
        heads.any(|head| Head::read(head).tag() == Tag::Event)
    }

    /// The key of each event, and the entries that belong to it.
    pub(super) fn events(self) -> impl Iterator<Item = (KeyId, Self)> + use<'a> {
        let heads = move |nth: usize| self.heads.get(nth).map(Head::read);
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

    pub(super) fn value(self, entry: PackedEntry<'a>) -> Option<Value<'a>> {
        Some(match entry.tag {
            Tag::Str => Value::Str(entry.payload),
            Tag::Json => Value::Json(entry.payload),
            Tag::Bool => Value::Bool(read_number(entry.payload)? == 1),
            Tag::Int => Value::Int(read_number(entry.payload)? as i64),
            Tag::Double => Value::Double(f64::from_bits(read_number(entry.payload)?)),
            Tag::Bytes => Value::Bytes(Bytes::new(entry.payload)),
            Tag::Context | Tag::Event => return None,
        })
    }

    /// The string at this place.
    #[inline]
    pub(super) fn text(self, nth: usize) -> Option<&'a str> {
        let head = Head::read(self.heads.get(nth)?);
        if head.tag() == Tag::Str {
            self.text
                .get(head.start() + head.suffix_len()..self.start(nth + 1))
        } else {
            None
        }
    }

    /// `None` if the entry is no attribute.
    pub(super) fn attribute(self, entry: PackedEntry<'a>) -> Option<Attribute<'a>> {
        let PackedEntry {
            key, suffix, cut, ..
        } = entry;
        Some(Attribute {
            key,
            suffix,
            value: self.value(entry)?,
            cut,
        })
    }

    /// The entry at this place, which must exist.
    #[inline]
    pub(super) fn entry(self, nth: usize) -> PackedEntry<'a> {
        let head = Head::read(&self.heads[nth]);
        let whole = self
            .text
            .get(head.start()..self.start(nth + 1))
            .unwrap_or_default();
        let (suffix, payload) = whole
            .split_at_checked(head.suffix_len())
            .unwrap_or_default();
        PackedEntry {
            tag: head.tag(),
            key: head.key(),
            is_inner: head.is_inner(),
            suffix,
            payload,
            cut: head.is_cut(),
        }
    }

    /// Start of the n-th entry; behind the last entry, the end of the text.
    #[inline]
    fn start(self, nth: usize) -> usize {
        self.heads
            .get(nth)
            .map_or(self.text.len(), |head| Head::read(head).start())
    }
}
