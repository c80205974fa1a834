//! Sets of keys as bits, in which testing for an absent key costs almost nothing.

use super::key_set::KeyId;

const N_WORDS: usize = 3;

/// A set of the first [`Self::CAPACITY`] keys, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyBits([u64; N_WORDS]);

impl KeyBits {
    /// The empty set.
    pub const NONE: Self = Self([0; N_WORDS]);
    /// The number of keys that have a bit.
    pub const CAPACITY: usize = N_WORDS * 64;

    /// Creates the set of these keys, which must all be below [`Self::CAPACITY`].
    pub const fn new(keys: &[KeyId]) -> Self {
        let mut words = [0; N_WORDS];
        let mut at = 0;
        while at < keys.len() {
            words[keys[at].0 as usize / 64] |= 1 << (keys[at].0 % 64);
            at += 1;
        }
        Self(words)
    }

    /// Creates the set of the keys in these pairs, which must all be below [`Self::CAPACITY`].
    pub const fn of_pairs<T>(pairs: &[(KeyId, T)]) -> Self {
        let mut keys = Self::NONE;
        let mut at = 0;
        while at < pairs.len() {
            keys = keys.union(Self::new(&[pairs[at].0]));
            at += 1;
        }
        keys
    }

    /// Adds a key, if the key has a bit.
    #[inline]
    pub(super) fn insert(&mut self, key: KeyId) {
        if let Some(word) = self.0.get_mut(usize::from(key.0 / 64)) {
            *word |= 1 << (key.0 % 64);
        }
    }

    /// Returns the bit of a key; `None` if no set can contain the key.
    #[inline]
    pub(super) fn bit(self, key: KeyId) -> Option<bool> {
        let word = self.0.get(usize::from(key.0 / 64))?;
        Some(word >> (key.0 % 64) & 1 == 1)
    }

    /// Returns the bits, from the lowest key on.
    pub const fn words(self) -> [u64; N_WORDS] {
        self.0
    }

    /// Returns the keys that are in either set.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a | d, b | e, c | f])
    }

    /// Returns the keys that are not in `other`.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a & !d, b & !e, c & !f])
    }

    /// Returns the keys that are in both sets.
    #[inline]
    pub fn intersection(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a & d, b & e, c & f])
    }

    /// Returns true if a key is in both sets.
    #[inline]
    pub fn intersects(self, other: Self) -> bool {
        let ours_and_theirs = self.0.iter().zip(other.0);
        ours_and_theirs.fold(0, |common, (ours, theirs)| common | (ours & theirs)) != 0
    }

    /// Returns true if the key is in the set.
    #[inline]
    pub const fn contains(self, key: KeyId) -> bool {
        let word = key.0 as usize / 64;
        word < N_WORDS && self.0[word] >> (key.0 % 64) & 1 == 1
    }
}
