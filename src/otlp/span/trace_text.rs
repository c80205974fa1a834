//! The kept attributes of one trace: the small ones of all spans in one text, so that no span costs
//! an allocation of its own.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::entries::{Entries, EntryRange, KeptEntry, KeptText, SharedText};
use super::kept_attributes::KeptAttributes;

/// Capacity at first: the first spans of each trace would otherwise move the text again and again,
/// and more would be unused in most traces.
const FIRST_BYTES: usize = 384;
const FIRST_ENTRIES: usize = 32;

/// From this size on, in bytes, a span's attributes have memory of their own: moving them whenever
/// the text grows would cost more than an allocation.
const LARGE: usize = 1 << 10;

/// A text larger than this, in bytes, grows by at most an eighth: unused capacity counts against
/// the budget like used one. It never grows by a fixed step: moving the text would then cost the
/// square of its size.
const LARGE_GROWTH: usize = 256 << 10;

/// The kept attributes of one trace. Their text is lent as a whole while the trace is judged.
#[derive(Debug, Default)]
pub struct TraceText {
    kept: KeptText,
    /// Bytes that are no longer referred to.
    n_dead: usize,
    /// `None` in most traces.
    large: Option<Box<LargeSpans>>,
    lent: Option<SharedText>,
}

/// Attributes of spans that have memory of their own.
#[derive(Debug, Default)]
struct LargeSpans {
    kept: Vec<KeptAttributes>,
    /// Free positions in `kept`.
    free: Vec<u32>,
    /// Bytes of all attributes.
    size: usize,
}

/// The place of a span's attributes in a [`TraceText`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptPlace {
    /// In the text.
    Text(EntryRange),
    /// A position among the large ones.
    Large(u32),
}

impl TraceText {
    /// Keeps a span's attributes. `None` once the text has 4 GiB.
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

    /// Removes the attributes at a place. Returns whether rewriting the text is now worth its cost,
    /// a look at each of `n_places` places.
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

    /// Copies all that `places` refer to into a new text and updates the places.
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

    /// Compares attributes with those at a place.
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

    /// Lends the text, which is empty until [`Self::take_back`].
    pub fn lend(&mut self) -> LentText {
        let text = SharedText::new(std::mem::take(&mut self.kept).into());
        self.lent = Some(Arc::clone(&text));
        LentText(text)
    }

    /// A copy of the text, which need not be given back.
    pub fn copy(&self) -> LentText {
        LentText(SharedText::new(self.kept.clone().into()))
    }

    /// The attributes at a place, in a lent or copied text.
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

    /// Takes the lent text back, or a copy of it if it is still referred to.
    pub fn take_back(&mut self) {
        if let Some(lent) = self.lent.take() {
            let text = Arc::try_unwrap(lent).unwrap_or_else(|lent| OnceLock::clone(&lent));
            self.kept = text.into_inner().unwrap_or_default();
            // A judged trace hardly grows, and is remembered for long.
            let KeptText { entries, text } = &mut self.kept;
            if text.len() + text.len() / 8 < text.capacity() {
                text.shrink_to_fit();
            }
            if entries.len() + entries.len() / 8 < entries.capacity() {
                entries.shrink_to_fit();
            }
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

/// The number of items, each of `size` bytes, by which a full list grows: a half, not double. With
/// many open traces, unused capacity would be most of the memory.
fn growth(len: usize, first: usize, size: usize) -> usize {
    match len {
        0 => first,
        _ => (len / 2).clamp(first / 2, (LARGE_GROWTH / size).max(len / 8)),
    }
}

/// The text of a [`TraceText`].
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
        // Entries and text move each on their own.
        assert!((40..160).contains(&n_moved), "{n_moved}");
    }

    #[test]
    fn dead_text_is_freed_at_a_cost_in_proportion() {
        let names = names();
        let (mut text, mut kept) = filled(&names);
        let size = text.size();
        // One span is sent over and over among many others: each rewrite looks at all of them.
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
        // Also a large one.
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
