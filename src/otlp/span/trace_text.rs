//! The stored attributes of one trace. Each large span has a separate text; all other spans share
//! one text.

use std::cmp::Ordering;

use super::entries::{Entries, EntryRange, StoredText};
use super::index::IndexedAttributes;
use super::stored_attributes::StoredAttributes;

/// Initial capacity in bytes. With less, the first spans of each trace would reallocate the text
/// repeatedly; more would be unused in most traces.
const FIRST_BYTES: usize = 384;
const FIRST_ENTRIES: usize = 32;

/// Maximum number of items by which a list grows, unless an eighth of the list is more. Unused
/// capacity counts against the budget; a fixed step would make the total cost of copying quadratic.
const MAX_GROWTH: usize = 32 << 10;

/// Minimum bytes of attributes that get a separate allocation, because copying them whenever the
/// text grows would cost more.
const LARGE: usize = 1 << 10;

/// The stored attributes of one trace.
#[derive(Debug, Clone, Default)]
pub struct TraceText {
    kept: StoredText,
    /// Bytes of `kept` that belong to no span.
    n_dead: usize,
    /// `None` in most traces, which have no large spans.
    large: Option<Box<LargeSpans>>,
}

#[derive(Debug, Clone, Default)]
struct LargeSpans {
    texts: Vec<StoredText>,
    /// Free positions in `texts`.
    free: Vec<u32>,
    size: usize,
}

impl TraceText {
    /// Stores a span's attributes. Returns `None` if the text would exceed 4 GiB.
    pub fn insert(&mut self, kept: &StoredAttributes) -> Option<EntryRange> {
        let added = kept.entries();
        if added.size() >= LARGE {
            return Some(self.insert_large(added));
        }
        let StoredText { entries, text } = &mut self.kept;
        let (n_bytes, n_entries) = (added.own_text().len(), added.entries.len());
        u32::try_from(text.len() + n_bytes).ok()?;
        if text.capacity() - text.len() < n_bytes {
            text.reserve_exact(n_bytes.max(growth(text.len(), FIRST_BYTES)));
        }
        if entries.capacity() - entries.len() < n_entries {
            let more = growth(entries.len(), FIRST_ENTRIES);
            entries.reserve_exact(n_entries.max(more));
        }
        Some(self.kept.append(added))
    }

    fn insert_large(&mut self, added: Entries<'_>) -> EntryRange {
        let large = self.large.get_or_insert_default();
        let text = StoredText::alone(added);
        large.size += text.size();
        match large.free.pop() {
            Some(idx) => {
                large.texts[idx as usize] = text;
                EntryRange::large(idx)
            }
            None => {
                if large.texts.len() == large.texts.capacity() {
                    large.texts.reserve_exact(growth(large.texts.len(), 2));
                }
                large.texts.push(text);
                EntryRange::large(large.texts.len() as u32 - 1)
            }
        }
    }

    /// Removes the attributes at `place`. Returns true if the text has enough unused bytes to
    /// justify [`Self::rewrite`], which visits `n_places` places.
    pub fn remove(&mut self, place: EntryRange, n_places: usize) -> bool {
        match (place.large_idx(), &mut self.large) {
            (Some(idx), Some(large)) => {
                large.size -= std::mem::take(&mut large.texts[idx as usize]).size();
                large.free.push(idx);
            }
            _ => self.n_dead += self.kept.entries(place).size(),
        }
        self.n_dead > self.kept.len() / 2 + n_places * size_of::<EntryRange>()
    }

    /// Copies the attributes at `places` into a new text and updates `places`.
    pub fn rewrite<'p>(&mut self, places: impl Iterator<Item = &'p mut EntryRange>) {
        let old = std::mem::take(&mut self.kept);
        self.n_dead = 0;
        for place in places.filter(|place| place.large_idx().is_none()) {
            *place = self.kept.append(old.entries(*place));
        }
        self.kept.shrink();
    }

    /// Compares `kept` with the attributes at `place`.
    pub fn compare(&self, kept: &StoredAttributes, place: EntryRange) -> Ordering {
        kept.entries().cmp(&self.entries(place))
    }

    /// Returns the attributes at `place`.
    #[inline]
    pub fn read(&self, place: EntryRange) -> IndexedAttributes<'_> {
        IndexedAttributes::new(self.entries(place))
    }

    /// Returns the name of the span with the attributes at `place`.
    pub fn name(&self, place: EntryRange) -> &str {
        self.entries(place).name()
    }

    /// Frees spare capacity, because a judged trace rarely grows, and remains in memory for a long
    /// time.
    pub fn shrink(&mut self) {
        self.kept.shrink();
    }

    /// Returns the bytes on the heap.
    #[inline]
    pub fn size(&self) -> usize {
        let size_of_large = |large: &LargeSpans| {
            size_of::<LargeSpans>()
                + large.texts.capacity() * size_of::<StoredText>()
                + large.free.capacity() * size_of::<u32>()
                + large.size
        };
        self.kept.size() + self.large.as_deref().map_or(0, size_of_large)
    }

    #[inline]
    fn entries(&self, place: EntryRange) -> Entries<'_> {
        match (place.large_idx(), &self.large) {
            (Some(idx), Some(large)) => large.texts[idx as usize].all(),
            _ => self.kept.entries(place),
        }
    }
}

/// Returns the number of items by which a full list of `len` items grows: a third, but at most
/// [`MAX_GROWTH`] or an eighth, whichever is more, and at least seven eighths of `first`, the first
/// capacity. If lists doubled, up to half of the memory of open traces would be unused.
fn growth(len: usize, first: usize) -> usize {
    match len {
        0 => first,
        _ => (len / 3)
            .min(MAX_GROWTH.max(len / 8))
            .max(first - first / 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::StoredAttributesBuilder;

    fn named(name: &str) -> StoredAttributes {
        let mut builder = StoredAttributesBuilder::default();
        builder.name(name);
        builder.finish()
    }

    fn filled(names: &[String]) -> (TraceText, Vec<EntryRange>) {
        let mut text = TraceText::default();
        let kept = names
            .iter()
            .map(|name| text.insert(&named(name)).unwrap())
            .collect();
        (text, kept)
    }

    /// Returns the names of spans, every tenth of which is large.
    fn names() -> Vec<String> {
        let large = "l".repeat(LARGE);
        (0..400)
            .map(
                |n| {
                    if n % 10 == 9 { format!("{large} {n}") } else { format!("span {n}") }
                },
            )
            .collect()
    }

    #[test]
    fn a_text_of_many_megabytes_is_moved_a_few_dozen_times() {
        let mut text = TraceText::default();
        let kept = named(&"n".repeat(900));
        let (mut n_moved, mut size) = (0, 0);
        while text.size() < 100 << 20 {
            text.insert(&kept).unwrap();
            n_moved += usize::from(text.size() != size);
            size = text.size();
        }
        // Entries and text are reallocated separately.
        assert!((40..160).contains(&n_moved), "{n_moved}");
    }

    #[test]
    fn dead_text_is_freed_at_a_cost_in_proportion() {
        let names = names();
        let (mut text, mut kept) = filled(&names);
        let size = text.size();
        // One of many spans is sent repeatedly; each rewrite visits all spans.
        let mut n_rewritten = 0;
        for nth in 0..10_000 {
            let again = text.insert(&named(&format!("span {nth}"))).unwrap();
            let old = std::mem::replace(&mut kept[0], again);
            if text.remove(old, kept.len()) {
                text.rewrite(kept.iter_mut());
                n_rewritten += 1;
            }
        }
        assert!((5..100).contains(&n_rewritten), "{n_rewritten}");
        // Large spans are freed likewise.
        for nth in 0..1_000 {
            let again = text.insert(&named(&format!("{} {nth}", names[9]))).unwrap();
            text.remove(std::mem::replace(&mut kept[9], again), kept.len());
        }
        assert!(text.size() < 2 * size, "{} of {size}", text.size());
        assert!(
            names
                .iter()
                .zip(&kept)
                .skip(10)
                .all(|(name, &kept)| text.name(kept) == *name)
        );
        assert_eq!(text.name(kept[0]), "span 9999");
    }
}
