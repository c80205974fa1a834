//! Sets of built-in keys as bits, so that testing for an absent key costs almost nothing.

use otlp::span::{IndexedAttributes, KeyId};

const N_WORDS: usize = IndexedAttributes::N_WORDS;

/// A set of built-in keys, one bit each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KeyBits(pub(super) [u64; N_WORDS]);

impl KeyBits {
    pub(crate) const NONE: Self = Self([0; N_WORDS]);
    /// The number of keys that have a bit.
    pub(crate) const CAPACITY: usize = IndexedAttributes::N_INDEXED_KEYS;

    pub(crate) const fn new(keys: &[KeyId]) -> Self {
        let mut words = [0; N_WORDS];
        let mut at = 0;
        while at < keys.len() {
            words[keys[at].0 as usize / 64] |= 1 << (keys[at].0 % 64);
            at += 1;
        }
        Self(words)
    }

    pub(crate) const fn union(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a | d, b | e, c | f])
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a & !d, b & !e, c & !f])
    }

    pub(crate) fn intersection(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a & d, b & e, c & f])
    }

    pub(crate) fn intersects(self, other: Self) -> bool {
        let ours_and_theirs = self.0.iter().zip(other.0);
        ours_and_theirs.fold(0, |common, (ours, theirs)| common | (ours & theirs)) != 0
    }

    pub(crate) const fn contains(self, key: KeyId) -> bool {
        let word = key.0 as usize / 64;
        word < N_WORDS && self.0[word] >> (key.0 % 64) & 1 == 1
    }
}
