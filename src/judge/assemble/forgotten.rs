//! Remembers hashes of the ids of closed traces (or sessions) that were forgotten early because
//! those of their peer used too much memory. A trace that opens again with such an id is
//! incomplete. Other traces are not affected, apart from rare false positives.

use super::fifo_timers::Tick;

/// Maximum 64-bit words in each filter: 512 KiB.
const MAX_WORDS: usize = 1 << 16;

const N_PROBES: u64 = 10;

/// The filter's bits per hash: a full filter has a false positive for one of 11,000 hashes, a
/// half-full one for one of 3 million.
const BITS_PER_HASH: usize = 20;

/// A bounded set of hashes, with rare false positives and no false negatives. It has two Bloom
/// filters: the current filter accepts hashes for the time `ttl`, then becomes the earlier filter,
/// which is searched for as long again.
#[derive(Debug)]
pub(crate) struct ForgottenTraces {
    n_words: usize,
    current: Filter,
    earlier: Filter,
    /// Start of the current filter.
    began: Tick,
    ttl: Tick,
}

/// A Bloom filter, which uses no memory while it is empty.
#[derive(Debug, Default)]
struct Filter {
    words: Vec<u64>,
    n_hashes: usize,
    /// The closing time of the latest trace.
    last_closed: Tick,
}

impl ForgottenTraces {
    /// Creates an empty set that uses up to `max_size` bytes, but no more than 1 MiB.
    pub(crate) fn new(max_size: usize, ttl: Tick) -> Self {
        Self {
            n_words: (max_size / (2 * size_of::<u64>())).min(MAX_WORDS),
            current: Filter::default(),
            earlier: Filter::default(),
            began: 0,
            ttl,
        }
    }

    /// Inserts the hash of a closed trace. Returns false if the filter is full.
    pub(crate) fn insert(&mut self, hash: u64, closed: Tick, now: Tick) -> bool {
        let max_hashes = self.n_words * 64 / BITS_PER_HASH;
        if self.current.n_hashes >= max_hashes {
            return false;
        }
        if self.is_empty() {
            self.began = now;
        }
        self.current.insert(hash, self.n_words);
        self.current.last_closed = self.current.last_closed.max(closed);
        true
    }

    /// Returns true if the hash was inserted, and rarely for other hashes.
    pub(crate) fn contains(&self, hash: u64) -> bool {
        self.current.contains(hash) || self.earlier.contains(hash)
    }

    /// Drops hashes that are too old. Returns the latest closing time of a dropped hash.
    pub(crate) fn expire(&mut self, now: Tick) -> Option<Tick> {
        let mut dropped = None;
        while !self.is_empty() {
            let turns_at = self.began.saturating_add(self.ttl);
            if turns_at > now {
                break;
            }
            let current = std::mem::take(&mut self.current);
            let earlier = std::mem::replace(&mut self.earlier, current);
            dropped = dropped.max((!earlier.is_empty()).then_some(earlier.last_closed));
            self.began = turns_at;
        }
        dropped
    }

    pub(crate) fn size(&self) -> usize {
        size_of_val(&*self.current.words) + size_of_val(&*self.earlier.words)
    }

    fn is_empty(&self) -> bool {
        self.current.is_empty() && self.earlier.is_empty()
    }
}

impl Filter {
    fn insert(&mut self, hash: u64, n_words: usize) {
        self.words.resize(n_words, 0);
        for (word, bit) in probes(hash, n_words) {
            self.words[word] |= bit;
        }
        self.n_hashes += 1;
    }

    fn contains(&self, hash: u64) -> bool {
        !self.is_empty()
            && probes(hash, self.words.len()).all(|(word, bit)| self.words[word] & bit != 0)
    }

    fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// Returns the words and bits of a hash. The hash is keyed, so no sender can choose ids that
/// collide with another sender's.
fn probes(hash: u64, n_words: usize) -> impl Iterator<Item = (usize, u64)> {
    (1..=N_PROBES).map(move |probe| {
        let mut mixed = hash.wrapping_add(probe.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let word = ((mixed >> 32) as usize * n_words) >> 32;
        (word, 1 << (mixed % 64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    }

    #[test]
    fn forgotten_traces_are_known_few_others_are_claimed_and_a_full_set_says_so() {
        let mut forgotten = ForgottenTraces::new(1 << 17, 100);
        assert_eq!(forgotten.size(), 0);
        let n_taken = (0..100_000)
            .take_while(|&n| forgotten.insert(hash(n), 1, 1))
            .count() as u64;
        assert_eq!(n_taken, 26_214);
        assert_eq!(forgotten.size(), 1 << 16);
        assert!((0..n_taken).all(|n| forgotten.contains(hash(n))));
        let claimed = (n_taken..1_000_000).filter(|&n| forgotten.contains(hash(n)));
        // The expected number is 87.
        assert!(claimed.count() < 180);
    }

    #[test]
    fn each_hash_is_kept_for_the_time_and_at_most_twice_as_long() {
        let mut forgotten = ForgottenTraces::new(1 << 12, 100);
        assert!(forgotten.insert(hash(1), 40, 50));
        assert!(forgotten.insert(hash(2), 140, 149));
        assert_eq!(forgotten.expire(149), None);
        assert_eq!(forgotten.expire(150), None);
        assert!(forgotten.insert(hash(3), 151, 160));
        assert_eq!(forgotten.expire(249), None);
        assert!(forgotten.contains(hash(1)) && forgotten.contains(hash(2)));
        assert_eq!(forgotten.expire(250), Some(140));
        assert!(!forgotten.contains(hash(2)) && forgotten.contains(hash(3)));
        assert_eq!(forgotten.expire(1_000), Some(151));
        assert_eq!(forgotten.size(), 0);
    }

    #[test]
    fn without_room_nothing_is_taken() {
        let mut forgotten = ForgottenTraces::new(0, 100);
        assert!(!forgotten.insert(hash(1), 0, 0));
        assert!(!forgotten.contains(hash(1)));
    }
}
