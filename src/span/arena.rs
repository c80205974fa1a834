//! Pure. The memory that facts lie in: one text for the small facts of many spans, so that none
//! costs an allocation, or is let go of by itself. Knows who holds the text and where in it facts
//! stand; does not know how they are written.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::facts::{Facts, FactsBuilder};

/// A text that is handed out before it is complete, and read after that.
pub(super) type Shared = Arc<OnceLock<String>>;

/// So much text is gathered before it is handed out, in bytes: facts that somebody keeps keep no
/// more than this from being let go.
const PIECE_SIZE: usize = 32 << 10;

/// The first piece of a request begins with so much, which a small request does not use up.
const FIRST_SIZE: usize = 4 << 10;

/// Facts from this size on, in bytes, have memory of their own: to copy them costs more than to
/// allocate.
const LARGE: usize = 1 << 10;

/// The least that the text of a trace grows by, in bytes: the first spans of each would otherwise
/// move it again and again.
const MIN_GROWTH: usize = 512;

/// From here on, in bytes, it grows by an eighth of itself at the most: what is not used yet counts
/// as much as what is. Never by a fixed step, with which moving a text of any size would cost its
/// square.
const LARGE_GROWTH: usize = 256 << 10;

// === Pieces ===

/// Writes the facts of a request's spans into pieces of memory that they share.
#[derive(Debug, Default)]
pub struct Pieces {
    text: String,
    shared: Option<Shared>,
    size: usize,
}

impl Pieces {
    /// What was built. It can be read once [`Self::finish`] was called.
    pub fn add(&mut self, facts: &mut FactsBuilder) -> Facts {
        if facts.size() >= LARGE {
            return facts.finish();
        }
        if self.text.len() + facts.size() > PIECE_SIZE {
            self.finish();
            self.text.reserve_exact(PIECE_SIZE);
        } else if self.text.is_empty() {
            self.text.reserve_exact(FIRST_SIZE);
        }
        let start = self.text.len();
        self.text.push_str(facts.pack());
        let place = Place::try_new(start, self.text.len() - start).unwrap_or_default();
        Facts::shared(Arc::clone(self.shared.get_or_insert_default()), place)
    }

    /// Make readable what was added. How many bytes all pieces take up to now, whether somebody
    /// still refers to them or not.
    pub fn finish(&mut self) -> usize {
        if let Some(shared) = self.shared.take() {
            let mut text = std::mem::take(&mut self.text);
            // Many small requests can wait to be read.
            if text.len() < text.capacity() / 2 {
                text.shrink_to_fit();
            }
            self.size += text.capacity();
            // Nobody else can have set it.
            let _ = shared.set(text);
        }
        self.size
    }
}

// === Arena ===

/// Where facts stand in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    start: u32,
    len: u32,
}

impl Place {
    pub(super) fn try_new(start: usize, len: usize) -> Option<Self> {
        let end = u32::try_from(start.checked_add(len)?).ok()?;
        Some(Self {
            start: start as u32,
            len: end - start as u32,
        })
    }

    pub(super) fn of(self, text: &str) -> &str {
        text.get(self.start as usize..)
            .and_then(|rest| rest.get(..self.len as usize))
            .unwrap_or_default()
    }

    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}

/// The facts of one trace: large ones as they came, the others written one after the other and lent
/// as a whole.
#[derive(Debug, Default)]
pub struct Arena {
    text: String,
    /// Bytes of the text that nobody refers to any more.
    n_dead: usize,
    large: Vec<Facts>,
    /// Places among them that are free again.
    free: Vec<u32>,
    large_size: usize,
    lent: Option<Shared>,
}

/// Where facts are in an [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaPlace {
    /// In the text.
    Here(Place),
    /// Among the large ones.
    Apart(u32),
}

impl Arena {
    /// Keep facts. `None` where 4 GiB are full.
    pub fn insert(&mut self, facts: Facts) -> Option<ArenaPlace> {
        if facts.size() < LARGE {
            return self.insert_text(facts.packed()).map(ArenaPlace::Here);
        }
        self.large_size += facts.size();
        if let Some(at) = self.free.pop()
            && let Some(free) = self.large.get_mut(at as usize)
        {
            *free = facts;
            return Some(ArenaPlace::Apart(at));
        }
        let at = u32::try_from(self.large.len()).ok()?;
        self.large.push(facts);
        Some(ArenaPlace::Apart(at))
    }

    /// What is there is not referred to any more. Is so much of the text such by now that it is
    /// worth making it anew? That costs a look at `n_places` places.
    pub fn remove(&mut self, kept: ArenaPlace, n_places: usize) -> bool {
        match kept {
            ArenaPlace::Here(place) => self.n_dead += place.len(),
            ArenaPlace::Apart(at) => {
                if let Some(facts) = self.large.get_mut(at as usize) {
                    self.large_size -= facts.size();
                    *facts = Facts::default();
                    self.free.push(at);
                }
            }
        }
        self.n_dead > self.text.len() / 2 + n_places * size_of::<ArenaPlace>()
    }

    /// The same facts in a new text, each at the place that takes that of its old one.
    pub fn rewrite<'k>(&mut self, kept: impl Iterator<Item = &'k mut ArenaPlace>) {
        let n_live = self.text.len() - self.n_dead;
        let old = std::mem::replace(&mut self.text, String::with_capacity(n_live));
        self.n_dead = 0;
        for kept in kept {
            if let ArenaPlace::Here(place) = kept {
                // The new text is no longer than the old one.
                *place = self.insert_text(place.of(&old)).unwrap_or_default();
            }
        }
    }

    /// How other facts compare with those that are there.
    pub fn compare(&self, facts: &Facts, kept: ArenaPlace) -> Ordering {
        match kept {
            ArenaPlace::Here(place) => facts.packed().cmp(place.of(&self.text)),
            ArenaPlace::Apart(at) => facts
                .packed()
                .cmp(self.large.get(at as usize).map_or("", Facts::packed)),
        }
    }

    /// Lend the facts: until they are taken back, the text is not here.
    pub fn lend(&mut self) -> Lent {
        let text = Shared::new(std::mem::take(&mut self.text).into());
        self.lent = Some(Arc::clone(&text));
        Lent(text)
    }

    /// A copy of the text, which need not be given back.
    pub fn copy(&self) -> Lent {
        Lent(Shared::new(self.text.clone().into()))
    }

    /// The facts at a place, with what was lent.
    pub fn facts(&self, lent: &Lent, kept: ArenaPlace) -> Facts {
        match kept {
            ArenaPlace::Here(place) => Facts::shared(Arc::clone(&lent.0), place),
            ArenaPlace::Apart(at) => self.large.get(at as usize).cloned().unwrap_or_default(),
        }
    }

    /// Take back what was lent, and is not held by anybody else any more (else a copy).
    pub fn take_back(&mut self) {
        if let Some(lent) = self.lent.take() {
            let text = Arc::try_unwrap(lent).unwrap_or_else(|lent| OnceLock::clone(&lent));
            self.text = text.into_inner().unwrap_or_default();
            // It hardly grows any more, and is remembered for long.
            if self.text.len() + self.text.len() / 8 < self.text.capacity() {
                self.text.shrink_to_fit();
            }
        }
    }

    /// Bytes on the heap.
    #[inline]
    pub fn size(&self) -> usize {
        let places_size =
            self.large.capacity() * size_of::<Facts>() + self.free.capacity() * size_of::<u32>();
        self.text.capacity() + self.large_size + places_size
    }

    fn insert_text(&mut self, text: &str) -> Option<Place> {
        let place = Place::try_new(self.text.len(), text.len())?;
        let room = self.text.capacity() - self.text.len();
        if room < text.len() {
            // By a half, not by doubling: with many open traces the slack would be most of what
            // they hold.
            let size = self.text.len();
            self.text.reserve_exact(
                text.len()
                    .max((size / 2).clamp(MIN_GROWTH, LARGE_GROWTH.max(size / 8))),
            );
        }
        self.text.push_str(text);
        Some(place)
    }
}

/// The text of an arena.
#[derive(Debug)]
pub struct Lent(Shared);

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> FactsBuilder {
        let mut facts = FactsBuilder::default();
        facts.name(name);
        facts
    }

    #[test]
    fn facts_of_any_number_of_pieces_are_read_once_they_are_finished() {
        let names: Vec<String> = (0..5_000)
            .map(|n| format!("a span with the number {n}"))
            .collect();
        let mut pieces = Pieces::default();
        let facts: Vec<Facts> = names
            .iter()
            .map(|name| pieces.add(&mut named(name)))
            .collect();
        let size = pieces.finish();
        assert!(facts.iter().map(Facts::name).eq(&names));
        assert!(
            size >= facts.iter().map(Facts::size).sum() && size > 4 * PIECE_SIZE,
            "{size}"
        );
        assert_eq!(pieces.add(&mut FactsBuilder::default()), Facts::default());
    }

    fn filled(names: &[String]) -> (Arena, Vec<ArenaPlace>) {
        let mut arena = Arena::default();
        let kept = names
            .iter()
            .map(|name| arena.insert(named(name).finish()).unwrap())
            .collect();
        (arena, kept)
    }

    /// Every tenth is large.
    fn names() -> Vec<String> {
        let large = "l".repeat(LARGE);
        (0..400)
            .map(|n| {
                if n % 10 == 9 {
                    format!("{large} {n}")
                } else {
                    format!("span {n}")
                }
            })
            .collect()
    }

    #[test]
    fn what_was_lent_comes_back() {
        let names = names();
        let (mut arena, kept) = filled(&names);
        let lent = arena.lend();
        let held = arena.facts(&lent, kept[8]);
        assert!(
            names
                .iter()
                .zip(&kept)
                .all(|(name, &kept)| arena.facts(&lent, kept).name() == *name)
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
                .all(|(name, &kept)| arena.facts(&arena.copy(), kept).name() == *name)
        );
    }

    #[test]
    fn a_text_of_many_megabytes_is_moved_a_few_dozen_times() {
        let mut arena = Arena::default();
        let facts = named(&"n".repeat(900)).finish();
        let (mut n_moved, mut size) = (0, 0);
        while arena.size() < 100 << 20 {
            arena.insert(facts.clone()).unwrap();
            n_moved += usize::from(arena.size() != size);
            size = arena.size();
        }
        assert!((20..80).contains(&n_moved), "{n_moved}");
    }

    #[test]
    fn what_is_dead_goes_for_no_more_than_it_frees() {
        let names = names();
        let (mut arena, mut kept) = filled(&names);
        let size = arena.size();
        // One span is sent over and over, among many that stay: each rewriting looks at all of
        // them.
        let mut n_rewritten = 0;
        for nth in 0..10_000 {
            let again = arena
                .insert(named(&format!("span {nth}")).finish())
                .unwrap();
            let old = std::mem::replace(&mut kept[0], again);
            if arena.remove(old, kept.len()) {
                arena.rewrite(kept.iter_mut());
                n_rewritten += 1;
            }
        }
        assert!((5..100).contains(&n_rewritten), "{n_rewritten}");
        // And a large one.
        for nth in 0..1_000 {
            let again = arena
                .insert(named(&format!("{} {nth}", names[9])).finish())
                .unwrap();
            arena.remove(std::mem::replace(&mut kept[9], again), kept.len());
        }
        assert!(arena.size() < 2 * size, "{} of {size}", arena.size());
        assert!(arena.facts(&arena.copy(), kept[9]).name().ends_with(" 999"));
        assert!(
            names
                .iter()
                .zip(&kept)
                .skip(10)
                .all(|(name, &kept)| arena.facts(&arena.copy(), kept).name() == *name)
        );
        assert_eq!(arena.facts(&arena.copy(), kept[0]).name(), "span 9999");
    }
}
