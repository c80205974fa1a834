//! A Bloom filter of trace ids, which proves in bounded memory that an id was not inserted.

use otlp::span::TraceId;

/// Maximum number of 64-bit words: 512 KiB.
pub(super) const MAX_WORDS: usize = 1 << 16;

const N_PROBES: u64 = 10;

/// A Bloom filter of trace ids, with false positives but no false negatives. At its full size, it
/// wrongly contains one of 5 million other ids after 100,000 insertions, and one of a hundred after
/// 400,000. It uses no memory while it is empty.
#[derive(Debug, Clone, Default)]
pub struct TraceIdFilter {
    words: Vec<u64>,
}

impl TraceIdFilter {
    pub fn insert(&mut self, trace_id: TraceId) {
        self.insert_hash(hash(trace_id), MAX_WORDS);
    }

    /// Inserts a hash into a filter of `n_words` words, the same number in each call.
    pub(super) fn insert_hash(&mut self, hash: u64, n_words: usize) {
        self.words.resize(n_words, 0);
        for (word, bit) in probes(hash, n_words) {
            self.words[word] |= bit;
        }
    }

    pub fn merge(&mut self, other: Self) {
        if self.words.is_empty() {
            *self = other;
            return;
        }
        for (word, more) in self.words.iter_mut().zip(other.words) {
            *word |= more;
        }
    }

    /// Returns true if the id was inserted, and sometimes for other ids.
    pub fn contains(&self, trace_id: TraceId) -> bool {
        self.contains_hash(hash(trace_id))
    }

    pub(super) fn contains_hash(&self, hash: u64) -> bool {
        !self.is_empty()
            && probes(hash, self.words.len()).all(|(word, bit)| self.words[word] & bit != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(super) fn size(&self) -> usize {
        size_of_val(&*self.words)
    }
}

/// Returns a hash of an id. It needs no key, because a sender that wants to mark another sender's
/// trace can send the trace's id itself.
pub(super) fn hash(trace_id: TraceId) -> u64 {
    let (high, low) = trace_id.halves();
    mix((high ^ low.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(low)
}

fn probes(hash: u64, n_words: usize) -> impl Iterator<Item = (usize, u64)> {
    (1..=N_PROBES).map(move |probe| {
        let mixed = mix(hash.wrapping_add(probe.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let word = ((mixed >> 32) as usize * n_words) >> 32;
        (word, 1 << (mixed % 64))
    })
}

/// Steps of splitmix64.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(n: u128) -> TraceId {
        TraceId::try_new(&(n + 1).to_be_bytes()).unwrap()
    }

    fn id(n: u128) -> TraceId {
        counted(n.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
    }

    #[test]
    fn inserted_ids_are_known_and_few_others_are_claimed() {
        for spread in [id, counted] {
            let mut filter = TraceIdFilter::default();
            assert!(!filter.contains(spread(1)));
            (0..100_000).for_each(|n| filter.insert(spread(n)));
            assert!((0..100_000).all(|n| filter.contains(spread(n))));
            let claimed = (100_000..200_000).filter(|&n| filter.contains(spread(n)));
            assert!(claimed.count() < 50);
        }
    }

    #[test]
    fn merged_filters_know_the_ids_of_both() {
        let (mut one, mut other) = (TraceIdFilter::default(), TraceIdFilter::default());
        one.insert(id(1));
        other.insert(id(2));
        one.merge(TraceIdFilter::default());
        one.merge(other);
        assert!(one.contains(id(1)) && one.contains(id(2)) && !one.contains(id(3)));
    }
}
