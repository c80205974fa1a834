//! Remembers hashes of the ids of closed traces (or sessions) that were forgotten early because
//! those of their peer used too much memory. A trace that opens again with such an id is
//! incomplete. Other traces are not affected, apart from rare false positives.

use super::fifo_timers::Tick;
use super::trace_id_filter::{MAX_WORDS, TraceIdFilter};

/// The filter's bits per hash: a full filter has a false positive for one of 11,000 hashes, a
/// half-full one for one of 3 million.
const BITS_PER_HASH: usize = 20;

/// A bounded set of hashes, with rare false positives and no false negatives. It has two Bloom
/// filters: the current filter accepts hashes for the time `ttl`, then becomes the earlier filter,
/// which is searched for as long again.
#[derive(Debug)]
pub(crate) struct ForgottenTraces {
    n_words: usize,
    max_hashes: usize,
    current: Period,
    earlier: Period,
    /// Start of the current period.
    began: Tick,
    ttl: Tick,
}

#[derive(Debug, Default)]
struct Period {
    filter: TraceIdFilter,
    n_hashes: usize,
    /// The closing time of the latest trace.
    last_closed: Tick,
}

impl ForgottenTraces {
    /// Creates an empty set that uses up to `max_size` bytes, but no more than 1 MiB.
    pub(crate) fn new(max_size: usize, ttl: Tick) -> Self {
        let n_words = (max_size / (2 * size_of::<u64>())).min(MAX_WORDS);
        Self {
            n_words,
            max_hashes: n_words * 64 / BITS_PER_HASH,
            ..Self::unlimited(ttl)
        }
    }

    /// Creates an empty set of any number of hashes, in up to 1 MiB. False positives become
    /// frequent after a few hundred thousand hashes.
    pub(super) fn unlimited(ttl: Tick) -> Self {
        Self {
            n_words: MAX_WORDS,
            max_hashes: usize::MAX,
            current: Period::default(),
            earlier: Period::default(),
            began: 0,
            ttl,
        }
    }

    /// Inserts the hash of a closed trace. Returns false if the filter is full.
    pub(crate) fn insert(&mut self, hash: u64, closed: Tick, now: Tick) -> bool {
        let is_full = self.current.n_hashes >= self.max_hashes;
        if !is_full {
            let n_words = self.n_words;
            let current = self.begin(closed, now);
            current.filter.insert_hash(hash, n_words);
            current.n_hashes += 1;
        }
        !is_full
    }

    /// Inserts all ids of a filter into an unlimited set.
    pub(super) fn insert_all(&mut self, trace_ids: TraceIdFilter, now: Tick) {
        self.begin(now, now).filter.merge(trace_ids);
    }

    /// Returns the current period, for a trace that was closed at this time.
    fn begin(&mut self, closed: Tick, now: Tick) -> &mut Period {
        if self.is_empty() {
            self.began = now;
        }
        self.current.last_closed = self.current.last_closed.max(closed);
        &mut self.current
    }

    /// Returns true if the hash was inserted, and rarely for other hashes.
    pub(crate) fn contains(&self, hash: u64) -> bool {
        let mut filters = [&self.current, &self.earlier].into_iter();
        filters.any(|period| period.filter.contains_hash(hash))
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
            dropped = dropped.max((!earlier.filter.is_empty()).then_some(earlier.last_closed));
            self.began = turns_at;
        }
        dropped
    }

    pub(crate) fn size(&self) -> usize {
        self.current.filter.size() + self.earlier.filter.size()
    }

    fn is_empty(&self) -> bool {
        self.current.filter.is_empty() && self.earlier.filter.is_empty()
    }
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
