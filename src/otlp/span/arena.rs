//! The memory that kept attributes lie in: the small ones of a request, or of a trace, share one
//! text, so that no span costs an allocation or a release of its own.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::builder::KeptAttributesBuilder;
use super::kept_attributes::KeptAttributes;
use super::shared_text::{SharedText, TextRange};

/// Size of a chunk of a request's text, in bytes: one span that is kept longer than the others
/// keeps no more than this from being freed.
const CHUNK_SIZE: usize = 32 << 10;

/// Capacity of a request's first chunk, in bytes: a small request does not fill a whole one.
const FIRST_CHUNK_SIZE: usize = 4 << 10;

/// From this size on, in bytes, a span's attributes have memory of their own: copying them would
/// cost more than an allocation.
const LARGE: usize = 1 << 10;

/// Capacity of a trace's text at first, in bytes: the first spans of each trace would otherwise
/// move it again and again, and more would be unused in most traces.
const FIRST_CAPACITY: usize = 512;

/// It then grows by at least this many bytes.
const MIN_GROWTH: usize = 256;

/// A text of a trace larger than this, in bytes, grows by at most an eighth: unused capacity counts
/// against the budget like used one. It never grows by a fixed step: moving the text would then
/// cost the square of its size.
const LARGE_GROWTH: usize = 256 << 10;

// === RequestArena ===

/// Writes the kept attributes of a request's spans into chunks of memory that they share.
#[derive(Debug, Default)]
pub struct RequestArena {
    text: String,
    shared: Option<SharedText>,
    size: usize,
}

impl RequestArena {
    /// Finishes a span's attributes. They can be read after the next call of [`Self::finish`].
    pub(crate) fn add(&mut self, builder: &mut KeptAttributesBuilder) -> KeptAttributes {
        if builder.size() >= LARGE {
            return builder.finish();
        }
        if self.text.len() + builder.size() > CHUNK_SIZE {
            self.finish();
            self.text.reserve_exact(CHUNK_SIZE);
        } else if self.text.is_empty() {
            self.text.reserve_exact(FIRST_CHUNK_SIZE);
        }
        let start = self.text.len();
        self.text.push_str(builder.pack());
        let place = TextRange::try_new(start, self.text.len() - start).unwrap_or_default();
        KeptAttributes::shared(Arc::clone(self.shared.get_or_insert_default()), place)
    }

    /// Makes all added attributes readable. Returns the size of all chunks so far in bytes, whether
    /// they are still referred to or not.
    pub(crate) fn finish(&mut self) -> usize {
        if let Some(shared) = self.shared.take() {
            let mut text = std::mem::take(&mut self.text);
            // Many small requests can wait in the scoring queue.
            if text.len() < text.capacity() / 2 {
                text.shrink_to_fit();
            }
            self.size += text.capacity();
            // Only this arena sets it, and only here.
            let _ = shared.set(text);
        }
        self.size
    }
}

// === TraceArena ===

/// The kept attributes of one trace: large ones as they came, the small ones in one text, which is
/// lent as a whole while the trace is judged.
#[derive(Debug, Default)]
pub struct TraceArena {
    text: String,
    /// Bytes of the text that are no longer referred to.
    n_dead: usize,
    large: Vec<KeptAttributes>,
    /// Free positions in `large`.
    free: Vec<u32>,
    large_size: usize,
    lent: Option<SharedText>,
}

/// The range of a span's attributes in a [`TraceArena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaPlace {
    /// In the text.
    Text(TextRange),
    /// A position among the large ones.
    Large(u32),
}

impl TraceArena {
    /// Keeps a span's attributes. `None` once the text has 4 GiB.
    pub fn insert(&mut self, kept: &KeptAttributes) -> Option<ArenaPlace> {
        if kept.size() < LARGE {
            return self.insert_text(kept.packed()).map(ArenaPlace::Text);
        }
        self.large_size += kept.size();
        if let Some(at) = self.free.pop()
            && let Some(free) = self.large.get_mut(at as usize)
        {
            *free = kept.clone();
            return Some(ArenaPlace::Large(at));
        }
        let at = u32::try_from(self.large.len()).ok()?;
        self.large.push(kept.clone());
        Some(ArenaPlace::Large(at))
    }

    /// Removes the attributes at a place. Returns whether rewriting the text is now worth its
    /// cost, a look at each of `n_places` places.
    pub fn remove(&mut self, place: ArenaPlace, n_places: usize) -> bool {
        match place {
            ArenaPlace::Text(place) => self.n_dead += place.len(),
            ArenaPlace::Large(at) => {
                if let Some(kept) = self.large.get_mut(at as usize) {
                    self.large_size -= kept.size();
                    *kept = KeptAttributes::default();
                    self.free.push(at);
                }
            }
        }
        self.n_dead > self.text.len() / 2 + n_places * size_of::<ArenaPlace>()
    }

    /// Copies all that `places` refer to into a new text and updates the places.
    pub fn rewrite<'p>(&mut self, places: impl Iterator<Item = &'p mut ArenaPlace>) {
        let n_live = self.text.len() - self.n_dead;
        let old = std::mem::replace(&mut self.text, String::with_capacity(n_live));
        self.n_dead = 0;
        for place in places {
            if let ArenaPlace::Text(place) = place {
                // Always fits: the new text is no longer than the old one.
                *place = self.insert_text(place.slice(&old)).unwrap_or_default();
            }
        }
    }

    /// Compares a span's attributes with those at a place.
    pub fn compare(&self, kept: &KeptAttributes, place: ArenaPlace) -> Ordering {
        let other = match place {
            ArenaPlace::Text(place) => place.slice(&self.text),
            ArenaPlace::Large(at) => self
                .large
                .get(at as usize)
                .map_or("", KeptAttributes::packed),
        };
        kept.packed().cmp(other)
    }

    /// Lends the text. The arena is empty until [`Self::take_back`].
    pub fn lend(&mut self) -> LentText {
        let text = SharedText::new(std::mem::take(&mut self.text).into());
        self.lent = Some(Arc::clone(&text));
        LentText(text)
    }

    /// A copy of the text, which need not be given back.
    pub fn copy(&self) -> LentText {
        LentText(SharedText::new(self.text.clone().into()))
    }

    /// The attributes at a place, in a lent or copied text.
    pub fn read(&self, lent: &LentText, place: ArenaPlace) -> KeptAttributes {
        match place {
            ArenaPlace::Text(place) => KeptAttributes::shared(Arc::clone(&lent.0), place),
            ArenaPlace::Large(at) => self.large.get(at as usize).cloned().unwrap_or_default(),
        }
    }

    /// Takes the lent text back, or a copy of it if it is still referred to.
    pub fn take_back(&mut self) {
        if let Some(lent) = self.lent.take() {
            let text = Arc::try_unwrap(lent).unwrap_or_else(|lent| OnceLock::clone(&lent));
            self.text = text.into_inner().unwrap_or_default();
            // A judged trace hardly grows, and is remembered for long.
            if self.text.len() + self.text.len() / 8 < self.text.capacity() {
                self.text.shrink_to_fit();
            }
        }
    }

    /// Bytes on the heap.
    #[inline]
    pub fn size(&self) -> usize {
        let places_size = self.large.capacity() * size_of::<KeptAttributes>()
            + self.free.capacity() * size_of::<u32>();
        self.text.capacity() + self.large_size + places_size
    }

    fn insert_text(&mut self, text: &str) -> Option<TextRange> {
        let place = TextRange::try_new(self.text.len(), text.len())?;
        let room = self.text.capacity() - self.text.len();
        if room < text.len() {
            // By a half, not by doubling: with many open traces, unused capacity would be most of
            // the memory.
            let size = self.text.len();
            let growth = match size {
                0 => FIRST_CAPACITY,
                _ => (size / 2).clamp(MIN_GROWTH, LARGE_GROWTH.max(size / 8)),
            };
            self.text.reserve_exact(text.len().max(growth));
        }
        self.text.push_str(text);
        Some(place)
    }
}

/// The text of a [`TraceArena`].
#[derive(Debug)]
pub struct LentText(SharedText);

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> KeptAttributesBuilder {
        let mut builder = KeptAttributesBuilder::default();
        builder.name(name);
        builder
    }

    #[test]
    fn attributes_are_readable_once_their_chunk_is_finished() {
        let names: Vec<String> = (0..5_000)
            .map(|n| format!("a span with the number {n}"))
            .collect();
        let mut arena = RequestArena::default();
        let kept: Vec<KeptAttributes> = names
            .iter()
            .map(|name| arena.add(&mut named(name)))
            .collect();
        let size = arena.finish();
        assert!(kept.iter().map(KeptAttributes::name).eq(&names));
        assert!(
            size >= kept.iter().map(KeptAttributes::size).sum() && size > 4 * CHUNK_SIZE,
            "{size}"
        );
        assert_eq!(
            arena.add(&mut KeptAttributesBuilder::default()),
            KeptAttributes::default()
        );
    }

    fn filled(names: &[String]) -> (TraceArena, Vec<ArenaPlace>) {
        let mut arena = TraceArena::default();
        let kept = names
            .iter()
            .map(|name| arena.insert(&named(name).finish()).unwrap())
            .collect();
        (arena, kept)
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
        let (mut arena, kept) = filled(&names);
        let lent = arena.lend();
        let held = arena.read(&lent, kept[8]);
        assert!(
            names
                .iter()
                .zip(&kept)
                .all(|(name, &kept)| arena.read(&lent, kept).name() == *name)
        );
        drop(lent);
        arena.take_back();
        assert_eq!(
            (held.name(), arena.compare(&held, kept[8])),
            ("span 8", Ordering::Equal)
        );
        assert!(
            names
                .iter()
                .zip(&kept)
                .all(|(name, &kept)| arena.read(&arena.copy(), kept).name() == *name)
        );
    }

    #[test]
    fn a_text_of_many_megabytes_is_moved_a_few_dozen_times() {
        let mut arena = TraceArena::default();
        let kept = named(&"n".repeat(900)).finish();
        let (mut n_moved, mut size) = (0, 0);
        while arena.size() < 100 << 20 {
            arena.insert(&kept).unwrap();
            n_moved += usize::from(arena.size() != size);
            size = arena.size();
        }
        assert!((20..80).contains(&n_moved), "{n_moved}");
    }

    #[test]
    fn dead_text_is_freed_at_a_cost_in_proportion() {
        let names = names();
        let (mut arena, mut kept) = filled(&names);
        let size = arena.size();
        // One span is sent over and over among many others: each rewrite looks at all of them.
        let mut n_rewritten = 0;
        for nth in 0..10_000 {
            let again = arena
                .insert(&named(&format!("span {nth}")).finish())
                .unwrap();
            let old = std::mem::replace(&mut kept[0], again);
            if arena.remove(old, kept.len()) {
                arena.rewrite(kept.iter_mut());
                n_rewritten += 1;
            }
        }
        assert!((5..100).contains(&n_rewritten), "{n_rewritten}");
        // Also a large one.
        for nth in 0..1_000 {
            let again = arena
                .insert(&named(&format!("{} {nth}", names[9])).finish())
                .unwrap();
            arena.remove(std::mem::replace(&mut kept[9], again), kept.len());
        }
        assert!(arena.size() < 2 * size, "{} of {size}", arena.size());
        assert!(arena.read(&arena.copy(), kept[9]).name().ends_with(" 999"));
        assert!(
            names
                .iter()
                .zip(&kept)
                .skip(10)
                .all(|(name, &kept)| arena.read(&arena.copy(), kept).name() == *name)
        );
        assert_eq!(arena.read(&arena.copy(), kept[0]).name(), "span 9999");
    }
}
