//! The kept attributes of one trace. Small spans share one text, so that they need no allocations
//! of their own.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::entries::{Entries, EntryRange, KeptEntry, KeptText, SharedText};
use super::kept_attributes::KeptAttributes;

/// Initial capacity. With less, the first spans of each trace would reallocate the text repeatedly;
/// more would be unused in most traces.
const FIRST_BYTES: usize = 384;
const FIRST_ENTRIES: usize = 32;

/// Minimum bytes of attributes that get an allocation of their own: copying them whenever the text
/// grows would cost more.
const LARGE: usize = 1 << 10;

/// Maximum bytes by which a text grows, or an eighth of the text if that is more: unused capacity
/// counts against the budget. A fixed step would make the total cost of copying quadratic.
const LARGE_GROWTH: usize = 256 << 10;

/// The kept attributes of one trace. [`Self::lend`] lends the whole text while the trace is judged.
#[derive(Debug, Default)]
pub struct TraceText {
    kept: KeptText,
    /// Bytes of `kept` that belong to no span.
    n_dead: usize,
    /// `None` in most traces, which have no large spans.
    large: Option<Box<LargeSpans>>,
    lent: Option<SharedText>,
}

/// Attributes of large spans, each with an allocation of its own.
#[derive(Debug, Default)]
struct LargeSpans {
    kept: Vec<KeptAttributes>,
    /// Free positions in `kept`.
    free: Vec<u32>,
    /// Bytes of all attributes.
    size: usize,
}

/// The location of a span's attributes in a [`TraceText`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptPlace {
    /// A range of the shared text.
    Text(EntryRange),
    /// A position in `LargeSpans::kept`.
    Large(u32),
}

impl TraceText {
    /// Stores a span's attributes. Returns `None` if the text would exceed 4 GiB.
    pub fn insert(&mut self, kept: &KeptAttributes) -> Option<KeptPlace> {
        if kept.size() < LARGE {
            return self.insert_text(kept.entries()).map(KeptPlace::Text);
        }
        let large = self.large.get_or_insert_default();
        let alone = kept.alone();
        large.size += alone.size();
        let at = match large.free.pop() {
            Some(at) => at,
            None => {
                large.kept.push(KeptAttributes::default());
                u32::try_from(large.kept.len() - 1).ok()?
            }
        };
        large.kept[at as usize] = alone;
        Some(KeptPlace::Large(at))
    }

    /// Removes the attributes at `place`. Returns true if the text has enough unused bytes to
    /// justify [`Self::rewrite`], which visits `n_places` places.
    pub fn remove(&mut self, place: KeptPlace, n_places: usize) -> bool {
        match place {
            KeptPlace::Text(range) => self.n_dead += self.kept.entries(range).size(),
            KeptPlace::Large(at) => {
                if let Some(large) = &mut self.large {
                    large.size -= std::mem::take(&mut large.kept[at as usize]).size();
                    large.free.push(at);
                }
            }
        }
        self.n_dead > self.kept.len() / 2 + n_places * size_of::<KeptPlace>()
    }

    /// Copies the attributes at `places` into a new text and updates `places`.
    pub fn rewrite<'p>(&mut self, places: impl Iterator<Item = &'p mut KeptPlace>) {
        let old = std::mem::take(&mut self.kept);
        self.n_dead = 0;
        for place in places {
            if let KeptPlace::Text(range) = place {
                // Always fits: the new text is no longer than the old one.
                *range = self.insert_text(old.entries(*range)).unwrap_or_default();
            }
        }
    }

    /// Compares `kept` with the attributes at `place`.
    pub fn compare(&self, kept: &KeptAttributes, place: KeptPlace) -> Ordering {
        let other = match place {
            KeptPlace::Text(range) => self.kept.entries(range),
            KeptPlace::Large(at) => {
                let large = self.large.as_ref();
                large.map_or_else(Entries::default, |large| large.kept[at as usize].entries())
            }
        };
        kept.entries().cmp(&other)
    }

    /// Lends the text. `self` has no text until [`Self::take_back`].
    pub fn lend(&mut self) -> LentText {
        let text = SharedText::new(std::mem::take(&mut self.kept).into());
        self.lent = Some(Arc::clone(&text));
        LentText(text)
    }

    /// Copies the text. A copy needs no [`Self::take_back`].
    pub fn copy(&self) -> LentText {
        LentText(SharedText::new(self.kept.clone().into()))
    }

    /// Returns the attributes at `place` from a lent or copied text.
    pub fn read(&self, lent: &LentText, place: KeptPlace) -> KeptAttributes {
        match place {
            KeptPlace::Text(range) => KeptAttributes::new(Arc::clone(&lent.0), range),
            KeptPlace::Large(at) => {
                let large = self.large.as_ref();
                large.map_or_else(KeptAttributes::default, |large| {
                    large.kept[at as usize].clone()
                })
            }
        }
    }

    /// Takes the lent text back. Copies the text if it is still in use.
    pub fn take_back(&mut self) {
        if let Some(lent) = self.lent.take() {
            let text = Arc::try_unwrap(lent).unwrap_or_else(|lent| OnceLock::clone(&lent));
            self.kept = text.into_inner().unwrap_or_default();
            // A judged trace rarely grows, and stays in memory for long.
            self.kept.shrink();
        }
    }

    /// Bytes on the heap.
    #[inline]
    pub fn size(&self) -> usize {
        let size_of_large = |large: &LargeSpans| {
            size_of::<LargeSpans>()
                + large.kept.capacity() * size_of::<KeptAttributes>()
                + large.free.capacity() * size_of::<u32>()
                + large.size
        };
        self.kept.size() + self.large.as_deref().map_or(0, size_of_large)
    }

    fn insert_text(&mut self, added: Entries<'_>) -> Option<EntryRange> {
        let KeptText { entries, text } = &mut self.kept;
        let (n_bytes, n_entries) = (added.own_text().len(), added.entries.len());
        u32::try_from(text.len() + n_bytes).ok()?;
        if text.capacity() - text.len() < n_bytes {
            text.reserve_exact(n_bytes.max(growth(text.len(), FIRST_BYTES, 1)));
        }
        if entries.capacity() - entries.len() < n_entries {
            let more = growth(entries.len(), FIRST_ENTRIES, KeptEntry::SIZE);
            entries.reserve_exact(n_entries.max(more));
        }
        Some(self.kept.append(added))
    }
}

/// Returns the number of items, each of `size` bytes, by which a full list of `len` items grows: at
/// most a half. If lists doubled, unused capacity of open traces would be most of the memory.
fn growth(len: usize, first: usize, size: usize) -> usize {
    match len {
        0 => first,
        _ => (len / 2).clamp(first / 2, (LARGE_GROWTH / size).max(len / 8)),
    }
}

/// The lent or copied text of a [`TraceText`].
#[derive(Debug)]
pub struct LentText(SharedText);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::KeptAttributesBuilder;

    fn named(name: &str) -> KeptAttributes {
        let mut builder = KeptAttributesBuilder::default();
        builder.name(name);
        builder.finish()
    }

    fn filled(names: &[String]) -> (TraceText, Vec<KeptPlace>) {
        let mut text = TraceText::default();
        let kept = names
            .iter()
            .map(|name| text.insert(&named(name)).unwrap())
            .collect();
        (text, kept)
    }

    /// Every tenth span is large.
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
    fn a_lent_text_comes_back() {
        let names = names();
        let (mut text, kept) = filled(&names);
        let lent = text.lend();
        let held = text.read(&lent, kept[8]);
        assert!(
            names
                .iter()
                .zip(&kept)
                .all(|(name, &kept)| text.read(&lent, kept).name() == *name)
        );
        drop(lent);
        text.take_back();
        assert_eq!(
            (held.name(), text.compare(&held, kept[8])),
            ("span 8", Ordering::Equal)
        );
        assert!(
            names
                .iter()
                .zip(&kept)
                .all(|(name, &kept)| text.read(&text.copy(), kept).name() == *name)
        );
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
        // One of many spans is sent again and again; each rewrite visits all spans.
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
        // The same for a large span.
        for nth in 0..1_000 {
            let again = text.insert(&named(&format!("{} {nth}", names[9]))).unwrap();
            text.remove(std::mem::replace(&mut kept[9], again), kept.len());
        }
        assert!(text.size() < 2 * size, "{} of {size}", text.size());
        assert!(text.read(&text.copy(), kept[9]).name().ends_with(" 999"));
        assert!(
            names
                .iter()
                .zip(&kept)
                .skip(10)
                .all(|(name, &kept)| text.read(&text.copy(), kept).name() == *name)
        );
        assert_eq!(text.read(&text.copy(), kept[0]).name(), "span 9999");
    }
}
