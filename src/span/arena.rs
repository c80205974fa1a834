//! Pure. The memory that facts lie in: one text for the facts of many spans, so that a span costs no allocation of its own, and is let go of
//! without one. Knows who holds the text and where in it facts stand; does not know how they are written.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::facts::{Facts, FactsBuilder};

/// A text that is handed out before it is complete, and read after that.
pub(super) type Shared = Arc<OnceLock<String>>;

/// So much text is gathered before it is handed out, in bytes: facts that somebody keeps keep no more than this from being let go.
const PIECE_SIZE: usize = 32 << 10;

/// Facts from this size on, in bytes, have memory of their own: to copy them costs more than to allocate.
const LARGE: usize = 1 << 10;

// === Pieces ===

/// Writes the facts of a request's spans into pieces of memory that they share.
#[derive(Debug, Default)]
pub struct Pieces {
    text: String,
    shared: Shared,
}

impl Pieces {
    /// With room for facts of so many bytes.
    pub fn with_capacity(size: usize) -> Self {
        Self { text: String::with_capacity(size.min(PIECE_SIZE)), shared: Shared::default() }
    }

    /// What was built. It can be read once [`Self::finish`] was called.
    pub fn add(&mut self, facts: &mut FactsBuilder) -> Facts {
        if facts.size() >= LARGE {
            return facts.finish();
        }
        if self.text.len() + facts.size() > PIECE_SIZE {
            self.finish();
            self.text.reserve_exact(PIECE_SIZE);
        }
        let start = self.text.len();
        self.text.push_str(facts.pack());
        let place = Place::try_new(start, self.text.len() - start).unwrap_or_default();
        Facts::shared(Arc::clone(&self.shared), place)
    }

    /// Make readable what was added.
    pub fn finish(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        // Many small requests can wait to be read.
        if text.len() < text.capacity() / 2 {
            text.shrink_to_fit();
        }
        // Nobody else can have set it.
        let _ = std::mem::take(&mut self.shared).set(text);
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
        Some(Self { start: start as u32, len: end - start as u32 })
    }

    pub(super) fn of(self, text: &str) -> &str {
        text.get(self.start as usize..).and_then(|rest| rest.get(..self.len as usize)).unwrap_or_default()
    }

    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}

/// The facts of one trace: large ones as they came, the others written one after the other and lent as a whole.
#[derive(Debug, Default)]
pub struct Arena {
    text: String,
    /// Bytes of the text that nobody refers to any more.
    n_dead: usize,
    large: Vec<Facts>,
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
        let at = u32::try_from(self.large.len()).ok()?;
        self.large_size += size_of::<Facts>() + facts.size();
        self.large.push(facts);
        Some(ArenaPlace::Apart(at))
    }

    /// What is there is not referred to any more. Is most of the text such by now? Then it is worth making it anew.
    pub fn remove(&mut self, kept: ArenaPlace) -> bool {
        match kept {
            ArenaPlace::Here(place) => self.n_dead += place.len(),
            ArenaPlace::Apart(at) => {
                if let Some(facts) = self.large.get_mut(at as usize) {
                    self.large_size -= facts.size();
                    *facts = Facts::default();
                }
            }
        }
        self.n_dead > self.text.len() / 2
    }

    /// The same facts in a new text, each at the place that takes that of its old one.
    pub fn rewrite<'k>(&mut self, kept: impl Iterator<Item = &'k mut ArenaPlace>) {
        let old = std::mem::take(&mut self.text);
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
            ArenaPlace::Apart(at) => facts.packed().cmp(self.large.get(at as usize).map_or("", Facts::packed)),
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
        }
    }

    /// Bytes on the heap.
    #[inline]
    pub fn size(&self) -> usize {
        self.text.capacity() + self.large_size
    }

    fn insert_text(&mut self, text: &str) -> Option<Place> {
        let place = Place::try_new(self.text.len(), text.len())?;
        let room = self.text.capacity() - self.text.len();
        if room < text.len() {
            // By a half, not by doubling: with many open traces the slack would be most of what they hold.
            self.text.reserve_exact(text.len().max(self.text.len() / 2));
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
        let names: Vec<String> = (0..5_000).map(|n| format!("a span with the number {n}")).collect();
        let mut pieces = Pieces::default();
        let facts: Vec<Facts> = names.iter().map(|name| pieces.add(&mut named(name))).collect();
        pieces.finish();
        assert!(facts.iter().map(Facts::name).eq(&names));
        assert_eq!(pieces.add(&mut FactsBuilder::default()), Facts::default());
    }

    #[test]
    fn what_was_lent_comes_back_and_what_is_dead_goes() {
        let large = "l".repeat(LARGE);
        let name = |n: usize| if n % 10 == 9 { format!("{large} {n}") } else { format!("span {n}") };
        let mut arena = Arena::default();
        let mut kept: Vec<ArenaPlace> = (0..100).map(|n| arena.insert(named(&name(n)).finish()).unwrap()).collect();
        let size = arena.size();
        let lent = arena.lend();
        let held = arena.facts(&lent, kept[8]);
        assert!(kept.iter().enumerate().all(|(n, &kept)| arena.facts(&lent, kept).name() == name(n)));
        drop(lent);
        arena.take_back();
        assert_eq!(held.name(), "span 8");
        assert_eq!(arena.compare(&held, kept[8]), Ordering::Equal);
        let n_removed = kept.drain(..90).take_while(|&kept| !arena.remove(kept)).count();
        assert!((40..70).contains(&n_removed), "{n_removed}");
        arena.rewrite(kept.iter_mut());
        assert!(arena.size() < size / 2, "{} of {size}", arena.size());
        assert!((90..).zip(kept).all(|(n, kept)| arena.facts(&arena.copy(), kept).name() == name(n)));
    }
}
